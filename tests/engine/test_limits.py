"""Limits decide how data travel and never what arrives; members of an exchange have the same."""

from __future__ import annotations

import time

import numpy as np
import pytest

from spmd.engine import ffi, lib
from tests.conftest import until
from tests.engine.harness import EngineError, Images, Job
from tests.engine.test_exchange import PROGRAMS

NEVER = 1 << 50
LIMITS = [
    {"slot": 1}, {"slot": 40, "fold": NEVER}, {"fold": 1}, {"fold": 1, "ring": 1, "slot": 1},
    {"slot": NEVER, "fold": 100, "ring": 300},
]


@pytest.mark.parametrize("limits", LIMITS, ids=str)
@pytest.mark.parametrize("name", PROGRAMS)
def test_every_rank_receives_what_was_sent(images: Images, name, limits):
    for size, threads in (((4,), 1), ((7,), 3), ((3, 4), 3)):
        for elements in (1, 5, 130):
            with Job(images, name, size, threads, elements=elements, limits=limits) as job:
                job.run()
                job.run()
                assert job.wrong() == 0, (size, threads, elements)


@pytest.mark.parametrize(("limits", "ahead"), [({}, 2), ({"slot": 64}, 2), ({"slot": 63}, 0)])
def test_who_has_put_its_data_into_slots_goes_on(images: Images, limits, ahead):
    """With two slots, a sender is two exchanges ahead of an absent reader; data in place must
    stay."""
    row = {"elements": 8, "limits": limits, "count": 1}  # 64 bytes
    with (
        Job(images, "edge", (2,), first=0, shared=True, **row) as sender,
        Job(images, "edge", (2,), first=1, arena=sender.address, **row) as reader,
    ):
        sender.start()
        until(lambda: sender.watch(0).superstep >= ahead)
        time.sleep(0.05)
        assert sender.watch(0).superstep == ahead
        reader.start()
        assert (sender.wait(), reader.wait()) == (lib.SPMD_FINISHED,) * 2
        assert reader.wrong() == 0


def test_limits_choose_the_algorithm_unless_one_is_given(images: Images):
    """A ring adds in another order than blocks, which shows in the last bits."""

    def result(algorithm: str = "auto", limits: dict[str, int] | None = None) -> bytes:
        options = {"elements": 1000, "steps": 3, "algorithm": algorithm, "limits": limits}
        with Job(images, "round", (5,), 2, **options) as job:
            job.run()
            return bytes(np.ascontiguousarray(job.rows()))

    usual, ring = result(), result("ring")
    assert usual != ring
    assert result(limits={"ring": 8000}) == ring, "from 8000 bytes on, and there are as many"
    assert result(limits={"ring": 8001}) == usual
    assert result(limits={"ring": 1, "fold": 8000}) == usual, "what all fold goes nowhere"
    assert result("blocks", {"ring": 1}) == usual


def test_processes_with_other_limits_are_refused(images: Images):
    with (
        Job(images, "ring", (2,), count=1, shared=True, limits={"share": 7}) as one,
        pytest.raises(EngineError, match="that was agreed on"),
    ):
        Job(images, "ring", (2,), first=1, arena=one.address, limits={"share": 8})
    with pytest.raises(EngineError, match="out of its range"):
        Job(images, "ring", (2,), limits={"slot": -1})


def test_what_is_not_given_is_put():
    limits = ffi.new("spmd_limits *", {"fold": 9, "slot": NEVER})
    lib.spmd_limits_fill(limits, 1)
    assert (limits.fold, limits.ring) == (9, 0) and limits.share > limits.slot > 0
    few = ffi.new("spmd_limits *")
    lib.spmd_limits_fill(few, 100_000)
    assert 0 < few.slot < limits.slot, "slots of many ranks hold less"
