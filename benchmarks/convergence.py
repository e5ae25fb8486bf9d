"""How well networks learn in pipelines that never wait, beside 1F1B; a JSON line for each training.

In: networks, stages, how many gradients an update takes, corrections, seeds; or nothing for all.
Out: the mean loss of the last microbatches, a median over seeds. Always holds: all trainings of a
network begin with the same weights and see the same microbatches, in one order.
"""

from __future__ import annotations

import argparse
import json
import statistics
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks.running import json_lines, table
from codegen.trace.state import fill, flatten
from spmd import optim
from tests.spmd import pipeline_networks as networks

STAGES, EVERY, SEEDS = (2, 4, 8, 16), (4, 1), 5
CORRECTIONS = ("continuous", "pipedream", "2bw", "pipemare")
STEPS, MICROBATCHES, SIZE = 300, 4, 4  # SIZE: examples of a microbatch
LAST = 60  # steps whose losses are averaged
RATE = 2e-3


def more_conv(w: Any, x: Any) -> Any:
    return x + networks.conv(w, x)


def conv_of_16(steps: int, batch: int, seed: int, dtype: Any) -> networks.Network:
    """14 windows of 3 by 3, all but the first and the last beside a shortcut."""
    new, wide = networks.Drawn(seed, dtype), 4

    def windows(inputs: int, scale: float) -> Any:
        return {"w": new(3, 3, inputs, wide, std=scale * (2 / (9 * inputs)) ** 0.5),
                "b": new.zeros(wide)}

    x, y = networks.digits_of(new.random, steps, batch, dtype)
    ws = [windows(1, 1.0), *(windows(wide, 0.3) for _ in range(12)), windows(wide, 1.0),
          {"out": new(16 * wide, 32), "bias": new.zeros(32)},
          {"out": new(32, 10), "bias": new.zeros(10)}]
    layers = [networks.conv, *[more_conv] * 12, networks.pooled, networks.flat, networks.digit]
    return networks.Network(layers, ws, x[..., None], y)


def gru_of_16(steps: int, batch: int, seed: int, dtype: Any) -> networks.Network:
    """Seven layers of gated units, each behind a norm."""
    network = networks.gru_network(steps, batch, seed, dtype)
    first, norm, cell, last = (network.layers[k] for k in (0, 2, 1, 4))
    new, width = networks.Drawn(seed + 1, dtype), networks.WIDTH

    def cells() -> Any:
        return {"w": new(width, 3, width), "u": new(width, 3, width),
                "b": new.zeros(3, width), "c": new.zeros(3, width)}

    pairs = [w for _ in range(7) for w in (new.ones(width), cells())]
    weights = [network.weights[0], *pairs, network.weights[4]]
    return networks.Network([first, *[norm, cell] * 7, last], weights, network.xs, network.ys)


def transformer_of_16(steps: int, batch: int, seed: int, dtype: Any) -> networks.Network:
    return networks.transformer_network(steps, batch, seed, dtype, blocks=7)


NETWORKS: dict[str, Callable[[int, int, int, Any], networks.Network]] = {
    "transformer": transformer_of_16, "conv": conv_of_16, "gru": gru_of_16,
}


def named(network: networks.Network) -> dict[str, np.ndarray]:
    """The inputs of a training, by name; microbatches follow each other."""
    arrays = {f"w{k}": x for k, x in enumerate(flatten(network.weights)[1])}
    for name, tree in (("x", network.xs), ("y", network.ys)):
        arrays |= {f"{name}{k}": x for k, x in enumerate(flatten(tree)[1])}
    return arrays


def training(network: networks.Network, stages: int, schedule: str, accumulate: int) -> Any:
    """A program that trains once through all microbatches, and returns the losses of its steps."""
    def inputs(name: str, tree: Any) -> Any:
        shape, leaves = flatten(tree)
        return fill(shape, iter([
            spmd.input(f"{name}{k}", x.shape, x.dtype, layout=(None,) * x.ndim)
            for k, x in enumerate(leaves)]), fresh=True)

    def part(tree: Any, k: Any) -> Any:
        shape, leaves = flatten(tree)
        return fill(shape, iter([x[k] for x in leaves]), fresh=True)

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        weights, xs, ys = (inputs(*pair) for pair in (
            ("w", network.weights), ("x", network.xs), ("y", network.ys)))
        pipe = spmd.pipeline(
            list(zip(network.layers, weights, strict=True)), stages=stages,
            microbatches=MICROBATCHES, schedule=schedule, accumulate=accumulate,
            optimizer=optim.adamw(RATE))
        state, losses = pipe.init(), spmd.zeros(STEPS, np.float32)
        for k in spmd.range(STEPS):
            state, losses[k] = pipe.step(state, part(xs, k), part(ys, k))
        return losses

    return train


