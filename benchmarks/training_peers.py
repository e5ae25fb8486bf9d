"""Steps of training in JAX and in PyTorch, for benchmarks.training, which starts this file.

In: a library, a network, how many threads, and a file with weights and data. Each line of standard
input is a number of steps; their losses are the answer, one JSON line. Needs no spmd; the Python
that runs it has jax and optax, or torch.
"""

from __future__ import annotations

import json
import os
import pickle
import sys
from collections.abc import Callable
from typing import Any

import numpy as np

from tests.spmd import character_model

Run = Callable[[int], Any]  # makes so many steps, and gives their losses


def digits_in_jax(network: Any) -> Run:
    import jax
    import jax.numpy as jnp
    import optax

    def conv(x: Any, p: Any) -> Any:
        convolved = jax.lax.conv_general_dilated(x, p["w"], (1, 1), "SAME",
                                                 dimension_numbers=("NHWC", "HWIO", "NHWC"))
        return jax.nn.relu(convolved + p["b"])

    def loss_of(params: Any, x: Any, y: Any) -> Any:
        first, second, last = params
        x = conv(conv(x, first), second)
        x = jax.lax.reduce_window(x, -jnp.inf, jax.lax.max, (1, 2, 2, 1), (1, 2, 2, 1), "VALID")
        z = x.reshape(len(x), -1) @ last["w"] + last["b"]
        return optax.softmax_cross_entropy_with_integer_labels(z, y).mean()

    tx, params = optax.adam(network["rate"]), jax.tree.map(jnp.array, network["w"])
    state = tx.init(params)

    def step(params: Any, state: Any, x: Any, y: Any) -> Any:
        loss, grads = jax.value_and_grad(loss_of)(params, x, y)
        updates, state = tx.update(grads, state, params)
        return optax.apply_updates(params, updates), state, loss

    jitted = jax.jit(step, donate_argnums=(0, 1))

    def run(steps: int) -> Any:
        nonlocal params, state
        losses = []
        for s in range(steps):
            k = s % len(network["x"])
            params, state, loss = jitted(params, state, network["x"][k], network["y"][k])
            losses.append(loss)
        return [float(loss) for loss in losses]

    return run


def digits_in_torch(network: Any, compiled: bool) -> Run:
    """In the memory order that suits it."""
    import torch
    from torch.nn import functional

    batch = network["x"].shape[1]
    x = torch.tensor(network["x"].reshape(-1, batch, 1, 8, 8))
    y = torch.tensor(network["y"].astype(np.int64))

    def forward(params: Any, x: Any, y: Any) -> Any:
        (w1, b1), (w2, b2), (w3, b3) = params
        x = functional.relu(functional.conv2d(x, w1, b1, padding=1))
        x = functional.relu(functional.conv2d(x, w2, b2, padding=1))
        x = functional.max_pool2d(x, 2).permute(0, 2, 3, 1).reshape(batch, -1)
        return functional.cross_entropy(x @ w3 + b3, y)

    params = [[torch.tensor(np.moveaxis(p["w"], (-1, -2), (0, 1)) if p["w"].ndim > 2 else p["w"]),
               torch.tensor(p["b"])] for p in network["w"]]
    for pair in params:
        if pair[0].ndim == 4:
            pair[0] = pair[0].contiguous(memory_format=torch.channels_last)
    leaves = [p.requires_grad_() for pair in params for p in pair]
    tx = torch.optim.Adam(leaves, network["rate"], fused=True)
    loss_of = torch.compile(forward) if compiled else forward

    def run(steps: int) -> Any:
        losses = []
        for s in range(steps):
            loss = loss_of(params, x[s % len(x)], y[s % len(x)])
            tx.zero_grad()
            loss.backward()
            tx.step()
            losses.append(loss.detach())
        return [float(v) for v in losses]

    return run


def transformer(train: Any) -> Run:
    text = character_model.text()

    def run(steps: int) -> Any:
        return train(text[np.arange(steps) % len(text)]).tolist()

    return run


def runner(library: str, network: str, digits: Any) -> Run:
    if network == "transformer":
        w = character_model.weights()
        return transformer(character_model.in_jax(w) if library == "jax" else
                           character_model.in_torch(w, library == "compiled"))
    if library == "jax":
        return digits_in_jax(digits)
    return digits_in_torch(digits, library == "compiled")


def main(library: str, network: str, threads: str, file: str) -> None:
    if library == "jax":  # read when JAX starts; it has no function for this
        os.environ["NPROC"] = threads
        if threads == "1":
            os.environ["XLA_FLAGS"] = (
                "--xla_cpu_multi_thread_eigen=false intra_op_parallelism_threads=1")
    else:
        import torch

        torch.set_num_threads(int(threads))
    with open(file, "rb") as data:
        run = runner(library, network, pickle.load(data))
    for line in sys.stdin:
        print(json.dumps(run(int(line))), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
