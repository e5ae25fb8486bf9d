"""A language model reads lines of real text twice; workers make tokens of them.

The model is that of transformer.py; examples/pipelines/lines.py has the text. A stream of two
epochs ends: its last batch is not full, and what is not there has no tokens.
    python -m spmd build examples/feed_lines.py -o lines.img
    mpirun -n 2 python -m spmd run lines.img --feed examples/pipelines/lines.py
"""

from pathlib import Path

import numpy as np
from transformer import logits, weights

import spmd
import spmd.data
from spmd import nn, optim

PIPELINE = Path(__file__).parent / "pipelines" / "lines.py"
TOKENS, LONGEST, LINES = 384, 32, 8000  # of the pipeline: byte pairs, tokens of a line, both epochs


def loss(w, tokens, length):
    """How badly each token is foreseen from those before it, in the mean over all lines."""
    each = nn.softmax_cross_entropy(logits(w, tokens[:, :-1]), tokens[:, 1:])
    there = np.arange(1, tokens.shape[1]) < length[:, None]
    return np.sum(each * there) / np.sum(there.astype(np.float32))


@spmd.program(mesh=("data",), layout={"batch": "data"})
def train(batch: int = 60, layers: int = 1, heads: int = 4, width: int = 32):
    many = spmd.Dim("batch", batch)
    feed = spmd.feed(tokens=spmd.spec((many, LONGEST), np.int32),
                     length=spmd.spec((many,), np.int32),
                     mask=spmd.spec((many,), np.bool_))  # without it the last batch is left out
    w = spmd.input("w", weights(TOKENS, layers, heads, width, LONGEST - 1))
    tx = optim.adam(1e-2)
    state, losses, lines, k = tx.init(w), spmd.zeros(-(-LINES // batch), np.float32), 0, 0
    while feed.more():
        b = feed.next()
        losses[k], grads = spmd.value_and_grad(loss)(w, b.tokens, b.length)
        updates, state = tx.update(grads, state, w)
        w = optim.apply_updates(w, updates)
        lines, k = lines + np.sum(b.mask), k + 1
    return {"losses": losses, "lines": lines}


def unigram():
    """The loss of whoever knows how often each token comes, and nothing else."""
    found = spmd.data.load(PIPELINE).compute(0, LINES // 2).arrays
    there = np.arange(1, LONGEST) < found["length"][:, None]
    counts = np.bincount(found["tokens"][:, 1:][there])
    share = counts[counts > 0] / counts.sum()
    return -np.sum(share * np.log(share))


def check(ranks=(1, 3)):
    """The same losses on any number of ranks; every line came twice, and words were learned."""
    image, known = spmd.build(train), unigram()
    runs = [image.run(ranks=n, feed=PIPELINE) for n in ranks]
    for out in runs:
        np.testing.assert_allclose(out["losses"][:20], runs[0]["losses"][:20], rtol=1e-4)
        assert out["lines"] == LINES
        assert np.mean(out["losses"][-10:]) < known - 0.5
    return runs[0]["losses"], known


if __name__ == "__main__":
    losses, known = check()
    print(f"loss {losses[0]:.3f} to {np.mean(losses[-10:]):.3f} on 1 and 3 ranks; how often "
          f"each token comes gives {known:.3f}")
