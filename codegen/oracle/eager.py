"""A program as plain Python on NumPy arrays: the simplest debugger, and an oracle.

The user's function runs unconverted, once, on global arrays; shard_map runs its function once per
rank (threads.py) on the parts that numpy.array_split cuts. NumPy's own rules hold where they differ
from an image's: an index beyond the ends raises, Python integers do not wrap, i // 0 raises.
Always holds: shards, and what a rank receives, are copies.
"""

from __future__ import annotations

import builtins
import inspect
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from codegen.errors import InputError, LayoutError, MatchingError, MeshError, ProgramError, UsageError
from codegen.functions import COMBINE, FUNCTIONS
from codegen.oracle.local import Blocks, EagerArray, local, whole
from codegen.oracle.threads import Call, Combine, Crew
from codegen.oracle.tree import leaves, map_tree, unzip
from codegen.trace.context import user_place

Axes = str | Sequence[str] | None


def run(
    function: Callable[..., Any],
    axes: Mapping[str, int],
    given: Mapping[str, Any],
    prints: list[str] | None = None,
) -> Any:
    """What the program's function returns, with whole NumPy arrays as leaves.

    axes: ranks along each mesh axis, in order. given: parameters, inputs and scalars by name.
    prints collects what spmd.print says; by default it goes to standard output.
    """
    parameters = inspect.signature(function).parameters
    own = {k: v for k, v in given.items() if k in parameters}
    world = World(axes, {k: v for k, v in given.items() if k not in parameters}, prints)
    with world.active(), np.errstate(all="ignore"):
        result = function(**own)
    if unknown := set(world.given) - world.used:
        raise UsageError(
            f"the program has no {sorted(unknown)[0]!r}",
            expected=f"one of {sorted({*parameters, *world.used, *world.declared})}",
        )
    return map_tree(whole, result)


def mesh_sizes(
    names: Sequence[str], fixed: Mapping[str, int | None], ranks: int
) -> dict[str, int]:
    """Ranks along each axis: as fixed, the rest as equal as possible and not increasing."""
    free = [name for name in names if not fixed.get(name)]
    taken = 1
    for name in names:
        taken *= fixed.get(name) or 1
    left = ranks // taken
    if left * taken != ranks or (not free and left != 1):
        raise MeshError(
            f"{ranks} ranks do not form a mesh with {dict(fixed)}",
            expected=f"a multiple of {taken}" if free else f"{taken} ranks",
        )
    divisors = [d for d in range(1, left + 1) if left % d == 0]
    best = min(
        (c for c in itertools.product(divisors, repeat=len(free))
         if int(np.prod(c)) == left and list(c) == sorted(c, reverse=True)),
        default=(),
    )  # fmt: skip
    sizes = dict(zip(free, best, strict=True))
    return {name: sizes.get(name) or fixed.get(name) or 1 for name in names}


