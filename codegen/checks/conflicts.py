"""No two operations of a Plan are in conflict without an order: of its operation graph.

In: a finished Plan, the rows of its graph. Out: the rows, or an InternalError that names the line.
Two rows are in conflict if one writes what the other touches, or both do what keeps its order.
Always holds: what a row touches is read off the Plan here, field by field: a field that this file
does not know as one that is only read counts as written.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, fields, is_dataclass
from functools import cache
from typing import Any

from codegen.errors import InternalError, Place
from codegen.ir import plan as g
from codegen.ir.overlays import overlays
from codegen.plan.operation_graph import OperationRow
from codegen.symbolic.expr import Expr, Sym

# Fields through which memory is only read; the others of these classes, and all of others, write.
_READS = {
    (g.Load, "buffer"), (g.Let, "value"), (g.Loop, "flag"), (g.Branch, "on"), (g.WorkBranch, "on"),
    (g.Exchange, "pull_from"), (g.Exchange, "send"), (g.Send, "values"), (g.Save, "values"),
}
# Fields with the steps or works of a region, in the order of regions.
_REGIONS: dict[type, tuple[str, ...]] = {
    g.Loop: ("condition", "body"), g.Branch: ("arms",), g.Default: ("steps",),
    g.WorkLoop: ("body",), g.WorkBranch: ("arms",), g.Phase: ("work",),
}
_MEETINGS = (g.Exchange, g.Take, g.More, g.Send)
_SIGNS = (g.Print, g.Save, g.Expect, g.Point)
_GATES = (g.Expect, g.Point)
_PLAIN = (str, int, float, type(None), Place, Sym)

Region = tuple[int, int] | None


def check_conflicts(plan: g.Plan, rows: list[OperationRow]) -> list[OperationRow]:
    """Return the rows of the graph; raise InternalError at the first one that is out of order."""
    _Check(plan, rows).run()
    return rows


@dataclass
class _Touched:
    """The places of memory that one row, with those inside it, reads and writes. A place is the
    number of a buffer, a counter that a Let sets, or the name of an order."""

    reads: set[object] = field(default_factory=set)
    writes: set[object] = field(default_factory=set)
    gate: bool = False

    def add(self, other: _Touched) -> None:
        self.reads |= other.reads
        self.writes |= other.writes
        self.gate |= other.gate


class _Check:
    """A check of a Plan's order. position: the number of the next row. batches: by feed, the
    buffers that its takes fill."""

    def __init__(self, plan: g.Plan, rows: list[OperationRow]) -> None:
        self.plan, self.rows, self.position = plan, rows, 0
        self.batches: dict[str, set[object]] = {}
        self.lies_in: dict[object, set[object]] = {}
        self.lets: set[Sym] = set()
        self.overlays = overlays(plan)
        for step in _steps(plan.steps):
            if isinstance(step, g.Take):
                self.batches.setdefault(step.feed, set()).update(b.number for b in step.into)
            elif isinstance(step, g.Exchange) and step.shifts:
                assert step.pull_into is not None and step.pull_from is not None
                self.lies_in.setdefault(step.pull_into.buffer.number, set()).add(
                    step.pull_from.buffer.number)
            elif isinstance(step, g.Let):
                self.lets.add(step.counter)

    def run(self) -> None:
        self.region(self.plan.steps, None)
        self.rule(self.position == len(self.rows), None,
                  "a row of the graph is an operation of the Plan")

    def rule(self, holds: bool, row: OperationRow | None, rule: str, found: str = "") -> None:
        if not holds:
            raise InternalError.of_rule(rule, row.place if row else None, found)

    # ---- rows ------------------------------------------------------------------------------------

    def region(self, steps: Sequence[g.Step | g.Work], region: Region) -> _Touched:
        mine: list[tuple[OperationRow, _Touched]] = []
        for step in steps:
            if isinstance(step, g.Phase):
                handed = {p.sym: self.of_lets((p.formula, p.value)) for p in step.parameters}
                mine += [self.act(work, region, handed) for work in step.work]
            else:
                mine.append(self.act(step, region, {}))
        self.ordered(mine)
        return _together(touched for _, touched in mine)

    def act(
        self, act: g.Step | g.Work, region: Region, handed: dict[Sym, set[object]]
    ) -> tuple[OperationRow, _Touched]:
        row = self.rows[self.position] if self.position < len(self.rows) else None
        self.rule(row is not None and row.act is act and row.region == region, row,
                  "every operation of a Plan has a row of the graph, in order")
        assert row is not None and row.number == self.position
        self.position += 1
        touched = _Touched()
        self.look(act, touched)
        if self.lets:
            symbols = _symbols(act)
            touched.reads |= self.lets & symbols
            touched.reads.update(*(handed[s] for s in symbols & handed.keys()))
        for k, inner in enumerate(_regions(act)):
            works = handed if isinstance(act, g.WorkLoop | g.WorkBranch) else {}
            touched.add(self.inner(inner, (row.number, k), works))
        self.kept_in_order(act, touched)
        numbers = {n for n in touched.reads | touched.writes if isinstance(n, int)}
        self.rule(numbers <= row.reads | row.writes, row, "a row names all buffers that it touches")
        self.rule(touched.writes.isdisjoint(row.reads), row,
                  "a row lists under `writes` all that it writes")
        return row, touched

    def inner(
        self, acts: Sequence[g.Step | g.Work], region: Region, handed: dict[Sym, set[object]]
    ) -> _Touched:
        if not handed:
            return self.region(acts, region)
        mine = [self.act(work, region, handed) for work in acts]
        self.ordered(mine)
        return _together(touched for _, touched in mine)

    def kept_in_order(self, act: g.Step | g.Work, touched: _Touched) -> None:
        """Add what a row changes beside memory that the Plan names."""
        if isinstance(act, _MEETINGS):
            touched.writes.add("what a rank does with others")
        if isinstance(act, _SIGNS):
            touched.writes.add("what is seen of a run")
        touched.gate |= isinstance(act, _GATES)
        if isinstance(act, g.Take | g.More):
            touched.writes |= self.batches.get(act.feed, set())
        if isinstance(act, g.Let):
            touched.writes.add(act.counter)
        if isinstance(act, g.Exchange) and act.pull_from is not None and (act.last or act.swaps):
            touched.writes.add(act.pull_from.buffer.number)

    def of_lets(self, x: object) -> set[object]:
        return {*(self.lets & _symbols(x))} if self.lets else set()

    def look(self, x: Any, touched: _Touched, writes: bool = True) -> None:
        """Add the buffers in x, without those in its regions. Constants count as no buffers."""
        kind: Any = type(x)
        if kind is g.Buffer:
            if x.data is None:
                (touched.writes if writes else touched.reads).add(x.number)
        elif kind is tuple:
            for item in x:
                self.look(item, touched, writes)
        else:
            if kind in (g.Part, g.Argument):
                writes = x.writes
            for name, reads in _looked_at(kind):
                self.look(getattr(x, name), touched, writes and not reads)

    # ---- order -----------------------------------------------------------------------------------

    def ordered(self, rows: list[tuple[OperationRow, _Touched]]) -> None:
        place_of = {row.number: k for k, (row, _) in enumerate(rows)}
        before: list[int] = []
        gates, touching, writing = 0, dict[object, int](), dict[object, int]()
        overlaid: dict[int, int] = {}  # of each overlay, the rows that touch a buffer in it
        last: dict[int, int] = {}  # of each stream
        for k, (row, touched) in enumerate(rows):
            mine = 0
            for number in row.waits:
                j = place_of.get(number, k)
                self.rule(j < k, row, "a row waits for rows before it in its region")
                mine |= before[j] | 1 << j
            needed, places = gates, touched.reads | touched.writes
            for shown in places & self.lies_in.keys():  # it may lie in the memory of others
                places |= self.lies_in[shown]
            for memory in places:
                needed |= writing.get(memory, 0)
            for memory in touched.writes:
                needed |= touching.get(memory, 0)
            inside = {self.overlays.of[n] for n in places if isinstance(n, int)} - {0}
            for over, rows_of in overlaid.items():
                if any(self.may_share_memory(over, own) for own in inside):
                    needed |= rows_of
            if missing := needed & ~mine:
                other = rows[missing.bit_length() - 1][0]
                self.rule(False, row, "operations in conflict have an order",
                          f"row {row.number} and row {other.number} have none")
            self.rule(row.stream not in last or mine >> last[row.stream] & 1 == 1, row,
                      "rows of one stream wait for each other")
            last[row.stream] = k
            before.append(mine)
            bit = 1 << k
            gates |= bit if touched.gate else 0
            for memory in places:
                touching[memory] = touching.get(memory, 0) | bit
            for memory in touched.writes:
                writing[memory] = writing.get(memory, 0) | bit
            for over in inside:
                overlaid[over] = overlaid.get(over, 0) | bit


    def may_share_memory(self, a: int, b: int) -> bool:
        """Return whether two overlays may lie in one memory: neither lies within the other."""
        return a not in self.enclosing(b) and b not in self.enclosing(a)

    def enclosing(self, over: int) -> set[int]:
        overlays = set[int]()
        while over:
            overlays.add(over)
            over = self.overlays.around[over - 1]
        return overlays


def _together(some: Iterator[_Touched]) -> _Touched:
    whole = _Touched()
    for touched in some:
        whole.add(touched)
    return whole


def _steps(steps: Sequence[Any]) -> Iterator[Any]:
    for step in steps:
        yield step
        for inner in _regions(step):
            yield from _steps(inner)


def _regions(act: Any) -> Iterator[tuple[Any, ...]]:
    for name in _REGIONS.get(type(act), ()):
        value = getattr(act, name)
        if name == "arms":
            yield from value
        else:
            yield value


@cache
def _looked_at(kind: type) -> tuple[tuple[str, bool], ...]:
    """Return the fields of a class that may hold memory, and whether it is only read through
    them."""
    if not is_dataclass(kind) or issubclass(kind, _PLAIN) or kind in (Expr, g.Home):
        return ()
    return tuple((f.name, (kind, f.name) in _READS) for f in fields(kind)
                 if f.name not in _REGIONS.get(kind, ()))


def _symbols(x: Any) -> set[Sym]:
    """Return the symbols of all formulas in x, without those in its regions."""
    if isinstance(x, Expr):
        return x.symbols()
    if type(x) is tuple:
        return set[Sym]().union(*map(_symbols, x))
    kind: Any = type(x)
    return set[Sym]().union(*(_symbols(getattr(x, name)) for name, _ in _looked_at(kind)))
