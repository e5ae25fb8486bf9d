"""Calls in a thread that runs the ranks itself: they do what other calls do."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

import spmd
from spmd.prepared_calls import brief_calls

LINES, BLANKS = 300, " " * 300  # 90 kB of text


@spmd.program(mesh=("r",))
class Talker:
    def __init__(self) -> None:
        self.total = np.zeros(4)

    @spmd.entry
    def add(self) -> Any:
        x = spmd.input("x", (4,), np.float64)
        self.total[1:3] += x[1:3]
        assert np.all(x < 9), "x is too large"
        return {"total": self.total, "sum": np.sum(x)}

    @spmd.entry
    def count(self) -> Any:
        x = spmd.input("x", (4,), np.float64)
        for k in range(LINES):
            x = x + 1
            print("now", BLANKS, "at", k, x[0])
        return x


@pytest.fixture(scope="module")
def image() -> Any:
    return spmd.build(Talker)


@pytest.mark.parametrize("ranks", [1, 2])
def test_calls_give_the_same(image, ranks, capfd):
    """Results, state, errors that undo it, and more text than the engine holds at a time."""
    x = np.arange(4.0)
    with image.open(ranks=ranks, threads=1) as opened:
        opened.add(x=x)  # which prepares the next ones
        with brief_calls:
            for k in range(2, 30):
                found = opened.add(x=x)
                assert list(found["total"]) == [0, k, 2 * k, 0]
            for _ in range(2):
                with pytest.raises(spmd.SpmdError, match="x is too large"):
                    opened.add(x=9 + x)
                assert list(opened.add(x=0 * x)["total"]) == [0, 29, 58, 0]
            capfd.readouterr()
            for k in range(3):
                assert list(opened.count(x=x + k)) == list(x + k + LINES)
                said = capfd.readouterr().out.splitlines()
                assert len(said) == LINES
                assert said[-1].split() == ["now", "at", f"{LINES - 1}", f"{float(LINES + k)}"]
        assert list(opened.add(x=x)["total"]) == [0, 30, 60, 0]


def test_threads_take_turns_with_workers(image):
    """Calls that are brief, and others, from several threads of one job."""
    wrong: list[Any] = []

    def calls(brief: bool) -> None:
        for k in range(300):
            x = np.full(4, float(k % 7))
            if brief:
                with brief_calls:
                    found = opened.add(x=x)
            else:
                found = opened.add(x=x)
            if found["sum"] != 4 * (k % 7):
                wrong.append(found)

    with image.open(ranks=2, threads=1) as opened:
        threads = [threading.Thread(target=calls, args=(k % 2 == 0,)) for k in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join(60)
        assert not wrong
        total = 4 * sum(k % 7 for k in range(300))
        assert list(opened.add(x=np.zeros(4))["total"]) == [0, total, total, 0]