def losses_of(name: str, stages: int, schedule: str, accumulate: int, seeds: int) -> list[float]:
    """The loss of each seed."""
    make = NETWORKS[name]
    of = [make(STEPS, MICROBATCHES * SIZE, seed, np.float32) for seed in range(seeds)]
    image = spmd.build(training(of[0], stages, schedule, accumulate))
    return [float(np.mean(image.run(ranks=1, **named(n))[-LAST:])) for n in of]


def plain(name: str, accumulate: int, seeds: int) -> list[float]:
    """The loss of each seed under plain training, which 1F1B is: an update by so many
    microbatches."""
    make = NETWORKS[name]
    of = [make(STEPS, MICROBATCHES * SIZE, seed, np.float32) for seed in range(seeds)]
    size = SIZE * accumulate

    @spmd.program(mesh=("stage",))
    def train() -> Any:
        first = of[0]
        shape, leaves = flatten(first.weights)
        ws = [spmd.input(f"w{k}", x.shape, x.dtype, layout=(None,) * x.ndim)
              for k, x in enumerate(leaves)]
        x, y = (spmd.input(f"{n}0", a.shape, a.dtype, layout=(None,) * a.ndim)
                for n, a in (("x", first.xs), ("y", first.ys)))
        x, y = (a.reshape(-1, size, *a.shape[2:]) for a in (x, y))

        def loss(ws: Any, x: Any, y: Any) -> Any:
            h = x
            for k, (f, w) in enumerate(zip(first.layers, fill(shape, iter(ws), fresh=True))):
                h = f(w, h, *([y] if k == len(first.layers) - 1 else []))
            return h

        tx = optim.adamw(RATE)
        state, losses = tx.init(ws), spmd.zeros(x.shape[0], np.float32)
        for k in spmd.range(x.shape[0]):
            losses[k], slopes = spmd.value_and_grad(loss)(ws, x[k], y[k])
            changes, state = tx.update(slopes, state, ws)
            ws = optim.apply_updates(ws, changes)
        return losses

    image = spmd.build(train)
    last = LAST * MICROBATCHES // accumulate
    return [float(np.mean(image.run(ranks=1, **named(n))[-last:])) for n in of]


def measured(
    names: Sequence[str] = tuple(NETWORKS), stages: Sequence[int] = STAGES,
    every: Sequence[int] = EVERY, corrections: Sequence[str] = CORRECTIONS, seeds: int = SEEDS,
) -> Iterator[dict[str, Any]]:
    """A row for each training: what it is, and the median of its losses over those of 1F1B, which
    has 0 stages, as it is the same training with any."""
    for name in names:
        beside = {k: plain(name, k, seeds) for k in every}
        for k, losses in beside.items():
            yield {"network": name, "stages": 0, "schedule": "1f1b", "accumulate": k,
                   "loss": statistics.median(losses), "ratio": 1.0}
        for p in stages:
            for k in every:
                for schedule in corrections:
                    row = {"network": name, "stages": p, "schedule": schedule, "accumulate": k}
                    try:
                        losses = losses_of(name, p, schedule, k, seeds)
                    except spmd.SpmdError as error:
                        yield {**row, "refused": str(error).splitlines()[0]}
                        continue
                    ratios = [a / b for a, b in zip(losses, beside[k], strict=True)]
                    yield {**row, "loss": statistics.median(losses),
                           "ratio": statistics.median(ratios)}


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--names", nargs="+", default=list(NETWORKS))
    parser.add_argument("--stages", type=int, nargs="+", default=list(STAGES))
    parser.add_argument("--every", type=int, nargs="+", default=list(EVERY))
    parser.add_argument("--corrections", nargs="+", default=list(CORRECTIONS))
    parser.add_argument("--seeds", type=int, default=SEEDS)
    for row in measured(**vars(parser.parse_args())):
        print(json.dumps(row), flush=True)


def report(_: Path) -> None:
    """Pipelines that never wait beside 1F1B, after as many microbatches."""
    rows = json_lines("convergence", timeout=4 * 3600)
    print("Loss after as many microbatches, median of 5 seeds, and how many times that of 1F1B:\n")
    table(["network", "stages", "schedule", "accumulate", "loss", "ratio"], [
        (row["network"], row["stages"] or "any", row["schedule"], row["accumulate"],
         *((f"{row['loss']:.3f}", f"{row['ratio']:.3f}") if "loss" in row else
           (row["refused"], ""))) for row in rows])


if __name__ == "__main__":
    main()
