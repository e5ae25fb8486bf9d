"""Replicated computation: loops whose turns are too short for exchanges run whole on every rank.

Goes in: a Split (a Graph with its Demands and Program), and the layout search. Comes out: forms of
the Graph where arrays are gathered before some loops (all that a loop reads, or only what it does
not write), or laid out along other dims in them.
Always holds: sizes and turns are known; copies for one loop take TARGET.most_copied bytes at most.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from math import inf, prod

from codegen.graph.builder import bytes_of
from codegen.ir.cuts import layout_of
from codegen.ir.graph import Op, Region, Value, free_values, walk
from codegen.layouts.costs import Cost, Costs, gathering
from codegen.layouts.demands import Split
from codegen.layouts.loop_dims import across
from codegen.layouts.relayout import Choices, Inside, Laid, relaid
from codegen.layouts.search import Candidate, LayoutSearch
from codegen.ops import Exchange, Feeding, Kernel, Loop, Relayout, Save, ShardMap
from codegen.symbolic.expr import Sym
from codegen.target import TARGET

AS_FAST = 0.99  # of a form's seconds: a form that takes more is not tried beside it

Nests = dict[Sym, Choices]  # by the counters of outermost loops


def replicate_loops(split: Split, search: LayoutSearch) -> Iterator[Candidate]:
    """Offer three forms of the Graph, each with a change to the loops that exchange much: every
    rank computes the loop; what the loop only reads is gathered before it; arrays are laid out
    otherwise in it."""
    demands, program = split
    if not any(isinstance(o.kind, Exchange) for op in program.body.ops for o in _inside(op)):
        return
    if all(c.exchanging <= TARGET.least_gain for c in search.few(program).loops.values()):
        return
    work = _Proposals(split, search)
    for nests in (work.whole(demands.graph.body), work.only_read(demands.graph.body, frozenset()),
                  work.across()):
        if nests:
            choices = {c: laid for nest in nests.values() for c, laid in nest.items()}
            yield Candidate(relaid(demands.graph, choices), nests)


class _Proposals:
    """Finds changes of layouts that may pay for the loops of a Graph."""

    def __init__(self, split: Split, search: LayoutSearch) -> None:
        self.demands, self.program = split
        self.search, self.few = search, search.few(self.program)
        self.replicated: dict[Sym, float] = {}  # seconds of loops that every rank computes

    @cached_property
    def alone(self) -> Mapping[Sym, Cost]:
        """Return the cost of each loop on a mesh of one rank."""
        return Costs(self.program, {a.name: 1 for a in self.program.mesh.axes}).loops

    def cost(self, op: Op) -> tuple[Sym, Cost] | None:
        """Return the counter and the cost of a loop that exchanges something and in which the user
        states nothing of how arrays lie; None for other ops."""
        counter = op.kind.counts() if isinstance(op.kind, Loop) else None
        if counter is None or counter not in self.few.loops or any(map(_as_asked, _inside(op))):
            return None
        return counter, self.few.loops[counter]

    def whole(self, region: Region) -> Nests:
        """Return the outermost loops of a region that are faster if every rank computes all of
        their turns, with copies of the arrays that they read."""
        nests: Nests = {}
        for op in _outside_of_shard_maps(region):
            if (measured := self.cost(op)) and self.faster_whole(op, *measured):
                counter, read = measured[0], _read_by(op)
                because = ("every rank computes all turns of this loop, with a copy of its arrays "
                           f"({_amount(_size(read) or 0)}):")
                nests[counter] = {counter: gathered(read, Inside.WHOLE, because)}
            else:
                for inner in op.regions:
                    nests |= self.whole(inner)
        return nests

    def faster_whole(self, op: Op, counter: Sym, cost: Cost) -> bool:
        """Return whether a loop is faster if every rank computes it, by its costs on one rank."""
        read = _read_by(op)
        if cost.exchanging <= TARGET.least_gain or _size(read) is None:
            return False
        costs = self.search.costs(self.program)
        if not all(counter in c.loops for c in costs):
            return False
        after = [self.alone[counter].seconds + cost.often * _gathered(c.sizes, read) for c in costs]
        faster = self.search.is_faster([c.loops[counter].seconds for c in costs], after)
        if faster:
            self.replicated[counter] = after[0]
        return faster

    def only_read(self, region: Region, known: frozenset[Value]) -> Nests:
        """Return the loops of a region, and in it, with the arrays that they only read and that are
        cheaper to gather before the loops than to fetch in turns. `known` are those that a loop
        around them gathers already."""
        nests: Nests = {}
        fetching: dict[Value, float] = defaultdict(float)  # by all loops of the region
        reading = {op: [v for v in _read_by(op, carried=False) if v not in known]
                   for op in _outside_of_shard_maps(region) if self.cost(op)}
        for op, values in reading.items():
            for v in values:
                _, cost = self.cost(op) or (None, Cost())
                fetching[v] += cost.fetching.get(self.demands.shown(v), 0.0)
        for op in _outside_of_shard_maps(region):
            fetched: list[Value] = []
            if measured := self.cost(op):
                counter, cost = measured
                origins = cost.fetching
                fetched = [v for v in reading[op] if origins.get(self.demands.shown(v))
                           and fetching[v] > cost.often * _gathered(self.few.sizes, [v])]
                least = cost.seconds - sum(origins.values()) + cost.often * _gathered(
                    self.few.sizes, fetched)
                if least > AS_FAST * self.replicated.get(counter, inf):
                    continue  # with copies of all arrays it is as fast
                if fetched and (size := _size(fetched)) is not None:
                    because = (f"every rank gets a copy ({_amount(size)}) of what this loop only "
                               "reads, before it, so that no turn fetches parts of it:")
                    because = because if size > TARGET.large_copy else ""
                    nests[counter] = {counter: gathered(fetched, Inside.SAME, because)}
            for inner in op.regions:
                nests |= self.only_read(inner, known.union(fetched))
        return nests

    def across(self) -> Nests:
        """Return outermost loops that exchange much, with layouts that split no dim that the loops
        in them walk along."""
        nests: Nests = {}
        for op in (op for body in self.demands.graph.bodies for op in body.ops):
            measured = self.cost(op)
            if measured and measured[1].exchanging > TARGET.least_gain and (inner := across(op)):
                counter, first = measured[0], next(iter(inner))
                because = ("arrays are laid out anew before inner loops, so that these walk along "
                           "no split dim:")
                inner[first] = replace(inner[first], because=because)
                nests[counter] = {counter: Laid((), Inside.FOLLOWS), **inner}
        return nests


def _outside_of_shard_maps(region: Region) -> list[Op]:
    return [op for op in region.ops if not isinstance(op.kind, ShardMap)]


def _amount(size: int) -> str:
    """Return a number of bytes as text, in KiB or MiB."""
    return f"{size / 2**20:.1f} MiB" if size >= 1 << 20 else f"{size / 2**10:.1f} KiB"


def _as_asked(op: Op) -> bool:
    """Return whether the user states how arrays lie in an op."""
    if isinstance(op.kind, Relayout):
        return op.kind.asked
    return isinstance(op.kind, ShardMap | Kernel | Feeding | Save)


def _inside(loop: Op) -> Iterator[Op]:
    return (op for inner in loop.regions for op in walk(inner))


def _is_split(value: Value) -> bool:
    return any(layout_of(value))


def _read_by(loop: Op, carried: bool = True) -> tuple[Value, ...]:
    """Return the split arrays from before a loop that it reads, with or without those it
    carries."""
    operands = [*loop.operands] if carried else []
    free = [v for inner in loop.regions for v in free_values(inner)]
    return tuple(v for v in dict.fromkeys([*operands, *free]) if _is_split(v))


def _size(values: Sequence[Value]) -> int | None:
    """Return the bytes of some values in all; None if that is not known, or more than copies may
    take."""
    amounts = [bytes_of(v) for v in values]
    total = sum(a for a in amounts if a is not None)
    return total if None not in amounts and total <= TARGET.most_copied else None


def gathered(values: Sequence[Value], inside: Inside, because: str) -> Laid:
    return Laid(tuple((v, ((),) * v.type.ndim) for v in values), inside, because)


def _gathered(sizes: Mapping[str, int], values: Sequence[Value]) -> float:
    return sum(gathering(prod(sizes.values()), bytes_of(v) or 0) for v in values)
