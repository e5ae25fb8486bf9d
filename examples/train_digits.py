"""Data-parallel training on 1,797 real hand-written digits: weight deltas are all-reduced.

Every rank computes deltas from its own part of each global batch; their sum keeps the weights equal
everywhere. A batch is the same set of digits on any number of ranks, so the losses agree.
    python -m spmd build examples/train_digits.py -o digits.img
    mpirun -n 16 python -m spmd run digits.img -o w1=w1.npy -o w2=w2.npy
"""

import numpy as np
from sklearn.datasets import load_digits

import spmd

TRAIN = 1500  # the other 297 digits are held out


def digits(batch, seed=0):
    """Return shuffled digits as (steps, batch, 64) with one-hot labels, and those held out."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, t = (x[order] / 16).astype(np.float32), np.eye(10, dtype=np.float32)[y[order]]
    steps = TRAIN // batch
    used = steps * batch
    return (x[:used].reshape(steps, batch, 64), t[:used].reshape(steps, batch, 10),
            x[TRAIN:], t[TRAIN:])


def forward(x, w1, b1, w2, b2):
    h = np.tanh(x @ w1 + b1)
    return h, h @ w2 + b2


def deltas(x, t, w1, b1, w2, b2):
    """From this rank's digits: derivatives of the summed loss by each weight, and that loss."""
    h, z = forward(x, w1, b1, w2, b2)
    z = z - np.max(z, axis=1, keepdims=True)
    e = np.exp(z)
    total = np.sum(e, axis=1, keepdims=True)
    loss = np.sum(np.log(total)) - np.sum(t * z)
    dz = e / total - t
    dh = (dz @ w2.T) * (1 - h * h)
    return x.T @ dh, np.sum(dh, axis=0), h.T @ dz, np.sum(dz, axis=0), loss


@spmd.program(mesh=("data",))
def train(hidden: int = 32, batch: int = 100, epochs: int = 30):
    rate = spmd.scalar("rate", 1.0)
    images, labels, test_images, test_labels = digits(batch)
    steps, tests = len(images), len(test_images)
    split = (None, "data", None)
    x = spmd.input("x", images.shape, np.float32, layout=split, default=images)
    t = spmd.input("t", labels.shape, np.float32, layout=split, default=labels)
    xt = spmd.input("xt", test_images.shape, np.float32, layout=("data", None), default=test_images)
    tt = spmd.input("tt", test_labels.shape, np.float32, layout=("data", None), default=test_labels)
    random = np.random.default_rng(1)
    start_w1 = (random.standard_normal((64, hidden)) / 8).astype(np.float32)
    start_w2 = (random.standard_normal((hidden, 10)) / np.sqrt(hidden)).astype(np.float32)

    @spmd.shard_map(mesh="data", out_layouts=spmd.replicated)
    def learn(x, t, xt, tt):
        w1, w2 = spmd.asarray(start_w1), spmd.asarray(start_w2)
        b1, b2 = spmd.zeros(hidden, np.float32), spmd.zeros(10, np.float32)
        losses = spmd.zeros(epochs * steps, np.float32)
        for epoch in spmd.range(epochs):
            mean = spmd.zeros((), np.float32)
            for s in spmd.range(steps):
                d1, e1, d2, e2, loss = spmd.psum(deltas(x[s], t[s], w1, b1, w2, b2), "data")
                w1, b1 = w1 - rate / batch * d1, b1 - rate / batch * e1
                w2, b2 = w2 - rate / batch * d2, b2 - rate / batch * e2
                losses[epoch * steps + s] = loss / batch
                mean += loss / (batch * steps)
            spmd.print("epoch {} loss {:.4f}", epoch + 1, mean)
        _, z = forward(xt, w1, b1, w2, b2)
        right = np.sum(np.argmax(z, axis=1) == np.argmax(tt, axis=1))
        accuracy = spmd.psum(right, "data") / tests
        spmd.print("accuracy on {} held-out digits {:.4f}", tests, accuracy)
        return {"w1": w1, "b1": b1, "w2": w2, "b2": b2, "losses": losses, "accuracy": accuracy}

    return learn(x, t, xt, tt)


def check(ranks=(1, 3, 16, 120)):
    """The same training on any number of ranks, to rounding; more than 95 % of digits are read."""
    image = spmd.build(train)
    runs = [image.run(ranks=n) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-5)
        assert out["accuracy"] > 0.95
        assert abs(out["accuracy"] - runs[0]["accuracy"]) <= 0.005


if __name__ == "__main__":
    check()
    print("the first 20 losses agree to 1e-5 on 1, 3, 16 and 120 ranks")
