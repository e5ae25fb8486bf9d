"""The exchanges of a Plan on a sample of meshes: what every build checks.

In: a Plan. Out: its table of exchanges, or an InternalError that names the exchange, its line, the
mesh, both ranks and what each of them says.
Always holds: a mesh is tried only if a launch would accept it; no exchange is left out because of
who made it.
"""

from __future__ import annotations

from collections.abc import Iterator
from math import prod

from codegen.errors import InternalError
from codegen.image.conditions import broken_condition, broken_route
from codegen.image.manifest import ENTRY
from codegen.ir.plan import Exchange, Let, Plan
from codegen.ir.steps import walk_steps
from codegen.symbolic.facts import Values, candidates, environments
from codegen.symbolic.meaning import names_in
from codegen.verify.exchange_table import ExchangeTable, Mismatch
from codegen.verify.rows import conditions_of, routes_of, table_of
from codegen.verify.small import check

ALL_UP_TO = 8  # ranks: all meshes of so many are looked at
ACCEPTED = 3  # meshes that a launch accepts: if those are fewer, larger ones are looked at too,
LARGEST = 64  # of up to so many ranks
PAIRS = 1 << 16  # of members of one exchange on all these meshes; of more, a sample


def check_exchanges(plan: Plan) -> ExchangeTable:
    """Return the table of a Plan's exchanges. Raise InternalError for the first one whose members
    disagree on a mesh of the sample."""
    table = table_of(plan)
    meshes = list(sample(plan, table))
    try:
        if meshes:
            check(table, meshes, PAIRS, at_build=True)
    except Mismatch as wrong:
        step = next(s for s in walk_steps(plan.steps)
                    if isinstance(s, Exchange) and s.site == wrong.row.site)
        raise InternalError.of_rule(wrong.title, step.place, wrong.found, wrong.expected) from None
    return table


def sample(plan: Plan, table: ExchangeTable) -> Iterator[Values]:
    """Yield, for each mesh of a sample, the values that are the same on all its ranks: sizes,
    scalars, and values that the program computes."""
    conditions, routes = conditions_of(plan), routes_of(plan)
    used = names_in(*(c["holds"] for c in conditions),
                    *(r[part] for r in routes for part in ("to", "sends", "size")))
    used |= set[str]().union(*(row.used for row in table.rows))
    lets = [s.counter for s in walk_steps(plan.steps) if isinstance(s, Let)]
    scalars = {s.sym: s.default for s in plan.scalars if s.sym is not None}
    numbers = [sym for sym in (*scalars, *lets) if sym.name in used and sym.name != ENTRY]
    entries = [{ENTRY: k} for k in range(len(plan.entries))] if ENTRY in used else [{}]
    bounded = any(s.at_most is not None and s.name in used for s in plan.scalars)
    accepted = tried = 0
    for sizes in _meshes(plan):
        if accepted >= ACCEPTED and prod(sizes[a.size_name] for a in plan.mesh.axes) > ALL_UP_TO:
            return
        for turn in range(1 + bool(numbers) + 2 * bounded):
            values = {**sizes, **{s.name: d for s, d in scalars.items() if isinstance(d, int)}}
            for k, sym in enumerate(numbers):
                if turn or sym.name not in values:
                    values_of = candidates(sym, values)
                    values[sym.name] = values_of[(tried + k) % len(values_of)] if values_of else 0
            tried += 1
            if not (broken_condition(conditions, values) or broken_route(routes, values)):
                accepted += 1
                yield from ({**values, **entry} for entry in entries)


def _meshes(plan: Plan) -> Iterator[Values]:
    """Yield the sizes of all axes, for the smallest meshes first."""
    free = {a.size_sym for a in plan.mesh.axes if a.fixed is None}
    for sizes in environments(free, None, LARGEST):
        yield {**sizes, **{a.size_name: a.size.evaluate(sizes) for a in plan.mesh.axes}}

