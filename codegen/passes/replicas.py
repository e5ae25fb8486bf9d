"""Results of shard_maps that are equal on all ranks along an axis, as their layouts say: are they?

Goes in: a Graph. Comes out: the same, or a MatchingError where a result is what each rank makes of
its index or of its own shard, and nothing combines it over the axis: then it varies, as far as
the program says. What other ranks have sent may make it equal again: that nobody knows at build.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.errors import MatchingError, Place
from codegen.ir import Module, Op, Value, layout_text, walk
from codegen.printer import axes_text
from codegen.variance import Received, Variance


def check_replicas(graph: Module) -> Module:
    """Raises MatchingError, with the line and what makes the ranks differ."""
    for op in walk(graph.body):
        if op.kind == "shard_map" and not op.attrs.get("sure"):
            _Results(graph, op).check()
    return graph


class _Results:
    """Of one shard_map."""

    def __init__(self, graph: Module, op: Op) -> None:
        self.graph, self.op = graph, op
        (self.body,) = op.regions
        layouts = zip(self.body.args, op.attrs["in_layouts"], strict=True)
        split = {v: [a for entry in layout for a in entry] for v, layout in layouts}
        self.varies, self.received = Variance(graph.mesh, split), Received(graph.mesh)
        self.varies.region(self.body)
        self.received.region(self.body)
        self.made = {v: inner for inner in walk(self.body) for v in inner.results}
        self.ends = {
            arg: (loop.operands[k], region.results[k] if region is loop.regions[-1] else arg)
            for loop in walk(self.body) if loop.kind == "loop"
            for region in loop.regions for k, arg in enumerate(region.args)
        }  # fmt: skip

    def check(self) -> None:
        for value, layout in zip(self.body.results, self.op.attrs["out_layouts"], strict=True):
            split = {a for entry in layout for a in entry}
            apart = self.varies.values([value]) - self.received.values([value]) - split
            axis = next((a for a in self.graph.mesh.names if a in apart), None)
            if axis is not None:
                raise self.refused(value, layout_text(layout), axis)

    def refused(self, value: Value, layout: str, axis: str) -> MatchingError:
        made = self.made.get(value)
        along, cause = axes_text([axis]), self.cause(value, axis)
        what = f'the result of "{self.op.results[self.body.results.index(value)].name}"'
        dims, name = value.type.ndim, f'"{axis}"'
        every = f"out_layouts=({name}{', …' if dims > 1 else ','})"
        place = (made.place if made else None) or self.op.place
        elsewhere = cause[1] is not None and str(cause[1]) != str(place)
        return MatchingError(
            f"{what} differs between the ranks along {along}, and its layout says that it does not",
            place=place,
            also=((f"{cause[0]} here:", cause[1]),) if elsewhere and cause[1] else (),
            expected=f"one value on all ranks along {along}, as out_layouts={layout} says",
            found=f"{cause[0]}, and nothing combines it over {along}",
            remedy=f"spmd.psum(value, {name}) combines what the ranks have; "
            f"spmd.pbroadcast(value, {name}) takes the first rank's; "
            f"{every if dims else f'value[None] with {every}'} returns every rank's",
        )

    def cause(self, value: Value, axis: str) -> tuple[str, Place | None]:
        """Why a value varies over an axis: what the index, or an argument, goes into."""
        seen: set[Value] = set()
        left = [value]
        found: Place | None = None
        while left:
            value = left.pop()
            if value in seen or axis not in self.varies.values([value]):
                continue
            seen.add(value)
            op = self.made.get(value)
            if op is None and value in self.body.args:
                return f'argument "{value.name}", which is split over "{axis}", goes in', found
            before = self.ends.get(value, ()) if op is None else tuple(self.before(op, value))
            found = op.place if op else found
            if op is not None and not any(axis in self.varies.values([v]) for v in before):
                break
            left += before
        return f'the index along "{axis}" goes in', found

    def before(self, op: Op, value: Value) -> Iterator[Value]:
        """What a result follows from."""
        k = op.results.index(value)
        if op.kind in ("loop", "branch"):
            inner = op.regions[-1:] if op.kind == "loop" else op.regions
            yield from (region.results[k] for region in inner)
            yield from op.regions[0].results if op.kind == "loop" and len(op.regions) > 1 else ()
        yield from op.operands
