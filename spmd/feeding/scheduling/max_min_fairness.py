"""Which pipeline should have which workers, where there are too few for all: max-min fairness.

In: how many workers pipelines want, how fast each worker is for each of them, what workers cost.
Out: parts of workers, so that the one that has least has as much as it can, or all that it wants.
A game of weights (Freund and Schapire 1999): who has least weighs most, and each worker works for
whom it does most. Always holds: of a worker no more is given than is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

import numpy as np
from numpy.typing import NDArray

Numbers = NDArray[np.float64]

TURNS = 240
SPEED = 4.0  # of the weights
STEP = 0.6  # of prices, where a limit of cost is passed

Parts = dict[str, dict[str, float]]  # pipeline -> worker -> part of its time


# Beside scipy.optimize.linprog (SciPy 1.17, highs-ipm; CPU time of one division, and of assign()):
#
#   pipelines, workers | here            | linprog
#   2, 10              | 7 ms, 10 ms     | 6 ms, 9 ms
#   2, 100             | 8 ms, 16 ms     | 4 ms, 11 ms
#   2, 1000            | 14 ms, 78 ms    | 15 ms, 85 ms (highs)
#   12, 1000           | 34 ms, 210 ms   | 151 ms, 256 ms (highs: 755 ms)
#
# The poorest has 0 to 3 % more by linprog, and workers are divided among fewer pipelines: 1,010
# shares of 1,000 workers, 7,193 here. But its corners jump: when rates change by 3 %, 5.8 % of the
# workers' time moves (12, 1000; here 1.2 %), 37 % where nothing was held before (here 7.5 %). It
# takes 0.4 s to import in the scheduler of each run, and other versions may decide otherwise.
def divided(
    wanted: Mapping[str, float], speeds: Mapping[str, Mapping[str, float]],
    free: Mapping[str, float], prices: Mapping[str, Mapping[str, float]],
    limits: Mapping[str, Mapping[str, float]],
) -> Parts:
    """Return which part of each worker's time each pipeline should have.

    wanted: in workers of speed 1. speeds: of pipelines and workers, on that scale. prices: of
    workers, by "cost" and "energy". limits: of pipelines, the same.
    """
    names, workers = list(wanted), list(free)
    times = np.array([free[w] for w in workers])
    worth = {n: np.array([speeds[n][w] for w in workers]) * times for n in names}
    dear = {n: {resource: np.array([prices[w].get(resource, 0.0) for w in workers]) * times / limit
                for resource, limit in limits[n].items()} for n in names}
    got = dict.fromkeys(names, 0.0)  # in all turns
    mean = sum(map(_sum, worth.values())) / len(names) ** 2 or 1.0
    extra = {(n, resource): 0.0 for n in names for resource in limits[n]}
    counts = {n: np.zeros(len(workers), np.int64) for n in names}
    skipped = TURNS // 4  # turns in which weights are not yet about right
    for turn in range(TURNS):
        poor = [n for n in names if got[n] < wanted[n] * turn] or names
        least = min(got[n] for n in poor)
        values = [
            (worth[n] - sum(extra[n, resource] * dear[n][resource] for resource in limits[n]))
            * exp(-SPEED * (got[n] - least) / (mean * (turn + 1) ** 0.5)) for n in poor]
        best = np.where(np.max(values, axis=0) > 0, np.argmax(values, axis=0), len(poor))
        for n in names:
            mine = best == (poor.index(n) if n in poor else -1)
            got[n] = _sum(worth[n][mine], got[n])
            counts[n] += mine if turn >= skipped else 0
            for resource, cost in dear[n].items():  # a limit that is passed makes workers dearer
                spent = _sum(cost[mine])
                extra[n, resource] = max(0.0, extra[n, resource] + STEP * mean * (spent - 1.0)
                                         / (turn + 1) ** 0.5)
    return {n: {w: int(count) / (TURNS - skipped) * free[w]
                for w, count in zip(workers, row, strict=True) if count}
            for n, row in counts.items()}


def _sum(values: Numbers, start: float = 0.0) -> float:
    """Return the sum of values added one by one: the order gives the same bits on every machine."""
    return float(np.cumsum(np.concatenate([[start], values]))[-1])
