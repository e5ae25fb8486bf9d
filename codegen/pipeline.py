"""The passes of a build as they run: which are left out, what each changed, how long it took.

In: a pass, and the level that it is given. Out: what the pass makes of it; in a `recording`, a
PassRun of every pass as well. A pass is named by its file in its room, emit by its function.
Always holds: nothing of a recording is in an image; without one, nothing is compared or kept.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from typing import Any, TypeVar

from codegen.ir.structure import alike, size

T = TypeVar("T")


@dataclass(eq=False)
class PassRun:
    """One run of a pass. depth: of how many other passes it is a part. level: what it starts from.
    seconds: of one core. estimates: for each form of the program that the pass weighed, the seconds
    without it and with it."""

    name: str
    depth: int
    level: Any
    result: Any = None
    seconds: float = 0.0
    left_out: bool = False
    estimates: list[tuple[float, float]] = field(default_factory=list)


@dataclass(frozen=True)
class PassRow:
    """The runs of a pass at one place of the order. `changed`: the final program contains a change
    of one of them. `before` and `after` count ops, steps and buffers around that run, else around
    the last."""

    name: str
    depth: int
    times: int
    seconds: float
    changed: bool
    left_out: bool
    before: dict[str, int]
    after: dict[str, int]
    estimates: tuple[tuple[float, float], ...]


@dataclass(frozen=True)
class _Pipeline:
    """The passes of one build that are left out, and its runs: `runs` keeps them if anybody asks;
    `open` are those that have not ended."""

    without: frozenset[str] = frozenset()
    runs: list[PassRun] | None = None
    open: list[PassRun] = field(default_factory=list)


_PLAIN = _Pipeline()
_current: ContextVar[_Pipeline] = ContextVar("_current", default=_PLAIN)


def pass_name(run: Callable[..., Any]) -> str:
    """Return the name by which users know a pass."""
    room, _, module = run.__module__.rpartition(".")
    return run.__name__ if room == "codegen.emit" else module


def pass_names(*runs: Callable[..., Any]) -> tuple[str, ...]:
    """Return the names by which users know passes, each once, in order."""
    return tuple(dict.fromkeys(map(pass_name, runs)))


def apply(run: Callable[..., T], level: Any, *more: Any) -> T:
    """Return what a pass makes of a level; the level itself, where the pass is left out."""
    pipeline, name = _current.get(), pass_name(run)
    if pipeline.runs is None:
        made: T = level if name in pipeline.without else run(level, *more)
        return made
    this = PassRun(name, len(pipeline.open), level, level)
    pipeline.runs.append(this)
    if name in pipeline.without:
        this.left_out = True
        return level  # type: ignore[no-any-return]
    pipeline.open.append(this)
    start = time.thread_time()
    try:
        this.result = run(level, *more)
    finally:
        this.seconds = time.thread_time() - start
        pipeline.open.pop()
    return this.result  # type: ignore[no-any-return]


def estimated(before: float, after: float) -> None:
    """Say what the pass that runs takes a program for: seconds as it is, and in another form."""
    if (pipeline := _current.get()).open:
        pipeline.open[-1].estimates.append((before, after))


@contextmanager
def leaving_out(names: Iterable[str]) -> Iterator[None]:
    """A context in which these passes do nothing."""
    around = _current.get()
    token = _current.set(_Pipeline(around.without | {*names}, around.runs, around.open))
    try:
        yield
    finally:
        _current.reset(token)


@contextmanager
def recording() -> Iterator[list[PassRun]]:
    """A context in which every run of a pass is kept, in the order in which they begin."""
    runs: list[PassRun] = []
    token = _current.set(_Pipeline(_current.get().without, runs))
    try:
        yield runs
    finally:
        _current.reset(token)


def rows(runs: list[PassRun]) -> list[PassRow]:
    """Return what the runs of one build did; those of one pass inside another one are one row."""
    kept, found = _kept(runs), []
    for group in _with_parts(runs):
        found.append(_row(group[:1], kept))
        for name in dict.fromkeys(run.name for run in group[1:]):
            found.append(_row([run for run in group[1:] if run.name == name], kept))
    return found


def _with_parts(runs: list[PassRun]) -> list[list[PassRun]]:
    """Return each outermost run with the runs that are parts of it."""
    groups: list[list[PassRun]] = []
    for run in runs:
        if run.depth:
            groups[-1].append(run)
        else:
            groups.append([run])
    return groups


def _row(runs: list[PassRun], kept: frozenset[int]) -> PassRow:
    changing = [r for r in runs
                if id(r) in kept and not alike(_program(r.level), _program(r.result))]
    shown = (changing or runs)[-1]
    return PassRow(shown.name, shown.depth, len(runs), sum(r.seconds for r in runs), bool(changing),
               all(r.left_out for r in runs), size(_program(shown.level)),
               size(_program(shown.result)), tuple(e for r in runs for e in r.estimates))


def _program(level: Any) -> Any:
    """Return the Program of a Graph's Demands and Program; any other level as it is."""
    return level[-1] if isinstance(level, tuple) else level


def _kept(runs: list[PassRun]) -> frozenset[int]:
    """Return the ids of the runs that led to the last one's result, followed back from there.

    A pass may try several forms of a Graph and return one of them, or its level: a run inside it
    counts if its very Program is returned.
    """
    needed, kept = {id(run.result) for run in runs[-1:]}, set()
    for run in reversed(runs):
        if needed.isdisjoint({id(run.result), id(_program(run.result))}):
            continue
        kept.add(id(run))
        needed.add(id(run.result))
        needed.add(id(run.level))
        if isinstance(run.level, tuple):
            needed.add(id(run.level[0].graph))
    return frozenset(kept)
