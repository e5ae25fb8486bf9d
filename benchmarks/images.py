"""Images: what building, verifying, loading and starting them costs, and over MPI."""

from __future__ import annotations

import json
import resource
import statistics
import sys
from pathlib import Path

from benchmarks.running import spmd_command, table
from tests.conftest import EXAMPLES, run

EMPTY = """import spmd

@spmd.program(mesh=("r",))
def empty():
    return {}
"""

PROCESSES = (1, 2, 3, 5, 16)

RANKS = (1, 7, 64, 1000)



def start_up(folder: Path, rounds: int = 11) -> None:
    """An empty program beside importing mpi4py, 16 processes, alternating."""
    (folder / "empty.py").write_text(EMPTY)
    spmd_command("build", folder / "empty.py")
    commands = {
        '`python -c "from mpi4py import MPI"`': ["-c", "from mpi4py import MPI"],
        "`python -m spmd run empty.img`": ["-m", "spmd", "run", folder / "empty.img"],
    }
    times: dict[str, list[float]] = {name: [] for name in commands}
    for _ in range(rounds):
        for name, args in commands.items():
            done = run(["mpirun", "-n", 16, sys.executable, *args], cwd=folder, timeout=120)
            times[name].append(done.expect(0).seconds)
    base, ours = (statistics.median(t) for t in times.values())
    print(f"Start-up, `mpirun -n 16`, median (fastest to slowest) of {rounds}:\n")
    rows = [
        (name, f"{statistics.median(t):.2f} ({min(t):.2f} to {max(t):.2f})")
        for name, t in times.items()
    ]
    table(["command", "seconds"], [*rows, ("ratio", f"{ours / base:.2f}")])


BUILD = """
import sys, time
import numpy, numba, spmd
from pathlib import Path
from spmd.source import find_program
program = find_program(sys.argv[1])
start = time.perf_counter()
image = spmd.build(program)
seconds = time.perf_counter() - start
image.save(sys.argv[2])
print(seconds, Path(sys.argv[2]).stat().st_size)
"""



def _one(path: Path) -> str:
    """One program of a file."""
    return f"{path}:both" if path.stem == "two_layers" else str(path)


def build_times(folder: Path, rounds: int = 3) -> None:
    """Building each example after imports, each time in a new process."""
    rows = []
    for path in sorted(EXAMPLES.glob("*.py")):
        image = folder / f"{path.stem}.img"
        results = [
            run([sys.executable, "-c", BUILD, _one(path), image], timeout=120).expect(0).out.split()
            for _ in range(rounds)
        ]
        seconds = statistics.median(float(r[0]) for r in results)
        rows.append((path.name, f"{seconds:.2f}", f"{int(results[0][1]) / 1024:.0f}"))
    print(f"Building the examples, after imports, median of {rounds}:\n")
    table(["example", "seconds", "image, KiB"], rows)


def image_sizes(folder: Path) -> None:
    """The image and what one rank needs, for 1 to 1,000,000 ranks."""
    image = folder / "ring.img"
    spmd_command("build", EXAMPLES / "ring_allreduce.py", "-o", image)
    print("One image for any number of ranks, `python -m spmd show ring_allreduce.img --sizes`:\n")
    print("```\n" + spmd_command("show", image, "--sizes").strip() + "\n```\n")


def verified(folder: Path) -> None:
    """`verify` of every example that runs on a million ranks; seconds of one core."""
    rows = []
    for path in sorted(EXAMPLES.glob("*.py")):
        image = folder / f"{path.stem}.img"
        # a torus of fewer rows than ranks along an axis: those without any are neighbours of many
        rows_of = ("--set", "n=4096") if path.stem == "life" else ()
        spmd_command("build", _one(path), "-o", image, *rows_of)
        before = _seconds_of_children()
        done = run([sys.executable, "-m", "spmd", "verify", image, "--ranks", 1_000_000, "--json"],
                   timeout=600)
        seconds = f"{_seconds_of_children() - before:.1f}"
        if done.code == 78:  # heat wants no rank without a row and a column
            rows.append((path.name, "refused by the program", seconds))
        else:
            rows.append((path.name, json.loads(done.expect(0).out)["transfers"], seconds))
    print("`python -m spmd verify IMAGE --ranks 1000000`:\n")
    table(["example", "transfers", "seconds of one core"], rows)


def _seconds_of_children() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


SMALL = """import numpy as np
import spmd

@spmd.program(mesh=("r",))
def small():
    x = spmd.input("x", (spmd.axis_size("r"),), np.float64, layout=("r",), default=lambda i: i)

    @spmd.shard_map(mesh="r", out_layouts=("r",))
    def next_one(x):
        return spmd.ppermute(x, "r", shift=1)

    return next_one(x)
"""

LOAD = """
import statistics, sys, time
import spmd

image = spmd.load(sys.argv[1])
counts = [int(a) for a in sys.argv[2:]]

def call(job):
    start = time.perf_counter()
    job()
    return time.perf_counter() - start

def load(ranks):  # the first call loads and runs, the others only run
    with image.open(ranks=ranks) as job:
        return call(job) - statistics.median(call(job) for _ in range(3))

load(10)
times = {n: [] for n in counts}
for _ in range(7):
    for n in counts:
        times[n].append(load(n))
for n in counts:
    print(n, statistics.median(times[n]))
"""



