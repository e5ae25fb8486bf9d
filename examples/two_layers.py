"""A network of two layers, its gradients written by hand, under data, model and mixed layouts.

Named dims say which mesh axis splits the batch, and which the hidden units; the compiler finds the
all-reduces: two of gradients, one of activations, or all (`show both.img --layouts` names them).
    python -m spmd build examples/two_layers.py:both -o both.img
    mpirun -n 4 python -m spmd run both.img -o losses=losses.npy
"""

import numpy as np

import spmd


def train(batch, hidden, steps):
    """Learns a function of the sum of four numbers."""
    x = spmd.random.normal(1, (batch, 4))
    target = np.tanh(np.sum(x, axis=1, keepdims=True))
    w1 = spmd.random.normal(2, (4, hidden)) * 0.5
    w2 = spmd.random.normal(3, (hidden, 1)) * 0.2
    losses = spmd.zeros(steps)
    for k in spmd.range(steps):
        a = np.tanh(x @ w1)
        error = a @ w2 - target
        losses[k] = np.mean(error**2)
        d = (error @ w2.T) * (1 - a * a)
        w2 -= 0.5 / batch * (a.T @ error)
        w1 -= 0.5 / batch * (x.T @ d)
    return {"losses": losses, "w1": w1, "w2": w2}


def dims(batch, hidden):
    return spmd.Dim("batch", batch), spmd.Dim("hidden", hidden)


@spmd.program(mesh=("x",), layout={"batch": "x"})
def data(batch: int = 256, hidden: int = 32, steps: int = 100):
    return train(*dims(batch, hidden), steps)


@spmd.program(mesh=("x",), layout={"hidden": "x"})
def model(batch: int = 256, hidden: int = 32, steps: int = 100):
    return train(*dims(batch, hidden), steps)


@spmd.program(mesh=("x", "y"), layout={"batch": "x", "hidden": "y"})
def both(batch: int = 256, hidden: int = 32, steps: int = 100):
    return train(*dims(batch, hidden), steps)


def check(ranks=(1, 2, 6, 9)):
    expected = data.eager()
    for program in (data, model, both):
        image = spmd.build(program)
        for count in ranks:
            out = image.run(ranks=count)
            for name, e in expected.items():
                np.testing.assert_allclose(out[name], e, rtol=1e-6, atol=1e-9)
    first, last = expected["losses"][[0, -1]]
    assert last < first / 3
    return first, last


if __name__ == "__main__":
    first, last = check()
    print(f"one training under three layouts: mean error from {first:.3f} to {last:.3f}")
