"""spmd.random: known answers, the same numbers everywhere, and their moments."""

from __future__ import annotations

import doctest

import numpy as np
import pytest

import spmd
from codegen import philox
from codegen.layouts.partition import partition
from codegen.oracle.interpret import run
from codegen.trace.numpy import random

# Of the authors' own library, Random123: tests/kat_vectors, philox4x32 10.
KNOWN = [
    ("00000000 00000000 00000000 00000000", "00000000 00000000",
     "6627e8d5 e169c58d bc57ac4c 9b00dbd8"),
    ("ffffffff ffffffff ffffffff ffffffff", "ffffffff ffffffff",
     "408f276d 41c83b0e a20bc7c6 6d5451fd"),
    ("243f6a88 85a308d3 13198a2e 03707344", "a4093822 299f31d0",
     "d16cfe09 94fdcceb 5001e420 24126ea1"),
]


def words(text):
    return [int(w, 16) for w in text.split()]


def joined(pair):
    return pair[0] | pair[1] << 32


@pytest.mark.parametrize("counter, key, answer", KNOWN)
def test_known_answers(counter, key, answer):
    counter, key, answer = (words(t) for t in (counter, key, answer))
    assert list(philox.words(counter, key)) == answer
    given = [np.uint64(joined(w)) for w in (counter[:2], counter[2:], key)]
    assert philox.first(*given) == joined(answer[:2])
    assert philox.second(*given) == joined(answer[2:])
    found = spmd.random.bits(joined(key), (), stream=joined(counter[2:]), start=joined(counter[:2]))
    assert found == joined(answer[:2]) and found.dtype == np.uint64


def test_known_answers_of_an_image():
    @spmd.program(mesh=("r",))
    def answers():
        seed, stream, start = (spmd.scalar(name, 0) for name in ("seed", "stream", "start"))
        x = spmd.random.normal(seed, (), stream=stream, start=start)
        return spmd.random.bits(seed, (), np.int64, stream=stream, start=start), x

    image = spmd.build(answers)
    for counter, key, answer in KNOWN:
        pairs = (words(counter)[:2], words(counter)[2:], words(key), words(answer)[:2])
        start, stream, seed, expected = (np.uint64(joined(p)).view(np.int64) for p in pairs)
        given = {"start": int(start), "stream": int(stream), "seed": int(seed)}
        first, normal = image.run(ranks=2, **given)
        assert first == expected
        np.testing.assert_allclose(normal, answers.eager(**given)[1], rtol=1e-14)


