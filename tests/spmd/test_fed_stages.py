"""Stages: ranks that hold no row of a feed wait for no batch, and nobody waits for them."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

import spmd

# mypy: ignore-errors

# Of each example the one column lies in the first stage: other stages hold nothing of x.
STAGES = '''
import numpy as np
import spmd

@spmd.program(mesh=("stage", "r"))
def stages(asks: bool = True, sums: bool = True, early: bool = False):
    feed = spmd.feed(x=spmd.spec((6, 1, 2), np.float64, layout=("r", "stage", None)))
    kept = spmd.zeros((6, 1, 2), layout=("r", "stage", None))
    total, k = spmd.asarray(np.zeros(2)), spmd.asarray(0)
    if early:
        kept, k = feed.next().x * 1, k + 1
    if asks:
        while feed.more():
            b = feed.next()
            kept, k = kept * 2 + b.x, k + 1
            if sums:
                total = total + np.sum(b.x, axis=(0, 1))
    else:
        for _ in spmd.range(spmd.scalar("steps", 30)):
            kept, k = kept * 2 + feed.next().x, k + 1
    return {"kept": kept, "total": total, "k": k}
'''


def batches(count: int = 30):
    return [{"x": k + np.arange(12.0).reshape(6, 1, 2)} for k in range(count)]


def same(out, given, sums: bool = True) -> None:
    kept = np.zeros((6, 1, 2))
    for b in given:
        kept = kept * 2 + b["x"]
    np.testing.assert_array_equal(out["kept"], kept)
    if sums:
        np.testing.assert_array_equal(out["total"], sum(b["x"] for b in given).sum(axis=(0, 1)))
    assert out["k"] == len(given)


@pytest.fixture(scope="module")
def images(once, tmp_path_factory):
    file = tmp_path_factory.mktemp("stages") / "stages_of_a_feed.py"
    file.write_text(STAGES)
    made = {(asks, sums): spmd.build(file, asks=asks, sums=sums, checkpoint=True)
            for asks, sums in ((True, True), (True, False), (False, False))}
    return made, spmd.build(file, asks=True, sums=False, early=True, checkpoint=True)


@pytest.mark.parametrize("mesh", [{"stage": 3, "r": 1}, {"stage": 2, "r": 4}, {"stage": 1, "r": 8}])
def test_ranks_without_rows_end_with_the_others(images, mesh):
    for (_, sums), image in images[0].items():
        same(image.run(mesh=mesh, threads=2, feed=batches()), batches(), sums)
    with pytest.raises(spmd.SpmdError, match="feed 'feed' has ended after 29 batches") as error:
        images[0][False, False].run(mesh=mesh, feed=batches(29))
    assert error.value.exit_code == 65


@pytest.mark.parametrize("which", [(True, True), (True, False), (False, False), "early"])
def test_a_checkpoint_has_one_cursor_for_all_stages(images, tmp_path, which):
    given = batches()

    def breaks_off():
        yield from given[:20]
        raise OSError("the disk is gone")

    image = images[1] if which == "early" else images[0][which]
    with pytest.raises(spmd.InputError, match="the disk is gone"):
        image.run(mesh={"stage": 3, "r": 2}, feed=breaks_off, checkpoint=str(tmp_path), every=1)
    found = image.run(mesh={"stage": 2, "r": 3}, feed=given, resume=str(tmp_path))
    same(found, given, which == (True, True))


SCRIPT = '''
import sys
from mpi4py import MPI
import numpy as np
import spmd

sys.path.insert(0, sys.argv[3])
from tests.spmd.test_fed_stages import batches, same

comm, how = MPI.COMM_WORLD, sys.argv[2]
asked = []

def given():
    for k, b in enumerate(batches()):
        asked.append(k)
        yield b

out = spmd.load(sys.argv[1]).run(comm=comm, mesh={"stage": 3, "r": 1}, feed=given)
out = {name: value.gather() for name, value in out.items()}
counts = comm.gather(len(asked))
if comm.Get_rank() == 0:
    same(out, batches(), "total" in how)
    print(counts)
'''


@pytest.mark.parametrize(("which", "said"), [((False, False), "[30, 0, 0]"),
                                             ((True, True), "[30, 30, 30]")])
def test_processes_of_other_stages_read_nothing_that_they_need_not(images, mpirun, tmp_path, which,
                                                                   said):
    """Only where the program asks how far the stream goes do they read it."""
    (tmp_path / "script.py").write_text(SCRIPT)
    images[0][which].save(tmp_path / "stages.img")
    done = mpirun(3, tmp_path / "script.py", tmp_path / "stages.img",
                  "total" if which[1] else "kept", Path(__file__).resolve().parents[2])
    assert done.expect(0).out == f"{said}\n"


@pytest.mark.slow
def test_a_pipeline_and_processes_of_other_stages(images, mpirun, tmp_path):
    """The end of a pipeline reaches processes that ask its workers for no example."""
    file = tmp_path / "numbers_of_stages.py"
    file.write_text("import numpy as np\nimport spmd.data as data\n"
                    "@data.pipeline(source=data.range(180), epochs=1, shuffle=False)\n"
                    "def numbers(example):\n    return {'x': np.full((1, 2), example)}\n")
    for which in ((True, False), (False, False)):
        images[0][which].save(tmp_path / "stages.img")
        mpirun(3, "-m", "spmd", "run", tmp_path / "stages.img", "--feed", file, "--mesh",
               "stage=3,r=1", "-o", f"kept={tmp_path / 'kept.npy'}").expect(0)
        numbers = np.arange(180.0).reshape(30, 6, 1, 1) * np.ones(2)
        kept = np.zeros((6, 1, 2))
        for b in numbers:
            kept = kept * 2 + b
        np.testing.assert_array_equal(np.load(tmp_path / "kept.npy"), kept)


ANSWERS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def answers():
    feed = spmd.feed(x=spmd.spec((5,), np.float64),
                     y=spmd.spec((5,), np.float64, layout=spmd.replicated))
    total = spmd.asarray(0.0)
    for b in feed:
        feed.send(b.x * 2)
        total = total + b.x[0]
    return total
'''

ASKED = '''
import sys
from mpi4py import MPI
import spmd

sys.path.insert(0, sys.argv[2])
from tests.programs.test_fed_images import Collecting
from tests.spmd.test_fed_stages import np

supply = Collecting([{"x": k + np.arange(5.0), "y": np.arange(5.0)} for k in range(3)])
spmd.load(sys.argv[1]).run(comm=MPI.COMM_WORLD, feed=supply)
assert [ring.rows for ring in supply.rings] == [(0, 5)]
for k in range(3):
    np.testing.assert_array_equal(supply.back[k]["values"], 2 * (k + np.arange(5.0)))
'''


def test_an_answer_has_all_rows_that_a_process_takes(mpirun, built, tmp_path):
    """Each process has all rows of y, so it answers for all of them: also for those whose x it has
    no part of."""
    (tmp_path / "script.py").write_text(ASKED)
    mpirun(2, tmp_path / "script.py", built(ANSWERS), Path(__file__).resolve().parents[2]).expect(0)
