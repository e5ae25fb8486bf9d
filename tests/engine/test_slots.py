"""How members of an exchange read each other's data: every interleaving of the model in slots.py.

Nobody reads a value of another exchange, nobody overwrites what is still to be read, and all get to
the end; and without any one of the waits, or with one thing too early, that is not so.
"""

from __future__ import annotations

from itertools import combinations_with_replacement

import pytest

from tests.engine.explore import Machine, explore
from tests.engine.slots import Exchange, model

ALL = (0, 1, 2)
KINDS = {
    "short": Exchange(),
    "long": Exchange(long=ALL),
    "one long": Exchange(long=(1,)),
    "fold": Exchange(folds=True, long=(0,)),
    "give": Exchange(long=ALL, gives=True),
    "one gives": Exchange(long=(0,), gives=True),
    "gated": Exchange(gated=True),
    "gated, long": Exchange(long=ALL, gated=True),
    "gated, one long": Exchange(long=(0,), gated=True),
    "gated, give": Exchange(long=ALL, gives=True, gated=True),
    "gated, one gives": Exchange(long=(1,), gives=True, gated=True),
    "from root": Exchange(flow="from_root"),
    "from root, long": Exchange(flow="from_root", long=ALL),
    "to root": Exchange(flow="to_root"),
    "to root, long": Exchange(flow="to_root", long=ALL),
    "to root, give": Exchange(flow="to_root", long=ALL, gives=True),
    "up to": Exchange(flow="up_to"),
    "up to, one long": Exchange(flow="up_to", long=(0,)),
    "before": Exchange(flow="before"),
    "before, long": Exchange(flow="before", long=ALL),
    "blocks": Exchange("blocks"),
    "blocks to root": Exchange("blocks", "to_root"),
    "blocks from root": Exchange("blocks", "from_root"),
    "ring": Exchange("ring"),
}
# A pair of them costs more with three members: these have one of everything.
SOME = ("one long", "one gives", "gated, long", "gated, one gives", "from root", "to root, give",
        "up to, one long", "blocks")


def in_turn(members: int) -> dict[str, list[Exchange]]:
    """Return sequences of exchanges at one site, in which something changes from one to the
    next."""

    def either(flow: str, *roots: int) -> list[Exchange]:
        """Folded by all, or by blocks: another run may have other limits."""
        kinds = (Exchange(), Exchange("blocks"), Exchange(long=ALL))
        return [kinds[k % 3]._replace(flow=flow, root=root) for k, root in enumerate(roots)]

    roots = [k % members for k in (0, 1, 2, 0, 0, 1)]
    moved = [tuple((k + at) % members for k in range(members)) for at in range(6)]
    some = [tuple(None if (k + at) % 3 == 0 else to for k, to in enumerate(dest))
            for at, dest in enumerate(moved)]
    return {
        "permute": [Exchange("permute", dest=dest, long=(0,)) for dest in some],
        "route": [Exchange("route", dest=dest) for dest in moved],
        "route, long": [Exchange("route", dest=dest, long=ALL) for dest in moved[1:2] * 4],
        "roots": [Exchange(flow="from_root", root=root) for root in roots],
        "roots that are given": [
            Exchange(flow="to_root", root=root, long=(1,), gives=True) for root in roots],
        "all-reduce": [KINDS[name] for name in (
            "short", "long", "blocks", "ring", "fold", "gated", "ring", "blocks", "short")],
        "reduce": either("to_root", 0, 0, 1, 1, 0, 1),
        "broadcast": either("from_root", 0, 0, 1, 1, 0, 1),
        "scan": either("up_to", *[0] * 6),
        "exscan": either("before", *[0] * 6),
    }


def programs(members: int) -> dict[str, list[Exchange]]:
    """Three exchanges at a site need a slot again."""
    return {name: [kind] * 3 for name, kind in KINDS.items()} | in_turn(members)


def faults(machine: Machine) -> set[str]:
    return {state.wrong or "a deadlock" for state, end in explore(machine.first, machine.next)
            if end and not machine.done(state)}


def is_faulty(machine: Machine) -> bool:
    return any(end and not machine.done(state)
               for state, end in explore(machine.first, machine.next))


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("name", KINDS)
def test_a_word_at_a_time(name, members):
    each = (name, members) not in (("ring", 3), ("give", 3))
    assert faults(model(members, [KINDS[name]] * 3, each=each)) == set()


@pytest.mark.parametrize("members", [2, 3])
@pytest.mark.parametrize("name", in_turn(2))
def test_changes_at_a_site(name, members):
    assert faults(model(members, in_turn(members)[name])) == set()


@pytest.mark.parametrize("members", [2, 3])
def test_two_sites_in_turn(members):
    """The same data are read, and the same results written, by exchanges of two kinds."""
    pairs = combinations_with_replacement(KINDS if members == 2 else SOME, 2)
    for one, other in pairs:
        sites = [KINDS[one], KINDS[other]._replace(site=1)]
        assert faults(model(members, sites * 3)) == set(), (one, other)


# What each is left out of, with two members or with three.
NEEDED = {
    "slot_free": ("from root", 2),
    "read_by": ("roots that are given", 3),
    "slots in turn": ("short", 2),
    "posted by release": ("short", 2),
    "all post": ("to root, give", 2),
    "sources have posted": ("short", 2),
    "taken by release": ("to root", 2),
    "readers have taken": ("long", 2),
    "posted before it arrives": ("gated", 2),
    "sources have arrived": ("gated", 2),
    "taken before it arrives": ("gated, long", 2),
    "all have taken": ("gated, long", 2),
    "readers have posted": ("give", 2),
    "given by release": ("give", 2),
    "has_given": ("to root, give", 2),
    "readers have arrived": ("gated, give", 2),
    "routes in turn": ("route", 2),
    "announced before it arrives": ("route", 2),
    "all have announced": ("route", 2),
    "result posted before it arrives": ("blocks", 2),
    "results are posted": ("blocks", 2),
    "blocks written before it arrives": ("blocks", 2),
    "blocks are written": ("blocks", 2),
    "result posted by release": ("ring", 2),
    "neighbours have posted": ("ring", 2),
    "steps by release": ("ring", 2),
    "neighbours have made the last step": ("ring", 2),
    "neighbours have made all steps": ("ring", 3),
}


@pytest.mark.parametrize("without", NEEDED)
def test_each_part_of_the_protocol_is_needed(without):
    name, members = NEEDED[without]
    exchanges = programs(members)[name]
    assert is_faulty(model(members, exchanges, without))
    assert is_faulty(model(members, exchanges, without, each=True))


def test_no_part_is_left_out():
    """Whatever waits, and whatever is waited for, is in the table above."""
    named = {name for exchanges in programs(3).values() for name in model(3, exchanges).names}
    assert named < NEEDED.keys()
    assert NEEDED.keys() - named == {"read_by", "slots in turn", "all post", "routes in turn"}


def test_steps_hide_nothing():
    """Two members, each program without each part: found by steps where found word by word."""
    for name, exchanges in programs(2).items():
        if name in ("ring", "all-reduce"):
            continue  # too many words
        for without in model(2, exchanges).names:
            found = [is_faulty(model(2, exchanges, without, each)) for each in (False, True)]
            assert found[0] == found[1], (name, without)
