"""Forward-mode derivatives: each op is followed by ops that compute the tangents of its results.

These are the transpose of the op's reverse-mode rule; a loop also carries the tangents of its
carried values. In: recorded ops, and tangents of their inputs. Out: the same ops, with more in
between, and the tangents of their results. Always holds: no iteration keeps values for a later
pass; recorded ops name the same values as before.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from codegen.ir.graph import Op, Value
from codegen.ops import Branch, Defined, Exchange, Loop, ShardMap
from codegen.trace.context import Context
from codegen.trace.control.regions import laid_as, plain_type
from codegen.trace.derive.recompute import saved_by
from codegen.trace.derive.reverse import Reverse, differentiable, read_by


def can(context: Context, recorded: Iterable[Op]) -> bool:
    """Return whether ops can be differentiated forwards: not yet where ranks exchange; there the
    reverse pass is transposed."""
    return not context.rank_view and not any(_exchanges(op) for op in recorded)


def _exchanges(op: Op) -> bool:
    if isinstance(op.kind, Defined) and op.kind.back is not None:
        return False
    return isinstance(op.kind, (Exchange, ShardMap)) or any(
        _exchanges(inner) for region in op.regions for inner in region.ops)


class Forward:
    """Forward-mode derivatives of ops. changes: the tangents of values, where they are not zero."""

    def __init__(self, context: Context, changes: Mapping[Value, Value]) -> None:
        self.context, self.changes = context, dict(changes)
        self.reverse = Reverse(context, changes)

    def of(self, value: Value) -> Value:
        change = self.changes.get(value)
        change = self.reverse.zeros(value.type) if change is None else change
        return laid_as(self.context, change, value.type.layout)

    def through(self, recorded: Sequence[Op], outs: Iterable[Value]) -> None:
        """Add the ops to the open block, each followed by the tangents of its results, if tangents
        of the outs follow from these."""
        self.reverse.mark(recorded)
        self.wanted = set(outs)
        for op in reversed(recorded):
            if not op.kind.flat and self.wanted.intersection(op.results):
                self.wanted.update(read_by(op))
        for op in recorded:
            with self.context.standing_at(op.place):
                if (op.kind.flat or not self.wanted.intersection(op.results)
                        or not any(v in self.changes for v in read_by(op))):
                    self._add(op)
                elif isinstance(op.kind, Loop):
                    self._loop(op)
                elif isinstance(op.kind, Branch) or (
                    isinstance(op.kind, Defined) and op.kind.back is None
                ):
                    self._grown(op)
                else:
                    self._add(op)
                    self._transposed(op)

    def _add(self, op: Op) -> None:
        self.context.blocks[-1].ops.append(op)

    def _transposed(self, op: Op) -> None:
        """Compute the tangents of an op's results from its reverse-mode rule: the rule is linear in
        the cotangents, and its transpose is the forward-mode derivative."""
        context, ops = self.context, self.context.blocks[-1].ops
        results = [v for v in op.results if v in self.reverse.active & self.wanted
                   and differentiable(v.type)]
        begins = {v: self.reverse.zeros(v.type) for v in results}
        back = Reverse(context, {v for v in read_by(op) if v in self.changes} | {*results})
        back.cotangents.update(begins)
        first = len(ops)
        context.recordings += 1
        try:
            back.pull([op])
        finally:
            context.recordings -= 1
        transpose_ops = ops[first:]
        again = Reverse(context, begins.values())
        again.mark(transpose_ops)
        for v, part in list(back.cotangents.items()):
            if part in again.active and v in self.changes:
                again.add(part, self.changes[v])
        again.pull(transpose_ops)
        for v, begin in begins.items():
            if (change := again.taken(begin)) is not None:
                self.changes[v] = change

    def _grown(self, op: Op) -> None:
        """Emit a branch, or a function that recomputes for its derivative, with the tangents of its
        results as further results."""
        context, kind = self.context, op.kind
        own = len(op.results) - saved_by(op)  # what is kept for a way back stays last
        moving = [k for k, v in enumerate(op.results) if v in self.reverse.active]
        regions = []
        for region in op.regions:
            with context.block() as block:
                inner = self._inside({})
                inner.through(region.ops, region.results)
                ends = [laid_as(context, inner.of(region.results[k]), op.results[k].type.layout)
                        for k in moving]
                regions.append(block.close([*region.results[:own], *ends, *region.results[own:]]))
        types = [plain_type(op.results[k]) for k in moving]
        results = [Value("d_" + op.results[k].name, t) for k, t in zip(moving, types)]
        read = [self.changes[v] for v in op.operands if v in self.changes]
        operands = (*op.operands, *read) if isinstance(kind, Defined) else op.operands
        assert isinstance(kind, (Branch, Defined))
        all_types = (*kind.types[:own], *types, *kind.types[own:])
        self._add(replace(op, kind=kind.but(types=all_types), operands=operands,
                          results=(*op.results[:own], *results, *op.results[own:]),
                          regions=tuple(regions)))
        self.changes.update(zip((op.results[k] for k in moving), results))

    def _loop(self, op: Op) -> None:
        context, body = self.context, op.regions[-1]
        moving = [k for k, a in enumerate(body.args) if a in self.reverse.active]
        begins = [self.of(op.operands[k]) for k in moving]
        types = [plain_type(body.args[k]) for k in moving]
        names = [body.args[k].name for k in moving]
        begins = [laid_as(context, v, t.layout) for v, t in zip(begins, types)]
        with context.block(types, ["d_" + n for n in names]) as block:
            inner = self._inside(dict(zip((body.args[k] for k in moving), block.args)))
            inner.through(body.ops, body.results)
            ends = [laid_as(context, inner.of(body.results[k]), t.layout)
                    for k, t in zip(moving, types)]
            changes = block.close(ends)
        grown = replace(changes, args=(*body.args, *changes.args),
                        results=(*body.results, *changes.results))
        tests = [replace(r, args=(*r.args, *(Value("d_" + n, t) for n, t in zip(names, types))))
                 for r in op.regions[:-1]]
        results = [Value("d_" + op.results[k].name, t) for k, t in zip(moving, types)]
        self._add(replace(op, operands=(*op.operands, *begins), regions=(*tests, grown),
                          results=(*op.results, *results)))
        self.changes.update(zip((op.results[k] for k in moving), results))

    def _inside(self, more: Mapping[Value, Value]) -> Forward:
        return Forward(self.context, self.changes | dict(more))
