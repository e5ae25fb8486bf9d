"""The C that is printed compiles without a warning, whatever the user's names are."""

import re

import numpy as np
import pytest

import spmd
from codegen.compile import lower


@spmd.program(mesh=("r",))
def names_in_comments():
    """A scalar and a counter are named in comments of functions that do not use them."""
    steps = spmd.scalar("steps", 3)
    total = spmd.scalar("total", 2.0)
    u = spmd.input("u", (7,), np.float64, layout=("r",), default=lambda i: i * 1.0)

    @spmd.shard_map(out_layouts=("r",))
    def f(lane):
        where = lane * total
        for value in spmd.range(steps):  # steps and value are words of the generated code too
            where = where + total + (value if steps > 1 else 0)
            where = spmd.ppermute(where[:0], "r", shift=1).sum() + where
        return where  # steps

    return f(u)


@pytest.mark.parametrize("ranks", [1, 2, 5])
def test_users_names_are_no_obstacle(ranks):
    np.testing.assert_array_equal(
        spmd.build(names_in_comments).run(ranks=ranks),
        names_in_comments.eager(ranks=ranks),
    )


@spmd.program(mesh=("r",))
def predicates_of_integers():
    u = spmd.input("u", (6,), np.uint8, layout=("r",), default=lambda i: i)

    @spmd.shard_map(out_layouts=("r",))
    def f(a):
        return np.isfinite(a) & ~np.isnan(a) & ~np.isinf(a) & ~np.signbit(a * 1.0)

    return f(u)


def test_functions_that_ignore_their_operand():
    assert spmd.build(predicates_of_integers).run(ranks=2).all()


def test_a_half_is_rounded_once():
    """Half types are rounded as they are stored; a copy changes no bits, also not those of a
    NaN."""

    @spmd.program(mesh=("r",))
    def halves():
        u = spmd.input("u", (6,), np.float16, layout=("r",))
        return np.exp(u) * u, u[::-1]

    text = lower(halves.capture()).source.text
    line = next(found for found in text.splitlines() if " = spmd_float16_store(" in found)
    assert line.count("store(") == 2  # of exp, of the product
    u = np.array([0, 1, -2, 9, np.inf, np.nan], np.float16)
    u[5:].view(np.uint16)[:] = 0x7E01
    product, back = spmd.build(halves).run(ranks=2, u=u)
    with np.errstate(all="ignore"):
        np.testing.assert_array_equal(product, np.exp(u) * u)
    assert back.tobytes() == u[::-1].tobytes()


@spmd.program(mesh=("r",))
def first_and_last(n: int = 3):
    """The first and the last row of every shard: there must be one, and launches are told so."""
    u = spmd.input("u", (n, 2), np.float64, layout=("r", None), default=lambda i, j: 10 * i + j + 1)

    @spmd.shard_map(out_layouts=((None,), (None,)))
    def f(a):
        return spmd.psum(a[0] + a[-1], "r"), spmd.psum(a[np.array([0, 0])].sum(axis=0), "r")

    return f(u)


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_the_ends_of_every_shard(ranks):
    ends, twice = spmd.build(first_and_last).run(ranks=ranks)
    rows = np.array([[1.0, 2.0], [11.0, 12.0], [21.0, 22.0]])
    parts = np.array_split(rows, ranks)
    np.testing.assert_array_equal(ends, sum(p[0] + p[-1] for p in parts))
    np.testing.assert_array_equal(twice, sum(2 * p[0] for p in parts))


def test_an_empty_shard_has_no_ends():
    with pytest.raises(spmd.MeshError, match="1 to 3"):
        spmd.build(first_and_last).run(ranks=5)


@spmd.program(mesh=("r",))
def rows_that_wait_alone():
    """A row waits only for itself: how long it is need not be told."""
    a = spmd.input("a", (9, 16, 7), np.float64, layout=(None, "r", None),
                   default=lambda i, j, k: 7 * i + j * j + k)
    for _ in spmd.range(2):
        a[:, 7:-7, 1:] -= a[:, 9:-5, 1:]
    return {"a": a[:, 14:, 1:-1], "all": a}


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_row_that_waits_for_itself(ranks):
    found = spmd.build(rows_that_wait_alone).run(ranks=ranks)
    for name, value in rows_that_wait_alone.eager().items():
        np.testing.assert_array_equal(found[name], value)


