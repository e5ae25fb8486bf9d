"""The axes over which values of a rank's view vary, while it is captured.

A value that an open loop carries may vary over more axes in later iterations. Until the loop ends,
the axes of its initial value are assumed; they are checked when the shard_map ends.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from codegen.errors import UnsupportedError
from codegen.graph.variance import NONE, Axes, Families
from codegen.ir.graph import Op, Region, Value, walk
from codegen.mesh import Layout
from codegen.ops import Kind, Loop, Reshape
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array, wrap
from codegen.trace.context import Block, Context
from codegen.trace.number import expr_of
from codegen.trace.ranks.communicate import members
from codegen.trace.view import View
from codegen.user import pytree


def pvary(x: Any, axis: Any) -> Any:
    """Return x, marked as different on each rank along the axis (or axes): an array, or a tree.

    It only matters for derivatives. A value that is the same on all ranks has one gradient, a sum
    over the ranks; one that varies has its own on each rank. So a loop that begins with one w for
    all, and trains another on each rank, begins with pvary(w, axis). As jax.lax.pvary.

    >>> pvary(x, "r")
    [0.], [1.], [2.], [3.]
    """
    context, axes = members(axis, "pvary")

    def mark_leaf(leaf: Any) -> Array:
        array = as_array(leaf)
        value = array.read()
        own = context.emit_one(Reshape(value.type.shape), value)
        context.varying[own] = frozenset(axes)
        return wrap(context, own, array.weak, array.scalar)

    return pytree.map_tree(mark_leaf, x)


def axes_in(layout: Layout | None) -> Axes:
    return frozenset(a for entry in layout or () for a in entry)


def families(context: Context) -> Families:
    """Return the axes over which the values computed so far in the open regions vary. Ops walked in
    an earlier call, and unchanged since, are not walked again."""
    if context.families is None:
        context.families = _Walked(Families(context.mesh, {}, context.varying))
    walked: _Walked = context.families
    walked.follow(context)
    return walked.variance.copied()


class _Walked:
    """The variance of the ops of the open blocks that were walked. annotated: the values whose axes
    the user had given by then (pvary)."""

    def __init__(self, variance: Families) -> None:
        self.variance = variance
        self.blocks: list[tuple[Block, list[Op]]] = []
        self.annotated: set[Value] = set()

    def follow(self, context: Context) -> None:
        """Walk the new ops in the open blocks, and the ops behind any that changed."""
        variance, before = self.variance, self.blocks
        split: dict[Value, Iterable[str]] = dict(context.split)
        for captured in context.captured:
            split |= {v: axes_in(x.type.layout) for x, v in captured.items()}
        variance.of.update((v, frozenset(axes) - variance.alone) for v, axes in split.items())
        entering = {arg: leaf for loop in context.loops for arg, *leaf in loop.entering()}
        news = context.varying.keys() - self.annotated
        self.annotated, self.blocks = {*context.varying}, []
        same = True
        for k, block in enumerate(context.blocks):
            old = before[k][1] if same and k < len(before) and before[k][0] is block else None
            if old is None or block.ops[: len(old)] != old:
                start, same = 0, False
            else:
                start = next((i for i, op in enumerate(old) if news.intersection(op.results)),
                             len(old)) if news else len(old)
                same = start == len(old)
            for arg in entering.keys() & block.args if not start else ():
                context.assumed[arg] = variance.of[arg] = _begun(variance, *entering[arg])
            for op in block.ops[start:]:
                variance.op(op)
            self.blocks.append((block, list(block.ops)))


def _begun(variance: Families, content: Any, seen: View) -> Axes:
    """Return the axes over which the initial value of a loop's variable varies: a value, seen
    through a view, or a number."""
    steps = variance.exprs(e for step in seen if isinstance(step, Kind) for e in step.exprs())
    if isinstance(content, Value):
        layout = content.type.layout
        return steps | (variance.varies(content) if layout is None else axes_in(layout))
    e = expr_of(content)
    return steps | (NONE if e is None else variance.expr(e))


def check(context: Context, region: Region, argument_axes: Mapping[Value, Iterable[str]]) -> None:
    """Raise UnsupportedError where a loop of this region carries a value that varies over more axes
    than was assumed when a gradient was taken in it."""
    if not context.assumed:
        return
    variance = Families(context.mesh, argument_axes, context.varying)
    variance.region(region)
    for op in walk(region):
        if not isinstance(op.kind, Loop):
            continue
        read = _read([Region((), (op,), ())])
        for arg in op.regions[-1].args:
            if arg not in read:
                continue
            if more := variance.varies(arg) - context.assumed.get(arg, variance.varies(arg)):
                axes = ", ".join(sorted(more))
                raise UnsupportedError(
                    f'"{arg.name}" begins the same on all ranks along {axes}, and differs after a '
                    "turn of this loop, in which a gradient is taken", place=op.place,
                    expected="the same in every turn: the gradient by what ranks have alike is a "
                    "sum over them", found=f"another {arg.name} on each rank",
                    remedy=f'{arg.name} = spmd.pvary({arg.name}, "{sorted(more)[0]}") before the '
                    "loop, where each rank has its own; spmd.psum or pmean of what changes it, "
                    "where it is to stay one")


def _read(regions: Iterable[Region]) -> set[Value]:
    """Return the values that the ops of regions read, or return in another position; not those that
    loops only carry until a name is bound anew."""
    read: set[Value] = set()
    for op in (op for region in regions for op in reversed(region.ops)):
        read |= _read(op.regions)
        if not isinstance(op.kind, Loop):
            read.update(op.operands, *(inner.results for inner in op.regions))
            continue
        *tests, body = op.regions
        read.update(*(test.results for test in tests))
        read.update(v for a, v in zip(body.args, body.results) if v is not a)
        count = op.kind.turns()
        sure = not tests and count is not None and expr.nonneg(count - 1)
        for k, v in enumerate(op.operands):
            same = [inner.args[k] for inner in op.regions] + ([] if sure else [op.results[k]])
            if read.intersection(same):
                read.add(v)
    return read
