"""A network says from which of two photographs a crop comes; workers cut the crops at random.

Workers flip them, too, and change their colours. The network learns from two thirds of each
photograph, and is asked about the third.
    python -m spmd build examples/feed_photographs.py -o crops.img
    mpirun -n 3 python -m spmd run crops.img --feed examples/pipelines/photographs.py
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_sample_images

import spmd
import spmd.data as data
from spmd import nn, optim

PIPELINE = Path(__file__).parent / "pipelines" / "photographs.py"


def held_out(count=100, seed=0):
    """Crops of the right thirds in their own colours: (count, 16, 16, 3), and whose they are."""
    random, crops = np.random.default_rng(seed), []
    labels = random.integers(2, size=count).astype(np.int32)
    thirds = [photo[:, photo.shape[1] * 2 // 3 :] for photo in load_sample_images().images]
    for k in labels:
        crop = data.image.random_crop(thirds[k], (64, 64), random)
        crops.append(data.image.to_float(data.image.resize(crop, (16, 16))))
    return np.stack(crops), labels


def network(w, x):
    x = nn.relu(nn.conv(x, w["first"], strides=2))
    x = nn.relu(nn.conv(x, w["second"], strides=2))
    return nn.dense(x.reshape(len(x), -1), w["out"])


def loss(w, x, y):
    return np.mean(nn.softmax_cross_entropy(network(w, x), y))


@spmd.program(mesh=("data",), layout={"batch": "data"})
def train(batch: int = 32, steps: int = 60):
    many = spmd.Dim("batch", batch)
    feed = spmd.feed(crop=spmd.spec((many, 16, 16, 3), np.float32),
                     label=spmd.spec((many,), np.int32))
    crops, labels = held_out()
    held = spmd.Dim("batch", len(labels))
    x = spmd.input("x", (held, 16, 16, 3), np.float32, default=crops)
    y = spmd.input("y", (held,), np.int32, default=labels)
    w = {"first": nn.glorot(1, (3, 3, 3, 8)), "second": nn.glorot(2, (3, 3, 8, 8)),
         "out": nn.glorot(3, (128, 2))}
    tx = optim.adam(1e-2)
    state, losses = tx.init(w), spmd.zeros(steps, np.float32)
    for k in spmd.range(steps):
        b = feed.next()
        losses[k], grads = spmd.value_and_grad(loss)(w, b.crop, b.label)
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
    return {"losses": losses, "accuracy": np.mean(np.argmax(network(w, x), axis=1) == y)}


def check(ranks=(1, 3)):
    """The same losses on any number of ranks; nine of ten crops are known."""
    image = spmd.build(train)
    runs = [image.run(ranks=n, feed=PIPELINE) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-3)
        assert out["accuracy"] > 0.85
    return runs[0]


if __name__ == "__main__":
    out = check()
    print(f"loss {out['losses'][0]:.3f} to {out['losses'][-1]:.3f} on 1 and 3 ranks; "
          f"{out['accuracy']:.0%} of the crops that it never saw are known")
