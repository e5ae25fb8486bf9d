"""Tokens from logits: sampling keeps the likeliest, beam search finds what trying all finds."""

from __future__ import annotations

import itertools

import numpy as np
import pytest

import spmd

VOCABULARY, STEPS, END = 5, 4, 4


@spmd.program(mesh=("x",))
def search(beams: int = 25):
    table = spmd.input("table", (VOCABULARY, VOCABULARY), np.float64, layout=(None, "x"))

    def step(k, tokens, state):
        return table[tokens] * (1 + 0.1 * state[..., None]), state + 1

    first = spmd.asarray(np.arange(3))
    return spmd.nn.beam_search(step, spmd.zeros((3, beams)), first, STEPS, beams, end=END)


def log_softmax(x):
    return x - np.log(np.sum(np.exp(x)))


def cost(table, first, sequence):
    total, last = 0.0, first
    for k, token in enumerate(sequence):
        if last != END or not k:
            total += log_softmax(table[last] * (1 + 0.1 * k))[token]
        elif token != END:
            return -np.inf
        last = token
    return total


def test_beam_search_finds_the_likeliest():
    table = 2 * np.random.default_rng(0).standard_normal((VOCABULARY, VOCABULARY))
    everything = list(itertools.product(range(VOCABULARY), repeat=STEPS))
    image = spmd.build(search)
    runs = [search.eager(table=table), *(image.run(ranks=n, table=table) for n in (1, 2, 3))]
    for tokens, scores in runs:
        for first in range(3):
            costs = [cost(table, first, s) for s in everything]
            best = np.argsort(costs)[::-1][:3]
            np.testing.assert_allclose(scores[first, :3], np.take(costs, best))
            np.testing.assert_array_equal(tokens[first, :3], np.take(everything, best, axis=0))


LOGITS = np.log(np.array([0.5, 0.3, 0.15, 0.05]))


@pytest.mark.parametrize(
    "options, chances",
    [
        ({}, [0.5, 0.3, 0.15, 0.05]),
        ({"top_k": 2}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.79}, [0.625, 0.375, 0, 0]),
        ({"top_p": 0.81}, [0.5 / 0.95, 0.3 / 0.95, 0.15 / 0.95, 0]),
        ({"top_p": 0.0}, [1, 0, 0, 0]),
        ({"top_k": 3, "top_p": 0.6, "temperature": 2.0}, np.sqrt([0.5, 0.3, 0, 0])),
    ],
)
def test_sampling_draws_by_chance(options, chances):
    """Within five standard deviations."""
    count, chances = 20_000, np.divide(chances, np.sum(chances))
    drawn = spmd.nn.sample(1, np.broadcast_to(LOGITS, (count, 4)), **options)
    found = np.bincount(drawn, minlength=4)
    assert (abs(found - count * chances) <= 5 * np.sqrt(count * chances * (1 - chances))).all()


@spmd.program(mesh=("x",))
def drawn():
    logits = spmd.input("logits", (40, 11), np.float32, layout=(None, "x"))
    seed = spmd.scalar("seed", 1)
    likely = spmd.nn.sample(seed, logits, 0.8, top_k=5, top_p=0.9, stream=3)
    return likely, spmd.nn.sample(seed, logits, top_k=1)


def test_the_same_tokens_on_any_number_of_ranks():
    logits = np.random.default_rng(1).standard_normal((40, 11)).astype(np.float32)
    image = spmd.build(drawn)
    expected = drawn.eager(logits=logits)
    np.testing.assert_array_equal(expected[1], np.argmax(logits, -1))
    for ranks in (1, 3):
        np.testing.assert_array_equal(image.run(ranks=ranks, logits=logits), expected)


@pytest.mark.parametrize("k", [0, 5, 1.5])
def test_a_wrong_number_of_tokens_is_refused(k):
    with pytest.raises(spmd.UsageError, match="from 1 to 4"):
        spmd.nn.sample(1, LOGITS, top_k=k)


def test_a_temperature_that_is_not_positive_is_refused():
    with pytest.raises(spmd.UsageError, match="the temperature is not positive"):
        spmd.nn.sample(1, LOGITS, 0)

    @spmd.program(mesh=("r",))
    def drawn_at():
        return spmd.nn.sample(1, spmd.asarray(LOGITS), spmd.scalar("temperature", 1.0))

    image = spmd.build(drawn_at)
    image.run()
    with pytest.raises(spmd.CheckError, match="not positive: 0.0"):
        image.run(temperature=0.0)
    with pytest.raises(spmd.UsageError, match="an integer from 1 on"):
        search.capture(beams=0)