def test_where_rows_wait():
    """Away from where they go, computed and written back: two loops a row and no more."""
    phases = lower(rows_that_wait_alone.capture()).source.text.split("__attribute__((noinline))")
    (phase,) = (text for text in phases if "line" in text)
    lines = re.findall(r"\*const line = spmd_apart\(memory_rows,\s+memory \+ (.+)\);", phase)
    assert lines == ["7 * at0 + e1 * j0 + 50", "7 * at0 + e1 * row + 50"]
    assert phase.count("for (") == 1 + 2 * 2


@spmd.program(mesh=("r",))
def gathered_twice():
    """Reads elements at an index that is itself read by an index."""
    a = spmd.input("a", (3, 4), np.float64, layout=("r", None), default=lambda i, j: i * i + j)
    k = np.cumsum(np.ones_like(a[:, 0])).astype(np.int64) % 3
    b = np.take(np.take(a, np.array([0, 1, 0]), axis=0), np.array([0, 2, 2]), axis=0)
    c = np.take(np.take(np.take(a, k, axis=0), np.array([2, 0, 1]), axis=0), k, axis=0)
    hot, line = np.eye(4)[k], np.arange(9)[k + 2][k]  # of formulas, which lie nowhere
    return {"b": b[-1:] + b[1:2], "c": c + 1, "d": c[1:] - c[:-1], "hot": hot, "line": line * 2,
            "columns": np.eye(4, k=1)[:, k], "counts": hot.sum(0), "product": hot.T @ a[:, 0]}


@pytest.mark.parametrize("ranks", [1, 2])
def test_places_of_places(ranks):
    found = spmd.build(gathered_twice).run(ranks=ranks)
    for name, value in gathered_twice.eager().items():
        np.testing.assert_array_equal(found[name], value)


@spmd.program(mesh=("r",))
def to_the_ends():
    """Counters whose next value is no int64; and powers of Python's integers."""
    high, low = spmd.scalar("high", 2**63 - 4), spmd.scalar("low", -2**63 + 3)
    last, s = spmd.scalar("last", 2**63 - 1), spmd.scalar("s", 3)
    turns = np.zeros(3, np.int64)
    for _ in spmd.range(high, last, 2):
        turns[0] = turns[0] + 1
    for _ in spmd.range(high, 2**63 - 1, 3):
        turns[1] = turns[1] + 1
    for _ in spmd.range(low, -2**63, -2):
        turns[2] = turns[2] + 1
    first, second = np.stack([turns, turns + 1])
    for k in spmd.range(s):
        first, second = second * 2, np.stack([first, second])[0]
        second[k] += k
    return {"turns": turns, "stacked": (first, second), "powers": np.ones(2) * s**-2 + 2**s,
            "divided": (7 // (s - 2), 7 % (s - 2), 7 / (s - 2), divmod(7.5, s - 2),
                        7 // (s - 3) if s != 3 else 5, np.int64(6) // (s - 3))}


def test_loops_up_to_the_last_integer():
    image = spmd.build(to_the_ends)
    for name, value in to_the_ends.eager().items():
        assert np.array_equal(np.hstack(image.run()[name]), np.hstack(value))
    assert image.run()["turns"].tolist() == [2, 1, 2]
    with pytest.raises(spmd.MeshError, match="exponent s is not negative"):
        image.run(s=-1)
    with pytest.raises(spmd.MeshError, match="divisor s - 2 is not 0"):
        image.run(s=2)


def test_a_text_is_never_broken():
    """Long messages of checks name all axes of the mesh, with commas."""

    @spmd.program(mesh=("first_axis", "second_axis", "third_axis"))
    def checked():
        a = spmd.input("a", (4,), np.float64, layout=("first_axis",), default=lambda i: i + 1.0)
        return {"total": np.sum(a)}

    image = spmd.build(checked, check=True)
    assert image.run(ranks=2)["total"] == 10
