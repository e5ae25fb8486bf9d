"""A small BERT (J. Devlin and others, 2018) fills in words and signs of Python's documentation.

15 % are to be guessed: of these, 80 % are masked, 10 % are others, 10 % stay. It also says whether
the second half of a text follows the first. Layout rules split the batch, and the model.
    mpirun -n 6 python -m spmd run examples/bert.py --mesh x=2,y=3 -o w=w.safetensors
"""

import collections
import re
from pydoc_data.topics import topics

import numpy as np

import spmd
from spmd import nn

TEXT = re.findall(r"[a-z]+|[^a-z\s]", " ".join(topics[k] for k in sorted(topics)).lower())
START, END, MASK, OTHER, FREQUENT = range(5)  # the first word is the most frequent one
WORDS = ["<start>", "<end>", "<mask>", "<other>"]
WORDS += [word for word, _ in collections.Counter(TEXT).most_common(508)]
NUMBERS = {word: number for number, word in enumerate(WORDS)}
CODES = np.array([NUMBERS.get(word, OTHER) for word in TEXT], np.int32)
HELD_OUT = 20_000  # words at the end that training never sees


def weights(layers, heads, width, length):
    random, size = np.random.default_rng(0), width // heads
    vocab, heads = spmd.Dim("vocab", len(WORDS)), spmd.Dim("heads", heads)
    hidden = spmd.Dim("hidden", 4 * width)

    def normal(inputs, *shape):
        return spmd.spec(shape, default=random.normal(0, inputs**-0.5, shape))

    def layer():
        look = {name: normal(width, width, heads, size) for name in ("query", "key", "value")}
        return look | {"out": normal(width, heads, size, width),
                       "up": normal(width, width, hidden), "down": normal(4 * width, hidden, width)}

    return {"words": normal(width, vocab, width), "places": normal(width, length, width),
            "halves": normal(width, 2, width), "layers": [layer() for _ in range(layers)],
            "follows": normal(width, width)}


def encoded(w, words):
    """Return the encoder's vectors for texts (batch, length), each of which has two halves."""
    length = words.shape[1]
    h = nn.embedding(words, w["words"]) + w["places"]
    h = h + w["halves"][np.arange(length) // (length // 2)]
    for layer in w["layers"]:
        x = nn.layer_norm(h)
        query, key, value = (nn.dense(x, layer[k]) for k in ("query", "key", "value"))
        h = h + nn.dense(nn.attention(query, key, value), layer["out"], axes=2)
        h = h + nn.dense(nn.gelu(nn.dense(nn.layer_norm(h), layer["up"])), layer["down"])
    return nn.layer_norm(h)


def examples(batch, length, first, last, step):
    """Texts (batch, length) from these words of the documentation, what is shown of them, where a
    word is to be guessed, and whether the halves belong together."""
    def drawn(seed, shape, low, high):
        return spmd.random.randint(seed, shape, low, high, stream=step)

    batch, half = spmd.Dim("batch", batch), length // 2 - 1
    at = drawn(0, (batch,), first, last - 2 * half)
    follows = drawn(1, (batch,), 0, 2)
    other = np.where(follows == 1, at + half, drawn(2, (batch,), first, last - half))
    one = np.full_like(at, START)[:, None]
    codes = spmd.asarray(CODES)
    halves = [codes[start[:, None] + np.arange(half)] for start in (at, other)]
    text = np.concatenate([one, halves[0], one + END, halves[1], one + END], 1)[:, :length]
    chance = spmd.random.uniform(3, text.shape, stream=step)
    shown = np.where(chance < 0.12, MASK, drawn(4, text.shape, FREQUENT, len(WORDS)))
    guessed = (chance < 0.15) & (text > OTHER)
    return text, np.where(guessed & (chance < 0.135), shown, text), guessed, follows


def mean_of(x, where):
    return np.sum(np.where(where, x, 0)) / np.sum(where)


@spmd.program(mesh=("x", "y"),
              layout={"batch": "x", "heads": "y", "hidden": "y", "vocab": "y"})
def bert(steps: int = 1000, batch: int = 32, layers: int = 2, heads: int = 4, width: int = 64,
         length: int = 64, rate: float = 2e-3):
    until = spmd.scalar("until", steps)
    w = spmd.input("w", weights(layers, heads, width, length))
    tx = spmd.optim.adamw(spmd.optim.warmup_cosine_decay_schedule(0, rate, steps // 10, steps))
    state, losses = tx.init(w), spmd.zeros(steps, np.float32)

    def loss(w, text, shown, guessed, follows):
        h = encoded(w, shown)
        words = nn.softmax_cross_entropy(h @ w["words"].T, text)
        halves = nn.sigmoid_binary_cross_entropy(h[:, 0] @ w["follows"], follows)
        return mean_of(words, guessed) + np.mean(halves)

    for step in spmd.range(until):
        given = examples(batch, length, 0, len(CODES) - HELD_OUT, step)
        losses[step], grads = spmd.value_and_grad(loss)(w, *given)
        updates, state = tx.update(grads, state, w)
        w = spmd.optim.apply_updates(w, updates)
        spmd.progress(step, until, per_step={"words": batch * length}, loss=losses[step])
    text, shown, guessed, _ = examples(256, length, len(CODES) - HELD_OUT, len(CODES), steps)
    right = np.argmax(encoded(w, shown) @ w["words"].T, -1) == text
    return {"w": w, "losses": losses, "right": mean_of(right, guessed),
            "frequent": mean_of(text == FREQUENT, guessed)}


def check():
    """Check in small that losses agree on any mesh and guesses beat the most frequent word."""
    image = spmd.build(bert, steps=300, batch=16, layers=1, width=32, length=32, rate=1e-2)
    losses = [image.run(ranks=x * y, mesh={"x": x, "y": y}, until=8)["losses"][:8]
              for x, y in [(1, 1), (3, 1), (1, 3), (4, 4)]]
    np.testing.assert_allclose(losses, losses[:1] * 4, rtol=1e-4)
    out = image.run()
    assert out["right"] > out["frequent"] + 0.05
    return out


if __name__ == "__main__":
    out = check()
    print(f"{out['right']:.1%} of masked words that it never saw are right; "
          f"the most frequent one is {out['frequent']:.1%}")
