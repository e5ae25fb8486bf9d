"""The figures of docs/reference/figures.md, measured on this machine: `make figures`.

In: names of figures, or nothing for all of them. Out: Markdown on standard output. Every figure is
a median; runs that are compared alternate, so that both meet the same disturbances.
"""

from __future__ import annotations

import json
import os
import platform
import resource
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from tests import (
    figures_builds,
    figures_feeding,
    figures_growth,
    figures_passes,
    figures_pipelines,
    figures_prk,
    figures_training,
)
from tests.conftest import EXAMPLES, run

EMPTY = """import spmd

@spmd.program(mesh=("r",))
def empty():
    return {}
"""

PROCESSES = (1, 2, 3, 5, 16)
RANKS = (1, 7, 64, 1000)


def spmd_command(*args: object) -> str:
    return run([sys.executable, "-m", "spmd", *args], timeout=300).expect(0).out


def said(module: str, *args: object, timeout: float = 1800) -> list[Any]:
    """The JSON lines that tests.<module> prints, in a process whose BLAS has one thread."""
    argv = [sys.executable, "-m", f"tests.{module}", *args]
    done = run(argv, timeout=timeout, env={**os.environ, "OPENBLAS_NUM_THREADS": "1"}).expect(0)
    return [json.loads(line) for line in done.out.splitlines() if line.startswith(("{", "["))]


def table(head: Iterable[object], rows: Iterable[Iterable[object]]) -> None:
    head = list(head)
    for row in (head, ["---"] * len(head), *rows):
        print("| " + " | ".join(str(cell) for cell in row) + " |")
    print(flush=True)


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


def whole_builds(folder: Path, rounds: int = 5) -> None:
    """The command `spmd build` of networks, a small program and a long one."""
    print(f"`spmd build`, seconds of one core with all that it starts, median of {rounds}:\n")
    table(["program", "seconds"], figures_builds.medians(folder, rounds))


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
    """What each further rank in a process costs when an image is loaded."""
    (folder / "small.py").write_text(SMALL)
    spmd_command("build", folder / "small.py")
    done = run([sys.executable, "-c", LOAD, folder / "small.img", *counts], timeout=120).expect(0)
    found = {int(n): float(t) for n, t in (line.split() for line in done.out.splitlines())}
    rows = [(n, f"{t * 1e3:.2f}") for n, t in found.items()]
    low, high = counts[0], counts[-1]
    slope = (found[high] - found[low]) / (high - low) * 1e6
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
            argv = ["mpirun", "-n", ranks, sys.executable, "-m", "tests.heat_by_hand"]
            done = run([*argv, image, n, steps, rounds], timeout=600).expect(0)
            found = json.loads(done.out.splitlines()[-1])
            numpy, numba, ours = (1e6 * statistics.median(t) / steps for t in found.values())
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
    """What keeping times costs: the same job with and without, alternating in one process."""
    (folder / "timed.py").write_text(TIMED)
    rows = []
    for example, settings in (("heat", ["steps=1000"]), ("train_digits", [])):
        image = folder / f"{example}.img"
        spmd_command("build", EXAMPLES / f"{example}.py", "-o", image)
        for ranks in (1, 2, 16):
            for events, what in ((0, "`--profile`"), (1, "`--timeline`")):
                argv = ["mpirun", "-n", ranks, sys.executable, folder / "timed.py", image, events]
                done = run([*argv, rounds, *settings], timeout=600).expect(0)
                plain, timed = json.loads(done.out.splitlines()[-1])
                ratio = statistics.median(b / a for a, b in zip(plain, timed))
                rows.append((example, ranks, what, f"{statistics.median(plain):.3f}",
                             f"{100 * (ratio - 1):+.1f} %"))
    print(f"What keeping times costs, median of {rounds} pairs:\n")
    table(["example", "ranks", "kept", "seconds without", "with"], rows)


