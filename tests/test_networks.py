"""The examples that train networks check themselves. Their images are compiled light: the others,
of tests/test_examples.py, are compiled as users' are."""

from __future__ import annotations

import runpy
import sys

import pytest

from tests.conftest import EXAMPLES, NETWORKS


@pytest.mark.slow
@pytest.mark.parametrize("example", NETWORKS)
def test_checks_itself(example, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(EXAMPLES)  # some use another's weights
    monkeypatch.setattr(sys, "argv", [example])
    runpy.run_path(str(EXAMPLES / example), run_name="__main__")
