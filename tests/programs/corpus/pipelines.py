"""Tables that are cleaned, joined and grouped, step after step, as people write them in NumPy."""

# mypy: ignore-errors
# ruff: noqa: C408 - arguments by their names, as a call has them

from dataclasses import dataclass
from typing import Any

import numpy as np

import spmd
from tests.programs.corpus.cases import case


@case(40, 100000, lambda n, r: dict(value=np.where(r(n) < 0.1, np.nan, r(n)),
                                    group=(6 * r(n)).astype(np.int64)))
def cleaned_and_grouped(value, group, groups=6):
    """Missing values become the mean of their group, outliers are cut, groups are ranked."""
    missing = np.isnan(value)
    known = np.where(missing, 0, value)
    count = np.bincount(group, weights=~missing, minlength=groups)
    mean = np.bincount(group, weights=known, minlength=groups) / np.maximum(count, 1)
    filled = np.where(missing, mean[group], value)
    z = (filled - filled.mean()) / filled.std()
    filled = filled[:] - np.where(np.abs(z) > 1.5, np.sign(z) * (np.abs(z) - 1.5), 0) * filled.std()
    totals = np.zeros(groups)
    np.add.at(totals, group, filled)
    return filled, totals, np.argsort(-totals)


@case(30, 50000, lambda n, r: dict(orders=(20 * r(n)).astype(np.int64), amount=r(n),
                                   keys=np.arange(0, 20, 2), price=r(10)))
def joined_tables(orders, amount, keys, price):
    """A left join by a sorted key, and sums per key."""
    place = np.searchsorted(keys, orders)
    place = np.minimum(place, len(keys) - 1)
    matched = keys[place] == orders
    cost = np.where(matched, amount * price[place], 0)
    per_key = np.bincount(place, weights=cost, minlength=len(keys))
    best = np.argmax(per_key)
    return cost, matched.sum(), per_key, keys[best]


@case(25, 50000, lambda n, r: dict(time=np.sort(r(n)), value=r(n), steps=12))
def resampled_series(time, value, steps):
    """Uneven samples on an even grid, smoothed, and the days of the largest jumps."""
    grid = np.linspace(0, 1, steps)
    even = np.interp(grid, time, value)
    smooth = np.convolve(even, np.ones(3) / 3, mode="same")
    jump = np.abs(np.diff(smooth))
    return smooth, np.argsort(jump)[::-1][:3], np.cumsum(smooth) / np.arange(1, steps + 1)


@dataclass
class Scaler:
    mean: Any
    std: Any

    def __call__(self, x):
        return (x - self.mean) / self.std


@case(24, 20000, lambda n, r: dict(x=r(n, 4), y=r(n)))
def feature_pipeline(x, y):
    """Steps as objects: scale, polynomial features, least squares, residuals."""
    scale = Scaler(x.mean(axis=0), x.std(axis=0))

    def features(z):
        columns = [np.ones(len(z))]
        columns += [z[:, i] for i in range(z.shape[1])]
        columns += [z[:, i] * z[:, j] for i in range(z.shape[1]) for j in range(i, z.shape[1])]
        return np.stack(columns, axis=1)

    design = features(scale(x))
    coefficients, *_ = np.linalg.lstsq(design, y, rcond=None)
    residual = y - design @ coefficients
    return coefficients, 1 - residual.var() / y.var(), np.max(np.abs(residual))


@case(16, 3000, lambda n, r: dict(events=(4 * r(n)).astype(np.int64), size=r(n)))
def state_machine(events, size):
    """A queue that fills and drains event by event: levels, losses, the longest wait."""
    capacity = 3.0
    level = lost = longest = waited = 0.0
    levels = np.zeros(len(events))
    for t in spmd.range(len(events)):
        if events[t] == 0:
            level = np.maximum(level - 1.0, 0.0)
            waited = 0.0
        elif level + size[t] > capacity:
            lost += size[t]
            waited += 1.0
        else:
            level += size[t]
        longest = np.maximum(longest, waited)
        levels[t] = level
    return levels, lost, longest


@case(12, 1500, lambda n, r: dict(text=(4 * r(n)).astype(np.int64), other=(4 * r(n)).astype(
    np.int64)))
def edit_distance(text, other):
    """Row after row of the table; a row is a running minimum."""
    row = np.arange(len(other) + 1)
    for i in spmd.range(len(text)):
        change = row[:-1] + (other != text[i])
        candidate = np.concatenate([row[:1] + 1, np.minimum(change, row[1:] + 1)])
        steps = np.arange(len(candidate))
        row = np.minimum.accumulate(candidate - steps) + steps
    return row[-1]
