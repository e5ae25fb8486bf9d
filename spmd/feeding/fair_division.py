"""Which pipeline should have which workers, where there are too few for all: max-min fairness.

In: how many workers pipelines want, how fast each worker is for each of them, what workers cost.
Out: parts of workers, so that the one that has least has as much as it can, or all that it wants.
A game of weights (Freund and Schapire 1999): who has least weighs most, and each worker works for
whom it does most. Always holds: of a worker no more is given than is free.
"""

from __future__ import annotations

from collections.abc import Mapping
from math import exp

TURNS = 240
SPEED = 4.0  # of the weights
STEP = 0.6  # of prices, where a limit of cost is passed

Parts = dict[str, dict[str, float]]  # pipeline -> worker -> part of its time


def divided(
    wanted: Mapping[str, float], speeds: Mapping[str, Mapping[str, float]],
    free: Mapping[str, float], prices: Mapping[str, Mapping[str, float]],
    limits: Mapping[str, Mapping[str, float]],
) -> Parts:
    """wanted: in workers of speed 1. speeds: of pipelines and workers, on that scale. prices: of
    workers, by "cost" and "energy". limits: of pipelines, the same."""
    names = list(wanted)
    worth = {n: {w: speeds[n][w] * part for w, part in free.items()} for n in names}
    dear = {n: {(what, w): prices[w].get(what, 0.0) * part / limit
                for what, limit in limits[n].items() for w, part in free.items()} for n in names}
    got = dict.fromkeys(names, 0.0)  # in all turns
    mean = sum(sum(row.values()) for row in worth.values()) / len(names) ** 2 or 1.0
    extra = {(n, what): 0.0 for n in names for what in limits[n]}
    given: Parts = {n: dict.fromkeys(free, 0.0) for n in names}
    skipped = TURNS // 4  # turns in which weights are not yet about right
    for turn in range(TURNS):
        poor = [n for n in names if got[n] < wanted[n] * turn] or names
        least = min(got[n] for n in poor)
        weight = {n: exp(-SPEED * (got[n] - least) / (mean * (turn + 1) ** 0.5)) for n in poor}
        spent = dict.fromkeys(extra, 0.0)
        for w in free:
            best, who = 0.0, ""
            for n in poor:
                value = worth[n][w]
                if dear[n]:
                    value -= sum(extra[n, what] * dear[n][what, w] for what in limits[n])
                if value * weight[n] > best:
                    best, who = value * weight[n], n
            if who:
                got[who] += worth[who][w]
                for what in limits[who]:
                    spent[who, what] += dear[who][what, w]
                if turn >= skipped:
                    given[who][w] += 1.0
        for key, price in extra.items():  # a limit that is passed makes workers dearer
            extra[key] = max(0.0, price + STEP * mean * (spent[key] - 1.0) / (turn + 1) ** 0.5)
    return {n: {w: count / (TURNS - skipped) * free[w] for w, count in row.items() if count}
            for n, row in given.items()}
