"""Refuses a shard_map whose result differs between ranks along an axis its layout does not name.

Goes in: a Graph. Comes out: the same, or a MatchingError where a result, or what is sent to a feed,
is what each rank makes of its index or its own shard, and nothing combines it over the axis: then
it varies, as far as the program says. What other ranks have sent may make it equal again.
"""

from __future__ import annotations

from codegen.errors import MatchingError
from codegen.graph.variance import InBody
from codegen.ir.graph import Module, Op, Value, layout_text, walk
from codegen.ir.graph_text import axes_text
from codegen.mesh import Layout
from codegen.ops import Send, ShardMap


def check_replicas(graph: Module) -> Module:
    """Return the Graph unchanged. Raises MatchingError, with the line and with what makes the ranks
    differ."""
    for op in walk(graph.body):
        if isinstance(op.kind, ShardMap):
            results = _Results(graph, op, op.kind)
            results.check_sent()
            if not op.kind.sure:
                results.check()
    return graph


class _Results:
    """Checks the results and the sends of one shard_map."""

    def __init__(self, graph: Module, op: Op, call: ShardMap) -> None:
        self.graph, self.op, self.call = graph, op, call
        (self.body,) = op.regions
        self.known = InBody(graph.mesh, self.body, call.in_layouts)

    def check(self) -> None:
        for value, layout in zip(self.body.results, self.call.out_layouts, strict=True):
            if axis := self.differs(value, layout):
                raise self.refused(value, layout_text(layout), axis)

    def check_sent(self) -> None:
        for op in walk(self.body):
            if isinstance(op.kind, Send):
                for value, layout in zip(op.operands, op.kind.layouts, strict=True):
                    if axis := self.differs(value, layout):
                        raise self.refused_send(op, op.kind, value, axis)

    def differs(self, value: Value, layout: Layout) -> str:
        """Return an axis that the layout does not name and along which the value surely varies, or
        ""."""
        apart = self.known.surely(value) - {a for entry in layout for a in entry}
        return next((a for a in self.graph.mesh.names if a in apart), "")

    def refused_send(self, op: Op, send: Send, value: Value, axis: str) -> MatchingError:
        along, cause = axes_text([axis]), self.known.cause(value, axis)
        return MatchingError(
            f'what is sent to feed "{send.feed}" differs between the ranks along {along}, which '
            "answer for the same rows", place=op.place,
            also=((f"{cause[0]} here:", cause[1]),) if cause[1] else (),
            expected=f"one value on all ranks along {along}, over which the fields of the feed do "
            "not all split the batch",
            found=f"{cause[0]}, and nothing combines it over {along}",
            remedy=f'spmd.psum(value, "{axis}") combines what the ranks have; '
            f'spmd.pbroadcast(value, "{axis}") takes the first rank\'s',
        )

    def refused(self, value: Value, layout: str, axis: str) -> MatchingError:
        maker = self.known.made.get(value)
        along, cause = axes_text([axis]), self.known.cause(value, axis)
        title = f'the result of "{self.op.results[self.body.results.index(value)].name}"'
        dims, name = value.type.ndim, f'"{axis}"'
        every = f"out_layouts=({name}{', …' if dims > 1 else ','})"
        place = (maker.place if maker else None) or self.op.place
        elsewhere = cause[1] is not None and str(cause[1]) != str(place)
        return MatchingError(
            f"{title} differs between the ranks along {along}, "
            f"and its layout says that it does not",
            place=place,
            also=((f"{cause[0]} here:", cause[1]),) if elsewhere and cause[1] else (),
            expected=f"one value on all ranks along {along}, as out_layouts={layout} says",
            found=f"{cause[0]}, and nothing combines it over {along}",
            remedy=f"spmd.psum(value, {name}) combines what the ranks have; "
            f"spmd.pbroadcast(value, {name}) takes the first rank's; "
            f"{every if dims else f'value[None] with {every}'} returns every rank's",
        )
