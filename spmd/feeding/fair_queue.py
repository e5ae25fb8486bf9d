"""Work that waits at a worker, and whose turn it is: its time follows the shares of consumers.

In: pieces of work, the share of each consumer, what each piece took. Out: the next piece.
Start-time fair queueing: whoever has had the least time for its share is next.
Always holds: whoever was idle has no credit for it; a share counts from the next piece on.
"""

from __future__ import annotations

from collections import Counter, deque

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LEAST = 1e-3  # a share below this is taken for it
MOST = 4096  # pieces that wait, of one consumer: its credits are far fewer


class QueuedWork:
    """A piece of work that waits. of: name and version of its pipeline."""

    __slots__ = ("count", "first", "left_out", "number", "of", "peer", "take", "through")

    def __init__(self, peer: bytes, take: Any, item: list[Any]) -> None:
        self.peer, self.take = peer, take
        self.of = take["pipeline"], take["version"]
        self.number, self.first, self.count, self.through, self.left_out = item


class ConsumerTurn:
    """What one consumer has waiting, and how much time it has had, over its share."""

    def __init__(self) -> None:
        self.waiting: deque[QueuedWork] = deque()
        self.turn, self.share = 0.0, 1.0


class FairQueue:
    """Of one worker."""

    def __init__(self) -> None:
        self.consumers: dict[bytes, ConsumerTurn] = {}
        self._now = 0.0  # the turn of whoever was served last

    def __bool__(self) -> bool:
        return any(one.waiting for one in self.consumers.values())

    def add(self, peer: bytes, share: float | None, works: Iterable[QueuedWork]) -> None:
        """Work of a consumer, and the share that it has of this worker from now on."""
        one = self.consumers.setdefault(peer, ConsumerTurn())
        if not one.waiting:
            one.turn = max(one.turn, self._now)
        if share is not None:
            one.share = max(share, LEAST)
        for work in works:
            if len(one.waiting) < MOST:
                one.waiting.append(work)

    def next(self) -> QueuedWork | None:
        """Of whoever had the least time for its share; the newest first where it says so."""
        waiting = [one for one in self.consumers.values() if one.waiting]
        if not waiting:
            return None
        one = min(waiting, key=lambda c: c.turn)
        self._now = one.turn
        return one.waiting.pop() if one.waiting[-1].take["newest_first"] else one.waiting.popleft()

    def took(self, peer: bytes, seconds: float) -> None:
        """What its piece took."""
        if one := self.consumers.get(peer):
            one.turn += seconds / one.share

    def forget(self, peer: bytes, numbers: Iterable[str]) -> None:
        """It does not want these any more."""
        if one := self.consumers.get(peer):
            gone = set(numbers)
            one.waiting = deque(w for w in one.waiting if w.number not in gone)

    def leave(self, peer: bytes) -> None:
        self.consumers.pop(peer, None)

    def lengths(self) -> Counter[str]:
        """How many pieces wait, by pipeline."""
        return Counter(w.of[0] for one in self.consumers.values() for w in one.waiting)
