"""The schedules that have names: formulas, or the order in which each rank does its actions.

Names are those of the papers that a Recipe cites. "interleaved" and "zb-v" give each rank two
stages; the other ones give it one.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import zip_longest
from typing import Any, TypeAlias

from spmd.schedules.actions import ABSENT, KINDS
from spmd.schedules.stage_times import Order, soonest

Formulas: TypeAlias = Callable[[Any, Any, Any, Any], dict[str, Any]]
Rows: TypeAlias = dict[str, list[list[int]]]


@dataclass(frozen=True)
class Recipe:
    """How a named schedule is made: by formulas, or by the order of each rank's actions.

    summary: what it does, for tables of the documentation. source: the paper that describes it.
    kept: how many activations stage s keeps, for any number of microbatches. correction: what a
    backward pass does about weights that have changed since its forward pass. accumulate: the
    usual one, for p stages.
    """

    summary: str
    source: str
    formulas: Formulas | None = None
    kept: Callable[[Any, Any, Any], Any] | None = None
    orders: Callable[[int, int], list[Order]] | None = None
    place: str = "block"
    correction: str = "none"
    accumulate: Callable[[int], int] = lambda p: 1


def one_f_one_b(s: Any, p: Any, k: Any, m: Any) -> dict[str, Any]:
    """A stage does the forward pass of one microbatch, then the backward pass of another."""
    return {"F": 2 * k + s, "B": 2 * (k + p) - 1 - s}


def continuous(s: Any, p: Any, k: Any, m: Any) -> dict[str, Any]:
    """Return the ticks of 1F1B, but each stage is updated as soon as its own gradients are
    there."""
    return {"F": 2 * k + s, "B": 2 * (k + p) - 1 - s, "U": 2 * (k + p) - 1 - s}


def gpipe(s: Any, p: Any, k: Any, m: Any) -> dict[str, Any]:
    """All forward passes come before all backward passes."""
    return {"F": k + s, "B": m + 2 * p - 2 - s + k}


def weipipe(s: Any, p: Any, k: Any, m: Any) -> dict[str, Any]:
    """Return the ticks of WeiPipe: forward passes in even ticks, backward passes in odd ones; each
    stage is one tick of its kind behind the stage that it needs, for one microbatch after the
    other."""
    return {"F": 2 * (k + s), "B": 2 * (k + 2 * p - 2 - s) + 1}


def zero_bubble(p: int, m: int, least: int) -> list[Order]:
    """Return the orders of ZB-H1 (least = 1) or ZB-H2 (least = 2).

    Stage s begins with p - s (H1) or 2 (p - s) - 1 (H2) forward passes and then repeats B, W, F;
    its W lag behind by s (H1) or 2 s (H2) microbatches, so that the last B leave early.
    """
    orders: list[Order] = []
    for s in range(p):
        first = min(m, least * (p - s) - least + 1)
        order = [("F", s, k) for k in range(first)]
        for k in range(m):
            order.append(("B", s, k))
            if k >= least * s:
                order.append(("W", s, k - least * s))
            if first + k < m:
                order.append(("F", s, first + k))
        orders.append(order + [("W", s, k) for k in range(max(0, m - least * s), m)])
    return orders


def interleaved(p: int, m: int) -> list[Order]:
    """Return the orders of ranks with stages r and r + p / 2: as many microbatches as there are
    ranks go through the one, then through the other.

    Written for an even number of stages and full groups of microbatches; what is not there of
    these is left out, which leaves all others in an order that is legal.
    """
    ranks = -(-p // 2)
    groups = -(-m // ranks)
    forward = [(half, g * ranks + k) for g in range(groups) for half in (0, 1)
               for k in range(ranks)]
    orders: list[Order] = []
    for r in range(ranks):
        first = min(len(forward), 2 * (ranks - r - 1) + ranks)
        fs = [("F", r + half * ranks, k) for half, k in forward]
        bs = [("B", r + (1 - half) * ranks, k) for half, k in forward]
        pairs = zip_longest(fs[first:], bs)
        order = fs[:first] + [a for pair in pairs for a in pair if a is not None]
        orders.append([a for a in order if a[1] < p and a[2] < m])
    return orders


def zero_bubble_v(p: int, m: int) -> list[Order]:
    """Return the orders of ranks with stages r and p - 1 - r, so that the first rank has the loss.

    Written for an even number of stages and enough microbatches; the rest is left out.
    """
    ranks = -(-p // 2)
    return [_renumbered(_v_order(r, ranks, max(m, 2 * ranks - 1)), p, m, ranks)
            for r in range(ranks)]


def _v_order(r: int, ranks: int, m: int) -> Order:
    """Return the order of a rank with two stages: `down` to the last rank, and `up` from there."""
    down, up = r, 2 * ranks - 1 - r
    order: list[tuple[str, int, int]] = []
    done = {(kind, stage): 0 for kind in "FBW" for stage in (down, up)}

    def add(stage: int, kinds: str, times: int = 1) -> None:
        for kind in kinds * times:
            order.append((kind, stage, done[kind, stage]))
            done[kind, stage] += 1

    add(down, "F", 2 * (ranks - r) - 1)
    for _ in range(r):
        add(up, "F")
        add(down, "F")
    add(up, "FBW", ranks - r)
    while done["F", up] < m:
        if done["F", down] < m:
            add(down, "F")
        add(down, "BW")
        add(up, "FBW")
    for _ in range(r):
        add(down, "B")
        add(up, "B")
    add(down, "BW", ranks - r)
    add(up, "W", m - done["W", up])
    add(down, "W", m - done["W", down])
    return order


def _renumbered(order: Order, p: int, m: int, ranks: int) -> Order:
    """Return an order of 2 ranks stages with only p of them, and with m microbatches.

    With an odd p, stage number `ranks` is not there, and those behind it have lower numbers.
    """
    if p == 2 * ranks:
        return [a for a in order if a[2] < m]
    return [(kind, s - (s > ranks), k) for kind, s, k in order if s != ranks and k < m]


def rows_of_orders(orders: list[Order], p: int, m: int) -> Rows:
    """Return the ticks of actions that each rank does in its order as soon as it can."""
    kinds = sorted({kind for order in orders for kind, _, _ in order}, key=KINDS.index)
    rows = {kind: [[ABSENT] * m for _ in range(p)] for kind in kinds}
    for (kind, s, k), tick in soonest(orders, p, lambda kind: 1).items():
        rows[kind][s][k] = int(tick)
    return rows


def _depth(s: Any, p: Any, m: Any) -> Any:
    return p - s


PIPEDREAM = "Narayanan et al., PipeDream: generalized pipeline parallelism for DNN training, 2019"
WEIPIPE = ("Lin et al., WeiPipe: weight pipeline parallelism for communication-effective "
           "long-context large model training, 2025")
ZERO_BUBBLE = "Qi et al., Zero bubble (almost) pipeline parallelism, 2024"

BUILT_IN: dict[str, Recipe] = {
    "gpipe": Recipe(
        "all forward passes, then all backward passes",
        "Huang et al., GPipe: efficient training of giant neural networks, 2019",
        gpipe, lambda s, p, m: m),
    "1f1b": Recipe(
        "one forward pass, then one backward pass, of another microbatch", PIPEDREAM,
        one_f_one_b, _depth),
    "weipipe": Recipe(
        "a forward pass in even ticks, a backward pass in odd ones; for ranks that follow "
        "microbatches, while weights go around",
        WEIPIPE, weipipe, lambda s, p, m: 2 * (p - s) - 1, place="microbatch"),
    "interleaved": Recipe(
        "1F1B on stages / 2 ranks, each with two stages that are not neighbours",
        "Narayanan et al., Efficient large-scale language model training on GPU clusters, 2021",
        orders=interleaved, place="round"),
    "zb-h1": Recipe(
        "gradients of weights fill two thirds of the time in which 1F1B is idle",
        ZERO_BUBBLE, orders=lambda p, m: zero_bubble(p, m, 1)),
    "zb-h2": Recipe(
        "no idle ticks with at least 2 stages - 1 microbatches; keeps twice as much",
        ZERO_BUBBLE, orders=lambda p, m: zero_bubble(p, m, 2)),
    "zb-v": Recipe(
        "no idle ticks with at least stages - 1 microbatches, on stages / 2 ranks, each with a "
        "stage on the way to the last rank and one on the way back; keeps as much as 1F1B",
        ZERO_BUBBLE, orders=zero_bubble_v, place="v"),
    "continuous": Recipe(
        "1F1B without flush; each stage is updated by itself, and a backward pass reads the "
        "weights of its own time", PIPEDREAM, continuous, _depth),
    "pipedream": Recipe(
        "as continuous; a backward pass reads the weights of its forward pass, which are kept",
        PIPEDREAM, continuous, _depth, correction="stash"),
    "2bw": Recipe(
        "as pipedream, with updates so far apart that two versions of weights are enough",
        "Narayanan et al., Memory-efficient pipeline-parallel DNN training, 2021",
        continuous, _depth, correction="two versions", accumulate=lambda p: p),
    "pipemare": Recipe(
        "as continuous; a backward pass reads an estimate of the weights of its forward pass",
        "Yang et al., PipeMare: asynchronous pipeline parallel DNN training, 2021",
        continuous, _depth, correction="discrepancy"),
}
