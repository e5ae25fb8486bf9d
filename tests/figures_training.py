"""A step of training in spmd, and in PyTorch on the same cores; prints one JSON line.

In: a part, and how many rounds. Out: seconds of a step with one and two ranks, and of PyTorch with
as many threads, eager and compiled, medians. Always holds: both train from the same weights on the
same data, and their first losses are compared before anything is measured.
"""

from __future__ import annotations

import json
import statistics
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np

import spmd
from examples import digits_cnn
from tests.figures_global import seconds

Run = Callable[[int], Any]  # makes so many steps, and gives their losses
RATE = 2e-3


# ---- a convolutional network on digits -----------------------------------------------------------


@spmd.program(mesh=("data",), layout={"batch": "data"})
def digits(batch: int = 100, wide: int = 16) -> Any:
    images, labels, *_ = digits_cnn.digits(batch)
    steps, many = spmd.scalar("steps", 1), spmd.Dim("batch", batch)
    x = spmd.input("x", (len(images), many, 8, 8, 1), np.float32, default=images)
    y = spmd.input("y", (len(images), many), np.int32, default=labels)
    tx, params = spmd.optim.adam(RATE), digits_cnn.start(wide)
    state, losses = tx.init(params), spmd.zeros(len(images), np.float32)
    for s in spmd.range(steps):
        k = s % len(images)
        losses[k], grads = spmd.value_and_grad(digits_cnn.loss_of)(params, x[k], y[k])
        updates, state = tx.update(grads, state, params)
        params = spmd.optim.apply_updates(params, updates)
    return losses


def torch_digits(batch: int = 100, wide: int = 16) -> Iterator[tuple[str, Run]]:
    """The same in PyTorch, in the memory order that suits it."""
    import torch
    from torch.nn import functional

    images, labels, *_ = digits_cnn.digits(batch)
    x = torch.tensor(images.reshape(-1, batch, 1, 8, 8))
    y = torch.tensor(labels.astype(np.int64))

    def forward(params: Any, x: Any, y: Any) -> Any:
        (w1, b1), (w2, b2), (w3, b3) = params
        x = functional.relu(functional.conv2d(x, w1, b1, padding=1))
        x = functional.relu(functional.conv2d(x, w2, b2, padding=1))
        x = functional.max_pool2d(x, 2).permute(0, 2, 3, 1).reshape(batch, -1)
        return functional.cross_entropy(x @ w3 + b3, y)

    def runner(loss_of: Any) -> Run:
        params = [[torch.tensor(np.moveaxis(p["w"], (-1, -2), (0, 1)) if p["w"].ndim > 2
                                else p["w"]), torch.tensor(p["b"])]
                  for p in digits_cnn.start(wide)]
        for pair in params:
            if pair[0].ndim == 4:
                pair[0] = pair[0].contiguous(memory_format=torch.channels_last)
        leaves = [p.requires_grad_() for pair in params for p in pair]
        tx = torch.optim.Adam(leaves, RATE, fused=True)

        def run(steps: int) -> Any:
            losses = []
            for s in range(steps):
                loss = loss_of(params, x[s % len(x)], y[s % len(x)])
                tx.zero_grad()
                loss.backward()
                tx.step()
                losses.append(loss.detach())
            return np.array([float(v) for v in losses])

        return run

    yield "eager", runner(forward)
    yield "compiled", runner(torch.compile(forward))


# ---- measuring -----------------------------------------------------------------------------------

# What a part measures: our program, PyTorch's steps, and how many steps a run has.
PARTS: dict[str, tuple[Any, Callable[[], Iterator[tuple[str, Run]]], int]] = {
    "digits": (digits, torch_digits, 60),
}


def measured(part: str, rounds: int) -> dict[str, float]:
    """Seconds of a step, by who makes it and with how many ranks or threads."""
    import torch

    program, theirs, steps = PARTS[part]
    with ExitStack() as stack:
        image = spmd.build(program)
        jobs = {n: stack.enter_context(image.open(ranks=n)) for n in (1, 2)}
        torch.set_num_threads(1)
        runs = dict(theirs())
        expected = np.asarray(jobs[1](steps=5))[:5]
        for run in runs.values():
            np.testing.assert_allclose(run(5), expected, 1e-3)
        ours: dict[str, Run] = {str(n): lambda s, j=j: j(steps=s)  # type: ignore[misc]
                                for n, j in jobs.items()}
        times: dict[str, list[float]] = {}
        for _ in range(rounds):
            for n in (1, 2):
                torch.set_num_threads(n)
                for name, run in [("ours", ours[str(n)]), *runs.items()]:
                    times.setdefault(f"{name} {n}", []).append(seconds(run, steps))
    return {name: statistics.median(t) for name, t in times.items()}


def main(part: str, rounds: str) -> None:
    print(json.dumps(measured(part, int(rounds))))


if __name__ == "__main__":
    main(*sys.argv[1:])
