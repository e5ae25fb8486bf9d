"""Replicated computation: loops whose turns are too short for exchanges run whole on every rank.

Goes in: a Split (a Graph with its Demands and Program) and a function that partitions a Graph.
Comes out: the same, or the Split of a Graph where arrays are gathered before some loops (all that a
loop reads, or only what it does not write), or laid out along other dims in them.
Always holds: sizes and turns are known; arrays take at most ROOM; estimates say that it pays.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import prod

from codegen.graph.builder import bytes_of
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Module, Op, Region, Value, free_values, walk
from codegen.layouts.costs import Cost, Costs, a_few_and_many, gathering
from codegen.layouts.demands import Demands, Split
from codegen.layouts.loop_dims import across
from codegen.layouts.relayout import Inside, Laid, relaid
from codegen.ops import Exchange, Feeding, Kernel, Loop, Relayout, Save, ShardMap
from codegen.pipeline import estimated
from codegen.symbolic.expr import Sym

ROOM = 32 << 20  # bytes of the arrays that are gathered for a loop
# How many times as fast estimates must be: where every rank computes a loop, or arrays are laid out
# otherwise in it; and where only what it reads is gathered, which is less of a change.
FACTOR = 1.2
FACTOR_ONLY_READ = 1.1
# Every rank computes a loop only if its exchanges take so many times what sharing it saves.
EXCHANGES_OVER_SAVED = 2.0
GAIN = 0.5e-3  # seconds: for less no array is gathered
SAID_LEAST = 1 << 20  # bytes: where fewer are gathered of what is only read, `build` says nothing

Choices = dict[Sym, Laid]  # by the counters of loops


def replicate_loops(split: Split, again: Callable[[Module], Split]) -> Split:
    """Return the Split with the changes to its loops that pay, or the given one if none does.
    `again` partitions a Graph anew."""
    demands, program = split
    if not any(isinstance(o.what, Exchange) for op in program.body.ops for o in _inside(op)):
        return split
    few = Costs(program, a_few_and_many(program.mesh)[0])
    if sum(cost.exchanging for cost in few.loops.values()) <= GAIN:
        return split
    search = _Search(demands, program, few)
    if shared := search.shared():
        return replicate_loops(again(relaid(demands.graph, shared)), again)
    found = search.choices(again)
    if found and found == search.only_read:
        return search.split
    return again(relaid(demands.graph, found)) if found else split


# ---- what pays -----------------------------------------------------------------------------------


class _Search:
    """Searches for changes of layouts that pay. `few` are the costs of the loops on a small
    mesh."""

    def __init__(self, demands: Demands, program: Module, few: Costs) -> None:
        self.demands, self.program, self.few = demands, program, few
        self.graph = demands.graph
        self.meshes = a_few_and_many(program.mesh)
        self.only_read: Choices = {}
        self.split = demands, program  # with what is only read gathered, once that is tried
        self.after: list[Costs] = []
        self.across: dict[Sym, Choices] = {}  # by the counters of outermost loops
        self.turned: list[Costs] = []

    @cached_property
    def before(self) -> list[Costs]:
        """Return the costs of the unchanged program, for each mesh that is tried."""
        return [self.few, *(Costs(self.program, sizes) for sizes in self.meshes[1:])]

    @cached_property
    def alone(self) -> Mapping[Sym, Cost]:
        """Return the cost of each loop on a mesh of one rank."""
        return Costs(self.program, {a.name: 1 for a in self.graph.mesh.axes}).loops

    def choices(self, again: Callable[[Module], Split]) -> Choices:
        """Return the changes that pay, by counter of the loop that each one concerns."""
        if all(cost.exchanging <= GAIN for cost in self.few.loops.values()):
            return {}
        self.find_only_read(self.graph.body, frozenset())
        if self.only_read:
            self.split = again(relaid(self.graph, self.only_read))
            known = self.few.loops
            self.after = [Costs(self.split[1], sizes, known) for sizes in self.meshes]
        self.find_across()
        if self.across:
            every = {c: laid for inner in self.across.values() for c, laid in inner.items()}
            _, program = again(relaid(self.graph, every))
            self.turned = [Costs(program, sizes, every) for sizes in self.meshes]
        return self.in_region(self.graph.body)

    def shared(self) -> Choices:
        """Return arrays to gather before several successive loops that only read them, where these
        loops together would fetch more than a whole array."""
        loops: dict[Value, list[Sym]] = defaultdict(list)
        fetching: dict[Value, float] = defaultdict(float)
        for op in (op for body in self.graph.bodies for op in body.ops):
            counter = op.what.counts() if isinstance(op.what, Loop) else None
            cost = self.few.loops.get(counter) if counter else None
            if cost is None or counter is None or any(map(_as_asked, _inside(op))):
                continue
            for v in _read_by(op, carried=False):
                if seconds := cost.fetching.get(self.demands.shown(v), 0.0):
                    loops[v].append(counter)
                    fetching[v] += seconds
        paying = [v for v, counters in loops.items() if len(counters) > 1 and _size([v]) is not None
                  and fetching[v] > GAIN + FACTOR_ONLY_READ * _gathered(self.meshes[0], [v])]
        found: dict[Sym, list[Value]] = defaultdict(list)
        for v in paying:
            for counter in loops[v]:
                found[counter].append(v)
        return {counter: gathered(values, Inside.SAME, "") for counter, values in found.items()}

    def find_across(self) -> None:
        """Find, for loops that exchange much, layouts that split no dim that their inner loops walk
        along."""
        for op in (op for body in self.graph.bodies for op in body.ops):
            counter = op.what.counts() if isinstance(op.what, Loop) else None
            if counter is None or counter not in self.few.loops:
                continue
            cost = self.few.loops[counter]
            if cost.exchanging > GAIN and (found := across(op)):
                self.across[counter] = {counter: Laid((), Inside.FOLLOWS), **found}

    def in_region(self, region: Region) -> Choices:
        """Return the choices for the outermost loops of a region that some change makes faster."""
        found: Choices = {}
        for op in region.ops:
            if isinstance(op.what, ShardMap):
                continue
            counter = op.what.counts() if isinstance(op.what, Loop) else None
            choices = self.of_loop(op, counter) if counter else {}
            for inner in () if choices else op.regions:
                choices |= self.in_region(inner)
            found |= choices
        return found

    def of_loop(self, loop: Op, counter: Sym) -> Choices:
        """Return the fastest choice for a loop and the loops in it; empty if it is best left as it
        is."""
        if counter not in self.few.loops or self.few.loops[counter].exchanging <= GAIN:
            return {}
        if not all(counter in c.loops for c in (*self.before, *self.after)):
            return {}
        if any(map(_as_asked, _inside(loop))):
            return {}
        before = [c.loops[counter] for c in self.before]
        options: list[tuple[float, Choices]] = []
        read, often = _read_by(loop), before[0].often
        if (size := _size(read)) is not None:
            spent = [self.alone[counter].seconds + often * _gathered(sizes, read)
                     for sizes in self.meshes]
            saved = [a - (b.seconds - b.exchanging) for a, b in zip(spent, before)]
            if _pays(before, spent, FACTOR) and all(
                b.exchanging >= EXCHANGES_OVER_SAVED * s for b, s in zip(before, saved)
            ):
                because = self.words(before[0], spent[0], size)
                options.append((spent[0], {counter: gathered(read, Inside.WHOLE, because)}))
        inside = {c: choice for c, choice in self.only_read.items()
                  if c == counter or any(op.what.counts() == c for op in _inside(loop))}
        if inside:
            read = tuple(v for v, _ in inside[counter].before) if counter in inside else ()
            spent = [c.loops[counter].seconds + often * _gathered(sizes, read)
                     for c, sizes in zip(self.after, self.meshes)]
            if _pays(before, spent, FACTOR_ONLY_READ):
                options.append((spent[0], inside))
        if counter in self.across and counter in self.turned[0].loops:
            spent = [c.loops[counter].seconds for c in self.turned]
            if _pays(before, spent, FACTOR):
                because = (f"arrays are laid out anew before inner loops, so that these walk along "
                           f"no split dim: about {_ms(spent[0])} instead of "
                           f"{_ms(before[0].seconds)} on {prod(self.meshes[0].values())} ranks")
                chosen = {c: replace(laid, because=because if k == 1 else "")
                          for k, (c, laid) in enumerate(self.across[counter].items())}
                options.append((spent[0], chosen))
        return min(options, key=lambda o: o[0])[1] if options else {}

    def words(self, before: Cost, after: float, size: int) -> str:
        ranks, times = prod(self.meshes[0].values()), max(1.0, before.often)
        return (f"every rank computes all turns of this loop, with a copy of its arrays "
                f"({_amount(size)}): about {_ms(after / times)}. Shared by {ranks} ranks it would "
                f"take about {_ms(before.seconds / times)}, for {before.exchanges / times:.0f} "
                "exchanges")

    def find_only_read(self, region: Region, known: frozenset[Value]) -> None:
        """Find, for the outermost loops, the arrays that they only read and that are cheaper to
        gather before than to fetch in turns. `known` are those that an outer loop gathers
        already."""
        for op in region.ops:
            if isinstance(op.what, ShardMap):
                continue
            counter = op.what.counts() if isinstance(op.what, Loop) else None
            cost = self.few.loops.get(counter) if counter else None
            fetched: list[Value] = []
            if cost is not None and counter is not None:
                fetched = [v for v in _read_by(op, carried=False)
                           if v not in known and self.better_whole(v, cost)]
                if fetched and (size := _size(fetched)) is not None:
                    because = (f"every rank gets a copy ({_amount(size)}) of what this loop only "
                               "reads, before it: so no turn fetches parts of it")
                    self.only_read[counter] = gathered(
                        fetched, Inside.SAME, because if size > SAID_LEAST else "")
            for inner in op.regions:
                self.find_only_read(inner, known.union(fetched))

    def better_whole(self, value: Value, cost: Cost) -> bool:
        amount, fetching = bytes_of(value), cost.fetching.get(self.demands.shown(value), 0.0)
        ranks = prod(self.meshes[0].values())
        return amount is not None and fetching > cost.often * gathering(ranks, amount)


def _ms(seconds: float) -> str:
    return f"{seconds * 1e3:.1f} ms"


def _amount(size: int) -> str:
    """Return a number of bytes as text, in KiB or MiB."""
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 2**10:.1f} KiB"


def _as_asked(op: Op) -> bool:
    """Return whether the user states how arrays lie in an op."""
    if isinstance(op.what, Relayout):
        return op.what.asked
    return isinstance(op.what, ShardMap | Kernel | Feeding | Save)


def _inside(loop: Op) -> Iterator[Op]:
    return (op for inner in loop.regions for op in walk(inner))


def _is_split(value: Value) -> bool:
    return any(layout_of(value))


def _read_by(loop: Op, carried: bool = True) -> tuple[Value, ...]:
    """Return the split arrays from before a loop that it reads, with or without those it
    carries."""
    given = [*loop.operands] if carried else []
    free = [v for inner in loop.regions for v in free_values(inner)]
    return tuple(v for v in dict.fromkeys([*given, *free]) if _is_split(v))


def _size(values: Sequence[Value]) -> int | None:
    """Return the bytes of some values in all; None if that is not known or more than ROOM."""
    amounts = [bytes_of(v) for v in values]
    total = sum(a for a in amounts if a is not None)
    return total if None not in amounts and total <= ROOM else None


def gathered(values: Sequence[Value], inside: Inside, because: str) -> Laid:
    return Laid(tuple((v, ((),) * v.type.ndim) for v in values), inside, because)


def _gathered(sizes: Mapping[str, int], values: Sequence[Value]) -> float:
    return sum(gathering(prod(sizes.values()), bytes_of(v) or 0) for v in values)


def _pays(before: Sequence[Cost], after: Sequence[float], factor: float) -> bool:
    """Return whether a change is faster by `factor` on every mesh, and saves GAIN seconds on the
    small one."""
    estimated(before[0].seconds, after[0])
    faster = all(b.seconds > factor * a for b, a in zip(before, after, strict=True))
    return faster and before[0].seconds - after[0] > GAIN
