"""The manifest of an image: what ranks need (JSON), and the notes that only people read.

Goes in: a Plan and its C source. Comes out: plain dicts.
Always holds: no pickle, no path, no date; an Expr is written in prefix form.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from codegen.emit.image import Source
from codegen.errors import Place
from codegen.explain.tables import tables
from codegen.image.manifest import FORMAT, INTERFACE
from codegen.image.target import describe
from codegen.plan.grammar import Array, Buffer, Plan
from codegen.plan.text import loops_text, plan_text
from codegen.printer import module_text
from codegen.symbolic.expr import Expr, to_json

if TYPE_CHECKING:
    from codegen.compile import Levels


def manifest_of(plan: Plan, source: Source, target: str) -> dict[str, Any]:
    """What a runtime must know before and while it runs the image."""
    uses: dict[int, list[int]] = {}
    for row in source.operations:
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
            {"name": s.name, "dtype": s.dtype.name, "default": s.default} for s in plan.scalars
        ],
        "inputs": [{**_array(a), "default": a.default} for a in plan.inputs],
        "outputs": [_array(a) for a in plan.outputs],
        "returns": plan.returns,
        "conditions": [
            {"holds": to_json(c.holds), "text": c.text, "place": _place(c.place)}
            for c in plan.conditions
        ],
        "routes": [
            {"member": r.member.name, "to": to_json(r.to), "sends": to_json(r.sends),
             "size": to_json(r.size), "text": r.text, "place": _place(r.place)}
            for r in plan.routes
        ],
        "operations": list(source.operations),
        "buffers": [_buffer(b, uses) for b in plan.buffers],
        "libraries": [
            {"number": k, "routine": name,
             "operations": [r["number"] for r in source.operations if k in r.get("libraries", ())]}
            for k, name in enumerate(plan.libraries)
        ],
        "streams": 1,
        "checks": list(plan.checks),
    }  # fmt: skip


def notes_of(levels: Levels) -> dict[str, Any]:
    """Every level as text, and the source lines they came from."""
    return {
        "graph": module_text(levels.graph),
        "program": module_text(levels.program),
        "loops": loops_text(levels.loops),
        "plan": plan_text(levels.plan),
        "c": levels.source.text,
        "load": [[name, to_json(e)] for name, e in levels.source.at_load],
        "coordinates": list(levels.exchanges.coordinates),
        "exchanges": [row.said for row in levels.exchanges.rows],
        **tables(levels),
    }


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


def _buffer(b: Buffer, uses: dict[int, list[int]]) -> dict[str, Any]:
    size: Expr = b.capacity * b.dtype.size
    return {
        "number": b.number,
        "name": b.name,
        "dtype": b.dtype.name,
        "bytes": to_json(size),
        "operations": uses.get(b.number, []),
    }


def _place(place: Place | None) -> str:
    return f"{os.path.basename(place.file)}:{place.line}" if place else ""
