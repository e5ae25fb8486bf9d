"""What is exchanged and then read transposed is transposed as it is copied: b += a.T.

Goes in: a Program. Comes out: the same in which members take a view of what they hold, where only
loops read the transposed result: they read it in the order in which it lies.
Always holds: every member gets the elements that it got; what a library multiplies stays as it is.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.ir import ArrayType, DefUse, Module, Op, Region, Value
from codegen.kit import Builder
from codegen.ops import Loop, Map, Move, Transpose
from codegen.ops.group import each


def turned(program: Module) -> Module:
    """The Program, with its transpositions before the exchanges."""
    work = _Turning(program.def_use)
    made = program.mapped(work.region)
    if made is program:
        return program
    whose = {new: program.origins[old] for old, new in work.instead.items()
             if old in program.origins}
    return replace(made, origins={**program.origins, **whose})


class _Turning(Builder):
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
        """Whether members get parts, for nothing but loops over the transposed array."""
        what, uses = op.what, self.known.uses
        if not isinstance(what, Move) or what.room or what.wraps or what.flow != "all":
            return False
        return bool(what.differs()) and len(uses[op.result]) == 1 and all(
            use.op is None or isinstance(use.op.what, (Map, Loop)) for use in uses[last.result]
        )

    def turn(self, op: Op, last: Op) -> None:
        """The exchange of the transposed operand, for the transposed result of the exchange."""
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
