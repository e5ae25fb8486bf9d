"""From logits to tokens: sampling of the likeliest, and beam search over what a network predicts.

Always holds: the same tokens on any number of ranks, up to the rounding of the logits; the same
source runs in programs, in eager runs and on NumPy's arrays (beam_search: in the first two).
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

import spmd
from spmd import ShapeError, UsageError
from spmd.extend import as_array, called_with, expect, is_traced, map_tree, user_place
from spmd.nn.activations import log_softmax, softmax
from spmd.nn.shared import floats


def sample(
    seed: Any, logits: Any, temperature: Any = 1.0, top_k: int | None = None,
    top_p: Any = None, *, stream: Any = 0,
) -> Any:
    """Draw tokens by their logits: integers of shape (…).

    - logits: (…, vocabulary), any floats.
    - temperature: a number > 0 by which logits are divided: below 1 the likely ones are drawn more
      often. The likeliest alone: `np.argmax(logits, -1)`.
    - top_k: only the k likeliest are drawn, and what is as likely as the last of these.
    - top_p: only the likeliest whose chances sum up to top_p are drawn, one at least (nucleus
      sampling: A. Holtzman and others, 2020), and what is as likely as the last of these.
    - seed, stream: as in spmd.random.bits; give each step another stream.

    UsageError where top_k is no integer from 1 to the size of the vocabulary, or the temperature is
    not positive; where only the run knows that, it ends with a message.

    >>> logits = np.log(np.array([[0.5, 0.3, 0.15, 0.05]] * 6))
    >>> spmd.nn.sample(2, logits, top_k=2)
    array([0, 0, 0, 0, 1, 0])
    """
    _check_temperature(temperature)
    logits = floats(logits, "sample") / temperature
    if top_k is not None:
        logits = _at_least(logits, _best(logits, _checked(top_k, logits.shape[-1])))
    if top_p is not None:
        falling = np.sort(logits, axis=-1)[..., ::-1]
        chances = softmax(falling)
        before = np.cumsum(chances, axis=-1) - chances
        kept = (before < top_p) | (np.arange(falling.shape[-1]) == 0)
        logits = _at_least(logits, np.min(np.where(kept, falling, np.inf), -1, keepdims=True))
    return spmd.random.categorical(seed, logits, stream=stream)


def _check_temperature(temperature: Any) -> None:
    text, remedy = "the temperature is not positive", "np.argmax(logits, -1) for the likeliest"
    if is_traced(temperature):
        value = as_array(temperature)
        expect(value > 0, f"{text}: ", value, f"\n  expected: a number > 0\n  try:      {remedy}")
    elif not np.all(np.asarray(temperature) > 0):
        raise UsageError(text, place=user_place(), expected="a number > 0",
                         found=str(temperature), remedy=remedy)


def _at_least(logits: Any, least: Any) -> Any:
    return np.where(logits >= least, logits, -np.inf)


def _best(logits: Any, k: int) -> Any:
    """Return the k-th largest of each lane."""
    return np.sort(logits, axis=-1)[..., -k:][..., :1]


def _checked(k: Any, size: Any) -> int:
    if not isinstance(k, (int, np.integer)) or k < 1 or (isinstance(size, int) and k > size):
        raise UsageError("top_k is how many tokens may be drawn", place=user_place(),
                         expected=f"an integer from 1 to {size}", found=repr(k))
    return int(k)


def beam_search(
    step: Callable[[Any, Any, Any], tuple[Any, Any]], state: Any, first: Any, steps: int,
    beams: int, end: int | None = None,
) -> tuple[Any, Any]:
    """Return the likeliest sequences that a search finds which keeps `beams` of them after each
    step.

    - step: `logits, state = step(k, tokens, state)`: from the tokens (batch, beams) of step k to
      the logits (batch, beams, vocabulary) of the next.
    - state: any tree of arrays (batch, beams, …), such as a cache of keys and values: they go with
      the sequences that are kept.
    - first: (batch,), the tokens that sequences begin with. steps: how many tokens follow.
    - end: a token after which a sequence is over: nothing but `end` follows, at no cost.

    Returns tokens (batch, beams, steps) and the sums of their log probabilities (batch, beams), the
    likeliest first. ShapeError where step returns other shapes, UsageError for less than one beam.
    """
    if not isinstance(beams, (int, np.integer)) or beams < 1:
        raise UsageError("spmd.nn.beam_search keeps one sequence at least", place=user_place(),
                         expected="beams: an integer from 1 on", found=repr(beams))
    step = called_with(step, "the step of spmd.nn.beam_search", "k", "tokens", "state")
    batch = first.shape[0]
    last = first[:, None] + np.zeros((1, beams), first.dtype)
    done = last != last
    scores = np.where(np.arange(beams) == 0, 0.0, -np.inf) + np.zeros((batch, 1))
    sequences = spmd.zeros((batch, beams, steps), first.dtype)

    def turn(k: Any, carried: Any) -> Any:
        last, done, scores, sequences, state = carried
        logits, state = step(k, last, state)
        if tuple(logits.shape[:-1]) != (batch, beams):
            raise ShapeError("the step of spmd.nn.beam_search returns other logits",
                             place=user_place(), found=str(tuple(logits.shape)),
                             expected=f"({batch}, {beams}, vocabulary)")
        size = logits.shape[-1]
        costs = log_softmax(logits).astype(scores.dtype)
        if end is not None:
            alone = np.where(np.arange(size) == end, 0.0, -np.inf)
            costs = np.where(done[..., None], alone, costs)
        scores, parent, last = _best_of(scores[..., None] + costs, beams, last.dtype)
        state, done, sequences = map_tree(lambda x: _followed(x, parent), (state, done, sequences))
        sequences = np.where(np.arange(steps) == k, last[..., None], sequences)
        done = done if end is None else done | (last == end)
        return last, done, scores, sequences, state

    begun = last, done, scores, sequences, state
    _, _, scores, sequences, _ = spmd.fori_loop(0, steps, turn, begun)
    return sequences, scores


def _best_of(totals: Any, beams: int, dtype: Any) -> tuple[Any, Any, Any]:
    """Return the largest totals (batch, beams, vocabulary), and which beam and which token each is.
    The largest of each beam come first: where the vocabulary is split, these are all that
    travel."""
    batch, _, size = totals.shape
    few = min(beams, size) if isinstance(size, int) else beams
    best, tokens = (x.reshape((batch, beams * few)) for x in spmd.top_k(totals, few))
    chosen: Any
    scores, chosen = spmd.top_k(best, beams)
    return scores, chosen // few, np.take_along_axis(tokens, chosen, 1).astype(dtype)


def _followed(x: Any, parent: Any) -> Any:
    """Return, of x (batch, beams, …), what belongs to the beam that each one follows."""
    index = parent.reshape((*parent.shape, *[1] * (x.ndim - 2)))
    return np.take_along_axis(x, index, axis=1)
