"""A network learns from compressed pictures of digits that workers decode, turn and shift.

The program says what a batch is, examples/pipelines/digits.py where its examples come from.
    python -m spmd build examples/feed_digits.py -o digits.img
    mpirun -n 3 python -m spmd run digits.img --feed examples/pipelines/digits.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits

import spmd
import spmd.data
from spmd import nn, optim

PIPELINE = Path(__file__).parent / "pipelines" / "digits.py"
HELD = np.random.default_rng(0).permutation(1797)[1500:]  # digits that the pipeline leaves out
IMAGES, DIGITS = load_digits(return_X_y=True)


def network(w, x):
    """What speaks for each of the ten digits, of pictures (batch, 8, 8)."""
    x = nn.relu(nn.dense(x.reshape(len(x), 64), w["hidden"], w["bias"]))
    return nn.dense(x, w["out"])


def loss(w, x, y):
    return np.mean(nn.softmax_cross_entropy(network(w, x), y))


@spmd.program(mesh=("data",), layout={"batch": "data", "held": "data"})
def train(batch: int = 100, steps: int = 450, hidden: int = 96):
    size, held = spmd.Dim("batch", batch), spmd.Dim("held", len(HELD))
    feed = spmd.feed(image=spmd.spec((size, 8, 8), np.float32), digit=spmd.spec((size,), np.int32))
    x = spmd.input("x", (held, 8, 8), np.float32, default=IMAGES[HELD].reshape(-1, 8, 8) / 16)
    y = spmd.input("y", (held,), np.int32, default=DIGITS[HELD])
    w = {"hidden": nn.glorot(1, (64, hidden)), "bias": spmd.zeros(hidden, np.float32),
         "out": nn.glorot(2, (hidden, 10))}
    tx = optim.adam(3e-3)
    state, losses = tx.init(w), spmd.zeros(steps, np.float32)
    for k in spmd.range(steps):
        b = feed.next()
        losses[k], grads = spmd.value_and_grad(loss)(w, b.image, b.digit)
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
        spmd.progress(k, steps, per_step={"digits": batch}, loss=losses[k])
    return {"losses": losses, "accuracy": np.mean(np.argmax(network(w, x), axis=1) == y)}


def check(ranks=(1, 2, 3)):
    """The same losses on any number of ranks, to rounding; more than 96 % of digits are read."""
    image, pipeline = spmd.build(train), spmd.data.load(PIPELINE)
    runs = [image.run(ranks=n, feed=pipeline.batches(100, {'image': ((8, 8), np.float32), 'digit': ((), np.int32)})) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-4)
        assert out["accuracy"] > 0.96
    return runs[0]


if __name__ == "__main__":
    out = check()
    print(f"loss {out['losses'][0]:.3f} to {out['losses'][-1]:.3f} on 1, 2 and 3 ranks; "
          f"{out['accuracy']:.1%} of the digits that it never saw are right")
