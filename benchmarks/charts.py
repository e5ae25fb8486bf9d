"""The charts of the documentation, measured on this machine and drawn: `make charts`.

In: names of charts, or nothing for all. Out: the tables in docs/figures, and an SVG beside each.
Collectives are measured beside the MPI of this environment; rows of other MPIs stay as they are.
"""

from __future__ import annotations

import csv
import json
import runpy
import sys
import tempfile
import time
from pathlib import Path

from benchmarks.running import machine
from tests.conftest import ROOT, run

HERE = ROOT / "docs" / "figures"
SIZES = ("8 B", "1 KiB", "128 KiB", "16 MiB")
MOST = {2: "16m", 4: "1m", 16: "128k"}  # processes, and bytes: more take long on few cores


def programs(rounds: int = 9) -> None:
    """One rank beside C by hand."""
    with tempfile.TemporaryDirectory() as folder:
        argv = [sys.executable, "-m", "benchmarks.global_arrays", folder, rounds]
        figures = json.loads(run(argv, timeout=900).expect(0).out.splitlines()[-1])
    rows = [(name, f"{t['ratio']:.2f}") for name, t in figures.items()]
    write("programs.csv", ["program", "our time over C's"], rows)


def jax(rounds: int = 9) -> None:
    """Write our times beside those of jax.jit to jax.csv, with as many ranks as there are cores."""
    argv = [sys.executable, "-m", "benchmarks.beside_jax", rounds]
    figures = json.loads(run(argv, timeout=900).expect(0).out.splitlines()[-1])
    rows = [
        (name, f"{t['ratio']:.2g}", f"{t['build']:.1f}", f"{t['jit']:.1f}")
        for name, t in figures.items()
    ]
    write("jax.csv", ["program", "JAX's time over ours", "spmd.build, s", "jax.jit, s"], rows)


def collectives(rounds: int = 3) -> None:
    """MPI's time over ours: the barrier, the all-reduce by size, and the least of all."""
    library = "MPICH" if "HYDRA" in run(["mpirun", "--version"]).text else "Open MPI"
    head = ["processes, beside", "barrier", f"all-reduce of {SIZES[0]}", *SIZES[1:], "least of all"]
    rows = {}
    for number, most in MOST.items():
        argv = ["mpirun", "-n", number, sys.executable, "-m", "spmd", "bench", "--vs", "mpi",
                "--sizes", f"8-{most}", "--step", 128, "--rounds", rounds, "--json"]
        figures = json.loads(run(argv, timeout=1800).expect(0).out)
        name = f"{number}, {library}"
        rows[name] = [name, *ratios(figures)]
    every = {row[0]: row for row in table("collectives.csv")} | rows
    order = sorted(every, key=lambda name: (int(name.partition(",")[0]), name))
    write("collectives.csv", head, [every[name] for name in order])


def ratios(figures: list[dict]) -> list[str]:
    """The cells of a row, from what bench says."""
    of = {(row["collective"], row["bytes"]): row["mpi"]["ratio"] for row in figures}
    (collective, size), least = min(of.items(), key=lambda item: item[1])
    sizes = {0: "", 8: SIZES[0], 1 << 10: SIZES[1], 1 << 17: SIZES[2], 1 << 24: SIZES[3]}
    cells = [of["barrier", 0], *(of.get(("all-reduce", size)) for size in list(sizes)[1:])]
    shown = [f"{ratio:.2g}" if ratio else "" for ratio in cells]
    bytes_text = sizes.get(size, f"{size} B")
    return [*shown, f"{least:.1f}: {collective}{', ' if size else ''}{bytes_text}"]


def table(name: str) -> list[list[str]]:
    return list(csv.reader((HERE / name).read_text().splitlines()))[1:]


def write(name: str, head: list[str], rows: list) -> None:
    with (HERE / name).open("w") as file:
        csv.writer(file, lineterminator="\n").writerows([head, *rows])


CHARTS = {"programs": programs, "jax": jax, "collectives": collectives}


def main(names: list[str]) -> None:
    where = {row[0]: row for row in table("machines.csv")}
    for name in names or CHARTS:
        CHARTS[name]()
        where[name] = [name, time.strftime("%Y-%m-%d"), machine()]
    write("machines.csv", ["chart", "measured", "on"], [where[name] for name in CHARTS])
    runpy.run_path(str(Path(HERE, "draw.py")), run_name="__main__")


if __name__ == "__main__":
    main(sys.argv[1:])
