"""Predicated bodies of while loops: an iteration whose condition is false changes nothing.

Goes in: the condition and the body, as they were captured. Comes out: another body. Under spmd.vmap
the reverse pass of a loop runs as many iterations for all members as the longest of them needs.
"""

from __future__ import annotations

from codegen.graph.clone import Copier
from codegen.ir.graph import Region, Value
from codegen.ops import Broadcast, Expect, Map, Print
from codegen.trace.context import Block, Context
from codegen.trace.control.regions import laid_as


def predicated_body(context: Context, test: Region, body: Region) -> Region:
    """Return a body that changes no carried value if the condition is false when it begins."""
    copies = Copier(context.unique, dict(zip(test.args, body.args)), {}, (Print, Expect))
    block = Block(body.args)
    block.ops += copies.ops(test.ops)
    holds = copies.of(test.results[0])
    block.ops += body.ops
    context.blocks.append(block)
    try:
        ends = [end if end is arg else laid_as(context, _chosen(context, holds, end, arg),
                                               arg.type.layout)
                for arg, end in zip(body.args, body.results, strict=True)]
    finally:
        context.blocks.pop()
    return block.close(ends)


def _chosen(context: Context, holds: Value, then: Value, other: Value) -> Value:
    shape = then.type.shape
    wide = context.emit_one(Broadcast((), shape), holds) if shape else holds
    return context.emit_one(Map("select"), wide, then, other)
