"""PageRank by power iteration: links are split over the ranks, scores read and added at indices.

A page passes its score on, in equal parts, to those it links to: scores[source] reads at indices,
np.add.at adds at indices. Links are random, and few pages get most of them.
    python -m spmd build examples/pagerank.py --set pages=100000 --set links=1000000 && \
    mpirun -n 6 python -m spmd run examples/pagerank.img -o scores=scores.npy
"""

import numpy as np

import spmd

DAMPING = 0.85


@spmd.program(mesh=("r",))
def pagerank(pages: int = 1000, links: int = 10_000):
    eps, seed = spmd.scalar("eps", 1e-10), spmd.scalar("seed", 1)
    source = spmd.random.randint(seed, (links,), pages, layout="r")
    chosen = spmd.random.uniform(seed, (links,), layout="r", stream=1)
    target = (pages * chosen**3).astype(np.int64)
    degree = np.zeros(pages)
    np.add.at(degree, source, 1)
    scores, change, rounds = np.full(pages, 1 / pages), 1.0, 0
    while change > eps:
        passed = np.zeros(pages)
        np.add.at(passed, target, scores[source] / degree[source])
        idle = np.sum(np.where(degree == 0, scores, 0))  # of pages without links: to all
        new = (1 - DAMPING) / pages + DAMPING * (passed + idle / pages)
        change, scores = np.sum(np.abs(new - scores)), new
        rounds += 1
    return {"scores": scores, "rounds": rounds, "best": np.argmax(scores)}


def check(ranks=(1, 2, 3, 7, 16)):
    image = spmd.build(pagerank)
    expected = pagerank.eager()
    for count in ranks:
        out = image.run(ranks=count)
        np.testing.assert_allclose(out["scores"], expected["scores"], rtol=1e-9)
        assert abs(out["rounds"] - expected["rounds"]) <= 1
        assert out["best"] == expected["best"]
    assert abs(np.sum(out["scores"]) - 1) < 1e-12
    return int(out["rounds"])


if __name__ == "__main__":
    print(f"the scores of NumPy's on up to 16 ranks, after {check()} rounds")
