"""The engine under random delays: random jobs, built with hooks at every access to a shared word.

hooks.h, delays.c: what is done to the engine. stress.c: what runs. `make stress` runs it for long;
STRESS_SECONDS, STRESS_SEED: for how long, and the first of the seeds (a job each).
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.conftest import run
from tests.engine.harness import CSRC, HERE, compile_hooked

SECONDS = float(os.environ.get("STRESS_SECONDS", "5"))
SEED = int(os.environ.get("STRESS_SEED", "1"))
STILL = 20  # seconds in which no rank of a job gets further: a hang
# enum delays_defect, and what it leads to.
DEFECTS = {"no_fence": (1, "a hang"), "lost_wake": (2, "a hang"), "half_copy": (3, "wrong values")}


@pytest.fixture(scope="module")
def stress(once: Callable[..., Path]) -> Path:
    files = [str(HERE / f"{name}.c") for name in ("stress", "mixed", "images", "near")]
    return once("stress", lambda path: compile_hooked(path, "-O1", *files))


def test_nothing_found(stress, capsys):
    done = run([stress, SECONDS, SEED, STILL], timeout=SECONDS + 120).expect(0)
    found = re.fullmatch(r"nothing found in (\d+) jobs\n", done.out)
    assert found and int(found[1]) >= min(SECONDS, 10), done.text
    with capsys.disabled():
        print(f"\n    stress: {found[1]} jobs", end="")


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(stress, name):
    number, symptom = DEFECTS[name]
    done = run([stress, 60, 1, 1.5, number], timeout=120).expect(1)
    assert f"found {symptom} after" in done.out, done.out


def test_every_access_to_a_shared_word_is_hooked():
    """What hooks.h does not define would be left out silently."""
    known = set(re.findall(r"#define (atomic_\w+)", (HERE / "hooks.h").read_text()))
    used, hidden = set(), []
    for path in sorted(CSRC.glob("*.[ch]")):
        text = path.read_text()
        used |= set(re.findall(r"\b(atomic_\w+)\s*\(", text))
        hidden += [f"{path.name}: {word}" for word in re.findall(r"__(?:atomic|sync)_\w+", text)]
    assert len(used) > 5 and used <= known and hidden == [], (used - known, hidden)
