"""What workers make of a pipeline: the one of that name, of the texts that were submitted."""

from __future__ import annotations

import importlib.util
import os
import shutil
import signal
import subprocess
import sys

import numpy as np
import pytest

import spmd
import spmd.data as data
from spmd import cli
from spmd.feeding.clients.reload_check import reloaded
from spmd.feeding.consumers.pipeline_supply import PipelineSupply
from tests.conftest import until
from tests.feeding.feeding_kit import Feed, PlainRing, running, x_of
from tests.feeding.served_kit import ServedProcess

pytestmark = pytest.mark.slow  # it waits for processes of its own

PIPELINE = """
import time
import numpy as np
import spmd.data as data

{imports}

@data.pipeline(source=data.range({n}), shuffle=False, epochs=1)
def {name}(example):
    time.sleep({seconds})
    return {{"x": np.int64({value})}}
"""


def text_of(name="numbers", imports="", value="example", n=16, seconds=0):
    return PIPELINE.format(name=name, imports=imports, value=value, n=n, seconds=seconds)


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """One worker: what it has loaded for one pipeline is there when it loads another."""
    one = ServedProcess(tmp_path_factory.mktemp("served"))
    one.worker(1)
    yield one
    one.close()


def begun(served, name, batch=16):
    ring, supply = PlainRing((0, batch)), PipelineSupply(name, served.address, served.keys, run="t")
    supply.begin(Feed("feed", batch, x_of(batch)), [ring], 0)
    return ring, supply


def taken(served, name):
    """The first batch, as workers compute it."""
    ring, supply = begun(served, name)
    try:
        return ring.next()["x"].tolist()
    finally:
        supply.finish()


def folder_with(folder, helper, name="numbers", **more):
    folder.mkdir()
    (folder / "helper.py").write_text(f"def value(e): return {helper}\n")
    (file := folder / "p.py").write_text(
        text_of(name, **{"imports": "from helper import value", "value": "value(example)", **more}))
    return file


def test_each_pipeline_has_its_own_helper_and_each_version(served, tmp_path):
    one = folder_with(tmp_path / "one", "e", "one")
    two = folder_with(tmp_path / "two", "100 - e", "two", imports="",
                      value="__import__('helper').value(example)")
    lazy = two.read_text().replace("return", "from helper import value; return")
    two.write_text(lazy.replace("__import__('helper').", ""))
    with served.client() as client:
        client.submit(one)
        client.submit(two)
        assert taken(served, "one") == list(range(16))
        assert taken(served, "two") == list(range(100, 84, -1))
        assert client.submit(one)["what"] == "unchanged"
        (tmp_path / "one" / "helper.py").write_text("def value(e): return -e\n")
        assert taken(served, "one") == list(range(16)), "it is another version that nobody gave"
        assert client.update("one", source=one)["version"] == 2
        assert taken(served, "one") == list(range(0, -16, -1))
        assert client.update("one", source=one)["version"] == 2
        (tmp_path / "two" / "helper.py").write_text("def value(e): return 3\n")
        found = client.submit(two)
        assert (found["version"], found["what"]) == (2, "changed")


def test_no_run_mixes_two_texts_of_a_helper(served, tmp_path):
    """Another worker takes the place of a dead one, where the text is another by then."""
    file = folder_with(tmp_path / "mixed", "e", "mixed", n=64, seconds=0.02)
    with served.client() as client:
        client.submit(file)
        ring, supply = begun(served, "mixed")
        first = ring.next()["x"].tolist()
        shutil.rmtree(tmp_path / "mixed")
        (seen,) = client.status()["workers"]
        log = served.folder / "worker-1.log"
        for child in children_of(served.started[1].pid):
            os.kill(child, signal.SIGKILL)
        until(lambda: "another one starts" in log.read_text())
        rest = [ring.next()["x"].tolist() for _ in range(3)]
        supply.finish()
        assert [seen["worker"]] != [w["worker"] for w in client.status()["workers"]]
        assert sum([first, *rest], []) == list(range(64))


def children_of(pid):
    with open(f"/proc/{pid}/task/{pid}/children") as file:
        return [int(word) for word in file.read().split()]


