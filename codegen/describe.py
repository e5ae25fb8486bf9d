"""The manifest of an image: what ranks need (JSON), and the notes that only people read.

Goes in: a Plan and its C source. Comes out: plain dicts.
Always holds: no pickle, no path, no date; an Expr is written in prefix form.
"""

from __future__ import annotations

import os
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from codegen.explain.checking import shares
from codegen.explain.reasons import tables
from codegen.graph.image_constants import constant_places
from codegen.image.manifest import ENTRY, FORMAT, INTERFACE
from codegen.image.target import describe
from codegen.ir.exprs import exprs
from codegen.ir.graph import Entry, Feed
from codegen.ir.graph_text import module_text
from codegen.ir.overlays import overlays
from codegen.ir.plan import (
    Array,
    Buffer,
    Exchange,
    Expect,
    KernelCall,
    LibraryCall,
    More,
    Nest,
    Phase,
    Plan,
    Save,
    Send,
    Take,
)
from codegen.ir.plan_text import loops_text, plan_text
from codegen.ir.steps import (
    Operation,
    operations,
    simple_works,
    step_buffers,
    step_memory,
    work_buffers,
)
from codegen.layouts.independent_rows import IndependentRows
from codegen.plan.operation_graph import Act, OperationRow
from codegen.symbolic.expr import Expr, to_json
from codegen.verify.rows import conditions_of, line_of, routes_of

if TYPE_CHECKING:
    from codegen.compile import Levels


def manifest_of(
    plan: Plan, target: str, finished: Plan | None = None, graph: Sequence[OperationRow] = (),
    rows_of: Sequence[IndependentRows] = (),
) -> dict[str, Any]:
    """Return the manifest, which tells a runtime what it must know to run the image. finished: the
    same plan after hoisting, which says what is computed when. graph: the rows of the operation
    graph, to which the numbers under `rows` point; the notes hold the rows themselves. rows_of: of
    each entry, or of a program without entries, the dim along which calls may be joined."""
    steps = operations(plan.steps)
    rows = [_operation(k, step) for k, step in enumerate(steps)]
    if plan.checks:
        checking = shares(plan)
        for row, step in zip(rows, steps, strict=True):
            row["checking"] = round(checking.get(id(step), 0.0), 3)
    over = overlays(finished or plan)
    loaded = scalars_at_load(finished or plan)
    uses: dict[int, list[int]] = {}
    for row in rows:
        for number in row.get("buffers", ()):
            uses.setdefault(number, []).append(row["number"])
    return {
        "format": FORMAT,
        "interface": INTERFACE,
        "program": plan.name,
        "parameters": {k: _plain(v) for k, v in plan.parameters},
        "target": describe(target),
        "mesh": [{"name": a.name, "size": a.fixed} for a in plan.mesh.axes],
        "scalars": [
            {"name": s.name, "dtype": s.dtype.name, "default": s.default, "loads": s.name in loaded,
             **({} if s.at_most is None else {"at_most": s.at_most})} for s in plan.scalars
        ],
        "inputs": [_input(a) for a in plan.inputs],
        "outputs": [_output(a) for a in plan.outputs],
        "points": None if plan.points is None else [
            [_carried(a) for a in carried] for carried in plan.points],
        "feeds": [_feed(f, plan) for f in plan.feeds],
        "saves": [{**_array(s.array), "every": s.every} for s in plan.saves],
        "returns": plan.returns,
        "states": [{"input": s.input, "path": s.path, "new": s.new, "begins": s.begins}
                   for s in plan.states],
        "entries": [_entry(e) for e in plan.entries],
        "independent_rows": [_independent(rows) for rows in rows_of],
        "conditions": conditions_of(plan),
        "routes": routes_of(plan),
        "operations": rows,
        "buffers": [_buffer(b, uses, over.of[b.number]) for b in plan.buffers],
        "overlays": list(over.around),
        "constants": _constants(plan, steps),
        "libraries": [
            {"number": k, "source": routine.source, "routine": routine.name,
             **_calls_of(k, steps, graph)}
            for k, routine in enumerate(plan.libraries)
        ],
        "kernels": [{"symbol": symbol, "name": kernel.name, "file": _file_of(kernel),
                     **_calls_of(symbol, steps, graph)} for symbol, (kernel, _) in plan.kernels],
        "streams": 1 + max((row.stream for row in graph), default=0),
        "checks": list(plan.checks),
    } | ({} if plan.position is None else {"position": plan.position})


