"""A language model of characters: a Transformer under data, model and mixed layouts.

Three rules turn one network from data to model parallel, or to both: `show model.img --layouts`
counts two all-reduces forward and two backward for a block whose heads and hidden units are split.
    python -m spmd build examples/transformer.py:model -o model.img
    mpirun -n 2 python -m spmd run model.img -o losses=losses.npy
"""

import math
from pydoc_data.topics import topics

import numpy as np

import spmd
from spmd import nn, optim

TEXT = "\n".join(topics[name] for name in sorted(topics))
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(c) for c in TEXT], np.int32)


def pieces(steps, batch, length, seed=1):
    """Pieces of the text, as numbers of letters: each a letter longer than what is read of it."""
    starts = np.random.default_rng(seed).integers(len(CODES) - length, size=(steps, batch, 1))
    return CODES[starts + np.arange(length + 1)]


def weights(vocab, layers, heads, width, length, seed=0):
    """Small random numbers, smaller for what is added to the residual stream, as in GPT-2."""
    random, size, small = np.random.default_rng(seed), width // heads, 0.02 / math.sqrt(2 * layers)
    vocab, heads = spmd.Dim("vocab", vocab), spmd.Dim("heads", heads)
    hidden = spmd.Dim("hidden", 4 * width)

    def normal(*shape, std=0.02):
        return spmd.spec(shape, default=std * random.standard_normal(shape))

    def block():
        return {
            "norm1": spmd.spec(width, default=np.ones(width)),
            "query": normal(width, heads, size), "key": normal(width, heads, size),
            "value": normal(width, heads, size), "out": normal(heads, size, width, std=small),
            "norm2": spmd.spec(width, default=np.ones(width)),
            "up": normal(width, hidden), "down": normal(hidden, width, std=small),
        }

    return {"token": normal(vocab, width), "place": normal(length, width),
            "blocks": [block() for _ in range(layers)],
            "norm": spmd.spec(width, default=np.ones(width))}


def attention(w, x):
    """Each head looks back from every position of a text: (batch, length, width) stays so."""
    query, key, value = (nn.dense(x, w[k]) for k in ("query", "key", "value"))
    return nn.dense(nn.attention(query, key, value, causal=True), w["out"], axes=2)


def logits(w, x):
    """Return the scores of every next letter after the letters x: (batch, length, vocab)."""
    h = nn.embedding(x, w["token"]) + w["place"]
    for block in w["blocks"]:
        h = h + attention(block, nn.layer_norm(h, block["norm1"]))
        h = h + nn.dense(nn.gelu(nn.dense(nn.layer_norm(h, block["norm2"]), block["up"])),
                         block["down"])
    return nn.layer_norm(h, w["norm"]) @ w["token"].T


def loss(w, text):
    """How badly each letter of pieces of text (batch, length + 1) is foreseen, in the mean."""
    return np.mean(nn.softmax_cross_entropy(logits(w, text[:, :-1]), text[:, 1:]))


def train(steps: int = 500, batch: int = 12, layers: int = 4, heads: int = 4, width: int = 128,
          length: int = 64, vocab: int = len(LETTERS)):
    """AdamW on pieces of the text."""
    w = spmd.input("w", weights(vocab, layers, heads, width, length))
    text = spmd.input("text", (steps, spmd.Dim("batch", batch), length + 1), np.int32,
                      default=pieces(steps, batch, length))
    tx = optim.adamw(spmd.scalar("rate", 1e-3), b2=0.99, weight_decay=0.1)
    state, losses = tx.init(w), spmd.zeros(steps, np.float32)

    for k in spmd.range(steps):
        losses[k], grads = spmd.value_and_grad(loss)(w, text[k])
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
        spmd.progress(k, steps, per_step={"letters": batch * length}, loss=losses[k])
    return {"losses": losses, "w": w}


data = spmd.program(mesh=("x",), layout={"batch": "x"})(train)
model = spmd.program(mesh=("x",), layout={"heads": "x", "hidden": "x", "vocab": "x"})(train)
both = spmd.program(mesh=("x", "y"), layout={
    "batch": "x", "heads": "y", "hidden": "y", "vocab": "y"})(train)

SMALL = {"steps": 20, "batch": 6, "layers": 1, "heads": 4, "width": 32, "length": 16}


def check(meshes=((1, 1), (3, 1), (1, 2), (4, 4))):
    """One training, in small: data parallel, model parallel, and both."""
    image = spmd.build(both, **SMALL)
    runs = [image.run(mesh={"x": x, "y": y}, ranks=x * y, rate=3e-3)["losses"] for x, y in meshes]
    for losses in runs:
        np.testing.assert_allclose(losses, runs[0], rtol=1e-5)
    assert abs(runs[0][0] - math.log(len(LETTERS))) < 0.1  # nothing is known yet
    assert runs[0][-1] < runs[0][0] - 0.5
    return runs[0]


if __name__ == "__main__":
    losses = check()
    print(f"one training on four meshes: loss from {losses[0]:.3f} to {losses[-1]:.3f}")
