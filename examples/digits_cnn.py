"""A convolutional network on 1,797 real hand-written digits, trained on any number of ranks.

One layout rule splits the digits of a batch over the ranks; the compiler adds up their gradients.
    python -m spmd build examples/digits_cnn.py -o cnn.img
    mpirun -n 4 python -m spmd run cnn.img -o accuracy=accuracy.npy
"""

import numpy as np
from sklearn.datasets import load_digits

import spmd

TRAIN = 1500  # the other 297 digits are held out


def digits(batch, seed=0):
    """Return shuffled training digits as (steps, batch, 8, 8, 1), labels, and those held out."""
    x, y = load_digits(return_X_y=True)
    order = np.random.default_rng(seed).permutation(len(x))
    x, y = (x[order] / 16).astype(np.float32).reshape(-1, 8, 8, 1), y[order].astype(np.int32)
    used = TRAIN // batch * batch
    return x[:used].reshape(-1, batch, 8, 8, 1), y[:used].reshape(-1, batch), x[TRAIN:], y[TRAIN:]


def start(wide, seed=1):
    """Return the initial parameters: two windows of 3 by 3, and a matrix, with biases."""
    random = np.random.default_rng(seed)

    def layer(*shape):
        weights = random.standard_normal(shape) * np.sqrt(2 / np.prod(shape[:-1]))
        return {"w": weights.astype(np.float32), "b": np.zeros(shape[-1], np.float32)}

    return [layer(3, 3, 1, wide), layer(3, 3, wide, 2 * wide), layer(32 * wide, 10)]


def logits(params, x):
    first, second, last = params
    x = np.maximum(spmd.nn.conv(x, first["w"], first["b"]), 0)
    x = np.maximum(spmd.nn.conv(x, second["w"], second["b"]), 0)
    x = spmd.nn.max_pool(x, 2)
    return x.reshape(x.shape[0], -1) @ last["w"] + last["b"]


def loss_of(params, x, y):
    return np.mean(spmd.nn.softmax_cross_entropy(logits(params, x), y))


@spmd.program(mesh=("data",), layout={"batch": "data"})
def train(wide: int = 16, batch: int = 100, epochs: int = 8):
    images, labels, test_images, test_labels = digits(batch)
    many, held = spmd.Dim("batch", batch), spmd.Dim("batch", len(test_images))
    steps = len(images)
    x = spmd.input("x", (steps, many, 8, 8, 1), np.float32, default=images)
    y = spmd.input("y", (steps, many), np.int32, default=labels)
    xt = spmd.input("xt", (held, 8, 8, 1), np.float32, default=test_images)
    yt = spmd.input("yt", (held,), np.int32, default=test_labels)
    tx = spmd.optim.adam(2e-3)
    params = start(wide)
    state = tx.init(params)
    losses = spmd.zeros(epochs * steps, np.float32)
    for epoch in spmd.range(epochs):
        for s in spmd.range(steps):
            loss, grads = spmd.value_and_grad(loss_of)(params, x[s], y[s])
            updates, state = tx.update(grads, state, params)
            params = spmd.optim.apply_updates(params, updates)
            losses[epoch * steps + s] = loss
        spmd.print("epoch {} loss {:.4f}", epoch + 1, loss)
    accuracy = np.mean(np.argmax(logits(params, xt), axis=1) == yt)
    spmd.print("accuracy on {} held-out digits {:.4f}", len(test_images), accuracy)
    return {"losses": losses, "accuracy": accuracy}


def check(ranks=(1, 3, 16)):
    """The same losses on any number of ranks, to rounding; more than 97 % of digits are read."""
    image = spmd.build(train)
    runs = [image.run(ranks=n) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-4)
        assert out["accuracy"] > 0.97
    return runs[0]["accuracy"]


if __name__ == "__main__":
    print(f"{check():.4f} of held-out digits are read; the losses agree on 1, 3 and 16 ranks")
