"""Where long functions of C are cut: compilers take more than linear time for a function.

Goes in: the steps of a Plan, or rows. Comes out: groups of them, each for its own function.
Always holds: a group is a stretch of the steps of one body, so order and nesting stay.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeVar

from codegen.ir.plan import Step
from codegen.ir.steps import inner_steps

LONGEST = 100  # steps, or entries of a table, of one function
NOINLINE = "__attribute__((noinline))\n"


T = TypeVar("T")


def stretches(rows: Sequence[T]) -> list[Sequence[T]]:
    """Return the rows in groups of at most LONGEST, each for a C function of its own."""
    return [rows[k : k + LONGEST] for k in range(0, len(rows), LONGEST)]


class Cuts:
    """The sizes of all steps: by the step's id, how many statements it adds to the function in
    which it stands."""

    def __init__(self, steps: Sequence[Step]) -> None:
        self.size: dict[int, int] = {}  # by the step's id
        self._measure(steps)

    def _measure(self, steps: Sequence[Step]) -> int:
        for step in steps:
            self.size[id(step)] = 1 + sum(map(self._measure, inner_steps(step)))
        groups = self.groups(steps)
        return len(groups) if len(groups) > 1 else sum(self.size[id(s)] for s in steps)

    def groups(self, steps: Sequence[Step]) -> list[list[Step]]:
        """Return the steps of a body in groups, each for a C function of its own; one group if they
        are few enough to stay in the surrounding function."""
        total = sum(self.size[id(s)] for s in steps)
        most = max(LONGEST, total // LONGEST)
        groups: list[list[Step]] = [[]]
        size = 0
        for step in steps:
            size += self.size[id(step)]
            if size > most and groups[-1]:
                groups.append([])
                size = self.size[id(step)]
            groups[-1].append(step)
        return groups
