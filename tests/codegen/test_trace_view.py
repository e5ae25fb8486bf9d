"""Which reshapes are views: by arithmetic on strides, held against NumPy's own answer."""

import itertools

import numpy as np
import pytest

import spmd
from codegen.trace.view import reshaped_strides
from tests.codegen.test_trace_numpy import check


def shapes(n, dims=4):
    """Every shape of n elements with up to `dims` dims."""
    if dims == 0:
        return [()] if n == 1 else []
    found = [] if n != 1 else [()]
    for e in range(1, n + 1):
        if n % e == 0:
            found += [(e, *rest) for rest in shapes(n // e, dims - 1)]
    return found


@pytest.mark.parametrize("base", [(4, 6), (2, 3, 4), (6, 1, 4), (12, 2)])
def test_strides_are_those_of_numpy(base):
    keys = (slice(None), slice(1, None), slice(None, None, 2), slice(None, None, -1), slice(0, 1))
    views = [np.zeros(base, np.int8)[k] for k in itertools.product(keys, repeat=len(base))]
    views += [np.broadcast_to(v[:1], v.shape) for v in views]
    outcomes = set()
    for view in views:
        shown = view.transpose(range(len(base))[::-1])
        for x, wanted in itertools.product((view, shown), set(shapes(view.size, 3))):
            same = np.shares_memory(x.reshape(wanted), x)
            found = reshaped_strides(x.shape, x.strides, wanted)
            assert (found is not None) == same, (x.shape, x.strides, wanted)
            outcomes.add(same)
            if found is not None:
                real = zip(found, x.reshape(wanted).strides, wanted)
                assert all(a == b for a, b, e in real if e > 1)
    assert outcomes == {True, False}


def test_large_views_are_reshaped():
    """No array is made for it: one that only looked large was copied from memory beyond it."""

    @spmd.program(mesh=("r",))
    def large():
        x = spmd.input("x", (1000, 1000), np.float64, layout=("r", None))
        return {"flat": x.T.ravel(), "other": x.reshape(500, 2000).T.reshape(-1)}

    assert [o.shape[0].value for o in large.capture().outputs] == [10**6, 10**6]
    check(lambda x: (x.T.ravel(), x.reshape(2, 12).T.reshape(-1)), np.arange(24.0).reshape(4, 6))


def written_apart(x):
    y = (x.T * 2).astype(np.float32)
    y[0] = 5
    z = y.reshape(2, 12)
    w = x.T.copy()
    v = w.reshape(-1)
    v[0] = 9
    return y, z, w, v


def test_results_that_numpy_keeps_in_another_order():
    """NumPy copies where it reshapes them: a view would let a write through one reach the other."""
    check(written_apart, np.arange(24.0).reshape(4, 6))

    def wrong(x):
        y = x.T * 2
        z = y.reshape(-1)
        z[0] = 100
        return y, z

    with pytest.raises(spmd.ProgramError, match="may or may not share memory"):
        check(wrong, np.arange(24.0).reshape(4, 6))
