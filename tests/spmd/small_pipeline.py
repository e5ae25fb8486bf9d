"""A small pipeline for the command line: its parameters say schedule, sizes and place."""

import numpy as np

import spmd
from spmd import optim


def middle(w, h):
    return np.tanh(h @ w)


def last(w, h, y):
    return np.mean((h @ w - y) ** 2)


@spmd.program(mesh=("data", "stage"), layout={"batch": "data"})
def train(
    schedule: str = "1f1b", stages: int = 4, microbatches: int = 2, place: str = "block",
    turns: int = 3,
):
    steps = spmd.scalar("steps", turns)
    x = spmd.input("x", (spmd.Dim("batch", 24), 4), np.float64,
                   default=lambda i, j: np.sin(5 * i + j))
    layers = [*((middle, np.eye(4) * (k + 2) / 5) for k in range(stages)), (last, np.eye(4))]
    pipe = spmd.pipeline(layers, stages=stages, microbatches=microbatches, schedule=schedule,
                         place=place, optimizer=optim.sgd(0.1))
    state, loss = pipe.init(), spmd.asarray(0.0)
    spmd.print("started")
    for _ in spmd.range(steps):
        state, loss = pipe.step(state, x, x)
    return {"loss": loss, "drained": pipe.params(pipe.drain(state))[0]}
