"""Counters in what Python runs once: a key that is new is a cache's only if it stays as it is."""

from __future__ import annotations

import collections
import types
from collections.abc import Callable
from typing import Any

import pytest

import spmd
from tests.codegen.refusals import check_refused
from tests.codegen.test_outside import BRANCH, RANKS

# mypy: ignore-errors

NAME = "n"


def tallied(body: Callable[..., Any]) -> Callable[..., Any]:
    """A body that counts its calls under a key that is not there before: no cache."""
    tally: Any = collections.Counter()

    def call(*args):
        tally["calls"] += 0.5  # here
        return body(*args)

    return call


def tally_in_a_loop(x):
    step = tallied(lambda x: x + 1)
    for _ in spmd.range(3):
        x = step(x)
    return x


def tally_in_an_arm(x):
    return spmd.cond(x[0] > 5, tallied(lambda x: x + 1), lambda x: x, x)


def tally_in_a_test(x):
    test = tallied(lambda x: x[0] < 5)
    while test(x):
        x = x + 1
    return x


def tally_in_a_shard_map(x):
    return spmd.shard_map(tallied(lambda x: x + 1), out_layouts=("r",))(x)


def tally_in_a_member(x):
    return spmd.vmap(tallied(lambda x: x + 1))(x)


def member_that_keeps(x):
    kept = []
    spmd.vmap(lambda v: kept.append(v * 2))(x)  # here
    return kept[0]


def attribute_by_its_name(x):
    made = type("Made", (), {"n": 0.5})
    for _ in spmd.range(3):
        setattr(made, NAME, made.n + 1)  # here
    return x + made.n


def attribute_of_a_module(x):
    made = types.ModuleType("made")
    made.n = 0.5
    for _ in spmd.range(3):
        setattr(made, NAME, made.n + 1)  # here
    return x + made.n


FLAGS: dict[str, bool] = {}


def flag(name):
    FLAGS[name] = True  # here


def flag_in_an_arm(x):
    if x[0] > 100:
        flag("large")
    return x * len(FLAGS)


REFUSED = [
    (flag_in_an_arm, "FLAGS is changed in a branch", "functools.cache"),
    (tally_in_a_loop, "tally is changed in a loop"),
    (tally_in_an_arm, "tally is changed in a branch", BRANCH),
    (tally_in_a_test, "tally is changed in a loop"),
    (tally_in_a_shard_map, "tally is changed in a function given to shard_map", RANKS),
    (tally_in_a_member, "tally is changed in a function under spmd.vmap", "for all members"),
    (member_that_keeps, "kept is changed in a function under spmd.vmap", "for all members"),
    (attribute_by_its_name, "made.n is changed in a loop"),
    (attribute_of_a_module, "made.n is changed in a loop"),
]


@pytest.mark.parametrize(("f", "said"), [(f, said) for f, *said in REFUSED], ids=lambda p: (
    getattr(p, "__name__", "")))
def test_refused(f: Callable[..., Any], said: list[str]) -> None:
    check_refused(f, said, __file__)
