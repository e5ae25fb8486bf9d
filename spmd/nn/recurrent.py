"""Recurrent networks: cells, which take a state and an input, and what runs them over a sequence.

Always holds: gates are a dim of their own, so that the hidden dim may be split over ranks.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

import spmd
from spmd import UsageError
from spmd.extend import user_place
from spmd.nn.activations import sigmoid
from spmd.nn.layers import dense
from spmd.nn.shared import in_float32

Parameters = Mapping[str, Any]


def _needs(p: Parameters, cell: str, *names: str) -> None:
    missing = [name for name in names if name not in p]
    if missing:
        raise UsageError(f"spmd.nn.{cell}: a weight is missing: {', '.join(missing)}",
                         place=user_place(), expected=", ".join(names),
                         found=", ".join(map(str, p)) or "none")


@in_float32
def rnn_cell(p: Parameters, state: Any, x: Any, activation: Callable[..., Any] = np.tanh) -> Any:
    """Return the next state, activation(x @ w + state @ u + b) (J. Elman, 1990).

    - x: (…, in). state: (…, hidden).
    - p: "w" (in, hidden), "u" (hidden, hidden), "b" (hidden).

    Returns the state twice, as the carry and as the output.
    """
    _needs(p, "rnn_cell", "w", "u", "b")
    new = activation(dense(x, p["w"]) + dense(state, p["u"], p["b"]))
    return new, new


@in_float32
def gru_cell(p: Parameters, state: Any, x: Any) -> Any:
    """Return the next state of a gated recurrent unit (K. Cho et al., 2014), with its reset gate
    behind the product, as cuDNN, PyTorch and Flax have it.

    - x: (…, in). state: (…, hidden).
    - p: "w" (in, 3, hidden), "u" (hidden, 3, hidden), "b" and "c" (3, hidden), added to products
      with w and with u; gates are reset, update, new.

    Returns the state twice, as the carry and as the output.
    """
    _needs(p, "gru_cell", "w", "u", "b", "c")
    inputs, kept = dense(x, p["w"], p["b"]), dense(state, p["u"], p["c"])
    reset = sigmoid(inputs[..., 0, :] + kept[..., 0, :])
    update = sigmoid(inputs[..., 1, :] + kept[..., 1, :])
    new = np.tanh(inputs[..., 2, :] + reset * kept[..., 2, :])
    next_state = (1 - update) * new + update * state
    return next_state, next_state


@in_float32
def lstm_cell(p: Parameters, state: Any, x: Any) -> Any:
    """Return the next state of long short-term memory (S. Hochreiter, J. Schmidhuber, 1997), with
    peepholes where p has them (F. Gers, J. Schmidhuber, 2000).

    - x: (…, in). state: a pair (output, cell) of (…, hidden).
    - p: "w" (in, 4, hidden), "u" (hidden, 4, hidden), "b" (4, hidden); gates are input, forget,
      cell, output. With "peepholes" (3, hidden), the gates for input, forgetting and output see the
      cell too.

    Returns the state, and the output.
    """
    _needs(p, "lstm_cell", "w", "u", "b")
    output, cell = state
    gates = dense(x, p["w"], p["b"]) + dense(output, p["u"])
    take, forget, new, show = (gates[..., k, :] for k in range(4))
    if "peepholes" in p:
        take, forget = take + cell * p["peepholes"][0], forget + cell * p["peepholes"][1]
    cell = sigmoid(forget) * cell + sigmoid(take) * np.tanh(new)
    if "peepholes" in p:
        show = show + cell * p["peepholes"][2]
    output = sigmoid(show) * np.tanh(cell)
    return (output, cell), output


def recurrent(
    cell: Callable[..., Any], p: Parameters, x: Any, state: Any = None, reverse: bool = False
) -> tuple[Any, Any]:
    """Run a cell over a sequence: for each x[t], `state, output = cell(p, state, x[t])`.

    - x: (length, …, in). state: what the cell begins with; zeros unless you say otherwise.
    - reverse: from the last to the first.

    Returns the last state, and the outputs (length, …, hidden). One loop, which is compiled. Its
    derivative keeps the states, and computes the rest again; of `spmd.remat(cell, policy=…)` it
    keeps what the policy says, as products (`spmd.checkpoint_policies.dots_saveable`).

    Example::

        @spmd.program(mesh=("r",))
        def counts():
            x = spmd.input("x", (3, 2, 1), np.float64, default=lambda t, b, i: t + b)
            p = {"w": np.ones((1, 1)), "u": np.ones((1, 1)), "b": np.zeros(1)}
            add = lambda p, state, x: spmd.nn.rnn_cell(p, state, x, activation=lambda x: x)
            return spmd.nn.recurrent(add, p, x)[0]

        print(counts.eager().ravel())    # [3. 6.]
    """
    if state is None:
        hidden = p["u"][(slice(None), *[0] * (p["u"].ndim - 2))]
        empty = isinstance(x.shape[0], int) and not x.shape[0]
        row = np.zeros(x.shape[1:], x.dtype) if empty else x[0]
        zero = np.zeros_like(row[..., :1] * hidden[0])
        state = (zero, zero.copy()) if inspect.unwrap(cell) is inspect.unwrap(lstm_cell) else zero
    return spmd.scan(lambda state, now: cell(p, state, now), state, x, reverse=reverse)