def _constants(plan: Plan, steps: Sequence[Any]) -> list[dict[str, Any]]:
    memory = [{id(b) for b in step_memory(step)} for step in steps]
    return [{"number": c.number, "name": c.name, "dtype": c.dtype.name, "offset": offset,
             "bytes": c.data.nbytes, "operations": [
                k for k, touched in enumerate(memory) if id(c) in touched]}
            for c, offset in constant_places(plan)]


def scalars_at_load(plan: Plan) -> set[str]:
    """Return the names of the scalars on which more depends than what a run computes: memory,
    shapes, who sends what to whom. A loaded job reads all others as a run begins."""
    if plan.feeds or plan.points:
        return {s.name for s in plan.scalars} - {ENTRY}
    arrays = (*plan.inputs, *plan.outputs, *(s.array for s in plan.saves))
    formulas: list[Expr] = [*plan.at_load.values(), *(b.capacity for b in plan.buffers)]
    formulas += [e for a in arrays
                 for e in (*a.shape, *(e for pair in a.part + a.room for e in pair))]
    formulas += [c.holds for c in plan.conditions]
    formulas += [e for r in plan.routes for e in (r.to, r.sends, r.size)]
    formulas += [e for x in operations(plan.steps) if isinstance(x, Exchange) for e in exprs(x)]
    return {sym.name for e in formulas for sym in e.symbols()
            if sym.kind in ("scalar", "extent")}


def notes_of(levels: Levels) -> dict[str, Any]:
    """Return every level as text, and the source lines they came from."""
    return {
        "graph": module_text(levels.graph),
        "program": module_text(levels.program),
        "loops": loops_text(levels.loops),
        "plan": plan_text(levels.finished),
        "c": levels.source.text,
        "load": [[s.name, to_json(e)] for s, e in levels.finished.at_load.items()],
        "coordinates": list(levels.exchanges.coordinates),
        "exchanges": [row.said for row in levels.exchanges.rows],
        "operations": [_row(row) for row in levels.operations],
        **tables(levels),
        **levels.graph.notes,
    }


def _file_of(kernel: Any) -> str:
    """Return the name of the file that a kernel is written in; "" where it has none."""
    place = getattr(kernel, "place", None)
    return os.path.basename(place.file) if place else ""


def _calls_of(
    key: int | str, steps: Sequence[Operation], graph: Sequence[OperationRow]
) -> dict[str, Any]:
    """Return the operations in which a routine, by its number, or a kernel, by its symbol, is
    called, the buffers that it is handed there, and the rows of the graph; constants are no
    buffers."""
    calls = [(k, work) for k, step in enumerate(steps) if isinstance(step, Phase)
             for work in simple_works(step) if _calls(work, key)]
    handed = {b.number for _, work in calls for b in work_buffers(work) if b.data is None}
    return {"operations": sorted({k for k, _ in calls}), "buffers": sorted(handed),
            "rows": [row.number for row in graph if _calls(row.act, key)]}


def _calls(act: Act, key: int | str) -> bool:
    if isinstance(act, LibraryCall):
        return key in act.routines
    return isinstance(act, KernelCall) and act.symbol == key


def _row(row: OperationRow) -> dict[str, Any]:
    """Return a row of the operation graph."""
    said: dict[str, Any] = {"number": row.number, "kind": row.kind, "waits": list(row.waits),
                            "stream": row.stream, "reads": sorted(row.reads),
                            "writes": sorted(row.writes)}
    if row.region is not None:
        said["region"] = list(row.region)
    if row.step is not None:
        said["operation"] = row.step
    if row.place is not None:
        said |= {"place": line_of(row.place), "text": row.place.source_line().strip()}
    match row.act:
        case LibraryCall():
            said["libraries"] = list(row.act.routines)
        case KernelCall():
            said["kernel"] = row.act.symbol
        case Exchange():
            said |= {"exchange": row.act.kind, "axes": list(row.act.axes)}
        case Take() | More() | Send():
            said["feed"] = row.act.feed
    return said


