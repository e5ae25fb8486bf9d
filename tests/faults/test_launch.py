"""Meshes that cannot be formed, failures of one rank, signals (12, 15, 22): never a hang."""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

import numpy as np
import pytest

from tests.conftest import Launch, at_some_pace, run, until

SQUARE = '''
import numpy as np
import spmd

@spmd.program(mesh=("r", "c"))
def square():
    spmd.require(spmd.axis_size("r") == spmd.axis_size("c"))
    x = spmd.input("x", (12, 12), np.float32, layout=("r", "c"), default=lambda i, j: i + j)

    @spmd.shard_map(mesh=("r", "c"), out_layouts=("r", "c"))
    def twice(x):
        return x + x

    return twice(x)
'''

ENDLESS = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def endless():
    n = spmd.axis_size("r")
    x = spmd.input("x", (100 * n,), np.float32, layout=("r",), default=lambda i: i)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def turn(x):
        spmd.print("started")
        for _ in spmd.range(10**15):
            x = spmd.ppermute(x, "r", shift=2) * 0.5
        return x

    return turn(x)
'''

BUSY = ENDLESS.replace('spmd.ppermute(x, "r", shift=2) * 0.5', "np.sin(x)")

TAKES_INPUT = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def total():
    x = spmd.input("x", (1000,), np.float64, layout=("r",))

    @spmd.shard_map(mesh="r", out_layouts=())
    def add(x):
        return spmd.psum(np.sum(x), "r")

    return {"total": add(x)}
'''


def test_a_condition_on_sizes(built, spmd_command):
    image = built(SQUARE)
    spmd_command("run", image, "--ranks", "4").expect(0)
    spmd_command("run", image, "--ranks", "3").expect(
        78, "breaks a condition", "expected: spmd.axis_size", "found:    r=3,c=1",
        "try:      one of these numbers of ranks: 1, 4, 9, 16",
    )


@pytest.mark.one_mpi
def test_a_condition_under_mpirun(built, mpirun):
    done = mpirun(3, "-m", "spmd", "run", built(SQUARE))
    assert done.code == 78, done.text
    assert "Traceback" not in done.text


@pytest.mark.parametrize(
    "mesh, remedy", [("r=3,c=3", "--ranks 9"), ("r=2,c=1", "--mesh r=2,c=2")]
)
def test_a_mesh_that_is_not_the_ranks(built, spmd_command, mesh, remedy):
    spmd_command("run", built(SQUARE), "--ranks", "4", "--mesh", mesh).expect(
        78, f"4 ranks cannot form the mesh ({mesh})", f"try:      {remedy}"
    )


LATE = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def late():
    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def sent():
        spmd.print("before")
        return spmd.ppermute(np.ones(1), "r", to=lambda i, n: i if i < 70 else 0)

    return sent()