def global_arrays(folder: Path, rounds: int = 9) -> None:
    """Programs on global arrays beside C written by hand; seconds per turn of their loop."""
    found = said("figures_global", folder, rounds)[-1]
    print(f"Global arrays beside C by hand (-Ofast -fno-reciprocal-math), median of {rounds}:\n")
    rows = []
    for name, times in found.items():
        hand = times["by hand"]
        ours = [f"{times[k] * 1e6:.0f} ({times[k] / hand:.2f})" for k in ("1 rank", "2 ranks")]
        rows.append((name, f"{hand * 1e6:.0f}", *ours))
    table(["program", "by hand, µs", "1 rank (ratio)", "2 ranks (ratio)"], rows)


def growth(folder: Path, counts: tuple[int, ...] = (10, 100, 1000, 3000)) -> None:
    """What a build costs per statement, for programs of any length; compiling C apart."""
    rows = []
    for kind, source in figures_growth.KINDS.items():
        cells: list[list[str]] = [[], []]
        for count in counts:
            path = folder / f"growth_{count}.py"
            path.write_text(source(count))
            argv = [sys.executable, figures_growth.__file__, path]
            seconds = json.loads(run(argv, timeout=900).expect(0).out)
            c = seconds.pop("compiling C")
            for cell, spent in zip(cells, (sum(seconds.values()), c), strict=True):
                cell.append(f"{spent:.2f} ({1e3 * spent / count:.1f})")
        long = [what for what, s in seconds.items() if s > sum(seconds.values()) / 4]
        rows.append((kind, "all but C", *cells[0], ", ".join(long)))
        rows.append(("", "compiling C", *cells[1], ""))
    print("Building programs of so many statements, seconds of one core (ms per statement):\n")
    table(["statements", "", *counts, f"most of it, at {counts[-1]}"], rows)


def fourier(folder: Path, rounds: int = 7) -> None:
    """Transforms beside NumPy's and SciPy's."""
    found = said("figures_fourier", rounds, timeout=900)[-1]
    print(f"Fourier transforms, ms, and how often faster than SciPy's; median of {rounds}:\n")
    rows = [
        (name, *(f"{t[k] * 1e3:.1f}" for k in ("numpy", "scipy")),
         *(f"{t[k] * 1e3:.1f} ({t[f'{k}, ratio']:.2f})" for k in ("1 rank", "2 ranks")))
        for name, t in found.items()
    ]
    table(["transform", "NumPy", "SciPy, one worker", "1 rank", "2 ranks"], rows)


def products(_: Path, rounds: int = 11) -> None:
    """Products of matrices beside OpenBLAS."""
    print(run([sys.executable, "-m", "tests.figures_products", rounds], timeout=600).expect(0).out)


def entities(_: Path, rounds: int = 0) -> None:
    """Calls of open images beside ONNX Runtime."""
    if missing := [name for name in ("onnx", "onnxruntime") if find_spec(name) is None]:
        print(f"Calls are measured beside ONNX Runtime: pip install {' '.join(missing)}.\n")
        return
    print(run([sys.executable, "-m", "tests.figures_entities"], timeout=900).expect(0).out)


def numpy_kernels(folder: Path, rounds: int = 5) -> None:
    """Kernels as people write them in NumPy beside NumPy and numba; SIZE=0.5 halves the extents."""
    argv = [sys.executable, "-W", "ignore", "-m", "tests.figures_numpy"]
    threads = {**os.environ, "OPENBLAS_NUM_THREADS": "1", "OMP_NUM_THREADS": "1"}
    done = run([*argv, os.environ.get("SIZE", "1"), rounds], timeout=3000, env=threads).expect(0)
    found = [json.loads(line) for line in done.out.splitlines()]
    whom, ratios = ("numpy", "numba", "1 rank", "2 ranks"), ("numpy", "numba", "1 rank/2 ranks")
    keys = [k if "/" in k else f"{k}/1 rank" for k in ratios]
    rows = [
        (r["name"], r["size"], *(f"{1e3 * r[k]:.2f}" if k in r else "" for k in whom),
         *(f"{r[k]:.2f}" if k in r else "" for k in keys))
        for r in found
    ]
    means = [
        f"{statistics.geometric_mean(r[k] for r in found if k in r):.2f}" for k in keys
    ]
    print(f"Kernels of NumPy, ms, median of {rounds}; NumPy with one thread:\n")
    table(["kernel", "size", "NumPy", "numba", "1 rank", "2 ranks", "NumPy / 1 rank",
           "numba / 1 rank", "1 rank / 2 ranks"], [*rows, ("geometric mean", *[""] * 5, *means)])


