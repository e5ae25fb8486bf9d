"""A step of training in spmd, and in PyTorch and JAX on the same cores; prints one JSON line.

In: a part, and how many rounds. Out: seconds of a step with one and two ranks, and of PyTorch
(eager and compiled) and JAX with as many threads: medians, and medians of the ratios of a round.
Always holds: all train from the same weights on the same data, and their first losses are compared
before anything is measured. PEERS_PYTHON names a Python that has jax, optax and torch.
"""

from __future__ import annotations

import json
import os
import pickle
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np

import spmd
from benchmarks.global_arrays import seconds
from benchmarks.running import json_lines, table
from examples import digits_cnn
from examples import transformer as example
from tests.spmd import character_model

Run = Callable[[int], Any]  # makes so many steps, and gives their losses
RATE = 2e-3
PEERS = ("eager", "compiled", "jax")
PYTHON = os.environ.get("PEERS_PYTHON", sys.executable)


@spmd.program(mesh=("data",), layout={"batch": "data"})
def digits(batch: int = 100, wide: int = 16) -> Any:
    """A convolutional network on digits."""
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


@spmd.program(mesh=("data",), layout={"batch": "data"})
def transformer() -> Any:
    """The character model of examples/transformer.py, on a text that was made up."""
    text_of_model, m = character_model.text(), character_model
    steps = spmd.scalar("steps", 1)
    shape = (m.STEPS, spmd.Dim("batch", m.BATCH), m.LENGTH + 1)
    text = spmd.input("text", shape, np.int32, default=text_of_model)
    w = spmd.input("w", example.weights(m.VOCAB, m.LAYERS, m.HEADS, m.WIDTH, m.LENGTH),
                   default=m.weights())
    tx = spmd.optim.adamw(m.RATE, b2=m.BETA2, weight_decay=m.DECAY)
    state, losses = tx.init(w), spmd.zeros(m.STEPS, np.float32)
    for s in spmd.range(steps):
        losses[s % m.STEPS], grads = spmd.value_and_grad(example.loss)(w, text[s % m.STEPS])
        updates, state = tx.update(grads, state, w)
        w = spmd.optim.apply_updates(w, updates)
    return losses


def digits_given() -> Any:
    images, labels, *_ = digits_cnn.digits(100)
    return {"x": images, "y": labels, "w": digits_cnn.start(16), "rate": RATE}


# What a part measures: our program, what PyTorch and JAX are given, and how many steps a run has.
PARTS: dict[str, tuple[Any, Callable[[], Any], int]] = {
    "digits": (digits, digits_given, 60),
    "transformer": (transformer, lambda: None, 20),
}


@contextmanager
def peer(*arguments: Any) -> Iterator[Run]:
    """Another process with PyTorch or JAX in it."""
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parent.parent)}
    argv = [PYTHON, "-m", "benchmarks.training_peers", *map(str, arguments)]
    process = subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
                               env=environment)
    assert process.stdin and process.stdout

    def run(steps: int) -> Any:
        print(steps, file=process.stdin, flush=True)
        return np.array(json.loads(process.stdout.readline()))  # type: ignore[union-attr]

    try:
        yield run
    finally:
        process.stdin.close()
        process.wait(60)


def lacks(*names: str) -> bool:
    """Whether the Python of the peers lacks any of these; says what to do."""
    asked = f"from importlib.util import find_spec as f\nfor m in {names}:\n  if not f(m): print(m)"
    done = subprocess.run([PYTHON, "-c", asked], capture_output=True, text=True, check=True)
    if missing := ", ".join(done.stdout.split()):
        print(f"Measured beside {', '.join(names)}; {PYTHON} lacks {missing}. PEERS_PYTHON names a "
              "Python that has them:\n"
              "  python -m venv peers && peers/bin/pip install 'jax[cpu]' optax torch\n"
              "  make figures ARGS=training PEERS_PYTHON=peers/bin/python\n")
    return bool(missing)


def measured(part: str, rounds: int) -> dict[str, float]:
    """Seconds of a step by who makes it and with how many ranks or threads; our ratios to it."""
    program, network, steps = PARTS[part]
    with ExitStack() as stack:
        folder = stack.enter_context(tempfile.TemporaryDirectory())
        file = Path(folder) / "given.pickle"
        file.write_bytes(pickle.dumps(network()))
        image = spmd.build(program)
        runs: dict[str, Run] = {}
        for n in (1, 2):
            job = stack.enter_context(image.open(ranks=n))
            runs[f"ours {n}"] = lambda s, job=job: job(steps=s)  # type: ignore[misc]
            for library in PEERS:
                runs[f"{library} {n}"] = stack.enter_context(peer(library, part, n, file))
        expected = np.asarray(runs["ours 1"](5))[:5]
        for run in runs.values():
            np.testing.assert_allclose(np.asarray(run(5))[:5], expected, 1e-3)
        rows = [{name: seconds(run, steps) for name, run in runs.items()} for _ in range(rounds)]
    medians = {name: statistics.median(row[name] for row in rows) for name in runs}
    for n in (1, 2):
        ours = f"ours {n}"
        for name, others in (("torch", PEERS[:2]), ("jax", PEERS[2:]), ("one", ())):
            of = [f"{k} {n}" for k in others] or ["ours 1"]
            medians[f"{ours} / {name}"] = statistics.median(
                row[ours] / min(row[k] for k in of) for row in rows)
    return medians


def main(part: str, rounds: str) -> None:
    print(json.dumps(measured(part, int(rounds))))


def report(folder: Path, rounds: int = 7) -> None:
    """A step of training beside PyTorch and JAX, with as many threads as ranks."""
    if lacks("jax", "optax", "torch"):
        return
    rows = []
    for part in PARTS:
        medians = json_lines("training", part, rounds)[-1]
        for n in (1, 2):
            times = (f"{1e3 * medians[f'{k} {n}']:.2f}" for k in ("ours", *PEERS))
            ratios = (f"{medians[f'ours {n} / {k}']:.2f}" for k in ("torch", "jax", "one"))
            rows.append((part, n, *times, *ratios))
    print(f"A step of training, ms, median of {rounds}; as many threads as ranks:\n")
    table(["network", "ranks", "ours", "PyTorch", "PyTorch, compiled", "JAX",
           "ours / the faster PyTorch", "ours / JAX", "ours / 1 rank"], rows)


if __name__ == "__main__":
    main(*sys.argv[1:])
