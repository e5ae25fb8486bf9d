"""Walking over a Plan: the steps inside a step, and the buffers that a step touches."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.plan.grammar import (
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Keep,
    KernelCall,
    Lane,
    Let,
    Load,
    Loop,
    Nest,
    Phase,
    Print,
    Product,
    Reduce,
    Step,
    Store,
    Work,
)  # fmt: skip
from codegen.plan.indexing import loads


def walk_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Every step, outer first."""
    for step in steps:
        yield step
        for inner in inner_steps(step):
            yield from walk_steps(inner)


def inner_steps(step: Step) -> tuple[tuple[Step, ...], ...]:
    if isinstance(step, Loop):
        return (step.condition, step.body)
    if isinstance(step, Branch):
        return step.arms
    if isinstance(step, Default):
        return (step.steps,)
    return ()


def step_buffers(step: Step) -> Iterator[Buffer]:
    """Every buffer that a step itself (not a step inside it) touches."""
    if isinstance(step, Phase):
        for work in step.work:
            yield from work_buffers(work)
    elif isinstance(step, Exchange):
        for box in step.boxes:
            yield box.buffer
    elif isinstance(step, Loop):
        if step.flag is not None:
            yield step.flag.buffer
        for ring in step.rotate:
            yield from ring
    elif isinstance(step, Let):
        yield step.value.buffer
    elif isinstance(step, Branch) and isinstance(step.on, Load):
        yield step.on.buffer
    elif isinstance(step, (Print, Expect)):
        for node in (*step.operands, *([step.holds] if isinstance(step, Expect) else [])):
            for load in loads(node):
                yield load.buffer


def work_buffers(work: Work) -> Iterator[Buffer]:
    if isinstance(work, Product):
        for m in (work.a, work.b, work.c):
            yield m.buffer
        return
    if isinstance(work, KernelCall):
        for a in work.arguments:
            if isinstance(a.what, Buffer):
                yield a.what
        return
    if isinstance(work, Nest):
        for part in work.parts:
            if isinstance(part, Keep):
                yield from (load.buffer for load in loads(part.value))
            else:
                yield from work_buffers(part)
        return
    yield work.buffer
    if isinstance(work, Store) and work.waiting is not None:
        yield work.waiting
    if isinstance(work, Lane):
        yield from work.scratch
    if isinstance(work, (Store, Reduce, Lane)) and work.value is not None:
        for load in loads(work.value):
            yield load.buffer
