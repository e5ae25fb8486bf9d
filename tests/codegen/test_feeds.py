"""Feeds in programs: what is declared and refused, what passes leave alone, what oracles say."""

from __future__ import annotations

import linecache
import re
from dataclasses import replace

import numpy as np
import pytest

import spmd
from codegen import ops
from codegen.checks.check_plan import check_plan
from codegen.checks.uniformity import check_uniform
from codegen.compile import build, lower
from codegen.describe import manifest_of
from codegen.errors import (
    ImageError,
    InputError,
    InternalError,
    LayoutError,
    MatchingError,
    MissingError,
    ProgramError,
    ShapeError,
    TracedValueError,
    UnsupportedError,
    UsageError,
)
from codegen.graph.checkpoint_locations import checkpoint_locations
from codegen.image import schema
from codegen.ir.graph import Op, Region, walk
from codegen.oracle import interpret
from codegen.plan.fed_in_place import ALONE, COPIED, IN_PLACE, where_fields_lie
from codegen.symbolic import expr
from codegen.trace.program import Program
from tests.codegen.sample_programs import fed

# mypy: ignore-errors

MESHES = ({"r": 1, "c": 1}, {"r": 2, "c": 1}, {"r": 3, "c": 1}, {"r": 2, "c": 2})


def batches(count, rows=7, seed=1):
    rng = np.random.default_rng(seed)
    return [{"x": rng.normal(size=(rows, 3)), "y": rng.normal(size=rows)} for _ in range(count)]


@spmd.program(mesh=("r", "c"))
def two_feeds(batch: int = 7):
    """Uneven parts, over two axes, along dim 1, and whole; takes in a branch and in a nested
    loop."""
    feed = spmd.feed("train", x=spmd.spec((batch, 3), np.float64, layout=(("r", "c"), None)),
                     y=spmd.spec((batch,), np.float64))
    tests = spmd.feed("tests", x=spmd.spec((batch, 3), np.float64, layout=(None, "r")),
                      y=spmd.spec((batch,), np.float64, layout=spmd.replicated))
    w, k = spmd.asarray(np.zeros(3)), spmd.asarray(np.int64(0))
    tested = spmd.asarray(np.float64(0))

    def loss(w, x, y):
        return np.mean((x @ w - y) ** 2)

    while feed.more():
        b = feed.next()
        w = w - 0.1 * spmd.grad(loss)(w, b.x, b.y)
        k = k + 1
        if k % 2 == 0:
            t = tests.next()
            tested = tested + loss(w, t.x, t.y)
            tests.send(guess=t.x @ w, seen=t.y)
        for _ in spmd.range(2):
            w = w + 0.01 * np.sum(feed.next().x, axis=0)
    return w, tested, k