def load_costs(folder: Path, counts: tuple[int, ...] = (100, 1000, 4000)) -> None:
    """Print the time to load an image with many ranks in one process, and for each further rank."""
    (folder / "small.py").write_text(SMALL)
    spmd_command("build", folder / "small.py")
    done = run([sys.executable, "-c", LOAD, folder / "small.img", *counts], timeout=120).expect(0)
    times = {int(n): float(t) for n, t in (line.split() for line in done.out.splitlines())}
    rows = [(n, f"{t * 1e3:.2f}") for n, t in times.items()]
    low, high = counts[0], counts[-1]
    slope = (times[high] - times[low]) / (high - low) * 1e6
    print("Loading an image with many ranks in one process, median of 7:\n")
    table(["ranks", "milliseconds"], [*rows, ("each further rank", f"{slope:.2f} µs")])


def digits(folder: Path) -> None:
    """The same training from one image on every number of ranks."""
    import numpy as np

    image = folder / "digits.img"
    spmd_command("build", EXAMPLES / "train_digits.py", "-o", image)
    rows, first = [], None
    launches = [(f"`mpirun -n {n}`", ["mpirun", "-n", n], []) for n in PROCESSES]
    launches += [(f"`--ranks {n}`", [], ["--ranks", n]) for n in RANKS]
    for name, before, after in launches:
        losses, accuracy = folder / "losses.npy", folder / "accuracy.npy"
        done = run(
            [*before, sys.executable, "-m", "spmd", "run", image, *after,
             "-o", f"losses={losses}", "-o", f"accuracy={accuracy}"], timeout=300,
        ).expect(0)
        got = np.load(losses)[:20].astype(float)
        first = got if first is None else first
        rows.append((
            name, f"{np.abs(got / first - 1).max():.1e}",
            f"{100 * float(np.load(accuracy)):.2f} %", f"{done.seconds:.1f}",
        ))
    print("Training on digits, one image:\n")
    table(["ranks", "losses of 20 steps differ by", "accuracy held out", "seconds"], rows)


def transports(folder: Path, rounds: int = 7) -> None:
    """The heat example over MPI beside hand-written mpi4py, alternating in the same processes."""
    rows = []
    for n, steps in ((256, 400), (1024, 100)):
        image = folder / f"heat{n}.img"
        spmd_command("build", EXAMPLES / "heat.py", "-o", image, "--set", f"n={n}")
        for ranks in (2, 4, 16):
            argv = ["mpirun", "-n", ranks, sys.executable, "-m", "benchmarks.heat_by_hand"]
            done = run([*argv, image, n, steps, rounds], timeout=600).expect(0)
            times = json.loads(done.out.splitlines()[-1])
            numpy, numba, ours = (1e6 * statistics.median(t) / steps for t in times.values())
            rows.append((n, ranks, f"{numpy:.0f}", f"{numba:.0f}", f"{ours:.0f}",
                         f"{ours / numpy:.2f}", f"{ours / numba:.2f}"))
    print(f"Heat, µs per step, median of {rounds}, the worst rank of each round:\n")
    table(["n", "ranks", "mpi4py and NumPy", "mpi4py and numba", "`--transport mpi`",
           "beside NumPy", "beside numba"], rows)


TIMED = """
import json, sys, time
import spmd
from mpi4py import MPI
from spmd import timeline

comm = MPI.COMM_WORLD
image, events, rounds, settings = sys.argv[1], sys.argv[2] == "1", int(sys.argv[3]), sys.argv[4:]
settings = {k: int(v) for k, v in (pair.split("=") for pair in settings)}
with spmd.load(image).open(comm=comm) as plain, spmd.load(image).open(comm=comm) as timed:
    plain(**settings), timed(**settings)
    timeline.keep(timed._job, events)
    times = [], []
    for k in range(rounds):
        for job, into in zip((plain, timed), times):
            comm.Barrier()
            begin = time.perf_counter()
            job(**settings)
            into.append(comm.allreduce(time.perf_counter() - begin, MPI.MAX))
if comm.rank == 0:
    print(json.dumps(times))
"""



def timelines(folder: Path, rounds: int = 15) -> None:
    """Print what keeping times costs: runs with and without it alternate in one process."""
    (folder / "timed.py").write_text(TIMED)
    rows = []
    for example, settings in (("heat", ["steps=1000"]), ("train_digits", [])):
        image = folder / f"{example}.img"
        spmd_command("build", EXAMPLES / f"{example}.py", "-o", image)
        for ranks in (1, 2, 16):
            for events, option in ((0, "`--profile`"), (1, "`--timeline`")):
                argv = ["mpirun", "-n", ranks, sys.executable, folder / "timed.py", image, events]
                done = run([*argv, rounds, *settings], timeout=600).expect(0)
                plain, timed = json.loads(done.out.splitlines()[-1])
                ratio = statistics.median(b / a for a, b in zip(plain, timed))
                rows.append((example, ranks, option, f"{statistics.median(plain):.3f}",
                             f"{100 * (ratio - 1):+.1f} %"))
    print(f"What keeping times costs, median of {rounds} pairs:\n")
    table(["example", "ranks", "kept", "seconds without", "with"], rows)
