"""Each skipped example is said once for a run, whoever ends first, though a word is lost."""

from __future__ import annotations

import time

import pytest

from spmd.feeding.clients.client import Client
from spmd.feeding.clients.opened_streams import opened_by
from tests.feeding.feeding_kit import Feed, mask_of, running, x_of
from tests.feeding.test_workers import numbers

LAST = "if example == 15: raise KeyError('no label')\nreturn {'x': example}"


def slow(passes_on):
    """The first process ends meanwhile."""
    def later(*said):
        time.sleep(0.5)
        passes_on(*said)
    return later


def lost(passes_on):
    """The first message, as where its line breaks."""
    said_before = []

    def again(*said):
        if said_before:
            passes_on(*said)
        said_before.append(said)
    return again


@pytest.mark.parametrize(("kind", "way"), [("skipped", slow), ("said", slow), ("skipped", lost)])
def test_what_is_skipped_last_is_said_once(capfd, kind, way):
    fields = x_of(8) + mask_of(8)
    settings = {"on_error": "skip", "shuffle": False, "epochs": 1}
    with running(numbers(LAST, n=16, **settings)) as run:
        scheduler = run.served.scheduler
        setattr(scheduler, f"_on_{kind}", way(getattr(scheduler, f"_on_{kind}")))
        with Client(run.address, run.keys) as client:
            opened = opened_by(client, "numbers", Feed("feed", 8, fields), "test")
        run.workers(1)
        rings = [run.supply(fields, 8, rows=[(4 * k, 4 * k + 4)], ranks=(k,), opened=opened)[0]
                 for k in range(2)]
        for _ in range(2):
            first, second = (ring.next() for ring in rings)
        assert first["mask"].all() and second["mask"].tolist() == [True, True, True, False]
        for supply in run.supplies:
            supply.finish()
    said = capfd.readouterr().err
    assert said.count("numbers: skipped") == 1 and "no label" in said
