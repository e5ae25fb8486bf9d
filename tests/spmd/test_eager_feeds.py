"""Feeds of eager runs: whole batches, as runs of images take them."""

from __future__ import annotations

import tracemalloc
from pathlib import Path

import numpy as np
import pytest

import spmd
import spmd.data as data
from spmd.engine.feed_rings import FedFeed, FeedField
from spmd.launch.eager_feeds import WholeRing
from spmd.launch.iterable_supply import IterableSupply


def test_an_eager_run_takes_whole_batches_of_a_supply():
    fields = [FeedField("x", "float32", (6, 5)), FeedField("mask", "bool", (6,))]
    ring = WholeRing(FedFeed(0, "feed", fields, ()))
    given = [{"x": (100 * k + np.arange(5 * n).reshape(n, 5)).astype(np.float32)}
             for k, n in enumerate([6, 6, 6, 4])]

    def fails():
        yield from given
        raise KeyError("no such photograph")

    supply = IterableSupply(fails)
    supply.begin(ring.feed, [ring], 0)
    found = [ring.take() for _ in given]
    with pytest.raises(spmd.InputError, match="batch 4: KeyError"):
        ring.take()
    supply.finish()
    for got, b in zip(found, given, strict=True):
        n = len(b["x"])
        np.testing.assert_array_equal(got["x"][:n], b["x"])
        assert not got["x"][n:].any() and got["mask"].tolist() == [True] * n + [False] * (6 - n)
    ring.close()


def test_an_eager_run_takes_the_last_batch_of_a_pipeline_and_its_bad_examples_as_runs_do(capsys):
    @data.pipeline(source=data.range(10), epochs=1, shuffle=False, on_error="skip")
    def inverse(example):
        return {"x": 1 / (example - 2)}

    @spmd.program(mesh=("r",))
    def counted():
        feed = spmd.feed(x=spmd.spec((spmd.Dim("batch", 4),), np.float64),
                         mask=spmd.spec((spmd.Dim("batch", 4),), np.bool_))
        total, rows = np.float64(0), np.int64(0)
        for b in feed:
            total, rows = total + np.sum(b.x), rows + np.sum(b.mask)
        return total, rows

    total, rows = counted.eager(feed=inverse)
    assert rows == 9
    assert capsys.readouterr().err.count("spmd feed: inverse: skipped number 2") == 1
    np.testing.assert_allclose(total, sum(1 / (k - 2) for k in range(10) if k != 2))
    with pytest.raises(spmd.InputError, match=r"load\('some.py'\)"):
        counted.eager(feed="some.py")


@spmd.program(mesh=("r",))
def of_fours():
    feed = spmd.feed(x=spmd.spec((4,), np.float64))
    total, zeros = np.float64(0), np.int64(0)
    for b in feed:
        total, zeros = total + np.sum(b.x), zeros + np.sum(b.x == 0)
    return total, zeros


@pytest.fixture(scope="module")
def fours():
    return spmd.build(of_fours)


def filed(folder: Path, body: str, settings: str) -> Path:
    """The file of a pipeline p, for workers to find."""
    file = folder / "p.py"
    file.write_text(f"""import numpy as np
import spmd.data as data


@data.pipeline(epochs=1, shuffle=False, {settings})
def p(example):
    return {{"x": {body}}}
""")
    return file


@pytest.mark.parametrize("given", ["pipeline", "batches"])
def test_examples_that_are_skipped_need_a_mask_in_eager_runs_too(tmp_path, fours, given):
    """Else zeros in their places counted as examples."""
    file = filed(tmp_path, "1 / (example - 2)", 'source=data.range(8), on_error="skip"')
    skips = data.load(file)
    for run, whole in (of_fours.eager, skips), (fours.run, file):
        with pytest.raises(spmd.UsageError, match="cannot know which") as caught:
            run(feed=whole if given == "pipeline" else skips.batches(4))
        assert "mask=spmd.spec((4,), np.bool_)" in str(caught.value)


def test_a_last_batch_that_is_not_full_is_said_in_eager_runs_as_in_others(tmp_path, fours, capfd):
    file = filed(tmp_path, "np.float64(1)", "source=data.range(10)")
    rows = [{"x": np.ones(4)}, {"x": np.ones(4)}, {"x": np.ones(2)}]
    for runs, whose in (
            ([(of_fours.eager, data.load(file)), (fours.run, file)], "spmd feed: p"),
            ([(of_fours.eager, rows), (fours.run, rows)], 'spmd: feed "feed"')):
        for run, given in runs:
            capfd.readouterr()
            assert run(feed=given)[0] == 8
            said = capfd.readouterr().err
            assert (f"{whose}: the last 2 examples do not fill a batch of 4 and are not given; a "
                    "field mask would let them through\n") in said


def test_an_eager_run_keeps_no_batch_that_was_taken():
    def many():
        for _ in range(100):
            yield {"x": np.ones((4, 1 << 15))}  # a mebibyte

    @spmd.program(mesh=("r",))
    def counted():
        feed = spmd.feed(x=spmd.spec((4, 1 << 15), np.float64))
        total = np.float64(0)
        for b in feed:
            total = total + b.x[0, 0]
        return total

    tracemalloc.start()
    try:
        assert counted.eager(feed=many()) == 100
        assert tracemalloc.get_traced_memory()[1] < 16 << 20
    finally:
        tracemalloc.stop()
