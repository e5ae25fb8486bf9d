"""Butterflies: partners at distances that double while the program runs, for every number of ranks.

Each program is built once, run on 1 to 9 ranks, and compared with the same rounds in NumPy; what
sends to ranks that do not exist is refused, unless the program says for which sizes it is made.
"""

from __future__ import annotations

import pytest

import spmd

ROUNDS = """
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def rounds(far: int = 0):
    n = spmd.axis_size("r")
    {first}
    x = spmd.input("x", (n,), np.int64, layout=("r",), default=lambda i: 3 ** i)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def sums(s):
        {setup}
        while {test}:
            s = s + spmd.ppermute(s, "r", to=lambda i, n: {to})
            {step}
        return s

    return sums(x)
"""
DOUBLING = {"setup": "d = 1", "test": "d < n", "step": "d *= 2"}
COUNTING = {"setup": "k = 0", "test": "(1 << k) < n", "step": "k += 1"}
POWER = "spmd.require(n & (n - 1) == 0)"
BUILDS = {
    "choice": {"to": "(i + d if i // d % 2 == 0 else i - d) if "
                     "(i + d if i // d % 2 == 0 else i - d) < n else None"},
    "xor": {"to": "i ^ d if i ^ d < n else None"},
    "xor with me": {"to": "d ^ i if i ^ d < n else None"},
    "shifted": {"to": "i ^ (1 << k) if i ^ (1 << k) < n else None", **COUNTING},
    "a size that is a power": {"to": "i ^ d", "first": POWER},
    "the same by choice": {"to": "i + d if i // d % 2 == 0 else i - d", "first": POWER},
}


def program(**pieces: str) -> str:
    return ROUNDS.format(**{"first": "", **DOUBLING, **pieces})


def expected(n: int) -> list[int]:
    s, d = [3**i for i in range(n)], 1
    while d < n:
        s = [s[i] + (s[i ^ d] if i ^ d < n else 0) for i in range(n)]
        d *= 2
    return s


@pytest.mark.parametrize("name", BUILDS)
def test_partners_find_each_other(name, tmp_path):
    path = tmp_path / "rounds.py"
    path.write_text(program(**BUILDS[name]))
    image = spmd.build(path)
    for n in range(1, 10):
        if "power" in name or BUILDS[name].get("first"):
            if n & (n - 1):
                with pytest.raises(spmd.MeshError, match="1, 2, 4, 8, 16"):
                    image.run(ranks=n)
                continue
        assert image.run(ranks=n).tolist() == expected(n), n


@pytest.mark.parametrize("to, found", [
    ("i ^ d", "with 3 ranks, rank 2 sends to 3, which does not exist"),
    ("i ^ (d + 1)", "surely a power of two"),
    ("i ^ s[0]", "surely a power of two"),
])
def test_partners_that_may_not_exist_are_refused(to, found, tmp_path):
    path = tmp_path / "rounds.py"
    path.write_text(program(to=to))
    with pytest.raises(spmd.SpmdError, match=found):
        spmd.build(path)


def test_what_is_not_proved_is_seen_while_it_runs(tmp_path):
    """Right for the distances that were tried, wrong for one that was not."""
    path = tmp_path / "rounds.py"
    path.write_text(program(
        first="last = spmd.scalar('last', 9)", setup="d = 1", test="d < last",
        to="i * (d != 5) % n", step="d += 1",
    ))
    image = spmd.build(path)
    assert image.run(ranks=1).tolist() == [2**8]
    with pytest.raises(spmd.SpmdError, match="both send to rank 0"):
        image.run(ranks=3)
