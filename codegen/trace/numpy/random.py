"""spmd.random: a number follows from the seed, the stream and the element's position, nothing else.

So it is the same for any number of ranks, any layout, in an image and in an eager run. Goes in: an
array of positions; codegen.philox makes random bits of them, element by element, so each rank
computes its own part in one loop. On NumPy's arrays a routine does, where spmd has given one
(philox.use): with it `normal` has the bits of an image, without it those up to the last ones.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from codegen import philox
from codegen.errors import DtypeError, TracedValueError, UsageError
from codegen.functions import FUNCTIONS
from codegen.ops import Map
from codegen.places import user_place
from codegen.trace.array import Array, as_array, is_traced, wrap
from codegen.trace.context import Context, eager_current
from codegen.trace.declare import shape_of
from codegen.trace.number import expr_of
from codegen.trace.numpy import creation, elementwise
from codegen.trace.ranks import mapping
from codegen.trace.ranks.layout_forms import by_rules
from codegen.user.half_types import is_half
from codegen.user.numbers import element_type

_LOW = 2**32 - 1  # the lower half of 64 bits


def bits(
    seed: Any, shape: Any, dtype: Any = np.uint64, layout: Any = None, *, stream: Any = 0,
    start: Any = 0,
) -> Any:
    """Draw integers of this dtype and shape; each bit is 0 or 1 with the same chance.

    The arguments that all functions share: seed, stream and start are integers, also such that are
    known only at run time. Each seed gives other numbers, and with one seed each stream (a loop's
    counter, say). layout is as in spmd.zeros. Element k in row-major order is number start + k.

    >>> spmd.random.bits(1, 3, np.uint8)
    array([112,  27, 240], dtype=uint8)
    """
    element = np.dtype(dtype)
    if element.kind not in "iu":
        raise _wrong_type("bits", dtype, "an integer type")
    return _laid_out(_first(seed, shape, stream, start).astype(element), layout, shape)


def uniform(
    seed: Any, shape: Any, low: Any = 0.0, high: Any = 1.0, dtype: Any = np.float64,
    layout: Any = None, *, stream: Any = 0, start: Any = 0,
) -> Any:
    """Draw floats low <= x < high, of 53 random bits (float32: 24); other arguments as in `bits`.

    Where low + (high - low) * fraction is rounded to high, the result is the float before it.
    float16 and bfloat16 are drawn in float32 and rounded once.

    >>> spmd.random.uniform(1, (2, 2)).round(3)
    array([[0.895, 0.874],
           [0.557, 0.037]])
    """
    element = _float_type("uniform", dtype)
    wide: np.dtype[Any] = np.dtype(np.float32) if is_half(element) else element
    _check_width(low, high, element, wide)
    numbers = _drawn("uniform", wide, seed, shape, stream, start)
    if numbers is None:
        numbers = _fraction(_first(seed, shape, stream, start), wide)
    unit = _is(low, 0) and _is(high, 1)
    if not unit:
        numbers = (low + (high - low) * numbers).astype(wide)
    if not unit or wide != element:
        numbers = _below(numbers, low, high, element)
    return _laid_out(numbers.astype(element, copy=False), layout, shape)


def normal(
    seed: Any, shape: Any, loc: Any = 0.0, scale: Any = 1.0, dtype: Any = np.float64,
    layout: Any = None, *, stream: Any = 0, start: Any = 0,
) -> Any:
    """Draw floats of the normal distribution with mean loc and deviation scale, as `bits` does.

    Of two fractions each (G. Box, M. Muller, 1958). float16 and bfloat16 are drawn in float32 and
    rounded once.

    >>> spmd.random.normal(1, 3).round(3)
    array([-0.114, -0.289,  0.954])
    """
    element = _float_type("normal", dtype)
    wide: np.dtype[Any] = np.dtype(np.float32) if is_half(element) else element
    numbers = _drawn("normal", wide, seed, shape, stream, start)
    if numbers is None:
        first = _first(seed, shape, stream, start)
        second = _random("philox_second", _positions(shape, start), stream, seed)
        radius = np.sqrt(-2 * np.log(_fraction(first, wide, least=1)))  # of (0, 1]: no log(0)
        numbers = radius * np.cos(2 * math.pi * _fraction(second, wide))
    if not (_is(loc, 0) and _is(scale, 1)):
        numbers = loc + scale * numbers
    return _laid_out(numbers.astype(element, copy=False), layout, shape)


def randint(
    seed: Any, shape: Any, low: int, high: int | None = None, dtype: Any = np.int64,
    layout: Any = None, *, stream: Any = 0, start: Any = 0,
) -> Any:
    """Draw integers low <= x < high (0 <= x < low without high); both are known while building.

    The rest as in `bits`. No integer's chance is off by more than 2**-64.

    >>> spmd.random.randint(1, 6, 1, 7)
    array([6, 6, 4, 1, 4, 2])
    """
    first, end = (0, low) if high is None else (low, high)
    element = np.dtype(dtype)
    if element.kind not in "iu":
        raise _wrong_type("randint", dtype, "an integer type")
    info = np.iinfo(element)
    if is_traced(first) or is_traced(end):
        raise TracedValueError(
            "the bounds of randint must be known while building", place=user_place(),
            expected="integers", found="a bound that only the run knows",
            remedy="low + np.floor(spmd.random.uniform(...) * (high - low)).astype(int)",
        )
    if not all(isinstance(x, (int, np.integer)) for x in (first, end)) or not (
        info.min <= first < end <= info.max + 1
    ):
        raise UsageError("the bounds of randint must be integers", place=user_place(),
                         expected=f"{info.min} <= low < high <= {info.max + 1}",
                         found=f"low {first}, high {end}")
    span = int(end) - int(first)
    numbers = _drawn("below", None, seed, shape, stream, start, span) if span < 2**64 else None
    if numbers is None:
        # Twice, since what a loop reads once needs no memory; a C compiler sees that both are one.
        lower, upper = (_first(seed, shape, stream, start) for _ in range(2))
        numbers = _scaled(lower & _LOW, upper >> 32, span)
    if first:  # uint64 wraps around, so that low may be negative
        numbers = numbers + int(first) % 2**64
    return _laid_out(numbers.astype(element), layout, shape)


def permutation(seed: Any, x: Any, layout: Any = None, *, stream: Any = 0) -> Any:
    """Return 0 … x - 1 in random order for an integer x; else x with its rows in random order.

    >>> spmd.random.permutation(1, 5)
    array([3, 2, 4, 1, 0])
    """
    if expr_of(x) is not None:
        return _laid_out(_order(_first(seed, (x,), stream, 0)), layout)
    array = as_array(x) if Context.current() is not None else np.asarray(x)
    return _laid_out(array[_order(_first(seed, array.shape[:1], stream, 0))], layout)


def categorical(
    seed: Any, logits: Any, layout: Any = None, *, stream: Any = 0, start: Any = 0,
) -> Any:
    """Draw indices along the last dim of logits: i has a chance proportional to exp(logits[i]).

    - logits: floats, not all of a lane -inf; what is -inf is not drawn. The result has the other
      dims. It is the largest of logits plus noise (E. Gumbel, 1954); the rest as in `bits`.

    >>> spmd.random.categorical(1, np.log([[0.1, 0.9]] * 8))
    array([1, 1, 1, 1, 1, 1, 0, 0])
    """
    lanes = as_array(logits) if Context.current() is not None else np.asarray(logits)
    if lanes.dtype.kind != "f" or not lanes.ndim:
        raise DtypeError("spmd.random.categorical draws by logits", place=user_place(),
                         expected="floats with a dim at least",
                         found=f"{lanes.dtype} of {lanes.ndim} dims",
                         remedy="the logarithms of what is known of the chances: np.log(p)")
    element: Any = np.dtype(np.float64 if lanes.dtype == np.float64 else np.float32)
    drawn = _inside(_first(seed, lanes.shape, stream, start), element)
    indices = np.argmax(lanes.astype(element) - np.log(-np.log(drawn)), axis=-1)
    return _laid_out(indices, layout)


# ---- bits of an element ----------------------------------------------------------------------


def _first(seed: Any, shape: Any, stream: Any, start: Any) -> Any:
    """Return 64 random bits per element."""
    words = _drawn("bits", None, seed, shape, stream, start)
    if words is not None:
        return words
    return _random("philox_first", _positions(shape, start), stream, seed)


def _drawn(
    kind: str, element: np.dtype[Any] | None, seed: Any, shape: Any, stream: Any, start: Any,
    span: int = 0,
) -> Any:
    """Return numbers by the routine in use; None in a program, and without a routine."""
    if Context.current() is not None:
        return None
    seed, stream, start = (int(_integer(x)) for x in (seed, stream, start))
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    name = kind if element is None else f"{kind}_f{8 * element.itemsize}"
    numbers = philox.drawn(name, math.prod(extents), seed, stream, start, span)
    return None if numbers is None else numbers.reshape(extents)


def _order(words: Any) -> Any:
    """Return the places of random words in ascending order."""
    order = philox.order(words) if Context.current() is None else None
    return np.argsort(words) if order is None else order


def _check_width(low: Any, high: Any, element: np.dtype[Any], wide: np.dtype[Any]) -> None:
    """Raise UsageError for known bounds whose difference overflows. `wide` is the dtype in which
    the numbers are computed before they are rounded to `element`."""
    if is_traced(low) or is_traced(high):
        return
    with np.errstate(all="ignore"):
        width = np.asarray(high, element).astype(wide) - np.asarray(low, element).astype(wide)
    if not np.isfinite(width).all():
        raise UsageError("the bounds of spmd.random.uniform are too far apart", place=user_place(),
                         expected=f"high - low, a finite {wide}", found=f"{low} to {high}",
                         remedy="bounds half as large, and twice the result")


def _below(drawn: Any, low: Any, high: Any, element: np.dtype[Any]) -> Any:
    """Return the drawn numbers, where they would be rounded to `high` as the last number of the
    element type before it."""
    known = not (is_traced(low) or is_traced(high))
    low, high = (np.asarray(x, element) if known else as_array(x).astype(element)
                 for x in (low, high))
    last = np.nextafter(high, low).astype(drawn.dtype)
    if known and not last.ndim:
        return (np.minimum if low <= high else np.maximum)(drawn, last)
    return np.where(low <= high, np.minimum(drawn, last), np.maximum(drawn, last))


def _random(fn: str, position: Any, stream: Any, seed: Any) -> Any:
    operands = (position, _integer(stream), _integer(seed))
    context = Context.current()
    if context is None:
        return FUNCTIONS[fn].numpy(*operands)
    kind, shape = element_type(np.uint64), position.extents
    values = [elementwise.operand_value(context, x, kind, shape) for x in operands]
    return wrap(context, context.emit_one(Map(fn), *values))


def _integer(x: Any) -> Any:
    """Return an integer as uint64; negative ones wrap around. Raise UsageError for anything
    else."""
    if isinstance(x, (int, np.integer)):
        return np.uint64(int(x) % 2**64)
    if Context.current() is not None:
        x = as_array(x)
    if getattr(x, "dtype", np.dtype(object)).kind not in "iu" or x.ndim:
        raise UsageError("seed, stream and start must be integers", place=user_place(),
                         expected="integers as seed, stream and start", found=repr(x))
    return x.astype(np.uint64)


def _positions(shape: Any, start: Any) -> Any:
    """Return start plus the row-major number of every element, as uint64."""
    extents = tuple(shape) if isinstance(shape, (tuple, list)) else (shape,)
    traced = Context.current() is not None
    if traced:
        shape_of(extents, "spmd.random")  # refuses what is none, a negative extent
    positions: Any = 0
    stride = 1
    for d in reversed(range(len(extents))):
        grid: Any = creation.arange(extents[d]) if traced else np.arange(extents[d])
        positions = (grid * stride).reshape((-1, *[1] * (len(extents) - 1 - d))) + positions
        stride = stride * extents[d]
    positions = (as_array(positions) if traced else np.asarray(positions)).astype(np.uint64)
    return positions if _is(start, 0) else positions + _integer(start)


def _fraction(bits: Any, kind: np.dtype[Any], least: int = 0) -> Any:
    """Return the first of 64 bits as a multiple of 2**-53 (2**-24) below 1; least=1: above 0 up to
    1."""
    count = 53 if kind == np.float64 else 24
    kept = bits >> (64 - count)
    return ((kept + least) if least else kept).astype(kind) * kind.type(2.0**-count)


def _inside(bits: Any, kind: np.dtype[Any]) -> Any:
    """Return the first of 64 bits as an odd multiple of 2**-53 (2**-24): between 0 and 1, never
    either."""
    count = 53 if kind == np.float64 else 24
    return ((bits >> (65 - count)) * 2 + 1).astype(kind) * kind.type(2.0**-count)


def _scaled(lower: Any, upper: Any, span: int) -> Any:
    """Return 64 bits * span / 2**64, rounded down: D. Lemire, "Fast random integer generation",
    2019."""
    if span == 2**64:
        return lower | (upper << 32)
    low, high = span & _LOW, span >> 32
    across = upper * low + (lower * low >> 32)  # below 2**64
    if not high:
        return across >> 32
    other = lower * high + (across & _LOW)
    return upper * high + (across >> 32) + (other >> 32)


# ---- results ---------------------------------------------------------------------------------


def _laid_out(numbers: Any, layout: Any, shape: Any = ()) -> Any:
    if isinstance(numbers, Array):
        layout = by_rules(numbers.context, shape, layout)
        wanted = layout is not None and not numbers.context.rank_view
        return mapping.relayout(numbers, layout) if wanted else numbers
    runtime = eager_current()
    return numbers if runtime is None else runtime.eager_array(numbers, layout)


def _is(x: Any, value: int) -> bool:
    return not is_traced(x) and np.ndim(x) == 0 and bool(x == value)


def _float_type(function: str, dtype: Any) -> np.dtype[Any]:
    kind: np.dtype[Any] = np.dtype(dtype)
    if kind not in (np.float32, np.float64) and not is_half(kind):
        raise _wrong_type(function, dtype, "float64, float32, float16 or bfloat16")
    return kind


def _wrong_type(function: str, dtype: Any, expected: str) -> DtypeError:
    return DtypeError(f"spmd.random.{function} cannot draw {np.dtype(dtype)}",
                      place=user_place(), expected=expected, found=str(np.dtype(dtype)),
                      remedy="convert the result with .astype(...)")
