"""The op that stands for a call of a recursive function inside its own body, while tracing only."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from codegen.ir.graph import ArrayType
from codegen.ops.control import Control
from codegen.ops.kind import Stated


@dataclass(frozen=True, eq=False)
class RecursiveCall(Stated, Control):
    """A call of a recursive function in its own body. Operands: the arguments that vary, then the
    memory that the recursion writes. Results: those of the function, then that memory."""

    name = "call"
    held = True
    types: tuple[ArrayType, ...]
    function: Any