def _operation(number: int, step: Operation) -> dict[str, Any]:
    """Return the manifest's row of a step that a rank can be at."""
    row: dict[str, Any] = {"number": number, "kind": "compute"}
    if step.place is not None:
        row["place"] = line_of(step.place)
        row["text"] = step.place.source_line().strip()
    row["buffers"] = sorted({b.number for b in step_buffers(step)})
    match step:
        case Exchange():
            row |= {"kind": step.kind, "site": step.site, "axes": list(step.axes)}
        case Take() | More() | Send():
            row |= {"kind": type(step).__name__.lower(), "feed": step.feed}
        case Save():
            row |= {"kind": "save"}
        case Expect():
            row |= {"kind": "expect", "check": step.check}
        case Phase():
            row["phase"] = step.name
            works = simple_works(step)
            parts = [p for w in works for p in (w.parts if isinstance(w, Nest) else (w,))]
            if lines := sorted({p.place.line for p in parts if p.place}):
                row["lines"] = [lines[0], lines[-1]]
            row["libraries"] = sorted({k for w in works if isinstance(w, LibraryCall)
                                       for k in w.routines})
            row["kernels"] = sorted({w.symbol for w in works if isinstance(w, KernelCall)})
    return row


def _plain(value: Any) -> Any:
    return value if isinstance(value, (bool, int, float, str, type(None))) else repr(value)


def _array(a: Array) -> dict[str, Any]:
    return {
        "name": a.name,
        "dtype": a.dtype.name,
        "shape": [to_json(e) for e in a.shape],
        "layout": [list(entry) for entry in a.layout],
        "buffer": a.buffer.number,
    }


def _input(a: Array) -> dict[str, Any]:
    """Return the manifest's row of an input. optional: the name of it, or of its tree, where calls
    may leave it out."""
    optional = {"optional": a.needs[0]} if a.flag else {}
    return {**_array(a), "default": a.default, **optional}


def _output(a: Array) -> dict[str, Any]:
    """Return the manifest's row of an output. needs: the optional inputs, or trees of them, without
    which calls do not compute it. selectable: calls that do not ask for it do not compute it."""
    needs = {"needs": list(a.needs)} if a.needs else {}
    return {**_array(a), **needs, **({"selectable": True} if a.flag else {})}


def _carried(a: Array) -> dict[str, Any]:
    """Return the row of an array that a loop carries; without a shape and a layout, if it is a
    rank's alone."""
    row = _array(a)
    return {**row, "shape": None, "layout": None} if a.own else row


def _entry(e: Entry) -> dict[str, Any]:
    where = {"place": line_of(e.place)} if e.place else {}
    return {"name": e.name, **where, "inputs": list(e.inputs), "outputs": list(e.outputs),
            "reads": list(e.reads), "rebinds": list(e.rebinds),
            "updates": list(e.updates), "scalars": list(e.scalars),
            "feeds": list(e.feeds), "saves": list(e.saves), "returns": e.returns}


def _independent(rows: IndependentRows) -> dict[str, Any]:
    """Return the dim whose rows are independent, or why none is, and where in the source that is
    seen."""
    if rows.dim:
        return {"dim": rows.dim}
    where = {"place": line_of(rows.place), "text": rows.place.source_line().strip()}  \
        if rows.place else {}
    return {"because": rows.because, **where}


def _feed(feed: Feed, plan: Plan) -> dict[str, Any]:
    """Return the manifest's row of a feed: its fields, and the takes and sends of it, by their
    numbers in the image."""
    where = {"place": line_of(feed.place)} if feed.place else {}
    return {
        "name": feed.name, **where,
        "fields": [
            {"name": name, "dtype": t.dtype.name, "shape": [to_json(e) for e in t.shape],
             "layout": [list(entry) for entry in t.layout or ()]}
            for name, t in feed.fields
        ],
        "takes": [{"number": k, "buffers": [a.buffer.number for a in h.arrays]}
                  for k, h in enumerate(plan.takes) if h.feed == feed.name],
        "sends": [{"number": k, "fields": [_array(a) for a in h.arrays]}
                  for k, h in enumerate(plan.sends) if h.feed == feed.name],
    }


def _buffer(b: Buffer, uses: dict[int, list[int]], overlay: int) -> dict[str, Any]:
    size: Expr = b.capacity * b.dtype.size
    return {
        "number": b.number,
        "name": b.name,
        "dtype": b.dtype.name,
        "bytes": to_json(size),
        "overlay": overlay,
        "operations": uses.get(b.number, []),
    }
