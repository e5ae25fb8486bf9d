"""Optimizers under optax's names, and a problem for them: 100 noisy gradients of a quadratic form.

`python -m tests.spmd.optimizers` runs optax in float64 and writes tests/golden/optax.json: the
final parameters and values of each schedule. It needs jax and optax; the tests do not.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np

# mypy: ignore-errors

GOLDEN = Path(__file__).resolve().parent.parent / "golden" / "optax.json"
STEPS = 100
COUNTS = (0, 1, 4, 5, 6, 10, 11, 17, 25, 30, 31, 50, 99, 200)
SHAPES = {"a": (5, 4), "b": (4,), "c": ()}
START = {k: np.cos(1.0 + np.arange(np.prod(s, dtype=int))).reshape(s) for k, s in SHAPES.items()}


def gradient(w: Any, t: Any, xp: Any) -> Any:
    """Return gradients that lead parameters towards 0.3, with noise that depends on step t."""
    places = {k: np.arange(np.prod(s, dtype=int)).reshape(s) for k, s in SHAPES.items()}
    return {k: (w[k] - 0.3) * (0.5 + places[k] % 3) + 0.3 * xp.sin(0.7 * t * (places[k] + 1))
            for k in w}


# Of a module, ours or optax.
OPTIMIZERS = {
    "sgd": lambda o: o.sgd(0.05),
    "momentum": lambda o: o.sgd(0.02, momentum=0.9),
    "nesterov": lambda o: o.sgd(0.02, momentum=0.9, nesterov=True),
    "adam": lambda o: o.adam(0.05, b1=0.8, eps_root=1e-9),
    "nadam": lambda o: o.adam(0.05, nesterov=True),
    "adamw": lambda o: o.adamw(0.05, weight_decay=0.1, mask={"a": True, "b": False, "c": True}),
    "lamb": lambda o: o.lamb(0.05, weight_decay=0.01),
    "lion": lambda o: o.lion(0.01),
    "rmsprop": lambda o: o.rmsprop(0.01, momentum=0.5, bias_correction=True, eps_in_sqrt=False),
    "centered": lambda o: o.rmsprop(0.01, centered=True, initial_scale=0.1, eps=1e-3),
    "adagrad": lambda o: o.adagrad(0.5),
    "adafactor": lambda o: o.adafactor(0.05, min_dim_size_to_factor=3, momentum=0.5,
                                       dtype_momentum=np.float64, weight_decay_rate=1e-3),
    "unfactored": lambda o: o.adafactor(0.05, factored=False, multiply_by_parameter_scale=False),
    "clipped": lambda o: o.chain(o.clip_by_global_norm(0.5), o.clip(0.2), o.adam(
        o.warmup_cosine_decay_schedule(0.0, 0.1, 10, 100))),
    "averaged": lambda o: o.chain(o.ema(0.9), o.add_decayed_weights(
        o.linear_schedule(0.1, 0.0, 50)), o.scale_by_sign(), o.scale(-0.01)),
    "accumulated": lambda o: o.MultiSteps(o.adam(0.1), 4, accumulator_dtype=np.float64),
    "amsgrad": lambda o: o.amsgrad(0.05, b2=0.9),
    "adabelief": lambda o: o.adabelief(0.05),
    "nadamw": lambda o: o.nadamw(0.05, mask={"a": True, "b": False, "c": False}),
    "lars": lambda o: o.lars(0.5, 1e-3, trust_ratio_mask={"a": True, "b": True, "c": False}),
    "adaptive": lambda o: o.chain(o.adaptive_grad_clip(0.1), o.sgd(0.1)),
    "partition": lambda o: o.partition(
        {"slow": o.named_chain(("adam", o.adam(0.01)), ("half", o.scale(0.5))),
         "fast": o.sgd(0.05), "frozen": o.set_to_zero()},
        lambda w: {"a": "slow", "b": "frozen", "c": "fast"}),
    "frozen": lambda o: o.selective_transform(o.adam(0.05), freeze_mask={
        "a": False, "b": True, "c": False}),
    "injected": lambda o: o.inject_hyperparams(o.adamw)(
        o.linear_schedule(0.1, 0.01, 50), weight_decay=0.01),
    "finite": lambda o: o.apply_if_finite(o.adam(0.05), 4),
}

# Gradients at the edges of what optimizers see, by step and element, for EDGE_STEPS steps of
# parameters EDGE_START.
EDGE_STEPS = 5
EDGE_START = {"a": (np.arange(12).reshape(4, 3) - 4) / 8, "c": np.array(0.25)}
EDGES = {
    "zero": lambda t, k: 0.0 * (k + t), "constant": lambda t, k: 0.5 + 0.0 * (k + t),
    "tiny": lambda t, k: 1e-25 * (1.0 + k % 2 + t % 2),
    "huge": lambda t, k: 1e15 * (1.0 + k % 3 - 3 * (t % 2)),
    "alike": lambda t, k: 1000.0 + 0.001 * ((k + t) % 3 - 1.0),
}
CLIPPED = {
    "clip": lambda o: o.clip(0.25), "by_global_norm": lambda o: o.clip_by_global_norm(1.5),
    "by_block_rms": lambda o: o.clip_by_block_rms(0.5), "rms": lambda o: o.rmsprop(0.01),
    "stddev": lambda o: o.rmsprop(0.01, centered=True, momentum=0.9),
    "factored": lambda o: o.scale_by_factored_rms(min_dim_size_to_factor=3),
}


LEAVES = ("adamw", "partition", "frozen", "lars", "nadamw")  # that have other leaves to tell apart
EDGY = {name: make for name, make in OPTIMIZERS.items() if name not in LEAVES} | CLIPPED


def edge_gradient(edge: str, t: Any, like: Any = EDGE_START) -> Any:
    return {k: EDGES[edge](t, np.arange(w.size).reshape(w.shape)) for k, w in like.items()}


SCHEDULES = {
    "constant": lambda o: o.constant_schedule(0.1),
    "polynomial": lambda o: o.polynomial_schedule(1.0, 0.1, 2, 20, 5),
    "linear": lambda o: o.linear_schedule(0.1, 1.0, 30),
    "exponential": lambda o: o.exponential_decay(1.0, 10, 0.9, 4, False, 0.5),
    "staircase": lambda o: o.exponential_decay(1.0, 10, 0.9, 0, True),
    "cosine": lambda o: o.cosine_decay_schedule(1.0, 50, 0.1, 1.5),
    "warmup": lambda o: o.warmup_constant_schedule(0.0, 1.0, 10),
    "warmup_cosine": lambda o: o.warmup_cosine_decay_schedule(0.0, 1.0, 10, 60, 0.05),
    "piecewise": lambda o: o.piecewise_constant_schedule(1.0, {5: 0.5, 30: 0.1}),
    "interpolated": lambda o: o.piecewise_interpolate_schedule("cosine", 1.0, {5: 0.5, 30: 3.0}),
    "linear_onecycle": lambda o: o.linear_onecycle_schedule(100, 1.0),
    "cosine_onecycle": lambda o: o.cosine_onecycle_schedule(60, 1.0),
    "joined": lambda o: o.join_schedules(
        [o.linear_schedule(0.0, 1.0, 5), o.constant_schedule(2.0),
         o.exponential_decay(1.0, 9, 0.5)], [6, 20]),
}


def main() -> None:
    import jax
    import optax

    jax.config.update("jax_enable_x64", True)

    def trained(tx: Any) -> Any:
        w = jax.tree.map(jax.numpy.asarray, START)
        state, step = tx.init(w), jax.jit(tx.update)
        for t in range(STEPS):
            updates, state = step(gradient(w, t, jax.numpy), state, w)
            w = optax.apply_updates(w, updates)
        return jax.tree.map(lambda x: np.asarray(x).tolist(), w)

    def at_edges(tx: Any, edge: str) -> Any:
        w = jax.tree.map(jax.numpy.asarray, EDGE_START)
        state, step = tx.init(w), jax.jit(tx.update)
        for t in range(EDGE_STEPS):
            updates, state = step(jax.tree.map(jax.numpy.asarray, edge_gradient(edge, t)), state, w)
            w = optax.apply_updates(w, updates)
        return jax.tree.map(lambda x: np.asarray(x).tolist(), w)

    found = {
        "optax": optax.__version__,
        "edges": {name: {edge: at_edges(make(optax), edge) for edge in EDGES}
                  for name, make in EDGY.items()},
        "optimizers": {name: trained(make(optax)) for name, make in OPTIMIZERS.items()},
        "schedules": {name: [float(make(optax)(n)) for n in COUNTS]
                      for name, make in SCHEDULES.items()},
    }
    GOLDEN.write_text(json.dumps(found, indent=0) + "\n")


if __name__ == "__main__":
    main()