def functions(folder: Path, rounds: int = 7) -> None:
    """Functions of NumPy beside NumPy, on one core."""
    rows = said("figures_functions", rounds, timeout=900)
    print(f"NumPy's time over ours, one core, median of {rounds}:\n")
    types = ("float64", "float32", "complex128", "int64", "int32")
    table(["function", *types], [
        (r["name"], *(f"{r[t]:.1f}" if t in r else "" for t in types)) for r in rows])


def random_numbers(folder: Path, rounds: int = 21) -> None:
    """Random numbers outside of images, beside NumPy's."""
    from tests.figures_random import measured

    print(f"A million random numbers in plain Python, one core, medians of {rounds}:\n")
    table(["function", "ours, ms", "NumPy, ms", "ours/NumPy"], [
        (name, f"{ours * 1e3:.2f}", f"{numpy * 1e3:.2f}", f"{ours / numpy:.2f}")
        for name, ours, numpy in measured(rounds)
    ])


def beside_one_core(part: str, rounds: int = 5) -> None:
    """Factorisations of split matrices beside LAPACK, or sorting beside NumPy, with one thread."""
    found = said("figures_linear", part, rounds, timeout=900)[-1]
    rows = [
        (name, *(f"{1e3 * t[k]:.0f}" for k in ("theirs", "1", "2")),
         *(f"{t[f'{k}, ratio']:.2f}" for k in ("1", "2")), t["asked"] or "",
         f"{2 * t['theirs'] / t['dgemm']:.2f}" if "dgemm" in t else "")
        for name, t in found.items()
    ]
    print(f"Beside one core, ms, and how often faster; median of {rounds}:\n")
    table(["float64", "LAPACK" if part == "linear" else "NumPy", "1 rank", "2 ranks", "1 rank",
           "2 ranks", "asked", "with nothing but dgemm"], rows)


def linear(folder: Path) -> None:
    beside_one_core("linear")


def sorting(folder: Path) -> None:
    beside_one_core("sort")


def training(folder: Path, rounds: int = 7) -> None:
    """A step of training beside PyTorch and JAX, with as many threads as ranks."""
    if figures_training.lacks("jax", "optax", "torch"):
        return
    rows = []
    for part in figures_training.PARTS:
        found = said("figures_training", part, rounds)[-1]
        for n in (1, 2):
            times = (f"{1e3 * found[f'{k} {n}']:.2f}" for k in ("ours", *figures_training.PEERS))
            ratios = (f"{found[f'ours {n} / {k}']:.2f}" for k in ("torch", "jax", "one"))
            rows.append((part, n, *times, *ratios))
    print(f"A step of training, ms, median of {rounds}; as many threads as ranks:\n")
    table(["network", "ranks", "ours", "PyTorch", "PyTorch, compiled", "JAX",
           "ours / the faster PyTorch", "ours / JAX", "ours / 1 rank"], rows)


