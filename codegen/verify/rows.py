"""What a Plan says in prefix form: its exchanges as a table, what it asks of a mesh.

In: a Plan. Out: its ExchangeTable: a dict per exchange: who sends to whom, which boxes of which
buffers, inside which loops and branches; conditions and routes.
Always holds: an expression names coordinates, axis sizes, scalars, counters, the member; no C.
"""

from __future__ import annotations

import os
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from codegen.errors import Place
from codegen.ir.plan import Box, Branch, Default, Exchange, Load, Loop, Plan, Step
from codegen.ir.steps import is_asked
from codegen.symbolic.expr import Expr, Sym, to_json
from codegen.verify.exchange_table import ExchangeTable

Rows = Iterator[dict[str, Any]]


def table_of(plan: Plan) -> ExchangeTable:
    """Return the table of a Plan's exchanges, in program order."""
    said = _Said(plan.lets)
    return ExchangeTable(
        plan.mesh.names, [axis.coord_sym.name for axis in plan.mesh.axes],
        {s.name for s in plan.scalars}, [to_json(b.capacity) for b in plan.buffers],
        list(_rows(plan.steps, [], [], said)),
    )


class _Said:
    """Formulas in prefix form, in which a symbol that a `let` op defines is replaced by its
    formula. The formula is inserted without simplifying the result, which takes minutes where it is
    a table with many elements."""

    def __init__(self, lets: Mapping[Sym, Expr]) -> None:
        self.lets = {sym.name: e for sym, e in lets.items()}
        self.inner: dict[str, Any] = {}

    def __call__(self, e: Expr) -> Any:
        return self._without(to_json(e))

    def _without(self, said: Any) -> Any:
        if isinstance(said, list):
            return [said[0], *map(self._without, said[1:])]
        if not isinstance(said, str) or said not in self.lets:
            return said
        if said not in self.inner:
            self.inner[said] = self(self.lets[said])
        return self.inner[said]


def conditions_of(plan: Plan) -> list[dict[str, Any]]:
    """Return the conditions that hold on every mesh that a launch accepts."""
    return [{"holds": to_json(c.holds), "text": c.text, "place": line_of(c.place)}
            for c in plan.conditions]


def routes_of(plan: Plan) -> list[dict[str, Any]]:
    """Return the permutations that a launch tries at its own size."""
    return [{"member": r.member.name, "to": to_json(r.to), "sends": to_json(r.sends),
             "size": to_json(r.size), "text": r.text, "place": line_of(r.place)}
            for r in plan.routes]


def line_of(place: Place | None) -> str:
    return f"{os.path.basename(place.file)}:{place.line}" if place else ""


def _rows(
    steps: Sequence[Step], loops: list[Any], guards: list[Any], said: _Said
) -> Rows:
    for step in steps:
        if isinstance(step, Exchange):
            yield _row(step, loops, guards, said)
        elif isinstance(step, Loop):
            inside = [*loops, _loop(step, said)] if step.counter is not None else loops
            yield from _rows((*step.condition, *step.body), inside, guards, said)
        elif isinstance(step, Branch):
            on = step.on
            where = None if isinstance(on, Load) or is_asked(on) else said(on)
            for k, arm in enumerate(step.arms):
                yield from _rows(arm, loops, [*guards, [where, k, len(step.arms)]], said)
        elif isinstance(step, Default):
            yield from _rows(step.steps, loops, guards, said)


def _loop(step: Loop, said: _Said) -> list[Any]:
    assert step.counter is not None
    stop = None if step.stop is None else said(step.stop)
    return [step.counter.name, said(step.start), stop, said(step.step)]


def _row(x: Exchange, loops: list[Any], guards: list[Any], said: _Said) -> dict[str, Any]:
    return {
        "site": x.site,
        "kind": x.kind,
        "fn": x.fn,
        "axes": list(x.axes),
        "place": line_of(x.place),
        "member": x.member.name,
        "loops": list(loops),
        "guards": list(guards),
        "sends": _maybe(x.sends, said), "dest": _maybe(x.dest, said),
        "receives": _maybe(x.receives, said), "source": _maybe(x.source, said),
        "from": _box(x.pull_from, said), "into": _box(x.pull_into, said),
        "send": _box(x.send, said), "give": _box(x.give_into, said),
        "flow": x.flow, "root": _maybe(x.root, said),
        "wraps": said(x.wraps),
        "near": [[said(e) for e in ranges] for ranges in x.near],
    }


def _maybe(e: Expr | None, said: _Said) -> Any:
    return None if e is None else said(e)


def _box(box: Box | None, said: _Said) -> dict[str, Any] | None:
    if box is None:
        return None
    return {
        "buffer": box.buffer.number,
        "offset": said(box.offset),
        "extent": [said(e) for e in box.extent],
        "stride": [said(e) for e in box.stride],
        "names": [[s.name, said(e)] for s, e in box.names],
    }
