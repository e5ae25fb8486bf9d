"""The examples that train networks check themselves. Their images are compiled light: the others,
of tests/test_examples.py, are compiled as users' are."""

from __future__ import annotations

import runpy
import sys

import pytest

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
