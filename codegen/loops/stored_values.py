"""Which values live in memory, and which are computed where they are used.

Goes in: a Program. Comes out: the set of stored values. Everything else is a view (an index map) or
an element-wise value that one consumer's loop computes on the way: chains become one loop.
Always holds: a value that is not stored reads nothing that may be overwritten before its consumer.
"""

from __future__ import annotations

from collections.abc import Iterator

from codegen.graph.image_constants import image_constants
from codegen.ir.accesses import MemoryAccess
from codegen.ir.graph import Module, Op, Region, Use, Value
from codegen.ir.indexing import (
    loads,
    long_loops,
    loop_vars,
    positions,
    ravel,
    rows_kept,
)
from codegen.ir.plan import Load
from codegen.loops.resolver import Resolver
from codegen.ops import (
    Branch,
    Broadcast,
    Kernel,
    Loop,
    Map,
    MatMul,
    Reshape,
    Slice,
    Transpose,
    Update,
)
from codegen.ops.sources import Source
from codegen.ops.views import View
from codegen.target import TARGET


def stored_values(program: Module) -> frozenset[Value]:
    """Return the values that need memory of their own."""
    return frozenset(_Storing(program).run())


class _Storing:
    def __init__(self, program: Module) -> None:
        self.program = program
        def_use = program.def_use
        self.defs, self.uses, self.order = def_use.defs, def_use.uses, def_use.order
        self.regions = def_use.regions
        self.image = set(image_constants(program))
        self.dear: set[Value] = set()  # not stored, and not cheap to compute again
        self.stored: set[Value] = {i.value for i in program.inputs}

    def run(self) -> set[Value]:
        for region in self.program.regions:
            self.keep(region)
        self.stored.update(o.value for o in self.program.outputs)
        for op in self.order:
            self.demand(op)
        depth: dict[Value, int] = {}  # of the expression that stands for a value not stored
        for op in self.order:
            if not op.kind.inline:
                continue
            below = max((depth.get(x, 0) for x in op.operands), default=0)
            if not self.dear.isdisjoint(op.operands) or (
                isinstance(op.kind, Map) and not op.kind.is_cheap()
            ):
                self.dear.update(op.results)
            for value in op.results:
                deep = below >= TARGET.deepest_expression
                if value not in self.stored and (deep or self.shared(op, value)):
                    self.stored.add(value)
                depth[value] = 0 if value in self.stored else below + 1
            self.dear.difference_update(self.stored.intersection(op.results))
        for op in self.order:
            is_loop = isinstance(op.kind, Loop)
            for x in op.operands if is_loop else op.operands[: 1 if op.kind.in_place else 0]:
                self.keep_old_views(op, x)
        for op in self.order:
            if op.kind.in_place and len(op.operands) > 1:
                self.separate(op)
        return self.stored

    # ---- facts -----------------------------------------------------------------------------------

    def keep(self, region: Region) -> None:
        """Store what regions take and give, and what is not computed where it is read."""
        self.stored.update(region.args, region.results)
        for op in region.ops:
            if not op.kind.inline:
                self.stored.update(op.results)
            for inner in op.regions:
                self.keep(inner)

    def demand(self, op: Op) -> None:
        """Store operands that must lie in memory for an op to work on them."""
        if isinstance(op.kind, Branch):
            self.stored.update(op.operands)
        elif op.kind.reads == "points" and op.kind.in_place:
            self.stored.add(op.operands[0])
        elif op.kind.inline or op.kind.reads == "points":
            return
        elif op.kind.reads == "boxes":
            wanted = [self.once(v) if isinstance(op.kind, MatMul) else v for v in op.operands]
            self.stored.update(
                v for v in wanted if not self.is_plain_view(v, image=not op.kind.from_buffers))
        elif isinstance(op.kind, Kernel):  # what its results begin as is computed into them
            read = {x for how, x in op.kind.args if how == "in"}
            self.stored.update(v for k, v in enumerate(op.operands)
                               if k in read and v.type.shape and not self.is_in_a_row(v))
        else:
            self.stored.update(v for v in op.operands if v not in self.image)

    def once(self, value: Value) -> Value:
        """Return the matrices of a batch without repeats and transposes: libraries read one matrix
        many times, and either way."""
        op = self.defs.get(value)
        while value not in self.stored and op is not None and (
            (isinstance(op.kind, Broadcast) and op.kind.leading(op))
            or (isinstance(op.kind, Transpose) and op.kind.turns_matrices)
        ):
            (value,) = op.operands
            op = self.defs.get(value)
        return value

    def is_plain_view(self, value: Value, image: bool) -> bool:
        """Return whether a value is a chain of slices and transposes of something that is stored
        anyway, in any shape; a row may be given several dims. With `image`, also of a constant that
        lies there."""
        while value not in self.stored:
            if value in self.image:
                return image
            op = self.defs[value]
            if isinstance(op.kind, Reshape):
                small = [e for e in op.result.type.shape if e != 1]
                under = [e for e in op.operands[0].type.shape if e != 1]
                if small != under and len(under) > 1:
                    return self.is_whole(op.operands[0], image)
            elif isinstance(op.kind, Map) and self.leaves(value):
                self.stored.add(value)
                return True
            elif not isinstance(op.kind, (Slice, Transpose)):
                return False
            value = op.operands[0]
        return True

    def is_whole(self, value: Value, image: bool) -> bool:
        """Return whether a value is, in any shape, all of a stored one, or with `image` of a
        constant there."""
        while value not in self.stored and isinstance(self.defs[value].kind, Reshape):
            value = self.defs[value].operands[0]
        return value in self.stored or (image and value in self.image)

    def is_in_a_row(self, value: Value) -> bool:
        """Return whether its elements lie one after the other in a constant of the image."""
        base = value
        while base not in self.image:
            op = self.defs.get(base)
            if base in self.stored or op is None or not isinstance(op.kind, (Reshape, Slice)):
                return False
            (base,) = op.operands
        shape = value.type.shape
        loops = loop_vars(shape)
        node = Resolver(self.program, self.stored).node(value, positions(loops))
        return isinstance(node, Load) and (
            MemoryAccess(node.buffer, node.offset, long_loops(loops)).contiguous_from is not None)

    def consumers(self, value: Value) -> Iterator[Use]:
        """Yield the uses that really read a value: through views, to whoever is stored."""
        for use in self.uses.get(value, ()):
            op = use.op
            if op is not None and isinstance(op.kind, View) and op.result not in self.stored:
                yield from self.consumers(op.result)
            else:
                yield use

    def shared(self, op: Op, value: Value) -> bool:
        """Return whether an element-wise value is stored: it is read more than once, in another
        region, or stretched."""
        if isinstance(op.kind, (View, Source)):
            return False
        uses = list(self.consumers(value))
        cheap = isinstance(op.kind, Map) and value not in self.dear
        if cheap and value.type.ndim == 0 and all(
            isinstance(self.defs[v].kind, Source) for v in op.operands if v in self.defs
        ) and all(v in self.defs for v in op.operands):
            return False
        if self.leaves(value):
            return True
        if len(uses) > 1:
            return not (cheap and self.spread(op))
        return not cheap and self.stretched(value)

    def leaves(self, value: Value) -> bool:
        """Return whether it is read in another region than where it is computed."""
        here = self.regions[value]
        return any(u.region is not here for u in self.consumers(value))

    def spread(self, op: Op) -> bool:
        """Return whether an op combines stretched arrays only, as x[:, None] - x: its result is
        larger than they are."""
        makers = [self.defs.get(v) for v in op.operands]
        return all(m and isinstance(m.kind, (Broadcast, Source)) for m in makers) and any(
            m.operands[0].type.shape != m.result.type.shape
            for m in makers if m and isinstance(m.kind, Broadcast)
        )

    def stretched(self, value: Value) -> bool:
        """Return whether an element is read at several points, perhaps through views."""
        ops = [u.op for u in self.uses.get(value, ()) if u.op is not None]
        return any(
            op.result.type.shape != value.type.shape
            if op.kind.rereads
            else isinstance(op.kind, View) and self.stretched(op.result)
            for op in ops
        )

    # ---- what is overwritten ---------------------------------------------------------------------

    def keep_old_views(self, op: Op, x: Value) -> None:
        """Store a view made before x is overwritten and read afterwards, as a copy of the part."""
        positions = self.uses_position(op)
        for use in self.uses.get(x, ()):
            if use.op is None or use.op is op or not use.op.kind.inline:
                continue
            value = use.op.result
            if value in self.stored or use.position > positions:
                continue
            if any(p > positions for p in self.read_positions(value)):
                self.stored.add(value)

    def uses_position(self, op: Op) -> int:
        return next(u.position for u in self.uses[op.operands[0]] if u.op is op)

    def read_positions(self, value: Value) -> Iterator[int]:
        for use in self.uses.get(value, ()):
            if use.op is not None and use.op.kind.inline and use.op.result not in self.stored:
                yield from self.read_positions(use.op.result)
            else:
                yield use.position

    def separate(self, op: Op) -> None:
        """Store the value written into x if it reads x at other places than those it writes."""
        x, v = op.operands[0], op.operands[1]
        if v in self.stored:
            return
        resolver = Resolver(self.program, self.stored)
        index = positions(loop_vars(v.type.shape))
        node = resolver.node(v, index)
        if isinstance(op.kind, Update):
            if all(e == 1 for e in v.type.shape):  # one element is read before it is written
                return
            target = ravel(resolver.within(op.kind, index), x.type.shape)
            kept = rows_kept(node, x, target, x.type.shape, op.kind.step)
            if kept == 0 or (kept and not self.reshaped(v, x)):
                return
        if any(load.buffer is x for load in loads(node)):
            self.stored.add(v)

    def reshaped(self, v: Value, x: Value, below: bool = False) -> bool:
        """Return whether v shows x through a reshape: what one row reads may run on into another,
        farther than distances in memory tell where the extent of a row is not known."""
        if v is x:
            return below
        op = self.defs.get(v)
        if op is None or v in self.stored or not op.kind.inline:
            return False
        below = below or isinstance(op.kind, Reshape)
        return any(self.reshaped(under, x, below) for under in op.operands)
