"""The layout search: proposers offer other forms of a Graph, and the fastest is taken.

Goes in: a Graph, and proposers in order. Comes out: the Split of the Graph, or of a form of it.
Always holds: every form is partitioned once; estimates (codegen.layouts.costs) on a small and on a
larger mesh decide, by one rule, `LayoutSearch.is_faster`; a form that is not legal is never taken.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial, wraps
from itertools import chain
from math import inf, prod

from codegen.graph.builder import bytes_of
from codegen.ir.graph import Module, Op, Region, Value, walk
from codegen.layouts.costs import Costs, a_few_and_many, gathering
from codegen.layouts.demands import Split
from codegen.layouts.relayout import Choices, relaid
from codegen.ops import Loop, Relayout, ShardMap
from codegen.pipeline import apply, estimated
from codegen.symbolic.expr import Sym
from codegen.target import TARGET


@dataclass(frozen=True)
class Candidate:
    """A form of a Graph that computes the same values.

    nests: if the form is `relaid(graph, choices)`, the choices for each nest of loops, by the
    counter of its outermost loop: every nest is weighed, and taken or left, without the others.
    Empty: the whole program is weighed. loops: counters of the loops that count in this even if
    they exchange nothing. certain: no rank computes or receives more than it did, so that the form
    is taken without an estimate.
    """

    graph: Module
    nests: Mapping[Sym, Choices] = field(default_factory=dict)
    loops: frozenset[Sym] = frozenset()
    certain: bool = False


class LayoutSearch:
    """A search for layouts. partitioned: returns the Split of a Graph. legal: returns whether ranks
    can run a Split. Proposers may ask it for the Split and the costs of any form."""

    def __init__(
        self, partitioned: Callable[[Module], Split], legal: Callable[[Split], bool]
    ) -> None:
        self.partitioned, self.legal = partitioned, legal
        self._splits: dict[int, tuple[Module, Split]] = {}
        self._costs: dict[tuple[int, int, frozenset[Sym]], tuple[Module, Costs]] = {}

    def best(self, graph: Module, proposers: Iterable[Proposer]) -> Split:
        """Return the Split of the fastest form that some proposers lead to, one after the other."""
        best = self.split(graph)
        for propose in proposers:
            best = apply(wraps(propose)(partial(self.improved, propose)), best)
        return best

    def split(self, graph: Module) -> Split:
        """Return the Split of a Graph, which is partitioned when this is first asked."""
        if id(graph) not in self._splits:
            self._splits[id(graph)] = graph, self.partitioned(graph)
        return self._splits[id(graph)][1]

    def few(self, program: Module, loops: Collection[Sym] = ()) -> Costs:
        """Return the costs of a Program on a small mesh, with those of some loops even if they
        exchange nothing."""
        return self._on(0, program, loops)

    def costs(self, program: Module, loops: Collection[Sym] = ()) -> tuple[Costs, Costs]:
        """Return the costs of a Program on a small mesh and on a larger one."""
        return self._on(0, program, loops), self._on(1, program, loops)

    def _on(self, mesh: int, program: Module, loops: Collection[Sym]) -> Costs:
        key = mesh, id(program), frozenset(loops)
        if key not in self._costs:
            sizes = a_few_and_many(program.mesh)[mesh]
            self._costs[key] = program, Costs(program, sizes, key[2])
        return self._costs[key][1]

    def is_faster(self, before: Sequence[float], after: Sequence[float]) -> bool:
        """Return whether a form is enough faster than another one: on both meshes by a factor, and
        on the small one by so many seconds as TARGET says."""
        return before[0] - after[0] > TARGET.least_gain and all(
            b > TARGET.least_speedup * a for b, a in zip(before, after, strict=True))

    def pays(self, before: Sequence[float], after: Sequence[float]) -> bool:
        """Return whether a form that was partitioned is enough faster, and record it."""
        estimated(before[0], after[0])
        return self.is_faster(before, after)

    def improved(self, propose: Proposer, current: Split) -> Split:
        """Return the Split of the best form that a proposer offers, or the current one."""
        offered = [c for c in propose(current, self) if self.legal(self.split(c.graph))]
        nested = [c for c in offered if c.nests]
        if nested:
            return _Nests(self, current, nested).best()
        best, least = current, inf
        for candidate in offered:
            split = self.split(candidate.graph)
            if candidate.certain:
                return split
            old, new = (self.costs(s[1], candidate.loops) for s in (current, split))
            before, after = ([c.total for c in costs] for costs in (old, new))
            if self.pays(before, after) and prod(after) < least:
                best, least = split, prod(after)
                loops = (c for c in candidate.loops if c in old[0].loops and c in new[0].loops)
                _explain(best, {c: _times(old[0].loops[c].seconds, new[0].loops[c].seconds,
                                          old[0].sizes) for c in loops})
        return best


Proposer = Callable[[Split, LayoutSearch], Iterable[Candidate]]


class _Nests:
    """The search for the best choice for every nest of loops, among candidates that change several.
    """

    def __init__(
        self, search: LayoutSearch, current: Split, candidates: Sequence[Candidate]
    ) -> None:
        self.search, self.current, self.candidates = search, current, candidates
        self.before = search.costs(current[1])
        loops = {*self.before[0].loops, *chain.from_iterable(c.nests for c in candidates)}
        self.after = [search.costs(search.split(c.graph)[1], loops) for c in candidates]
        self.times: dict[Sym, str] = {}

    def best(self) -> Split:
        """Return the Split with the best choice for every nest; the current one where all are best
        left as they are."""
        graph = self.current[0].graph
        choices = self.in_region(graph.body)
        if not choices:
            return self.current
        same = (c.graph for c in self.candidates if choices == _all(c.nests.values()))
        split = self.search.split(next(same, None) or relaid(graph, choices))
        if not self.search.legal(split):
            return self.current
        _explain(split, self.times)
        return split

    def in_region(self, region: Region) -> Choices:
        """Return the choices for the outermost loops of a region that some candidate makes
        faster, and for loops inside the others."""
        choices: list[Choices] = []
        for op in region.ops:
            if isinstance(op.kind, ShardMap):
                continue
            counter = op.kind.counts() if isinstance(op.kind, Loop) else None
            best = self.of_loop(op, counter) if counter else {}
            choices += [best] if best else map(self.in_region, op.regions)
        return _all(choices)

    def of_loop(self, loop: Op, counter: Sym) -> Choices:
        """Return the best choice for a loop and those in it; empty if none pays."""
        if counter not in self.before[0].loops:
            return {}
        inside = {counter, *(c for r in loop.regions for o in walk(r) if (c := o.kind.counts()))}
        before = [c.loops[counter].seconds for c in self.before]
        best: Choices = {}
        least = inf
        for candidate, costs in zip(self.candidates, self.after):
            choices = _all(nest for c, nest in candidate.nests.items() if c in inside)
            if not choices or not all(counter in c.loops for c in costs):
                continue
            after = [c.loops[counter].seconds + often * self.ahead(candidate, counter, c.sizes)
                     for c, often in zip(costs, (b.loops[counter].often for b in self.before))]
            if self.search.pays(before, after) and prod(after) < least:
                best, least = choices, prod(after)
                self.times[counter] = _times(before[0], after[0], self.before[0].sizes)
        return best

    def ahead(self, candidate: Candidate, counter: Sym, sizes: Mapping[str, int]) -> float:
        """Return the seconds in which every rank gets copies of arrays before a nest; nests that
        need the same copies share them. Arrays that stay split do not count: of the recursive
        filter, whose columns then lie on one rank, loops gain more than this exchange takes."""
        copies = Counter(value for c in candidate.nests for value in _copied(candidate, c))
        return sum(gathering(prod(sizes.values()), bytes_of(value) or 0) / copies[value]
                   for value in _copied(candidate, counter))


def _copied(candidate: Candidate, counter: Sym) -> list[Value]:
    """Return the arrays of which every rank gets a copy before the nest with this counter."""
    nest = candidate.nests.get(counter, {})
    return [v for v, to in nest[counter].before if not any(to)] if counter in nest else []


def _all(choices: Iterable[Choices]) -> Choices:
    return {c: laid for some in choices for c, laid in some.items()}


# ---- words ---------------------------------------------------------------------------------------


def _times(before: float, after: float, sizes: Mapping[str, int]) -> str:
    """Return how long a loop takes in a new form and took in the old one, in words."""
    return (f" about {after * 1e3:.1f} ms instead of {before * 1e3:.1f} ms "
            f"on {prod(sizes.values())} ranks")


def _explain(split: Split, times: Mapping[Sym, str]) -> None:
    """Complete the reasons of new layouts in the Graph of a Split, those that end in a colon, with
    how long the loops take that they stand before: by the counters of these loops, or of loops
    around them."""
    demands, _ = split
    graph = demands.graph
    demands.graph = graph.with_body(_explained(graph.body, times, ""))


def _explained(region: Region, times: Mapping[Sym, str], around: str) -> Region:
    ops: list[Op] = []
    saved = ""  # by the loop that comes next
    for op in reversed(region.ops):
        counter = op.kind.counts() if isinstance(op.kind, Loop) else None
        inner = times.get(counter, around) if counter else around
        if isinstance(op.kind, Loop):
            saved = inner
        if op.regions and not isinstance(op.kind, ShardMap):
            op = op.mapped(partial(_explained, times=times, around=inner))
        elif isinstance(op.kind, Relayout) and op.kind.because.endswith(":"):
            because = op.kind.because + saved if saved else op.kind.because[:-1]
            op = replace(op, kind=op.kind.but(because=because))
        ops.append(op)
    return region.with_ops(ops[::-1])
