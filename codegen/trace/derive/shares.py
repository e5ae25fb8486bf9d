"""Cotangents in shares: of a value that several ranks have alike, each may hold only a summand.

A value that is the same on ranks along an axis is used by all of them, so its cotangent is a sum
over them. In: ops, and the values at which their reverse pass starts. Out: which cotangents are in
shares along which axes, and at which values the shares are summed: with the fewest sums, and then
the fewest bytes (a minimum cut between where shares come to be and where a whole is needed).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from codegen.graph.variance import NONE, Axes, Families
from codegen.ir.graph import Op, Value
from codegen.mesh import Mesh
from codegen.ops import Branch, Defined, Exchange, Fold, Loop
from codegen.symbolic import expr

_TURNS = 64  # assumed iterations of a loop, by which the cost of a sum in it is multiplied
_ONE = 1 << 44  # what a sum costs beside its bytes


@dataclass(frozen=True)
class _Edge:
    """An edge from the cotangent of a result to that of an operand. makes: the axes along which the
    operand's is in shares in any case; hands: those along which it is if the result's is."""

    to: Value
    makes: Axes
    hands: Axes


@dataclass
class _Flow:
    """The flow of cotangents through some ops and their regions. needs: by value, the axes along
    which its cotangent is needed whole; starts: those along which it begins in shares."""

    families: Families
    active: Collection[Value]
    every: Axes
    edges: dict[Value, list[_Edge]] = field(default_factory=dict)
    needs: dict[Value, Axes] = field(default_factory=dict)
    starts: dict[Value, Axes] = field(default_factory=dict)
    depth: dict[Value, int] = field(default_factory=dict)

    def ops(self, ops: Iterable[Op], depth: int = 0) -> None:
        for op in ops:
            for value in op.results:
                self.depth[value] = depth
            self.op(op, depth)

    def op(self, op: Op, depth: int) -> None:
        kind = op.kind
        inner = [r.results for r in op.regions]
        if isinstance(kind, Loop):
            body = op.regions[-1]
            for k, a in enumerate(body.args):
                self.depth[a] = depth + 1
                self.edge(op.results[k], a)
                self.edge(a, body.results[k])
                self.edge(a, op.operands[k])
            self.ops(body.ops, depth + 1)
        elif isinstance(kind, Branch) or (isinstance(kind, Defined) and kind.back is None):
            for k, value in enumerate(op.results):
                for results in inner:
                    self.edge(value, results[k])
            for region in op.regions:
                self.ops(region.ops, depth)
        elif isinstance(kind, Exchange):
            self.exchange(op, kind)
        else:
            around = self.families.values([*op.operands, *op.results])
            own = op.results
            if isinstance(kind, Defined) and kind.kept:
                own = op.results[: -kind.kept]
                for value, x in zip(op.results[len(own) :], inner[0][len(own) :]):
                    self.edge(value, x)
                self.ops(op.regions[0].ops, depth)
            for value in own:
                for x in op.operands:
                    self.edge(value, x, around if isinstance(kind, Defined) else NONE)
                if isinstance(kind, Defined):
                    self.need(value, self.every - self.families.varies(value))

    def exchange(self, op: Op, kind: Exchange) -> None:
        axes = frozenset(kind.axes) - self.families.alone
        for value in op.results:
            varying = self.families.varies(value)
            for x in op.operands:
                had = self.families.varies(x)
                alike = axes - had
                summed = isinstance(kind, Fold) and kind.fn == "add" and kind.flow in (
                    "all", "to_root")
                through = alike if summed and not kind.differs() else NONE
                makes = (varying - had - axes) | (NONE if summed else alike)
                self._add(value, x, _Edge(x, makes, (self.every - axes) | through))
                self.need(value, axes - varying - through)

    def edge(self, value: Value, x: Value, more: Axes = NONE) -> None:
        varies = self.families.varies(x)
        self._add(value, x, _Edge(x, (self.families.varies(value) | more) - varies,
                                  self.every - varies))

    def _add(self, value: Value, x: Value, edge: _Edge) -> None:
        if value in self.active and x in self.active:
            self.edges.setdefault(value, []).append(edge)

    def need(self, value: Value, axes: Axes) -> None:
        self.needs[value] = self.needs.get(value, NONE) | axes

    def reached(self, begins: Iterable[Value]) -> set[Value]:
        """Return the values that get a cotangent when the reverse pass starts at `begins`."""
        values = set(begins)
        left = list(values)
        while left:
            for edge in self.edges.get(left.pop(), ()):
                if edge.to not in values:
                    values.add(edge.to)
                    left.append(edge.to)
        return values

    def cost(self, value: Value) -> int:
        size = expr.product(value.type.shape)
        count = size.value if size.is_const else 1 << 20
        bytes_ = min(count * value.type.dtype.size, _ONE - 1)
        return (_ONE + int(bytes_)) * int(_TURNS ** self.depth.get(value, 0))


class Shares:
    """A plan of the axes along which cotangents are in shares. families: the axes over which values
    vary. before: the axes along which a value's cotangent is in shares when it is complete; summed:
    those along which it is summed then. reached: the values with a cotangent; None: not known."""

    def __init__(self, families: Families) -> None:
        self.families = families
        self.reached: set[Value] | None = None
        self.before: dict[Value, Axes] = {}
        self.summed: dict[Value, Axes] = {}

    @classmethod
    def none(cls, mesh: Mesh) -> Shares:
        """Return the plan for global arrays, where no cotangent is in shares."""
        return cls(Families(mesh, {}, {}))

    @classmethod
    def planned(
        cls, families: Families, ops: Sequence[Op], outs: Mapping[Value, Axes],
        begins: Iterable[Value], active: Collection[Value],
    ) -> Shares:
        """Plan where shares are summed. outs: the values where the reverse pass starts, with the
        axes over which their cotangents vary. begins: the values at which it ends."""
        plan = cls(families)
        every = frozenset(families.coords) and NONE.union(*families.coords.values())
        flow = _Flow(families, active, every)
        flow.ops(ops)
        for v in begins:
            flow.need(v, every - families.varies(v))
        for v, axes in outs.items():
            flow.starts[v] = axes - families.varies(v)
        reached = plan.reached = flow.reached(v for v in outs if v in active)
        for axis in sorted(every):
            cut = _Cut(flow, axis, reached)
            for table, values in ((plan.summed, cut.summed()), (plan.before, cut.shared)):
                for v in values:
                    table[v] = table.get(v, NONE) | {axis}
        return plan

    def varies(self, value: Value) -> Axes:
        return self.families.varies(value)

    def of(self, value: Value) -> Axes:
        return self.before.get(value, NONE)

    def sums(self, value: Value) -> Axes:
        return self.summed.get(value, NONE)

    def after(self, value: Value) -> Axes:
        """Return along which axes a cotangent is in shares once it is summed as planned."""
        return self.of(value) - self.sums(value)

    def reach(self, value: Value) -> Axes:
        """Return over which axes there is one cotangent, or one share, per rank."""
        return self.varies(value) | self.after(value)

    def same(self, copies: Mapping[Value, Value]) -> None:
        """Note that the values of a copy are as those that they copy. copies: by the values that
        they copy."""
        for old, new in copies.items():
            self.families.of[new] = self.varies(old)
            self.before[new], self.summed[new] = self.of(old), self.sums(old)
            self._reach(new, old)

    def passing(self, new: Value, old: Value, shared: Axes) -> None:
        """Record that `new` varies over the same axes as `old`, and that each rank along `shared`
        holds a partial sum of its cotangent."""
        self.families.of[new] = self.varies(old)
        self.before[new], self.summed[new] = shared, NONE
        self._reach(new, old)

    def _reach(self, new: Value, old: Value) -> None:
        if self.reached is not None and old in self.reached:
            self.reached.add(new)


class _Cut:
    """A minimum cut for one axis: it decides which cotangents are summed along it. shared: values
    whose cotangents are in shares before they are summed."""

    def __init__(self, flow: _Flow, axis: str, reached: Collection[Value]) -> None:
        self.flow, self.axis = flow, axis
        alike = [v for v in reached if axis not in flow.families.varies(v)]
        self.to = {v: [e.to for e in flow.edges.get(v, ()) if axis in e.hands] for v in alike}
        begun = [v for v in alike if axis in flow.starts.get(v, NONE)]
        for v in reached:
            begun += [e.to for e in flow.edges.get(v, ()) if axis in e.makes]
        self.begun = list(dict.fromkeys(v for v in begun if v in self.to))
        self.ends = {v for v in alike if axis in flow.needs.get(v, NONE)}
        self.shared = self._behind(self.begun, ())

    def _behind(self, begun: Iterable[Value], cut: Collection[Value]) -> set[Value]:
        values = set(begun)
        left = list(values)
        while left:
            v = left.pop()
            for x in () if v in cut else self.to[v]:
                if x in self.to and x not in values:
                    values.add(x)
                    left.append(x)
        return values

    def summed(self) -> list[Value]:
        """Return the minimum cut that is next to the ends; `shared` is what is left in shares
        before it.

        By augmenting paths, shortest first (Edmonds and Karp 1972). A value has two nodes, in and
        out, with what a sum there costs between them.
        """
        if not self.shared & self.ends:
            return []
        inside = self.shared
        room = {v: self.flow.cost(v) for v in inside}
        onto: dict[Value, dict[Value, int]] = {v: {} for v in inside}  # flow on edges
        into: dict[Value, list[Value]] = {v: [] for v in inside}
        for v in inside:
            for x in self.to[v]:
                if x in inside and x not in onto[v]:
                    onto[v][x] = 0
                    into[x].append(v)
        used = dict.fromkeys(inside, 0)
        while path := self._path(room, used, onto, into):
            self._augment(path, room, used, onto)
        left = self._from_ends(room, used, onto, into)
        cut = [v for v in inside if (v, 1) in left and (v, 0) not in left]
        self.shared = self._behind(self.begun, cut)
        return [v for v in cut if v in self.shared]

    def _steps(
        self, node: _Node, room: _Room, used: _Room, onto: _Onto, into: _Into
    ) -> Iterator[_Node]:
        v, out = node
        if out:
            yield from ((x, 0) for x in onto[v])
            if used[v]:
                yield v, 0
        else:
            if used[v] < room[v]:
                yield v, 1
            yield from ((u, 1) for u in into[v] if onto[u][v])

    def _path(self, room: _Room, used: _Room, onto: _Onto, into: _Into) -> list[_Node]:
        first: list[_Node] = [(v, 0) for v in self.begun]
        came: dict[_Node, _Node | None] = dict.fromkeys(first)
        queue = deque(first)
        while queue:
            node = queue.popleft()
            if node[1] and node[0] in self.ends:
                path = [node]
                while (before := came[path[-1]]) is not None:
                    path.append(before)
                return path[::-1]
            for step in self._steps(node, room, used, onto, into):
                if step not in came:
                    came[step] = node
                    queue.append(step)
        return []

    @staticmethod
    def _augment(path: list[_Node], room: _Room, used: _Room, onto: _Onto) -> None:
        pairs = list(zip(path, path[1:]))

        def free(a: _Node, b: _Node) -> int:
            if a[0] is b[0]:
                return room[a[0]] - used[a[0]] if b[1] else used[a[0]]
            return _ONE**8 if a[1] else onto[b[0]][a[0]]

        much = min(free(a, b) for a, b in pairs)
        for a, b in pairs:
            if a[0] is b[0]:
                used[a[0]] += much if b[1] else -much
            elif a[1]:
                onto[a[0]][b[0]] += much
            else:
                onto[b[0]][a[0]] -= much

    def _from_ends(self, room: _Room, used: _Room, onto: _Onto, into: _Into) -> set[_Node]:
        """Return the nodes from which an end can still be reached."""
        back: dict[_Node, list[_Node]] = {}
        for v in room:
            for node in ((v, 0), (v, 1)):
                for step in self._steps(node, room, used, onto, into):
                    back.setdefault(step, []).append(node)
        nodes: set[_Node] = {(v, 1) for v in self.ends if v in room}
        left = list(nodes)
        while left:
            for node in back.get(left.pop(), ()):
                if node not in nodes:
                    nodes.add(node)
                    left.append(node)
        return nodes


_Node = tuple[Value, int]
_Room = dict[Value, int]
_Onto = dict[Value, dict[Value, int]]
_Into = dict[Value, list[Value]]
