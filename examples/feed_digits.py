"""A network learns from compressed pictures of digits, which workers decode, turn and shift.

The program says what a batch is; examples/pipelines/digits.py says how its examples are made.
    python -m spmd build examples/feed_digits.py -o digits.img
    mpirun -n 3 python -m spmd run digits.img --feed examples/pipelines/digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import spmd
from spmd import nn, optim

PIPELINE = Path(__file__).parent / "pipelines" / "digits.py"
PICTURES, DIGITS = load_digits(return_X_y=True)
HELD = np.random.default_rng(0).permutation(len(DIGITS))[1500:]  # the pipeline leaves these out


def network(w, x):
    """Return the scores of the ten digits for pictures (batch, 8, 8)."""
    x = nn.relu(nn.dense(x.reshape(len(x), 64), w["hidden"], w["bias"]))
    return nn.dense(x, w["out"])


def loss(w, x, y):
    return np.mean(nn.softmax_cross_entropy(network(w, x), y))


@spmd.program(mesh=("data",), layout={"batch": "data"})
def train(batch: int = 50, steps: int = 120, hidden: int = 64):
    many, held = spmd.Dim("batch", batch), spmd.Dim("batch", len(HELD))
    feed = spmd.feed(picture=spmd.spec((many, 8, 8), np.float32),
                     digit=spmd.spec((many,), np.int32))
    x = spmd.input("x", (held, 8, 8), np.float32, default=PICTURES[HELD].reshape(-1, 8, 8) / 16)
    y = spmd.input("y", (held,), np.int32, default=DIGITS[HELD])
    w = {"hidden": nn.glorot(1, (64, hidden)), "bias": spmd.zeros(hidden, np.float32),
         "out": nn.glorot(2, (hidden, 10))}
    tx = optim.adam(1e-2)
    state, losses = tx.init(w), spmd.zeros(steps, np.float32)
    for k in spmd.range(steps):
        b = feed.next()
        losses[k], grads = spmd.value_and_grad(loss)(w, b.picture, b.digit)
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
    return {"losses": losses, "accuracy": np.mean(np.argmax(network(w, x), axis=1) == y)}


def check(ranks=(1, 3)):
    """The same losses on any number of ranks, to rounding; more than 93 % of digits are read."""
    image = spmd.build(train)
    runs = [image.run(ranks=n, feed=PIPELINE) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-4)
        assert out["accuracy"] > 0.93
    return runs[0]


if __name__ == "__main__":
    out = check()
    print(f"loss {out['losses'][0]:.3f} to {out['losses'][-1]:.3f} on 1 and 3 ranks; "
          f"{out['accuracy']:.1%} of the digits that it never saw are right")
