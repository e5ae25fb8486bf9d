"""How long the loops of a Program take, about: computing, exchanges, and what both depend on.

Goes in: a Program, sizes of its axes. Comes out: seconds of every loop whose turns are known, of
the exchanges in it, and of all that is looked at. The rates are about those of a core and of ranks
that share one host's memory; between hosts, exchanges take longer.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import product
from math import log2, prod

from codegen.ir.graph import Module, Op, Region, Shape, Value, free_counters, walk
from codegen.mesh import Mesh
from codegen.ops import Branch, Exchange, Fold, Loop, Move
from codegen.ops.group import each
from codegen.symbolic.expr import Expr, Sym
from codegen.target import TARGET

SAMPLED = 4  # ranks of a mesh that are looked at, along an axis
MOST_POINTS = 16  # at which a loop nest is looked at

Formulas = Sequence[Shape]


@dataclass
class Cost:
    """The estimated cost of the `often` executions of a loop. seconds: of all of them; exchanges:
    their number; exchanging: the seconds in them; fetching: those seconds, by the value of the
    Graph whose parts are fetched."""

    often: float = 0.0
    seconds: float = 0.0
    exchanges: float = 0.0
    exchanging: float = 0.0
    fetching: dict[Value, float] = field(default_factory=lambda: defaultdict(float))


class Unknown(Exception):
    """A size that is known at run time only."""


def meeting(ranks: int) -> float:
    """Return the seconds that a short exchange between so many ranks takes."""
    return TARGET.exchange_seconds * (1 + log2(ranks)) / 2 if ranks > 1 else 0.0


def gathering(ranks: int, amount: int) -> float:
    """Return the seconds for an exchange of so many bytes, in which every rank gets what it
    lacks."""
    return meeting(ranks) + amount * (1 - 1 / ranks) * TARGET.byte_seconds if ranks > 1 else 0.0


class Costs:
    """The costs of a Program. loops: those in which something is exchanged, with the loops in them,
    by their counters; and `others`, if they are there. total: seconds of these, and of exchanges
    outside of loops. sizes: by names of axes."""

    def __init__(
        self, program: Module, sizes: Mapping[str, int], others: Collection[Sym] = ()
    ) -> None:
        self.mesh, self.origins = program.mesh, program.origins
        self.sizes = sizes
        self.loops: dict[Sym, Cost] = {}
        self.work: dict[Op, _AtRank] = {}  # of ops that were met: steps, or elements
        self.own: dict[Op, _AtRank] = {}  # of exchanges: the elements that a rank holds itself
        self.around: list[Cost] = []  # of the open loops
        self.often = 1.0  # how often their innermost one turns, with all around it
        self.samples = 1
        looked_at = tuple(
            op for op in program.body.ops if any(
                isinstance(o.kind, Exchange) or (o.regions and o.kind.counts() in others)
                for o in walk(Region((), (op,), ())))
        )
        extents = {s.name: s.at_most for s in program.scalars if s.at_most is not None}
        ranks = [extents | rank for rank in _ranks(program.mesh, sizes)]
        self.total = max(self.region(program.body.with_ops(looked_at), ranks))

    def region(self, region: Region, ranks: Sequence[Mapping[str, int]]) -> list[float]:
        """Return the seconds of a region on each of these ranks; ranks that exchange wait for each
        other."""
        spent = [0.0] * len(ranks)
        for op in region.ops:
            if isinstance(op.kind, Loop):
                more = self.loop(op, op.kind, ranks)
            elif isinstance(op.kind, Branch):
                outer, self.often = self.often, self.often / len(op.regions)
                arms = [self.region(inner, ranks) for inner in op.regions]
                more = [sum(times) / len(arms) for times in zip(*arms, strict=True)]
                self.often = outer
            elif isinstance(op.kind, Exchange):
                spent = [max(spent)] * len(ranks)
                more = [self.exchange(op, op.kind, ranks)] * len(ranks)
            elif op.kind.is_view:
                continue
            else:
                more = [TARGET.op_seconds + TARGET.element_seconds * steps
                        for steps in self.steps(op, ranks)]
            spent = [a + b for a, b in zip(spent, more, strict=True)]
        return spent

    def steps(self, op: Op, ranks: Sequence[Mapping[str, int]]) -> list[int]:
        """Return how many elements of one operation each of these ranks computes."""
        if op not in self.work:
            self.work[op] = _AtRank(_longest, tuple(map(tuple, op.kind.work(op))))
        return list(map(self.work[op], ranks))

    def exchange(self, op: Op, kind: Exchange, ranks: Sequence[Mapping[str, int]]) -> float:
        seconds = meeting(prod(self.sizes[a] for a in kind.axes))
        if seconds and op.results and not kind.in_place:
            sent = op.operands[0] if isinstance(kind, Fold) else op.results[0]
            if op not in self.work:
                self.work[op] = _AtRank(_longest, (sent.type.shape,))
            least = min(map(self.work[op], ranks))  # that all of them get
            own = min(map(self.owned(op, kind), ranks)) if isinstance(kind, Move) else 0
            seconds += max(0, least - own) * sent.type.dtype.size * TARGET.byte_seconds
        origin = self.origins.get(op.results[0]) if op.results else None
        for cost in self.around:
            cost.exchanges += self.often
            cost.exchanging += self.often * seconds
            if origin is not None:
                cost.fetching[origin] += self.often * seconds
        return seconds

    def owned(self, op: Op, kind: Move) -> _AtRank:
        if op not in self.own:
            shapes = [v.type.shape for v in (*op.operands, op.result)]
            self.own[op] = _AtRank(partial(_own, op, kind), (*shapes, tuple(kind.exprs())))
        return self.own[op]

    def loop(self, op: Op, kind: Loop, ranks: Sequence[Mapping[str, int]]) -> list[float]:
        """Return the seconds of a loop on each rank, from one turn in the middle, or from two where
        the body depends on the counter."""
        body = op.regions[-1]
        if kind.counter is None or kind.stop is None or len(op.regions) > 1:
            return self.region(body, ranks)  # one turn of nobody knows how many
        try:
            firsts = [_value(kind.start, rank) for rank in ranks]
            steps = [_value(kind.step, rank) or 1 for rank in ranks]
            lasts = [_value(kind.stop, rank) for rank in ranks]
        except Unknown:
            counted = {kind.counter.name: 0}
            return self.region(body, [{**rank, **counted} for rank in ranks])
        turns = [max(0, -((a - b) // s)) for a, b, s in zip(firsts, lasts, steps, strict=True)]
        cost = self.loops.setdefault(kind.counter, Cost())
        two = self.samples < MOST_POINTS and kind.counter in free_counters(body)
        parts = (1, 3) if two else (2,)
        outer, self.often = self.often, self.often * max(turns) / len(parts)
        self.samples *= len(parts)
        self.around.append(cost)
        spent = [0.0] * len(ranks)
        for part in parts:
            in_turn = [{**rank, kind.counter.name: a + s * (n * part // 4)}
                  for rank, a, s, n in zip(ranks, firsts, steps, turns, strict=True)]
            once = self.region(body, in_turn)
            spent = [t + n * s / len(parts) for t, n, s in zip(spent, turns, once, strict=True)]
        self.around.pop()
        self.samples //= len(parts)
        self.often = outer
        cost.often += outer
        cost.seconds += outer * max(spent)
        return spent


class _AtRank:
    """A number that follows from formulas at a rank, computed once for all values of their
    symbols."""

    def __init__(
        self, number: Callable[[Formulas, Mapping[str, int]], int], formulas: Formulas
    ) -> None:
        self.number, self.formulas = number, formulas
        self.names = {s.name for some in formulas for e in some for s in e.symbols()}
        self.known: dict[tuple[int | None, ...], int] = {}

    def __call__(self, rank: Mapping[str, int]) -> int:
        values = tuple(map(rank.get, self.names))
        if values not in self.known:
            self.known[values] = self.number(self.formulas, rank)
        return self.known[values]


def _longest(loops: Formulas, rank: Mapping[str, int]) -> int:
    """Return the steps of the longest of some loops, given by their extents."""
    return max((_volume(extents, rank) for extents in loops), default=0)


def a_few_and_many(mesh: Mesh) -> list[dict[str, int]]:
    """Return sizes of a small mesh and of a larger one."""
    meshes = []
    for few, many in (TARGET.few_ranks, TARGET.many_ranks):
        free = [a.name for a in mesh.axes if a.fixed is None]
        sizes = {a.name: a.fixed or 1 for a in mesh.axes}
        for k, name in enumerate(free):
            sizes[name] = few if k == 0 else many
        meshes.append(sizes)
    return meshes


def _ranks(mesh: Mesh, sizes: Mapping[str, int]) -> Iterator[dict[str, int]]:
    """Yield the values of symbols on ranks of the mesh: all of a small one, some of a large one."""
    counts = {s.name: n for a, n in sizes.items() for s in (mesh.axis(a).size_sym,)}
    along = [
        range(n) if n <= SAMPLED else sorted({k * (n - 1) // (SAMPLED - 1) for k in range(SAMPLED)})
        for n in (sizes[a.name] for a in mesh.axes)
    ]
    for coords in product(*along):
        yield counts | {a.coord_sym.name: k for a, k in zip(mesh.axes, coords, strict=True)}


def _volume(extents: Sequence[Expr], rank: Mapping[str, int]) -> int:
    try:
        return prod(max(0, _value(e, rank)) for e in extents)
    except Unknown:
        return 1


def _own(op: Op, kind: Move, _: Formulas, rank: Mapping[str, int]) -> int:
    """Return the number of elements that a rank gets and holds itself already."""
    (x,), result, total = op.operands, op.result.type, 1
    bounds = each(kind.have, result.ndim), each(kind.want, result.ndim)
    try:
        for d, (have, want) in enumerate(zip(*bounds, strict=True)):
            if have is None or want is None:
                total *= _value((result if have is None else x.type).shape[d], rank)
            else:
                low, high = ([_value(e, rank) for e in ends] for ends in zip(have, want))
                total *= max(0, min(high) - max(low))
    except Unknown:
        return 0
    return total


def _value(e: Expr, rank: Mapping[str, int]) -> int:
    if e.is_const:
        return e.value
    try:
        return e.evaluate(rank)
    except KeyError:
        raise Unknown from None
