"""Runs a Graph or a Program for given axis sizes, in NumPy: arrays in, global arrays out.

Ranks are generators that stop at every exchange; an exchange completes when all members of a group
have arrived at the same op. A Graph's shards are cut as numpy.array_split cuts, a Program's by its
own symbolic extents and offsets, so the two check each other.
Always holds: every result has the dtype and the evaluated shape of its type, or InternalError.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from codegen import dtypes
from codegen import mesh as meshes
from codegen.errors import (
    CheckError,
    InputError,
    InternalError,
    MatchingError,
    MeshError,
    UsageError,
)
from codegen.image.manifest import ENTRY
from codegen.ir.graph import INITIAL, Entry, Feed, Input, Module, Op, Region, Shape, Value
from codegen.ops import (
    POSITION,
    Branch,
    Exchange,
    Expect,
    Feeding,
    Let,
    Loop,
    More,
    Print,
    RunScalar,
    Send,
    ShardMap,
    Take,
)
from codegen.ops.group import Group, Member
from codegen.ops.kind import Array, Eval, extents
from codegen.oracle.common import rank_prefix, value_text
from codegen.oracle.grid import Box, Grid, join
from codegen.printed import joined
from codegen.progress import ERROR, OPEN
from codegen.symbolic import expr
from codegen.symbolic.expr import IntLike, Sym, as_expr
from codegen.user.given_extents import GivenExtents
from codegen.user.whole_batches import Batches, streams_of

# Kinds that are more than their result in NumPy.
_APART = (RunScalar, Loop, Branch, Let, ShardMap, Print, Expect, Exchange, Feeding)

# What was sent: of which feed, behind the batch of which number, the arrays by name.
Sent = tuple[str, int, dict[str, Array]]
Running = Generator[Op, list[Array], list[Array]]


def evaluator(values: Mapping[str, int]) -> Eval:
    """Return a function that evaluates Exprs and ints for these symbol values, which must stay."""
    known: dict[IntLike, int] = {}

    def value(e: IntLike) -> int:
        if e.__class__ is int:
            return e
        number = known.get(e)
        if number is None:
            number = known[e] = as_expr(e).evaluate(values)
        return number

    return value


def run(
    module: Module, sizes: Mapping[str, int], inputs: Mapping[str, Any] | None = None,
    scalars: Mapping[str, int | float] | None = None, prints: list[str] | None = None,
    feeds: Any = None, sent: list[Sent] | None = None, only: Collection[str] | None = None,
) -> dict[str, Array]:
    """Return the outputs, whole, by name. sizes: ranks along each axis; prints collects printed
    lines; feeds: iterables of whole batches, by feed; sent collects what goes back to them. only:
    names of the outputs that are asked for; None: all. Those that need a missing input are left
    out.

    Of a module with several entries, the scalar "entry" says which one runs: inputs are the states
    and those of the entry; outputs its own, and new values of the states that it binds anew.

    Raises MatchingError where ranks wait for each other at different ops or replicas differ,
    InputError, MeshError and UsageError for what does not fit the program.
    """
    scalars = {**extents_given(module, inputs or {}), **(scalars or {})}
    world = _World(module, sizes, scalars, [] if prints is None else prints)
    world.streams = streams_of(feeds, {f.name: world.fields(f) for f in module.feeds})
    world.sent = [] if sent is None else sent
    there = set(inputs or {})
    roots = {i.root for i in module.inputs if i.flag is not None and i.name not in there}
    asked = [o.name for o in module.outputs] if only is None else [
        *only, *(module.outputs[state.new].name for state in module.states)]
    world.computed = {o.name for o in module.outputs
                      if o.name in asked and roots.isdisjoint(o.needs)}
    world.env |= {i.flag.name: int(i.root not in roots) for i in module.inputs if i.flag}
    world.env |= {o.wanted.name: int(o.name in world.computed) for o in module.outputs if o.wanted}
    with np.errstate(all="ignore"):
        blank = world.of_other_entries()
        arrays = {i.name: world.blank(i) if i in blank else world.input(i, inputs or {})
                  for i in module.inputs}
        outputs = world.run_graph(arrays) if module.level == "graph" else world.run_program(arrays)
        return {name: outputs[name] for name in world.outputs() if name in outputs}


@dataclass
class _Rank:
    """One rank, or the global view (coords empty) of a Graph."""

    world: _World
    env: dict[str, int]
    values: dict[Value, Array]
    index: int | None = None
    waits: tuple[Op, list[Array]] | None = None
    results: list[Array] | None = None  # when finished
    taken: dict[str, int] = field(default_factory=dict)  # by feed: how many batches
    sends: int = 0

    def __post_init__(self) -> None:
        self.eval = evaluator(self.env)

    def set(self, sym: Sym, value: int) -> None:
        self.env[sym.name] = value
        self.eval = evaluator(self.env)

    def region(self, region: Region, args: Sequence[Array]) -> Running:
        self.values.update(zip(region.args, args, strict=True))
        for op in region.ops:
            operands = [self.values[v] for v in op.operands]
            if not isinstance(op.kind, _APART):
                results = self.compute(op, operands)
            else:
                results = yield from self.op(op, operands)
            for value, array in zip(op.results, results, strict=True):
                self.values[value] = self.checked(op, value, array)
        return [self.values[v] for v in region.results]

    def checked(self, op: Op, value: Value, array: Array) -> Array:
        shape = extents(value.type.shape, self.eval)
        dtype = dtypes.numpy_dtype(value.type.dtype)
        if array.shape != shape or array.dtype != dtype:
            raise InternalError(f"{op.kind.name} gives another type than it states, at {self.env}",
                                place=op.place, expected=f"{value!r}, that is {dtype}{list(shape)}",
                                found=f"{array.dtype}{list(array.shape)}")
        return array

    def op(self, op: Op, operands: list[Array]) -> Running:
        kind = op.kind
        if isinstance(kind, Loop):
            return (yield from self.loop(op, kind, operands))
        if isinstance(kind, Branch):
            return (yield from self.branch(op, kind, operands))
        if isinstance(kind, Let):
            self.set(kind.counter, int(operands[0]))
            return []
        if isinstance(kind, ShardMap):
            return self.world.shard_map(op, kind, operands, self)
        if isinstance(kind, Print):
            self.print(kind, operands)
            return []
        if isinstance(kind, Expect):
            self.expect(op, kind, *operands)
            return []
        if isinstance(kind, Feeding):
            return self.world.feeding(op, kind, operands, self)
        if isinstance(kind, RunScalar):
            return [np.asarray(self.world.scalars[kind.scalar], dtypes.numpy_dtype(kind.dtype))]
        self.waits = (op, operands)
        return (yield op)

    def compute(self, op: Op, operands: list[Array]) -> list[Array]:
        """Return the results of an op that is no exchange."""
        try:
            return op.kind.reference(operands, self.eval)
        except InternalError as error:
            error.place = error.place or op.place
            raise
        except (ValueError, TypeError, IndexError, OverflowError) as error:
            shapes = ", ".join(f"{x.dtype}{list(x.shape)}" for x in operands)
            raise InternalError(f"{op.kind.name} cannot be computed: {error}", place=op.place,
                                found=f"operands {shapes}") from error

    def loop(self, op: Op, kind: Loop, carried: list[Array]) -> Running:
        count, step = self.eval(kind.start), self.eval(kind.step)
        end = None if kind.stop is None else self.eval(kind.stop)
        *condition, body = op.regions
        while end is None or (count < end if step > 0 else count > end):
            if kind.counter is not None:
                self.set(kind.counter, count)
            if condition:
                (holds,) = yield from self.region(condition[0], carried)
                if not holds:
                    break
            carried = yield from self.region(body, carried)
            for value, array in zip(op.results, carried, strict=True):
                self.checked(op, value, array)
            count += step
        return carried

    def branch(self, op: Op, kind: Branch, operands: list[Array]) -> Running:
        chosen = int(operands[0]) if kind.on is None else self.eval(kind.on)
        region = op.regions[min(max(chosen, 0), len(op.regions) - 1)]
        args = operands[len(operands) - len(region.args) :]
        return (yield from self.region(region, args))

    def expect(self, op: Op, kind: Expect, holds: Array, *shown: Array) -> None:
        if holds.all():
            return
        index = np.unravel_index(int(np.argmin(holds)), holds.shape)
        start = extents(kind.start, self.eval) if kind.start else (0,) * holds.ndim
        place = tuple(int(k) + first for k, first in zip(index, start, strict=True))
        text = _text(kind, [x[index] if x.shape == holds.shape else x for x in shown], place)
        where = "" if self.index is None else f"rank {self.index}"
        line = op.place.source_line().strip() if op.place else ""
        raise CheckError(text, str(op.place or ""), line, where)

    def print(self, kind: Print, operands: list[Array]) -> None:
        if (self.index and not kind.every_rank) or kind.paced:
            return
        text = _text(kind, operands)
        if kind.every_rank and self.index is not None:
            text = rank_prefix(self.index) + text
        going_on = bool(self.world.prints) and self.world.prints[-1].endswith(OPEN)
        joined(self.world.prints, text.removeprefix(ERROR) if going_on else text, OPEN)


def _text(kind: Print | Expect, operands: Sequence[Array], place: tuple[int, ...] = ()) -> str:
    """Return the text of a print or an expect."""
    text = ""
    shown = iter(operands)
    for k, part in enumerate(kind.parts):
        if k % 2 == 0:
            text += part
        elif part == POSITION:
            text += str(place)
        else:
            x = next(shown)
            text += value_text(x[()], part) if x.ndim == 0 else str(x)
    return text


class _World:
    """Axis sizes, scalars and the coordinates of every rank; runs ranks against each other."""

    def __init__(
        self, module: Module, sizes: Mapping[str, int], scalars: Mapping[str, int | float],
        prints: list[str],
    ) -> None:
        self.module = module
        self.prints = prints
        self.streams: dict[str, Batches] = {}
        self.sent: list[Sent] = []
        self.computed: set[str] = set()  # names of outputs
        # of a Program: what ranks have sent so far, by op, and how many each has made before
        self.sending: dict[tuple[Op, int], dict[int, Sequence[Array]]] = {}
        self.sizes = _sizes(module, sizes)
        self.scalars = _scalars(module, scalars)
        self.env = {f"n_{name}": n for name, n in self.sizes.items()}
        for s in module.scalars:
            if s.sym is not None:
                self.env[s.sym.name] = int(self.scalars[s.name])
        self.grid = Grid(self.sizes)
        self.coords = self.grid.coords
        for condition in module.conditions:
            if not condition.holds.evaluate(self.env):
                raise MeshError(condition.text, place=condition.place, found=str(self.sizes))

    def rank(self, index: int, values: Mapping[Value, Array], env: Mapping[str, int]) -> _Rank:
        coords = {f"i_{name}": k for name, k in self.coords[index].items()}
        return _Rank(self, {**env, **coords}, dict(values), index)

    # ---- whole modules ---------------------------------------------------------------------------

    def entry(self) -> Entry | None:
        """Return the one that runs, of several."""
        return self.module.entries[int(self.scalars[ENTRY])] if self.module.entries else None

    def of_other_entries(self) -> set[Input]:
        """Return the inputs that the entry that runs does not read."""
        entry, inputs = self.entry(), self.module.inputs
        if entry is None:
            return set()
        states = () if entry.name == INITIAL else (s.input for s in self.module.states)
        mine = {*entry.inputs, *states}
        return {i for k, i in enumerate(inputs) if k not in mine}

    def outputs(self) -> list[str]:
        """Return the names of the outputs of the entry that runs, those that are states first."""
        entry, outputs = self.entry(), self.module.outputs
        if entry is None:
            return [o.name for o in outputs]
        new = [self.module.states[k].new for k in entry.rebinds]
        return [outputs[k].name for k in (*new, *entry.outputs)]

    def blank(self, declared: Input) -> Array:
        """Return an array of its type, for an input that is not read."""
        shape = extents(declared.shape, evaluator(self.env))
        return np.zeros(shape, dtypes.numpy_dtype(declared.value.type.dtype))

    def input(self, declared: Input, arrays: Mapping[str, Any]) -> Array:
        """Return the whole array of an input: as given, or put together from what the default
        computes per rank. Raise InputError for another shape."""
        shape = extents(declared.shape, evaluator(self.env))
        dtype = dtypes.numpy_dtype(declared.value.type.dtype)
        if declared.name in arrays:
            array = np.asarray(arrays[declared.name])
            if array.shape != shape:
                raise InputError(f"input {declared.name} has another shape",
                                 expected=str(shape), found=str(array.shape))
            return array.astype(dtype)
        if declared.flag is not None:  # nobody may read it
            anything = b"\xa5" * (math.prod(shape) * dtype.itemsize)
            return np.frombuffer(anything, dtype).reshape(shape)
        if declared.default is None:
            raise InputError(f"input {declared.name} is not given", place=declared.place)
        region = declared.default
        ranks = [self.rank(k, {}, self.env) for k in range(len(self.coords))]
        parts = self.together(ranks, [r.region(region, []) for r in ranks])
        boxes = [self.grid.box(shape, declared.layout, k) for k in range(len(ranks))]
        return self.assemble(declared.name, shape, [p[0] for p in parts], boxes)

    def run_graph(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        values = {i.value: arrays[i.name] for i in self.module.inputs}
        whole = _Rank(self, dict(self.env), values)
        self.together([whole], [whole.region(self.module.body, [])])
        return {o.name: whole.values[o.value] for o in self.module.outputs
                if o.name in self.computed}

    def run_program(self, arrays: Mapping[str, Array]) -> dict[str, Array]:
        ranks = [self.rank(k, {}, self.env) for k in range(len(self.coords))]
        for i in self.module.inputs:
            for rank, box in zip(ranks, self.own(i.shape, i.layout, ranks), strict=True):
                part = arrays[i.name][box]
                if part.shape != extents(i.value.type.shape, rank.eval):
                    raise InternalError(f"input {i.name}: shard {part.shape} is not of its type")
                rank.values[i.value] = part
        self.together(ranks, [r.region(self.module.body, []) for r in ranks])
        out = {}
        for o in (o for o in self.module.outputs if o.name in self.computed):
            shape = extents(o.shape, evaluator(self.env))
            boxes = self.own(o.shape, o.layout, ranks)
            out[o.name] = self.assemble(o.name, shape, [r.values[o.value] for r in ranks], boxes)
        return out

    def shard_map(
        self, op: Op, kind: ShardMap, operands: Sequence[Array], outer: _Rank
    ) -> list[Array]:
        (body,) = op.regions
        ranks, running = [], []
        for k in range(len(self.coords)):
            rank = self.rank(k, outer.values, outer.env)
            rank.taken, rank.sends = dict(outer.taken), outer.sends
            args = []
            for arg, x, layout in zip(body.args, operands, kind.in_layouts, strict=True):
                args.append(rank.checked(op, arg, x[self.grid.box(x.shape, layout, k)]))
            ranks.append(rank)
            running.append(rank.region(body, args))
        parts = self.together(ranks, running)
        if any((r.taken, r.sends) != (ranks[0].taken, ranks[0].sends) for r in ranks):
            raise MatchingError("ranks have taken other batches, or sent back otherwise",
                                place=op.place, expected="all ranks come to a feed, or none",
                                found=", ".join(str(r.taken) for r in ranks))
        outer.taken, outer.sends = ranks[0].taken, ranks[0].sends
        out = []
        for j, (value, layout) in enumerate(zip(op.results, kind.out_layouts, strict=True)):
            shape = extents(value.type.shape, outer.eval)
            boxes = [self.grid.box(shape, layout, k) for k in range(len(ranks))]
            out.append(self.assemble(value.name, shape, [p[j] for p in parts], boxes, op))
        return out

    # ---- feeds -----------------------------------------------------------------------------------

    def fields(self, feed: Feed) -> dict[str, tuple[tuple[int, ...], Any]]:
        value = evaluator(self.env)
        return {name: (extents(t.shape, value), dtypes.numpy_dtype(t.dtype))
                for name, t in feed.fields}

    def feeding(
        self, op: Op, kind: Feeding, operands: Sequence[Array], rank: _Rank
    ) -> list[Array]:
        """Take from a feed or send to it: whole batches, or a rank's parts of them."""
        stream, number = self.streams[kind.feed], rank.taken.get(kind.feed, 0)
        if isinstance(kind, More):
            return [np.asarray(stream.more(number))]
        if isinstance(kind, Take):
            rank.taken[kind.feed] = number + 1
            batch = stream.take(number)
            whole = [batch[name] for name in kind.fields]
            if rank.index is None:
                return whole
            return [x[self.own(*home, [rank])[0]].copy()
                    for x, home in zip(whole, kind.homes, strict=True)]
        assert isinstance(kind, Send)
        whole = list(operands)
        if rank.index is not None:
            rank.sends += 1
            parts = self.sending.setdefault((op, rank.sends), {})
            parts[rank.index] = operands
            if len(parts) < len(self.coords):
                return []
            ranks = [self.rank(k, {}, self.env) for k in range(len(self.coords))]
            whole = [
                self.assemble(name, extents(home[0], rank.eval), [parts[k][j] for k in
                              range(len(ranks))], self.own(*home, ranks), op)
                for j, (name, home) in enumerate(zip(kind.fields, kind.homes, strict=True))]
        self.sent.append((kind.feed, number - 1, dict(zip(kind.fields, whole, strict=True))))
        return []

    # ---- shards ----------------------------------------------------------------------------------

    def own(self, shape: Shape, layout: meshes.Layout, ranks: Sequence[_Rank]) -> list[Box]:
        """Return the ranks' boxes of a global array, by the symbolic offsets and extents."""
        mesh = self.module.mesh
        dims = [(meshes.local_offset(mesh, e, entry), meshes.local_extent(mesh, e, entry))
                for e, entry in zip(shape, layout, strict=True)]
        boxes = ([(r.eval(first), r.eval(extent)) for first, extent in dims] for r in ranks)
        return [tuple(slice(first, first + extent) for first, extent in box) for box in boxes]

    def assemble(
        self, name: str, shape: tuple[int, ...], parts: Sequence[Array], boxes: Sequence[Box],
        op: Op | None = None,
    ) -> Array:
        """Return one array from the ranks' parts; equal boxes must hold equal values."""
        place = op.place if op else None

        def misfit(rank: int, expected: tuple[int, ...]) -> InternalError:
            return InternalError(
                f"rank {rank} has another part of {name} than its layout says",
                place=place, expected=str(expected), found=str(parts[rank].shape),
            )

        def differ(first: int, rank: int) -> MatchingError:
            return MatchingError(f"{name} differs between ranks {first} and {rank}, and its layout "
                                 "says that they hold the same part", place=place)

        return join(shape, parts, boxes, misfit, differ)

    # ---- ranks against each other ----------------------------------------------------------------

    def together(self, ranks: Sequence[_Rank], running: Sequence[Running]) -> list[list[Array]]:
        """Run the ranks to their ends, in order, and return the results of each."""
        for rank, generator in zip(ranks, running, strict=True):
            self.resume(rank, generator, None)
        while any(r.results is None for r in ranks):
            waiting = [r for r in ranks if r.results is None]
            ready = next((g for r in waiting if (g := self.group(ranks, r))), None)
            if ready is None:
                raise _deadlock(waiting[0], self.members(ranks, waiting[0]))
            op, kind = _waits(ready[0])
            members = [Member(r.waits[1] if r.waits else [], r.env, r.eval) for r in ready]
            received = kind.together(Group(kind.called, members, op.place))
            for rank, results in zip(ready, received, strict=True):
                self.resume(rank, running[ranks.index(rank)], results)
        return [r.results or [] for r in ranks]

    def resume(self, rank: _Rank, generator: Running, results: list[Array] | None) -> None:
        rank.waits = None
        try:
            generator.send(results) if results is not None else next(generator)
        except StopIteration as end:
            rank.results = end.value

    def group(self, ranks: Sequence[_Rank], rank: _Rank) -> list[_Rank] | None:
        """Return the members of the group that `rank` waits in, in their order, once all are
        there."""
        op, _ = _waits(rank)
        members = self.members(ranks, rank)
        return members if all(r.waits and r.waits[0] is op for r in members) else None

    def members(self, ranks: Sequence[_Rank], rank: _Rank) -> list[_Rank]:
        op, kind = _waits(rank)
        if rank.index is None:
            raise InternalError(f"{kind.called} outside shard_map", place=op.place)
        by_index = {r.index: r for r in ranks}
        return [by_index[k] for k in self.grid.group(rank.index, kind.axes)]


