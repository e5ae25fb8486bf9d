"""pi by throwing darts: random numbers follow from a seed, so all numbers of ranks throw the same.

Each round is a stream of its own; a rank throws its share of the darts and all hits are summed.
    python -m spmd build examples/pi.py && \
    mpirun -n 6 python -m spmd run examples/pi.img --set rounds=100 --set seed=7
"""

import numpy as np

import spmd


@spmd.program(mesh=("r",))
def pi(darts: int = 1_000_000):
    rounds, seed = spmd.scalar("rounds", 10), spmd.scalar("seed", 1)
    hits = 0
    for k in spmd.range(rounds):
        x, y = spmd.random.uniform(seed, (2, darts), layout=(None, "r"), stream=k)
        hits += np.sum(x * x + y * y < 1)
    return {"hits": hits, "pi": 4 * hits / (rounds * darts)}


def check(darts=10_001, rounds=5, ranks=(1, 2, 3, 7, 64)):
    """Check that the program counts as many hits as NumPy does, to the dart."""
    hits = 0
    for k in range(rounds):
        x, y = spmd.random.uniform(3, (2, darts), stream=k)
        hits += np.sum(x * x + y * y < 1)
    image = spmd.build(pi, darts=darts)
    for count in ranks:
        out = image.run(ranks=count, rounds=rounds, seed=3)
        assert out["hits"] == hits
        assert out["pi"] == 4 * hits / (rounds * darts)
    assert abs(out["pi"] - np.pi) < 5 * np.sqrt(np.pi * (4 - np.pi) / (rounds * darts))


if __name__ == "__main__":
    check()
    print("the same hits as NumPy's on up to 64 ranks")
