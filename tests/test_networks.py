"""The examples that train networks check themselves. Their images are compiled light: the others,
of tests/test_examples.py, are compiled as users' are."""

from __future__ import annotations

import runpy
import sys

import pytest

import spmd
from tests.conftest import EXAMPLES, NETWORKS

pytestmark = pytest.mark.usefixtures("vectors_cc")  # they compute for long

# Their workers take most of the time. That batches do not depend on the number of ranks,
# feed_digits.py shows; what these learn, one run shows.
RUN_ONCE = ("feed_cartpole.py", "feed_lines.py", "feed_photographs.py")


@pytest.mark.slow
@pytest.mark.parametrize("example", NETWORKS)
def test_checks_itself(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # some use another's weights
    monkeypatch.setattr(sys, "argv", [example])
    once = example in RUN_ONCE
    names = runpy.run_path(str(EXAMPLES / example), run_name=example if once else "__main__")
    if once:
        names["check"](ranks=(3,))


def test_generate_copies_no_cache():
    """A call writes new keys, values and letters into the state, where that lies."""
    small = {"texts": 2, "layers": 2, "heads": 4, "width": 32, "length": 32}
    manifest = spmd.build(EXAMPLES / "generate.py", **small).manifest
    entry = next(e for e in manifest["entries"] if e["name"] == "generate")
    names = {kind: {manifest["inputs"][manifest["states"][k]["input"]]["name"]
                    for k in entry[kind]} for kind in ("updates", "rebinds")}
    caches = {f"caches.{k}.{name}" for k in range(2) for name in ("key", "value")}
    assert names["updates"] >= {*caches, "text"}
    assert not names["rebinds"] & {*caches, "text"}