class Told(list):
    """Batches whose maker keeps what is sent: by its number, behind the batch of 7 rows."""

    def __init__(self, batches):
        super().__init__(batches)
        self.back = []

    def send(self, first, values):
        self.back.append((first // 7, values))


def given():
    return {"train": batches(12), "tests": Told(batches(3, seed=2))}


# ---- what the oracles say ------------------------------------------------------------------------


def test_graph_program_and_eager_run_agree_on_every_mesh():
    graph, sent = two_feeds.capture(), []
    whole = interpret.run(graph, MESHES[0], feeds=given(), sent=sent)
    program = lower(graph).program
    told = given()
    eager = two_feeds.eager(feed=told)
    for (number, values), (_, same, arrays) in zip(told["tests"].back, sent, strict=True):
        assert number == same
        for name, array in arrays.items():
            np.testing.assert_allclose(values[name], array, rtol=1e-12)
    for k, array in enumerate(eager):
        np.testing.assert_allclose(whole[str(k)], array, rtol=1e-12)
    assert [feed for feed, *_ in sent] == ["tests"] * 2
    assert [number for _, number, _ in sent] == [0, 1]
    np.testing.assert_array_equal(sent[1][2]["seen"], given()["tests"][1]["y"])
    for sizes in MESHES:
        also = []
        found = interpret.run(program, sizes, feeds=given(), sent=also)
        for name, array in whole.items():
            np.testing.assert_allclose(found[name], array, rtol=1e-12)
        for one, other in zip(sent, also, strict=True):
            assert one[:2] == other[:2]
            for name, array in one[2].items():
                np.testing.assert_allclose(other[2][name], array, rtol=1e-12)


def test_a_batch_that_is_not_full():
    """With a mask its other rows are zeros; without one the stream ends before it."""
    @spmd.program(mesh=("x",))
    def counted():
        feed = spmd.feed(x=spmd.spec((4,), np.float64), mask=spmd.spec((4,), np.bool_))
        total, rows = spmd.asarray(np.zeros(4)), spmd.asarray(np.int64(0))
        for b in feed:
            total, rows = total + b.x, rows + np.sum(b.mask)
        return total, rows

    @spmd.program(mesh=("x",))
    def dropped():
        feed = spmd.feed(x=spmd.spec((4,), np.float64))
        total = spmd.asarray(np.zeros(4))
        for b in feed:
            total = total + b.x
        return total

    stream = [{"x": np.ones(4)}, {"x": np.ones(3)}]
    total, rows = counted.eager(feed=stream)
    np.testing.assert_array_equal(total, [2, 2, 2, 1])
    assert rows == 7
    np.testing.assert_array_equal(dropped.eager(feed=iter(stream)), np.ones(4))
    found = interpret.run(counted.capture(), {"x": 1}, feeds=lambda: stream)
    assert found["1"] == 7


def test_a_batch_before_and_behind_a_loop_and_in_a_loop_that_python_runs():
    @spmd.program(mesh=("x",))
    def several():
        feed = spmd.feed(x=spmd.spec((4,), np.float64))
        first, total = feed.next(), spmd.asarray(np.float64(0))
        for k in range(2):
            total = total + (k + 1) * np.sum(feed.next().x)
        while feed.more():
            first = feed.next()  # carried: the last one is there behind it
            total = total * 2
        return first, total

    stream = [{"x": np.full(4, k)} for k in range(5)]
    first, total = several.eager(feed=stream)
    assert total == (4 + 2 * 8) * 4
    found = interpret.run(several.capture(), {"x": 1}, feeds=stream)
    np.testing.assert_array_equal(found["0.x"], first.x)
    assert found["1"] == total


def test_a_loop_that_was_left_asks_for_nothing_more():
    """Whoever makes the next batch may wait for what comes after the loop."""
    @spmd.program(mesh=("x",))
    def left():
        feed, n = spmd.feed(x=spmd.spec((4,), np.float64)), spmd.asarray(np.int64(0))
        while feed.more():
            n = n + 1
            if np.sum(feed.next().x) > 3:
                break
        for b in feed:
            n = n + 10
            if np.sum(b.x) > 7:
                break
        return n

    def stream():
        yield from ({"x": np.full(4, k)} for k in range(1, 3))
        raise AssertionError("one batch too many")

    assert left.eager(feed=stream) == 11
    graph = left.capture()
    assert interpret.run(graph, {"x": 1}, feeds=stream)["result"] == 11
    assert interpret.run(lower(graph).program, {"x": 2}, feeds=stream)["result"] == 11


def test_a_feed_may_be_declared_where_it_is_used():
    @spmd.program(mesh=("x",))
    def inside():
        total = spmd.asarray(np.float64(0))
        for _ in spmd.range(3):
            total = total + np.sum(spmd.feed(x=spmd.spec((4,), np.float64)).next().x)
        return total

    stream = [{"x": np.full(4, k)} for k in range(3)]
    assert inside.eager(feed=stream) == 12
    assert interpret.run(inside.capture(), {"x": 1}, feeds=stream)["result"] == 12


def test_named_dims_and_default_layouts():
    @spmd.program(mesh=("r", "c"), layout={"batch": "c"})
    def laid():
        b = spmd.Dim("batch", 4)
        feed = spmd.feed(x=spmd.spec((b, 2), np.float64), y=spmd.spec((4, 2), np.float64))
        return feed.next()

    (feed,) = laid.capture().feeds
    assert [t.layout for _, t in feed.fields] == [(("c",), ()), (("r",), ())]


# ---- what is refused -----------------------------------------------------------------------------


def no_fields(feed):
    return spmd.feed().next()  # here


def no_dims(feed):
    return spmd.feed("b", x=spmd.spec((), np.float64)).next()  # here


def different_batches(feed):
    spec = spmd.spec
    return spmd.feed("b", x=spec((4, 2)), y=spec((5,))).next()  # here


def another_of_that_name(feed):
    return spmd.feed(x=spmd.spec((4,), np.float32)).next()  # here


def no_spec(feed):
    return spmd.feed("b", x=(4, 2)).next()  # here


def another_mask(feed):
    return spmd.feed("b", mask=spmd.spec((4,), np.int8)).next()  # here


def an_axis_that_is_none(feed):
    return spmd.feed("b", x=spmd.spec((4,), layout=("q",))).next()  # here


def a_default(feed):
    return spmd.feed("b", x=spmd.spec((4,), default=1)).next()  # here


def a_field_that_is_not_declared(feed):
    return feed.next().z  # here


def sent_in_another_shape(feed):
    feed.send(np.sum(feed.next().x))  # here


def sent_without_anything(feed):
    feed.next()
    feed.send()  # here


def sent_before_a_batch(feed):
    feed.send(spmd.zeros(4))  # here
    return feed.next().x


def sent_twice_behind_a_batch(feed):
    total = feed.next().x
    if np.sum(total) > 1:
        feed.send(total)
    else:
        feed.send(total * 2)
    feed.send(total)  # here
    return total


def sent_twice_in_a_turn(feed):
    total = feed.next().x
    for _ in spmd.range(3):
        total = total + feed.next().x
        feed.send(total)
        feed.send(total)  # here
    return total


def sent_in_two_ways(feed):
    x = feed.next().x
    feed.send(x)
    feed.send(action=x)  # here
    return x


def declared_in_a_shard_map(feed):
    @spmd.shard_map(mesh="x")
    def inner(x):
        return x + spmd.feed("b", x=spmd.spec((4,), np.float64)).next().x  # here

    return inner(feed.next().x)


def in_a_loop_that_is_differentiated(feed):
    def loss(w):
        for _ in spmd.range(3):
            w = w * feed.next().x  # here
        return np.sum(w)

    return spmd.grad(loss)(spmd.asarray(np.ones(4)))


def in_a_branch_that_is_differentiated(feed):
    def loss(w):
        if np.sum(feed.next().x) > 1:
            w = w * feed.next().x  # here
        return np.sum(w)

    return spmd.grad(loss)(spmd.asarray(np.ones(4)))


def in_what_is_computed_again(feed):
    def loss(w):
        return np.sum(spmd.remat(lambda v: v * np.sin(v * feed.next().x))(w))  # here

    return spmd.grad(loss)(spmd.asarray(np.ones(4)))


def enumerated(feed):
    total = feed.next().x
    for k, b in enumerate(feed):  # here
        total = total + k * b.x
    return total


REFUSED = {
    no_fields: (UsageError, 'feed "feed" has no fields'),
    no_dims: (ShapeError, "has shape (batch,)"),
    different_batches: (ShapeError, "dim 0 of y as of x: 4"),
    another_of_that_name: (ProgramError, "is declared twice"),
    no_spec: (UsageError, "x=spmd.spec(shape, dtype)"),
    another_mask: (ShapeError, "mask=spmd.spec((batch,), np.bool_)"),
    an_axis_that_is_none: (LayoutError, 'field "x" of feed "b"'),
    a_default: (UsageError, "leave it out"),
    a_field_that_is_not_declared: (MissingError, "spmd.feed(z=spmd.spec(shape, dtype))"),
    sent_in_another_shape: (ShapeError, "a row for each example: (4, …)"),
    sent_without_anything: (UsageError, "feed.send(a=x, b=y)"),
    sent_before_a_batch: (ProgramError, "send has no batch that it could answer"),
    sent_twice_behind_a_batch: (ProgramError, "one send for each"),
    sent_twice_in_a_turn: (ProgramError, "b = feed.next(), then feed.send(…)"),
    sent_in_two_ways: (ProgramError, "is sent different values"),
    declared_in_a_shard_map: (ProgramError, "outside shard_map"),
    in_a_loop_that_is_differentiated: (UnsupportedError, "take the batch first"),
    in_a_branch_that_is_differentiated: (UnsupportedError, "take the batch first"),
    in_what_is_computed_again: (UnsupportedError, "take the batch first"),
    enumerated: (TracedValueError, "b = feed.next()"),
}


@pytest.mark.parametrize("f", REFUSED, ids=lambda f: f.__name__)
def test_what_is_refused(f):
    def program():
        return f(spmd.feed(x=spmd.spec((4,), np.float64)))

    expected, text = REFUSED[f]
    with pytest.raises(expected, match=re.escape(text)) as caught:
        Program(program, mesh=("x",)).capture()
    assert caught.value.place is not None
    assert "# here" in caught.value.place.source_line()


def test_answers_that_may_have_a_batch():
    """The answer to a batch of the turn before, in a branch, and behind a loop."""
    @spmd.program(mesh=("x",))
    def late():
        feed, last = spmd.feed(x=spmd.spec((4,), np.float64)), spmd.asarray(np.zeros(4))
        for k in spmd.range(3):
            if k > 0:
                feed.send(last)
            last = feed.next().x + k
        feed.send(last)
        return last

    stream, told = [{"x": np.full(4, k)} for k in range(3)], []

    def gives():
        for b in stream:
            told.append((yield b))

    with pytest.raises(UnsupportedError, match="answers the batch of the turn before"):
        checkpoint_locations(late.capture())
    expected = late.eager(feed=gives)
    assert [t["values"][0] for t in told[:2]] == [0, 2] and late.capture().feeds
    np.testing.assert_array_equal(expected, np.full(4, 4))


def test_a_feed_of_which_nothing_is_taken():
    @spmd.program(mesh=("x",))
    def untouched():
        spmd.feed(x=spmd.spec((4,), np.float64))
        return np.zeros(2)

    with pytest.raises(ProgramError, match='nothing is taken of feed "feed"'):
        untouched.capture()


EAGER = [
    (None, InputError, 'feed "train" is not given'),
    (batches(2), UsageError, "several feeds"),
    ({"train": batches(2)}, InputError, 'feed "tests" is not given'),
    ({**given(), "other": []}, UsageError, 'no feed "other"'),
    ({**given(), "train": batches(2)}, InputError, "has no more batches"),
    ({**given(), "train": [{"x": np.zeros((7, 3))}]}, InputError, "give y too"),
    ({**given(), "train": [{"x": np.zeros((7, 3)), "y": np.zeros(7, complex)}]}, InputError,
     "has another dtype"),
    ({**given(), "train": [{"x": np.zeros((7, 2)), "y": np.zeros(7)}]}, InputError, "[7, 3]"),
]


@pytest.mark.parametrize("feed, expected, text", EAGER, ids=[text for *_, text in EAGER])
def test_what_eager_runs_refuse(feed, expected, text):
    with pytest.raises(expected, match=re.escape(text)):
        two_feeds.eager(**({} if feed is None else {"feed": feed}))


def test_what_eager_runs_refuse_in_what_is_differentiated():
    def program():
        feed = spmd.feed(x=spmd.spec((4,), np.float64))
        return spmd.grad(lambda w: np.sum(w * feed.next().x))(np.ones(4))

    with pytest.raises(ProgramError, match=r"b = feed.next\(\) before"):
        Program(program, mesh=("x",)).eager(feed=[{"x": np.zeros(4)}])


# ---- what passes leave alone ---------------------------------------------------------------------


def test_ranks_come_to_a_feed_together():
    """Takes under a condition that differs between ranks are refused in a Program."""
    program = lower(fed.capture()).program
    take = next(op for op in program.body.ops if isinstance(op.kind, ops.Take))
    index = expr.symbol(program.mesh.axes[0].coord_sym)
    apart = Op(ops.Branch(index, ()), (), (), (Region((), (), ()), Region((), (take,), ())),
               take.place)
    with pytest.raises(MatchingError, match="only some ranks") as caught:
        check_uniform(program.with_body(Region((), (apart,), ())))
    assert 'feed "feed"' in caught.value.message


def test_what_is_done_with_feeds_keeps_its_number_and_order():
    """No pass changes the number or order of the Graph's takes, questions and sends."""
    for program in (fed, two_feeds):
        levels = lower(checkpoint_locations(program.capture()))
        def said(module):
            return [(type(op.kind).__name__, op.kind.feed) for op in walk(module.body)
                    if isinstance(op.kind, ops.Feeding)]

        assert len(said(levels.graph)) > 4
        assert said(levels.program) == said(levels.graph)
        steps = [(row["kind"].capitalize(), row["feed"])
                 for row in manifest_of(levels.plan, "x86-64")["operations"] if "feed" in row]
        assert sorted(steps) == sorted(said(levels.graph))
        numbers = [handed.number for handed in levels.plan.takes]
        assert numbers == sorted(numbers)


def test_equal_batches_are_different_batches():
    """Two takes say the same, and are two: also where nobody reads what one gives."""
    @spmd.program(mesh=("x",))
    def skipped():
        feed = spmd.feed(x=spmd.spec((4, 4), np.float64))
        feed.next()
        return np.sum(feed.next().x @ np.ones(4)) - np.sum(feed.next().x @ np.ones(4))

    program = lower(skipped.capture()).program
    stream = [{"x": np.full((4, 4), k)} for k in (5, 1, 2)]
    assert interpret.run(program, {"x": 2}, feeds=stream)["result"] == -16


def test_takes_stand_in_the_tables_of_the_plan():
    plan = lower(fed.capture()).plan
    for broken in (replace(plan, takes=plan.takes[::-1]), replace(plan, sends=()),
                   replace(plan, feeds=())):
        with pytest.raises(InternalError):
            check_plan(broken)


# ---- the manifest --------------------------------------------------------------------------------


def placed(body, turns="for _ in spmd.range(9)"):
    """Return where the fields of a program's takes may lie; `body` is its loop's body over batches
    b."""
    space = {}
    text = ("import numpy as np, spmd\n@spmd.program(mesh=('r',))\ndef placed():\n"
            "    feed = spmd.feed(x=spmd.spec((8, 3), np.float64, layout=('r', None)))\n"
            "    w, kept = spmd.zeros(3), spmd.zeros((8, 3), layout=('r', None))\n"
            f"    {turns}:\n"
            f"        b = feed.next()\n        {body}\n    return w, kept\n")
    linecache.cache["placed.py"] = len(text), None, text.splitlines(True), "placed.py"
    exec(compile(text, "placed.py", "exec"), space)
    graph = space["placed"].capture()
    found = where_fields_lie(lower(graph).finished)
    assert where_fields_lie(lower(checkpoint_locations(graph)).finished) == found
    return found


SHIFTED = "kept += np.roll(b.x, 1, axis=0)"


@pytest.mark.parametrize("body, lies", [
    ("w += np.sum(b.x, axis=0)", [IN_PLACE]),
    ("w += np.sum(b.x @ np.eye(3), axis=0)", [IN_PLACE]),
    ("x = b.x * 2 + 1; kept += x @ np.eye(3); kept *= x", [IN_PLACE]),
    ("x = b.x.reshape(8, 1, 3); y = x * 3; w += np.sum(y @ y.mT @ x, axis=(0, 1))", [IN_PLACE]),
    (SHIFTED, [ALONE]),  # other ranks read rows of it
    ("kept = b.x", [COPIED]),  # the last one is the result
    ("b.x[0] = 1; w += np.sum(b.x, axis=0)", [COPIED]),
    ("kept += b.x; b = feed.next(); w += np.sum(b.x, axis=0)", [IN_PLACE, IN_PLACE]),
    ("w += np.sum(b.x * feed.next().x, axis=0)", [COPIED, IN_PLACE]),  # two are looked at
    ("kept += b.x; feed.send(y=b.x[:, 0])", [IN_PLACE]),
    ("feed.send(y=b.x[:, 0]); kept += b.x", [IN_PLACE]),
])
def test_what_stays_where_a_batch_lies(body, lies):
    assert placed(body) == lies


@pytest.mark.parametrize("body, lies", [
    (SHIFTED, [ALONE]),
    ("d = np.diff(b.x, axis=0); kept[1:] += d", [ALONE]),
    ("d = np.diff(b.x, axis=0); more = feed.more(); kept[1:] += d * more; kept += b.x", [COPIED]),
])
def test_what_stays_where_a_batch_lies_of_those_who_ask(body, lies):
    """A rank that asks copies what it holds, not what an exchange has shown of that."""
    assert placed(body, "while feed.more()") == lies


def test_the_manifest_says_what_an_image_takes():
    manifest = manifest_of(lower(fed.capture()).finished, "x86-64")
    (feed,) = manifest["feeds"]
    assert feed["name"] == "feed"
    assert feed["fields"] == [
        {"name": "x", "dtype": "float32", "shape": [6, 4], "layout": [["x"], []]},
        {"name": "mask", "dtype": "bool", "shape": [6], "layout": [[]]}]
    assert [take["number"] for take in feed["takes"]] == [0, 1, 2]
    (send,) = feed["sends"]
    assert send["fields"][0]["shape"] == [6]


HOSTILE = {
    "fields that are none": lambda feed: feed.update(fields=[]),
    "two of one name": lambda feed: feed.update(fields=feed["fields"][:1] * 2),
    "another batch": lambda feed: feed["fields"][1].update(shape=[5]),
    "an axis that is none": lambda feed: feed["fields"][0].update(layout=[["q"], []]),
    "a buffer that is none": lambda feed: feed["takes"][0].update(buffers=[99, 0]),
    "too few buffers": lambda feed: feed["takes"][0].update(buffers=[0]),
    "a number twice": lambda feed: feed["takes"][0].update(number=1),
    "a send of another type": lambda feed: feed["sends"][0]["fields"][0].update(dtype="int8"),
}


@pytest.mark.parametrize("change", HOSTILE.values(), ids=HOSTILE)
def test_hostile_manifests(change):
    manifest = manifest_of(lower(fed.capture()).finished, "x86-64")
    schema.check_manifest(manifest)
    change(manifest["feeds"][0])
    with pytest.raises(ImageError):
        schema.check_manifest(manifest)


def test_every_build_of_it_is_the_same():
    assert build(fed, {}) == build(fed, {})


def test_a_field_may_have_any_name_of_a_value():
    """`memory` is what compilers call things: the field keeps its name."""
    @spmd.program(mesh=("x",))
    def named():
        b = spmd.feed(memory=spmd.spec((4,), np.float64), count=spmd.spec((4,), np.int8)).next()
        return b.memory, b.count

    plan = lower(named.capture()).plan
    assert [a.name for a in plan.takes[0].arrays] == ["memory", "count"]


@pytest.mark.parametrize("loop, words", [
    ("feed", "source of typed cannot be read.*try:      a file with the program"),
    ("spmd.range(feed.next().x.shape[0] + spmd.axis_size('r'))",
     "source of typed cannot be read.*try:      a file with the program"),
])
def test_a_program_without_a_file_is_told_so(loop, words):
    """A program typed at a prompt or read from standard input has no file: it is refused with
    words."""
    names = {"spmd": spmd}
    exec("@spmd.program(mesh=('r',))\ndef typed(batch: int = 4):\n"
         "    feed = spmd.feed(x=spmd.spec((batch,)))\n"
         f"    for b in {loop}:\n        pass\n    return spmd.zeros(3)\n", names)
    with pytest.raises(TracedValueError, match=f"(?s)can only stand in a for statement.*{words}"):
        spmd.build(names["typed"])
