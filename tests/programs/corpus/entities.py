"""Classes that keep state between calls, with entries, as people write them.

`CALLS` has for each class what is called, in order. A form of layout is in the rules of `program`.
"""

# mypy: ignore-errors

import numpy as np

import spmd

N = 11
rows = spmd.Dim("rows", N)


class RunningStatistics:
    """Welford's mean and variance of rows that come in batches."""

    def __init__(self, columns: int = 3):
        self.columns = columns
        self.count = 0
        self.mean = np.zeros(columns)
        self.spread = np.zeros(columns)

    @spmd.entry
    def push(self):
        x = spmd.input("x", (rows, self.columns), np.float64)
        n = x.shape[0]
        mean = x.mean(axis=0)
        delta = mean - self.mean
        total = self.count + n
        self.spread += ((x - mean) ** 2).sum(axis=0) + delta**2 * self.count * n / total
        self.mean += delta * n / total
        self.count = total

    @spmd.entry
    def result(self):
        return {"mean": self.mean, "variance": self.spread / np.maximum(self.count - 1, 1)}


class OnlineRegression:
    """Recursive least squares, and predictions with what is known so far."""

    def __init__(self, features: int = 4):
        self.features = features
        self.w = np.zeros(features)
        self.p = 100.0 * np.eye(features)

    @spmd.entry
    def learn(self):
        x = spmd.input("x", (rows, self.features), np.float64)
        y = spmd.input("y", (rows,), np.float64)
        gain = self.p @ x.T @ np.linalg.inv(np.eye(x.shape[0]) + x @ self.p @ x.T)
        error = y - x @ self.w
        self.w = self.w + gain @ error
        self.p = self.p - gain @ x @ self.p
        return {"error": np.mean(error**2)}

    @spmd.entry
    def predict(self):
        x = spmd.input("x", (rows, self.features), np.float64)
        return x @ self.w


class Particles:
    """Particles whose positions stay on the ranks; each call moves them, another one looks."""

    def __init__(self, seed: int = 1):
        self.x = spmd.random.uniform(seed, (rows, 2))
        self.v = spmd.random.normal(seed + 1, (rows, 2), 0, 0.1)
        self.time = 0.0

    @spmd.entry
    def step(self):
        dt = spmd.scalar("dt", 0.1)
        self.v -= dt * (self.x - 0.5)
        self.x += dt * self.v
        outside = (self.x < 0) | (self.x > 1)
        self.v = np.where(outside, -self.v, self.v)
        self.x = np.clip(self.x, 0, 1)
        self.time += dt

    @spmd.entry
    def look(self):
        return {"centre": self.x.mean(axis=0), "energy": 0.5 * np.sum(self.v**2),
                "time": self.time}


class Cache:
    """A table of rows under keys, written and read; the last written row is kept."""

    def __init__(self, width: int = 3):
        self.width = width
        self.table = spmd.zeros((rows, width))
        self.hits = spmd.zeros((rows,), np.int64)

    @spmd.entry
    def put(self):
        keys = spmd.input("keys", (4,), np.int64)
        values = spmd.input("values", (4, self.width), np.float64)
        self.table[keys] = values

    @spmd.entry
    def get(self):
        keys = spmd.input("keys", (4,), np.int64)
        np.add.at(self.hits, keys, 1)
        return {"values": self.table[keys], "hits": self.hits}


_draw = np.random.default_rng(0)
_x = _draw.random((N, 4))
CLASSES = {
    RunningStatistics: [("push", {"x": _x[:, :3]}), ("push", {"x": 2 * _x[:, 1:]}), ("result", {})],
    OnlineRegression: [("learn", {"x": _x, "y": _x @ np.arange(4.0)}), ("predict", {"x": _x[::-1]}),
                       ("learn", {"x": _x**2, "y": _x[:, 0]}), ("predict", {"x": _x})],
    Particles: [("step", {}), ("step", {"dt": 0.5}), ("look", {})],
    Cache: [("put", {"keys": np.array([1, 5, 7, 10]), "values": _x[:4, :3]}),
            ("get", {"keys": np.array([5, 5, 2, 10])}), ("get", {"keys": np.array([0, 5, 7, 7])})],
}
