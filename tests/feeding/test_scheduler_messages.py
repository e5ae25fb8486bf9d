"""Whatever well-formed messages come, in any order, the scheduler goes on and overdraws nobody."""

from __future__ import annotations

import random
import time

import pytest

from spmd.data.settings import Settings
from spmd.feeding.messages.keys import made_for_a_run
from spmd.feeding.messages.sockets import SENT, Lines
from spmd.feeding.messages.wire import encode
from spmd.feeding.scheduling.rate_meter import RateMeter
from spmd.feeding.scheduling.registry import KnownConsumer, find_rates
from spmd.feeding.scheduling.scheduler import Scheduler
from spmd.feeding.scheduling.scheduler_state import StateFile, StoredPipeline
from spmd.feeding.status.metrics import prometheus
from spmd.feeding.status.overview import overview, warnings
from spmd.feeding.status.status_tables import pipeline_text, table_text

IDS = [f"{k:016x}" for k in range(6)]
NAMES = ["images", "text"]


def anything(rng):
    """A message that a careless or hostile peer with a key could send."""
    agent, consumer, name = rng.choice(IDS), rng.choice(IDS), rng.choice(NAMES)
    workers = [f"{int(agent, 16) * 16 + k:016x}" for k in range(rng.randrange(4))]
    process = [{"worker": w, "address": "tcp://h:1", "key": "k" * 40} for w in workers]
    number = rng.choice([0, 1, 7, 2**61, rng.randrange(10**6)])
    made = {rng.choice(NAMES): {"examples": number, "busy_s": rng.choice([0.0, 1e-9, 2.0, 1e300])}}
    settings = rng.choice([{}, {"priority": number}, {"max_workers": 1, "cost": 2.0}, {"seed": 4},
                           {"bad": 1}, {"workers": ["h"]}, {"rates": {"cpu": 5.0}},
                           {"cost_per_hour": 0.5, "pull": "all"}, {"on_error": "skip"}])
    return rng.choice([
        lambda: encode("join", agent=agent, host=rng.choice("ab"), name="n", device="cpu",
                       processes=process, cost=rng.choice([None, 0.4]), energy=9.0,
                       free=rng.choice([None, "20:00-07:00"])),
        lambda: encode("beat", agent=agent, workers=dict.fromkeys(workers, made)),
        lambda: encode("leave", agent=agent),
        lambda: encode("gone", worker=f"{rng.randrange(96):016x}", why="killed", pipeline=name,
                       version=rng.choice([None, 1, 2]), position=number),
        lambda: encode("consume", consumer=consumer, run="r", pipeline=name, feed="feed",
                       rows=rng.choice([[0, 8], [8, 0], [5, 5], [0, number]]), batch=8, fields=[],
                       host="a", ranks=rng.choice([[], [3], [1, 2], [9, 4]]), device="cpu",
                       version=rng.choice([None, 1, 2, 9]), text=rng.choice([None, "0"]),
                       stream=rng.choice([None, *IDS])),
        lambda: encode("open", pipeline=name, run="r", feed="feed", version=rng.choice([None, 1])),
        lambda: encode("skipped", consumer=consumer, position=number, text="no"),
        lambda: encode("said", consumer=consumer, position=number),
        lambda: encode("learnt", consumer=consumer, order=rng.choice("ab")),
        lambda: encode("rate", consumer=consumer, taken=number,
                       busy_s=rng.choice([0.0, 1e-9, 0.5, 1e300]), waited_s=rng.choice([0, 1e300]),
                       queued=number),
        lambda: encode("lost", consumer=consumer, worker=f"{rng.randrange(96):016x}"),
        lambda: encode("done", consumer=consumer),
        lambda: encode("submit", name=name, version=0, file="f.py", source="x", settings=settings,
                       order=rng.choice([None, "a"])),
        lambda: encode("update", name=name, settings=settings, source=rng.choice([None, "y"])),
        lambda: encode("cancel", name=name),
        lambda: encode("status"),
        lambda: [rng.randbytes(rng.randrange(60)) for _ in range(rng.randrange(3))],
    ])()


