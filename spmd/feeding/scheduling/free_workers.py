"""Workers with free time, in the order in which a consumer takes them.

In: a pool, and every change of it. Out: workers one after the other, the most fitting first. Used
by worker_shares.py. Always holds: to find the next worker is no look at each of them.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right, insort
from math import inf

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from spmd.feeding.scheduling.worker_shares import Budget, Need, Pool

    Line = list[tuple[float, int, str]]  # (minus how much or how fast, place, worker), in order

SLIVER = 0.01  # of a worker: less than this is nothing
NEARLY_ALL = 1 - 1e-9


class FreeWorkers:
    """Some of the workers of a pool, `members` in their order."""

    def __init__(self, members: Iterable[str], pool: Pool) -> None:
        self.pool = pool
        self.place = {worker: k for k, worker in enumerate(members)}
        self.whole = {w for w in self.place if pool.left[w] == 1.0}
        self.parts: Line = sorted((-left, k, w) for w, k in self.place.items()
                                  if SLIVER <= (left := pool.left[w]) < 1.0)
        self.fastest: dict[str, tuple[Mapping[str, float], Line]] = {}  # whole ones, by pipeline
        # By pipeline: of whom its budget allows no sliver, and what may be had of each yet.
        self.refused: dict[str, dict[str, float]] = {}
        self.allowed: dict[str, set[str]] = {}  # whole ones without those

    def changed(self, worker: str, before: float) -> None:
        """Update the order after a worker's free time has changed. before: how much was free
        then."""
        left, place = self.pool.left[worker], self.place[worker]
        if before == 1.0:
            for whole in (self.whole, *self.allowed.values()):
                whole.discard(worker)
            for speeds, line in self.fastest.values():
                del line[bisect_left(line, (-speeds[worker], place))]
        elif before >= SLIVER:
            del self.parts[bisect_left(self.parts, (-before, place))]
        if left >= SLIVER:
            insort(self.parts, (-left, place, worker))

    def refuse(self, pipeline: str, worker: str, most: float) -> None:
        """Note that the budget of a pipeline allows no sliver of this worker, and how many
        examples/s at most. It will never allow more: budgets shrink."""
        if pipeline not in self.refused:
            self.refused[pipeline], self.allowed[pipeline] = {}, set(self.whole)
        self.refused[pipeline][worker] = most
        self.allowed[pipeline].discard(worker)

    def in_order(self, d: Need, want: float, budget: Budget) -> Iterator[str]:
        """Yield whole workers while a whole one is needed, the fastest first; then, of partly used
        ones, the one with the least time left that is enough; else whatever is left."""
        line, index = self._line(d), 0
        refused = self.refused.get(d.pipeline, {})
        if want < SLIVER * d.fastest and want <= max(refused.values(), default=0.0):
            refused = {}  # so little may be had of them
        whole = self.allowed[d.pipeline] if refused else self.whole
        while index < len(line):
            worker = line[index][2]
            if worker not in d.avoids:
                if d.speeds[worker] > want:
                    break  # one is enough for the rest
                want -= d.speeds[worker]
                yield worker
            index += index < len(line) and line[index][2] == worker  # else it was taken
        if worker := self._just_enough(d, want, line):
            yield worker
        if not budget.is_full():
            yield from sorted(whole, key=self.place.__getitem__)
        yield from [worker for _, _, worker in self.parts if worker not in refused]

    def _line(self, d: Need) -> Line:
        if d.pipeline not in self.fastest:
            line = sorted((-d.speeds[w], self.place[w], w) for w in self.whole)
            self.fastest[d.pipeline] = d.speeds, line
        return self.fastest[d.pipeline][1]

    def _just_enough(self, d: Need, want: float, line: Line) -> str:
        """Return, of the workers with enough time left, the one with the least, then the slowest;
        or ""."""
        candidates: list[tuple[float, float, int, str]] = []
        least = want / d.fastest * NEARLY_ALL  # nobody with less is enough
        for left, place, worker in reversed(self.parts[:bisect_right(self.parts, (-least, inf))]):
            if candidates and -left > candidates[0][0]:
                break
            if -left * d.speeds[worker] >= want and worker not in d.avoids:
                candidates.append((-left, d.speeds[worker], place, worker))
        if candidates:
            return min(candidates)[3]
        enough = line[:bisect_right(line, (-want, inf))]
        if d.avoids:
            enough = [entry for entry in enough if entry[2] not in d.avoids]
        return enough[bisect_left(enough, (enough[-1][0],))][2] if enough else ""
