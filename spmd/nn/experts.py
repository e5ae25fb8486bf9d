"""A mixture of experts: a router sends each token to a few of them, which are split over ranks."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from spmd import ShapeError, UsageError, custom_vjp
from spmd.extend import user_place, widened
from spmd.nn.activations import one_hot, softmax
from spmd.nn.shared import constant


def mixture_of_experts(
    x: Any, router: Any, expert: Callable[[Any], Any], k: int = 2, capacity: int | None = None,
    axis: Any = None,
) -> tuple[Any, dict[str, Any]]:
    """Send each token to the k experts that the router likes most, and return what they give (N.
    Shazeer et al., 2017; groups and capacities as in GShard, D. Lepikhin et al., 2020).

    - x: (groups, tokens, features); groups may be split over ranks. router: (features, experts).
    - expert: a function of (experts, groups * capacity, features), such as two products with
      weights (experts, features, hidden), that returns the like.
    - capacity: how many tokens of a group an expert takes; 1.25 * k * tokens / experts unless you
      say otherwise. What is more goes nowhere: its result is 0. Tokens come first by their choice,
      then by their place.
    - axis: the mesh axis over which the experts are split. Tokens go there and back by an
      all-to-all each.

    Returns (groups, tokens, features), and {"balance": what to add to a loss, 1 where all experts
    get as much (W. Fedus et al., 2021), "dropped": the share of choices that found no room}.
    """
    if np.ndim(x) != 3 or np.ndim(router) != 2 or np.shape(x)[-1] != np.shape(router)[0]:
        raise ShapeError(
            "spmd.nn.mixture_of_experts: x does not fit the router", place=user_place(),
            expected="x (groups, tokens, features) and router (features, experts)",
            found=f"x {np.shape(x)} and router {np.shape(router)}",
            remedy="x[None], where all tokens are one group")
    groups, tokens, features = x.shape
    experts = router.shape[1]
    if not 1 <= k <= experts:
        raise UsageError("spmd.nn.mixture_of_experts: k is a number of experts", found=str(k),
                         place=user_place(), expected=f"1 to {experts}")
    room = capacity if capacity is not None else -(-5 * k * tokens // (4 * experts))
    if room < 1:
        raise ShapeError("spmd.nn.mixture_of_experts: an expert takes no tokens",
                         place=user_place(), expected="a capacity of 1 or more", found=str(room))
    wide = widened(x)
    liked = wide @ widened(router)
    chances = softmax(liked)
    gates, chosen = _best(liked, chances, k)
    gates = gates / np.sum(gates, 1, keepdims=True)
    order = chosen.reshape(groups, k * tokens)  # first choices first
    mine = one_hot(order, experts, np.int32)
    place = np.sum((np.cumsum(mine, 1) - 1) * mine, -1)  # among those of the same expert
    fits = place < room
    # Tokens are moved by indices: in a product with zeros, one NaN would be everywhere.
    slots = order * room + place
    lies = np.where(fits, slots, -1)[:, None, :] == np.arange(experts * room)[:, None]
    taken = np.any(lies, -1)[..., None]
    token = np.argmax(lies, -1)[..., None] % tokens
    sent = np.where(taken, np.take_along_axis(x, token, 1), np.zeros((), x.dtype))
    back = _from_experts(expert(_to_experts(sent, experts, axis)), room, axis, x)
    results = np.take_along_axis(back, np.where(fits, slots, 0)[..., None], 1)
    results = np.where(fits[..., None], widened(results), 0)
    results = results.reshape(groups, k, tokens, back.shape[-1])
    result = np.sum(results * gates[..., None], 1).astype(back.dtype)
    first = np.mean(one_hot(chosen[:, 0], experts, wide.dtype), (0, 1))
    balance = experts * np.sum(first * np.mean(chances, (0, 1)))
    return result, {"balance": balance, "dropped": 1 - np.mean(fits.astype(wide.dtype))}


def _best(liked: Any, chances: Any, k: int) -> tuple[Any, Any]:
    """Return the chances of the k that are liked most along the last dim, and which they are:
    (groups, k, tokens) each. Chances themselves may all be rounded to 0."""
    gates, chosen, left = [], [], np.maximum(constant(liked), np.finfo(liked.dtype).min)
    for _ in range(k):
        chosen.append(np.argmax(left, -1))
        here = one_hot(chosen[-1], chances.shape[-1], np.bool_)
        gates.append(np.sum(np.where(here, chances, 0), -1))
        left = np.where(here, -np.inf, left)
    return np.stack(gates, 1), np.stack(chosen, 1)


def _to_experts(sent: Any, experts: int, axis: Any) -> Any:
    """Reshape (groups, slots, features) to (experts, groups * capacity, features), split over the
    axis."""
    groups, slots, features = sent.shape
    apart = sent.reshape(groups, experts, slots // experts, features)
    if axis is not None:
        apart = _relaid(apart, (None, axis, None, None), (_first(sent), None, None, None))
    return apart.swapaxes(0, 1).reshape(experts, groups * (slots // experts), features)


def _from_experts(results: Any, room: int, axis: Any, like: Any) -> Any:
    (groups, *_), (experts, *_, features) = like.shape, results.shape
    apart = results.reshape(experts, groups, room, features).swapaxes(0, 1)
    if axis is not None:
        apart = _relaid(apart, (_first(like), None, None, None), (None, axis, None, None))
    return apart.reshape(groups, experts * room, features)


def _first(x: Any) -> Any:
    return x.layout[0] if x.layout else None


def _relaid(x: Any, layout: Any, before: Any) -> Any:
    """Return x in another layout; its cotangent goes back the same way."""
    move = custom_vjp(lambda x: x.relayout(layout))
    # The cotangent is laid as x is, before it goes back: so it travels once.
    move.defvjp(lambda x: (x.relayout(layout), None),
                lambda _, g: (g.relayout(layout).relayout(before),))
    return move(x)
