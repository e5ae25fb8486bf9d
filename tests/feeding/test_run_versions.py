"""Runs of NAME@ADDRESS: the version that they go on with, and streams that are none of theirs."""

from __future__ import annotations

import time

import numpy as np
import pytest

import spmd
from codegen.errors import AgreementError
from spmd import cli
from spmd.feeding.scheduling.run_versions import RunVersions, text_digest
from spmd.feeding.scheduling.scheduler_state import StateFile, StoredPipeline
from spmd.feeding.starting import connect
from spmd.feeding.starting.connect import supply_for
from spmd.launch.eager_feeds import eager_feeds
from spmd.launch.processes import Processes
from tests.feeding.feeding_kit import Feed, Field
from tests.feeding.served_kit import ServedProcess

pytestmark = pytest.mark.slow  # it waits for processes of its own

PIPELINE = """
import spmd.data as data

@data.pipeline(source=data.range({n}), seed={seed}, epochs=1)
def numbers(example):
    return {{"x": {value}}}
"""


@pytest.fixture
def served(tmp_path, monkeypatch):
    one = ServedProcess(tmp_path)
    monkeypatch.setenv("SPMD_FEED_KEYS", one.keys_folder)
    yield one
    one.close()


def stored(version, settings=None):
    return StoredPipeline("p", version, "p.py", f"text {version}", settings or {"seed": version})


def said(version=None, text=None, stream=None):
    return {"version": version, "text": text and text_digest(text), "run": "r", "feed": "f",
            "stream": stream, "consumer": "c" * 16}


def test_whoever_registers_takes_the_version_of_its_run():
    versions, one = RunVersions(StateFile()), stored(1)
    opened = versions.begin(one, said())
    two = stored(2, {"seed": 2, "priority": 5})
    versions.replaced(one, two)
    mine = {**said(opened["version"], "text 1", opened["stream"])}
    assert versions.register(two, mine) == 1, "an update landed while its processes register"
    assert versions.numbered(two, 1).settings == {"seed": 1, "priority": 5}, "as it is set now"
    assert versions.register(two, said()) == 2
    with pytest.raises(AgreementError, match="version 1 of pipeline p, .* is not kept any more"):
        versions.of(two, said(1, "another text"))
    assert versions.of(stored(9), said(1, "text 9")).version == 9, "counted by another state"
    versions.runs[opened["stream"]].seen = time.time() - 90000
    versions.forget()
    with pytest.raises(AgreementError, match="is not kept"):
        versions.register(two, mine)


@pytest.mark.mpi
def test_a_checkpoint_of_a_served_pipeline_knows_its_stream(served, capfd):
    """By what who submits finds in the source, and by what workers find where nobody knows."""
    def given(seed=3, value="example"):
        file = served.folder / "numbers.py"
        file.write_text(PIPELINE.format(n=160, seed=seed, value=value))
        return file

    @spmd.program(mesh=("r",))
    def summed():
        feed = spmd.feed(x=spmd.spec((16,), np.int64))
        total = spmd.asarray(0)
        for b in feed:
            total = total + np.sum(b.x)
        return total

    served.worker(1)
    image, kept = spmd.build(summed, checkpoint=True), str(served.folder / "kept")
    name = f"numbers@{served.address}"
    with served.client() as client:
        client.submit(given())
        assert image.run(feed=name, checkpoint=kept, every=4) == 12720
        capfd.readouterr()
        assert image.run(feed=name, resume=kept, ranks=2) == 12720
        assert "text of its pipeline" not in capfd.readouterr().err
        assert client.update("numbers", source=given(value="example + 0"))["version"] == 2
        assert image.run(feed=name, resume=kept) == 12720
        assert "the text of its pipeline is another one than" in capfd.readouterr().err
        client.update("numbers", source=given(seed=4))
        with pytest.raises(spmd.InputError, match="(?s)another stream than that of the checkpoint"
                           ".*found:    seed=4: examples would"):
            image.run(feed=name, resume=kept)
        client._ask("submit", name="dark", version=0, file="numbers.py", settings={"epochs": 1},
                    source=given(seed=4).read_text())
        with pytest.raises(spmd.InputError, match="a worker on .* reads another source than this"):
            image.run(feed=name.replace("numbers", "dark"), resume=kept)
        with pytest.raises(spmd.SpmdError, match="(?s)numbrs was not submitted.*numbers@tcp"):
            image.run(feed=name.replace("numbers", "numbrs"))


