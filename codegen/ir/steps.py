"""Walking over Plans and Loops: steps inside a step, the memory and the trees of each."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, Generic, TypeVar, overload

from codegen.ir import plan as grammar
from codegen.ir.graph import Value
from codegen.ir.indexing import loads
from codegen.ir.plan import (
    Apply,
    Argument,
    Branch,
    Buffer,
    Default,
    Exchange,
    Expect,
    Feeding,
    Integer,
    KernelCall,
    Lane,
    Let,
    LibraryCall,
    Literal,
    Load,
    LocalRead,
    LocalValue,
    Loop,
    M,
    More,
    Nest,
    Node,
    Phase,
    Point,
    Print,
    Reduce,
    Runtime,
    Save,
    Send,
    Simple,
    Step,
    Store,
    Take,
    Work,
    WorkBranch,
    WorkLoop,
)
from codegen.symbolic.expr import Expr

N = TypeVar("N")
Act = Work[M] | Exchange[M] | Print[M] | Expect[M] | Point[M] | Feeding[M]
Operation = Phase | Exchange | Expect | Take | More | Send | Save  # what a rank can be at
_OPERATIONS = (Phase, Exchange, Expect, Take, More, Send, Save)


def walk_steps(steps: Sequence[Step]) -> Iterator[Step]:
    """Yield every step, outer first."""
    for step in steps:
        yield step
        for inner in inner_steps(step):
            yield from walk_steps(inner)


def operations(steps: Sequence[Step]) -> list[Operation]:
    """Return the steps at which a rank can be, in the order of their numbers."""
    return [s for s in walk_steps(steps) if isinstance(s, _OPERATIONS)]


def inner_steps(step: Step) -> tuple[tuple[Step, ...], ...]:
    if isinstance(step, Loop):
        return (step.condition, step.body)
    if isinstance(step, Branch):
        return step.arms
    if isinstance(step, Default):
        return (step.steps,)
    return ()


def inner_works(work: Work[M]) -> tuple[tuple[Work[M], ...], ...]:
    if isinstance(work, WorkLoop):
        return (work.body,)
    return work.arms if isinstance(work, WorkBranch) else ()


def walk_works(works: Sequence[Work[M]]) -> Iterator[Work[M]]:
    """Yield every work of a phase, outer first."""
    for work in works:
        yield work
        for inner in inner_works(work):
            yield from walk_works(inner)


def simple_works(phase: Phase) -> list[Simple]:
    """Return the works of a phase without the loops and branches around them."""
    return [w for w in walk_works(phase.work) if not isinstance(w, WorkLoop | WorkBranch)]


def mapped_steps(steps: Sequence[Step], f: Callable[[Step], Step]) -> tuple[Step, ...]:
    """Return the steps with each replaced by f(step), outer ones first."""
    return tuple(_inside(f(step), f) for step in steps)


def _inside(step: Step, f: Callable[[Step], Step]) -> Step:
    match step:
        case Loop():
            condition = mapped_steps(step.condition, f)
            return replace(step, condition=condition, body=mapped_steps(step.body, f))
        case Branch():
            return replace(step, arms=tuple(mapped_steps(arm, f) for arm in step.arms))
        case Default():
            return replace(step, steps=mapped_steps(step.steps, f))
    return step


def is_asked(on: Expr | Load[M]) -> bool:
    """Return whether a branch depends on the call: on which inputs it passes and which outputs it
    asks for."""
    return isinstance(on, Expr) and any(s.kind == "flag" for s in on.symbols())


def step_buffers(step: Step) -> Iterator[Buffer]:
    """Return an iterator over every buffer that a step itself (not a step inside it) touches.
    Constants are not among them: they lie in the image and have their own numbers."""
    return (b for b in step_memory(step) if b.data is None)


def step_memory(step: Step) -> Iterator[Buffer]:
    """Yield every buffer and constant that a step itself touches."""
    if isinstance(step, Phase):
        for work in walk_works(step.work):
            yield from work_buffers(work)
    elif isinstance(step, Exchange | Take | More | Send | Save):
        yield from memory_read(step)
        yield from memory_written(step)
    elif isinstance(step, Loop):
        if step.flag is not None:
            yield step.flag.buffer
        for cycle in step.rotate:
            yield from cycle
    elif isinstance(step, Let):
        yield step.value.buffer
    elif isinstance(step, Branch) and isinstance(step.on, Load):
        yield step.on.buffer
    elif isinstance(step, (Print, Expect)):
        yield from memory_read(step)
    elif isinstance(step, Point):
        yield from step.carried


def work_buffers(work: Work[M]) -> Iterator[M]:
    """Yield every buffer that a work touches."""
    yield from memory_read(work)
    yield from memory_written(work)


def memory_read(act: Act[M]) -> Iterator[M]:
    """Yield the memory that an act reads. In Loops: constants too."""
    for node in nodes(act):
        yield from (load.buffer for load in loads(node))
    if isinstance(act, LibraryCall):
        yield from (part.buffer for part in act.parts if not part.writes)
    elif isinstance(act, KernelCall):
        yield from (x for a in act.arguments if not a.writes and (x := array_of(a)) is not None)
    elif isinstance(act, Exchange):
        yield from (box.buffer for box in (act.pull_from, act.send) if box is not None)
    elif isinstance(act, Send | Save):
        yield from act.values
    elif isinstance(act, WorkBranch) and isinstance(act.on, Load):
        yield act.on.buffer


def memory_written(work: Act[M] | LocalValue[M]) -> Iterator[M]:
    """Yield the memory that a work writes, its scratch memory too."""
    if isinstance(work, Point):
        yield from work.carried
    elif isinstance(work, Exchange):
        yield from (box.buffer for box in (work.pull_into, work.give_into) if box is not None)
    elif isinstance(work, Nest):
        for part in work.parts:
            yield from memory_written(part)
    elif isinstance(work, LibraryCall):
        yield from (part.buffer for part in work.parts if part.writes)
    elif isinstance(work, KernelCall):
        yield from (x for a in work.arguments if a.writes and (x := array_of(a)) is not None)
    elif isinstance(work, Take):
        yield from work.into
    elif isinstance(work, More):
        yield work.into
    elif not isinstance(work, LocalValue | Print | Expect | Send | Save | WorkLoop | WorkBranch):
        yield work.buffer
        if isinstance(work, Store) and work.waiting is not None:
            yield work.waiting
        if isinstance(work, Lane):
            yield from work.scratch


@overload
def moved(act: Point[N], of: Callable[[N], M]) -> Point[M]: ...
@overload
def moved(act: Work[N], of: Callable[[N], M]) -> Work[M]: ...
@overload
def moved(act: Exchange[N], of: Callable[[N], M]) -> Exchange[M]: ...
@overload
def moved(act: Print[N], of: Callable[[N], M]) -> Print[M]: ...
@overload
def moved(act: Expect[N], of: Callable[[N], M]) -> Expect[M]: ...
@overload
def moved(act: Feeding[N], of: Callable[[N], M]) -> Feeding[M]: ...
def moved(act: Any, of: Callable[[N], M]) -> Any:
    """Return an act over other memory: `of` maps the old memory to the new."""

    def change(x: Any) -> Any:
        if type(x) is tuple:
            return tuple(map(change, x)) if x else x
        if type(x) is Value:
            return of(x)  # type: ignore[arg-type]
        names = _OVER_MEMORY.get(type(x))
        return type(x)(*(change(getattr(x, name)) for name in names)) if names else x

    return change(act)


def relocated(act: Any, places: Mapping[Value, tuple[Value, Expr]]) -> Any:
    """Return an act of Loops whose memory is replaced: `places` maps a value to the value in which
    its elements lie now, and their offset there."""

    def change(x: Any) -> Any:
        if type(x) is tuple:
            return tuple(map(change, x)) if x else x
        names = _OVER_MEMORY.get(type(x))
        if not names:
            return x
        new = {name: change(getattr(x, name)) for name in names}
        if "offset" in new and new.get("buffer") in places:
            buffer, begin = places[new["buffer"]]
            new |= {"buffer": buffer, "offset": new["offset"] + begin}
        return type(x)(**new)

    return change(act)


# The fields of the classes of the grammar that are generic in what memory is.
_OVER_MEMORY: dict[type, tuple[str, ...]] = {
    kind: tuple(f.name for f in fields(kind))
    for kind in vars(grammar).values()
    if is_dataclass(kind) and isinstance(kind, type) and Generic in kind.__mro__
}


def array_of(argument: Argument[M]) -> M | None:
    """Return the buffer of an array argument of a kernel; None if the argument is a number."""
    operand = argument.value
    return None if isinstance(operand, Expr) or isinstance(operand, _NODES) else operand


_NODES = (Apply, Integer, Literal, Load, LocalRead, Runtime)


def nodes(act: Act[M] | LocalValue[M]) -> Iterator[Node[M]]:
    """Yield the expression trees that an act computes at a point, in order."""
    if isinstance(act, Nest):
        for part in act.parts:
            yield from nodes(part)
    elif isinstance(act, KernelCall):
        yield from (a.value for a in act.arguments if isinstance(a.value, _NODES))
    elif isinstance(act, Print):
        yield from act.operands
    elif isinstance(act, Expect):
        yield from (act.holds, *act.operands)
    elif isinstance(act, Exchange):
        yield from () if act.take is None else nodes(act.take)
    elif isinstance(act, Store | Reduce | LocalValue | Lane):
        if isinstance(act, Store):
            yield from (b.node for b in act.bounds)
        if act.value is not None:
            yield act.value
