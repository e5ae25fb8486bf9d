"""Predication: ops run where the inputs that they need are given, for outputs that are asked for.

Goes in: a Graph with optional inputs or selectable outputs. Comes out: the same, in which ops of
one predicate stand together in a Branch on flags that each call sets; outputs say what they need.
Always holds: ops without a predicate stay as they are, what a user sees stays in its order, and
nobody reads the blank that the other arm gives.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from heapq import heappop, heappush

from codegen.ir.graph import Entry, Input, Module, Op, Output, Region, Value, free_values, walk
from codegen.ops import Barrier, Branch, Feeding, Full, Let, Loop, Relayout
from codegen.ops.kind import layout_of
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, Sym

Symbols = frozenset[Sym]
NONE: Symbols = frozenset()


def predicated(graph: Module) -> Module:
    """Return the Graph, itself where every call gives and asks for the same."""
    optional = [i for i in graph.inputs if i.flag is not None]
    selected = [o for o in graph.outputs if o.wanted is not None]
    if not optional and not selected:
        outputs = [o if o.otherwise is None else replace(o, otherwise=None) for o in graph.outputs]
        return graph if outputs == [*graph.outputs] else replace(graph, outputs=tuple(outputs))
    needs = _Needs(optional)
    needs.region(graph.body)
    work = _Predicating(graph, needs, _served(graph))
    if graph.entries:
        return _of_entries(graph, work, optional)
    body = work.region(graph.body, NONE, outermost=True)
    names = {i.flag: i.root for i in optional}
    outputs, chosen = list[Output](), list[Op]()
    for o in graph.outputs:
        needed = needs.of(o.value)
        if o.otherwise is None:
            o = replace(o, needs=tuple(n for s, n in names.items() if s in needed))
        else:
            predicate = Predicate(needed, None if o.wanted is None else frozenset({o.wanted}))
            if not predicate.is_true:
                chosen.append(_either(predicate, o.value, o.otherwise))
                o = replace(o, value=chosen[-1].result)
        outputs.append(replace(o, otherwise=None))
    results = tuple(o.value for o in outputs) if body.results else ()
    body = replace(body, ops=(*body.ops, *chosen), results=results)
    return replace(graph, body=body, outputs=tuple(outputs))


def _of_entries(graph: Module, work: _Predicating, optional: Sequence[Input]) -> Module:
    """Return the Graph whose entries are predicated, each on its own. A state whose new value needs
    what a call does not give stays as it is."""
    needs, bodies, entries = work.needs, list[Region](), list[Entry]()
    names = {i.flag: i.root for i in optional}
    for entry, arm in zip(graph.entries, graph.bodies, strict=True):
        body, results, reads = work.region(arm, NONE, outermost=True), list(arm.results), set[int]()
        chosen: list[Op] = []
        for k in entry.rebinds:
            state = graph.states[k]
            value = results[state.new]
            if needed := needs.of(value):
                stays = graph.inputs[state.input].value
                chosen.append(_either(Predicate(needed, None), value, stays))
                results[state.new] = chosen[-1].result
                reads.add(k)
        bodies.append(replace(body, ops=(*body.ops, *chosen), results=tuple(results)))
        entries.append(replace(entry, reads=tuple(sorted({*entry.reads, *reads}))))
    states = {state.new for state in graph.states}
    outputs = tuple(
        o if k in states else
        replace(o, needs=tuple(n for s, n in names.items() if s in needs.of(o.value)))
        for k, o in enumerate(graph.outputs))
    return replace(graph.with_bodies(bodies), outputs=outputs, entries=tuple(entries))


def _either(predicate: Predicate, value: Value, otherwise: Value) -> Op:
    """Return a branch that gives a value where a predicate holds, else another one of its type."""
    result, laid = Value(value.name, value.type), otherwise
    again: tuple[Op, ...] = ()
    if layout_of(otherwise.type) != layout_of(value.type):
        laid = Value(value.name, value.type)
        again = (Op(Relayout(layout_of(value.type)), (otherwise,), (laid,)),)
    arms = (Region((), again, (laid,)), Region((), (), (value,)))
    return Op(Branch(predicate.holds, (value.type,)), (), (result,), arms)


@dataclass(frozen=True)
class Predicate:
    """Under which an op runs: all inputs of `given` are there, and an output of `wanted` is asked
    for. None: whatever is asked for."""

    given: Symbols
    wanted: Symbols | None

    @property
    def is_true(self) -> bool:
        return not self.given and self.wanted is None

    @property
    def holds(self) -> Expr:
        """Return a formula that is 1 where the op runs, else 0."""
        total = expr.const(1)
        for s in sorted(self.given, key=lambda s: s.name):
            total = total * expr.symbol(s)
        if self.wanted is not None:
            total = total * expr.ge(sum(map(expr.symbol, self.wanted), expr.const(0)), 1)
        return total

    @property
    def rank(self) -> tuple[int, float]:
        """Return a rank in an order: an op's operands come from ops of a lower rank, or of the same
        predicate."""
        return len(self.given), -(float("inf") if self.wanted is None else len(self.wanted))


# ---- which inputs an op needs --------------------------------------------------------------------


class _Needs:
    """The needs of values and ops. values, symbols: the optional inputs that each follows from.
    runs: those without which an op has nothing to do."""

    def __init__(self, optional: Iterable[Input]) -> None:
        self.values: dict[Value, Symbols] = {
            i.value: frozenset({i.flag}) for i in optional if i.flag is not None}
        self.symbols: dict[Sym, Symbols] = {}
        self.runs: dict[Op, Symbols] = {}

    def of(self, *values: Value) -> Symbols:
        return NONE.union(*(self.values.get(v, NONE) for v in values))

    def in_exprs(self, exprs: Iterable[Expr]) -> Symbols:
        if not self.symbols:
            return NONE
        return NONE.union(*(self.symbols.get(s, NONE) for e in exprs for s in e.symbols()))

    def region(self, region: Region) -> None:
        for op in region.ops:
            self.op(op)

    def op(self, op: Op) -> None:
        control = self.in_exprs([*op.kind.exprs(), *(e for v in op.results for e in v.type.shape)])
        if isinstance(op.kind, Loop):
            self.loop(op, op.kind, control)
        elif op.regions:
            self.regions(op, control)
        else:
            self.runs[op] = control | self.of(*op.operands)
            self.values.update(dict.fromkeys(op.results, self.runs[op]))
            if isinstance(op.kind, Let):
                self.symbols[op.kind.counter] = self.runs[op]

    def regions(self, op: Op, control: Symbols) -> None:
        """Find the needs of a branch, or of an op whose region is given its last operands."""
        if isinstance(op.kind, Branch) and op.kind.on is None:
            control |= self.of(op.operands[0])
        for region in op.regions:
            operands = op.operands[len(op.operands) - len(region.args):]
            self.values.update((a, self.of(v)) for a, v in zip(region.args, operands, strict=True))
            self.region(region)
        for k, value in enumerate(op.results):
            self.values[value] = control | self.of(*(r.results[k] for r in op.regions))
        self.runs[op] = control | self.common(op)

    def loop(self, op: Op, kind: Loop, control: Symbols) -> None:
        carried = [self.of(v) for v in op.operands]
        while True:
            before = control, carried
            if kind.counter is not None:
                self.symbols[kind.counter] = control
            for region in op.regions:
                self.values.update(zip(region.args, carried, strict=True))
                self.region(region)
            if len(op.regions) == 2:
                control |= self.of(*op.regions[0].results)
            ends = op.regions[-1].results
            carried = [c | control | self.of(v) for c, v in zip(carried, ends, strict=True)]
            if (control, carried) == before:
                break
        self.values.update(zip(op.results, carried, strict=True))
        self.runs[op] = control | self.common(op)

    def common(self, op: Op) -> Symbols:
        """Return the needs that all results and all visible effects of an op with regions share."""
        effects = [inner for r in op.regions for inner in walk(r) if _is_effect(inner)]
        needs = [self.of(v) for v in op.results] + [self.runs[inner] for inner in effects]
        return frozenset.intersection(*needs) if needs else NONE


def _is_effect(op: Op) -> bool:
    if op.regions or isinstance(op.kind, Let):
        return False
    return not op.results or isinstance(op.kind, (Feeding, Barrier))


def _has_effect(op: Op) -> bool:
    return _is_effect(op) or any(_is_effect(inner) for r in op.regions for inner in walk(r))


# ---- which outputs an op serves ------------------------------------------------------------------


def _served(graph: Module) -> dict[Op, Symbols | None]:
    """Return, for each of the outermost ops that serve some outputs only, the flags of these
    outputs."""
    every = {o.wanted for o in graph.outputs}
    if None in every:
        return {}
    values: dict[Value, set[Sym | None]] = {}
    for o in graph.outputs:
        values.setdefault(o.value, set()).add(o.wanted)
    served_by: dict[Op, Symbols | None] = {}
    for op in reversed(graph.body.ops):
        is_source = op.kind.inline and not op.operands  # of no work of its own
        always = isinstance(op.kind, Let) or is_source or _has_effect(op)
        served: set[Sym | None] = {None} if always else set()
        served = served.union(*(values.get(v, set()) for v in op.results))
        for v in _used(op):
            values.setdefault(v, set()).update(served)
        if None not in served and served != every:
            served_by[op] = frozenset(s for s in served if s is not None)
    return served_by


def _used(op: Op) -> list[Value]:
    return [*op.operands, *(v for region in op.regions for v in free_values(region))]


# ---- ops of one predicate in one branch ----------------------------------------------------------


class _Predicating:
    """Put ops under their predicates. held: what is known to be given where a region runs."""

    def __init__(
        self, graph: Module, needs: _Needs, serves: Mapping[Op, Symbols | None]
    ) -> None:
        self.needs, self.serves = needs, serves
        self.blank = "equal" not in graph.checks  # else ranks would compare what nobody wrote
        self.counts = {v for op in walk(graph.body) if isinstance(op.kind, Let)
                       for v in op.operands}

    def region(self, region: Region, held: Symbols, outermost: bool = False) -> Region:
        predicates: list[Predicate] = []
        ops: list[Op] = []
        for op in region.ops:
            runs = self.needs.runs[op]
            wanted = self.serves.get(op) if outermost else None
            if isinstance(op.kind, Let):  # its symbol is known from here on, whoever needs it
                runs = held
            predicates.append(Predicate(runs - held, wanted))
            ops.append(op.mapped(partial(self.region, held=held | runs)))
        if all(p.is_true for p in predicates):
            return region.with_ops(ops)
        grouped: list[Op] = []
        readers: dict[Value, set[int]] = {v: {-1} for v in region.results}
        for k, op in enumerate(ops):
            for v in _used(op):
                readers.setdefault(v, set()).add(k)
        for group in _grouped(ops, predicates):
            inside = [ops[k] for k in group]
            if predicates[group[0]].is_true:
                grouped += inside
                continue
            left = [v for op in inside for v in op.results
                    if not readers.get(v, set()).issubset(group)]
            grouped.append(self.branch(predicates[group[0]], inside, left))
        return region.with_ops(grouped)

    def branch(self, predicate: Predicate, ops: Sequence[Op], left: Sequence[Value]) -> Op:
        """Return a branch that gives some of what these ops make."""
        instead = {v: Value(v.name, v.type) for v in left}
        inner = tuple(_renamed(op, instead) for op in ops)
        place = ops[0].place
        blank = tuple(Op(Full(0, v.type.dtype, v.type.shape,
                              blank=self.blank and v not in self.counts),
                         (), (Value(v.name, v.type),), (), place) for v in left)
        arms = (Region((), blank, tuple(op.result for op in blank)),
                Region((), inner, tuple(instead[v] for v in left)))
        kind = Branch(predicate.holds, tuple(v.type for v in left))
        return Op(kind, (), tuple(left), arms, place)


def _renamed(op: Op, instead: Mapping[Value, Value]) -> Op:
    """Return an op on other values, which also makes others."""
    def of(values: Iterable[Value]) -> tuple[Value, ...]:
        return tuple(instead.get(v, v) for v in values)

    def inside(region: Region) -> Region:
        ops = tuple(_renamed(inner, instead) for inner in region.ops)
        return Region(region.args, ops, of(region.results))

    if instead.keys().isdisjoint([*_used(op), *op.results]):
        return op
    return replace(op, operands=of(op.operands), results=of(op.results),
                   regions=tuple(map(inside, op.regions)))


def _grouped(ops: Sequence[Op], predicates: Sequence[Predicate]) -> Iterator[list[int]]:
    """Yield the numbers of the ops in an order in which those of one predicate stand together as
    far as what they follow from, and the order of what users see, lets them: in as few groups."""
    after: list[list[int]] = [[] for _ in ops]
    waits = [0] * len(ops)
    ready: dict[Predicate, list[int]] = {}
    for k, before in enumerate(_before(ops)):
        waits[k] = len(before)
        for j in before:
            after[j].append(k)
    for k, count in enumerate(waits):
        if not count:
            heappush(ready.setdefault(predicates[k], []), k)
    while ready:
        now = min(ready, key=lambda p: (p.rank, ready[p][0]))
        group: list[int] = []
        while ready.get(now):
            k = heappop(ready[now])
            group.append(k)
            for n in after[k]:
                waits[n] -= 1
                if not waits[n]:
                    heappush(ready.setdefault(predicates[n], []), n)
        ready.pop(now)
        yield group


def _before(ops: Sequence[Op]) -> Iterator[set[int]]:
    """Yield, for each op, the numbers of the ops that it must follow."""
    makers: dict[Value, int] = {}
    symbols: dict[Sym, int] = {}
    effect: int | None = None
    for k, op in enumerate(ops):
        before = {makers[v] for v in _used(op) if v in makers}
        if symbols:
            exprs = (e for inner in _all(op) for e in
                     (*inner.kind.exprs(), *(n for v in inner.results for n in v.type.shape)))
            before |= {symbols[s] for e in exprs for s in e.symbols() if s in symbols}
        if _has_effect(op):
            before |= set() if effect is None else {effect}
            effect = k
        if isinstance(op.kind, Let):
            symbols[op.kind.counter] = k
        makers.update(dict.fromkeys(op.results, k))
        yield before


def _all(op: Op) -> Iterator[Op]:
    yield op
    for region in op.regions:
        yield from walk(region)
