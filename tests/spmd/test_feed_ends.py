"""A stream ends once in a run: what that means for loops behind its end is said."""

import numpy as np
import pytest

import spmd


@spmd.program(mesh=("r",))
def passes(turns: int = 2):
    feed = spmd.feed(x=spmd.spec((4,), np.float32))
    total, k = spmd.asarray(np.float32(0)), spmd.asarray(0)
    for _ in spmd.range(turns):
        for b in feed:
            total = total + np.sum(b.x)
            k = k + 1
    return {"total": total, "batches": k}


@pytest.mark.parametrize(("turns", "said"), [(1, ""), (2, "once: "), (3, "2 times: ")])
def test_a_loop_behind_the_end_is_said(turns, said, capfd):
    given = [{"x": np.full(4, k, np.float32)} for k in range(5)]
    found = spmd.build(passes, turns=turns).run(ranks=2, feed=given)
    assert (float(found["total"]), int(found["batches"])) == (40.0, 5)
    text = capfd.readouterr().err
    assert (f'feed "feed" was asked for more behind its end {said}' in text) == bool(said)