'''


def test_a_permutation_that_nobody_could_prove(built, spmd_command):
    """Right on every mesh that was tried at build; tried again on the one that is started."""
    image = built(LATE)
    spmd_command("run", image, "--ranks", "70").expect(0, "before")
    done = spmd_command("run", image, "--ranks", "71").expect(
        78, "with the mesh (r=71), ranks 0 and 70 both send to 0", "rank p sends to", ".py:10",
    )
    assert "before" not in done.out
    assert "tried at launch" in spmd_command("show", image).expect(0).out


def test_an_axis_that_is_not_there(built, spmd_command):
    spmd_command("run", built(SQUARE), "--ranks", "4", "--mesh", "rows=2,c=2").expect(
        2, "no mesh axis 'rows'", "expected: r, c"
    )


def test_an_unknown_scalar(built, spmd_command):
    spmd_command("run", built(SQUARE), "--ranks", "1", "--set", "stops=3").expect(2, "stops")


def test_one_rank_cannot_read(built, tmp_path):
    """The file is there for rank 0 only; both end, and the reason is said once."""
    image = built(TAKES_INPUT)
    np.save(tmp_path / "good.npy", np.ones(1000))
    start = [sys.executable, "-m", "spmd", "run", image, "-i"]
    done = run(
        ["mpirun", "-n", "1", *start, f"x={tmp_path}/good.npy",
         ":", "-n", "1", *start, f"x={tmp_path}/gone.npy"],
    )
    assert done.code != 0
    assert done.err.count("gone.npy") == 1, done.text
    assert "Traceback" not in done.text


def test_one_process_was_started_with_a_wrong_option(built):
    """It comes to the others before it says so: they would wait for it in MPI_Init."""
    start = [sys.executable, "-m", "spmd", "run", built(SQUARE)]
    argv = ["mpirun", "-n", "2", *start, ":", "-n", "1", *start, "--threads", "0"]
    done = run(argv).expect(2, "--threads: '0' is not a number")
    assert done.err.count("spmd: ") == 1, done.text


@pytest.mark.one_mpi
@pytest.mark.mpi
def test_another_image_on_one_rank(built):
    """One agreement at the start (11)."""
    start = [sys.executable, "-m", "spmd", "run"]
    argv = ["mpirun", "-n", "2", *start, built(SQUARE), ":", "-n", "1", *start, built(LATE)]
    done = run(argv).expect(78, "hold different images: rank 2 differs")
    assert done.err.count("spmd: ") == 1, done.text


@pytest.mark.one_mpi
@pytest.mark.mpi
@pytest.mark.parametrize(("option", "one", "other"), [
    ("--time-limit", "200.0", "100.0"), ("--algorithm", "'ring'", "'flat'"),
])
def test_other_options_on_one_rank(built, option, one, other):
    image = built(TAKES_INPUT.replace('layout=("r",))', 'layout=("r",), default=0)'))
    start = [sys.executable, "-m", "spmd", "run", image, option]
    argv = ["mpirun", "-n", "2", *start, one.strip("'"), ":", "-n", "1", *start, other.strip("'")]
    done = run(argv).expect(
        78, "rank 2 differs", f"expected: {option} {one} (rank 0)", f"found:    {option} {other}",
    )
    assert done.err.count("spmd: ") == 1, done.text


@pytest.mark.one_mpi
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_more_memory_than_there_is(built, mpirun, spmd_command, transport):
    """Refused before it is taken (19): no late bus error."""
    large = TAKES_INPUT.replace("(1000,)", "(1 << 45,)")
    image = built(large.replace('layout=("r",))', 'layout=("r",), default=0)'))
    needs = "not enough memory: needs 256.0 TiB, have "
    spmd_command("run", image, "--ranks", "2").expect(69, needs)
    done = mpirun(2, "-m", "spmd", "run", image, "--transport", transport).expect(69, needs)
    assert done.err.count("spmd: ") == 1, done.text


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_mpi_waits_for_a_process(built, number):
    start = [sys.executable, "-m", "spmd", "run", built(SQUARE)]
    with Launch(["mpirun", "-n", "2", *start, ":", "-n", "1", "sleep", "60"]) as launch:
        time.sleep(2)
        launch.process.send_signal(number)
        assert launch.finish().code != 0


SIGNALLED = """
import os, signal, sys
here = os.path.dirname(__file__)
os.kill(os.getpid(), signal.{name})
sys.path = [p for p in sys.path if os.path.abspath(p) != here]
del sys.modules["argparse"]
import argparse
"""


@pytest.mark.mpi
@pytest.mark.parametrize("ranks", [1, 3])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_while_modules_are_imported(built, tmp_path, number, ranks):
    """In the midst of the imports of the command line: a file beside stands before argparse."""
    (tmp_path / "argparse.py").write_text(SIGNALLED.format(name=number.name))
    argv = [sys.executable, "-m", "spmd", "run", built(ENDLESS)]
    done = run(["mpirun", "-n", ranks, *argv] if ranks > 1 else argv, cwd=tmp_path, timeout=60)
    assert done.code == 128 + number, done.text
    assert "Traceback" not in done.text and "spmd:" not in done.err, done.err


COMES_LATER = """
import os, signal, sys, time
for number in (signal.SIGINT, signal.SIGTERM):
    signal.signal(number, signal.SIG_IGN)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
os.execv(sys.executable, [sys.executable, "-m", "spmd", *sys.argv[2:]])
"""


@pytest.mark.mpi
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_in_mpi_init(built, tmp_path, ended_by, number):
    """Ranks that get a signal end the job once all have come, also one that hears no signal."""
    if ended_by(number) == 1:
        pytest.skip("Open MPI's launcher kills those who hear no signal")
    late, come = tmp_path / "late.py", tmp_path / "come"
    late.write_text(COMES_LATER)
    asked = ["run", built(ENDLESS)]
    with Launch(["mpirun", "-n", "2", sys.executable, "-m", "spmd", *asked, ":", "-n", "1",
                 sys.executable, late, come, *asked]) as launch:
        pids = launch.ranks(3)
        deadline = time.monotonic() + 30
        while not all("libmpi" in Path(f"/proc/{pids[k]}/maps").read_text() for k in (0, 1)):
            assert time.monotonic() < deadline
            time.sleep(0.01)
        for rank in (0, 1):
            os.kill(pids[rank], number)
        come.touch()
        done = launch.finish(60)
    assert done.code == ended_by(number), done.text
    assert "Traceback" not in done.text and "spmd:" not in done.err, done.err


AGAIN = """
import os, signal
from spmd import interrupts
interrupts.hear()
try:
    os.kill(os.getpid(), signal.{name})
except (KeyboardInterrupt, interrupts.Terminated):
    os.kill(os.getpid(), signal.{name})  # while the first one is heeded
    print("left", flush=True)
interrupts.AGAIN_S = -1.0  # as if it came later
os.kill(os.getpid(), signal.{name})
print("not ended")
"""


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_a_signal_that_comes_again(number):
    done = run([sys.executable, "-c", AGAIN.format(name=number.name)], timeout=30)
    assert (done.code, done.out, done.err) == (128 + number, "left\n", "")


DROPPED = """
import os, signal, time, weakref
from spmd import interrupts

class Thing:
    pass

def callback(_):
    os.kill(os.getpid(), signal.{name})

interrupts.hear()
try:
    thing = Thing()
    reference = weakref.ref(thing, callback)
    del thing  # Python drops what a callback raises
    print("dropped", flush=True)
    time.sleep(60)
except (KeyboardInterrupt, interrupts.Terminated) as error:
    print(type(error).__name__)
"""


@pytest.mark.parametrize("number, name", [(signal.SIGINT, "KeyboardInterrupt"),
                                          (signal.SIGTERM, "Terminated")])
def test_a_signal_in_a_callback_is_not_lost(number, name):
    done = run([sys.executable, "-c", DROPPED.format(name=number.name)], timeout=30)
    assert (done.code, done.out, done.err) == (0, f"dropped\n{name}\n", "")


STOPPED = """
import os, signal, sys
if "1" in (os.environ.get("PMI_RANK"), os.environ.get("OMPI_COMM_WORLD_RANK")):
    os.kill(os.getpid(), signal.SIGSTOP)
os.execv(sys.executable, [sys.executable, "-m", "spmd", *sys.argv[1:]])
"""


@pytest.mark.mpi
def test_a_process_that_never_comes(built, tmp_path):
    """Stopped before MPI_Init, where the others wait and nothing of Python runs."""
    script = tmp_path / "stopped.py"
    script.write_text(STOPPED)
    argv = [sys.executable, script, "run", built(SQUARE), "--time-limit", "0.1"]
    done = run(["mpirun", "-n", "4", *argv])
    assert done.code in (75, 9), done.text
    assert done.err.count("of 4 processes not all have come to MPI_Init after 0.6 s") == 1
    assert done.err.count("of 4 processes not all have come to MPI_Init after 6 s") == 1


@pytest.mark.mpi
@pytest.mark.parametrize("options", [(), ("--transport", "mpi")])
def test_the_launcher_is_killed(built, options):
    """Nobody is left to end the ranks: they end themselves."""
    argv = [sys.executable, "-m", "spmd", "run", built(ENDLESS), *options]
    with Launch(["mpirun", "-n", "3", *argv]) as launch:
        _wait_for_start(launch)
        ranks = launch.ranks(3).values()
        launch.process.kill()
        until(lambda: not any(os.path.exists(f"/proc/{k}") for k in ranks))


def test_a_program_that_fails_on_one_rank(built, tmp_path):
    """image.run(comm=...) inside a user's script: a bad argument on one rank ends all of them."""
    script = tmp_path / "script.py"
    script.write_text(
        "import sys, numpy as np, spmd\n"
        "from mpi4py import MPI\n"
        "size = 1000 if MPI.COMM_WORLD.rank != 1 else 999\n"
        "spmd.load(sys.argv[1]).run(comm=MPI.COMM_WORLD, x=np.ones(size))\n"
    )
    done = run(["mpirun", "-n", "3", sys.executable, script, built(TAKES_INPUT)])
    assert done.code != 0
    assert "999" in done.text and "1000" in done.text


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_signals_in_one_process(built, number, code):
    argv = [sys.executable, "-m", "spmd", "run", built(ENDLESS), "--ranks", "4"]
    def check(pace):
        with Launch(argv) as launch:
            _wait_for_start(launch)
            sent = time.monotonic()
            for _ in range(2):  # a second Ctrl-C does no harm
                launch.process.send_signal(number)
                time.sleep(0.1)
            done = launch.finish()
        assert done.code == code, done.text
        assert "Traceback" not in done.text
        assert time.monotonic() - sent < 5 * pace

    at_some_pace(check)


@pytest.mark.mpi
@pytest.mark.parametrize("everybody", [False, True])
@pytest.mark.parametrize("options", [(), ("--transport", "mpi")])
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_signals_under_mpirun(built, number, options, everybody, ended_by):
    """A prompt end with nothing left, and the exit code that says why, where a launcher has it.

    everybody: as a terminal sends it to all processes in the foreground. The time limit is long:
    on a busy machine ranks are slow, which is not what they may speak of here.
    """
    argv = ["mpirun", "-n", "3", sys.executable, "-m", "spmd", "run", built(ENDLESS),
            "--time-limit", "60", *options]
    with Launch(argv) as launch:
        _wait_for_start(launch)
        sent = time.monotonic()
        if everybody:
            os.killpg(launch.process.pid, number)
        else:
            launch.process.send_signal(number)
        done = launch.finish()
    assert time.monotonic() - sent < 50  # Open MPI's launcher takes its time
    assert done.code == ended_by(number)
    assert "Traceback" not in done.text and "spmd:" not in done.err, done.err
    assert "MPI_Abort" not in done.err, done.err


@pytest.mark.mpi
@pytest.mark.parametrize(("rank", "number"), [(1, signal.SIGTERM), (0, signal.SIGINT)])
def test_a_signal_for_one_rank_that_computes(built, rank, number, ended_by):
    """It is in machine code, where no Python runs, and so are all others: the job ends."""
    if ended_by(number) == 1:
        pytest.skip("under Open MPI a rank that alone is told to end is a lost one")
    argv = ["mpirun", "-n", "4", sys.executable, "-m", "spmd", "run", built(BUSY),
            "--time-limit", "60"]
    with Launch(argv) as launch:
        _wait_for_start(launch)
        os.kill(launch.ranks(4)[rank], number)
        done = launch.finish()
    assert done.code == ended_by(number), done.text
    assert "Traceback" not in done.text and "spmd:" not in done.err, done.err


def test_a_copy_of_a_process_is_not_the_process():
    """A process forked from a rank, such as a worker of an iterable, ends as it would by itself."""
    script = (
        "import os, signal, time\n"
        "from spmd.launch import exit_signals\n"
        "exit_signals.begin()\n"
        "exit_signals.say('the last words')\n"
        "copy = os.fork() or time.sleep(60)\n"
        "os.kill(copy, signal.SIGTERM)\n"
        "print(os.waitstatus_to_exitcode(os.waitpid(copy, 0)[1]), flush=True)\n"
        "os.kill(os.getpid(), signal.SIGTERM)\n"
        "time.sleep(60)\n"
    )
    done = run([sys.executable, "-c", script]).expect(143, "-15")
    assert done.err == "the last words\n"


def _wait_for_start(launch: Launch) -> None:
    assert launch.process.stdout is not None
    line = launch.process.stdout.readline()
    assert "started" in line, (line, launch.process.poll())
