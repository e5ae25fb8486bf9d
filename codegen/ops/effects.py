"""Ops that a user sees: texts, and conditions that end the run."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from codegen.ir import ArrayType, Op, Shape
from codegen.ops.kind import Kind, Types
from codegen.plan import grammar as plan

if TYPE_CHECKING:
    from codegen.passes.to_loops import Maker

POSITION = "@"  # a spec of an `expect`: where the element is


class Effect(Kind):
    reads = "points"
    fence = True
    at_home = True
    has_room = False

    def infer(self, types: Types) -> list[ArrayType]:
        return []


@dataclass(frozen=True)
class Print(Effect):
    """parts: texts and format specs in turn, one spec per operand."""

    name = "print"
    parts: tuple[str, ...]
    every_rank: bool

    def steps(self, op: Op, at: Maker) -> None:
        nodes = tuple(at.node(v, ()) for v in op.operands)
        at.add(plan.Print(self.parts, nodes, self.every_rank, op.place))


@dataclass(frozen=True)
class Expect(Effect):
    """Ends the run where the first operand (bool, of any shape) does not hold: with `parts`, as of
    print, of the other operands (of its shape, or 0-d) at the first such element; the spec POSITION
    has no operand; start: of this rank's part in a global array; check: the row of CHECKS that
    asked for it."""

    name = "expect"
    parts: tuple[str, ...]
    start: Shape | None = None
    check: str = ""

    def steps(self, op: Op, at: Maker) -> None:
        holds, *shown = (at.node(v, ()) for v in op.operands)
        at.add(plan.Expect(holds, self.parts, tuple(shown), self.check, op.place))