def test_one_of_several_of_a_file_by_another_name(served, tmp_path, capfd):
    file = tmp_path / "pair.py"
    file.write_text(text_of("train") + text_of("tests", value="1000 + example"))
    here = ("--connect", served.address, "--keys", served.keys_folder)

    def feed(*words):
        return cli.main(["feed", *words, *here]), capfd.readouterr().err

    for name in ("train", "evaluation"):
        assert feed("submit", f"{file}:tests", "--name", name) == (0, "")
        assert taken(served, name) == list(range(1000, 1016))
    with served.client() as client:
        assert client.update("train", source=file)["version"] == 1, "it is tests there"
        file.write_text(file.read_text().replace("1000", "2000"))
        assert feed("update", "train", "--source", str(file)) == (0, "")
        assert taken(served, "train") == list(range(2000, 2016))
        assert feed("update", "train", "--source", f"{file}:train") == (0, "")
        assert taken(served, "train") == list(range(16))
        file.write_text(text_of("some") + text_of("others"))
        code, said = feed("update", "evaluation", "--source", str(file))
        assert code == 2 and "has no pipeline 'tests'" in said and "some, others" in said


def test_too_much_to_travel_is_refused(served, tmp_path):
    file = folder_with(tmp_path / "long", "e", "long")
    (tmp_path / "long" / "helper.py").write_text("value = len\n" + "# so long\n" * 100_000)
    with served.client() as client, pytest.raises(spmd.UsageError, match=(
            r"(?s)what it imports from its folder are too long.*in 2 files.*as a package")):
        client.submit(file)


def test_sets_have_the_same_order_at_all_workers(monkeypatch):
    """Words by their numbers, as a vocabulary has them; and not by a number of this machine."""
    monkeypatch.setenv("PYTHONHASHSEED", "5")
    text = text_of(imports="WORDS = list({f'word {k}' for k in range(1000)})", n=64, seconds=0.02,
                   value="int(WORDS[0].split()[1]) + 0 * example")
    expected = subprocess.run(
        [sys.executable, "-c", "print(next(iter(list({f'word {k}' for k in range(1000)}))))"],
        env={**os.environ, "PYTHONHASHSEED": "0"}, capture_output=True, text=True, check=True)
    with running(text) as run:
        run.workers(2)
        (ring,) = run.supply(x_of(64), 64)
        assert set(ring.next()["x"].tolist()) == {int(expected.stdout.split()[1])}


# ---- a Pipeline that a program gives

FILE = """
import sys
import numpy as np
import spmd.data as data
import helper
from argparse import Namespace
from collections import Counter
from dataclasses import dataclass
from functools import lru_cache, partial
from logging import getLogger
from threading import Lock

OFFSET, CACHE, CONFIG, SEEN, TABLE = 0, {}, {"size": 4}, [], np.arange(4.0)
TIMES, LOG, LOCK, RANDOM = Counter("a"), getLogger(__name__), Lock(), np.random.default_rng(1)
ARGUMENT = int(sys.argv[1]) if len(sys.argv) > 1 else 0
GIVEN, COUNT, LATER = Namespace(rate=0.5), 0, None

@dataclass
class Setting:
    FACTOR = 2
    twice: int = 2
    def half(self, value): return value / Setting.FACTOR

SETTING = Setting()

@lru_cache
def scaled(example):
    RANDOM.random()
    return helper.scale(example) * GIVEN.rate

add = partial(lambda more, value: value + more, 0)

@data.pipeline(source=data.range(4), shuffle=False)
def p(example, rng, extra=1):
    global COUNT, LATER
    COUNT, LATER = COUNT + 1, np.arange(3) if LATER is None else LATER
    SEEN.append(example)
    with LOCK:
        TIMES["a"] += 1
        LOG.debug("seen")
    value = add(SETTING.half(SETTING.twice * scaled(example)))
    CACHE[example] = value + OFFSET + ARGUMENT + CONFIG["size"] + TABLE[0] + helper.SIZE
    return {"x": CACHE[example] + extra + len(__name__)}

def make(scale, name="", source=data.range(3)):
    @data.pipeline(source=source, name=name)
    def q(example):
        return {"x": example * scale}
    return q

one = make(1)

class Scale:
    def __init__(self, k): self.k = k
    def __call__(self, example): return {"x": self.k * example}

called = data.pipeline(source=data.range(4), name="called")(Scale(2))

if __name__ == "program":
    @data.batched(source=data.range(4))
    def hidden(examples):
        return {"x": np.array(examples)}
"""


