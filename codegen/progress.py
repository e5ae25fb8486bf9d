"""What a long task is at, for whoever listens: a terminal, a notebook, or nobody.

In: at("compiling C"), or at("checking meshes", 3, 64) for the third of 64. Out: calls of the
listener with the same. Always holds: without a listener it costs a look at a list.
"""

from __future__ import annotations

TYPE_CHECKING = False  # typing costs every rank more time than this file
if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from typing import TypeVar

    T = TypeVar("T")
    Listener = Callable[[str, int, int], None]

_listeners: list[Listener] = []


def at(what: str, done: int = 0, total: int = 0) -> None:
    """Says what is begun now; with a total, which one of so many, counted from 1."""
    if _listeners:
        _listeners[-1](what, done, total)


def each(what: str, items: Collection[T]) -> Iterator[T]:
    """The items, each announced."""
    for number, item in enumerate(items, 1):
        at(what, number, len(items))
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
