"""Each skipped example is said once for a run, whoever ends first, though a word is lost."""

from __future__ import annotations

import time

import numpy as np
import pytest

from spmd.data.pipeline_files import load_text
from spmd.feeding.clients.client import Client
from spmd.feeding.clients.open_stream import opened_by
from spmd.feeding.consumers import consumer, worker_connection
from tests.conftest import PATIENCE, at_some_pace
from tests.feeding.feeding_kit import Feed, mask_of, running, x_of
from tests.feeding.test_workers import HEAD, numbers

pytestmark = pytest.mark.slow  # it waits for processes of its own

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
def test_what_is_skipped_last_is_said_once(capfd, monkeypatch, kind, way):
    monkeypatch.setattr(consumer, "PARTING_S", PATIENCE)
    fields = x_of(8) + mask_of(8)
    settings = {"on_error": "skip", "shuffle": False, "epochs": 1}

    def check(_):
        """Unless a line breaks at the end, since this machine stands still."""
        capfd.readouterr()
        with running(numbers(LAST, n=16, **settings)) as run:
            scheduler = run.served.scheduler
            setattr(scheduler, f"_on_{kind}", way(getattr(scheduler, f"_on_{kind}")))
            with Client(run.address, run.keys, PATIENCE) as client:
                opened = opened_by(client, "numbers", Feed("feed", 8, fields), "test")
            run.workers(1)
            rings = [run.supply(fields, 8, rows=[(4 * k, 4 * k + 4)], ranks=(k,),
                                opened=opened)[0] for k in range(2)]
            for _ in range(2):
                first, second = (ring.next() for ring in rings)
            assert first["mask"].all() and second["mask"].tolist() == [True, True, True, False]
            for supply in run.supplies:
                supply.finish()
        said = capfd.readouterr().err
        assert said.count("numbers: skipped") == 1 and "no label" in said

    at_some_pace(check)


HALVES = """@data.{kind}(source=data.range(46){size}, epochs=1, shuffle=False, on_error='skip')
def numbers(example):
    if {has}(9): raise KeyError('no label')
    if {has}(17): return {{'x': np.zeros(3)}}
    if {has}(33): return {{'x': np.zeros(example)}}
    return {{'x': np.add(example, 1)}}
"""
ONE = HEAD + HALVES.format(kind="pipeline", size="", has="(lambda k: example == k)")
OF_FOUR = HEAD + HALVES.format(kind="batched", size=", size=4",
                          has="(lambda k: k in list(example))")


def elsewhere(*_):
    """As of a worker on another machine, whose memory cannot be mapped."""
    raise OSError


@pytest.mark.parametrize("shared", [True, False], ids=["memory", "frames"])
@pytest.mark.parametrize("source", [ONE, OF_FOUR], ids=["single", "batched"])
def test_all_rows_of_what_failed_are_masked(source, shared, capfd, monkeypatch):
    """Beside Pipeline.compute: whoever has which rows, wherever batches of the pipeline are cut."""
    if not shared:
        monkeypatch.setattr(worker_connection, "ResultReader", elsewhere)
    whole = load_text(source, "made_here.py")["numbers"].compute(0, 46)
    lacking = np.flatnonzero(~whole.there)
    assert len(lacking) == (3 if source is ONE else 12)
    with running(source) as run:
        run.workers(2)
        for cuts in ((0, 10), (0, 3, 3, 10), (0, 2, 4, 6, 9, 10)):
            rows = list(zip(cuts, cuts[1:]))
            rings = run.supply(x_of(10) + mask_of(10), 10, rows=rows)
            there, x = [], []
            for _ in range(5):
                for ring in rings:
                    if ring.rows[0] == ring.rows[1]:
                        assert ring.heard()
                    else:
                        batch = ring.next()
                        there, x = there + batch["mask"].tolist(), x + batch["x"].tolist()
            assert there == whole.there.tolist() + [False] * 4
            assert x == whole.arrays["x"].tolist() + [0] * 4
            run.supplies.pop().finish()
            said = capfd.readouterr().err
            assert said.count("numbers: skipped") == 3, said
            assert source is ONE or f"{len(lacking)} examples were skipped in all" in said


def test_more_failures_than_a_message_has_room_for(capfd):
    body = "if example % 2: raise KeyError('no label ' * 500)\nreturn {'x': example}"
    settings = {"on_error": "skip", "shuffle": False, "epochs": 1}
    with running(numbers(body, n=4000, **settings)) as run:
        run.workers(1)
        (ring,) = run.supply(x_of(4000) + mask_of(4000), 4000)
        assert ring.next()["mask"].tolist() == [True, False] * 2000
        run.supplies.pop().finish()
    assert "2000 examples were skipped in all" in capfd.readouterr().err
