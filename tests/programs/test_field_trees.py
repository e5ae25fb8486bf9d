"""Trees of fields: what a feed declares, a batch has, and whoever makes batches gives."""

from __future__ import annotations

import re

import numpy as np
import pytest

import spmd
from codegen.oracle import interpret
from codegen.trace.program import Program
from spmd import data

# mypy: ignore-errors


@spmd.program(mesh=("r",))
def nested(n: int = 6):
    feed = spmd.feed(
        batch={"x": spmd.spec((n, 3), np.float64),
               "y": (spmd.spec((n,), np.int32), [spmd.spec((n, 2), layout=spmd.replicated)])},
        z=spmd.spec((n,), np.float64))
    total = spmd.asarray(np.float64(0))
    first = feed.next().batch

    for b in feed:
        assert isinstance(b.batch, dict) and isinstance(b.batch["y"], tuple)
        total = total + np.sum(b.batch["x"]) + np.sum(b.batch["y"][0]) * np.sum(b.batch["y"][1][0])
        total = total + np.sum(b.z)
    return total, first["y"][1][0]


@spmd.program(mesh=("r",))
def of_ranks(n: int = 6):
    feed = spmd.feed(batch={"x": spmd.spec((n,), np.float64), "y": (spmd.spec((n,), np.int32),)})

    @spmd.shard_map(out_layouts=())
    def total():
        t = spmd.asarray(np.float64(0))
        for b in feed:
            t = t + spmd.psum(np.sum(b.batch["x"] * b.batch["y"][0]), "r")
        return t

    return total()


def batches(count=4, n=6):
    rng = np.random.default_rng(0)
    return [{"batch": {"x": rng.random((n, 3)), "y": (rng.integers(0, 9, n),
                                                      [rng.random((n, 2)).astype(np.float32)])},
             "z": rng.random(n)} for _ in range(count)]


def test_eager_graph_and_image_agree():
    expected = nested.eager(feed=batches())
    whole = interpret.run(nested.capture(), {"r": 2}, feeds=batches())
    image = spmd.build(nested)
    flat = [{"batch.x": b["batch"]["x"], "batch.y.0": b["batch"]["y"][0],
             "batch.y.1.0": b["batch"]["y"][1][0], "z": b["z"]} for b in batches()]
    for found in (whole.values(), image.run(ranks=3, feed=batches()), nested.eager(feed=flat),
                  image.run(ranks=2, feed=flat)):
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=1e-6)


def test_in_the_view_of_a_rank():
    given = [{"batch": {"x": b["batch"]["x"][:, 0], "y": (b["batch"]["y"][0],)}} for b in batches()]
    expected = sum(np.sum(b["batch"]["x"] * b["batch"]["y"][0]) for b in given)
    np.testing.assert_allclose(of_ranks.eager(ranks=3, feed=given), expected)
    np.testing.assert_allclose(spmd.build(of_ranks).run(ranks=3, feed=given), expected)


source = data.range(12)


@data.pipeline(source=source, shuffle=False, epochs=1)
def one(k):
    return {"batch": {"x": np.ones(3) * k, "y": (k, [np.zeros(2) + k])}, "z": 0.5}


@data.batched(source=source, size=5, shuffle=False, epochs=1)
def several(examples):
    k = np.array(examples)
    return {"batch": {"x": np.ones((len(k), 3)) * k[:, None],
                      "y": (k, [np.zeros((len(k), 2)) + k[:, None]])}, "z": k * 0 + 0.5}


def test_pipelines_give_trees():
    batches = [{"batch": {"x": np.ones((6, 3)) * k[:, None], "y": (k, [k[:, None] + np.zeros((
        6, 2))])}, "z": np.full(6, 0.5)} for k in (np.arange(6), np.arange(6, 12))]
    expected = nested.eager(feed=batches)
    for pipeline in (one, several):
        for found, wanted in zip(nested.eager(feed=pipeline), expected, strict=True):
            np.testing.assert_allclose(found, wanted)


def test_dicts_are_trees_where_nobody_has_declared_fields():
    @data.pipeline(source=data.range(3), shuffle=False)
    def plain(k):
        return {"a": {"b": k, "c": {"d": [k, k]}}, "e": 1.5}

    found = plain.compute(0, 2).arrays
    assert {name: a.shape for name, a in found.items()} == {"a.b": (2,), "a.c.d": (2, 2),
                                                            "e": (2,)}


def changed(**to):
    x, y, z = np.ones((6, 3)), (np.arange(6), [np.ones((6, 2))]), np.ones(6)
    given = {"x": x, "y": y} | to
    return {"batch": {k: v for k, v in given.items() if v is not None}, "z": z}


WRONG = {
    "missing": (changed(x=None), "field batch.x is not given"),
    "shorter": (changed(y=(np.arange(6),)), "field batch.y.1.0 is not given"),
    "more": (changed(w=np.ones(6)), "field batch has something of which the program knows nothing"),
    "no tree": (changed(y=np.ones(6)), "field batch.y is a tree of arrays"),
    "shape": (changed(y=(np.arange(6), [np.ones((6, 4))])), "batch.y.1.0"),
    "dtype": (changed(y=(np.ones(6) / 2, [np.ones((6, 2))])), "batch.y.0"),
}


@pytest.fixture(scope="module")
def image():
    return spmd.build(nested)


@pytest.mark.parametrize("what", WRONG)
def test_what_is_given_otherwise(image, what):
    """The message names the path."""
    given, text = WRONG[what]
    for run in (nested.eager, image.run):
        with pytest.raises(spmd.InputError, match=re.escape(text)):
            run(feed=[given])


@pytest.mark.parametrize("what", ["missing", "shape", "dtype"])
def test_examples_that_are_otherwise(what):
    given, text = WRONG[what]

    @data.pipeline(source=data.range(12), shuffle=False)
    def wrong(k):
        batch = given["batch"]
        return {"batch": {"y": (batch["y"][0][0], [batch["y"][1][0][0]])} | (
            {"x": batch["x"][0]} if "x" in batch else {}), "z": 0.5}

    with pytest.raises(spmd.InputError, match=re.escape(text.removeprefix("field "))):
        nested.eager(feed=wrong)


DECLARED = {
    "a leaf that is no spec": ({"x": {"a": spmd.spec((4,)), "b": 3}}, 'field "x.b" of feed "feed"'),
    "no leaf": ({"x": {}}, 'field "x" of feed "feed" is no spec'),
    "a dot in a key": ({"x": {"a.b": spmd.spec((4,)), "a": {"b": spmd.spec((4,))}}},
                       '"x.a.b" cannot be the name of a field'),
    "a key of other characters": ({"x": {"a b": spmd.spec((4,))}}, '"x.a b" cannot be'),
    "other batches": ({"x": [spmd.spec((4,)), spmd.spec((5,))]}, "dim 0 of x.1 as of x.0: 4"),
}


@pytest.mark.parametrize("what", DECLARED)
def test_what_cannot_be_declared(what):
    fields, text = DECLARED[what]

    def program():
        return spmd.feed(**fields).next()

    for run in (Program(program, mesh=("r",)).capture,
                lambda: Program(program, mesh=("r",)).eager(feed=[])):
        with pytest.raises(spmd.SpmdError, match=re.escape(text)):
            run()
