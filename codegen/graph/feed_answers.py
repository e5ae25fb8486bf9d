"""Which batches a program may answer where: what a send to a feed needs is a batch without answer.

In: a region of a Graph or a Program. Out: the first send in it that can never have a batch.
"""

from __future__ import annotations

from codegen.ir.graph import Op, Region, walk
from codegen.ops import Branch, Loop, Send, Take


def unanswerable(feed: str, region: Region, before: bool = False) -> tuple[Op | None, bool]:
    """Return the first send that can never have a batch, or None; and whether there may be a batch
    without answer behind the region. before: whether there may be one before it."""
    for op in region.ops:
        if isinstance(op.kind, Take) and op.kind.feed == feed:
            before = True
        elif isinstance(op.kind, Send) and op.kind.feed == feed:
            if not before:
                return op, False
            before = False
        elif op.regions:
            wrong, before = _inside(feed, op, before)
            if wrong:
                return wrong, False
    return None, before


def _inside(feed: str, op: Op, before: bool) -> tuple[Op | None, bool]:
    behind = before
    if isinstance(op.kind, Loop):  # a turn may begin with what the turn before it has left
        taken = [o for inner in op.regions for o in walk(inner) if isinstance(o.kind, Take)]
        behind = before or any(o.kind.feed == feed for o in taken)  # type: ignore[attr-defined]
    arms = []
    for inner in op.regions:
        wrong, left = unanswerable(feed, inner, before if isinstance(op.kind, Branch) else behind)
        if wrong:
            return wrong, False
        arms.append(left)
        behind = left
    if isinstance(op.kind, Branch):
        return None, any(arms)
    return None, before or behind if isinstance(op.kind, Loop) else behind
