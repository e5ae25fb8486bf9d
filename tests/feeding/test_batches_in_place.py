"""Ranks read batches in the memory of real workers, which write there again once they are left.

Small batches and many of them; workers are killed while ranks look at what they made.
"""

from __future__ import annotations

import os
import signal
import threading

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.plan.fed_in_place import IN_PLACE, where_fields_lie
from spmd.feeding.consumers.pipeline_supply import PipelineSupply
from tests.feeding.feeding_kit import running

# mypy: ignore-errors

N, TURNS = 6, 150
NUMBERS = f"""
import time
import numpy as np
import spmd.data as data

@data.pipeline(source=data.range({N * 500}), sampling="once", shuffle=False, epochs=1)
def numbers(example, rng):
    time.sleep(0.0002)
    x = np.cos(np.arange(700.0) * example)
    return {{"x": x, "y": x.reshape(7, 100)}}
"""


def batch(k):
    return np.cos(np.arange(700.0) * np.arange(N * k, N * k + N)[:, None])


@spmd.program(mesh=("r",))
def several():
    """Places that take of one feed: what is kept of a batch, and what is left with it."""
    feed = spmd.feed(x=spmd.spec((N, 700), np.float64), y=spmd.spec((N, 7, 100), np.float64))
    kept, w, v, turns = spmd.zeros((N, 700)), spmd.zeros(700), spmd.zeros(700), 0
    first = feed.next()
    for k in spmd.range(TURNS):
        b = feed.next()
        w = w * 0.9 + np.sum(b.x, axis=0) + np.sum(b.y.reshape(N, 700), axis=0)
        if k % 7 == 0:
            kept = b.x
        c = feed.next()
        w = w + np.sum(kept * c.x + first.x * c.y.reshape(N, 700), axis=0)
    while feed.more():
        b = feed.next()
        v, turns = v * 0.5 + np.sum((b.x - kept) * b.x, axis=0), turns + 1
    return w, v, kept, turns


def expected():
    kept, w, v, first = np.zeros((N, 700)), np.zeros(700), np.zeros(700), batch(0)
    for k in range(TURNS):
        b = batch(1 + 2 * k)
        w = w * 0.9 + 2 * np.sum(b, axis=0)
        if k % 7 == 0:
            kept = b
        w = w + np.sum((kept + first) * batch(2 + 2 * k), axis=0)
    for k in range(1 + 2 * TURNS, 500):
        v = v * 0.5 + np.sum((batch(k) - kept) * batch(k), axis=0)
    return w, v, kept, 500 - 1 - 2 * TURNS


def kill_two(agent, over):
    for _ in range(2):
        if not over.wait(0.15) and (pids := agent.pids()):
            os.kill(pids[0], signal.SIGKILL)


@pytest.mark.parametrize("ranks, threads", [(1, 2), (3, 1)])
def test_what_ranks_read_is_what_workers_made(ranks, threads):
    assert IN_PLACE in where_fields_lie(lower(several.capture()).finished)
    image, over = spmd.build(several), threading.Event()
    with running(NUMBERS) as run:
        agent = run.workers(2)
        agent.wait_for_workers(2)
        kills = threading.Thread(target=kill_two, args=(agent, over))
        kills.start()
        try:
            found = image.run(ranks=ranks, threads=threads, feed=PipelineSupply(
                "numbers", run.address, run.keys, run="several"))
        finally:
            over.set()
            kills.join()
    for one, other in zip(found, expected(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-9, atol=1e-9)
