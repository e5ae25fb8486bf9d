"""k-means (Lloyd's algorithm) looks for ten kinds among 1,797 pictures of digits, split over ranks.

Distances and new centres are matrix products; only the centres travel. It runs until no picture
changes its cluster.
    python -m spmd build examples/kmeans.py && \
    mpirun -n 6 python -m spmd run examples/kmeans.img -o centres=centres.npy --set seed=3
"""

import numpy as np
from sklearn.datasets import load_digits

import spmd


@spmd.program(mesh=("r",))
def kmeans(k: int = 10):
    pictures = load_digits().data
    n = len(pictures)
    x = spmd.input("x", pictures.shape, np.float64, layout=("r", None), default=pictures)
    centres = x[spmd.random.permutation(spmd.scalar("seed", 1), n)[:k]]
    nearest, moved, rounds = np.zeros(n, np.int64), n, 0
    while moved > 0:
        distance = np.sum(centres * centres, axis=1) - 2 * x @ centres.T  # and |x|², for all alike
        before, nearest = nearest, np.argmin(distance, axis=1)
        member = (nearest[:, None] == np.arange(k)).astype(np.float64)  # one-hot
        count = np.sum(member, axis=0)[:, None]
        centres = np.where(count > 0, member.T @ x / np.maximum(count, 1), centres)
        moved = np.sum(nearest != before)
        rounds += 1
    return {"centres": centres, "nearest": nearest, "rounds": rounds}


def check(ranks=(1, 2, 5, 16, 64)):
    image = spmd.build(kmeans)
    expected = kmeans.eager()
    for count in ranks:
        out = image.run(ranks=count)
        np.testing.assert_array_equal(out["nearest"], expected["nearest"])
        np.testing.assert_allclose(out["centres"], expected["centres"], rtol=1e-12)
        assert out["rounds"] == expected["rounds"]
    kinds = np.zeros((10, 10), int)
    np.add.at(kinds, (expected["nearest"], load_digits().target), 1)
    share = kinds.max(axis=1).sum() / kinds.sum()
    assert share > 0.7, share
    return int(expected["rounds"]), share


if __name__ == "__main__":
    rounds, share = check()
    print(f"the same clusters as NumPy's on up to 64 ranks: {rounds} rounds, "
          f"{share:.0%} of the pictures among their like")