def test_any_messages_in_any_order():
    keys, rng = made_for_a_run(), random.Random(11)
    lines = Lines(keys)
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server),
                          StateFile())
    scheduler.looking = overview
    for k in range(4000):
        scheduler.hear(rng.choice(IDS).encode(), anything(rng))
        if k % 10 == 0:
            now = time.monotonic() + rng.choice([0.0, 0.0, 0.0, 2.0])
            scheduler.plan(now)
            scheduler.keep(now)
            for given in scheduler.assigned.shares.values():
                assert sum(given.values()) <= 1.001
            assert table_text(scheduler.snapshot) and prometheus(scheduler.snapshot)
            for name in (p["name"] for p in scheduler.snapshot["pipelines"]):
                assert name in pipeline_text(scheduler.snapshot, name, 80)
        if k % 500 == 0:
            scheduler._bury(time.monotonic() + 5)
    assert scheduler.counts["defects"] == 0
    assert scheduler.counts["malformed"] > 100
    lines.close()


def test_who_starts_again_keeps_what_everybody_has_until_all_are_measured():
    """Two ranks of which one needs three workers and the other one: four shares, not two each."""
    keys, store = made_for_a_run(), StateFile()
    lines = Lines(keys)
    had = {w: {IDS[1] if k else IDS[2]: 1.0} for k, w in enumerate(IDS[:4])}
    store.put_pipeline(StoredPipeline("images", 1, "f.py", "x", {}))
    store.remember(shares=had, rates={("images", "cpu"): 1000.0})
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server), store)
    scheduler.coming_until += 600  # however slow this machine is

    def planned():
        scheduler.plan(time.monotonic())
        return scheduler.assigned.shares

    assert planned() == had, "nobody is here yet"
    process = [{"worker": w, "address": "tcp://h:1", "key": "k" * 40} for w in had]
    scheduler.hear(b"a", encode("join", agent=IDS[0], host="a", name="n", device="cpu",
                                processes=process))
    for one, taken in ((IDS[1], 2700), (IDS[2], 900)):
        scheduler.hear(one.encode(), encode(
            "consume", consumer=one, run="r", pipeline="images", feed="feed", rows=[0, 8], batch=8,
            fields=[], host="a", ranks=[0], device="cpu"))
        assert planned() == had, "their rates are not known yet"
        for k in (1, 2):
            scheduler.hear(one.encode(), encode(
                "rate", consumer=one, taken=taken * k, busy_s=float(k), waited_s=0.0, queued=0))
    assert planned() == had and not scheduler._are_unmeasured()
    assert {w for w, of in had.items() if IDS[1] in of} == set(scheduler.assigned.of(IDS[1]))
    scheduler.hear(IDS[2].encode(), encode("done", consumer=IDS[2]))
    assert planned() != had, "it assigns again"
    lines.close()


def test_a_pause_of_the_scheduler_kills_nobody():
    keys = made_for_a_run()
    lines = Lines(keys)
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server),
                          StateFile())
    scheduler.hear(b"a", encode("join", agent=IDS[0], host="a", name="n", device="cpu",
                                processes=[]))
    scheduler._ticked -= 60
    scheduler.agents[IDS[0]].seen -= 60
    scheduler.tick()
    assert list(scheduler.agents) == [IDS[0]], "it was held up, not the agent"
    scheduler.agents[IDS[0]].seen -= 2
    scheduler.tick()
    assert not scheduler.agents
    lines.close()


def test_rates_are_of_those_who_do_not_wait():
    """A rank of 110 ms for 1,024 examples, that waits as long again for each batch."""
    meter, now, busy, waited = RateMeter(10.0), 100.0, 0.0, 0.0
    for k in range(60):
        meter.see(now, 1024 * k, busy, waited)
        now, busy, waited = now + 0.22, busy + 0.11, waited + 0.11
    assert abs(meter.rate - 1024 / 0.11) < 1
    assert abs(meter.waiting(now) - 0.5) < 0.01
    meter.see(now, 10, 0.1)
    assert abs(meter.rate - 1024 / 0.11) < 1, "it began anew: what was measured stays"


@pytest.mark.parametrize("start", [0, 7000])
def test_the_first_batch_is_not_counted_before_it_is_computed(start):
    """A batch counts as taken at its beginning, its time at its end: also of a run that goes on."""
    said = {"consumer": IDS[0], "pipeline": "images", "rows": [0, 100], "host": "a", "ranks": [3],
            "stream": None, "feed": "feed"}
    one = KnownConsumer(b"", said, 1, 0.0)
    for k in range(20):
        begun = max(0, k - 4)  # two seconds until the first one, then two in a second
        one.rate(k / 2, {"taken": start + 100 * begun, "busy_s": 0.5 * max(0, begun - 1),
                         "waited_s": 2.0 * (begun > 0), "queued": 0})
        assert one.meter.rate in (None, pytest.approx(200.0))
    assert one.meter.rate and one.meter.waiting(10.0) == 0.0, "a start is not starving"


