"""Arrays with room around a rank's blocks: in it are the ghost cells that their uses fetch.

Goes in: what is demanded of the values of a Graph. Comes out: per value its room, a Window. All
versions of an array, which loops carry and updates change, have one room, so that they can share
memory; what is wanted of a version is fetched into it, and is no more among what is demanded.
Always holds: a value that has room is made, carried or updated where it lies, in balanced blocks.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

from codegen.ir import cuts
from codegen.ir.cuts import Window, home
from codegen.ir.graph import Op, Region, Value, used_values
from codegen.ops import Branch, Loop, Map, Point, Update

if TYPE_CHECKING:  # it reads the other way round while running
    from codegen.layouts.demands import Demands


class Rooms:
    """The rooms of a Graph's values. of: the room of each value that has some. ghosts: what is
    fetched into it. in_place: results of a loop's body that may be written where an argument lies,
    and that argument."""

    def __init__(self, demands: Demands) -> None:
        self.demands = demands
        self.root: dict[Value, Value] = {}
        self.able: dict[Value, None] = {}  # in program order
        self.carried: list[tuple[Value, Value, Value]] = []  # argument, what it becomes, result
        self.in_place: dict[Value, Value] = {}
        self.points: dict[Value, Value] = {}  # what goes into a point, and comes out
        self.of: dict[Value, Window] = {}
        self.ghosts: dict[Value, Window] = {}
        self.region(demands.graph.body)
        self.carry()
        arguments = {self.find(arg) for arg, _, _ in self.carried if arg in self.able}
        versions: dict[Value, list[Value]] = {}
        for v in self.able:
            versions.setdefault(self.find(v), []).append(v)
        for root, values in versions.items():
            if root in arguments:
                self.widen(values)

    # ---- versions of one array -------------------------------------------------------------------

    def find(self, value: Value) -> Value:
        way = []
        while (above := self.root.get(value, value)) is not value:
            way.append(value)
            value = above
        for passed in way:  # the next one who asks goes there at once
            self.root[passed] = value
        return value

    def join(self, a: Value, b: Value) -> None:
        for v in (a, b):
            source = self.demands.defs.get(v)
            if source is not None and self.demands.is_view(source):
                return
        if home(a) == home(b) and a.type.dtype == b.type.dtype:
            self.root[self.find(a)] = self.find(b)

    def region(self, region: Region) -> None:
        for op in region.ops:
            if isinstance(op.kind, Update):
                self.join(op.result, op.operands[0])
            if isinstance(op.kind, Point):
                self.point(op)
            if isinstance(op.kind, Loop):
                self.loop(op)
            if isinstance(op.kind, Loop | Branch):
                for inner in op.regions:
                    self.region(inner)
            elif self.makes(op):
                self.able[op.result] = None

    def point(self, op: Op) -> None:
        for x, v in zip(op.operands, op.results, strict=True):
            self.join(v, x)
            if v.type.layout:
                self.able[v] = None
                self.points[x] = v

    def loop(self, op: Op) -> None:
        body = op.regions[-1]
        first = body.ops[0] if body.ops and isinstance(body.ops[0].kind, Point) else None
        begins = dict(zip(first.operands, first.results, strict=True)) if first else {}
        reads = _Reads(body)
        for x, arg, y, result in zip(op.operands, body.args, body.results, op.results, strict=True):
            for v in (x, y, result):
                self.join(arg, v)
            if arg.type.layout:
                self.able |= {arg: None, result: None}
                self.carried.append((arg, y, result))
            source = self.demands.defs.get(y)
            once = reads.returned[y] == 1 and y not in reads.arguments
            computed = source is not None and source in reads.place
            if once and source is not None and computed and isinstance(source.kind, Map):
                begin = begins.get(arg, arg)
                if reads.last(begin) <= reads.place[source]:
                    self.in_place[y] = begin

    def makes(self, op: Op) -> bool:
        if len(op.results) != 1 or not op.kind.has_room or self.demands.is_view(op):
            return False
        demand = self.demands.of.get(op.result)
        return demand is not None and demand.made == [home(op.result)]

    def carry(self) -> None:
        """Leave room only to those values carried by a loop of which the next version has room,
        too."""
        again = True
        while again:
            again = False
            for x, v in self.points.items():
                if not (x in self.able and v in self.able):
                    for value in (x, v):
                        again |= self.able.pop(value, 0) is None
            for arg, y, result in self.carried:
                have = [v in self.able for v in (arg, y, result)]
                if not all(have) or self.find(y) is not self.find(arg):
                    for v in (arg, result):
                        again |= self.able.pop(v, 0) is None

    # ---- how much --------------------------------------------------------------------------------

    def widen(self, values: list[Value]) -> None:
        """Widen the room by the ghost cells that are fetched of these versions of an array."""
        blocks = home(values[0])
        room = blocks
        around: dict[Value, list[Window]] = {}
        for v in values:
            for window in self.demands.of[v].fetched:
                wider = cuts.hull_of(room, window) if _lies_around(window, blocks) else None
                if wider is not None:
                    room = wider
                    around.setdefault(v, []).append(window)
        if not any(c.axes for c, h in zip(room, blocks) if not c.inside(h)):
            return
        room = tuple(h if c.inside(h) else c.opened() for c, h in zip(room, blocks))
        for v in values:
            self.of[v] = room
            if v in around:
                self.fetch_once(v, room, around[v])

    def fetch_once(self, value: Value, room: Window, around: list[Window]) -> None:
        """Have the ghost cells of a value fetched as one part of its room."""
        demand, blocks = self.demands.of[value], home(value)
        hull = around[0]
        for window in around[1:]:
            hull = cuts.hull_of(hull, window) or room
        # what is inside mine is mine, whole; of a dim that nobody splits, only what is wanted
        hull = tuple(
            (h if h.axes else c) if c.inside(h) else c.opened() for c, h in zip(hull, blocks)
        )
        if not any(c.axes for c, h in zip(hull, blocks) if c != h):
            return  # nobody else has any of it
        demand.fetched = [w for w in demand.fetched if w not in around]
        widest = next((w for w in around if all(cuts.inside(v, w) for v in around)), around[0])
        demand.places[hull] = demand.places.get(widest)
        self.ghosts[value] = hull
        for window in self.demands.wanted.get(value, {}):
            serves = next((w for w in (blocks, hull) if cuts.inside(window, w)), None)
            if serves is not None:
                demand.of[window] = serves


def _lies_around(window: Window, blocks: Window) -> bool:
    """Return whether a window is a rank's own part, shifted or with more around it. A room is made
    before a loop: no counter says how wide it is."""
    return all(
        c.inside(h) or c.follows(h) or c.period is not None for c, h in zip(window, blocks)
    ) and all(s.kind != "counter" for s in cuts.symbols(window))


class _Reads:
    """The ops of a loop's body that read its values; `returned` counts how often each value is a
    result of the body."""

    def __init__(self, body: Region) -> None:
        self.place = {op: k for k, op in enumerate(body.ops)}
        self.arguments, self.returned = set(body.args), Counter(body.results)
        self._last: dict[Value, int] = {}  # the op that reads a value last
        self._views: dict[Value, list[Value]] = {}  # of a value, computed wherever they are wanted
        for k, op in enumerate(body.ops):
            inner = (v for region in op.regions for v in used_values(region))
            self._last.update(dict.fromkeys((*op.operands, *inner), k))
            if op.kind.is_view:
                for v in dict.fromkeys(op.operands):
                    self._views.setdefault(v, []).extend(op.results)
        self._last.update(dict.fromkeys(body.results, len(body.ops)))

    def last(self, value: Value) -> int:
        """Return the place of the last op that reads a value, or a view of it; the place behind all
        ops if it is a result. An op behind that place may write where the value lies."""
        return max([self._last.get(value, -1), *map(self.last, self._views.get(value, ()))])
