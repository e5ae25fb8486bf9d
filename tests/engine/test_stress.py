"""The engine under random delays: random jobs, built with hooks at every access to a shared word.

hooks.h, delays.c: what is done to the engine. stress.c: what runs. `make stress` runs it for long;
STRESS_SECONDS, STRESS_SEED: for how long, and the first of the seeds (a job each). fences.c: what
the hooks make of a fence.
"""

from __future__ import annotations

import os
import re
import signal
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path

import pytest

from tests.conftest import PATIENCE, Launch, run
from tests.engine.harness import CSRC, HERE, compile_hooked

SECONDS = float(os.environ.get("STRESS_SECONDS", "2"))
SEED = int(os.environ.get("STRESS_SEED", "1"))
STILL = 20  # seconds in which no rank of a job gets further: a hang
# enum delays_defect, and what it leads to.
DEFECTS = {"no_fence": (1, "a hang"), "lost_wake": (2, "a hang"), "half_copy": (3, "wrong values")}


@pytest.fixture(scope="module")
def stress(once: Callable[..., Path], hooked_engine: str) -> Path:
    files = [str(HERE / f"{name}.c") for name in ("stress", "mixed", "images", "near")]
    return once("stress", lambda path: compile_hooked(path, "-O1", *files, hooked_engine))


def test_nothing_found(stress, capsys):
    done = run([stress, SECONDS, SEED, STILL], timeout=SECONDS + PATIENCE).expect(0)
    found = re.fullmatch(r"nothing found in (\d+) jobs\n", done.out)
    assert found and int(found[1]) >= 1, done.text
    with capsys.disabled():
        print(f"\n    stress: {found[1]} jobs", end="")


@pytest.mark.parametrize("name", DEFECTS)
def test_a_defect_is_found(stress, name):
    number, symptom = DEFECTS[name]
    done = run([stress, 300, 1, 1.5, number], timeout=400).expect(1)
    assert f"found {symptom} after" in done.out, done.out


def test_a_stopped_process_is_no_hang(stress):
    """One of a job's processes stands still for longer than the others may. The first job takes a
    moment; one that comes later does as well."""
    stopped = False
    for _ in range(20):
        with Launch([stress, 1, 109, 0.7]) as launch:
            while launch.process.poll() is None and len(found := launch.alive()) < 3:
                pass  # the test itself and two
            time.sleep(0.02)
            with suppress(ProcessLookupError):  # it has ended; or was ended, as one that hangs
                os.kill(max(found), signal.SIGSTOP)
                stopped = len(found) >= 3
                time.sleep(1.2)
                os.kill(max(found), signal.SIGCONT)
            launch.finish().expect(0, "nothing found")
        if stopped:
            break
    assert stopped


@pytest.fixture(scope="module")
def fences(once: Callable[..., Path]) -> Path:
    return once("fences", lambda path: compile_hooked(path, "-O1", str(HERE / "fences.c")))


@pytest.mark.parametrize("rate", [0, 15])
@pytest.mark.parametrize("what", ["fence", "store"])
def test_a_hooked_fence_orders_what_the_processor_does(fences, what, rate):
    """Or a thread looks for work before others see that it sleeps, and nobody wakes it."""
    run([fences, what, 0.3, rate, 0]).expect(0)


def test_a_fence_that_does_nothing_is_found(fences):
    run([fences, "fence", PATIENCE, 15, DEFECTS["no_fence"][0]], timeout=2 * PATIENCE).expect(1)


def test_every_access_to_a_shared_word_is_hooked():
    """Every atomic access of the engine is defined in hooks.h, which would leave others out
    silently."""
    known = set(re.findall(r"#define (atomic_\w+)", (HERE / "hooks.h").read_text()))
    used, hidden = set(), []
    for path in sorted(CSRC.glob("*.[ch]")):
        text = path.read_text()
        used |= set(re.findall(r"\b(atomic_\w+)\s*\(", text))
        hidden += [f"{path.name}: {word}" for word in re.findall(r"__(?:atomic|sync)_\w+", text)]
    assert len(used) > 5 and used <= known and hidden == [], (used - known, hidden)
