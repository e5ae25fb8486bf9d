"""How builds grow: programs of any length, of eight kinds, and what building them costs.

In: a kind and how many statements. Out: the source of a program; as a command, a JSON line with the
seconds of every phase of its build, nothing of which comes from what earlier builds left.
"""

from __future__ import annotations

import json
import resource
import sys
import time
from collections.abc import Callable
from pathlib import Path

from benchmarks.running import table
from tests.conftest import run

HEAD = """import numpy as np
import spmd

@spmd.program(mesh=("r",))
def growth(n: int = 4096):
    m = spmd.scalar("m", 5)
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i % 7)
    y = spmd.input("y", (n,), np.float64, layout=("r",), default=lambda i: i % 5)
"""
ENDS = "    return np.sum(x), np.sum(y)\n"
LOCAL = """    @spmd.shard_map(mesh="r", in_layouts=(("r",), ("r",)), out_layouts=("r",))
    def work(x, y):
"""
DEEP = 5  # loops in each other


def lines(rows: list[str], count: int, indent: int = 4) -> str:
    """So many statements, of these in turn; {k} in them is their number."""
    texts = (rows[k % len(rows)].replace("{k}", str(k % 40)) for k in range(count))
    return "".join(" " * indent + text + "\n" for text in texts)


def chains(count: int) -> str:
    return HEAD + lines(["x = x * 0.5 + {k}.0"], count) + ENDS


def reused(count: int) -> str:
    return HEAD + lines(["x = x + x * 0.5"], count) + ENDS


def unrolled(count: int) -> str:
    """By Python's loops; with a number that the program computes."""
    rows = ["x = x + 0.25 * (y - x)", "y = y - 0.5 * x", "m = m // 2 + k"]
    loop = f"    for k in range({count // 3}):\n"
    return HEAD + loop + lines(rows, 3, 8) + "    return x[m % n], np.sum(y)\n"


def nested(count: int) -> str:
    rows = ["x = x * 0.5 + i4", "y = y + x", "x = x + y", "y = y * 0.25"]
    nest = "".join(f"{' ' * 4 * (d + 1)}for i{d} in spmd.range({d + 2}):\n" for d in range(DEEP))
    nest += lines(rows, 5, 4 * (DEEP + 1))
    return HEAD + nest * max(count // 10, 1) + ENDS


def branches(count: int) -> str:
    rows = ["if m > {k}:\n        x = x + 1.0\n    else:\n        x = x * 0.5",
            "y = spmd.cond(m < {k}, lambda v: v + 1.0, lambda v: v * 0.5, y)"]
    return HEAD + lines(rows, count // 2) + ENDS


def updates(count: int) -> str:
    rows = ["x[{k}:{k}+38] = 0.5 * y[{k}+1:{k}+39]", "y[{k}:{k}+38] += x[{k}+1:{k}+39]"]
    return HEAD + lines(rows, count) + ENDS


def shifted(count: int) -> str:
    rows = ["y = np.roll(y, 1) + x", "x[1:-1] = x[1:-1] + 0.1 * (y[:-2] + y[2:])"]
    return HEAD + lines(rows, count) + ENDS


def exchanges(count: int) -> str:
    rows = ["x = x + spmd.ppermute(y, 'r', shift=1)", "y = y * 0.5 + spmd.psum(x, 'r')",
            "y = y + spmd.ppermute(x, 'r', shift=2)", "x = x * 0.25 + y"]
    head = HEAD.replace("(n,)", "(spmd.axis_size('r') * n,)")
    return head + LOCAL + lines(rows, count, 8) + "        return x + y\n\n    return work(x, y)\n"


KINDS: dict[str, Callable[[int], str]] = {
    "chains": chains,
    "reused values": reused,
    "unrolled loops": unrolled,
    "nested loops": nested,
    "branches": branches,
    "updates of slices": updates,
    "shifted reads": shifted,
    "per-rank exchanges": exchanges,
}


def main(path: str) -> None:
    """The seconds of one core that each phase of a build takes."""
    import numba  # noqa: F401  (what a build imports is no part of it)

    from codegen import compile, progress
    from spmd.source import find_program

    program = find_program(path)
    began: list[tuple[str, float]] = []

    def used() -> float:
        children = resource.getrusage(resource.RUSAGE_CHILDREN)
        return time.process_time() + children.ru_utime + children.ru_stime

    def heard(phase: str, done: int, total: int) -> None:
        if not done:
            began.append((phase, used()))

    with progress.told(heard):
        compile.build(program, {})
    began.append(("", used()))
    seconds: dict[str, float] = {}
    for (name, start), (_, end) in zip(began, began[1:], strict=False):
        name = "tracing" if name.startswith("tracing") else name
        seconds[name] = seconds.get(name, 0) + end - start
    print(json.dumps(seconds))


def report(folder: Path, counts: tuple[int, ...] = (10, 100, 1000, 3000)) -> None:
    """Print what a build costs per statement for programs of growing length, with C compiling
    apart."""
    rows = []
    for kind, source in KINDS.items():
        cells: list[list[str]] = [[], []]
        for count in counts:
            path = folder / f"growth_{count}.py"
            path.write_text(source(count))
            argv = [sys.executable, __file__, path]
            seconds = json.loads(run(argv, timeout=900).expect(0).out)
            c = seconds.pop("compiling C")
            for cell, spent in zip(cells, (sum(seconds.values()), c), strict=True):
                cell.append(f"{spent:.2f} ({1e3 * spent / count:.1f})")
        long = [phase for phase, s in seconds.items() if s > sum(seconds.values()) / 4]
        rows.append((kind, "all but C", *cells[0], ", ".join(long)))
        rows.append(("", "compiling C", *cells[1], ""))
    print("Building programs of so many statements, seconds of one core (ms per statement):\n")
    table(["statements", "", *counts, f"most of it, at {counts[-1]}"], rows)


if __name__ == "__main__":
    sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
    main(sys.argv[1])
