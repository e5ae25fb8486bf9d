"""Pictures of what `bench` measures: latency over size, both logarithmic, a line per collective.

In: rows of bench. Out: a file; its ending says of which format.
Always holds: matplotlib is imported when a picture is wanted, and asked before anything
is measured whether it is there; a file is written whole or not at all.
"""

from __future__ import annotations

import io
import os
from typing import Any

from codegen.errors import UsageError
from spmd.files.whole import check_place, write_whole
from spmd.tables import matplotlib

# What may run in turn with ours (bench --vs): its name, and its line.
RIVALS = {"mpi": ("MPI", "--"), "floor": ("floor", ":")}
INCHES = (9.0, 6.0)


def check(path: str) -> None:
    """Refuse what cannot be drawn or written. Raises UsageError, EnvironmentFault, OutputError."""
    kinds = _figure().canvas.get_supported_filetypes()
    ending = _ending(path)
    if ending not in kinds:
        raise UsageError(f"--plot {path}: no format {ending!r}", expected=", ".join(sorted(kinds)))
    check_place(path, "plot")


def _figure(**how: Any) -> Any:
    instead = ", or leave --plot out and take --json"
    return matplotlib("figure", "--plot", instead).Figure(**how)


def _ending(path: str) -> str:
    return os.path.splitext(path)[1].lstrip(".").lower()


def write(path: str, rows: list[dict[str, Any]]) -> None:
    """Draws the worst rank's latency; what has no size, at the left. Raises OutputError."""
    figure = _figure(figsize=INCHES, layout="constrained")
    axes = figure.add_subplot()
    least = min((row["bytes"] for row in rows if row["bytes"]), default=1)
    for k, name in enumerate(dict.fromkeys(row["collective"] for row in rows)):
        color = f"C{k % 10}"
        own = [row for row in rows if row["collective"] == name]
        sizes = [row["bytes"] or least for row in own]
        marker = "o" if k < 10 else "s"
        axes.plot(sizes, [row["worst"] for row in own], color=color, marker=marker, label=name)
        for peer, (_, dashes) in RIVALS.items():
            if all(peer in row for row in own):
                axes.plot(sizes, [row[peer]["worst"] for row in own], color=color, marker=marker,
                          markersize=3, linestyle=dashes)
    for peer, (label, dashes) in RIVALS.items():
        if any(peer in row for row in rows):
            axes.plot([], [], color="gray", linestyle=dashes, label=label)
    axes.set_title(f"{rows[0]['ranks']} ranks in {rows[0]['processes']} processes")
    axes.set(xlabel="bytes", ylabel="microseconds, the worst rank")
    axes.set_xscale("log", base=2)
    axes.set_yscale("log")
    ticks = sorted({row["bytes"] or least for row in rows})
    axes.set_xticks(ticks, [_size(tick) for tick in ticks])
    axes.grid(which="both", alpha=0.3)
    axes.legend(fontsize="small")
    file = io.BytesIO()
    figure.savefig(file, format=_ending(path), dpi=150)
    write_whole(path, file.getvalue())


def _size(count: int) -> str:
    for unit, size in (("m", 1 << 20), ("k", 1 << 10)):
        if count >= size and count % size == 0:
            return f"{count // size}{unit}"
    return str(count)
