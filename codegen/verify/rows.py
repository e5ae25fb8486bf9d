"""What a Plan says in prefix form: its exchanges as a table, what it asks of a mesh.

In: a Plan. Out: its ExchangeTable: a dict per exchange: who sends to whom, which boxes of which
buffers, inside which loops and branches; conditions and routes.
Always holds: an expression names coordinates, axis sizes, scalars, counters, the member; no C.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from codegen.errors import Place
from codegen.plan.exprs import mapped
from codegen.plan.grammar import Box, Branch, Default, Exchange, Load, Loop, Plan, Step
from codegen.plan.steps import is_asked
from codegen.symbolic.expr import Expr, to_json
from codegen.verify.exchange_table import ExchangeTable

Rows = Iterator[dict[str, Any]]


def table_of(plan: Plan) -> ExchangeTable:
    """Its exchanges, in the order of the program."""
    return ExchangeTable(
        plan.mesh.names, [axis.coord_sym.name for axis in plan.mesh.axes],
        {s.name for s in plan.scalars}, [to_json(b.capacity) for b in plan.buffers],
        list(_rows(plan.steps, [], [], lambda e: e.subst(plan.lets))),
    )


def conditions_of(plan: Plan) -> list[dict[str, Any]]:
    """What holds on every mesh that a launch accepts."""
    return [{"holds": to_json(c.holds), "text": c.text, "place": line_of(c.place)}
            for c in plan.conditions]


def routes_of(plan: Plan) -> list[dict[str, Any]]:
    """Permutations that a launch tries."""
    return [{"member": r.member.name, "to": to_json(r.to), "sends": to_json(r.sends),
             "size": to_json(r.size), "text": r.text, "place": line_of(r.place)}
            for r in plan.routes]


def line_of(place: Place | None) -> str:
    return f"{os.path.basename(place.file)}:{place.line}" if place else ""


def _rows(
    steps: Sequence[Step], loops: list[Any], guards: list[Any], known: Callable[[Expr], Expr]
) -> Rows:
    """known: a formula without the symbols that it has for what the program computes, where that
    follows from one."""
    for step in steps:
        if isinstance(step, Exchange):
            yield _row(mapped(step, known), loops, guards)
        elif isinstance(step, Loop):
            inside = [*loops, _loop(step, known)] if step.counter is not None else loops
            yield from _rows((*step.condition, *step.body), inside, guards, known)
        elif isinstance(step, Branch):
            on = step.on
            said = None if isinstance(on, Load) or is_asked(on) else to_json(known(on))
            for k, arm in enumerate(step.arms):
                yield from _rows(arm, loops, [*guards, [said, k, len(step.arms)]], known)
        elif isinstance(step, Default):
            yield from _rows(step.steps, loops, guards, known)


def _loop(step: Loop, known: Callable[[Expr], Expr]) -> list[Any]:
    assert step.counter is not None
    stop = None if step.stop is None else to_json(known(step.stop))
    return [step.counter.name, to_json(known(step.start)), stop, to_json(known(step.step))]


def _row(x: Exchange, loops: list[Any], guards: list[Any]) -> dict[str, Any]:
    return {
        "site": x.site,
        "kind": x.kind,
        "fn": x.fn,
        "axes": list(x.axes),
        "place": line_of(x.place),
        "member": x.member.name,
        "loops": list(loops),
        "guards": list(guards),
        "sends": _maybe(x.sends), "dest": _maybe(x.dest),
        "receives": _maybe(x.receives), "source": _maybe(x.source),
        "from": _box(x.pull_from), "into": _box(x.pull_into), "send": _box(x.send),
        "give": _box(x.give_into), "flow": x.flow, "root": _maybe(x.root),
        "wraps": to_json(x.wraps),
        "near": [[to_json(e) for e in ranges] for ranges in x.near],
    }


def _maybe(e: Expr | None) -> Any:
    return None if e is None else to_json(e)


def _box(box: Box | None) -> dict[str, Any] | None:
    if box is None:
        return None
    return {
        "buffer": box.buffer.number,
        "offset": to_json(box.offset),
        "extent": [to_json(e) for e in box.extent],
        "stride": [to_json(e) for e in box.stride],
        "names": [[s.name, to_json(e)] for s, e in box.names],
    }
