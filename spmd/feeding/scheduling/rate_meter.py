"""How fast somebody is, from what it says of itself in beats: amounts and busy seconds.

In: numbers that only grow, with the time they came. Out: amounts in a second of work, and which
part of the time was spent waiting, over the last seconds.
Always holds: whoever starts anew (its numbers fall) is measured anew.
"""

from __future__ import annotations

from collections import deque
from itertools import pairwise

WINDOW_S = 6.0
LEAST_S = 0.05  # of work: less says nothing of a rate
SAMPLES = 256


class RateMeter:
    """Measures the rate of one consumer, or of one worker for one pipeline."""

    def __init__(self, window_s: float = WINDOW_S, rate: float | None = None) -> None:
        self.rate = rate  # amounts in a busy second; None: not known yet
        self.amount = 0.0  # the last that was said
        self._window_s = window_s
        self._seen: deque[tuple[float, float, float, float]] = deque(maxlen=SAMPLES)

    def see(self, now: float, amount: float, busy_s: float, waited_s: float = 0.0) -> None:
        """Record totals since the peer's start: an amount, and seconds busy and waiting."""
        if self._seen and (amount < self._seen[-1][1] or busy_s < self._seen[-1][2]):
            self._seen.clear()
        self._seen.append((now, amount, busy_s, waited_s))
        while len(self._seen) > 2 and self._seen[1][0] < now - self._window_s:
            self._seen.popleft()
        self.amount = amount
        first = self._seen[0]
        more, busy, took = amount - first[1], busy_s - first[2], now - first[0]
        if more > 0 and busy >= LEAST_S:
            self.rate = more / busy
        elif more > 0 and took >= self._window_s and waited_s - first[3] > took / 2:
            self.rate = max(self.rate or 0.0, more / LEAST_S)  # it is at least so fast

    def waiting(self, now: float, within_s: float = 5.0) -> float:
        """Return which part of the last seconds the peer waited."""
        recent = [s for s in self._seen if s[0] >= now - within_s]
        if len(recent) < 2:
            return 0.0
        first, last = recent[0], recent[-1]
        waited = last[3] - first[3]
        whole = waited + last[2] - first[2]
        return waited / whole if whole > 0 else 0.0

    def per_second(self, now: float, within_s: float = 3.0) -> float:
        """Return the amount per second of the clock over the last seconds."""
        recent = [s for s in self._seen if s[0] >= now - within_s]
        took = recent[-1][0] - recent[0][0] if len(recent) > 1 else 0.0
        return (recent[-1][1] - recent[0][1]) / took if took > 0 else 0.0

    def busy(self, now: float, within_s: float = 3.0) -> float:
        """Return which part of the last seconds the peer was busy."""
        parts = [(b[0] - a[0], b[2] - a[2]) for a, b in pairwise(self._seen)
                 if a[0] >= now - within_s]
        took = sum(clock for clock, _ in parts)
        return min(1.0, sum(work for _, work in parts) / took) if took > 0 else 0.0
