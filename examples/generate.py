"""Text that the model of transformer.py writes: each letter is printed as soon as it is there.

Weights stay on the ranks, and keys and values of all letters. First train, then let it write:
    mpirun -n 2 python -m spmd run examples/transformer.py:model -o w=w.safetensors
    spmd run examples/generate.py --entry take -i w=w.safetensors --save-state m.safetensors
    python examples/generate.py m.safetensors "If the "
"""

import sys

import numpy as np
import transformer
from transformer import LETTERS

import spmd
from spmd import nn


@spmd.program(mesh=("x", "y"),
              layout={"batch": "x", "heads": "y", "hidden": "y", "vocab": "y"})
class Generate:
    def __init__(self, texts: int = 1, layers: int = 4, heads: int = 4, width: int = 128,
                 length: int = 64, top_k: int = 20):
        self.batch, self.length, self.top_k = spmd.Dim("batch", texts), length, top_k
        trained = transformer.weights(len(LETTERS), layers, heads, width, length)
        self.like = spmd.tree.map(lambda w: spmd.spec(w.shape), trained)
        self.w = spmd.tree.map(lambda w: spmd.zeros(w.shape, np.float32), trained)  # until `take`
        self.caches = [nn.attention_cache(self.batch, length, spmd.Dim("heads", heads),
                                          width // heads) for _ in range(layers)]
        self.logits = spmd.zeros((self.batch, len(LETTERS)), np.float32)  # of what comes next
        self.text, self.at = spmd.zeros((self.batch, length), np.int32), 0

    def read(self, letters):
        """Go on behind letters (texts, new), whose keys and values go into the caches."""
        w, places = self.w, self.at + np.arange(letters.shape[1])
        h = nn.embedding(letters, w["token"]) + w["place"][places]
        for k, block in enumerate(w["blocks"]):
            x = nn.layer_norm(h, block["norm1"])
            query, key, value = (nn.dense(x, block[name]) for name in ("query", "key", "value"))
            x, self.caches[k] = nn.attention_with_cache(query, key, value, self.caches[k], self.at)
            h = h + nn.dense(x, block["out"], axes=2)
            x = nn.layer_norm(h, block["norm2"])
            h = h + nn.dense(nn.gelu(nn.dense(x, block["up"])), block["down"])
        self.logits = nn.layer_norm(h[:, -1], w["norm"]) @ w["token"].T
        self.text[:, places] = letters
        self.at += letters.shape[1]

    @spmd.entry
    def take(self):
        """Weights that transformer.py has trained."""
        self.w = spmd.input("w", self.like)

    @spmd.entry
    def forget(self):
        """The next prompt begins a text."""
        self.at = 0

    @spmd.entry
    def generate(self):
        """Reads a prompt, of any number of letters, then writes `count` of them, one by one."""
        shape = self.batch, spmd.Dim("letters", at_most=self.length)
        prompt, count = spmd.input("prompt", shape, np.int32), spmd.scalar("count", 20)
        seed, temperature = spmd.scalar("seed", 0), spmd.scalar("temperature", 0.8)
        top_p = spmd.scalar("top_p", 0.95)
        if prompt.shape[1] > 0:
            self.read(prompt)
        for _ in spmd.range(count):
            letter = nn.sample(seed, self.logits, temperature, self.top_k, top_p, stream=self.at)
            spmd.save("letter", letter.relayout(None))  # whole on every rank: for the stream
            self.read(letter[:, None])
        return {"text": spmd.asarray(np.array([ord(c) for c in LETTERS]))[self.text]}


def codes(text, texts):
    """A text as a prompt: the same for all texts."""
    return np.tile(np.array([LETTERS.index(c) for c in text], np.int32), (texts, 1))


def check():
    """Check, in small, that a stream and the one behind it give the letters of plain Python on any
    mesh, and that greedy letters are those that a network without a cache ranks first."""
    small, begin, none = {"layers": 1, "heads": 4, "width": 32, "length": 32}, "If the ", ""
    w = spmd.build(transformer.data, steps=200, batch=12, **small).run(rate=1e-2)["w"]

    def written(m, **scalars):
        m.forget()
        stream = m.generate.stream(prompt=codes(begin, 8), count=15, **scalars)
        letters = [*stream, *m.generate.stream(prompt=codes(none, 8), count=10, **scalars)]
        text = np.stack([*codes(begin, 8).T, *letters], 1)
        assert np.array_equal(m.state()["text"], text) and len(letters) == 25
        return text

    def ranking(text):  # of what each letter's place got, 0 for the likeliest: NumPy's, no cache
        logits = transformer.logits(w, text)[:, 6:-1]
        return np.sum(logits > np.take_along_axis(logits, text[:, 7:, None], -1), -1)

    plain = Generate.eager(texts=8, top_k=5, **small)
    plain.take(w=w)
    texts, image = written(plain), spmd.build(Generate, texts=8, top_k=5, **small)
    for x, y in ((1, 1), (3, 1), (1, 3), (4, 2)):
        with image.open(ranks=x * y, mesh={"x": x, "y": y}) as m:
            m.take(w=w)
            np.testing.assert_array_equal(written(m), texts)
            assert (written(m, seed=1) != texts).any()
            assert not ranking(written(m, top_p=0.0)).any()  # greedy
    assert np.ptp(ranking(texts)) == 4
    return ["".join(LETTERS[k] for k in text) for text in texts]


if __name__ == "__main__":
    if len(sys.argv) < 3:
        print(*map(repr, check()), sep="\n")
    else:
        with spmd.build(Generate).open(ranks=2, mesh={"x": 1}, state=sys.argv[1]) as m:
            print(sys.argv[2], end="")
            for letter in m.generate.stream(prompt=codes(sys.argv[2], 1), count=50):
                print(LETTERS[letter[0]], end="", flush=True)
            print()