def _waits(rank: _Rank) -> tuple[Op, Exchange]:
    assert rank.waits is not None
    op = rank.waits[0]
    assert isinstance(op.kind, Exchange)
    return op, op.kind


def _deadlock(first: _Rank, members: Sequence[_Rank]) -> MatchingError:
    """Return the error that names a waiting rank and a member of its group that it waits for in
    vain."""
    op, kind = _waits(first)
    other = next(r for r in members if not r.waits or r.waits[0] is not op)
    if other.waits is None:
        where = "has ended"
    else:
        where = f"waits in {other.waits[0].kind.called} at {other.waits[0].place}"
    return MatchingError(
        f"rank {first.index} waits in {kind.called} at {op.place}, and rank {other.index} {where}",
        place=op.place, expected="all ranks of a group at the same exchange",
    )


def _sizes(module: Module, sizes: Mapping[str, int]) -> dict[str, int]:
    """Return ranks along each axis, in the mesh's order; those that the program fixes may be left
    out."""
    out = {}
    for axis in module.mesh.axes:
        n = sizes.get(axis.name, axis.fixed)
        if n is None or n < 1 or (axis.fixed is not None and n != axis.fixed):
            raise MeshError(f"axis {axis.name} cannot have {n} ranks",
                            expected=str(axis.fixed or "a positive number"))
        out[axis.name] = n
    return out


def extents_given(module: Module, arrays: Mapping[str, Any]) -> dict[str, int]:
    """Return the extents of named dims, from the shapes of the inputs."""
    dims = {expr.symbol(s.sym): s.name for s in module.scalars
            if s.at_most is not None and s.sym is not None}
    extents = GivenExtents({s.name: s.at_most for s in module.scalars if s.at_most is not None})
    for i in module.inputs:
        if i.name in arrays:
            extents.take(i.name, [dims.get(e) for e in i.shape], np.shape(arrays[i.name]))
    return extents.values()


def _scalars(module: Module, values: Mapping[str, int | float]) -> dict[str, int | float]:
    known = {s.name for s in module.scalars}
    if unknown := set(values) - known:
        raise UsageError(f"no scalar {sorted(unknown)[0]}", expected=f"one of {sorted(known)}")
    out = {}
    for s in module.scalars:
        value = values.get(s.name, s.default)
        if value is None:
            raise UsageError(f"scalar {s.name} is not given", place=s.place)
        out[s.name] = value
    return out
