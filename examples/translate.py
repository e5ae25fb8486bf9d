"""A Transformer (A. Vaswani and others, 2017) reads numbers in English and writes them in French.

Layout rules split the batch, the model or both; translating is a second program on the weights.
    mpirun -n 4 python -m spmd run examples/translate.py:both -o w=w.safetensors
    mpirun -n 2 python -m spmd run examples/translate.py:translate -i w=w.safetensors
"""

import itertools
import re

import numpy as np
from num2words import num2words

import spmd
from spmd import nn

PAD, BEGIN, END, LENGTH, HELD_OUT = 0, 1, 2, 16, 500
NUMBERS = np.random.default_rng(0).permutation(10_000)[:2500]  # the last 500 are held out


def parts(n, language):
    """91 is quatre - vingt - onze."""
    return re.findall(r"\w+|[^\w\s]", num2words(n, lang=language))


TEXTS = [(parts(n, "en"), parts(n, "fr")) for n in map(int, NUMBERS)]
WORDS = ["", "<begin>", "<end>", *sorted({w for pair in TEXTS for text in pair for w in text})]
CODES = {word: k for k, word in enumerate(WORDS)}
PAIRS = np.zeros((len(TEXTS), 2, LENGTH), np.int32)
for row, pair in zip(PAIRS, TEXTS):
    for codes, text in zip(row, pair):
        codes[: len(text) + 1] = [*(CODES[word] for word in text), END]


def weights(make, layers, heads, width):
    """The tree of weights; make(inputs, shape) makes one of them."""
    size, heads, hidden = width // heads, spmd.Dim("heads", heads), spmd.Dim("hidden", 4 * width)

    def attention():
        look = {name: make(width, (width, heads, size)) for name in ("query", "key", "value")}
        return look | {"out": make(width, (heads, size, width))}

    def forward():
        return {"up": make(width, (width, hidden)), "down": make(4 * width, (hidden, width))}

    return {"words": make(width, (spmd.Dim("vocab", len(WORDS)), width)),
            "encoder": [{"self": attention(), "forward": forward()} for _ in range(layers)],
            "decoder": [{"self": attention(), "cross": attention(), "forward": forward()}
                        for _ in range(layers)]}


def embedded(w, words, places):
    """Words, and waves of different lengths that say where they stand."""
    width = w["words"].shape[1]
    angles = np.multiply.outer(places, 1e4 ** (np.arange(0, -width, -2) / width))
    waves = np.concatenate([np.sin(angles), np.cos(angles)], -1).astype(np.float32)
    return nn.embedding(words, w["words"]) * width**0.5 + waves


def keys(w, x):
    return nn.dense(x, w["key"]), nn.dense(x, w["value"])


def attend(w, x, key, value, **how):
    return nn.dense(nn.attention(nn.dense(x, w["query"]), key, value, **how), w["out"], axes=2)


def forward(w, x):
    return nn.dense(nn.relu(nn.dense(x, w["up"])), w["down"])


def encoder(w, english):
    """Return the keys and values that each layer of the decoder attends to, and a mask of words."""
    x, mask = embedded(w, english, np.arange(LENGTH)), (english != PAD)[:, None, None, :]
    for layer in w["encoder"]:
        h = nn.layer_norm(x)
        x = x + attend(layer["self"], h, *keys(layer["self"], h), mask=mask)
        x = x + forward(layer["forward"], nn.layer_norm(x))
    x = nn.layer_norm(x)
    return [keys(layer["cross"], x) for layer in w["decoder"]], mask


def decoder(w, x, seen, mask, look_back):
    """Logits of the next word, at each place of x."""
    for k, layer in enumerate(w["decoder"]):
        x = x + look_back(k, layer["self"], nn.layer_norm(x))
        x = x + attend(layer["cross"], nn.layer_norm(x), *seen[k], mask=mask)
        x = x + forward(layer["forward"], nn.layer_norm(x))
    return nn.layer_norm(x) @ w["words"].T


def logits_of(w, english, french):
    def look_back(_, w, h):
        return attend(w, h, *keys(w, h), causal=True)

    before = np.concatenate([np.full_like(french[:, :1], BEGIN), french[:, :-1]], 1)
    return decoder(w, embedded(w, before, np.arange(LENGTH)), *encoder(w, english), look_back)


def loss_of(w, english, french):
    labels = nn.smooth_labels(nn.one_hot(french, len(WORDS)), 0.1)
    costs = nn.softmax_cross_entropy(logits_of(w, english, french), labels)
    return np.sum(np.where(french != PAD, costs, 0)) / np.sum(french != PAD)


