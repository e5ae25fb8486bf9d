"""What every part of an eager run has: the mesh, new arrays, and control flow as Python's own.

Methods are named and called as the functions of `spmd`; `index_` is None outside shard_map.
"""

from __future__ import annotations

import builtins
import string
import sys
from collections.abc import Callable, Container, Iterator, Mapping, Sequence
from itertools import count
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import LayoutError, MeshError, ProgramError, UnsupportedError, UsageError
from codegen.mesh import checked_text
from codegen.ops import Convolve
from codegen.oracle import kernel_calls
from codegen.oracle.local import Blocks, EagerArray, local
from codegen.oracle.turn_counts import Turns
from codegen.places import user_place
from codegen.progress import Steps
from codegen.symbolic import expr
from codegen.symbolic.expr import as_expr
from codegen.user.dims import BoundedDim
from codegen.user.layout_trees import MeshName
from codegen.user.numbers import element_type, owner_of, pace_spec, rounded
from codegen.user.pytree import leaves, map_tree
from codegen.user.series import check_series

Axes = Any  # as the user writes them: a name, several, a MeshName, or None for all


def _making(function: Any) -> Any:
    """Return a method of Common: NumPy's function, with layout=."""

    def call(self: Common, *args: Any, layout: Any = None, **more: Any) -> EagerArray:
        return self.eager_array(function(*args, **more), layout)

    return call


