"""Text that the model of transformer.py writes, letter by letter: a second program on its weights.

Keys and values of the letters before are kept, split over heads. First train, and keep the weights:
    mpirun -n 2 python -m spmd run examples/transformer.py:model -o w=w.safetensors
    mpirun -n 2 python -m spmd run examples/generate.py -i w=w.safetensors -o text=text.npy
"""

import numpy as np
import transformer
from transformer import LETTERS

import spmd
from spmd import nn


def next_letters(w, letters, at, caches):
    """Logits of what follows letters (texts, new), of which the first stands at place `at`."""
    h, kept = nn.embedding(letters, w["token"]) + w["place"][at + np.arange(letters.shape[1])], []
    for block, cache in zip(w["blocks"], caches):
        x = nn.layer_norm(h, block["norm1"])
        query, key, value = (nn.dense(x, block[k]) for k in ("query", "key", "value"))
        x, cache = nn.attention_with_cache(query, key, value, cache, at)
        h = h + nn.dense(x, block["out"], axes=2)
        x = nn.layer_norm(h, block["norm2"])
        h = h + nn.dense(nn.gelu(nn.dense(x, block["up"])), block["down"])
        kept.append(cache)
    return nn.layer_norm(h[:, -1], w["norm"]) @ w["token"].T, kept


@spmd.program(mesh=("x", "y"),
              layout={"batch": "x", "heads": "y", "hidden": "y", "vocab": "y"})
def generate(begin: str = "If the ", top_k: int = 20, texts: int = 8, layers: int = 4,
             heads: int = 4, width: int = 128, length: int = 64):
    seed, temperature = spmd.scalar("seed", 0), spmd.scalar("temperature", 0.8)
    top_p = spmd.scalar("top_p", 0.95)
    trained = transformer.weights(len(LETTERS), layers, heads, width, length)
    w = spmd.input("w", spmd.tree.map(lambda w: spmd.spec(w.shape), trained))  # no defaults
    batch, start = spmd.Dim("batch", texts), np.array([LETTERS.index(c) for c in begin], np.int32)
    caches = [nn.attention_cache(batch, length, spmd.Dim("heads", heads), width // heads)
              for _ in range(layers)]
    text = spmd.zeros((batch, length), np.int32)
    text[:, : len(start)] = start
    logits, caches = next_letters(w, text[:, : len(start)], 0, caches)
    for k in spmd.range(len(start), length):
        text[:, k] = nn.sample(seed, logits, temperature, top_k, top_p, stream=k)
        logits, caches = next_letters(w, text[:, k : k + 1], k, caches)
        spmd.progress(k - len(start), length - len(start), per_step={"letters": texts})
    return {"text": spmd.asarray(np.array([ord(c) for c in LETTERS]))[text]}


def check():
    """In small: the same text on any mesh, of the likeliest letters, which no cache changes."""
    small = {"layers": 1, "heads": 4, "width": 32, "length": 32}
    w = spmd.build(transformer.data, steps=200, batch=12, **small).run(rate=1e-2)["w"]
    image = spmd.build(generate, top_k=5, **small)

    def written(x=1, y=1, **scalars):
        return image.run(ranks=x * y, mesh={"x": x, "y": y}, w=w, **scalars)["text"]

    def ranking(text):  # of what each letter's place got, 0 for the likeliest: NumPy's, no cache
        codes = np.searchsorted([ord(c) for c in LETTERS], text)
        logits = transformer.logits(w, codes)[:, 6:-1]
        mine = np.take_along_axis(logits, codes[:, 7:, None], -1)
        return np.sum(logits > mine, -1)

    texts = written()
    for mesh in ((3, 1), (1, 3), (4, 2)):
        np.testing.assert_array_equal(written(*mesh), texts)
    assert np.ptp(ranking(texts)) == 4 and (texts != written(seed=1)).any()
    assert not ranking(written(top_p=0.0)).any()  # greedy
    return ["".join(map(chr, text)) for text in texts]


if __name__ == "__main__":
    for text in check():
        print(repr(text))