def test_who_starves_with_enough_workers_gets_more():
    said = {"consumer": IDS[0], "pipeline": "images", "rows": [0, 100], "host": "a", "ranks": [3],
            "stream": None, "feed": "feed"}
    one = KnownConsumer(b"", said, 1, 0.0)
    for k in range(40):
        one.rate(k / 2, {"taken": 500 * k, "busy_s": 0.4 * k, "waited_s": 0.1 * k, "queued": 0})
        one.adapt(k / 2, True)
    find_rates([one], k / 2)
    assert 1250 * 1.1 < one.row(0.0, [], {}).rate <= 1250 * 1.5
    assert one.ranks() == "rank 3"


def test_what_a_kind_of_device_takes_counts_until_it_is_measured():
    said = {"consumer": IDS[0], "pipeline": "images", "rows": [0, 100], "host": "a",
            "ranks": [0, 1], "stream": None, "feed": "feed", "device": "gpu", "blocks": 2}
    one = KnownConsumer(b"", said, 1, 0.0)
    settings = {"takes": {"gpu": 700.0}, "serves": {"nodea": "1,5-8", "nodeb": "2-9"}, "first": "1"}
    assert not one.row(0.0, [], {"takes": {"cpu": 9.0}}).rate
    row = one.row(0.0, [], settings)
    assert row.rate == 1400.0, "two ranks, each with rows of its own"
    assert (row.preferred, row.first) == (frozenset({"nodea"}), True)
    assert not one.row(0.0, [], {"first": "2-9"}).first
    for k in range(4):
        one.rate(k / 2, {"taken": 500 * k, "busy_s": 0.4 * k, "waited_s": 0.0, "queued": 0})
    find_rates([one], 2.0)
    assert one.row(0.0, [], settings).rate == pytest.approx(1250.0)


@pytest.mark.parametrize(("waits", "limits", "advice"), [
    (True, {}, "try more workers: python -m spmd feed worker --connect "),
    (True, {"max_workers": 1}, "its setting max_workers allows no more; python -m spmd feed "
     "update images --max-workers MORE"),
    (True, {"cost_per_hour": 1.0}, "its setting cost_per_hour allows no more; python -m spmd feed "
     "update images --cost-per-hour MORE"),
    (False, {}, "than they measure: python -m spmd feed update images --workers 2"),
    (False, {"max_workers": 1}, "than they measure: python -m spmd feed update images "
     "--max-workers MORE"),
    (False, {"workers": 1}, "its setting workers allows no more; python -m spmd feed update images "
     "--workers none"),
])
def test_advice_to_who_starves_looks_at_limits(waits, limits, advice):
    """A rank that always waits, and one with workers enough that waits."""
    keys = made_for_a_run()
    lines = Lines(keys)
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server),
                          StateFile())
    scheduler.looking = overview
    process = [{"worker": w, "address": "tcp://h:1", "key": "k" * 40} for w in IDS[3:5]]
    scheduler.hear(b"a", encode("join", agent=IDS[0], host="a", name="n", device="cpu", cost=1.0,
                                processes=process))
    scheduler.hear(b"c", encode("submit", name="images", version=0, file="f.py", source="",
                                settings={"rates": {"cpu": 1e6}, "priority": 2.0, **limits}))
    scheduler.hear(b"r", encode(
        "consume", consumer=IDS[1], run="r", pipeline="images", feed="feed", rows=[0, 8], batch=8,
        fields=[], host="a", ranks=[0] if waits else [0, 1], device="cpu"))
    for k in range(4):
        scheduler.hear(b"r", encode("rate", consumer=IDS[1], taken=0 if waits else 800 * k,
                                    busy_s=0.0 if waits else 0.1 * k, waited_s=float(k), queued=8))
    scheduler.plan(time.monotonic())
    who = "rank 0 of images starves " if waits else "ranks 0-1 of images starve "
    said = [w for w in scheduler.snapshot["warnings"] if w.startswith(who)]
    assert len(said) == 1 and advice in said[0], scheduler.snapshot["warnings"]
    told = pipeline_text(scheduler.snapshot, "images", 100)
    assert who in told and "priority=2" in told and "2.0" not in told
    taken = [{**w, "shares": {IDS[1]: 1.0}} for w in scheduler.snapshot["workers"]]
    full = warnings({**scheduler.snapshot, "workers": taken})
    assert not any("--workers 2" in w for w in full), "no worker is free for it"
    lines.close()


