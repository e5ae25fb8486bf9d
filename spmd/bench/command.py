"""`python -m spmd bench`: which collectives are measured, beside what, and what is printed of it.

In: names of collectives, sizes. Out: a table like those of the OSU micro-benchmarks, or JSON.
Always holds: every process must come; what cannot be measured or drawn is refused at once.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Iterable
from typing import Any

from codegen.errors import EnvironmentFault, UsageError
from codegen.suggest import meant
from spmd.bench import plot
from spmd.bench.collectives import COLLECTIVES, MEMORY_SHARE, Bench, Peer
from spmd.bench.floor import MACHINE, TITLES, Floor, FloorBench
from spmd.launch.memory import bytes_text
from spmd.launch.options import options_of
from spmd.launch.processes import Processes

RIVALS = {"mpi": Peer, "floor": Floor}  # what can run in turn with ours: --vs
FLOOR_TAKES = ("--sizes", "--step", "--rounds", "--ranks", "--json", "--plot")


# What programs call the collectives, where that is another word.
CALLS = {
    "psum": "all-reduce", "pmean": "all-reduce", "pmax": "all-reduce", "pmin": "all-reduce",
    "ppermute": "permute", "pbroadcast": "broadcast", "bcast": "broadcast", "preduce": "reduce",
    "psum_scatter": "reduce-scatter", "pgather": "gather", "pscatter": "scatter", "pscan": "scan",
    "sendrecv": "permute",
}


def _meant(word: str, known: Iterable[str]) -> str:
    """Return the remedy for a name of no collective: what `bench` calls it, "" if nobody knows."""
    if word in CALLS:
        return f"{CALLS[word]}, which is what {word} is measured as"
    return meant(word, known)


def command(options: argparse.Namespace, processes: Processes) -> int:
    """Measures and prints what was asked for; the exit code says whether anything was wrong."""
    if options.plot:
        processes.run_in_first(lambda: plot.check(options.plot))
    by_hand = options.collective[:1] == ["floor"]
    bench = _floors(options, processes) if by_hand else _collectives(options, processes)
    known = [*(MACHINE if by_hand else ()), *COLLECTIVES]
    names = options.collective[by_hand:] or known
    if unknown := [name for name in names if name not in known]:
        processes.refuse(UsageError(
            f"no floor of {unknown[0]!r}" if by_hand else f"no collective {unknown[0]!r}",
            expected=", ".join(known),
            remedy="bench floor [NAME …]" if "floor" in names else _meant(unknown[0], known),
        ))
    if by_hand and bench.ranks == 1:
        names = [name for name in names if name not in ("copy-at-once", "flag")]
    rows = []
    for name in names:
        first = True
        for row in bench.measure(name, options.sizes, options.step):
            if processes.number == 0 and not options.json:
                print((head(bench, name, by_hand) if first else "") + line(row), flush=True)
            first = False
            rows.append(row)
    if not rows:
        processes.refuse(EnvironmentFault(
            "no room for any of these sizes",
            found=f"1/{MEMORY_SHARE} of the memory: {bytes_text(bench.room)}",
            remedy="smaller --sizes",
        ))
    if processes.number == 0 and options.json:
        print(json.dumps(rows, indent=1))
    if processes.number == 0 and options.plot:
        plot.write(options.plot, rows)
    return 1 if any(row["wrong"] for row in rows) else 0


def _collectives(options: argparse.Namespace, processes: Processes) -> Bench:
    if "mpi" in options.vs and processes.count == 1:
        raise UsageError("--vs mpi needs several processes", remedy="mpirun -n 4 python -m spmd …")
    if "mpi" in options.vs and options.ranks not in (None, processes.count):
        processes.refuse(UsageError(
            "--vs mpi needs one rank in each process, as MPI has", found=f"--ranks {options.ranks}",
            expected=f"--ranks {processes.count}, or none", remedy="measure them one by one",
        ))
    rivals = {label: make for label, make in RIVALS.items() if label in options.vs}
    return Bench(options_of(vars(options)), processes, options.rounds, rivals)


def _floors(options: argparse.Namespace, processes: Processes) -> FloorBench:
    if foreign := sorted(options.flags.difference(FLOOR_TAKES)):
        processes.refuse(UsageError(
            f"bench floor has no use for {', '.join(foreign)}", expected=", ".join(FLOOR_TAKES),
            remedy="bench COLLECTIVE --vs floor" if "--vs" in foreign else "",
        ))
    return FloorBench(options_of(vars(options)), processes, options.rounds)


def head(bench: Bench, name: str, by_hand: bool) -> str:
    """Return the lines above the rows of a collective."""
    ranks, count = bench.ranks, bench.processes.count
    title = TITLES.get(name, f"floor of {name}") if by_hand else name
    text = (
        f"# {title}, float32, {ranks} ranks in {count} process{'es' if count > 1 else ''}; "
        "microseconds after a barrier\n"
        f"{'# bytes':>10} {'avg':>10} {'min':>10} {'max':>10} {'worst':>10} {'bus GB/s':>9} "
        f"{'#wrong':>6}"
    )
    for label, _ in (plot.RIVALS[rival] for rival in bench.rivals):
        text += f" {label + ' worst':>11} {label + '/ours':>10}"
    return text + ("  by\n" if by_hand else "\n")


def line(row: dict[str, Any]) -> str:
    text = f"{row['bytes']:>10}" + "".join(
        f" {row[key]:>10.2f}" for key in ("average", "least", "most", "worst")
    )
    text += f" {row['bus'] / 1e9:>9.2f} {row['wrong']:>6}"
    for rival, (label, _) in plot.RIVALS.items():
        if rival in row:
            text += f" {row[rival]['worst']:>11.2f} {row[rival]['ratio']:>9.2f}x"
            if row[rival]["wrong"]:
                text += f" {label}: {row[rival]['wrong']} wrong"
    return f"{text}  {row['method']}" if "method" in row else text
