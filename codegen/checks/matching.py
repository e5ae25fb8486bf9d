"""Sends and receives that match, extents that fit, boxes in bounds: proved, or tried.

In: a Program. Out: the same, with conditions on sizes that its permutes need at launch. Raises
MatchingError for what the user stated, InternalError for what the compiler derived from it.
Always holds: every op has claimed what the rule of its kind says, with what is known around it.
"""

from __future__ import annotations

from dataclasses import replace

from codegen.checks.claims import Claims, where
from codegen.errors import LayoutError
from codegen.ir.graph import Module, Op, Region, Shape, Value, layout_text
from codegen.ir.graph_text import axes_text, user_text
from codegen.mesh import Layout, local_extent
from codegen.ops import Branch, Loop
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr, const
from codegen.symbolic.facts import Facts
from codegen.symbolic.sampling import first_failure


def check(program: Module) -> Module:
    """Return the Program with the conditions that a launch must test. Raises MatchingError,
    LayoutError or InternalError at the first op that is wrong."""
    claims = Claims(program)
    facts = claims.facts
    for i in program.inputs:
        _blocks(claims, facts, i.value, i.layout, i.shape, f'input "{i.name}"')
        if i.default is not None:
            _region(claims, i.default, facts)
    _region(claims, program.body, facts)
    for o in program.outputs:
        _blocks(claims, facts, o.value, o.layout, o.shape, f'output "{o.name}"')
    new = tuple(claims.conditions.values())
    if not new and not claims.routes:
        return program
    return replace(program, conditions=program.conditions + new, routes=tuple(claims.routes))


def _region(claims: Claims, region: Region, facts: Facts) -> None:
    for op in region.ops:
        claims.of(op, facts)
        for k, inner in enumerate(op.regions):
            fact = _fact(op, k)
            if fact != 0:
                _region(claims, inner, facts if fact == 1 else (*facts, fact))


def _fact(op: Op, k: int) -> Expr:
    """Return a condition that holds in region k of an op: the loop makes a turn, or the branch
    takes this arm. It is 1 if nothing is known, 0 if the region never runs."""
    kind, last = op.kind, len(op.regions) - 1
    if isinstance(kind, Loop):
        if k < last or kind.stop is None or not kind.step.is_const:
            return const(1)
        more = kind.stop - kind.start
        return expr.ge(more if kind.step.value > 0 else -more, 1)
    if not isinstance(kind, Branch) or kind.on is None:
        return const(1)
    if k == 0 and last:
        return expr.le(kind.on, 0)
    return expr.ge(kind.on, k) if k == last else expr.eq(kind.on, k)


def _blocks(
    claims: Claims, facts: Facts, value: Value, layout: Layout, shape: Shape, title: str
) -> None:
    """Raise LayoutError unless a rank holds its balanced block of every dim of an input or
    output."""
    mesh = claims.mesh
    axes = [a for entry in layout for a in entry]
    if len(set(axes)) < len(axes) or not set(axes) <= set(mesh.names):
        raise LayoutError(
            f"{title} has the layout {layout_text(layout)}, which is illegal",
            expected="axes of the mesh, each for one dim only",
        )
    for d, (extent, entry) in enumerate(zip(shape, layout, strict=True)):
        want, have = local_extent(mesh, extent, entry), value.type.shape[d]
        failure = None if want == have else first_failure(("equal", want - have), facts, ())
        if failure is not None:
            raise LayoutError(
                f"{title}: dim {d} is not split into balanced blocks over "
                f"{axes_text(entry) or 'no axis'}",
                expected=f"local extent {user_text(mesh, want)}",
                found=f"{user_text(mesh, have)} ({where(failure)})",
                remedy="return a part of the extent of an argument's shard",
            )
