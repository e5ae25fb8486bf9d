"""Work that waits at a worker, and whose turn it is: its time follows the shares of consumers.

In: pieces of work, the share of each consumer, what each piece took. Out: the next piece: of whom
has had the least time for its share. Always holds: who was idle has no credit; who has a limit of
cost or energy has no more than its share; who has no share begins when nobody with one has asked
for as long as its last piece took, and has a twentieth of the time where they never stop asking.
"""

from __future__ import annotations

from collections import Counter, deque
from math import inf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Any

LEAST = 1e-6  # a share below this is taken for it
FIRST_S = 5e-3  # what a piece takes, as long as it is not known
SELDOM = 20  # times what its last piece took: after so long one is begun without such a gap
SAVED_S = 1.0  # of time that one with a limit did not use, and may use later
MOST = 4096  # pieces that wait, of one consumer: its credits are far fewer


class QueuedWork:
    """A piece of work that waits. of: name and version of its pipeline."""

    __slots__ = ("count", "first", "left_out", "number", "of", "peer", "take", "through")

    def __init__(self, peer: bytes, take: Any, item: list[Any]) -> None:
        self.peer, self.take = peer, take
        self.of = take["pipeline"], take["version"]
        self.number, self.first, self.count, self.through, self.left_out = item


class ConsumerTurn:
    """Holds one consumer's waiting work, and the time that it has had, over its share.

    not_before: when it may have its next piece, where it is held to its share. behind: it has what
    all leave that are behind fewer; 0: it has a share.
    """

    def __init__(self) -> None:
        self.waiting: deque[QueuedWork] = deque()
        self.turn, self.share = 0.0, 1.0
        self.not_before = 0.0
        self.behind, self.pipeline = 0, ""


class FairQueue:
    """Orders the work of a worker's consumers by their shares of its time."""

    def __init__(self) -> None:
        self.consumers: dict[bytes, ConsumerTurn] = {}
        self.held_up: set[bytes] = set()  # their turn comes when they take what is on its way
        self._now: dict[int, float] = {}  # by `behind`: the turn of whoever was served last
        self._left_at = 0.0  # when the last piece of one with a share ended
        # By pipeline: what the last piece took, whoever's, and when it ended; or since when one of
        # a pipeline without a share waits that had none.
        self._pieces: dict[str, tuple[float, float]] = {}
        self._free_at = 0.0  # when nobody with a share had asked for anything
        self._none_before = 0.0  # of those without a share is begun while others wait

    def due_in(self, now: float) -> float:
        """Return in how many seconds there is work to do; infinite where none waits."""
        return min((max(0.0, self._due(consumer) - now) for peer, consumer in self.consumers.items()
                    if consumer.waiting and peer not in self.held_up), default=inf)

    def _due(self, consumer: ConsumerTurn) -> float:
        """Return when a consumer may have its next piece. Spare time is due once consumers with a
        share have asked nothing for the time of a piece: they have more than that ready, and can
        wait for so long. A piece that was slow by chance shuts nobody out."""
        if not consumer.behind:
            return consumer.not_before
        seconds, _ = self._pieces.get(consumer.pipeline, (FIRST_S, inf))
        return min(self._left_at + seconds, self._seldom(consumer))

    def _seldom(self, consumer: ConsumerTurn, since: float = 0.0) -> float:
        """Return when a consumer of spare time is due without a gap: counted from its pipeline's
        last piece, or from `since` if later."""
        seconds, ended = self._pieces.get(consumer.pipeline, (FIRST_S, inf))
        return max(ended, since) + SELDOM * seconds

    def add(self, peer: bytes, share: float | None, works: Iterable[QueuedWork],
            behind: int = 0) -> None:
        """Queue work of a consumer, and set its share of this worker from now on."""
        consumer = self.consumers.setdefault(peer, ConsumerTurn())
        if consumer.behind != behind:
            consumer.turn = 0.0  # of another clock
        if consumer.behind != behind or not consumer.waiting:
            consumer.turn = max(consumer.turn, self._now.get(behind, 0.0))
        consumer.behind = behind
        if share is not None:
            consumer.share = max(share, LEAST)
        for work in works:
            if len(consumer.waiting) < MOST:
                consumer.waiting.append(work)
                consumer.pipeline = work.of[0]

    def next(self, now: float) -> QueuedWork | None:
        """Return the next work of the consumer that had the least time for its share; the newest
        first where it asks for that."""
        asking = [consumer for peer, consumer in self.consumers.items()
                  if consumer.waiting and peer not in self.held_up]
        for consumer in asking:
            if consumer.behind and consumer.pipeline not in self._pieces:
                self._pieces[consumer.pipeline] = FIRST_S, now
        if all(consumer.behind for consumer in asking):
            self._free_at = now
        waiting = [consumer for consumer in asking if self._due(consumer) <= now]
        if not waiting:
            return None
        consumer = self._longest_left_out(waiting, now) or min(
            waiting, key=lambda c: (c.behind, c.turn))
        self._now[consumer.behind] = consumer.turn
        newest_first = consumer.waiting[-1].take["newest_first"]
        return consumer.waiting.pop() if newest_first else consumer.waiting.popleft()

    def _longest_left_out(self, waiting: list[ConsumerTurn], now: float) -> ConsumerTurn | None:
        """Return the consumer of spare time that goes before all others once, since they have left
        it none for long; or None."""
        starved = [consumer for consumer in waiting
                   if consumer.behind and self._seldom(consumer, self._free_at) <= now]
        return min(starved, key=lambda c: self._pieces[c.pipeline][1], default=None) if (
            now >= self._none_before) else None

    def took(self, peer: bytes, seconds: float, now: float, held: bool = False) -> None:
        """Record how many seconds a consumer's piece took. held: it may have its share, and no
        more."""
        consumer = self.consumers.get(peer)
        if consumer:
            self._pieces[consumer.pipeline] = seconds, now
        if consumer and consumer.behind:
            consumer.turn += seconds
            self._none_before = now + SELDOM * seconds
            return
        self._left_at = now
        if consumer:
            consumer.turn += seconds / consumer.share
            # A while that it did not use counts for it, but not a long one.
            began = max(consumer.not_before, now - seconds - SAVED_S)
            consumer.not_before = began + seconds / consumer.share if held else 0.0

    def forget(self, peer: bytes, numbers: Iterable[str]) -> None:
        """Drop work that a consumer no longer wants."""
        if consumer := self.consumers.get(peer):
            gone = set(numbers)
            consumer.waiting = deque(w for w in consumer.waiting if w.number not in gone)

    def leave(self, peer: bytes) -> None:
        self.consumers.pop(peer, None)

    def lengths(self) -> Counter[str]:
        """Return by pipeline how many pieces wait."""
        return Counter(w.of[0] for consumer in self.consumers.values() for w in consumer.waiting)