class World:
    """What holds for all ranks of a run, and the functions of `spmd` outside shard_map."""

    index_: int | None = None

    def __init__(
        self, axes: Mapping[str, int], given: Mapping[str, Any], prints: list[str] | None
    ) -> None:
        self.axes = dict(axes)
        self.given = given
        self.prints = prints
        self.used: set[str] = set()
        self.declared: set[str] = set()
        grid = itertools.product(*(builtins.range(n) for n in self.axes.values()))
        self.coords = [dict(zip(self.axes, at, strict=True)) for at in grid]

    def active(self) -> Any:
        from codegen.trace.api import running_eagerly

        return running_eagerly(self)

    def names(self, axes: Axes) -> tuple[str, ...]:
        if axes is None:
            return tuple(self.axes)
        names = (axes,) if isinstance(axes, str) else tuple(axes)
        for name in names:
            if name not in self.axes:
                raise LayoutError(f"the mesh has no axis {name!r}", place=user_place(),
                                  expected=f"one of {tuple(self.axes)}")  # fmt: skip
        return names

    # ---- declarations ----------------------------------------------------------------------------

    def input(
        self, name: str, shape: Any, dtype: Any = np.float64, layout: Any = None,
        default: Any = None,
    ) -> EagerArray:  # fmt: skip
        extents = (shape,) if isinstance(shape, (int, np.integer)) else tuple(shape)
        self.declared.add(name)
        if name in self.given:
            self.used.add(name)
            array = np.asarray(self.given[name])
            if array.shape != extents:
                raise InputError(f"input {name} has another shape", place=user_place(),
                                 expected=str(extents), found=str(array.shape))  # fmt: skip
        elif default is None:
            raise InputError(f"input {name} is not given", place=user_place(),
                             remedy=f"pass {name}=array, or declare default=")  # fmt: skip
        elif callable(default):
            array = np.asarray(default(*np.indices(extents, sparse=True)))
        else:
            array = np.asarray(default)
        return local(np.broadcast_to(array, extents).astype(dtype))

    def scalar(self, name: str, default: Any = None, dtype: Any = None) -> Any:
        self.declared.add(name)
        if name in self.given:
            self.used.add(name)
            value = self.given[name]
        elif default is None:
            raise InputError(f"scalar {name} is not given", place=user_place())
        else:
            value = default
        kind = type(default) if default is not None else np.dtype(dtype or np.float64).type
        return float(value) if issubclass(kind, (float, np.floating)) else int(value)

    def require(self, condition: Any, text: str = "") -> None:
        if not condition:
            raise MeshError(text or "a condition of the program does not hold",
                            place=user_place(), found=str(self.axes))  # fmt: skip

    # ---- the mesh --------------------------------------------------------------------------------

    def axis_size(self, axis: Axes = None) -> int:
        return int(np.prod([self.axes[a] for a in self.names(axis)], dtype=np.int64))

    def ranks(self) -> int:
        return self.axis_size()

    def axis_index(self, axis: Axes = None) -> int:
        self._rank_only("axis_index")
        assert self.index_ is not None
        return self.position(self.index_, self.names(axis))

    def index(self) -> int:
        return self.axis_index()

    def position(self, rank: int, axes: Sequence[str]) -> int:
        at = 0
        for name in axes:
            at = at * self.axes[name] + self.coords[rank][name]
        return at

    def group(self, rank: int, axes: tuple[str, ...]) -> list[int]:
        """The ranks that differ from this one along `axes` only, by position along them."""
        rest = [a for a in self.axes if a not in axes]
        members = [
            k for k, c in enumerate(self.coords) if all(c[a] == self.coords[rank][a] for a in rest)
        ]
        return sorted(members, key=lambda k: self.position(k, axes))

    def _rank_only(self, what: str) -> None:
        if self.index_ is None:
            raise ProgramError(f"{what} stands outside shard_map", place=user_place(),
                               expected="a call in a function given to spmd.shard_map")  # fmt: skip

    # ---- shard_map -------------------------------------------------------------------------------

    def shard_map(self, f: Any, in_layouts: Sequence[Any], out_layouts: Sequence[Any] | Any,
                  args: Sequence[Any]) -> Any:  # fmt: skip
        """f on every rank's shards. Layouts: one per argument, and one or a tree of the results'."""
        crew = Crew(self.group)
        bodies = []
        for k in builtins.range(len(self.coords)):
            shards = [self.shard(x, l_, k) for x, l_ in zip(args, in_layouts, strict=True)]
            bodies.append(Rank(self, crew, k).body(f, shards))
        results = crew.run(bodies)
        flat = [leaves(r) for r in results]
        joined = iter([
            self.join([r[j] for r in flat], out_layouts[j]) for j in builtins.range(len(flat[0]))
        ])  # fmt: skip
        return map_tree(lambda _: next(joined), results[0])

    def boxes(self, shape: Sequence[int], layout: Sequence[Any], rank: int) -> tuple[slice, ...]:
        box = []
        for extent, entry in zip(shape, layout, strict=True):
            axes = () if entry is None else self.names(entry)
            cuts = np.array_split(np.arange(extent), self.axis_size(axes) if axes else 1)
            at = self.position(rank, axes)
            first = sum(map(len, cuts[:at]))
            box.append(slice(first, first + len(cuts[at])))
        return tuple(box)

    def shard(self, x: Any, layout: Any, rank: int) -> Any:
        if not isinstance(x, np.ndarray) or layout is None:
            return x.copy() if isinstance(x, np.ndarray) else x
        out = local(x[self.boxes(x.shape, layout, rank)].copy())
        return out

    def join(self, parts: Sequence[Any], layout: Sequence[Any]) -> EagerArray:
        """The global array whose shards these are; replicas must be equal."""
        arrays = [np.asarray(p) for p in parts]
        extents = []
        for d, entry in enumerate(layout):
            axes = () if entry is None else self.names(entry)
            first = self.coords[0]
            line = [k for k, c in enumerate(self.coords)
                    if all(c[a] == first[a] for a in self.axes if a not in axes)]  # fmt: skip
            extents.append(sum(arrays[k].shape[d] for k in line))
        out = np.zeros(extents, arrays[0].dtype)
        held: dict[str, int] = {}
        for k, part in enumerate(arrays):
            box = self.boxes(extents, layout, k)
            expected = tuple(s.stop - s.start for s in box)
            if part.shape != expected:
                raise LayoutError(
                    f"rank {k} returns a part of shape {part.shape}", place=user_place(),
                    expected=f"{expected}, its block of {tuple(extents)} laid out as {layout}",
                )  # fmt: skip
            other = held.setdefault(str(box), k)
            if part.tobytes() != arrays[other].tobytes():
                raise MatchingError(
                    f"a result laid out as {layout} differs between ranks {other} and {k}",
                    place=user_place(), expected="equal values on all ranks that hold one part",
                )  # fmt: skip
            out[box] = part
        return local(out)

    # ---- arrays ----------------------------------------------------------------------------------

    def asarray(self, x: Any, dtype: Any = None, layout: Any = None, **_: Any) -> EagerArray:
        return local(np.asarray(x, dtype))

    def array(self, x: Any, dtype: Any = None, layout: Any = None, **_: Any) -> EagerArray:
        return local(np.array(x, dtype))

    def zeros(self, shape: Any, dtype: Any = np.float64, layout: Any = None) -> EagerArray:
        return local(np.zeros(shape, dtype))

    empty = zeros  # an empty array holds anything; zeros repeat

    def ones(self, shape: Any, dtype: Any = np.float64, layout: Any = None) -> EagerArray:
        return local(np.ones(shape, dtype))

    def full(self, shape: Any, value: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return local(np.full(shape, value, dtype))

    def arange(self, *bounds: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return local(np.arange(*bounds, dtype=dtype))

    def eye(self, n: int, m: Any = None, k: int = 0, dtype: Any = np.float64,
            layout: Any = None) -> EagerArray:  # fmt: skip
        return local(np.eye(n, m, k, dtype))

    def zeros_like(self, x: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return local(np.zeros_like(np.asarray(x), dtype))

    empty_like = like = zeros_like

    def ones_like(self, x: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return local(np.ones_like(np.asarray(x), dtype))

    def full_like(self, x: Any, value: Any, dtype: Any = None, layout: Any = None) -> EagerArray:
        return local(np.full_like(np.asarray(x), value, dtype))

    def blocks(self, x: Any, n: int, axis: int = 0) -> Blocks:
        return Blocks(x, n, axis)

    # ---- control flow: Python's own --------------------------------------------------------------

    def range(self, *bounds: Any) -> Any:
        return builtins.range(*(int(b) for b in bounds))

    def fori_loop(self, lower: Any, upper: Any, body: Any, init: Any) -> Any:
        state = map_tree(_copied, init)
        for i in self.range(lower, upper):
            state = body(i, state)
        return state

    def while_loop(self, condition: Any, body: Any, init: Any) -> Any:
        state = map_tree(_copied, init)
        while condition(state):
            state = body(state)
        return state

    def cond(self, predicate: Any, true: Any, false: Any, *args: Any) -> Any:
        return (true if predicate else false)(*map_tree(_copied, args))

    def switch(self, index: Any, branches: Sequence[Any], *args: Any) -> Any:
        at = min(max(int(index), 0), len(branches) - 1)
        return branches[at](*map_tree(_copied, args))

    def scan(self, f: Any, init: Any, xs: Any = None, length: Any = None) -> Any:
        carry, outs = map_tree(_copied, init), []
        count = int(length) if xs is None else len(leaves(xs)[0])
        for k in builtins.range(count):
            carry, y = f(carry, map_tree(lambda x, k=k: _copied(x[k]), xs))
            outs.append(y)
        return carry, unzip(outs)

    # ---- effects ---------------------------------------------------------------------------------

    def print(self, text: str, *values: Any, every_rank: bool = False) -> None:
        if self.index_ and not every_rank:
            return
        line = text.format(*(v.item() if np.ndim(v) == 0 and hasattr(v, "item") else v
                             for v in values))  # fmt: skip
        line = f"[{self.index_}] {line}" if every_rank and self.index_ is not None else line
        if self.prints is None:
            builtins.print(line)
        else:
            self.prints.append(line)

    def kernel(self, function: Any, args: Sequence[Any]) -> None:
        """Calls a kernel's Python function on contiguous copies; outputs are written in place."""
        function(*args)


class Rank(World):
    """The functions of `spmd` inside shard_map: one rank's view of the World."""

    def __init__(self, world: World, crew: Crew, index: int) -> None:
        self.__dict__.update(world.__dict__)
        self.crew = crew
        self.index_ = index

    def body(self, f: Any, shards: Sequence[Any]) -> Callable[[], Any]:
        def main() -> Any:
            with self.active(), np.errstate(all="ignore"):
                return f(*shards)

        return main

    def exchange(self, kind: str, axes: Axes, payload: Any, combine: Combine) -> Any:
        assert self.index_ is not None
        call = Call(kind, self.names(axes), user_place(), payload, combine)
        return self.crew.exchange(self.index_, call)

    def _each(self, kind: str, x: Any, axes: Axes, combine: Combine) -> Any:
        """An exchange per leaf of x."""
        return map_tree(
            lambda leaf: self.exchange(kind, axes, np.array(leaf), combine), x
        )

    # ---- exchange --------------------------------------------------------------------------------

    def ppermute(self, x: Any, axis: Axes, perm: Any = None, *, shift: Any = None,
                 to: Any = None) -> Any:  # fmt: skip
        n, i = self.axis_size(axis), self.axis_index(axis)
        if shift is not None:
            target = (i + shift) % n
        elif to is not None:
            target = to(i, n)
        else:
            pairs = dict(perm)
            if len(pairs) < len(perm):
                raise MatchingError("a rank stands twice as a sender in perm", place=user_place())
            target = pairs.get(i)
        target = None if target is None else int(target)
        return map_tree(
            lambda leaf: self.exchange("ppermute", axis, (target, np.array(leaf)), _permute), x
        )

    def psum(self, x: Any, axis: Axes) -> Any:
        return self._each("psum", x, axis, _reduce("add"))

    def pprod(self, x: Any, axis: Axes) -> Any:
        return self._each("pprod", x, axis, _reduce("mul"))

    def pmax(self, x: Any, axis: Axes) -> Any:
        return self._each("pmax", x, axis, _reduce("max"))

    def pmin(self, x: Any, axis: Axes) -> Any:
        return self._each("pmin", x, axis, _reduce("min"))

    def pmean(self, x: Any, axis: Axes) -> Any:
        n = self.axis_size(axis)
        return map_tree(lambda leaf: leaf / n, self._each("pmean", x, axis, _reduce("add")))

    def all_ranks(self, flag: Any, axis: Axes = None) -> Any:
        return self._each("all_ranks", np.bool_(flag), axis, _reduce("and"))

    def any_ranks(self, flag: Any, axis: Axes = None) -> Any:
        return self._each("any_ranks", np.bool_(flag), axis, _reduce("or"))

    def barrier(self, axis: Axes = None) -> None:
        self.exchange("barrier", axis, None, lambda payloads: payloads)


def _copied(x: Any) -> Any:
    return x.copy() if isinstance(x, np.ndarray) else x


def _permute(payloads: Sequence[Any]) -> list[Any]:
    """payloads: (target or None, array) per member."""
    n = len(payloads)
    sender: dict[int, int] = {}
    for k, (target, _) in enumerate(payloads):
        if target is None:
            continue
        if not 0 <= target < n:
            raise MatchingError(f"with {n} ranks, rank {k} sends to {target}, which is none",
                                place=user_place())  # fmt: skip
        if target in sender:
            raise MatchingError(
                f"with {n} ranks, ranks {sender[target]} and {k} both send to {target}"
            )
        sender[target] = k
    return [
        local(payloads[sender[k]][1].copy() if k in sender else np.zeros_like(x))
        for k, (_, x) in enumerate(payloads)
    ]


def _reduce(fn: str) -> Combine:
    ufunc = FUNCTIONS[COMBINE[fn]].numpy

    def combine(payloads: Sequence[Any]) -> list[Any]:
        total = payloads[0]
        for x in payloads[1:]:
            if x.shape != total.shape:
                raise MatchingError(f"members' arrays differ in shape: {total.shape}, {x.shape}")
            total = np.asarray(ufunc(total, x)).astype(total.dtype)
        return [local(total.copy()) for _ in payloads]

    return combine


def iterate(x: Any) -> Iterator[Any]:
    return iter(leaves(x))