def pipelines(folder: Path, rounds: int = 5) -> None:
    """Training in two stages beside plain training, on one rank and on two."""
    speeds, builds = [], []
    for name in figures_pipelines.NETWORKS:
        found = said("figures_pipelines", name, rounds)[-1]
        for schedule, parts in figures_pipelines.SCHEDULES.items():
            bases = "plain", f"accumulated {parts}"
            speeds.append((
                name, schedule, parts, f"{1e3 * found['plain']:.1f}",
                *(f"{found[f'cpu {schedule} 1'] / found[f'cpu {base}']:.2f}" for base in bases),
                *(f"{found[b] / found[f'{schedule} {n}']:.2f}" for b in bases for n in (1, 2))))
            builds.append((name, schedule, f"{found['build plain']:.1f}",
                           f"{found[f'build {schedule}'] / found['build plain']:.2f}"))
    print(f"A step in two stages beside plain training, also accumulated; medians of {rounds}:\n")
    table(["network", "schedule", "microbatches", "plain, ms", "CPU of 1 rank / plain",
           "CPU of 1 rank / accumulated", *(f"speed of {n} / {base}" for base in
           ("plain", "accumulated") for n in ("1 rank", "2 ranks"))], speeds)
    print("Building it, seconds of one core with all that it starts:\n")
    table(["network", "schedule", "plain, s", "pipeline / plain"], builds)
    table(*figures_pipelines.memory(folder))
    print("Stages that sleep, for 10 ms forward and 20 backward; 1F1B, a thread for each rank; "
          f"step / (microbatches + stages - 1) / 10 ms, medians of {rounds}; ideal: 3:\n")
    table(["stages", "schedule", "1 process", "2 processes"], [
        (n, schedule, *(f"{figures_pipelines.asleep(schedule, n, k, rounds):.2f}" for k in (1, 2)))
        for n in (2, 4, 8, 16) for schedule in ("1f1b", "formula", "table")])
    if not figures_training.lacks("torch"):
        found = said("figures_pipelines", "torch", rounds)[-1]
        print("A step in two stages, 8 microbatches, beside torch.distributed.pipelining:\n")
        table(["schedule", "ours, ms", "torch, ms", "ours / torch", "kept by our stages, bytes",
               "kept by its stages, bytes"], [
            (name, f"{1e3 * one['ours']:.1f}", f"{1e3 * one['torch']:.1f}",
             f"{one['ours / torch']:.2f}", *(", ".join(f"{k:,}" for k in one[f"kept by {who}"])
                                             for who in ("ours", "torch")))
            for name, one in found.items()])


def steady(_: Path, rounds: int = 3) -> None:
    """Workers by the rate equation, and how soon ranks are steady again."""
    found = said("figures_steady", "measure", rounds)[-1]
    rows = [(name, f"{one['needs']:.2f}", f"{one['assigned']:.2f}",
             f"{one['starved']:.2%}" if "starved" in one else "",
             f"{one['seconds']:.1f}" if "seconds" in one else "") for name, one in found.items()]
    print("Ranks of 110 ms for a batch of 1024, and workers that wait as for a storage far away; "
          f"medians of {rounds}. Steady: each following second, ranks wait for less than 2 % of "
          "it, and assigned workers are within one of the rate equation:\n")
    table(["", "workers = consumption / production", "assigned", "starved", "steady after, s"],
          rows)


def feeding(folder: Path, rounds: int = 5) -> None:
    """Batches of workers beside a copy of memory and other libraries; a rank that computes."""
    steady(folder)
    for library, name in figures_feeding.PEERS.items():
        if figures_feeding.lacks(library, (figures_feeding.NEEDS[library],)):
            which = "PEERS_PYTHON_TF" if library == "tf" else "PEERS_PYTHON"
            package = {"torch": "torch torchvision pillow", "grain": "grain pillow"}.get(
                library, "tensorflow-cpu")
            print(f"Without {name}: {figures_feeding.python_of(library)} has none. {which} names "
                  f"a Python that has it: pip install {package}.\n")
    print(f"A batch, ms, median of {rounds} rounds in which all alternate; in brackets how many "
          "times as long as ours it takes:\n")
    for part in (*figures_feeding.STEPS, "starved"):
        argv = [sys.executable, "-m", "tests.figures_feeding", part, rounds]
        print(run(argv, timeout=600).expect(0).out, flush=True)


def pictures(_: Path, rounds: int = 7) -> None:
    """What pictures cost a worker, by each decoder."""
    found = said("figures_pictures", rounds, timeout=600)[-1]
    rows: dict[tuple[str, str], list[str]] = {}
    for name, ms in found.items():
        size, what, _ = name.split("|")
        rows.setdefault((size, what), []).append(f"{ms:.2f}")
    print(f"A picture, ms of one core, median of {rounds}; 96 pixels a side are made of the first, "
          "224 of the others:\n")
    decoders = dict.fromkeys(name.split("|")[2] for name in found)
    table(["JPEG", "what is done", *decoders], [(*row, *ms) for row, ms in rows.items()])