@pytest.fixture
def program(tmp_path, monkeypatch):
    """A module of a user that makes pipelines."""
    (tmp_path / "helper.py").write_text("SIZE = 3\ndef scale(e): return e\n")
    (tmp_path / "program.py").write_text(FILE)
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setattr(sys, "argv", ["program.py", "0"])
    spec = importlib.util.spec_from_file_location("program", tmp_path / "program.py")
    module = importlib.util.module_from_spec(spec)
    monkeypatch.setitem(sys.modules, "program", module)
    spec.loader.exec_module(module)
    yield module
    del sys.modules["helper"]


@pytest.mark.parametrize("changed, found", [
    ("OFFSET = 1000", "OFFSET is 1000 here, 0 there"),
    ("ARGUMENT = 100", "ARGUMENT is 100 here, 0 there"),
    ("CONFIG['size'] = 8", r"CONFIG\['size'\] is 8 here, 4 there"),
    ("CONFIG.clear()", r"CONFIG\['size'\] is not here"),
    ("TABLE[2] = 5", "TABLE is another array here than there"),
    ("TABLE = None", "TABLE is None here, ndarray there"),
    ("GIVEN.rate = 0.25", "GIVEN.rate is 0.25 here, 0.5 there"),
    ("SETTING.twice = 3", "SETTING.twice is 3 here, 2 there"),
    ("Setting.FACTOR = 3", "FACTOR is 3 here, 2 there"),
    ("add = partial(lambda more, value: value + more, 1)", r"add\[0\] is 1 here, 0 there"),
    ("helper.SIZE = 9", "helper.SIZE is 9 here, 3 there"),
    ("helper.scale = lambda e: 0", r"helper.scale\(\) has another text here"),
    ("del OFFSET", "OFFSET is not set here"),
    ("p.function.__defaults__ = (2,)", "2 here, 1 there"),
    ("import math as helper", r"helper is .*math.* here, \S+helper.py there"),
    ("called.function.k = 3", r"called\['k'\] is 3 here, 2 there"),
    ("p = make(3)", "scale is 3 here, 1 there"),
    ("p = make(1, source=data.range(5))", "its source has other examples here"),
    ("one.size = 3; p = one", "size 3 here, 0 there"),
    ("p = make(2, name='two')", r"(?s)do not find pipeline two.*top level.*p, q, called"),
    ("p = hidden", "do not find pipeline hidden"),
])
def test_a_pipeline_that_is_another_one_at_workers_is_refused(program, changed, found):
    exec(changed, program.__dict__)
    given = program.called if "called" in changed else program.p
    with pytest.raises(spmd.UsageError, match=found) as caught:
        reloaded(given, FILE)
    assert caught.value.place.file == program.__file__


def test_what_it_sets_itself_is_no_difference(program):
    assert program.p.compute(0, 4).arrays["x"].tolist() == [15, 15.5, 16, 16.5]
    for given in (program.p, program.one, program.called):
        found = reloaded(given, FILE)
        assert found is not given and found.name == given.name
        found.own.close()
    assert [t["name"] for t in found.own.texts()] == ["helper"]


def test_a_file_that_needs_arguments_is_refused(program):
    text = FILE.replace("int(sys.argv[1]) if len(sys.argv) > 1 else 0", "int(sys.argv[1])")
    with pytest.raises(spmd.InputError, match="(?s)IndexError.*without a command line"):
        reloaded(program.p, text)


@pytest.mark.mpi
def test_a_program_is_fed_with_its_own_pipeline(program):
    @spmd.program(mesh=("r",))
    def first(batch: int = 3):
        return spmd.feed(x=spmd.spec((batch,), np.int64)).next().x + 0

    image = spmd.build(first)
    one = program.one
    assert image.run(ranks=1, feed=one).tolist() == first.eager(feed=one).tolist()
    with pytest.raises(spmd.UsageError, match="scale is 3 here, 1 there"):
        image.run(ranks=1, feed=program.make(3))

    @data.pipeline(source=data.range(4))
    def local(example):
        return {"x": example}

    with pytest.raises(spmd.UsageError, match=r"(?s)workers do not find pipeline local"):
        image.run(ranks=1, feed=local)
