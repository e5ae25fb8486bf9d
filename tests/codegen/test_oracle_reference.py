"""The reference rules at their edges: clamping, dropping, empty arrays, division by zero."""

import numpy as np
import pytest

from codegen import dtypes
from codegen.functions import BY_UFUNC
from codegen.ops import OPS, Exchange, Kind
from codegen.ops.control import Control
from codegen.oracle.interpret import evaluator
from codegen.symbolic.expr import as_expr


def apply(kind, *operands, **attrs):
    if "shape" in attrs:
        attrs["shape"] = tuple(as_expr(e) for e in attrs["shape"])
    with np.errstate(all="ignore"):
        what = OPS[kind](**attrs)
        (out,) = what.reference([np.asarray(x) for x in operands], evaluator({}))
    return out


def test_every_op_kind_has_a_rule():
    # the interpreter holds scalars, lines and streams of batches
    elsewhere = {"scalar", "print", "expect", "take", "more", "send", "save"}
    for kind, what in OPS.items():
        if issubclass(what, Exchange):
            assert what.together is not Exchange.together, kind
        elif kind not in elsewhere and not issubclass(what, Control):
            assert what.reference is not Kind.reference, kind


def test_dynamic_reads_are_clamped_so_that_the_box_fits():
    x = np.arange(5)
    for start, expected in ((-9, [0, 1]), (0, [0, 1]), (3, [3, 4]), (4, [3, 4]), (99, [3, 4])):
        np.testing.assert_array_equal(apply("dynamic_slice", x, start, shape=(2,)), expected)
    assert apply("dynamic_slice", np.zeros((0, 3)), 2, 0, shape=(1, 3)).tolist() == [[0, 0, 0]]


def test_dynamic_writes_beyond_the_ends_are_dropped():
    x, v = np.zeros(4, int), np.array([1, 2, 3])
    for start, expected in ((-1, [2, 3, 0, 0]), (2, [0, 0, 1, 2]), (-3, [0] * 4), (7, [0] * 4)):
        np.testing.assert_array_equal(apply("dynamic_update", x, v, start), expected)
    assert not x.any(), "operands are never written"


def test_gather_clamps_and_places_its_dims():
    x = np.arange(24).reshape(2, 3, 4)
    index = np.array([[0, 9], [-5, 1]])
    out = apply("gather", x, index, dims=(1,), index_dim=1)
    np.testing.assert_array_equal(out, x[:, [[0, 2], [0, 1]]])
    two = apply("gather", x, np.array([1, 0]), np.array([2, 3]), dims=(0, 2), index_dim=1)
    np.testing.assert_array_equal(two, x[[1, 0], :, [2, 3]].T)


def test_scatter_drops_and_the_last_one_wins():
    index = np.array([0, 5, 0, -1])
    v = np.array([1.0, 2, 3, 4])
    out = apply("scatter", np.zeros(3), v, index, dims=(0,), index_dim=0, fn="set")
    assert out.tolist() == [3, 0, 0]
    out = apply("scatter", np.zeros(3), v, index, dims=(0,), index_dim=0, fn="add")
    assert out.tolist() == [4, 0, 0]
    rows = np.arange(8.0).reshape(2, 4)
    out = apply("scatter", np.zeros((2, 3)), rows, index, dims=(1,), index_dim=1, fn="max")
    assert out.tolist() == [[2, 0, 0], [6, 0, 0]]


@pytest.mark.parametrize("fn,neutral", [("add", 0), ("mul", 1), ("min", np.inf), ("max", -np.inf)])
def test_an_empty_reduction_is_neutral(fn, neutral):
    assert apply("reduce", np.zeros((2, 0)), fn=fn, dims=(1,)).tolist() == [neutral] * 2


def test_integer_division_by_zero_is_0():
    for dtype in (np.int8, np.int64, np.uint16):
        x, zero = np.array([7, 0], dtype), np.zeros(2, dtype)
        assert apply("map", x, zero, fn="floordiv").tolist() == [0, 0]
        assert apply("map", x, zero, fn="mod").tolist() == [0, 0]


def test_slice_with_a_negative_step():
    start, step = (as_expr(4),), (-2,)
    out = apply("slice", np.arange(5), start=start, step=step, shape=(3,))
    assert out.tolist() == [4, 2, 0]
    back = apply("update", np.zeros(5), [1.0, 2, 3], start=start, step=step)
    assert back.tolist() == [3, 0, 2, 0, 1]


def test_functions_are_numpys_own():
    for name, fn in BY_UFUNC.items():
        assert fn.numpy is getattr(np, name, None) or not hasattr(np, name)


def test_reductions_keep_their_dtype():
    for name in ("int8", "uint16", "float32", "bool"):
        x = np.ones((2, 3), dtypes.numpy_dtype(dtypes.BY_NAME[name]))
        assert apply("reduce", x, fn="add", dims=(0, 1)).dtype == x.dtype
        assert apply("cumulative", x, fn="add", dim=1).dtype == x.dtype