def research_kernels(folder: Path, rounds: int = 5) -> None:
    """The Parallel Research Kernels beside the C with MPI, whose folder PRK names."""
    rows: list[tuple[object, ...]] = []

    def say(name: str, ranks: int, c: float | None, ours: float, ratio: float,
            rates: list[str]) -> None:
        rows.append((name, ranks, f"no end in {figures_prk.LIMIT_S:g} s", "", "", "", "")
                    if c is None else (name, ranks, f"{1e3 * c:.3f}", f"{1e3 * ours:.3f}",
                                       f"{ratio:.2f}", *rates))

    source = Path(os.environ.get("PRK", "PRK"))
    figures_prk.compared(folder, source, rounds, (2, 4, 16), say)
    print(f"Parallel Research Kernels, ms of a step, median of {rounds} (of fewer where one takes "
          "long), real processes:\n")
    table(["kernel", "ranks", "C", "ours", "ours / C", "C's rate", "our rate"], rows)


def derivatives(_: Path, rounds: int = 9) -> None:
    """Gradients beside what they are of."""
    rows = []
    for name, ranks, plain, gradient in said("figures_derivatives", rounds, timeout=600):
        times = (f"{1e3 * plain:.0f}", f"{1e3 * gradient:.0f}")
        rows.append((name, ranks, *times, f"{gradient / plain:.2f}"))
    print("100 steps in float64, and their gradient by all that they begin with, medians:\n")
    table(["program", "ranks", "ms", "gradient, ms", "ratio"], rows)


def convergence(_: Path) -> None:
    """Pipelines that never wait beside 1F1B, after as many microbatches."""
    rows = said("figures_convergence", timeout=4 * 3600)
    print("Loss after as many microbatches, median of 5 seeds, and how many times that of 1F1B:\n")
    table(["network", "stages", "schedule", "accumulate", "loss", "ratio"], [
        (row["network"], row["stages"] or "any", row["schedule"], row["accumulate"],
         *((f"{row['loss']:.3f}", f"{row['ratio']:.3f}") if "loss" in row else
           (row["refused"], ""))) for row in rows])


FIGURES: dict[str, Callable[[Path], None]] = {
    "start": start_up,
    "build": build_times,
    "builds": whole_builds,
    "sizes": image_sizes,
    "verify": verified,
    "load": load_costs,
    "digits": digits,
    "transports": transports,
    "timelines": timelines,
    "global": global_arrays,
    "growth": growth,
    "fourier": fourier,
    "random": random_numbers,
    "functions": functions,
    "numpy": numpy_kernels,
    "linear": linear, "products": products,
    "entities": entities, "sort": sorting,
    "passes": lambda folder: figures_passes.tables(folder, said, table),
    "derivatives": derivatives,
    "training": training,
    "convergence": convergence,
    "pipelines": pipelines,
    "feeding": feeding,
    "pictures": pictures,
    "prk": research_kernels,
}


def machine() -> str:
    info = Path("/proc/cpuinfo").read_text().splitlines()
    model = next((x.split(":")[1].strip() for x in info if x.startswith("model name")), "")
    cc = subprocess.run([os.environ.get("CC", "cc"), "-dumpversion"], capture_output=True,
                        text=True).stdout.strip()
    cores = len(os.sched_getaffinity(0))
    python = platform.python_version()
    return f"{cores} cores of {model or platform.machine()}, cc {cc}, Python {python}"


def main(names: list[str]) -> None:
    unknown = sorted(set(names) - FIGURES.keys())
    if unknown:
        sys.exit(f"no figure is called {', '.join(unknown)}; there are {', '.join(FIGURES)}")
    print(f"Measured {time.strftime('%Y-%m-%d')} on {machine()}.\n", flush=True)
    with tempfile.TemporaryDirectory() as folder:
        for name in names or [n for n in FIGURES if n != "prk" or "PRK" in os.environ]:
            print(f"figures: {name}", file=sys.stderr, flush=True)
            FIGURES[name](Path(folder))


if __name__ == "__main__":
    main(sys.argv[1:])
