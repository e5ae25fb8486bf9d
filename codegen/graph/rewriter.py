"""Rewrite a Graph or a Program: one walk over all regions, and rules that replace ops.

Goes in: a module and rules. Comes out: the module in which each op is what the first rule that
applies to it emits, or itself; the same object if no rule applies.
Always holds: ops that only replaced ops needed are gone; what a rule emits in a Graph has a layout.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace

from codegen.graph.builder import Builder
from codegen.graph.layout_propagation import laid_out
from codegen.ir.graph import ArrayType, Module, Op, Region, Value, used_values
from codegen.ops import Control, Exchange, Feeding, Kernel, Kind, Relayout, Save, ShardMap
from codegen.ops.effects import Effect, Point

# A rule emits what replaces an op and returns True; or it emits nothing and returns False.
Rule = Callable[[Op, "Rewriter"], bool]


class Rewriter(Builder):
    """Rewrites regions op by op, the regions of an op before the op itself.

    defs: the op that defines a value, as it was or as it is emitted now. uses: the uses of a value
    in the module as it was. instead: by value that is gone, the value that its readers read now.
    gone: ops further on that another op has replaced. shard_maps: whether the walk enters them.
    is_global: whether the walk is in a region of global arrays.
    """

    def __init__(self, module: Module, *rules: Rule, shard_maps: bool = True) -> None:
        super().__init__()
        self.module, self.rules, self.shard_maps = module, rules, shard_maps
        self.defs: dict[Value, Op] = dict(module.def_use.defs)
        self.uses = module.def_use.uses
        self.instead: dict[Value, Value] = {}
        self.gone: set[Op] = set()
        self.is_global = False

    def run(self) -> Module:
        """Return the module rewritten; the same object if nothing changed."""
        module, shown = self.module, [o.value for o in self.module.outputs]
        inputs = tuple(i.mapped(self.region) for i in module.inputs)
        self.is_global = module.level == "graph"
        body, values = self.rewritten(module.body, shown)
        if (inputs, body) == (module.inputs, module.body):
            return module
        outputs = tuple(o if o.value is v else replace(o, value=v)
                        for o, v in zip(module.outputs, values, strict=True))
        return replace(module, inputs=inputs, body=body, outputs=outputs)

    def region(self, region: Region) -> Region:
        """Return a region rewritten; the same object if nothing in it changed."""
        return self.rewritten(region, ())[0]

    def rewritten(
        self, region: Region, shown: Sequence[Value]
    ) -> tuple[Region, tuple[Value, ...]]:
        """Return a region rewritten, and what stands for the values `shown` at its end."""
        with self.inside() as ops:
            for op in region.ops:
                if op not in self.gone:
                    self.op(self.current(op))
            results, values = self.ends(region.results), self.ends(shown)
        new = region if results == region.results else replace(region, results=results)
        new = new.with_ops(ops)
        if new is not region:
            new = new.with_ops(self.without_dead(ops, (*results, *values)))
        return new, values

    def op(self, op: Op) -> None:
        """Emit what an op becomes. Its regions are rewritten, its operands are those of now."""
        self.name, self.place = op.results[0].name if op.results else "", op.place
        if not any(rule(op, self) for rule in self.rules):
            self.keep(op)

    def ends(self, values: Sequence[Value]) -> tuple[Value, ...]:
        """Return what stands for the results of a region, or for outputs, at its end."""
        return self.now(values)

    # ---- for rules -------------------------------------------------------------------------------

    def now(self, values: Iterable[Value]) -> tuple[Value, ...]:
        """Return values with those that are gone replaced."""
        return tuple(self.instead.get(v, v) for v in values)

    def only_reader(self, value: Value) -> Op | None:
        """Return the op that reads a value if it stands in the value's region and is its only use;
        else None."""
        uses = self.uses.get(value, ())
        alone = len(uses) == 1 and uses[0].region is self.module.def_use.regions.get(value)
        return uses[0].op if alone else None

    def keep(self, op: Op) -> Op:
        """Emit an op as it is."""
        self.defs.update(dict.fromkeys(op.results, op))
        self.ops.append(op)
        return op

    def emit(self, kind: Kind, operands: Sequence[Value] = (), name: str = "") -> Value:
        """Return the result of a new op that has one; it is called by `name`, or as `self.name`
        says."""
        outside, self.name = self.name, name or self.name
        result = super().emit(kind, operands)
        self.name = outside
        return result

    def add(
        self, kind: Kind, operands: Sequence[Value] = (), results: Sequence[Value] = (),
        regions: Sequence[Region] = (),
    ) -> Op:
        return self.keep(Op(kind, tuple(operands), tuple(results), tuple(regions), self.place))

    def typed(self, kind: Kind, operands: Sequence[Value]) -> ArrayType:
        t = super().typed(kind, operands)
        return laid_out(kind, [v.type for v in operands], t) if self.is_global else t

    # ---- the walk --------------------------------------------------------------------------------

    def current(self, op: Op) -> Op:
        """Return an op with its regions rewritten, on the operands of now."""
        operands = self.now(op.operands)
        if operands != op.operands:
            op = replace(op, operands=operands)
        if not isinstance(op.kind, ShardMap):
            return op.mapped(self.region)
        if self.shard_maps:
            outside, self.is_global = self.is_global, False
            op = op.mapped(self.region)
            self.is_global = outside
        return op

    def without_dead(self, ops: Sequence[Op], ends: Iterable[Value]) -> list[Op]:
        """Return ops without those that nobody reads any more, or that a rule emitted in vain."""
        used = Counter(ends)
        used.update(used_values(Region((), tuple(ops), ())))
        left = []
        for op in reversed(ops):
            before = any(v in self.uses for v in op.results)
            emitted = not any(v in self.module.def_use.defs for v in op.results)
            if (before or emitted) and is_pure(op) and not any(used[v] for v in op.results):
                used.subtract(op.operands)
            else:
                left.append(op)
        return left[::-1]


def is_pure(op: Op) -> bool:
    """Return whether an op does nothing but compute its results from its operands, on each rank or
    on all of them."""
    return isinstance(op.kind, Relayout) or bool(op.results) and not op.regions and not isinstance(
        op.kind, Control | Effect | Exchange | Feeding | Kernel | Point | Save)