def test_a_run_and_a_name_that_begin_anew_are_estimated_and_measured_anew():
    keys, store = made_for_a_run(), StateFile()
    lines = Lines(keys)
    store.put_pipeline(StoredPipeline("images", 1, "f.py", "x", {"estimated_seconds": 60.0}))
    store.remember(rates={("images", "cpu"): 1000.0})
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server), store)
    process = [{"worker": IDS[3], "address": "tcp://h:1", "key": "k" * 40}]
    scheduler.hear(b"a", encode("join", agent=IDS[0], host="a", name="n", device="cpu",
                                processes=process))

    def consume(k):
        scheduler.hear(b"r", encode(
            "consume", consumer=IDS[k], run="r", pipeline="images", feed="feed", rows=[0, 8],
            batch=8, fields=[], host="a", ranks=[0], device="cpu"))

    consume(1)
    pipeline = scheduler.pipelines["images"]
    pipeline.running_since -= 45.0
    consume(2)
    now = time.monotonic()
    assert pipeline.row(now, {}).estimated_s <= 15.0
    for k in (1, 2):
        scheduler.hear(b"r", encode("done", consumer=IDS[k]))
    consume(4)
    assert pipeline.row(now, {}).estimated_s >= 60.0
    for k in range(3):
        scheduler.hear(b"a", encode("beat", agent=IDS[0], workers={
            IDS[3]: {"images": {"examples": 700 * k, "busy_s": float(k)}}}))
    row = scheduler.agents[IDS[0]].rows()[0]
    assert row.rates["images"] == pytest.approx(700.0)
    scheduler.hear(b"c", encode("cancel", name="images", by="ada"))
    assert not scheduler.agents[IDS[0]].rows()[0].rates
    assert not scheduler.given_rates and not store.rates()
    lines.close()


def test_who_pulls_from_all_takes_next_to_nothing_of_others():
    """Sixty ranks that ask every worker of their pipeline, beside one of a higher priority."""
    keys = made_for_a_run()
    lines = Lines(keys)
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server),
                          StateFile())
    process = [{"worker": w, "address": "tcp://h:1", "key": "k" * 40} for w in IDS[2:]]
    scheduler.hear(b"a", encode("join", agent=IDS[0], host="a", name="n", device="cpu",
                                processes=process))
    for name, given in (("images", {"priority": 5, "workers": 1}), ("text", {"pull": "all"})):
        scheduler.hear(b"c", encode("submit", name=name, version=0, file="f.py", source="",
                                    settings=given))
    for k in range(61):
        scheduler.hear(b"%d" % k, encode(
            "consume", consumer=f"{k + 100:016x}", run="r", pipeline="text" if k else "images",
            feed="feed", rows=[0, 8], batch=8, fields=[], host="a", ranks=[k], device="cpu"))
    told = dict.fromkeys(IDS[2:], 0.0)

    def tell(peer, kind, **fields):
        for worker in fields["workers"] if kind == "workers" else ():
            told[worker["worker"]] += worker["share"]
        return SENT

    scheduler.tell = tell
    scheduler.plan(time.monotonic())
    lines.close()
    assert all(0.9 < share <= 1.02 for share in told.values()), told


def test_preferred_workers_are_here_by_any_name_by_which_they_are_taken():
    """Machine, agent, address or worker; an agent whose workers are still starting too."""
    keys = made_for_a_run()
    lines = Lines(keys)
    scheduler = Scheduler(lines.router("tcp://127.0.0.1:*", keys.server_secret, keys.server),
                          StateFile())
    scheduler.looking = overview
    process = [{"worker": IDS[3], "address": "tcp://h:1", "key": "k" * 40}]
    for agent, name, there in ((IDS[0], "n", process), (IDS[1], "late", [])):
        scheduler.hear(b"a", encode("join", agent=agent, host="a", name=name, device="cpu",
                                    processes=there))
    known = ["n", IDS[0], "a", "tcp://h:1", IDS[3], "late", IDS[1]]
    scheduler.hear(b"c", encode("submit", name="images", version=0, file="f.py", source="",
                                settings={"workers": [*known, "wrong"]}))
    scheduler.look(time.monotonic())
    assert scheduler.snapshot["pipelines"][0]["not_here"] == ["wrong"]
    assert any("not here: wrong; " in w for w in scheduler.snapshot["warnings"])
    lines.close()


def test_settings_of_the_scheduler_are_settings_of_pipelines():
    from spmd.feed_options import SETTINGS

    assert SETTINGS.keys() <= Settings().as_json().keys()