def test_what_is_known_of_a_pipeline_is_compared_before_anything_is_computed(served):
    """No worker is there at all."""
    def opened(name, field, batch=8):
        return supply_for(f"{name}@{served.address}", feed=Feed("f", batch, [field]),
                          processes=Processes())

    file = served.folder / "play.py"
    file.write_text("import spmd.data as data\n"
                    "@data.pipeline(source=data.environments(object, 3))\n"
                    "def play(seen):\n    return {'y': seen.turn}\n")
    with served.client() as client:
        client.submit(file)
        facts = {"gives": [{"name": "x", "dtype": "<f4", "shape": [3]}]}
        client._ask("submit", name="told", version=0, file="t.py", source="", settings={}, **facts)
    with pytest.raises(spmd.UsageError, match="3 environments, a batch of 8"):
        opened("play", Field("y", (8,), np.int64))
    with pytest.raises(spmd.InputError, match=r'(?s)field "x" of feed "f".*\(4,\).*\(3,\)'):
        opened("told", Field("x", (8, 4), np.float32))
    assert opened("told", Field("x", (8, 3), np.float32)).opened.version == 1
    with served.client() as client:
        facts = {"gives": [{"name": "t.x", "dtype": "<f4", "shape": [3]},
                           {"name": "t.y", "dtype": "<f4", "shape": [2, 5]}]}
        client._ask("submit", name="tree", version=0, file="t.py", source="", settings={}, **facts)
    for shape, fits in (((8, 3), True), ((8, 4), False)):
        fields = [Field("t.x", shape, np.float32), *(  # a list of arrays looks like an array
            Field(f"t.y.{k}", (8, 5), np.float32) for k in range(2))]
        feed = Feed("f", 8, fields)
        try:
            supply_for(f"tree@{served.address}", feed=feed, processes=Processes())
            assert fits
        except spmd.InputError as error:
            assert not fits and 'field "t.x" of feed "f"' in error.message


def test_two_feeds_of_a_run_take_one_version(served, monkeypatch):
    """An update lands while the run has opened the first of them only."""
    def given(seed):
        (file := served.folder / "numbers.py").write_text(
            PIPELINE.format(n=160, seed=seed, value="example"))
        return file

    def update_then(*args):
        begun.append(args[3].name)
        if len(begun) % 2 == 0:
            client.update("numbers", source=given(3 + len(begun)))
        return opened(*args)

    @spmd.program(mesh=("r",))
    def pairs():
        ours, theirs = (spmd.feed(name, x=spmd.spec((16,), np.int64)) for name in ("a", "b"))
        equal = spmd.asarray(0)
        for one in ours:
            equal = equal + np.sum(one.x == theirs.next().x)
        return equal

    served.worker(1)
    begun, opened = [], connect.opened
    monkeypatch.setattr(connect, "opened", update_then)
    given_both = dict.fromkeys(("a", "b"), f"numbers@{served.address}")
    with served.client() as client:
        client.submit(given(3))
        assert spmd.build(pairs).run(ranks=2, feed=given_both) == 160
        assert begun == ["a", "b"]
        with eager_feeds(given_both) as feeds:
            assert pairs.eager(feed=feeds) == 160
        assert begun == ["a", "b"] * 2
        assert [one["version"] for one in client.status()["pipelines"]] == [3]


MISFITS = {
    "{'x': np.zeros(3)}": ("y", "one int32", "only x", "return 'y' too"),
    "{'x': np.zeros(3), 'y': 1, 'z': 2.5}": ("z", "only x, y", "z too, one float64", "leave out z"),
    "{'x': np.zeros((3, 1)), 'y': 1}": (
        "x", "float32 of shape (3,)", "float64 of shape (3, 1)", "spmd.spec((batch, 3, 1), …)"),
    "{'x': np.float32(3), 'y': 1}": (
        "x", "float32 of shape (3,)", "one float32", "spmd.spec((batch,), …)"),
    "{'x': np.zeros(3), 'y': 1.5}": ("y", "one int32", "one float64", ".astype(np.int32)"),
    "{'x': np.zeros(3, complex), 'y': 1}": ("x", "float32", "complex128", "np.complex128 in the"),
}


