"""What a long task is doing, for whoever listens: a terminal, a notebook, or nobody.

In: announce("compiling C"), or announce("checking meshes", 3, 64) for the third of 64. Out: calls
of the listener with the same. Always holds: without a listener it costs a look at a list.
"""

from __future__ import annotations

import time

TYPE_CHECKING = False  # typing costs every rank more time than this file
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import TypeVar

    T = TypeVar("T")
    Listener = Callable[[str, int, int], None]

_listeners: list[Listener] = []


def announce(task: str, done: int = 0, total: int = 0) -> None:
    """Tell the listener the task that begins now; with a total, its number, counted from 1."""
    if _listeners:
        _listeners[-1](task, done, total)


def each(task: str, items: Collection[T]) -> Iterator[T]:
    """Yield the items; announce the task, with its number, before each."""
    for number, item in enumerate(items, 1):
        announce(task, number, len(items))
        yield item


class told:
    """A context in which a listener is told; the innermost one hears all."""

    def __init__(self, listener: Listener) -> None:
        self.listener = listener

    def __enter__(self) -> None:
        _listeners.append(self.listener)

    def __exit__(self, *_: object) -> None:
        _listeners.remove(self.listener)


def is_heard() -> bool:
    return bool(_listeners)


# ---- spmd.progress ------------------------------------------------------------------------------

MARK = "\x1e"  # begins a line of what a program says of its steps; TAB is between its parts
ERROR = "\x1c"  # begins a line of print that is for standard error
OPEN = "\x1d"  # ends a line of print that goes on: the newline after it is none
FIELD = "\x17"  # before, behind and after a format, with the text that it aligns: see printed.py
ARRAY = "\x1f"  # stands before and behind the elements of an array: see printed.py
AGAIN_S = 5.0  # between lines, where they stay
SHORT_S = 0.1  # lines wait to be read: shorter times say nothing of a pace


class Steps:
    """Write lines about a program's steps: which one, values, amounts per second, time left.

    live: a line takes the place of the one before, so there may be many.
    """

    def __init__(self, live: bool) -> None:
        self.live = live
        self.begun = self.last = 0.0
        self.first = self.seen = 0
        self.ended = False

    def line(self, said: str, now: float | None = None) -> str:
        """Return the text for what stands between MARK and the end of a line; "": not yet."""
        now = time.monotonic() if now is None else now
        number, total, *parts = said.split("\t")
        step, steps = int(number), int(total)
        if not self.begun or step <= self.seen:  # another loop
            self.begun = self.last = now
            self.first = self.seen = step
            if step < steps:
                return ""
        self.ended = ends = step >= steps
        if not ends and not self.live and now - self.last < AGAIN_S:
            return ""
        done, seconds = step - self.first, now - self.begun
        counted, passed = (done, seconds) if ends else (step - self.seen, now - self.last)
        rate = counted / passed if passed > SHORT_S else 0.0
        texts = [f"step {step:,} of {steps:,}"]
        for part in parts:
            name, _, text = part.partition("=")
            if name.startswith("/"):
                texts += [f"{float(text) * rate:,.4g} {name[1:]}/s"] * (rate > 0)
            else:
                texts.append(f"{name} {text}")
        if ends:
            texts.append(f"in {clock_text(seconds)}")
        elif done > 0:
            texts.append(f"{clock_text(seconds / done * (steps - step))} left")
        self.last, self.seen = now, step
        return ", ".join(texts)


def clock_text(seconds: float) -> str:
    """Return seconds as a clock shows them: 1:02:03, 2:03, 0:03."""
    whole = round(seconds)
    hours, rest = divmod(whole, 3600)
    text = f"{rest // 60}:{rest % 60:02d}"
    return f"{hours}:{text.zfill(5)}" if hours else text
