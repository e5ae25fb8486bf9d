"""A pipeline whose layers sleep in the place of computing: forward for a unit, backward for two."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from spmd import optim

nap = spmd.c_kernel("nap.c", "void nap(const double *x, double seconds, double *out, int64_t n)")


def one_f_one_b(s: Any, p: Any, k: Any, m: Any) -> Any:
    """1F1B as a formula: nobody waits but for the stages beside it."""
    return {"F": np.where(k < p - s, s + k, 2 * k + s), "B": 2 * (k + p) - 1 - s}


@spmd.program(mesh=("stage",))
def train(
    stages: int = 4, microbatches: int = 8, unit: float = 0.01, schedule: str = "1f1b",
) -> Any:
    def sleeps(h: Any, units: int) -> Any:
        return nap(h, units * unit, out=spmd.like(h))

    @spmd.custom_vjp
    def asleep(h: Any) -> Any:
        return sleeps(h, 1)

    asleep.defvjp(lambda h: (sleeps(h, 1), None), lambda _, g: (sleeps(g, 2),))

    def layer(w: Any, h: Any) -> Any:
        return asleep(h) * w

    def last(w: Any, h: Any, y: Any) -> Any:
        return np.mean((asleep(h) * w - y) ** 2)

    steps = spmd.scalar("steps", 1)
    x = spmd.input("x", (microbatches,), np.float64, default=lambda i: i)
    layers = [*((layer, np.ones(()) + k / 100) for k in range(stages - 1)), (last, np.ones(()))]
    pipe = spmd.pipeline(layers, stages=stages, microbatches=microbatches, optimizer=optim.sgd(0.0),
                         schedule=one_f_one_b if schedule == "formula" else schedule)
    state, loss = pipe.init(), spmd.asarray(0.0)
    for _ in spmd.range(steps):
        state, loss = pipe.step(state, x, x)
    return loss
