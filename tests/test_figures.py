"""Measuring says what it is at, and takes limited time; what it measures is for `make figures`."""

from __future__ import annotations

import time

from benchmarks.research_kernels import repeated


def test_what_takes_long_is_measured_less_often_and_named(capfd):
    assert repeated(lambda: 1.0, 3, 60.0, "quick") == [1.0] * 3
    assert repeated(lambda: time.sleep(0.02), 1000, 0.01, "slow") == [None]
    said = capfd.readouterr().err.splitlines()
    assert said == [f"figures: quick, {k} of 3" for k in (1, 2, 3)] + ["figures: slow, 1 of 1000"]
