"""Streams are functions of position: permutations, draws, windows, and what pipelines compute."""

from __future__ import annotations

from collections import Counter

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import spmd
from spmd import data
from spmd.data.permutations import Generators, independent, once, permuted

HERE = __file__


def chunks(cuts: list[int], n: int) -> list[tuple[int, int]]:
    edges = sorted({0, n, *(c for c in cuts if c < n)})
    return list(zip(edges, edges[1:]))


# ---- permutations


def test_a_permutation_of_any_small_length():
    for n in (*range(1, 40), *range(41, 600, 31), 4096, 4097):
        assert sorted(permuted(n, np.arange(n), seed=n, epoch=n % 7)) == list(range(n))


@settings(max_examples=40)
@given(st.integers(1, 2**61), st.integers(0, 2**64 - 1), st.integers(0, 1000))
def test_a_permutation_of_a_large_length_meets_no_place_twice(n, seed, epoch):
    places = np.unique(np.linspace(0, n - 1, 200).astype(np.int64).clip(0, n - 1))
    found = permuted(n, places, seed, epoch)
    assert len(set(found.tolist())) == len(places)
    assert 0 <= found.min() and found.max() < n
    assert found[:3].tolist() == [permuted(n, places[k : k + 1], seed, epoch)[0]
                                  for k in range(len(found[:3]))]


def chance_of_counts(counts):
    """Return how probable such counts are where all are equally likely, by chi squared."""
    from scipy import stats  # half a second, and not for each worker

    return stats.chisquare(counts).pvalue


def test_every_place_is_equally_likely():
    """Chi squared of where three examples come to, and of which neighbours they have."""
    n, trials = 13, 4000
    epochs = np.repeat(np.arange(trials, dtype=np.uint64), n)
    found = permuted(n, np.tile(np.arange(n), trials), 3, epochs).reshape(trials, n)
    for k in (0, 5, 12):
        assert chance_of_counts(np.bincount(found[:, k], minlength=n)) > 1e-4
    steps = Counter(((found[:, 1] - found[:, 0]) % n).tolist())
    assert chance_of_counts([steps[k] for k in range(1, n)]) > 1e-4


def test_every_permutation_of_six_is_equally_likely():
    n, trials = 6, 20 * 720
    epochs = np.repeat(np.arange(trials, dtype=np.uint64), n)
    found = permuted(n, np.tile(np.arange(n), trials), 3, epochs).reshape(trials, n)
    counts = Counter(map(tuple, found.tolist()))
    assert len(counts) == 720 and chance_of_counts(list(counts.values())) > 1e-4


def test_epochs_and_seeds_differ():
    orders = {tuple(permuted(50, np.arange(50), s, e)) for s in range(5) for e in range(5)}
    assert len(orders) == 25
    assert len({tuple(once(50, np.arange(50 * e, 50 * e + 50), 3, True)) for e in range(9)}) == 9


@settings(max_examples=40)
@given(st.integers(1, 60), st.integers(0, 9), st.sampled_from([True, False, 2, 7]),
       st.lists(st.integers(1, 150), max_size=6))
def test_once_is_each_example_once_an_epoch_however_it_is_cut(n, seed, shuffle, cuts):
    whole = once(n, np.arange(3 * n), seed, shuffle)
    for e in range(3):
        assert sorted(whole[e * n : e * n + n]) == list(range(n))
    parts = [once(n, np.arange(a, b), seed, shuffle) for a, b in chunks(cuts, 3 * n)]
    assert np.array_equal(np.concatenate(parts), whole)
    if shuffle not in (True, False):
        assert np.all(np.abs(whole[:n] - np.arange(n)) < shuffle)


def test_independent_draws_are_uniform_and_follow_from_the_position():
    found = independent(7, np.arange(70000), seed=2)
    assert chance_of_counts(np.bincount(found, minlength=7)) > 1e-4
    assert np.array_equal(independent(7, np.arange(500, 600), 2), found[500:600])


def test_generators_are_apart():
    draws = {Generators(s).generator(p).random() for s in range(20) for p in range(20)}
    assert len(draws) == 400
    one, seed = Generators(2**64 - 1), 2**64 - 1
    one.generator(3).integers(5, dtype=np.uint32)  # keeps half a word, which is nobody else's
    fresh = np.random.Generator(np.random.Philox(key=np.array([seed, 2**40], np.uint64)))
    assert one.generator(2**40).integers(2**31, size=3, dtype=np.uint32).tolist() == fresh.integers(
        2**31, size=3, dtype=np.uint32).tolist()


# ---- pipelines


def one_by_one(source, **said):
    @data.pipeline(source=source, seed=4, **said)
    def example(example, rng):
        return {"x": np.float32(example), "r": rng.random(2)}

    return example


def in_batches(source, **said):
    @data.batched(source=source, seed=4, size=5, **said)
    def example(examples, rng):
        return {"x": np.float32(examples), "r": rng.random((len(examples), 2))}

    return example


