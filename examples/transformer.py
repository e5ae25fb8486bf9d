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

TEXT = "\n".join(topics[name] for name in sorted(topics))
LETTERS = sorted(set(TEXT))
CODES = np.array([LETTERS.index(c) for c in TEXT], np.int32)

# Where a weight may be split: names of its dims.
SPLIT = {
    "token": ("vocab", None), "query": (None, "heads", None), "key": (None, "heads", None),
    "value": (None, "heads", None), "out": ("heads", None, None), "up": (None, "hidden"),
    "down": ("hidden", None),
}


def tree_map(f, tree, *others, name=""):
    """f of each leaf, with its name."""
    if isinstance(tree, dict):
        return {k: tree_map(f, v, *(o[k] for o in others), name=f"{name}{k}_")
                for k, v in tree.items()}
    return f(name[:-1], tree, *others)


def weights(layers, heads, width, length, seed=0):
    """Small random numbers, smaller for what is added to the residual stream, as in GPT-2."""
    random, size = np.random.default_rng(seed), width // heads

    def normal(*shape, std=0.02):
        return (std * random.standard_normal(shape)).astype(np.float32)

    def block():
        small, one = 0.02 / math.sqrt(2 * layers), np.ones(width, np.float32)
        return {
            "norm1": one, "query": normal(width, heads, size), "key": normal(width, heads, size),
            "value": normal(width, heads, size), "out": normal(heads, size, width, std=small),
            "norm2": one, "up": normal(width, 4 * width),
            "down": normal(4 * width, width, std=small),
        }

    return {"token": normal(len(LETTERS), width), "place": normal(length, width),
            **{f"block{k}": block() for k in range(layers)}, "norm": np.ones(width, np.float32)}


def declared(name, w):
    names = SPLIT.get(name.rpartition("_")[2], (None,) * w.ndim)
    shape = [e if n is None else spmd.Dim(n, e) for n, e in zip(names, w.shape)]
    return spmd.input(name, shape, np.float32, default=w)


def normed(x, scale):
    away = x - np.mean(x, axis=-1, keepdims=True)
    return away / np.sqrt(np.mean(away * away, axis=-1, keepdims=True) + np.float32(1e-5)) * scale


def softmax(x):
    e = np.exp(x - spmd.stop_gradient(np.max(x, axis=-1, keepdims=True)))
    return e / np.sum(e, axis=-1, keepdims=True)


def gelu(x):
    inner = np.float32(math.sqrt(2 / math.pi)) * (x + np.float32(0.044715) * x * x * x)
    return np.float32(0.5) * x * (1 + np.tanh(inner))


def attention(w, x):
    """Each head looks back from every position of a text: (batch, length, width) stays so."""
    query, key, value = (np.einsum("blc,chd->bhld", x, w[k]) for k in ("query", "key", "value"))
    near = query @ np.swapaxes(key, -1, -2) * np.float32(1 / math.sqrt(query.shape[-1]))
    before = np.tril(np.ones(near.shape[-2:], bool))
    seen = softmax(np.where(before, near, np.float32(-np.inf)))
    return np.einsum("bhld,hdc->blc", seen @ value, w["out"])


def loss(w, x, y):
    """Mean cross-entropy of the letters y that follow the letters x: (batch, length)."""
    h = w["token"][x] + w["place"]
    for block in (b for name, b in w.items() if name.startswith("block")):
        h = h + attention(block, normed(h, block["norm1"]))
        h = h + gelu(normed(h, block["norm2"]) @ block["up"]) @ block["down"]
    logits = normed(h, w["norm"]) @ w["token"].T
    top = spmd.stop_gradient(np.max(logits, axis=-1, keepdims=True))
    total = np.log(np.sum(np.exp(logits - top), axis=-1)) + top[..., 0]
    right = np.arange(logits.shape[-1]) == y[..., None]
    return np.mean(total - np.sum(np.where(right, logits, 0), axis=-1))


def train(steps, batch, layers, heads, width, length):
    """AdamW on batches of pieces of the text."""
    rate = spmd.scalar("rate", 1e-3)
    w = tree_map(declared, weights(layers, heads, width, length))
    m, v = (tree_map(lambda _, w: np.zeros_like(w), w) for _ in "mv")
    random = np.random.default_rng(1)
    pieces = random.integers(len(CODES) - length, size=(steps, batch)).astype(np.int32)
    starts = spmd.input("starts", (steps, spmd.Dim("batch", batch)), np.int32, default=pieces)
    losses = spmd.zeros(steps, np.float32)
    for k in spmd.range(steps):
        at = starts[k][:, None] + np.arange(length)
        text = spmd.asarray(CODES)
        losses[k], g = spmd.value_and_grad(loss)(w, text[at], text[at + 1])
        m = tree_map(lambda _, m, g: np.float32(0.9) * m + np.float32(0.1) * g, m, g)
        v = tree_map(lambda _, v, g: np.float32(0.99) * v + np.float32(0.01) * g * g, v, g)
        few, less = 1 - np.float32(0.9) ** (k + 1), 1 - np.float32(0.99) ** (k + 1)

        def step(_, w, m, v, few=few, less=less):
            return w - rate * (m / few / (np.sqrt(v / less) + np.float32(1e-8)) + 0.1 * w)

        w = tree_map(step, w, m, v)
        if k % 100 == 99:
            spmd.print("step {} loss {:.4f}", k + 1, losses[k])
    return {"losses": losses}


@spmd.program(mesh=("x",), layout={"batch": "x"})
def data(steps: int = 500, batch: int = 12, layers: int = 4, heads: int = 4, width: int = 128,
         length: int = 64):
    return train(steps, batch, layers, heads, width, length)


@spmd.program(mesh=("x",), layout={"heads": "x", "hidden": "x", "vocab": "x"})
def model(steps: int = 500, batch: int = 12, layers: int = 4, heads: int = 4, width: int = 128,
          length: int = 64):
    return train(steps, batch, layers, heads, width, length)


@spmd.program(mesh=("x", "y"), layout={"batch": "x", "heads": "y", "hidden": "y", "vocab": "y"})
def both(steps: int = 500, batch: int = 12, layers: int = 4, heads: int = 4, width: int = 128,
         length: int = 64):
    return train(steps, batch, layers, heads, width, length)


SMALL = {"steps": 20, "batch": 6, "layers": 1, "heads": 4, "width": 32, "length": 16}


def check(ranks=(1, 2, 3, 16)):
    """One training, in small, under three layouts and on any number of ranks."""
    expected = None
    for program in (data, model, both):
        image = spmd.build(program, **SMALL)
        for count in ranks:
            losses = image.run(ranks=count, rate=3e-3)["losses"]
            expected = losses if expected is None else expected
            np.testing.assert_allclose(losses, expected, rtol=1e-5)
    assert abs(expected[0] - math.log(len(LETTERS))) < 0.1  # nothing is known yet
    assert expected[-1] < expected[0] - 0.5
    return expected


if __name__ == "__main__":
    losses = check()
    print(f"one training under three layouts: loss from {losses[0]:.3f} to {losses[-1]:.3f}")
