"""Which parts of every global array are wanted, and how a rank comes by them.

Goes in: a Graph. Backwards over it, every use names the part that it needs of its operands; views
pass that on, so temporaries follow the arrays they are written to. Comes out, per value: the parts
computed where it is defined, the parts fetched from other ranks, and which of them serves a use.
Always holds: a part that is fetched comes out of balanced blocks, which are then made too.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from functools import cached_property

from codegen.errors import Place
from codegen.graph.builder import global_ops
from codegen.ir import cuts
from codegen.ir.cuts import Cut, Window, home, layout_of
from codegen.ir.graph import Module, Op, Region, Value, free_values
from codegen.layouts.fetch_or_recompute import moves_less
from codegen.layouts.ghost_cells import Rooms
from codegen.layouts.localize import Localizer
from codegen.mesh import LayoutEntry
from codegen.ops import Branch, Loop, Map, Relayout, Roll, Send, ShardMap, Transpose
from codegen.symbolic import expr
from codegen.symbolic.estimate import lower_bound, upper_bound
from codegen.symbolic.expr import Sym


@dataclass
class Demand:
    """The demand for one value. made: computed (or held) by each rank. fetched: from others. of:
    what serves a use."""

    made: list[Window] = field(default_factory=list)
    fetched: list[Window] = field(default_factory=list)
    of: dict[Window, Window] = field(default_factory=dict)
    places: dict[Window, Place | None] = field(default_factory=dict)  # who wants what is fetched


class Demands:
    """The demands of a Graph. of: per value that is no view."""

    def __init__(self, graph: Module, rooms: bool = True) -> None:
        """Note the uses of all values. rooms: False where only `wanted` is asked for."""
        self.graph = graph
        self.rules = Localizer(graph.mesh, self.entry)
        self.defs = self.rules.defs
        self.begins, self.uses = graph.def_use.begins, graph.def_use.uses
        self.of: dict[Value, Demand] = {}
        self.wanted: dict[Value, dict[Window, Place | None]] = {}
        # wanted in parts that only a use can name, or laid out otherwise by the user
        self.from_home: set[Value] = set()
        self.passed: set[tuple[Value, Window]] = set()
        self.in_turns: dict[Value, dict[Window, Window]] = {}  # wanted by a turn: by all of them
        self.cut_short: set[Value] = set()  # views that are made: their ends are wanted rolled on
        self.inputs = [i.value for i in graph.inputs]
        self.in_entry: list[dict[Value, Demand]] = []  # by entry: what it demands of the inputs
        for op in global_ops(graph.body):
            self.rules.define(op)
            if isinstance(op.kind, Roll) and not self.rules.goes_on(op.operands[0], op.kind.dim):
                self.cut_short.add(op.operands[0])
        for o in graph.outputs:
            source = self.defs.get(o.value)
            self.want(o.value, cuts.blocks(o.shape, o.layout), source.place if source else None)
        self.region(graph.body)
        for value in self.inputs:
            if graph.entries:  # each entry fetches for itself
                self.of[value] = Demand([home(value)])
            else:
                self.settle(value, None)
        if rooms:
            self.sums(graph.body)
            self.rooms = Rooms(self)

    def entry(self, value: Value, dim: int) -> LayoutEntry:
        return layout_of(value)[dim]

    @cached_property
    def counters(self) -> set[Sym]:
        """Return the counters of loops that come to every number between the first and the last."""
        loops = (op.kind for op in self.graph.def_use.order if isinstance(op.kind, Loop))
        return {w.counter for w in loops if w.counter is not None and w.step in (1, -1)}

    @cached_property
    def by_place(self) -> dict[Place | None, list[Op]]:
        """The ops on global arrays that are no views, by their places in the source."""
        places: dict[Place | None, list[Op]] = {}
        for op in self.defs.values():
            if not op.kind.is_view:
                places.setdefault(op.place, []).append(op)
        return places

    # ---- backwards -------------------------------------------------------------------------------

    def want(
        self, value: Value, window: Window, place: Place | None, relaid: bool = False
    ) -> None:
        """Note that a use wants this window of a value. relaid: by the user, who says with it that
        the value is computed as it lies, and then exchanged: in one exchange, whatever it is made
        of."""
        op = self.defs.get(value)
        if op is not None and self.is_view(op):
            if (value, window) not in self.passed:
                self.passed.add((value, window))
                self.want_operands(op, window, place or op.place, relaid)
            return
        if relaid and any(b.axes and c != b for c, b in zip(window, home(value), strict=True)):
            self.from_home.add(value)
        begin = self.begins.get(value, 0)
        late = {s for s in cuts.symbols(window) if self.begins.get(s, 0) > begin}
        if late:
            wide = self.of_all_turns(value, window, late)
            if wide is None:
                self.from_home.add(value)
                return
            self.in_turns.setdefault(value, {})[window] = wide
            window = wide
        self.wanted.setdefault(value, {}).setdefault(window, place)

    def of_all_turns(self, value: Value, window: Window, late: set[Sym]) -> Window | None:
        """Return what all turns of loops want of an array that they leave as it is, if that is a
        rank's blocks and a few ghost cells: it is fetched once, before the first turn. Else return
        None."""
        wide: list[Cut] = []
        if not late <= self.counters:
            return None
        for cut, have in zip(window, home(value), strict=True):
            away = cut.symbols() & late
            if have.axes:
                few = expr.nonneg(cuts.NEAR - cut.most + cut.least)
                if away or cut.axes != have.axes or cut.interval or cut.step != 1 or not few:
                    return None
            elif away:
                if cut.axes or cut.interval or cut.period:
                    return None
                first, last = lower_bound(cut.first, away), upper_bound(cut.last, away)
                # Counters may go beyond the array where a branch keeps such turns from reading it:
                # what all turns read ends where the array does.
                cut = cuts.fixed(expr.most(first, have.first), expr.least(last, have.last))
            wide.append(cut)
        if not cuts.inside(tuple(wide), home(value)):
            return tuple(wide)
        op = self.defs.get(value)  # what is laid out anew is so in one exchange, ghost cells too
        return home(value) if op and isinstance(op.kind, Relayout) and not op.kind.held else None

    def is_view(self, op: Op) -> bool:
        """Return whether an op is a view, or gives a layout to a constant: it is computed again
        wherever a part of it is needed."""
        anew = op.kind.is_view or self.rules.is_laid_out(op)
        return anew and op.result not in self.cut_short

    def shown(self, value: Value) -> Value:
        """Return the array that a chain of views looks at; `value` itself if it is no view."""
        while (op := self.defs.get(value)) is not None and self.is_view(op):
            value = op.operands[0]
        return value

    def want_operands(
        self, op: Op, window: Window, place: Place | None, relaid: bool = False
    ) -> None:
        for operand, needed in zip(op.operands, self.rules.needs(op, window), strict=True):
            self.want(operand, needed, place, relaid)

    def region(self, region: Region) -> None:
        for op in reversed(region.ops):
            self.op(op)

    def op(self, op: Op) -> None:
        if self.is_view(op):
            return
        for value in op.results:
            self.settle(value, op)
        kind = op.kind
        if isinstance(kind, ShardMap):
            for operand, layout in zip(op.operands, kind.in_layouts, strict=True):
                self.want(operand, cuts.blocks(operand.type.shape, layout), op.place)
            for value in free_values(op.regions[0]):
                self.want(value, home(value), op.place)
        elif op is self.graph.entry_branch:
            self.entries(op)
        elif isinstance(kind, Loop | Branch):
            for inner in op.regions:
                self.inner(op, inner)
            for operand in op.operands:
                self.want(operand, home(operand), op.place)
        elif isinstance(kind, Send):
            for operand, layout in zip(op.operands, kind.layouts, strict=True):
                self.want(operand, cuts.blocks(operand.type.shape, layout), op.place)
        elif kind.at_home:
            for operand in op.operands:
                self.want(operand, home(operand), op.place)
        else:
            # all that an op makes is of one batch: what its first result needs is what all need
            relaid = isinstance(kind, Relayout) and kind.asked
            for window in self.of[op.results[0]].made:
                self.want_operands(op, window, op.place, relaid)

    def inner(self, op: Op, region: Region) -> None:
        """Find the demands in the body of a loop, or in an arm of a branch."""
        for value in region.results:
            self.want(value, home(value), op.place)
        self.region(region)
        for value in region.args:
            self.settle(value, None)

    def entries(self, op: Op) -> None:
        """Find what each entry demands of the inputs; all together want what any of them wants."""
        wanted: dict[Value, dict[Window, Place | None]] = {v: {} for v in self.inputs}
        for region in op.regions:
            self.inner(op, region)
            for value in self.inputs:
                self.settle(value, None)
                wanted[value] |= self.wanted.pop(value, {})
            self.in_entry.append({value: self.of[value] for value in self.inputs})
        self.wanted |= wanted

    def sums(self, region: Region) -> None:
        """Sums that are added to each other are added first and reduced once."""
        axes: dict[Value, tuple[str, ...]] = {}
        for op in region.ops:
            kind = op.kind
            if isinstance(kind, Loop | Branch):
                for inner in op.regions:
                    self.sums(inner)
                continue
            demand = self.of.get(op.result) if len(op.results) == 1 else None
            if demand is None or len(demand.made) != 1:
                continue
            axes[op.result] = self.rules.summed(op, demand.made[0])
            if isinstance(kind, Map) and kind.fn in ("add", "sub"):
                a, b = (self.turned(v) for v in op.operands)
                if a and b and axes.get(a) and axes.get(a) == axes.get(b):
                    axes[op.result] = self.rules.partial[op.result] = axes[a]
                    self.rules.later |= {a, b}

    def turned(self, value: Value) -> Value | None:
        """Return the value that this one is, or shows with its dims in another order, if nothing
        else uses it; else None."""
        while len(self.uses[value]) == 1:
            op = self.defs.get(value)
            if op is None or not isinstance(op.kind, Transpose):
                return value
            value = op.operands[0]
        return None

    # ---- how a value comes to its parts ----------------------------------------------------------

    def settle(self, value: Value, op: Op | None) -> None:
        """Decide, when all uses of a value are known, which parts of it ranks compute and which
        they fetch."""
        wanted = self.wanted.get(value, {})
        blocks = home(value)
        demand = self.of[value] = Demand()
        held = (op is None or op.kind.held or self.laborious(op, wanted)
                or not all(self.goes_on(op, w) for w in wanted)
                or (len(op.results) == 1 and moves_less(self, op, wanted)))
        if not held and not wanted and value not in self.from_home:
            return  # nobody uses it
        if not held and value not in self.from_home:
            joined = cuts.gather(list(wanted)) if _in_one(op) else list(wanted)
            if len(joined) == 1 or all(cuts.inside(w, joined[0]) for w in joined):
                demand.made = joined[:1]
                demand.of = dict.fromkeys((*wanted, *self.in_turns.get(value, ())), joined[0])
                return
        demand.made = [blocks]
        outside = [w for w in wanted if not cuts.inside(w, blocks)]
        demand.fetched = [
            tuple(
                c.opened() if c.follows(b) and not c.inside(b) else c
                for c, b in zip(window, blocks, strict=True)
            )
            for window in cuts.gather(outside)
        ]
        widest: dict[Window, Window] = {}  # whose use asks for most of what is fetched
        for window, place in wanted.items():
            sources = (blocks, *demand.fetched)
            serves = next((g for g in sources if cuts.inside(window, g)), None)
            if serves is None:  # not evidently in any: fetched where it is used
                continue
            demand.of[window] = serves
            if cuts.inside(widest.setdefault(demand.of[window], window), window):
                widest[demand.of[window]] = window
                demand.places[demand.of[window]] = place
        for window, wide in self.in_turns.get(value, {}).items():
            if wide in demand.of:
                demand.of[window] = demand.of[wide]

    def laborious(self, op: Op, wanted: Iterable[Window]) -> bool:
        """Return whether ghost cells of an op's result are fetched, since computing them again is
        more work: where the rest lies in balanced blocks."""
        value, wanted = op.result, list(wanted)
        if not op.kind.laborious or not wanted:
            return False
        blocks = home(value)
        return all(self.rules.natural(value, d) == b for d, b in enumerate(blocks)) and all(
            c.follows(b) or not (c.axes or b.axes) for w in wanted for c, b in zip(w, blocks)
        ) and not all(cuts.inside(w, blocks) for w in wanted)

    def goes_on(self, op: Op, window: Window) -> bool:
        """Return whether what lies beyond the ends of a window's periodic dims can be computed as
        the rest is."""
        around = [d for d, c in enumerate(window) if c.period is not None]
        return not around or (
            isinstance(op.kind, Map)
            and all(self.rules.goes_on(v, d) for v in op.operands for d in around)
        )


def _in_one(op: Op | None) -> bool:
    """Return whether one part that has all that is wanted is made at no more cost for each
    element."""
    return op is not None and isinstance(op.kind, Map | Relayout)


Split = tuple[Demands, Module]  # what ranks hold of a Graph's values, and the Program of it