SOURCES = {
    "range": lambda: data.range(23),
    "iterator": lambda: data.iterator(lambda: iter(range(23))),
    "mix": lambda: data.mix(data.range(9), data.range(50, 64), weights=(9, 14)),
    "mixed iterators": lambda: data.mix(
        data.iterator(lambda: iter(range(9))), data.range(50, 64), weights=(9, 14)),
    "parts": lambda: data.concatenate(data.range(8), data.range(90, 120).skip(5).take(15)),
}


@pytest.mark.parametrize("make", [one_by_one, in_batches])
@pytest.mark.parametrize("source", SOURCES)
@pytest.mark.parametrize("shuffle", [True, False, 4])
def test_what_is_computed_follows_from_position(source, make, shuffle):
    """In order, backwards, overlapping, by a pipeline that has seen nothing: always the same."""
    whole = make(SOURCES[source](), epochs=2, shuffle=shuffle).compute(0, 60)
    assert whole.there.tolist() == [True] * 46 + [False] * 14
    assert whole.total == 46
    firsts = sorted(whole.arrays["x"][:23])
    assert firsts == sorted(whole.arrays["x"][23:46]) and len(set(firsts)) == 23
    assert not whole.arrays["x"][46:].any()
    other = make(SOURCES[source](), epochs=2, shuffle=shuffle)
    for first, count in ((40, 9), (3, 11), (10, 25), (0, 2), (22, 3)):
        part = other.compute(first, count)
        for name, a in part.arrays.items():
            assert np.array_equal(a, whole.arrays[name][first : first + count]), (first, name)


def test_independent_needs_a_length_and_has_no_end():
    endless = one_by_one(data.range(3), sampling="independent")
    assert endless.total() is None and set(endless.compute(10**12, 60).arrays["x"]) == {0, 1, 2}
    assert one_by_one(data.range(3), sampling="independent", epochs=2).total(batch=4) == 2
    with pytest.raises(spmd.UsageError, match="known length"):
        one_by_one(data.iterator(lambda: iter([1])), sampling="independent").compute(0, 1)


def test_whole_batches_in_this_process():
    found = list(one_by_one(data.range(10), epochs=1, shuffle=False).batches(4))
    assert [b["x"].tolist() for b in found] == [[0, 1, 2, 3], [4, 5, 6, 7]]


def test_rows_go_where_the_caller_says():
    pipeline = one_by_one(data.range(4), shuffle=False, epochs=1)
    out = {"x": np.full(6, 9, np.float32), "r": np.full((6, 2), 9.0)}
    seen: list[int] = []
    found = pipeline.compute(2, 6, {"x": ((), "float32"), "r": ((2,), np.float64)}, out,
                             seen.append)
    assert found.arrays["x"] is out["x"] and seen == [2, 3]
    assert out["x"].tolist() == [2, 3, 0, 0, 0, 0] and not out["r"][2:].any()


def test_pipelines_call_each_other():
    first = one_by_one(data.range(3), shuffle=False)

    @data.pipeline(source=data.range(3), shuffle=False)
    def second(example, rng):
        return {"y": first(example, rng)["x"] + 10}

    assert second.compute(0, 3).arrays["y"].tolist() == [10, 11, 12]
    assert second.specs() == {"y": ((), np.dtype(np.float32))}


# ---- an iterator that changes its mind, or breaks


def test_an_iterator_is_read_once_for_positions_that_follow():
    passes: list[int] = []

    def numbers():
        passes.append(0)
        yield from range(100)

    pipeline = one_by_one(data.iterator(numbers), shuffle=False, epochs=1)
    for first in range(0, 100, 10):  # two ranks, the later rows first
        pipeline.compute(first + 5, 5)
        pipeline.compute(first, 5)
    assert len(passes) == 1
    assert pipeline.total() is None
    assert pipeline.compute(100, 1).total == 100


def test_an_iterator_that_gives_less_the_second_time_is_refused():
    lengths = [5, 3]
    pipeline = one_by_one(data.iterator(lambda: iter(range(lengths.pop(0)))), shuffle=False)
    found = pipeline.compute(0, 12, raises=False)
    assert "another number of examples" in found.failures[0].text and found.failures[0].fatal
    empty = one_by_one(data.iterator(lambda: iter(())))
    assert "is empty" in empty.compute(0, 1, raises=False).failures[0].text


def test_an_iterator_that_raises_ends_the_stream():
    def broken():
        yield 0
        raise OSError("the line is cut")

    found = one_by_one(data.iterator(broken), shuffle=False, on_error="skip").compute(
        0, 5, raises=False)
    assert found.there.tolist() == [True, False, False, False, False]
    (failure,) = found.failures
    assert failure.fatal and failure.position == 1 and failure.example == "example 1 of the source"
    assert failure.file == HERE and "the line is cut" in failure.text
