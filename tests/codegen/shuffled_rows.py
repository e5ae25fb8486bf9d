"""Plans whose operations run in another order, of those that their graph allows.

In: the levels of a program, a seed. Out: an image in which each region runs its rows in a random
order in which each comes after those that it waits for: what is missing among these shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import count
from typing import Any

from codegen.compile import Levels
from codegen.describe import manifest_of, notes_of
from codegen.emit.image import emit
from codegen.image import link
from codegen.image.target import resolve
from codegen.ir.exprs import exprs
from codegen.ir.plan import Branch, Default, Loop, Phase, Plan, WorkBranch, WorkLoop
from codegen.ir.steps import operations
from codegen.plan.operation_graph import OperationRow, operation_graph
from spmd.image import Image
from spmd.launch import loader


def shuffled(plan: Plan, rows: Sequence[OperationRow], seed: int) -> tuple[Plan, list[int]]:
    """The plan with its rows in another order, and that order, by their numbers."""
    made = _Shuffled(plan, rows, seed)
    steps = made.steps(None)
    return replace(plan, steps=steps), made.order


class _Shuffled:
    def __init__(self, plan: Plan, rows: Sequence[OperationRow], seed: int) -> None:
        self.random, self.phases = random.Random(seed), count()
        self.inside: dict[Any, list[OperationRow]] = {}
        for row in rows:
            self.inside.setdefault(row.region, []).append(row)
        self.step_of = operations(plan.steps)
        self.order: list[int] = []

    def rows(self, region: tuple[int, int] | None) -> list[OperationRow]:
        """The rows of a region in a random order: the next is any one that waits for none left."""
        left, found = list(self.inside.get(region, ())), list[OperationRow]()
        while left:
            numbers = {row.number for row in left}
            row = self.random.choice([r for r in left if numbers.isdisjoint(r.waits)])
            left.remove(row)
            found.append(row)
        self.order += [row.number for row in found]
        return found

    def steps(self, region: tuple[int, int] | None) -> tuple[Any, ...]:
        return tuple(map(self.step, self.rows(region)))

    def step(self, row: OperationRow) -> Any:
        act, number = row.act, row.number
        match act:
            case Loop():
                return replace(act, condition=self.steps((number, 0)), body=self.steps((number, 1)))
            case Branch():
                arms = tuple(self.steps((number, k)) for k in range(len(act.arms)))
                return replace(act, arms=arms)
            case Default():
                return replace(act, steps=self.steps((number, 0)))
        if row.step is None or not isinstance(phase := self.step_of[row.step], Phase):
            return act
        work = self.work(row)
        used = {s for e in exprs((work,)) for s in e.symbols()}
        k = next(self.phases)
        return Phase(k, f"phase_{k}", (work,), phase.place,
                     tuple(p for p in phase.parameters if p.sym in used))

    def work(self, row: OperationRow) -> Any:
        act = row.act
        if isinstance(act, WorkLoop):
            return replace(act, body=tuple(map(self.work, self.rows((row.number, 0)))))
        if isinstance(act, WorkBranch):
            return replace(act, arms=tuple(tuple(map(self.work, self.rows((row.number, k))))
                                           for k in range(len(act.arms))))
        return act


def image_of(levels: Levels, plan: Plan) -> Image:
    """The image of a finished plan, which has taken the place of that of these levels."""
    rows, source, target = operation_graph(plan), emit(plan), resolve("native")
    assert not plan.kernels
    other = replace(levels, plan=plan, finished=plan, operations=rows, source=source)
    data = link.link(
        source.text, objects=[], constants=source.constants,
        manifest=manifest_of(plan, target, plan, rows), notes=notes_of(other),
        index_words=len(plan.scalars), target=target)
    return Image(loader.check(data))
