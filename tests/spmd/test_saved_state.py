"""State of an open image in files and dicts: on other meshes, refused where it does not fit."""

from __future__ import annotations

import json

import numpy as np
import pytest

import spmd
from codegen.errors import InputError, OutputError, UsageError
from tests.spmd.walks import Walks

BY = np.arange(30.0).reshape(10, 3)
NAMES = {"u": "F64", "parts.in": "F32", "parts.b.0": "I32", "steps": "I64"}

PROCESSES = r'''
import numpy as np
from mpi4py import MPI

import spmd
from tests.spmd.walks import Walks

comm = MPI.COMM_WORLD
image = spmd.load("walks.img")
by = np.arange(30.0).reshape(10, 3)

def same(found, factor):
    first = found.offsets[0]
    return np.array_equal(found.local, factor * by[first:first + len(found.local)])

with image.open(comm=comm, state="two.safetensors") as walks:
    assert same(walks.where()[0], 2)
    walks.walk(by=by)
    walks.save("three.npz")
    kept = walks.state()
    assert same(kept["u"], 3) and kept["steps"].local == 3
    walks.reset()
    for state in (kept, {**kept, "u": 3 * by}, {**kept, "u": spmd.local(kept["u"].local)},
                  "three.npz"):
        walks.load(state)
        assert same(walks.where()[0], 3)
        walks.reset()
    walks.load(kept)
    for bad in ({"u": by} if comm.rank == 1 else kept, "nowhere.npz"):
        try:
            walks.load(bad)
        except spmd.SpmdError as error:
            assert "state" in str(error)
        else:
            raise AssertionError(bad)
        assert same(walks.where()[0], 3)
with image.open(comm=comm, state=kept) as walks:
    assert same(walks.where()[0], 3)
print(f"well {comm.rank}\n", end="", flush=True)
'''

LED = r'''
import numpy as np
from mpi4py import MPI

import spmd

comm = MPI.COMM_WORLD
by = np.arange(30.0).reshape(10, 3)
with spmd.load("walks.img").open(comm=comm) as walks:
    if comm.rank:
        walks.follow()
    else:
        assert np.array_equal(walks.walk(by=by)["u"], by)
        kept = walks.state()
        assert type(kept["u"]) is np.ndarray and np.array_equal(kept["u"], by)
        walks.save("led.npz")
        for state in (kept, "led.npz"):
            walks.walk(by=by)
            walks.load(state)
            assert np.array_equal(walks.where()[0], by)
        for bad in ({"u": by}, "nowhere.npz"):
            try:
                walks.load(bad)
            except spmd.SpmdError as error:
                assert "state" in str(error)
            else:
                raise AssertionError(bad)
            assert np.array_equal(walks.state()["u"], by)
        assert np.array_equal(walks.walk(by=by)["u"], 2 * by)
print(f"well {comm.rank}\n", end="", flush=True)
'''


@pytest.fixture(scope="module")
def image():
    return spmd.build(Walks)


@pytest.mark.parametrize("ending", ["safetensors", "npz"])
@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_state_goes_on_another_mesh(image, tmp_path, ending, ranks):
    path = tmp_path / f"state.{ending}"
    with image.open(ranks=2) as walks:
        walks.walk(by=BY, factor=2.0)
        walks.save(path)
        walks.walk(by=BY)
    with image.open(ranks=ranks, state=path) as walks:
        u, steps = walks.where()
        assert np.array_equal(u, 2 * BY) and steps == 1
        found = walks.walk(by=BY)
        assert np.array_equal(found["u"], 3 * BY) and found["sum"] == 3 * BY.sum()
        walks.load(path)
        assert np.array_equal(walks.where()[0], 2 * BY)
        state = walks.state()
    assert state["parts.b.0"].tolist() == [2] * 10 and state["parts.in"].tolist() == [0, 1, 2, 3]
    assert image.run(entry="where", ranks=ranks, state=path)[1] == 1


def test_others_read_and_write_the_file(image, tmp_path):
    with image.open(ranks=3) as walks:
        walks.walk(by=BY)
        walks.save(tmp_path / "a.safetensors")
        walks.save(tmp_path / "a.npz")
    raw = (tmp_path / "a.safetensors").read_bytes()
    size = int.from_bytes(raw[:8], "little")
    header = json.loads(raw[8 : 8 + size])
    assert {name: row["dtype"] for name, row in header.items()} == NAMES
    begin, end = header["u"]["data_offsets"]
    assert np.array_equal(np.frombuffer(raw[8 + size :][begin:end]).reshape(10, 3), BY)
    arrays = dict(np.load(tmp_path / "a.npz"))
    assert arrays.keys() == NAMES.keys() and np.array_equal(arrays["u"], BY)
    arrays["u"] = np.asfortranarray(arrays["u"] * 2).astype(">f8")
    np.savez_compressed(tmp_path / "b.npz", **{**arrays, "parts.in": np.float16([4, 3, 2, 1])})
    with image.open(ranks=2, state=tmp_path / "b.npz") as walks:
        state = walks.state()
    assert np.array_equal(state["u"], 2 * BY) and state["parts.in"].tolist() == [4, 3, 2, 1]
    assert state["parts.in"].dtype == np.float32


def test_state_is_given_as_arrays(image):
    with image.open(ranks=3) as walks:
        walks.walk(by=BY)
        state = walks.state()
        state["u"][:] = 7  # a copy
        assert np.array_equal(walks.state()["u"], BY)
    parts = {"in": np.zeros(4, np.float16), "b": [np.arange(10, dtype=np.int32)]}
    tree = {"u": 5 * BY, "parts": parts, "steps": 4}
    with image.open(ranks=2, state=tree) as walks:
        assert np.array_equal(walks.where()[0], 5 * BY) and walks.where()[1] == 4
        walks.load(state)
        assert (walks.where()[0] == 7).all() and walks.where()[1] == 1