@spmd.program(mesh=("x", "y"))
def numbers(n: int = 37):
    seed, width = spmd.scalar("seed", 11), spmd.scalar("width", 1.0)
    total = np.zeros(5)
    for k in spmd.range(3):
        total = total + spmd.random.uniform(seed, (5,), stream=k)
    return {
        "bits": spmd.random.bits(seed, (n, 3), layout=("x", "y"), stream=-1),
        "halves": spmd.random.bits(seed, (n,), np.uint32, layout="y", start=2**40),
        "signed": spmd.random.bits(2**63 + 5, (2, n), np.int8, layout=(None, "x")),
        "uniform": spmd.random.uniform(seed, (n, 4), layout=("y", "x")),
        "single": spmd.random.uniform(-3, (4, n), -1.0, 3.0, np.float32, layout=(None, ("x", "y"))),
        "normal": spmd.random.normal(seed, (3, n), 2.0, 0.5, layout=(None, "x")),
        "half": spmd.random.uniform(seed, (n, 9), 1.0, 1.0 + width, np.float16),
        "brain": spmd.random.uniform(seed, (n, 9), 1.0, 1.0 + width, "bfloat16"),
        "small": spmd.random.uniform(seed, (n,), dtype="bfloat16", layout="x"),
        "bell": spmd.random.normal(seed, (n,), 2.0, 0.5, np.float16, layout="x"),
        "dice": spmd.random.randint(seed, (n,), 1, 7, layout="x"),
        "wide": spmd.random.randint(seed, (n,), -(2**63), 2**63 - 1, layout="x"),
        "order": spmd.random.permutation(seed, n, layout="x"),
        "shuffled": spmd.random.permutation(seed, spmd.random.bits(1, (n, 2), layout=("x", None))),
        "drawn": spmd.random.categorical(seed, np.ones((n, 6)) * np.arange(6), layout="x"),
        "scalar": spmd.random.uniform(seed, ()),
        "one": spmd.random.uniform(seed, (n, 4), layout=("x", None))[n // 2],
        "none": spmd.random.normal(seed, (0, 3), layout=("x", None)),
        "total": total,
    }


def same(found, expected):
    for name, e in expected.items():
        f = np.asarray(found[name])
        assert (f.dtype, f.shape) == (e.dtype, e.shape), name
        if name in ("normal", "none"):  # log and cos are another library's
            np.testing.assert_allclose(f, e, rtol=1e-14, err_msg=name)
        else:
            np.testing.assert_array_equal(f, e, err_msg=name)


def test_the_same_on_any_number_of_ranks():
    expected = numbers.eager()
    lowered = partition(numbers.capture())
    for x, y in [(1, 1), (2, 1), (3, 1), (2, 2), (5, 1), (3, 2), (1, 7)]:
        same(run(lowered, {"x": x, "y": y}), expected)


def test_the_same_in_an_image():
    image = spmd.build(numbers)
    for ranks in (1, 6):
        same(image.run(ranks=ranks), numbers.eager())
        same(image.run(ranks=ranks, seed=-8), numbers.eager(seed=-8))


def test_in_plain_numpy():
    """Outside of programs too; and they have the numbers that a program has."""
    expected = numbers.eager()
    found = spmd.random.uniform(11, (37, 4))
    assert type(found) is np.ndarray
    np.testing.assert_array_equal(found, expected["uniform"])
    np.testing.assert_array_equal(np.sort(expected["order"]), np.arange(37))
    rows = spmd.random.bits(1, (37, 2))[expected["order"]]
    np.testing.assert_array_equal(expected["shuffled"], rows)


def test_one_rank_at_a_time():
    @spmd.program(mesh=("r",))
    def parts():
        @spmd.shard_map(mesh="r", out_layouts=("r",))
        def mine():
            return spmd.random.uniform(5, (3,), start=3 * spmd.axis_index("r"))

        return mine()

    expected = spmd.random.uniform(5, (12,))
    np.testing.assert_array_equal(spmd.build(parts).run(ranks=4), expected)
    np.testing.assert_array_equal(parts.eager(ranks=4), expected)


def test_one_loop_and_no_memory():
    """Random arrays are computed in one loop each, and nothing but the arrays is stored."""

    @spmd.program(mesh=("r",))
    def three():
        return {
            "u": spmd.random.uniform(1, (50, 2), layout=("r", None)),
            "g": spmd.random.normal(2, (50,), layout="r"),
            "i": spmd.random.randint(3, (50,), 6, layout="r"),
        }

    from codegen.compile import lower

    plan = lower(three.capture()).plan
    (phase,) = plan.steps
    assert len(plan.buffers) == len(phase.work) == 3


def test_examples_of_the_docstrings():
    known = {"spmd": spmd, "np": np}
    found = doctest.testmod(random, extraglobs=known, optionflags=doctest.NORMALIZE_WHITESPACE)
    assert found.failed == 0 and found.attempted == 6


# ---- moments: of so many numbers, each bound is five standard deviations of the mean ----

COUNT = 100_000


@pytest.mark.parametrize("dtype", [np.float16, "bfloat16", np.float32, np.float64])
def test_uniform_moments(dtype):
    u = spmd.random.uniform(1, COUNT, dtype=dtype)
    assert u.dtype == dtype and 0 <= u.min() and u.max() < 1
    if u.dtype.itemsize == 2:  # their last bits are coarse: means are off by a part of them
        return
    for power in (1, 2, 3):
        mean, second = 1 / (power + 1), 1 / (2 * power + 1)
        found = np.mean(u.astype(float) ** power)
        assert abs(found - mean) < 5 * np.sqrt((second - mean**2) / COUNT)


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_normal_moments(dtype):
    x = spmd.random.normal(1, COUNT, dtype=dtype).astype(float)
    assert np.isfinite(x).all() and abs(x).max() > 3.5
    for power, mean, variance in ((1, 0, 1), (2, 1, 2), (3, 0, 15), (4, 3, 96)):
        assert abs(np.mean(x**power) - mean) < 5 * np.sqrt(variance / COUNT)


def test_randint_is_even():
    x = spmd.random.randint(1, COUNT, -2, 5)
    counts = np.bincount(x + 2)
    assert len(counts) == 7
    assert (abs(counts - COUNT / 7) < 5 * np.sqrt(COUNT * 6 / 49)).all()


@pytest.mark.parametrize("dtype", [np.float32, np.float64])
def test_categorical_draws_by_chance(dtype):
    chances = np.array([0.1, 0.2, 0.3, 0.4, 0.0])
    logits = np.log(chances, out=np.full(5, -np.inf), where=chances > 0).astype(dtype)
    drawn = spmd.random.categorical(1, np.broadcast_to(logits + 7, (COUNT, 5)))
    counts = np.bincount(drawn, minlength=5)
    assert (abs(counts - COUNT * chances) <= 5 * np.sqrt(COUNT * chances * (1 - chances))).all()


def test_seeds_and_streams_are_unrelated():
    rows = [spmd.random.uniform(s, COUNT, stream=k) for s in (0, 1, 2**32) for k in (0, 1, 2**32)]
    related = np.corrcoef(rows) - np.eye(len(rows))
    assert abs(related).max() < 5 / np.sqrt(COUNT)


# ---- errors ----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "wrong, error",
    [
        (lambda: spmd.random.uniform(1.5, 3), spmd.UsageError),
        (lambda: spmd.random.uniform(1, 3, stream=np.arange(3)), spmd.UsageError),
        (lambda: spmd.random.uniform(1, 3, dtype=np.int64), spmd.DtypeError),
        (lambda: spmd.random.bits(1, 3, np.float64), spmd.DtypeError),
        (lambda: spmd.random.categorical(1, np.arange(3)), spmd.DtypeError),
        (lambda: spmd.random.randint(1, 3, 5, 5), spmd.UsageError),
        (lambda: spmd.random.randint(1, 3, 0, 300, np.uint8), spmd.UsageError),
    ],
)
def test_refused(wrong, error):
    with pytest.raises(error):
        wrong()


def test_named_dims_carry_rules() -> None:
    @spmd.program(mesh=("x",), layout={"rows": "x"})
    def named():
        shape = (spmd.Dim("rows", 8), 3)
        made = spmd.random.normal(1, shape), spmd.random.bits(1, shape), spmd.zeros(shape)
        return (*made, spmd.random.uniform(1, shape, layout=spmd.replicated))

    layouts = [o.value.type.layout for o in named.capture().outputs]
    assert layouts == [(("x",), ())] * 3 + [((), ())]


@pytest.mark.parametrize("bounds", [(-1.7e308, 1.7e308), (0, np.inf), (0, np.nan), (0, 1e39)])
def test_bounds_that_are_too_far_apart_are_refused(bounds):
    with pytest.raises(spmd.UsageError, match="too far apart"):
        spmd.random.uniform(1, 2, *bounds, dtype=np.float32)
