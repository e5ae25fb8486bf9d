"""What each optimisation changes, and what it is worth, over the corpus.

In: "count" or "time", which share of the programs, of how many. Out: JSON lines. A program is built
in forms: without layouts, with its first dim split over one axis, with its first two dims over two
axes; what has layouts of its own also as it is written. A form that is refused says so.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from unittest.mock import patch

import numpy as np

import spmd
from benchmarks import global_arrays, research_kernels
from benchmarks.numpy_kernels import of_job
from benchmarks.running import json_lines, table
from codegen import compile as compiler
from spmd import layout_table, show, source
from spmd.image import Image
from spmd.launch import loader
from tests.conftest import EXAMPLES
from tests.programs import numpy_kernels
from tests.programs.corpus import cases, entities, forms

WRITTEN = "as written"
RANKS = (1, 2, 4)
ROUNDS = 7
LONGEST_S = 1.0  # for one run: what takes longer is run three times
SAMPLE = 8  # programs that a pass changes, of which it is timed


@dataclass(frozen=True)
class Form:
    """A program of the corpus in one form. inputs: what it is run with; None: it is not timed."""

    name: str
    form: str
    program: Callable[[], Any]
    inputs: dict[str, Any] | None = None


def corpus() -> Iterator[Form]:
    """Return every program in every form: those of tests/programs/corpus first."""
    kernels = {name: cases.Case(getattr(numpy_kernels, name), k.small, k.size, k.arguments)
               for name, k in numpy_kernels.KERNELS.items()}
    for name, case in (*cases.cases().items(), *((f"kernel {n}", c) for n, c in kernels.items())):
        for form in forms.FORMS:
            yield Form(name, form, lambda c=case, f=form: forms.as_program(c, f, c.size),
                       forms.inputs(case, case.size))
    for kept in entities.CLASSES:
        for form in forms.FORMS:
            yield Form(kept.__name__, form, lambda k=kept, f=form: forms.as_entity(k, f))
    for name, program in written().items():
        yield Form(name, WRITTEN, program)
    for name, program in written().items():
        for form in forms.FORMS:
            yield Form(name, form, lambda p=program, f=form: Laid(p(), f))


def written() -> dict[str, Callable[[], Any]]:
    """Return the examples and the programs of figures, which have layouts of their own."""
    programs: dict[str, Callable[[], Any]] = {}
    for path in sorted(EXAMPLES.glob("*.py")):
        name = f"{path}:both" if path.stem == "two_layers" else str(path)
        programs[f"example {path.stem}"] = lambda name=name: source.find_program(name)
    for title, program in global_arrays.PROGRAMS.items():
        programs[f"figure {title}"] = lambda program=program: program
    for name in research_kernels.KERNELS:
        programs[f"figure prk {name}"] = lambda name=name: getattr(research_kernels, name)
    return programs


class Laid:
    """A program on another mesh, whose inputs lie as a form says, whatever it says itself."""

    def __init__(self, program: Any, form: str) -> None:
        self.form = forms.FORMS[form]
        self.program = spmd.program(mesh=self.form.mesh)(program.function)
        self.name = program.name

    def graph(self, parameters: Any, checks: Any = ()) -> Any:
        declared = spmd.input

        def laid(name: str, shape: Any, dtype: Any = np.float64, layout: Any = None,
                 **more: Any) -> Any:
            dims = len(shape) if isinstance(shape, tuple) else 1
            return declared(name, shape, dtype, layout=self.form.layout(dims), **more)

        with patch.object(spmd, "input", laid):
            return self.program.graph(parameters, checks)


def changed(form: Form) -> dict[str, Any]:
    """Return which optimisations change a form of a program, and seconds of its passes."""
    row: dict[str, Any] = {"name": form.name, "form": form.form}
    try:
        rows, _, lowering = compiler.recorded(form.program(), {})
    except spmd.SpmdError as error:
        return {**row, "refused": str(error).splitlines()[0]}
    names = {r.name for r in rows if r.changed} & {*compiler.OPTIMISATIONS}
    return {**row, "changed": sorted(names), "seconds": lowering,
            "partitions": sum(r.times for r in rows if r.name == "partition")}


# ---- with it and without it ----------------------------------------------------------------------


def compared(form: Form, name: str, base: bytes) -> dict[str, Any]:
    """Return seconds of a run and bytes of a rank with a pass and without it, on few ranks."""
    images = {"with": base, "without": compiler.build(form.program(), {}, without=[name])}
    row: dict[str, Any] = {"name": form.name, "form": form.form, "pass": name}
    for ranks in RANKS:
        row[str(ranks)] = {**timed(form, images, ranks), **{
            f"bytes {key}": bytes_of(data, ranks) for key, data in images.items()}}
    return row


def timed(form: Form, images: dict[str, bytes], ranks: int) -> dict[str, float]:
    """Return the least seconds of a run of each image; they take turns."""
    best: dict[str, float] = {}
    jobs = {key: Image(loader.check(data)).open(ranks=ranks) for key, data in images.items()}
    try:
        took = {key: of_job(job, form.inputs or {}) for key, job in jobs.items()}
        for number in range(ROUNDS):
            for key, once in took.items():
                if number < 3 or best[key] < LONGEST_S:
                    best[key] = min(best.get(key, float("inf")), once())
    finally:
        for job in jobs.values():
            job.close()
    return best


def bytes_of(data: bytes, ranks: int) -> int:
    """Return the bytes of a rank's memory, and of all that it gets in exchanges, once each."""
    image = show.reader.read(data, host=False)
    scalars = {s["name"]: s["default"] for s in image.manifest["scalars"]}
    mesh = show.sizes.bind_mesh(image.manifest, ranks, {}, scalars, ranks)
    memory = show._rank_bytes(image.manifest,
                              {**scalars, **show.sizes.mesh_symbols(image.manifest, mesh)})
    sent = layout_table.table(image, ranks, {})["exchanges"]
    return memory + sum(row.get("rank_bytes") or 0 for row in sent)


