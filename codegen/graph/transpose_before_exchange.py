"""A transpose moves before the exchange whose result it reads: it is done while copying: b += a.T.

Goes in: a Program. Comes out: the same in which members exchange a transposed view of what they
hold, if only loops read the transposed result: these then read it in memory order.
Always holds: every member gets the elements that it got; operands of library calls stay.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.graph.builder import Builder
from codegen.ir.graph import ArrayType, DefUse, Module, Op, Region, Value
from codegen.ops import Loop, Map, Move, Transpose
from codegen.ops.group import each


def transpose_before_exchange(program: Module) -> Module:
    """Return the Program with transposes before their exchanges; the same object if there are
    none."""
    work = _Turning(program.def_use)
    made = program.mapped(work.region)
    if made is program:
        return program
    whose = {new: program.origins[old] for old, new in work.instead.items()
             if old in program.origins}
    return replace(made, origins={**program.origins, **whose})


class _Turning(Builder):
    """Moves transposes before exchanges; `instead` maps the old results of exchanges to the new
    ones."""

    def __init__(self, known: DefUse) -> None:
        super().__init__()
        self.known = known
        self.instead: dict[Value, Value] = {}  # of results of exchanges, what is exchanged now

    def region(self, region: Region) -> Region:
        after = {op.operands[0]: op for op in region.ops if isinstance(op.what, Transpose)}
        done: set[Op] = set()
        with self.inside() as ops:
            for op in region.ops:
                last = after.get(op.results[0]) if op.results else None
                if last is not None and self.is_better(op, last):
                    self.turn(op, last)
                    done.add(last)
                elif op not in done:
                    ops.append(op.mapped(self.region))
        return region.with_ops(ops)

    def is_better(self, op: Op, last: Op) -> bool:
        """Return whether each member of an exchange gets its own part, and only loops read its
        transpose."""
        what, uses = op.what, self.known.uses
        if not isinstance(what, Move) or what.room or what.wraps or what.flow != "all":
            return False
        return bool(what.differs()) and len(uses[op.result]) == 1 and all(
            use.op is None or isinstance(use.op.what, (Map, Loop)) for use in uses[last.result]
        )

    def turn(self, op: Op, last: Op) -> None:
        """Emit the exchange of the transposed operand; its result is the transposed result."""
        what, perm, (x,) = op.what, last.what.perm, op.operands  # type: ignore[attr-defined]
        assert isinstance(what, Move)
        self.name, self.place = x.name, op.place
        view = self.emit(Transpose(perm), (x,))
        (t,) = what.types
        have, want = (
            tuple(each(bounds, t.ndim)[d] for d in perm) for bounds in (what.have, what.want)
        )
        types = (ArrayType(t.dtype, tuple(t.shape[d] for d in perm)),)
        self.instead[op.result] = last.result
        self.add(replace(what, have=have, want=want, types=types), (view,), last.results)
