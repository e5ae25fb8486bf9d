"""A transpose moves before the exchange whose result it reads: it is done while copying: b += a.T.

Goes in: a Program. Comes out: the same in which members exchange a transposed view of what they
hold, if only loops read the transposed result: these then read it in memory order.
Always holds: every member gets the elements that it got; operands of library calls stay.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.graph.rewriter import Rewriter
from codegen.ir.graph import ArrayType, Module, Op
from codegen.ops import Loop, Map, Move, Transpose
from codegen.ops.group import each


def transpose_before_exchange(program: Module) -> Module:
    """Return the Program with transposes before their exchanges; the same object if there are
    none."""
    rewriter = Rewriter(program, exchange_of_transposed)
    rewritten = rewriter.run()
    if rewritten is program:
        return program
    origins = {op.result: program.origins[op.operands[0]] for op in rewriter.gone
               if op.operands[0] in program.origins}
    return replace(rewritten, origins={**program.origins, **origins})


def exchange_of_transposed(op: Op, rewriter: Rewriter) -> bool:
    """Replace an exchange and the transpose of its result by the exchange of a transposed view, if
    each member gets its own part and only loops read the transposed result."""
    move = op.kind
    if not isinstance(move, Move) or move.room or move.wraps or move.flow != "all" or (
            not move.differs()):
        return False
    after = rewriter.only_reader(op.result)
    if after is None or not isinstance(after.kind, Transpose) or not all(
            use.op is None or isinstance(use.op.kind, Map | Loop)
            for use in rewriter.uses[after.result]):
        return False
    perm, (x,), (t,) = after.kind.perm, op.operands, move.types
    rewriter.name = x.name
    view = rewriter.emit(Transpose(perm), (x,))
    have, want = (
        tuple(each(bounds, t.ndim)[d] for d in perm) for bounds in (move.have, move.want))
    types = (ArrayType(t.dtype, tuple(t.shape[d] for d in perm)),)
    rewriter.add(replace(move, have=have, want=want, types=types), (view,), after.results)
    rewriter.gone.add(after)
    return True