class Common:
    """The part of the runtime that is the same for the program and for one rank in shard_map."""

    index_: int | None = None

    def __init__(self, axes: Mapping[str, int], prints: list[str] | None) -> None:
        self.axes = dict(axes)
        self.prints = prints
        self.steps = Steps(live=False)
        self.turns = Turns()
        self.frames: Mapping[str, Callable[[np.ndarray], Any]] = {}  # who takes what is saved
        # by id: the memory of arrays from outside of the program
        self.reachable: Callable[[], Container[int]] = tuple

    def extent_of(self, dim: BoundedDim) -> int:
        """Return the extent of a named dim, as the inputs of the run say."""
        return dim.at_most

    # ---- the mesh --------------------------------------------------------------------------------

    def names(self, axes: Axes) -> tuple[str, ...]:
        """Return the axes of the mesh that an argument means, in its order."""
        if axes is None:
            return tuple(self.axes)
        if isinstance(axes, MeshName):
            return axes.axes
        if isinstance(axes, str):
            if axes in self.axes:
                return (axes,)
            raise LayoutError(
                f"{axes!r} is not an axis of this program's mesh",
                expected=f"one of {', '.join(self.axes)}, or a tuple of them",
            )
        return tuple(name for a in axes for name in self.names(a))

    def axis_size(self, axis: Axes = None) -> int:
        return int(np.prod([self.axes[a] for a in self.names(axis)], dtype=np.int64))

    def ranks(self) -> int:
        return self.axis_size()

    def require(self, condition: Any, text: str = "") -> None:
        checked_text(text, user_place())
        if not condition:
            raise MeshError(text or "a condition of the program does not hold",
                            found=str(self.axes))

    def outside(self, operation: str) -> ProgramError:
        return ProgramError(
            f"{operation} stands outside a shard_map",
            expected="one rank's view, where the index can be read",
            remedy="write it inside a function given to spmd.shard_map",
        )

    # ---- arrays ----------------------------------------------------------------------------------

    def eager_array(self, x: Any, layout: Any = None) -> EagerArray:
        out = local(x)
        if self.index_ is None:
            out.layout = layout
        return out

    def asarray(self, x: Any, dtype: Any = None, layout: Any = None, **_: Any) -> EagerArray:
        """Return x as an array of the program: itself if it is one; of a constant from outside a
        copy."""
        plain = isinstance(x, np.ndarray) and not isinstance(x, EagerArray)
        constant = plain and id(owner_of(x)) in self.reachable()
        return self.eager_array(np.array(dtypes.as_numpy(x), dtype, copy=constant or None), layout)

    def array(self, x: Any, dtype: Any = None, layout: Any = None, **_: Any) -> EagerArray:
        return self.eager_array(np.array(x, dtype), layout)

    def full(self, shape: Any, value: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        if dtype is not None and np.ndim(value) == 0 and np.asarray(value).dtype.kind in "iuf":
            rounded(np.asarray(value).item(), element_type(dtype))  # of a NaN NumPy makes a number
        return self.eager_array(np.full(shape, value, dtype), layout)

    def zeros(self, shape: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return self.eager_array(np.zeros(shape, dtype or np.float64), layout)

    empty = zeros  # an empty array may hold anything; zeros are the same in every run

    def ones(self, shape: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return self.eager_array(np.ones(shape, dtype or np.float64), layout)

    arange, linspace = _making(np.arange), _making(np.linspace)

    def eye(self, n: int, m: Any = None, k: int = 0, dtype: Any = None,
            layout: Any = None) -> EagerArray:
        return self.eager_array(np.eye(n, m, k, dtype or np.float64), layout)

    def identity(self, n: int, dtype: Any = None) -> EagerArray:
        return self.eye(n, dtype=dtype)

    def full_like(self, x: Any, value: Any, dtype: Any = None, layout: Any = None,
                  **other: Any) -> EagerArray:
        array = np.full_like(np.asarray(x), value, dtype, shape=other.get("shape"))
        same = layout is None and other.get("shape") is None
        return self.eager_array(array, getattr(x, "layout", None) if same else layout)

    def zeros_like(self, x: Any, dtype: Any = None, layout: Any = None, **k: Any) -> EagerArray:
        return self.full_like(x, 0, dtype, layout, **k)

    empty_like = like = zeros_like

    def ones_like(self, x: Any, dtype: Any = None, layout: Any = None, **k: Any) -> EagerArray:
        return self.full_like(x, 1, dtype, layout, **k)

    def blocks(self, x: Any, n: Any, dim: int = 0) -> Blocks:
        return Blocks(x, int(n), dim)

    def dynamic_slice(self, x: Any, starts: Any, sizes: Any) -> EagerArray:
        return local(x[_box(np.shape(x), starts, sizes)].copy())

    def dynamic_update_slice(self, x: Any, update: Any, starts: Any) -> EagerArray:
        out = local(np.array(x))
        out[_box(out.shape, starts, np.shape(update))] = update
        return out

    def top_k(self, x: Any, k: int, *, axis: int = -1) -> tuple[EagerArray, EagerArray]:
        turned = np.flip(np.argsort(np.flip(x, axis), axis, kind="stable"), axis)
        positions = np.take(np.shape(x)[axis] - 1 - turned, range(k), axis)
        return local(np.take_along_axis(x, positions, axis)), local(positions)

    def convolve(self, gives: str, a: Any, b: Any, start: Any, stride: Any, dilation: Any,
                 shape: Any) -> EagerArray:
        kind = Convolve(gives, tuple(map(expr.const, start)), tuple(stride), tuple(dilation),
                        tuple(map(expr.const, shape)))
        x, y = (np.asarray(v, np.result_type(a, b)) for v in (a, b))
        return local(kind.reference([x, y], lambda e: as_expr(e).value)[0])

    # ---- control flow: Python's own --------------------------------------------------------------

    def range(self, *bounds: Any) -> Any:
        return _Range(builtins.range(*(int(b) for b in bounds)), self.turns)

    def fori_loop(self, lower: Any, upper: Any, body: Any, init: Any) -> Any:
        state = map_tree(_copied, init)
        for i in self.range(lower, upper):
            state = body(i, state)
        return state

    def while_loop(self, condition: Any, body: Any, init: Any) -> Any:
        state = map_tree(_copied, init)
        turns = self.turns.counted(count())
        while condition(state):
            next(turns)
            state = body(state)
        turns.close()
        return state

    def cond(self, predicate: Any, true: Any, false: Any, *args: Any) -> Any:
        return (true if predicate else false)(*map_tree(_copied, args))

    def switch(self, index: Any, branches: Sequence[Any], *args: Any) -> Any:
        number = min(max(int(index), 0), len(branches) - 1)
        return branches[number](*map_tree(_copied, args))

    def scan(self, f: Any, init: Any, xs: Any = None, length: Any = None,
             reverse: bool = False) -> Any:
        """Call f(carry, x) for every x of the first dim; return the last carry, and all second
        results."""
        carry, outs = map_tree(_copied, init), []
        steps = range(int(length) if xs is None else len(next(leaves(xs))))
        order = reversed(steps) if reverse else steps
        for k in self.turns.counted(order):
            carry, y = f(carry, map_tree(lambda x, k=k: _copied(x[k]), xs))  # type: ignore[misc]
            outs.append(y)
        outs = outs[::-1] if reverse else outs
        if not outs:
            return carry, self._no_rows(f, map_tree(_copied, carry), xs)
        if outs[0] is None:
            return carry, None
        columns = iter(zip(*(leaves(y) for y in outs), strict=True))
        return carry, map_tree(lambda _: local(np.stack(next(columns))), outs[0])

    def _no_rows(self, f: Any, carry: Any, xs: Any) -> Any:
        """Return the second results of a scan over nothing: f says of which type they would be."""
        shown, self.prints = self.prints, []
        try:
            _, y = f(carry, map_tree(lambda x: np.zeros_like(x, shape=x.shape[1:]), xs))
        finally:
            self.prints = shown
        return map_tree(lambda y: local(np.zeros((0, *np.shape(y)), np.asarray(y).dtype)), y)

    def kernel(self, kernel: Any, form: Any, bound: Mapping[str, Any]) -> Any:
        """Run a kernel's Python function on whole arrays, or on what a rank has."""
        return kernel_calls.run(kernel, form, bound)

    # ---- effects ---------------------------------------------------------------------------------

    def print(self, text: Any, *values: Any, every_rank: bool = False, **named: Any) -> None:
        if self.index_ and not every_rank:
            return
        if not isinstance(text, str):
            values, text = (text, *values), " ".join(["{}"] * (len(values) + 1))
        shown = [_Shown(v) for v in values]
        line = string.Formatter().vformat(text, shown, {k: _Shown(v) for k, v in named.items()})
        line = rank_prefix(self.index_) + line if every_rank and self.index_ is not None else line
        if self.prints is None:
            builtins.print(line)
        else:
            self.prints.append(line)


    def save(self, name: str, x: Any, /, *, every: int = 1) -> None:
        check_series(name, every)
        if self.index_ is not None:
            raise UnsupportedError(
                f"save {name!r} stands in a shard_map, where a rank has parts of arrays only",
                place=user_place(), expected="a whole array", found="what one rank has",
                remedy="return the array from the shard_map, and save it in the loop around that")
        turn = self.turns.of_caller()
        if turn is None:
            raise UsageError(f"save {name!r} stands outside of a loop of the program",
                             place=user_place(), expected="a place in a loop of spmd.range",
                             found="no loop around it", remedy="return what is there at the end")
        if turn % every == 0 and (take := self.frames.get(name)) is not None:
            take(np.array(x))

    def progress(
        self, step: Any, steps: Any, /, *, per_step: Mapping[str, float] | None = None, **shown: Any
    ) -> None:
        if self.index_:
            return
        parts = [f"/{name}={float(x)}" for name, x in (per_step or {}).items()]
        parts += [f"{name}={value_text(x, pace_spec(x))}" for name, x in shown.items()]
        if line := self.steps.line("\t".join([str(int(step) + 1), str(int(steps)), *parts])):
            builtins.print(line, file=sys.stderr)


class _Range:
    """A range whose turns are counted while a loop goes through it."""

    def __init__(self, numbers: builtins.range, turns: Turns) -> None:
        self.numbers, self.turns = numbers, turns

    def __iter__(self) -> Iterator[int]:
        return self.turns.counted(self.numbers)

    def __reversed__(self) -> Iterator[int]:
        return self.turns.counted(reversed(self.numbers))

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, key: Any) -> Any:
        return self.numbers[key]

    def __repr__(self) -> str:
        return repr(self.numbers)


def rank_prefix(index: int) -> str:
    """Return what stands before a line that every rank prints, in an image too."""
    return f"rank {index}: "


class _Shown:
    """A value that formats element by element where it is an array."""

    def __init__(self, value: Any) -> None:
        self.value = value

    def __format__(self, spec: str) -> str:
        if isinstance(self.value, np.ndarray) and self.value.ndim:
            return f"[{' '.join(value_text(x, spec) for x in self.value)}]"
        return value_text(self.value, spec)


def value_text(x: Any, spec: str) -> str:
    """Return a number as format() writes it; a float32 in its own digits, where spec asks for no
    others.

    format(np.float32(0.1)) shows the digits of the float64 that it is: 0.10000000149011612.
    """
    plain = x.item() if hasattr(x, "item") else x
    name = x.dtype.name if plain is not x else ""
    if "." not in spec and spec[-1:] not in tuple("eEfFgGn%"):
        if name == "complex64":
            plain = complex(_shortest(x.real), _shortest(x.imag))
        elif name in ("float16", "bfloat16", "float32"):
            plain = _shortest(x)
    return format(plain, spec)


def _shortest(x: Any) -> float:
    """Return the number of the fewest digits that is this one, rounded to its type."""
    texts = (f"{float(x):.{digits}e}" for digits in range(9))
    return next((float(t) for t in texts if x.dtype.type(t) == x), float(x))


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _box(shape: Sequence[int], starts: Any, sizes: Any) -> tuple[slice, ...]:
    """Return the box of these extents that begins at starts, moved so that it fits."""
    firsts = starts if isinstance(starts, (tuple, list)) else (starts,)
    extents = sizes if isinstance(sizes, (tuple, list)) else (sizes,)
    box = []
    for first, n, have in zip(firsts, extents, shape, strict=True):
        start = int(first) + (have if first < 0 else 0)
        start = min(max(start, 0), have - int(n))
        box.append(slice(start, start + int(n)))
    return tuple(box)
