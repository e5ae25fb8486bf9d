"""What of a rank's view varies over which axes, while it is captured.

A loop that is open may carry what becomes another thing in its later turns. What is asked before
its end counts with what it begins with, and is compared when the shard_map ends.
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

    It only matters for derivatives. What is the same on all ranks has one gradient, the sum of what
    ranks find; what varies has one on each rank. So a loop that begins with one w for all, and
    trains another on each rank, begins with pvary(w, axis). As jax.lax.pvary.

    >>> pvary(x, "r")
    [0.], [1.], [2.], [3.]
    """
    context, axes = members(axis, "pvary")

    def one(leaf: Any) -> Array:
        array = as_array(leaf)
        value = array.read()
        own = context.emit_one(Reshape(value.type.shape), value)
        context.varying[own] = frozenset(axes)
        return wrap(context, own, array.weak, array.scalar)

    return pytree.map_tree(one, x)


def axes_in(layout: Layout | None) -> Axes:
    return frozenset(a for entry in layout or () for a in entry)


def families(context: Context) -> Families:
    """Return over which axes the values computed so far in the open regions vary. What was walked
    for the last call, and still stands so, is not walked again."""
    if context.families is None:
        context.families = _Walked(Families(context.mesh, {}, context.varying))
    walked: _Walked = context.families
    walked.follow(context)
    return walked.found.copied()


class _Walked:
    """Which ops of the open blocks are in `found`. said: values of which it was said by then over
    what they vary."""

    def __init__(self, found: Families) -> None:
        self.found = found
        self.blocks: list[tuple[Block, list[Op]]] = []
        self.said: set[Value] = set()

    def follow(self, context: Context) -> None:
        """Walk the new ops in the open blocks, and the ops behind any that changed."""
        found, before = self.found, self.blocks
        split: dict[Value, Iterable[str]] = dict(context.split)
        for captured in context.captured:
            split |= {v: axes_in(x.type.layout) for x, v in captured.items()}
        found.of.update((v, frozenset(axes) - found.alone) for v, axes in split.items())
        entering = {arg: leaf for loop in context.loops for arg, *leaf in loop.entering()}
        news, self.said, self.blocks = context.varying.keys() - self.said, {*context.varying}, []
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
                context.assumed[arg] = found.of[arg] = _begun(found, *entering[arg])
            for op in block.ops[start:]:
                found.op(op)
            self.blocks.append((block, list(block.ops)))


def _begun(found: Families, content: Any, seen: View) -> Axes:
    """Return the axes over which a loop's first content varies: of a value and how it is seen, or a
    number."""
    steps = found.exprs(e for step in seen if isinstance(step, Kind) for e in step.exprs())
    if isinstance(content, Value):
        layout = content.type.layout
        return steps | (found.varies(content) if layout is None else axes_in(layout))
    e = expr_of(content)
    return steps | (NONE if e is None else found.expr(e))


def check(context: Context, region: Region, given: Mapping[Value, Iterable[str]]) -> None:
    """Raises UnsupportedError where a loop of a rank's view that is complete now carries what
    varies over more axes than was thought when a gradient was taken in it."""
    if not context.assumed:
        return
    found = Families(context.mesh, given, context.varying)
    found.region(region)
    for op in walk(region):
        if not isinstance(op.what, Loop):
            continue
        read = _read([Region((), (op,), ())])
        for arg in op.regions[-1].args:
            if arg not in read:
                continue
            if more := found.varies(arg) - context.assumed.get(arg, found.varies(arg)):
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
    """Return what the ops of regions read, or hand on in another place: not what is only carried
    through a loop until something is bound anew."""
    read: set[Value] = set()
    for op in (op for region in regions for op in reversed(region.ops)):
        read |= _read(op.regions)
        if not isinstance(op.what, Loop):
            read.update(op.operands, *(inner.results for inner in op.regions))
            continue
        *tests, body = op.regions
        read.update(*(test.results for test in tests))
        read.update(v for a, v in zip(body.args, body.results) if v is not a)
        count = op.what.turns()
        sure = not tests and count is not None and expr.nonneg(count - 1)
        for k, v in enumerate(op.operands):
            same = [inner.args[k] for inner in op.regions] + ([] if sure else [op.results[k]])
            if read.intersection(same):
                read.add(v)
    return read
