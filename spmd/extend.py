"""How to add to the language: operations with rules of their own, and what functions are made of.

spmd.nn and spmd.optim are written with this module and the public functions, and nothing else.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

import spmd
from codegen.errors import CheckError, UsageError
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.trace.api import convolve
from codegen.trace.array import Array, as_array, is_traced
from codegen.trace.control.conversion import checked_callback, convert
from codegen.trace.expecting import expect as _expect
from codegen.trace.number import Number, expr_of, number
from codegen.trace.numpy.elementwise import mapped
from codegen.trace.ranks.communicate import at_member, members, pieces
from codegen.trace.state import Tree, fill, flatten
from codegen.trace.user_operations import Operation, Part, ResultDim, Type
from codegen.user.absent import Absent, computed
from codegen.user.half_types import half_type_of, is_half, narrowed, widened
from codegen.user.named import held, rebuilt
from codegen.user.pytree import leaves, map_tree

__all__ = [
    "RankGroup", "Operation", "Part", "Type", "as_array", "called_with", "check", "converted",
    "convolve", "differs_from_run_to_run", "expect", "filled", "flatten", "half_type_of",
    "is_array", "is_half", "is_local", "is_proved_at_most", "is_proved_equal", "is_traced",
    "items", "leaves", "map_tree", "maximum", "minimum", "narrowed", "rebuilt", "scalar_function",
    "user_place", "widened",
]


# ---- arrays --------------------------------------------------------------------------------------


def is_array(x: Any) -> bool:
    """Return whether x is an array of a program, of an eager run, or of NumPy."""
    return isinstance(x, (Array, Absent, np.ndarray))


def is_local(x: Any) -> bool:
    """Return whether x is an array of one rank, inside a shard_map of a program."""
    return isinstance(x, Array) and bool(x.context.rank_view)


def scalar_function(
    name: str, x: Any, in_numpy: Callable[[Any], Any] | None = None
) -> Any:
    """Return a function of numbers of each element of x, by its name in the language: "erf", …

    in_numpy: the same function of NumPy's arrays, which eager runs call. Without it x is an array
    of a program, else UsageError.
    """
    if isinstance(x, Array):
        return mapped(name, x)
    if in_numpy is None:
        raise UsageError(f"{name} of an array of NumPy", place=user_place(),
                         expected="an array of a program, or in_numpy=", found=type(x).__name__)
    if isinstance(x, Absent):
        return computed(in_numpy, (x,), {}, x.needs)
    return in_numpy(np.asarray(x))


# ---- integers that a program knows by formulas ---------------------------------------------------


def minimum(a: Any, b: Any) -> Any:
    """Return the smaller of two extents or positions, which may be symbolic; it may be an extent.

    UsageError where one is no integer that a formula gives.
    """
    return number(expr.minimum(_formula(a), _formula(b)))


def maximum(a: Any, b: Any) -> Any:
    """Return the larger of two extents or positions, as minimum does the smaller."""
    return number(expr.maximum(_formula(a), _formula(b)))


def is_proved_equal(a: Any, b: Any) -> bool:
    """Return whether two integers are surely equal, on every rank and in every run."""
    return expr.equal(_formula(a), _formula(b))


def is_proved_at_most(a: Any, b: Any) -> bool:
    """Return whether a <= b surely; False where an integer follows from data."""
    low, high = expr_of(a), expr_of(b)
    return low is not None and high is not None and expr.nonneg(high - low)


def differs_from_run_to_run(extent: Any) -> bool:
    """Return whether only a run knows an extent: that of a spmd.Dim with at_most=."""
    return isinstance(extent, Number) and extent.expr.has_extents


def _formula(x: Any) -> Expr:
    formula = expr_of(x)
    if formula is None:
        raise UsageError("an integer is not known by a formula", place=user_place(),
                         expected="extents, positions, counters of loops, Python's integers",
                         found=repr(x)[:60])
    return formula


# ---- ranks ---------------------------------------------------------------------------------------


class RankGroup:
    """The ranks along some mesh axes, seen by one of them inside a shard_map.

    axes: names of axes, in the order given. size: how many ranks there are. position: which of
    them this one is, row-major over the axes. LayoutError for what is no axis, ProgramError outside
    of a shard_map; what: the function that says so.
    """

    def __init__(self, axes: Any, caller: str) -> None:
        self._context, self.axes = members(axes, caller)
        self._what, mesh = caller, self._context.mesh
        self.size, self.position = number(mesh.size(self.axes)), number(mesh.position(self.axes))

    def start(self, extent: Any) -> Any:
        """Return where this rank's part begins when the parts of all of them are joined.

        extent: how many elements this rank's part has. ShapeError where no formula sums them up.
        """
        first, _ = pieces(self._context, self.axes, _formula(extent), self._what)[0]
        return number(first)

    def at(self, value: Any, position: Any) -> Any:
        """Return an extent or a position as the rank at `position` of the group has it."""
        return number(at_member(self._context, self.axes, _formula(value), _formula(position)))


# ---- functions, and what a run finds -------------------------------------------------------------


def converted(function: Callable[..., Any]) -> Callable[..., Any]:
    """Return a user's function with its loops and branches compiled, as the program's own are."""
    return convert(function)


def called_with(function: Any, role: str, *names: str) -> Callable[..., Any]:
    """Return a user's function, converted, that is called with arguments of these names.

    Raises UsageError where it takes others. role: what the function is called in the message.
    """
    return checked_callback(function, role, *names)


def expect(holds: Any, *text: Any) -> None:
    """End the run with a message where `holds` is not true everywhere.

    holds: an array of truth values of a program. text: pieces of the message; arrays among them, of
    the same shape or 0-d, are shown as they are at the first element that does not hold.
    """
    array = as_array(holds)
    _expect(array.context, array.read(),
            *(as_array(piece).read() if isinstance(piece, Array) or is_traced(piece) else piece
              for piece in text))


# ---- trees ---------------------------------------------------------------------------------------


def filled(structure: Tree, new: Sequence[Any]) -> Any:
    """Return a tree of the structure that `flatten` found, with new leaves in their order."""
    return fill(structure, iter(new), fresh=True)


def items(tree: Any) -> list[tuple[Any, Any]] | None:
    """Return the pairs of key and value of a dict, list, tuple or dataclass; None for a leaf."""
    return held(tree)


# ---- trying an operation -------------------------------------------------------------------------


def check(operation: Operation, *operands: Any, ranks: Sequence[int] = (1, 2, 3, 5)) -> None:
    """Try the rules of an operation on NumPy arrays, and raise CheckError where two disagree.

    What `numpy` returns is compared with the results of an image on these numbers of ranks, with
    the first dim split that the rule `needs` names; what `vjp` returns, where the operation has
    that rule, with differences of `numpy`.

    Example::

        class Twice(spmd.extend.Operation):
            def result(self, x):
                return x

            def numpy(self, x):
                return 2 * x

            def needs(self, dims, x):
                return [dims]

        print(spmd.extend.check(Twice(), np.arange(6.0)))    # None
    """
    arrays = [np.asarray(x) for x in operands]
    expected = operation(*arrays)
    image = spmd.build(_called_once(operation, arrays, expected.ndim))
    inputs: dict[str, Any] = {f"x{k}": x for k, x in enumerate(arrays)}
    apart = _rounding(expected, arrays)
    for n in ranks:
        result = image.run(ranks=n, **inputs)
        if not np.allclose(result, expected, 1e-4, apart, equal_nan=True):
            where = np.argwhere(~np.isclose(result, expected, 1e-4, apart, equal_nan=True))[0]
            on = f"compute on {n} rank{'s' * (n != 1)}"
            raise _disagrees(operation, on, "numpy", tuple(where.tolist()), expected[tuple(where)],
                             result[tuple(where)],
                             "name in the rule needs all that compute reads; windows(size) widens")
    if type(operation).vjp is not Operation.vjp:
        _check_vjp(operation, arrays)


def _rounding(expected: np.ndarray, operands: Sequence[np.ndarray]) -> float:
    """Return by how much sums of operands, taken in another order, may differ from a result."""
    if expected.dtype.kind not in "fc":
        return 0.0
    largest = max((float(np.max(np.abs(x), where=np.isfinite(x), initial=0.0))
                   for x in (expected, *operands)), default=0.0)
    return 100 * float(np.finfo(expected.dtype).eps) * largest


def _called_once(operation: Operation, arrays: Sequence[Any], ndim: int) -> Any:
    """Return a program that calls the operation, with one dim of it split."""
    dims = tuple(ResultDim(d) for d in range(ndim))
    needs = [() if e is None else e for e in operation.needs(dims, *arrays)]
    split = next((d.number for entries in needs for d in entries if d is not None), None)
    layouts: list[list[str | None]] = [[None] * x.ndim for x in arrays]
    for layout, entries in zip(layouts, needs):
        for k, d in enumerate(entries):
            if d is not None and d.number == split and "r" not in layout:
                layout[k] = "r"

    def tried() -> Any:
        return operation(*(
            spmd.input(f"x{k}", x.shape, x.dtype, layout=tuple(layout))
            for k, (x, layout) in enumerate(zip(arrays, layouts))))

    return spmd.program(mesh=("r",))(tried)


def _check_vjp(operation: Operation, arrays: Sequence[Any]) -> None:
    """Compare the rule vjp with differences in one direction, in double precision."""
    wide = [x.astype(np.result_type(x, np.float64)) if x.dtype.kind in "fc" else x for x in arrays]
    by = [k for k, x in enumerate(wide) if x.dtype.kind in "fc"]
    draw = np.random.default_rng(0)
    steps = {k: _normal(draw, wide[k]) * 1e-6 for k in by}

    def of(*moved: Any) -> Any:
        every = dict(zip(by, moved))
        return operation(*(every.get(k, x) for k, x in enumerate(wide)))

    ends = [of(*(wide[k] + sign * steps[k] for k in by)) for sign in (1, -1)]
    if ends[0].dtype.kind not in "fc":
        return  # numbers that do not change by little have no derivative
    result, back = spmd.vjp(of, *(wide[k] for k in by))
    cotangent = _normal(draw, np.asarray(result))
    slope = sum(np.real(np.sum(g * steps[k])) for k, g in zip(by, back(cotangent)))
    expected = np.real(np.sum(cotangent * (ends[0] - ends[1]))) / 2
    rounding = 1e-14 * np.sum(np.abs(cotangent) * (np.abs(ends[0]) + np.abs(ends[1])))
    if not np.isclose(slope, expected, 1e-3, rounding):
        raise _disagrees(operation, "vjp", "differences of numpy", "", expected * 1e6, slope * 1e6,
                         "compare its formula with the derivative of numpy; operands at which that "
                         "jumps have none")


def _normal(draw: np.random.Generator, like: np.ndarray) -> np.ndarray:
    """Return random numbers of the shape of an array, complex where it is."""
    real = draw.standard_normal(like.shape)
    return real + 1j * draw.standard_normal(like.shape) if like.dtype.kind == "c" else real


def _disagrees(
    operation: Operation, rule: str, other: str, where: Any, expected: Any, found: Any, remedy: str
) -> CheckError:
    subject = f"element {where} is " if where != "" else "a slope of "
    return CheckError(
        f"{operation}: {rule} does not agree with {other}\n  expected: {subject}{expected}"
        f"\n  found:    {found}\n  try:      {remedy}")
