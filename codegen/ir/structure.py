"""Whether two levels of a program are alike, and how large one is.

In: Graphs, Programs, Loops, Plans, C. Out: truth; numbers of ops, steps, buffers.
Always holds: values that are defined anew are compared by where they are defined and used; places
in the source say nothing of what is computed, and are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from collections.abc import Set as AbstractSet
from dataclasses import fields, is_dataclass
from typing import Any

import numpy as np

from codegen.errors import Place
from codegen.ir.graph import Module, Value, walk
from codegen.ir.loops import BufferAssignment, Do, Loops
from codegen.ir.plan import Exchange as PlanExchange
from codegen.ir.plan import Phase, Plan
from codegen.ir.steps import simple_works, walk_steps
from codegen.ops import Exchange


def alike(first: Any, second: Any) -> bool:
    """Return whether two levels are the same but for the identities of their values."""
    return _Comparison().alike(first, second)


class _Comparison:
    """A correspondence between the values of two levels, built while they are compared."""

    def __init__(self) -> None:
        self.partners: dict[Value, Value] = {}
        self.taken: dict[Value, Value] = {}  # the same, the other way round
        self.proved: dict[tuple[int, int], tuple[Any, Any]] = {}  # held, so that no id comes again

    def alike(self, a: Any, b: Any) -> bool:
        if type(a) is not type(b):
            return False
        if isinstance(a, Value):
            return self.values(a, b)
        if a is b or isinstance(a, Place):
            return True
        if isinstance(a, np.ndarray):
            return (a.dtype, a.shape) == (b.dtype, b.shape) and a.tobytes() == b.tobytes()
        if isinstance(a, tuple | list):
            return len(a) == len(b) and all(map(self.alike, a, b))
        if isinstance(a, Mapping):
            return self.mappings(a, b)
        if isinstance(a, AbstractSet):
            return len(a) == len(b) and {self.partner(x) for x in a} == set(b)
        if not is_dataclass(a):
            return bool(a == b) or repr(a) == repr(b)  # a NaN is no other than a NaN
        if (id(a), id(b)) not in self.proved:
            if not all(self.alike(getattr(a, f.name), getattr(b, f.name)) for f in fields(a)):
                return False
            self.proved[id(a), id(b)] = a, b
        return True

    def values(self, a: Value, b: Value) -> bool:
        """Return whether a and b correspond to each other and to no other value; names are
        ignored."""
        if self.partners.setdefault(a, b) is not b or self.taken.setdefault(b, a) is not a:
            return False
        return a is b or self.alike(a.type, b.type)

    def partner(self, key: Any) -> Any:
        return self.partners.get(key, key) if isinstance(key, Value) else key

    def mappings(self, a: Mapping[Any, Any], b: Mapping[Any, Any]) -> bool:
        return len(a) == len(b) and all(
            (other := self.partner(key)) in b and self.alike(value, b[other])
            for key, value in a.items())


def size(level: Any) -> dict[str, int]:
    """Return the numbers of ops, steps, exchanges and buffers of a level, where it has them."""
    if isinstance(level, BufferAssignment):
        return {**size(level.loops), "buffers": len(level.buffers)}
    if isinstance(level, Loops):
        dos = [op.kind for region in level.module.regions for op in walk(region)
               if isinstance(op.kind, Do)]
        return {**size(level.module), "exchanges": sum(
            isinstance(act, PlanExchange) for do in dos for act in do.acts),
            "acts": sum(len(do.acts) for do in dos)}
    if isinstance(level, Module):
        ops = [op for region in level.regions for op in walk(region)]
        return {"ops": len(ops), "exchanges": sum(isinstance(op.kind, Exchange) for op in ops)}
    if isinstance(level, Plan):
        steps = list(walk_steps(level.steps))
        return {"steps": len(steps), "exchanges": sum(isinstance(s, PlanExchange) for s in steps),
                "works": sum(len(simple_works(s)) for s in steps if isinstance(s, Phase)),
                "buffers": len(level.buffers)}
    return {"lines of C": level.text.count("\n")}


