"""Pipelines in plain Python: layers with derivatives written by hand, ticks one after the other.

It shares no code with spmd.pipeline. Layers hand on a pair of arrays: h, whose width differs from
layer to layer, and a shortcut, which passes.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

# mypy: ignore-errors

SKIP = 3  # the width of the shortcut


# ---- layers, for spmd and for NumPy


def begin(w, x):
    return {"h": np.tanh(x @ w["a"] + w["b"]), "skip": x @ w["s"]}


def narrow(w, t):
    return {"h": np.tanh(t["h"] @ w["a"]), "skip": t["skip"] * w["s"]}


def residual(w, t):
    return {"h": t["h"] + np.tanh(t["h"] @ w["a"]) @ w["c"], "skip": t["skip"]}


def end(w, t, y):
    return np.mean((t["h"] @ w["o"] + t["skip"] @ w["q"] - y) ** 2)


# ---- the same with what their way back reads, and that way


def begin_kept(w, x):
    t = begin(w, x)
    return t, (x, t["h"])


def begin_back(w, kept, d):
    x, h = kept
    z = d["h"] * (1 - h * h)
    return {"a": x.T @ z, "b": z.sum(axis=0), "s": x.T @ d["skip"]}, None


def narrow_kept(w, t):
    new = narrow(w, t)
    return new, (t["h"], new["h"], t["skip"])


def narrow_back(w, kept, d):
    h, new, skip = kept
    z = d["h"] * (1 - new * new)
    slopes = {"a": h.T @ z, "s": (skip * d["skip"]).sum(axis=0)}
    return slopes, {"h": z @ w["a"].T, "skip": d["skip"] * w["s"]}


def residual_kept(w, t):
    u = np.tanh(t["h"] @ w["a"])
    return {"h": t["h"] + u @ w["c"], "skip": t["skip"]}, (t["h"], u)


def residual_back(w, kept, d):
    h, u = kept
    z = (d["h"] @ w["c"].T) * (1 - u * u)
    return {"a": h.T @ z, "c": u.T @ d["h"]}, {"h": d["h"] + z @ w["a"].T, "skip": d["skip"]}


def end_each(w, t, y):
    """The loss of each example, for batches with a mask."""
    return np.mean((t["h"] @ w["o"] + t["skip"] @ w["q"] - y) ** 2, axis=1)


def end_kept(w, t, y):
    error = t["h"] @ w["o"] + t["skip"] @ w["q"] - y
    loss = np.mean(error**2) if error.size else 0.0
    return loss, (t["h"], t["skip"], error)


def end_back(w, kept, d):
    h, skip, error = kept
    e = 2 * error / error.size * d
    return {"o": h.T @ e, "q": skip.T @ e}, {"h": e @ w["o"].T, "skip": e @ w["q"].T}


FORWARD = {begin: begin_kept, narrow: narrow_kept, residual: residual_kept, end: end_kept}
BACKWARD = {begin: begin_back, narrow: narrow_back, residual: residual_back, end: end_back}


def network(random, count, inputs=4, outputs=2):
    """Return (layer, weights) of so many layers, of drawn kinds and widths."""
    def normal(*shape):
        return random.standard_normal(shape) * 0.4

    width = int(random.integers(3, 7))
    layers = [(begin, {"a": normal(inputs, width), "b": normal(width), "s": normal(inputs, SKIP)})]
    for _ in range(count - 2):
        if random.integers(2):
            inner = int(random.integers(2, 9))
            layers.append((residual, {"a": normal(width, inner), "c": normal(inner, width)}))
        else:
            new = int(random.integers(3, 7))
            layers.append((narrow, {"a": normal(width, new), "s": 1 + normal(SKIP)}))
            width = new
    return [*layers, (end, {"o": normal(width, outputs), "q": normal(SKIP, outputs)})]


# ---- optimizers


class SGD:
    def __init__(self, rate):
        self.rate = rate

    def begin(self, w):
        return None

    def update(self, w, slopes, state):
        return {k: w[k] - self.rate * slopes[k] for k in w}, state


class AdamW:
    def __init__(self, rate, b1=0.9, b2=0.999, eps=1e-8, decay=1e-4):
        self.rate, self.b1, self.b2, self.eps, self.decay = rate, b1, b2, eps, decay

    def begin(self, w):
        return 0, {k: 0 * x for k, x in w.items()}, {k: 0 * x for k, x in w.items()}

    def update(self, w, slopes, state):
        count, m, v = state
        count += 1
        m = {k: self.b1 * m[k] + (1 - self.b1) * slopes[k] for k in w}
        v = {k: self.b2 * v[k] + (1 - self.b2) * slopes[k] ** 2 for k in w}
        new = {}
        for k in w:
            step = m[k] / (1 - self.b1**count)
            step /= np.sqrt(v[k] / (1 - self.b2**count)) + self.eps
            new[k] = w[k] - self.rate * (step + self.decay * w[k])
        return new, (count, m, v)


# ---- training


def plain(layers, optimizer, xs, ys, microbatches):
    """Return losses and weights of plain training: each step averages over its microbatches."""
    losses: list[float] = []
    ws = plain_steps(layers, optimizer, [(x, y, microbatches) for x, y in zip(xs, ys)], losses)
    return np.array(losses), ws


def plain_steps(layers, optimizer, steps, losses=None):
    """Return the weights after steps with batches x, y of so many microbatches; put the losses into
    a list."""
    functions, ws = [f for f, _ in layers], [dict(w) for _, w in layers]
    states = [optimizer.begin(w) for w in ws]
    for x, y, microbatches in steps:
        total, sums = 0.0, [dict.fromkeys(w, 0.0) for w in ws]
        for part, target in zip(np.split(x, microbatches), np.split(y, microbatches)):
            t, kept = part, []
            for f, w in zip(functions, ws):
                t, some = FORWARD[f](w, t, *([target] if f is end else []))
                kept.append(some)
            total, d = total + t / microbatches, 1.0
            for k in reversed(range(len(ws))):
                slopes, d = BACKWARD[functions[k]](ws[k], kept[k], d)
                sums[k] = {n: sums[k][n] + g / microbatches for n, g in slopes.items()}
        if losses is not None:
            losses.append(total)
        for k in range(len(ws)):
            ws[k], states[k] = optimizer.update(ws[k], sums[k], states[k])
    return ws


class Stage:
    """Some layers, what they keep of microbatches in flight, and the gradients that they have.

    reads: the weights that a backward pass reads: those of its own time ("now"), of its forward
    pass ("then"), or an estimate of these, for which at most so many updates are crossed.
    """

    def __init__(self, layers, optimizer, reads="now", crossed=0):
        self.functions, self.ws = [f for f, _ in layers], [dict(w) for _, w in layers]
        self.optimizer, self.states = optimizer, [optimizer.begin(w) for _, w in layers]
        self.kept, self.sums, self.count, self.weight = {}, None, 0, 0
        self.reads, self.stash, self.slopes = reads, {}, {}
        self.decay = np.exp(-2.0) ** (1 / crossed) if crossed else 0.0
        self.updates, self.begun = 0, {}
        self.changes = [{n: 0 * x for n, x in w.items()} for w in self.ws]

    def forward(self, k, t, y):
        self.stash[k], self.begun[k] = list(self.ws), self.updates
        for number, (f, w) in enumerate(zip(self.functions, self.ws)):
            t, self.kept[k, number] = FORWARD[f](w, t, *([y] if f is end else []))
        return t

    def read_back(self, k):
        crossed, then = self.updates - self.begun.pop(k), self.stash.pop(k)
        if self.reads == "estimate":
            return [{n: x - crossed * change[n] for n, x in w.items()}
                    for w, change in zip(self.ws, self.changes)]
        return then if self.reads == "then" else self.ws

    def backward(self, k, d):
        """Return the gradient of the input; those of the weights wait for `gradients`."""
        ws = self.read_back(k)
        self.slopes[k] = [None] * len(ws)
        for number in reversed(range(len(ws))):
            f, kept = self.functions[number], self.kept.pop((k, number))
            self.slopes[k][number], d = BACKWARD[f](ws[number], kept, d)
        return d

    def gradients(self, k, weight):
        sums = self.sums or [dict.fromkeys(w, 0.0) for w in self.ws]
        self.sums = [{n: have[n] + weight * g for n, g in slopes.items()}
                     for have, slopes in zip(sums, self.slopes.pop(k))]
        self.weight, self.count = self.weight + weight, self.count + 1

    def update(self):
        for number, sums in enumerate(self.sums):
            slopes = {n: g / self.weight for n, g in sums.items()}
            before = self.ws[number]
            self.ws[number], self.states[number] = self.optimizer.update(
                before, slopes, self.states[number])
            self.changes[number] = {
                n: self.decay * change + (1 - self.decay) * (self.ws[number][n] - before[n])
                for n, change in self.changes[number].items()}
        self.sums, self.count, self.weight, self.updates = None, 0, 0, self.updates + 1


def without_flush(
    layers: Sequence[Any], cuts: Sequence[int], optimizer: Any, xs: np.ndarray, ys: np.ndarray,
    microbatches: int, accumulate: int | str,
    ticks: Callable[[int, int, int], tuple[int, ...]] = lambda s, p, k: (
        2 * k + s, 2 * (k + p) - 1 - s), reads: str = "now", crossed: Sequence[int] = (),
    period: int = 2, masks: np.ndarray | None = None,
) -> Any:
    """Return losses and weights where each stage is updated as soon as its gradients are there.

    ticks: of F and B of microbatch k at stage s of p, and of W if that is apart; a microbatch comes
    `period` ticks behind the one before. All that is in flight behind the last step is brought to
    its end. reads: as of Stage; crossed: of each stage. masks: which examples are there, of each
    batch; a microbatch then weighs as many as it has.
    """
    p, count = len(cuts) - 1, len(xs) * microbatches
    stages = [Stage(layers[a:b], optimizer, reads, most)
              for a, b, most in zip(cuts, cuts[1:], crossed or [0] * p)]
    parts = [part for x in xs for part in np.split(x, microbatches)]
    targets = [part for y in ys for part in np.split(y, microbatches)]
    weights = [1] * count
    if masks is not None:
        there = [part for mask in masks for part in np.split(mask, microbatches)]
        parts = [part[mask] for part, mask in zip(parts, there)]
        targets = [part[mask] for part, mask in zip(targets, there)]
        weights = [np.sum(mask) for mask in there]
    losses = [[] for _ in xs]
    forth, back = {}, {}
    actions, apart = {}, len(ticks(0, p, 0)) == 3
    for s in range(p):
        for k in range(count):
            actions |= {(t, s): (kind, k) for t, kind in zip(ticks(s, p, k), "FBW")}
    for tick in range(max(t for t, _ in actions) + 1):
        sent_forth, sent_back = {}, {}
        for s, stage in enumerate(stages):
            kind, k = actions.get((tick, s), ("", 0))
            if kind == "F":
                given = parts[k] if s == 0 else forth.pop((s, k))
                sent_forth[s + 1, k] = stage.forward(k, given, targets[k])
                if s == p - 1 and tick < len(xs) * period * microbatches:
                    losses[tick // (period * microbatches)] += [sent_forth[s + 1, k]] * weights[k]
            elif kind == "B":
                d = 1.0 if s == p - 1 else back.pop((s, k))
                sent_back[s - 1, k] = stage.backward(k, d)
            if kind == "W" or (kind == "B" and not apart):
                stage.gradients(k, weights[k])
            due = ((tick + 1) % int(accumulate.split()[0]) == 0 if isinstance(accumulate, str)
                   else stage.count == accumulate)
            if stage.count and due:
                stage.update()
        forth.update(sent_forth)
        back.update(sent_back)
    for stage in stages:
        if stage.count:
            stage.update()
    means = [np.mean(some) if some else np.nan for some in losses]
    return np.array(means), [w for stage in stages for w in stage.ws]
