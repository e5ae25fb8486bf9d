"""Code motion of reads: slices move behind an update of another part, so that nothing is copied.

Goes in: a Program. Comes out: the same, in which an update of x stands before the slices of x that
it does not write, and before ops on them that are only needed later; these now read the updated x.
An optimizer that gets views of one array, and writes them one by one, copies nothing.
Always holds: every value is what it was; no element is read that the update writes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import replace

from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import Module, Op, Region, Value, walk
from codegen.ops import Slice, Update
from codegen.symbolic import expr


def sink_reads(program: Module) -> Module:
    """Return the Program with updates in front of what they do not touch."""
    if not any(isinstance(op.kind, Update) for region in program.regions for op in walk(region)):
        return program
    return _SinkReads(program).run()


class _SinkReads(Rewriter):
    """Moves reads behind updates, region by region."""

    def rewritten(self, region: Region, shown: Sequence[Value]) -> tuple[Region, tuple[Value, ...]]:
        parts: dict[Value, list[Op]] = defaultdict(list)
        for op in region.ops:
            if isinstance(op.kind, Slice):
                parts[op.operands[0]].append(op)
        if any(isinstance(op.kind, Update) and op.operands[0] in parts for op in region.ops):
            region = region.with_ops(self.delayed(region, parts))
        return super().rewritten(region, shown)

    def delayed(self, region: Region, parts: dict[Value, list[Op]]) -> list[Op]:
        """Return the ops of a region in another order. parts: of each array, the slices of it."""
        ops = list(region.ops)
        for update in [op for op in ops if isinstance(op.kind, Update)]:
            x, y = update.operands[0], update.result
            beside = [s for s in parts.get(x, ()) if _are_disjoint(s, update)]
            if not beside:
                continue
            k = ops.index(update)
            late = self.late(ops, k)
            moved = dict.fromkeys(op for op in beside if op in late)
            results = {op.result for op in moved}
            for op in ops[:k]:
                if op in late and not results.isdisjoint(op.operands):
                    moved[op] = None
                    results.update(op.results)
            if not moved:
                continue
            first = [op for op in ops[:k] if op not in moved]
            behind = [replace(op, operands=(y,)) if op in beside else op
                      for op in ops[:k] if op in moved]
            parts[y] += [op for op in behind if op.operands == (y,)]
            ops = [*first, update, *behind, *ops[k + 1:]]
        return ops

    def late(self, ops: list[Op], k: int) -> set[Op]:
        """Return the inline ops before op k whose results are only read behind it, directly or by
        others of them."""
        early = {inner for op in ops[:k + 1] for region in op.regions for inner in walk(region)}
        early.update(ops[:k + 1])
        late: set[Op] = set()
        for op in reversed(ops[:k]):
            if op.kind.inline and not op.regions and all(
                use.op not in early or use.op in late
                for v in op.results for use in self.uses.get(v, ())
            ):
                late.add(op)
        return late


def _are_disjoint(part: Op, update: Op) -> bool:
    """Return whether a slice has no element that an update of the same array writes: along one dim,
    it ends before that begins, or begins behind its end."""
    read, write = part.kind, update.kind
    assert isinstance(read, Slice) and isinstance(write, Update)
    extents = update.operands[1].type.shape
    return any(
        s == t == 1 and (expr.nonneg(b - a - n) or expr.nonneg(a - b - m))
        for a, s, n, b, t, m in zip(read.start, read.step, read.shape,
                                    write.start, write.step, extents, strict=True))