def test_another_programs_state_changes_nothing(image, tmp_path):
    with image.open(ranks=2) as walks:
        walks.walk(by=BY)
        good = walks.state()
        others = {**good, "u": BY[:5], "parts.in": np.zeros(4), "more": BY}
        del others["steps"]
        np.savez(tmp_path / "other.npz", **others)
        (tmp_path / "broken.safetensors").write_bytes(b"nothing")
        for given in (others, tmp_path / "other.npz"):
            with pytest.raises(InputError, match="is not the state of Walks") as error:
                walks.load(given)
            text = str(error.value)
            for part in ("u: float64 (10, 3)", "u: float64 (5, 3)", "parts.in: float32 (4,)",
                         "parts.in: float64 (4,)", "steps: int64 ()", "no steps", "more besides"):
                assert part in text, text
        refused = {
            tmp_path / "none.npz": OutputError, tmp_path / "broken.safetensors": InputError,
            tmp_path / "state.npy": UsageError, 5: InputError,
        }
        for given, kind in refused.items():
            with pytest.raises(kind, match="state"):
                walks.load(given)
        for path, kind in ((tmp_path / "no" / "state.npz", OutputError),
                           (tmp_path / "state.csv", UsageError)):
            with pytest.raises(kind, match="state"):
                walks.save(path)
        assert all(np.array_equal(good[name], x) for name, x in walks.state().items())
    with pytest.raises(InputError, match="is not the state of Walks"):
        image.open(ranks=3, state=tmp_path / "other.npz")


def test_state_is_given_in_dtypes_that_lose_nothing(image):
    """Eager objects refuse what open images refuse."""
    plain = Walks.eager()
    with image.open(ranks=2) as walks:
        state = walks.state()
        taken = {"u": BY.astype(">f8"), "parts.in": np.arange(4, dtype=np.float16),
                 "steps": np.int8(3)}
        taken = {**state, **taken, "parts.b.0": np.arange(10, dtype=">i2")}
        for job in (walks, plain):
            job.load(taken)
            for name, x in job.state().items():
                assert x.dtype == state[name].dtype
                np.testing.assert_array_equal(x, taken[name])
            for name, given in (("steps", None), ("steps", 2**70), ("steps", 2.0), ("steps", "3"),
                                ("parts.in", np.full(4, 1 + 1e-9)), ("parts.b.0", np.arange(10))):
                with pytest.raises(InputError, match="state"):
                    job.load({**state, name: given})
            np.testing.assert_array_equal(job.state()["u"], taken["u"])


def test_a_number_that_would_be_rounded_changes_nothing(image):
    with image.open(ranks=2) as walks:
        state = walks.state()
        with pytest.raises(InputError, match="rounded"):
            walks.load({**state, "u": np.full((10, 3), 2**53 + 1), "steps": 9})
        assert walks.where()[1] == 0


def test_closed_images_and_others_have_no_state(image, tmp_path):
    with image.open(ranks=2) as walks:
        pass
    for use in (walks.state, lambda: walks.save(tmp_path / "a.npz"), lambda: walks.load({}),
                lambda: walks.walk(by=BY)):
        with pytest.raises(UsageError, match="closed"):
            use()
    with pytest.raises(UsageError, match="no checkpoints") as error:
        image.open(ranks=2, checkpoint=str(tmp_path), every=2)
    assert "state" in str(error.value)

    @spmd.program(mesh=("r",))
    def plain(n: int = 4):
        return spmd.input("state", (n,), np.float64)

    built = spmd.build(plain)
    assert built.run(ranks=2, state=np.ones(4)).tolist() == [1] * 4  # an input of that name
    with pytest.raises(UsageError, match="no state"):
        built.open(ranks=2, state="file.npz")


def test_processes_write_and_read_their_parts(image, tmp_path, mpirun):
    image.save(tmp_path / "walks.img")
    with image.open(ranks=5) as walks:
        walks.walk(by=BY)
        walks.walk(by=BY)
        walks.save(tmp_path / "two.safetensors")
    (tmp_path / "script.py").write_text(PROCESSES)
    for hosts in ("", "a,b,b"):
        done = mpirun(3, "script.py", cwd=tmp_path,
                      env={"SPMD_PRETEND_HOSTS": hosts} if hosts else {})
        done.expect(0, "well 0", "well 1", "well 2")
    assert np.array_equal(np.load(tmp_path / "three.npz")["u"], 3 * BY)


@pytest.mark.parametrize("hosts", ["", "a,b,b"])
def test_those_who_follow_save_and_load(image, tmp_path, mpirun, hosts):
    image.save(tmp_path / "walks.img")
    (tmp_path / "script.py").write_text(LED)
    mpirun(3, "script.py", cwd=tmp_path,
           env={"SPMD_PRETEND_HOSTS": hosts} if hosts else {}).expect(0, "well 0", "well 2")
    assert np.array_equal(np.load(tmp_path / "led.npz")["u"], BY)


def test_no_entry_has_the_name_of_what_open_images_have(image):
    with image.open(ranks=1) as walks:
        mine = {name for name in dir(walks) if not name.startswith("_")} - set(walks.entries)
        with pytest.raises(spmd.MissingError, match="has entries"):
            walks.start()
    for name in mine:
        space = {"spmd": spmd, "np": np}
        exec("class C:\n def __init__(self):\n  self.a = np.ones(3)\n"
             f" @spmd.entry\n def {name}(self):\n  pass\n", space)
        with pytest.raises(UsageError, match="no entry is called so"):
            spmd.program(mesh=("r",))(space["C"])
