"""Ranks that are killed, stopped or slow (14, 16, 17, 20, 21): named, in time, once."""

from __future__ import annotations

import os
import random
import re
import signal
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import MPIS, SHARED, Launch, at_some_pace, nobodys, until

PIPELINE = Path(__file__).parent.parent / "spmd" / "small_pipeline.py"
LIMIT = 5  # seconds, the default: a lost rank is reported before it is over

TURNS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def turns():
    n = spmd.axis_size("r")
    steps = spmd.scalar("steps", 10**15)
    work = spmd.scalar("work", 0)
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def turn(x):
        i = spmd.axis_index("r")
        spmd.print("started")
        for _ in spmd.range(steps):
            if i == 1:
                for _ in spmd.range(work):
                    x = np.cos(x)
            x = spmd.ppermute(x, "r", shift=1)
        return x

    return {"x": turn(x)}
'''


def start(launcher: list[str], ranks: int, image: Path, *options: object, **keywords) -> Launch:
    argv = [*launcher, "-n", ranks, sys.executable, "-m", "spmd", "run", image, *options]
    return Launch(argv, **keywords)


def wait_for_text(launch: Launch, text: str = "started", settle: float = 0.7) -> None:
    """Then for `settle` seconds: beats between hosts come every quarter of a second."""
    line = launch.process.stdout.readline()
    assert text in line, (line, launch.process.poll())
    time.sleep(settle)


def pretend(*names: str) -> dict[str, str]:
    """Hosts that this one plays. MPI then uses its network between all of them, as it would: who is
    stopped inside a queue in shared memory holds up whoever reads it."""
    if not names:
        return {}
    return {
        "SPMD_PRETEND_HOSTS": ",".join(names),
        "MPIR_CVAR_NOLOCAL": "1", "UCX_TLS": "tcp,self",
        "OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "tcp,self",
    }


def said_once_in_time(said: str, limit: float) -> bool:
    """Return whether one silent rank was reported within a limit, however long the job took to end;
    a machine that stands still may delay it, and each of several hosts may report it."""
    silent = re.findall(r"silent for ([\d.]+) s", said)
    return len(silent) == said.count("lost in superstep") == 1 and float(silent[0]) < limit + 1


@pytest.mark.alone
def test_a_killed_rank(built, survivors):
    """The launcher may end the others at once; where it lets them live, one of them says it.

    Even where it is told to let them live, MPICH's sometimes kills them within milliseconds: more
    often where cores are busy.
    """
    for _ in range(40):
        with start(survivors, 4, built(TURNS)) as launch:
            victim = launch.ranks(4)[2]
            wait_for_text(launch)
            sent = time.monotonic()
            os.kill(victim, signal.SIGKILL)
            done = launch.finish()
        in_time = time.monotonic() - sent < LIMIT + 1 and done.err.count("lost in superstep") <= 1
        assert done.code in (75, 9, 137), done.text  # 9 and 137 are the launchers' own
        assert "Traceback" not in done.err
        if in_time and (done.err or len(survivors) == 1):
            break
    assert in_time
    if len(survivors) > 1:
        assert f"rank 2 on {os.uname().nodename} lost in superstep" in done.err
        assert f"process {victim} has ended" in done.err
        assert ".py:20: x = spmd.ppermute" in done.err


@pytest.mark.parametrize("options, hosts", [
    ((), ()), (("--transport", "mpi"), ()), ((), ("a", "a", "b", "b")), ((), ("a", "b", "b", "c")),
])
@pytest.mark.parametrize("rank", [0, 3])
def test_a_stopped_rank(built, survivors, options, hosts, rank):
    limit = 2  # with the default in one case only: what is waited for costs time
    if (options, hosts, rank) == ((), (), 3):
        limit = LIMIT
    else:
        options = (*options, "--time-limit", limit)

    def once_in_time() -> bool:
        with start(survivors, 4, built(TURNS), *options, env=pretend(*hosts)) as launch:
            victim = launch.ranks(4)[rank]
            wait_for_text(launch)
            os.kill(victim, signal.SIGSTOP)
            done = launch.finish()
        done.expect(75, f"spmd: rank {rank} on {os.uname().nodename}", "lost in superstep",
                    f"a sign of life within {limit} s", ".py:20: x = spmd.ppermute")
        return said_once_in_time(done.err, limit) and done.err.count("late: no sign of life") == 1

    assert any(once_in_time() for _ in range(3))


def test_a_rank_that_stops_for_a_while(built, mpirun, tmp_path):
    """A warning at half the limit, which names it; a correct result."""
    name = os.uname().nodename
    for steps in (75_000, 300_000, 1_200_000, 4_800_000, 19_200_000):
        options = ("--set", f"steps={steps}", "-o", f"x={tmp_path}/x.npy")
        with start(["mpirun"], 4, built(TURNS), *options) as launch:
            victim = launch.ranks(4)[3]
            wait_for_text(launch, settle=0)
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGSTOP)
            warning = launch.process.stderr.readline()  # it goes on once this is said
            with suppress(ProcessLookupError):
                os.kill(victim, signal.SIGCONT)
            done = launch.finish().expect(0)
        if "no sign of life" in warning:
            break  # all steps may be over before it is stopped
    said = re.search(rf"warning: rank 3 on {name} late: no sign of life for ([\d.]+) s", warning)
    assert said and float(said[1]) >= LIMIT / 2, warning
    assert f"process {victim} is stopped" in warning and "warning" not in done.err
    np.testing.assert_array_equal(np.load(tmp_path / "x.npy"), [0, 1, 2, 3])


@pytest.mark.parametrize("options", [(), ("--transport", "mpi")])
def test_a_rank_that_computes_for_long(built, mpirun, options):
    """Longer than the limit; the others wait for it, are told for whom, and nothing is lost."""
    image = built(TURNS)

    def check(pace: int) -> None:
        work = f"work={40_000_000 * pace}"
        done = mpirun(3, "-m", "spmd", "run", image, "--time-limit", "1", "--set", "steps=1",
                      "--set", work, *options).expect(0, "x: float64")
        # one for each ten limits, however long this machine takes
        said = done.err.count("is slow")
        assert "warning" in done.err and said <= 1 + done.seconds // 10, done.err
        assert "rank 1 on" in done.err and "is slow: others wait for it" in done.err
        assert "ran operation" in done.err

    at_some_pace(check)


@pytest.mark.one_mpi
def test_a_limit_of_0_waits_for_ever(built, mpirun):
    with start(["mpirun"], 2, built(TURNS), "--time-limit", 0) as launch:
        victim = launch.ranks(2)[1]
        wait_for_text(launch)
        os.kill(victim, signal.SIGSTOP)
        time.sleep(0.7 * LIMIT)  # a warning would come at half of the default
        assert launch.process.poll() is None
        os.kill(victim, signal.SIGCONT)
        launch.process.send_signal(signal.SIGTERM)
        done = launch.finish()
    assert "spmd:" not in done.err, done.err


@pytest.mark.one_mpi
def test_all_stopped_together_is_nobodys_fault(built, mpirun):
    """A job that is stopped as a whole, by Ctrl-Z or a closed laptop, reports no lost rank."""
    with start(["mpirun"], 2, built(TURNS), "--time-limit", 2) as launch:
        victims = launch.ranks(2).values()
        wait_for_text(launch)
        for number in (signal.SIGSTOP, signal.SIGCONT):
            for pid in victims:
                os.kill(pid, number)
            time.sleep(3)
        assert launch.process.poll() is None, launch.finish().text
        launch.process.send_signal(signal.SIGTERM)
        done = launch.finish()
    assert "spmd:" not in done.err, done.err


KILLS = int(os.environ.get("SPMD_TEST_KILLS", "6"))  # make kills: 100


def test_a_lost_rank_of_a_pipeline(built, survivors):
    """Its stages are named, and the microbatches in flight there: of which stage 2 of 4 has begun
    one more than stage 3, or as many."""
    image = built(PIPELINE, schedule="continuous", turns=10**9)
    options = ("--mesh", "data=1", "--only", "loss", "--time-limit", 2)
    with start(survivors, 2, image, *options) as launch:
        victim = launch.ranks(2)[1]
        wait_for_text(launch)
        os.kill(victim, signal.SIGSTOP)
        done = launch.finish()
    done.expect(75, "lost in superstep", "it held stages 2, 3 of the pipeline, with microbatches")
    at = re.search(r"microbatches ([\d, ]+) in flight there \((.+)\)", done.err)
    flight = [int(x) for x in at[1].split(",")]
    if at[2] != "between two steps":
        kind, k, other, n = re.fullmatch(r"(F|B) (\d+) of stage 2, (F|B) (\d+) of stage 3",
                                         at[2]).groups()
        assert kind != other
        assert flight == [int(n if kind == "F" else k), int(k if kind == "F" else n)]


@pytest.mark.parametrize("seed", range(KILLS))
def test_killed_at_a_random_moment(built, mpirun, seed, tmp_path):
    """A rank or the launcher; from before MPI starts to the end. `finish` looks for processes."""
    chance = random.Random(seed)
    results, scratch = tmp_path / "results", tmp_path / "scratch"
    for folder in (results, scratch):
        folder.mkdir()
    options = ("--set", "steps=30000", "-o", f"x={results}/x.npy")
    before = set(SHARED.iterdir())
    with start(["mpirun"], 4, built(TURNS), *options, env={"TMPDIR": str(scratch)}) as launch:
        time.sleep(chance.uniform(0.0, 2.0))
        pids = [launch.process.pid] if chance.random() < 0.3 else launch.alive()
        number = chance.choice([signal.SIGKILL, signal.SIGTERM, signal.SIGINT])
        try:
            os.kill(chance.choice(pids or [launch.process.pid]), number)
        except ProcessLookupError:
            pass  # it was over
        done = launch.finish()
    assert "Traceback" not in done.err, done.err
    # What MPI makes, before we can take its names away, is MPI's; others may run beside this.
    until(lambda: not [path for path in nobodys(set(SHARED.iterdir()) - before)
                       if not path.name.startswith(MPIS)])
    assert not {name for name in names(scratch) if "spmd" in name}
    assert os.listdir(results) in ([], ["x.npy"])


def names(folder: Path | str) -> set[str]:
    return set(os.listdir(folder))


def test_not_even_mpi_leaves_memory(built, survivors):
    """MPICH names its shared memory until MPI_Finalize; we take the name away at the start."""
    with start(survivors, 3, built(TURNS)) as launch:
        victims = launch.ranks(3)
        wait_for_text(launch)
        maps = [line for pid in victims.values()
                for line in Path(f"/proc/{pid}/maps").read_text().splitlines()]
        for pid in victims.values():
            with suppress(ProcessLookupError):  # the others end when the first is lost
                os.kill(pid, signal.SIGKILL)
        launch.finish()
    named = [line for line in maps if "/dev/shm/mpich_" in line and "(deleted)" not in line]
    assert len(maps) > 100 and named == []


def test_two_runs_at_once(built, mpirun, tmp_path):
    """The same user, image and folder: no shared names, both right."""
    image, launches = built(TURNS), []
    for k in (1, 2):
        options = ("--set", f"steps={1000 + k}", "-o", f"x={tmp_path}/{k}.npy")
        launches.append(start(["mpirun"], 3, image, *options))
    for k, launch in enumerate(launches, 1):
        with launch:
            launch.finish().expect(0)
        np.testing.assert_array_equal(
            np.load(tmp_path / f"{k}.npy"), np.roll(np.arange(3), 1000 + k)
        )