def test_a_run_is_compared_with_the_first_example_before_it_waits(served, tmp_path):
    """No worker is there. What workers would cast fits; the message says where the field is."""
    source = ("import numpy as np\nimport spmd\n\n@spmd.program\ndef train(batch: int = 8):\n"
              "    feed = spmd.feed(x=spmd.spec((batch, 3), np.float32), "
              "y=spmd.spec((batch,), np.int32))\n"
              "    b = feed.next()\n    return b.x.sum() + b.y.sum()\n")
    (tmp_path / "train.py").write_text(source)
    assert cli.main(["build", str(tmp_path / "train.py"), "-o", str(tmp_path / "train.img")]) == 0
    image = spmd.load(tmp_path / "train.img")
    file = tmp_path / "first.py"

    def submitted(returned):
        file.write_text("import numpy as np\nimport spmd.data as data\n"
                        "@data.pipeline(source=data.range(9))\n"
                        f"def first(example):\n    return {returned}\n")
        with served.client() as client:
            assert client.submit(file)["first_example"] == ""

    for returned, (field, expected, found, remedy) in MISFITS.items():
        submitted(returned)
        with pytest.raises(spmd.InputError) as caught:
            image.run(feed=f"first@{served.address}", ranks=2)
        error = caught.value
        assert f'field "{field}" of feed "feed" is not what pipeline first gives' in error.message
        assert expected in error.expected and found in error.found and remedy in error.remedy
        assert str(error.place) == "train.py:6"
    submitted("{'x': np.zeros(3, np.int64), 'y': np.int64(1)}")
    feed = Feed("feed", 8, [Field("x", (8, 3), np.float32), Field("y", (8,), np.int32),
                            Field("mask", (8,), np.bool_)])
    assert supply_for(f"first@{served.address}", feed=feed, processes=Processes()).opened.version


def test_lists_of_the_first_example_are_compared(served, tmp_path):
    """Whether a list or tuple is an array or a tree says the program. No worker is there."""
    def submitted(returned, decorator="pipeline"):
        file = tmp_path / "lists.py"
        file.write_text("import numpy as np\nimport spmd.data as data\n"
                        f"@data.{decorator}(source=data.range(9))\n"
                        f"def lists(example):\n    return {{'x': {returned}}}\n")
        with served.client() as client:
            assert client.submit(file)["first_example"] == ""

    def wrong(**shapes):
        fields = [Field(n.replace("_", "."), (8, *shape), np.float32)
                  for n, shape in shapes.items()]
        try:
            supply_for(f"lists@{served.address}", feed=Feed("f", 8, fields), processes=Processes())
        except spmd.InputError as error:
            return error.message.split('"')[1]

    submitted("(np.float32([1, 2]), np.float32([3, 4]))")
    assert wrong(x=(2, 2)) is wrong(x_0=(2,), x_1=(2,)) is None
    assert (wrong(x=(2,)), wrong(x_0=(2,), x_1=(3,)), wrong(x_0=(2,)), wrong(y=(2, 2)),
            wrong(x_0=(2,), x_1=(2,), x_2=(2,))) == ("x", "x.1", "x.1", "y", "x.2")
    submitted("(np.float32([1, 2]), {'a': [np.float32(3), np.zeros(3, np.float32)]})")
    assert wrong(x_0=(2,), x_1_a_0=(), x_1_a_1=(3,)) is None
    assert (wrong(x_0=(2,), x_1_a_0=(3,), x_1_a_1=(3,)), wrong(x=(2,))) == ("x.1.a.0", "x")
    submitted("[np.float32(k) for k in range(17)]")  # as an array only: it would be too much
    assert wrong(x=(17,)) is wrong(x_0=(2,), x_1=(2,)) is None
    assert wrong(x=(16,)) == "x"
    submitted("(np.ones((len(example), 2), np.float32), [True] * len(example))", "batched")
    assert wrong(x_0=(2,), x_1=()) is None
    assert (wrong(x_0=(2,), x_1=(1,)), wrong(x=(2,))) == ("x.1", "x")
    submitted("[True] * len(example)", "batched")
    assert wrong(x=()) is None and wrong(x=(1,)) == "x"


def test_who_names_a_run_is_heard_under_slurm_too(monkeypatch):
    monkeypatch.setenv("SLURM_JOB_ID", "17")
    assert connect.run_name() == "17"
    monkeypatch.setenv("SPMD_RUN", "first")
    assert connect.run_name() == "first"