def train(steps: int = 400, batch: int = 64, layers: int = 2, heads: int = 4, width: int = 64,
          rate: float = 2e-3):
    """Adam, with a rate that rises and falls. until: stop after so many steps."""
    random, until = np.random.default_rng(1), spmd.scalar("until", steps)

    def drawn(inputs, shape):
        return spmd.spec(shape, default=random.normal(0, inputs**-0.5, shape))

    w = spmd.input("w", weights(drawn, layers, heads, width))
    tx = spmd.optim.adamw(spmd.optim.warmup_cosine_decay_schedule(0, rate, steps // 10, steps))
    state, losses = tx.init(w), spmd.zeros(steps, np.float32)
    for step in spmd.range(until):
        rows = spmd.random.randint(1, (spmd.Dim("batch", batch),), 0, len(PAIRS) - HELD_OUT,
                                   stream=step)
        pairs = spmd.asarray(PAIRS)[rows]
        losses[step], g = spmd.value_and_grad(loss_of)(w, pairs[:, 0], pairs[:, 1])
        updates, state = tx.update(g, state, w)
        w = spmd.optim.apply_updates(w, updates)
        spmd.progress(step, until, per_step={"numbers": batch}, loss=losses[step])
    return {"losses": losses, "w": w}


BOTH = {"batch": "x", "heads": "y", "hidden": "y", "vocab": "y"}
data = spmd.program(mesh=("x",), layout={"batch": "x"})(train)
model = spmd.program(mesh=("y",), layout={"heads": "y", "hidden": "y", "vocab": "y"})(train)
both = spmd.program(mesh=("x", "y"), layout=BOTH)(train)


@spmd.program(mesh=("x", "y"), layout=BOTH)
def translate(beams: int = 4, layers: int = 2, heads: int = 4, width: int = 64):
    """Beam search; keys and values of words that are there already are kept, split over heads."""
    w = spmd.input("w", weights(lambda _, shape: spmd.spec(shape), layers, heads, width))
    english = spmd.input("english", (spmd.Dim("batch", HELD_OUT), LENGTH), np.int32,
                         default=PAIRS[-HELD_OUT:, 0])
    seen, mask = encoder(w, english)

    def step(k, words, caches):
        made = list(caches)

        def look_back(layer, w, h):
            h = h[:, :, None]  # beams are a dim of the batch
            x, made[layer] = nn.attention_with_cache(
                nn.dense(h, w["query"]), *keys(w, h), caches[layer], k)
            return nn.dense(x, w["out"], axes=2)[:, :, 0]

        return decoder(w, embedded(w, words, k), seen, mask, look_back), made

    cache = [nn.attention_cache((spmd.Dim("batch", HELD_OUT), beams), LENGTH,
                                spmd.Dim("heads", heads), width // heads) for _ in range(layers)]
    first = np.full_like(english[:, 0], BEGIN)
    tokens, scores = nn.beam_search(step, cache, first, LENGTH, beams, end=END)
    return {"tokens": tokens, "scores": scores}


def text(codes):
    words = [WORDS[c] for c in itertools.takewhile(lambda c: c != END, codes)]
    return " ".join(words).replace(" - ", "-").replace(" ,", ",")


def check():
    """Check in small that training agrees on any mesh, caches change nothing, translations fit."""
    small = {"layers": 1, "width": 32}
    training = spmd.build(both, steps=400, batch=32, rate=1e-2, **small)
    losses = [training.run(ranks=x * y, mesh={"x": x, "y": y}, until=8)["losses"][:8]
              for x, y in [(1, 1), (3, 1), (1, 3), (4, 4)]]  # alone, data, model, both
    np.testing.assert_allclose(losses, losses[:1] * 4, rtol=1e-4)
    w, image = training.run()["w"], spmd.build(translate, beams=3, **small)
    best = image.run(ranks=4, w=w)["tokens"][:, 0]
    np.testing.assert_array_equal(best, image.run(ranks=1, w=w)["tokens"][:, 0])
    greedy = spmd.build(translate, beams=1, **small).run(ranks=2, w=w)["tokens"][:, 0]
    english, french = PAIRS[-HELD_OUT:, 0], PAIRS[-HELD_OUT:, 1]
    again = np.argmax(logits_of(w, english, greedy), -1)  # by NumPy, without a cache
    over = np.cumsum(greedy == END, 1) - (greedy == END) > 0
    np.testing.assert_array_equal(np.where(over, greedy, again), greedy)
    right = np.mean([text(a) == text(b) for a, b in zip(best, french)])
    assert right > 0.9
    return right, text(english[0]), text(best[0])


if __name__ == "__main__":
    right, english, french = check()
    print(f"{right:.1%} of {HELD_OUT} unseen numbers are right, such as {english}: {french}")
