"""A language model of characters in a pipeline: four stages, each trained on ranks of its own.

Under "1f1b" a step ends when all microbatches are through. Under "continuous" nothing ever waits:
each stage is updated as soon as its own gradients are there, while others work on later letters.
    python -m spmd build examples/pipeline_training.py -o letters.img
    mpirun -n 4 python -m spmd run letters.img -o losses=losses.npy
"""

import math

import numpy as np
from transformer import LETTERS, pieces

import spmd
from spmd import nn, optim


def weights(blocks, heads, width, length, seed=0):
    """A list with the weights of each layer."""
    random, size = np.random.default_rng(seed), width // heads

    def normal(*shape):
        return spmd.spec(shape, default=0.02 * random.standard_normal(shape))

    def block():
        return {
            "norm1": spmd.spec(width, default=np.ones(width)),
            "query": normal(width, heads, size), "key": normal(width, heads, size),
            "value": normal(width, heads, size), "out": normal(heads, size, width),
            "norm2": spmd.spec(width, default=np.ones(width)),
            "up": normal(width, 4 * width), "down": normal(4 * width, width),
        }

    return [{"token": normal(len(LETTERS), width), "place": normal(length, width)},
            *(block() for _ in range(blocks)), {"out": normal(width, len(LETTERS))}]


def embed(w, letters):
    return nn.embedding(letters, w["token"]) + w["place"]


def block(w, h):
    x = nn.layer_norm(h, w["norm1"])
    query, key, value = (nn.dense(x, w[k]) for k in ("query", "key", "value"))
    h = h + nn.dense(nn.attention(query, key, value, causal=True), w["out"], axes=2)
    return h + nn.dense(nn.gelu(nn.dense(nn.layer_norm(h, w["norm2"]), w["up"])), w["down"])


def head(w, h, letters):
    """The last layer gives the loss."""
    return np.mean(nn.softmax_cross_entropy(h @ w["out"], letters))


@spmd.program(mesh=("data", "stage"), layout={"batch": "data"})
def train(steps: int = 500, batch: int = 32, stages: int = 4, microbatches: int = 8,
          schedule: str = "continuous", accumulate: int = 4, blocks: int = 6, heads: int = 4,
          width: int = 128, length: int = 64):
    w = spmd.input("w", weights(blocks, heads, width, length))
    text = spmd.input("text", (steps, spmd.Dim("batch", batch), length + 1), np.int32,
                      default=pieces(steps, batch, length))
    layers = list(zip([embed, *[block] * blocks, head], w))
    pipe = spmd.pipeline(layers, axis="stage", stages=stages, microbatches=microbatches,
                         schedule=schedule, accumulate=accumulate, optimizer=optim.adamw(3e-3))
    state, losses = pipe.init(), spmd.zeros(steps, np.float32)
    for k in spmd.range(steps):
        state, losses[k] = pipe.step(state, text[k, :, :-1], text[k, :, 1:])
        spmd.progress(k, steps, loss=losses[k])
    return {"losses": losses, "w": pipe.params(pipe.drain(state))}


SMALL = {"steps": 20, "batch": 8, "microbatches": 4, "blocks": 4, "width": 32, "length": 16}


def check(meshes=((1, 1), (1, 3), (2, 2), (1, 6))):
    """One training on several meshes, with and without flushes."""
    found = {}
    for schedule in ("1f1b", "continuous"):
        image = spmd.build(train, schedule=schedule, **SMALL)
        runs = [image.run(mesh={"data": d, "stage": s}, ranks=d * s)["losses"] for d, s in meshes]
        for losses in runs:
            np.testing.assert_allclose(losses, runs[0], rtol=1e-4)
        assert abs(runs[0][0] - math.log(len(LETTERS))) < 0.2  # nothing is known yet
        assert runs[0][-1] < runs[0][0] - 0.5
        found[schedule] = runs[0]
    return found


if __name__ == "__main__":
    for schedule, losses in check().items():
        print(f"{schedule} on four meshes: loss from {losses[0]:.3f} to {losses[-1]:.3f}")
