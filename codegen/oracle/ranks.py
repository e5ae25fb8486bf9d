"""One rank of an eager run: its index, and exchange with the ranks on the other threads.

Always holds: what a rank receives is its own copy; all members of a collective get the same bits.
"""

from __future__ import annotations

import types
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from codegen import dtypes
from codegen.errors import LayoutError, MatchingError
from codegen.functions import COMBINE, FUNCTIONS, fn_of, neutral
from codegen.oracle.common import Axes, Common
from codegen.oracle.grid import Grid, join
from codegen.oracle.local import EagerArray, local, received
from codegen.oracle.threads import Combine, Crew, ExchangeCall
from codegen.places import user_place
from codegen.user import whole_batches
from codegen.user.absent import Absent, needs_of, stand_in_of
from codegen.user.dims import BoundedDim
from codegen.user.half_types import half_type_of, narrowed, widened
from codegen.user.pytree import map_tree
from codegen.user.signatures import check_call

Entries = tuple[tuple[str, ...], ...]


class Shards(Grid):
    """Shards of arrays by the layouts that the user writes."""

    def __init__(self, common: Common) -> None:
        super().__init__(common.axes)
        self.common = common

    def entries(self, layout: Any, ndim: int) -> Entries:
        """Return the axes of every dim, of a layout as the user writes it."""
        if layout is None or not isinstance(layout, (tuple, list)):
            layout = (layout,) if isinstance(layout, str) and layout != "auto" else ()
        if len(layout) > ndim:
            raise LayoutError(f"layout {layout} has more entries than the array has dims",
                              expected=f"{ndim} entries")
        out = [() if e is None else self.common.names(e) for e in layout]
        return (*out, *[()] * (ndim - len(out)))

    def shard(self, x: Any, layout: Any, rank: int) -> Any:
        """Return a rank's own copy of its part."""
        if needs := needs_of(x):
            return Absent(self.shard(stand_in_of(x), layout, rank), needs)
        if not isinstance(x, np.ndarray):
            return x
        return local(x[self.box(x.shape, self.entries(layout, x.ndim), rank)].copy())

    def join(self, parts: Sequence[Any], spec: Any) -> Any:
        """Return the global array whose shards these are; ranks that hold one part must agree."""
        if needs := needs_of(tuple(parts)):
            return Absent(self.join([stand_in_of(p) for p in parts], spec), needs)
        arrays = [np.asarray(p) for p in parts]
        layout = self.entries(spec, arrays[0].ndim)
        extents = [
            sum(arrays[k].shape[d] for k in self.group(0, axes)) if axes else arrays[0].shape[d]
            for d, axes in enumerate(layout)
        ]

        def misfit(rank: int, expected: tuple[int, ...]) -> LayoutError:
            return LayoutError(
                f"rank {rank} returns a part of shape {arrays[rank].shape}",
                expected=f"{expected}, its block of {tuple(extents)} laid out as {spec}",
            )

        def differ(first: int, rank: int) -> MatchingError:
            return MatchingError(
                f"a result laid out as {spec} differs between ranks {first} and {rank}",
                expected="equal values on all ranks that hold one part",
            )

        boxes = [self.box(extents, layout, k) for k in range(len(arrays))]
        whole = local(join(extents, arrays, boxes, misfit, differ))
        whole.layout = spec
        return whole

    def view_of(self, function: Any, rank: int) -> Any:
        """Return the function with a rank's shards in place of the global arrays in its closure."""
        if not isinstance(function, types.FunctionType) or not function.__closure__:
            return function
        cells = [self._cell(cell, rank) for cell in function.__closure__]
        if all(a is b for a, b in zip(cells, function.__closure__, strict=True)):
            return function
        out = types.FunctionType(function.__code__, function.__globals__, function.__name__,
                                 function.__defaults__, tuple(cells))
        out.__kwdefaults__ = function.__kwdefaults__
        return out

    def _cell(self, cell: types.CellType, rank: int) -> types.CellType:
        try:
            held = cell.cell_contents
        except ValueError:  # not bound yet
            return cell
        if isinstance(held, (EagerArray, Absent)) and held.layout is not None:
            return types.CellType(self.shard(held, held.layout, rank))
        seen = self.view_of(held, rank)
        return cell if seen is held else types.CellType(seen)


