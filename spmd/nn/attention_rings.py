"""Attention over ranks: keys and values travel around a ring, queries stay.

Ring attention (H. Liu et al., 2023). On the way back their cotangents travel with them, and come
home last. Always holds: a rank has its own part, the part that is with it, and blocks of scores.
"""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from spmd import Array, ShapeError
from spmd.extend import RankGroup, is_proved_at_most, user_place
from spmd.nn.attention_blocks import (
    KeyPart,
    Scores,
    back,
    begun,
    dtype_of_sums,
    ended,
    visit,
)

Extras = tuple[Any, Any]  # a mask and a bias, or None


def forward(
    how: Scores, q: Any, k: Any, v: Any, extras: Extras, axes: Any, rows: Any = ()
) -> tuple[Any, Any]:
    """Return the means of values, and the logarithms of the sums of powers, of one rank's queries.

    axes: mesh axes over which the positions of keys are split; () for those that are all here.
    """
    if not axes:
        part = KeyPart(k, v, extras[0], extras[1], _first(q, rows))
        return ended(visit(how, q, part, begun(q, v)))
    ring = _Ring(q, k, axes)
    state = visit(how, q, ring.part(0, k, v, extras), begun(q, v))

    def turn(step: Any, carried: Any) -> Any:
        travelling, state = carried
        travelling = spmd.ppermute(travelling, axes, shift=1)
        return travelling, visit(how, q, ring.arrived(step, travelling, extras), state)

    travelling = ring.padded(k), ring.padded(v)
    return ended(spmd.fori_loop(1, ring.group.size, turn, (travelling, state))[1])


def backward(how: Scores, kept: Any, g: Any, axes: Any, rows: Any = ()) -> tuple[Any, ...]:
    """Return the cotangents of what forward was given: of queries, keys, values and, if there is
    one, a bias.

    kept: queries, keys, values, (mask, bias), and what forward returned.
    """
    q, k, v, extras, means, sums = kept
    g = g.astype(dtype_of_sums(q))
    statistics = sums, g, np.sum(g * means, -1, keepdims=True)
    operands = (q, k, v) if extras[1] is None else (q, k, v, extras[1])
    slopes = tuple(np.zeros_like(x, dtype=dtype_of_sums(x)) for x in operands)
    if not axes:
        part = KeyPart(k, v, extras[0], extras[1], _first(q, rows))
        slopes = back(how, q, part, statistics, slopes)
    else:
        slopes = _around(how, q, k, v, extras, statistics, slopes, axes)
    dq, *others = slopes
    return tuple(d.astype(x.dtype) for d, x in zip((dq * how.scale, *others), operands))


def _around(
    how: Scores, q: Any, k: Any, v: Any, extras: Extras, statistics: Any, slopes: Any, axes: Any
) -> tuple[Any, ...]:
    ring = _Ring(q, k, axes)

    def step(turn: Any, part: KeyPart, dq: Any, dk: Any, dv: Any, dbias: Any) -> Any:
        mine = [ring.columns(turn, x) for x in dbias]
        dq, dk, dv, *news = back(how, q, part, statistics, (dq, dk, dv, *mine))
        for x, new in zip(dbias, news):
            ring.columns(turn, x)[...] = new
        return dq, dk, dv, dbias

    def hop(turn: Any, carried: Any) -> Any:
        dq, dbias, travelling = carried
        k, v, dk, dv = spmd.ppermute(travelling, axes, shift=1)
        part = ring.arrived(turn, (k, v), extras)
        here = ring.here(turn, dk), ring.here(turn, dv)
        dq, *news, dbias = step(turn, part, dq, *here, dbias)
        for x, new in zip((dk, dv), news):
            ring.here(turn, x)[...] = new
        return dq, dbias, (k, v, dk, dv)

    dq, dk, dv, *dbias = slopes
    dq, dk, dv, dbias = step(0, ring.part(0, k, v, extras), dq, dk, dv, dbias)
    travelling = tuple(ring.padded(x) for x in (k, v, dk, dv))
    dq, dbias, travelling = spmd.fori_loop(1, ring.group.size, hop, (dq, dbias, travelling))
    dk, dv = (ring.here(0, x) for x in spmd.ppermute(travelling[2:], axes, shift=1))
    return dq, dk, dv, *dbias


def _first(q: Any, rows: Any) -> Any:
    """Return the position of a rank's first query, where positions are split over rows."""
    if not rows:
        return 0
    return RankGroup(rows, "spmd.nn.attention").start(q.shape[-2])


class _Ring:
    """The ring says whose keys are with this rank after so many steps, how many they are, where
    they stand."""

    def __init__(self, q: Array, k: Array, axes: Any) -> None:
        self.group = RankGroup(axes, "spmd.nn.attention")
        self.extent = k.shape[-2]
        self.offset = self.group.start(self.extent)
        self.first_query = self.group.start(q.shape[-2])
        self.most = self.group.at(self.extent, 0)
        if not is_proved_at_most(self.extent, self.most):
            raise ShapeError("spmd.nn.attention: the parts of the ranks are no blocks of a dim",
                             place=user_place(), found=f"{self.extent} positions on a rank",
                             expected="balanced blocks, the larger ones first")

    def _of(self, step: Any, e: Any) -> Any:
        """Return a formula of this rank's, as the rank has it whose keys are here."""
        return self.group.at(e, (self.group.position - step) % self.group.size)

    def padded(self, x: Any) -> Any:
        """Return x, padded with zeros to the length of the longest part of a rank."""
        room = spmd.zeros((*x.shape[:-2], self.most, x.shape[-1]), x.dtype)
        room[..., : x.shape[-2], :] = x
        return room

    def here(self, step: Any, x: Any) -> Any:
        """Return a view of what is no padding."""
        return x[..., : self._of(step, self.extent), :]

    def columns(self, step: Any, x: Any) -> Any:
        """Return the columns of a mask or a bias for the keys that are here."""
        if x is None or (isinstance(x.shape[-1], int) and x.shape[-1] == 1):
            return x
        first = self._of(step, self.offset)
        return x[..., first : first + self._of(step, self.extent)]

    def part(self, step: Any, k: Any, v: Any, extras: Extras) -> KeyPart:
        mask, bias = (self.columns(step, x) for x in extras)
        return KeyPart(k, v, mask, bias, self.first_query, self._of(step, self.offset),
                    self.most)

    def arrived(self, step: Any, travelling: Any, extras: Extras) -> KeyPart:
        k, v = (self.here(step, x) for x in travelling)
        return self.part(step, k, v, extras)