def sampled(counts: list[dict[str, Any]]) -> dict[tuple[str, str], list[str]]:
    """Return the passes to time for each form of a program: of each pass some forms, far apart."""
    passes: dict[tuple[str, str], list[str]] = {}
    for name in compiler.OPTIMISATIONS:
        rows = [row for row in counts if name in row.get("changed", ())]
        for row in rows[:: max(1, len(rows) // SAMPLE)][:SAMPLE]:
            passes.setdefault((row["name"], row["form"]), []).append(name)
    return passes


# ---- tables --------------------------------------------------------------------------------------


def report(folder: Path) -> None:
    """Print what each optimisation changes; with PASSES_TIME=1 also what it is worth."""
    counts = shared("count")
    (folder / "counts.jsonl").write_text("\n".join(map(json.dumps, counts)))
    print_counts(counts)
    if os.environ.get("PASSES_TIME"):
        print_times(shared("time", folder / "counts.jsonl"))


def shared(part: str, *more: object) -> list[dict[str, Any]]:
    """Return the rows of all shares; seconds are measured by one process at a time."""
    many = len(os.sched_getaffinity(0)) if part == "count" else 1
    with ThreadPoolExecutor(many) as pool:
        shares = pool.map(lambda k: json_lines("passes", part, k, many, *more, timeout=36000),
                          range(many))
        return [row for rows in shares for row in rows]


def print_counts(counts: list[dict[str, Any]]) -> None:
    kinds = (*forms.FORMS, WRITTEN)
    built = [row for row in counts if "changed" in row]
    print(f"{len({row['name'] for row in counts})} programs, {len(built)} forms of them are built, "
          f"{len(counts) - len(built)} refused. Programs that each optimisation changes, in any "
          "form and in each:\n")

    def many(name: str, kind: str = "") -> int:
        return len({row["name"] for row in built
                    if name in row["changed"] and kind in ("", row["form"])})

    rows = [(name, many(name), *(many(name, kind) for kind in kinds))
            for name in compiler.OPTIMISATIONS]
    whole = [len({row["name"] for row in built if kind in ("", row["form"])})
             for kind in ("", *kinds)]
    table(["pass", "programs", *kinds],
          [*sorted(rows, key=lambda row: -row[1]), ("of so many", *whole)])
    for name, count, *_ in rows:
        if count <= 3:
            where = sorted({f"{row['name']} ({row['form']})" for row in built
                            if name in row["changed"]})
            print(f"- `{name}`: {', '.join(where) or 'nowhere'}")
    print(flush=True)


def print_times(times: list[dict[str, Any]]) -> None:
    """Print how many times as long, and as many bytes, without each pass: the best of all ranks."""
    rows = []
    for name in compiler.OPTIMISATIONS:
        mine = [row for row in times if row["pass"] == name]
        if not mine:
            continue
        slower = [max(row[str(n)]["without"] / row[str(n)]["with"] for n in RANKS) for row in mine]
        larger = [max(row[str(n)]["bytes without"] / max(1, row[str(n)]["bytes with"])
                      for n in RANKS) for row in mine]
        rows.append((name, len(mine), f"{statistics.median(slower):.2f}", f"{max(slower):.2f}",
                     f"{statistics.median(larger):.2f}", f"{max(larger):.2f}"))
    print(f"Without a pass over with it, the largest ratio of {RANKS} ranks, least of {ROUNDS}:\n")
    table(["pass", "forms timed", "time, median", "time, largest", "bytes, median",
           "bytes, largest"], rows)


def main(part: str, share: str, shares: str, counts: str = "") -> None:
    warnings.simplefilter("ignore")
    every = list(corpus())
    if part == "count":
        for form in every[int(share) :: int(shares)]:
            print(json.dumps(changed(form)), flush=True)
        return
    timeable = {(form.name, form.form): form for form in every if form.inputs is not None}
    rows = [json.loads(line) for line in open(counts)]
    wanted = sampled([row for row in rows if (row["name"], row["form"]) in timeable])
    for key, names in list(wanted.items())[int(share) :: int(shares)]:
        base = compiler.build(timeable[key].program(), {})
        for name in names:
            print(json.dumps(compared(timeable[key], name, base)), flush=True)


if __name__ == "__main__":
    main(*sys.argv[1:])