def _reduction(fn: str) -> Combine:
    ufunc = FUNCTIONS[COMBINE[fn]].numpy

    def combine(payloads: Sequence[Any]) -> list[Any]:
        arrays = list(payloads)
        if arrays[0].dtype == bool and fn in ("add", "mul"):
            arrays = [a.astype(np.int64) for a in arrays]
        stored = dtypes.from_numpy(arrays[0].dtype)
        assert stored is not None
        total = arrays[0].astype(dtypes.numpy_dtype(dtypes.folded_in(stored)))
        for x in arrays[1:]:
            if x.shape != total.shape:
                raise MatchingError(f"members' arrays differ in shape: {total.shape}, {x.shape}")
            total = np.asarray(ufunc(total, x.astype(total.dtype))).astype(total.dtype)
        return [received(total.astype(arrays[0].dtype)) for _ in payloads]

    return combine


def _reducing(kind: str, fn: str) -> Callable[..., Any]:
    """Return a method of Rank that gives all members what fn makes of their arrays."""

    def call(self: EagerRank, x: Any, axis: Axes) -> Any:
        return self.each(kind, x, axis, _reduction(fn))

    return call


class EagerRank(Common):
    """The functions of `spmd` inside shard_map."""

    def __init__(self, common: Common, shards: Shards, crew: Crew, index: int) -> None:
        super().__init__(common.axes, common.prints)
        self.reachable = common.reachable
        self.common = common
        self.shards = shards
        self.crew = crew
        self.index_: int = index

    def extent_of(self, dim: BoundedDim) -> int:
        return self.common.extent_of(dim)

    def axis_index(self, axis: Axes = None) -> int:
        return self.shards.position(self.index_, self.names(axis))

    index = axis_index

    def feed(self, *_: Any, **__: Any) -> Any:
        raise whole_batches.declared_inside()

    def exchange(self, kind: str, axes: Axes, payload: Any, combine: Combine) -> Any:
        call = ExchangeCall(kind, self.names(axes), user_place(), payload, combine)
        return self.crew.exchange(self.index_, call)

    def each(self, kind: str, x: Any, axes: Axes, combine: Combine) -> Any:
        """Exchange each leaf of x by itself."""
        return map_tree(lambda leaf: self.exchange(kind, axes, np.array(leaf), combine), x)

    # ---- permutations ----------------------------------------------------------------------------

    def ppermute(self, x: Any, axis: Axes, perm: Any = None, *, shift: Any = None,
                 to: Any = None) -> Any:
        n, i = self.axis_size(axis), self.axis_index(axis)
        target: Any
        if shift is not None:
            target = (i + int(shift)) % n
        elif to is not None:
            target = to(i, n)
        else:
            target = {int(a): b for a, b in perm}.get(i)
        target = None if target is None else int(target)
        return map_tree(
            lambda leaf: self.exchange("ppermute", axis, (target, np.array(leaf)), _permute), x
        )

    def pbroadcast(self, x: Any, axis: Axes, source: Any = 0, *, root: Any = None) -> Any:
        position = self.root(source if root is None else root, axis)
        return self.each("pbroadcast", x, axis, lambda p: [received(p[position].copy()) for _ in p])

    def root(self, root: Any, axis: Axes) -> int:
        n, position = self.axis_size(axis), int(root)
        if not 0 <= position < n:
            raise MatchingError(f"with {n} ranks, there is no member {position} to be the root",
                                expected=f"0 to {n - 1}")
        return position

    def pvary(self, x: Any, axis: Axes) -> Any:
        self.names(axis)
        return map_tree(np.array, x)

    # ---- reductions ------------------------------------------------------------------------------

    psum, pprod = _reducing("psum", "add"), _reducing("pprod", "mul")
    pmax, pmin = _reducing("pmax", "max"), _reducing("pmin", "min")
    pand, por = _reducing("pand", "bit_and"), _reducing("por", "bit_or")
    pxor = _reducing("pxor", "bit_xor")

    def pmean(self, x: Any, axis: Axes) -> Any:
        n = self.axis_size(axis)

        def mean(leaf: Any) -> Any:
            half = half_type_of(array := np.asarray(leaf))
            total = self.exchange("pmean", axis, np.array(widened(array)), _reduction("add"))
            return narrowed(total / n, half)

        return map_tree(mean, x)

    def preduce(self, x: Any, axis: Axes, op: Any = "sum", root: Any = 0) -> Any:
        position = None if root is None else self.root(root, axis)
        if callable(op):
            here = position is None or position == self.axis_index(axis)

            def mine(leaf: Any) -> Any:
                total = self.folded("preduce", leaf, axis, op, self.axis_size(axis))
                return total if here else np.zeros_like(total)

            return map_tree(mine, x)
        total = _reduction(fn_of(op, "preduce"))

        def combine(parts: Sequence[Any]) -> list[Any]:
            return [t if position in (k, None) else np.zeros_like(t) for k,
                    t in enumerate(total(parts))]

        return self.each("preduce", x, axis, combine)

    def folded(self, operation: str, x: Any, axis: Axes, op: Any, count: int) -> Any:
        """Combine the arrays of the first `count` members by a user's function, one by one."""
        def like(a: Any) -> Any:
            array = self.empty_like(a)
            array.made_empty = True
            return array

        if hasattr(op, "combining"):  # a kernel
            call = op.combining(operation, like)
        else:
            check_call(op, f"op= of {operation}", "a", "b", expected="a function of a, b")
            call = op
        parts = self.exchange(operation, axis, np.array(x),
                              lambda p: [[received(a.copy()) for a in p] for _ in p])
        total = parts[0]
        for part in parts[1:count]:
            total = received(np.asarray(call(total, part)))
        return total

    def pscan(self, x: Any, axis: Axes, op: Any = "sum") -> Any:
        if callable(op):
            count = self.axis_index(axis) + 1
            return map_tree(lambda leaf: self.folded("pscan", leaf, axis, op, count), x)
        total = _reduction(fn_of(op, "pscan"))

        def combine(parts: Sequence[Any]) -> list[Any]:
            return [total(parts[: k + 1])[0] for k in range(len(parts))]

        return self.each("pscan", x, axis, combine)

    def pexscan(self, x: Any, axis: Axes, op: str = "sum") -> Any:
        fn = fn_of(op, "pexscan")
        total = _reduction(fn)

        def combine(parts: Sequence[Any]) -> list[Any]:
            sums = [total(parts[: k + 1])[0] for k in range(len(parts))]
            dtype = dtypes.from_numpy(sums[0].dtype)
            assert dtype is not None, f"{sums[0].dtype} is an element type"
            return [received(np.full_like(sums[0], neutral(fn, dtype))), *sums[:-1]]

        return self.each("pexscan", x, axis, combine)

    def pargmax(self, x: Any, axis: Axes) -> Any:
        return self.located("pargmax", x, axis, np.argmax)

    def pargmin(self, x: Any, axis: Axes) -> Any:
        return self.located("pargmin", x, axis, np.argmin)

    def located(self, operation: str, x: Any, axis: Axes, find: Callable[..., Any]) -> Any:
        """Return the value and the position of the first member that has it."""

        def where(parts: Sequence[Any]) -> list[Any]:
            return [received(np.asarray(find(np.stack(parts), axis=0))) for _ in parts]

        def value(parts: Sequence[Any]) -> list[Any]:
            stacked = np.stack(parts)
            positions = np.expand_dims(find(stacked, axis=0), 0)
            return [received(np.take_along_axis(stacked, positions, 0)[0]) for _ in parts]

        return self.each(operation, x, axis, value), self.each(operation, x, axis, where)

    def all_ranks(self, flag: Any, axis: Axes = None) -> Any:
        return self.each("all_ranks", np.asarray(flag, bool), axis, _reduction("and"))

    def any_ranks(self, flag: Any, axis: Axes = None) -> Any:
        return self.each("any_ranks", np.asarray(flag, bool), axis, _reduction("or"))

    def barrier(self, axis: Axes = None) -> None:
        self.exchange("barrier", axis, None, lambda payloads: payloads)

    # ---- gathers ---------------------------------------------------------------------------------

    def all_gather(self, x: Any, axis: Axes, dim: int = 0, tiled: bool = False, *,
                   gather_axis: int | None = None) -> Any:
        d = dim if gather_axis is None else gather_axis
        return self.each("all_gather", x, axis, lambda p: [_joined(p, d, tiled) for _ in p])

    def pgather(self, x: Any, axis: Axes, root: Any = 0, dim: int = 0,
                tiled: bool = False) -> Any:
        position = self.root(root, axis)

        def combine(parts: Sequence[Any]) -> list[Any]:
            whole = _joined(parts, dim, tiled)
            return [whole if k == position else whole.take([], axis=dim) for k in range(len(parts))]

        return self.each("pgather", x, axis, combine)

    def pscatter(self, x: Any, axis: Axes, root: Any = 0, dim: int = 0, tiled: bool = False) -> Any:
        position = self.root(root, axis)

        return self.each("pscatter", x, axis, lambda p: _dealt(p[position], len(p), dim, tiled))

    def psum_scatter(self, x: Any, axis: Axes, dim: int = 0, tiled: bool = False, *,
                     scatter_dimension: int | None = None) -> Any:
        d = dim if scatter_dimension is None else scatter_dimension

        def combine(parts: Sequence[Any]) -> list[Any]:
            return _dealt(np.asarray(_reduction("add")(parts)[0]), len(parts), d, tiled)

        return self.each("psum_scatter", x, axis, combine)

    def all_to_all(self, x: Any, axis: Axes, split_dim: Any = None, concat_dim: Any = None,
                   tiled: bool = False, *, split_axis: Any = None,
                   concat_axis: Any = None) -> Any:
        split = split_dim if split_axis is None else split_axis
        concat = concat_dim if concat_axis is None else concat_axis

        def combine(parts: Sequence[Any]) -> list[Any]:
            pieces = [_pieces(p, len(parts), split, tiled) for p in parts]
            return [_joined(row, concat, tiled) for row in zip(*pieces, strict=True)]

        return self.each("all_to_all", x, axis, combine)


