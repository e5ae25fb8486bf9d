"""What an all-to-all brings is cast or added to as it arrives: beside NumPy, on 1 to 8 ranks.

The extents are such that a rank's part of a row has as many bytes in one type as in the other.
"""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spmd

DTYPES = ("bool", "int8", "uint16", "int32", "int64", "float16", "float32", "float64",
          "complex64", "complex128")
PAIRS = [(a, b) for a, b in itertools.product(DTYPES, DTYPES)
         if np.can_cast(a, b, "same_kind") or not (a.startswith("complex") or b == "bool")]
SHAPES = ((4, 4), (8, 2), (3, 16), (16, 5), (7, 8))
WORK = '''
import numpy as np
import spmd

PAIRS, SHAPES = {pairs!r}, {shapes!r}

@spmd.program(mesh=("r",))
def arrivals():
    out = {{}}
    for k, (a, b) in enumerate(PAIRS):
        shape = SHAPES[k % len(SHAPES)]
        x = spmd.input(f"x{{k}}", shape, a, layout=("r", None))
        y = spmd.input(f"y{{k}}", shape, b, layout=(None, "r"))
        moved = x.relayout((None, "r")).astype(b)
        out[f"cast{{k}}"] = moved
        out[f"added{{k}}"] = y + x.relayout((None, "r")).astype(b)
        out[f"turned{{k}}"] = x.T.relayout(("r", None)).astype(b)
    return out
'''

def elements(name: str, shape: tuple[int, int], seed: int) -> np.ndarray:
    """Small whole numbers, which every type has, negative ones where it can."""
    drawn = np.random.default_rng(seed).integers(0, 100, shape)
    if name[0] in "ifc":
        drawn = drawn - 50
    return (drawn % 2 if name == "bool" else drawn).astype(name)


@pytest.fixture(scope="module")
def case(tmp_path_factory):
    """The image, what it is given, and what NumPy says."""
    folder = tmp_path_factory.mktemp("arrivals")
    path = folder / "arrivals.py"
    path.write_text(WORK.format(pairs=PAIRS, shapes=SHAPES))
    given, wanted = {}, {}
    for k, (a, b) in enumerate(PAIRS):
        shape = SHAPES[k % len(SHAPES)]
        x, y = elements(a, shape, k), elements(b, shape, 1000 + k)
        given |= {f"x{k}": x, f"y{k}": y}
        wanted |= {f"cast{k}": x.astype(b), f"added{k}": y + x.astype(b),
                   f"turned{k}": x.T.astype(b)}
    image = spmd.build(path)
    image.save(folder / "arrivals.img")
    np.savez(folder / "given.npz", **given)
    return folder, image, given, wanted


@pytest.mark.parametrize("ranks", range(1, 9))
def test_every_pair_of_types(case, ranks):
    _, image, given, wanted = case
    found = image.run(ranks=ranks, **given)
    wrong = [name for name, x in wanted.items() if not np.array_equal(found[name], x)]
    assert wrong == []


@pytest.mark.one_mpi
@pytest.mark.parametrize("transport", ["shm", "mpi"])
def test_every_pair_of_types_between_processes(case, mpirun, transport):
    folder, _, _, wanted = case
    mpirun(3, "-m", "spmd", "run", folder / "arrivals.img", "--transport", transport,
           "-i", folder / "given.npz", "-o", folder / "out.npz").expect(0)
    with np.load(folder / "out.npz") as found:
        assert [name for name, x in wanted.items() if not np.array_equal(found[name], x)] == []