def _joined(parts: Sequence[Any], dim: int, tiled: bool) -> EagerArray:
    return local((np.concatenate if tiled else np.stack)(parts, axis=dim))


def _dealt(x: np.ndarray[Any, Any], n: int, dim: int, tiled: bool) -> list[Any]:
    """Return the part of an array that each of n members gets, as its own copy."""
    return [received(b.copy()) for b in _pieces(x, n, dim, tiled)]


def _pieces(x: np.ndarray[Any, Any], n: int, dim: int, tiled: bool) -> list[Any]:
    """Return balanced blocks of a dim; not tiled: its n elements, the dim dropped."""
    if tiled:
        return np.array_split(x, n, axis=dim)
    if x.shape[dim] != n:
        raise MatchingError(
            f"without tiled=True, the extent of dim {dim} must be the number of ranks",
            expected=f"extent {n}", found=str(x.shape),
        )
    return [x.take(k, axis=dim) for k in range(n)]


def _permute(payloads: Sequence[Any]) -> list[Any]:
    """Return what each member receives. payloads: a target, or None, and an array per member. Raise
    MatchingError where a target does not exist, or is named twice."""
    n = len(payloads)
    sender: dict[int, int] = {}
    for k, (target, _) in enumerate(payloads):
        if target is None:
            continue
        if not 0 <= target < n:
            raise MatchingError(f"with {n} ranks, rank {k} sends to {target}, which does not exist")
        if target in sender:
            raise MatchingError(
                f"with {n} ranks, ranks {sender[target]} and {k} both send to {target}"
            )
        sender[target] = k
    return [
        received(payloads[sender[k]][1].copy() if k in sender else np.zeros_like(x))
        for k, (_, x) in enumerate(payloads)
    ]
