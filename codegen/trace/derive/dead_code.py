"""Leave out ops that no result needs: of what is recorded for a derivative, these may be most.

Always holds: what a user sees, prints and conditions, stays; so do feeds, and what ranks wait for.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import replace

from codegen.ir.graph import Keeps, Op, Region, Value, free_values, walk
from codegen.ops import Barrier, Branch, Defined, Expect, Feeding, Let, Loop, Print

EFFECTS = (Print, Expect, Barrier, Let, Feeding)


def pruned(region: Region) -> Region:
    """Return the region without ops that its results do not need."""
    return region.with_ops(needed(region.ops, region.results))


def needed(ops: Sequence[Op], results: Iterable[Value]) -> list[Op]:
    """Return the ops that the results need, and those that have an effect."""
    wanted, kept = set(results), []
    for op in reversed(ops):
        if not op.results or wanted.intersection(op.results) or has_effect(op):
            op = _slim(op, wanted)
            wanted.update(op.operands)
            for inner in op.regions:
                wanted.update(free_values(inner))
            kept.append(op)
    return kept[::-1]


def has_effect(op: Op) -> bool:
    return isinstance(op.kind, EFFECTS) or any(
        has_effect(inner) for region in op.regions for inner in region.ops
    )


def _slim(op: Op, wanted: set[Value]) -> Op:
    if isinstance(op.kind, Loop):
        return _loop(op, wanted)
    if isinstance(op.kind, Branch):
        return _branch(op, wanted)
    return op.mapped(pruned)


def _branch(op: Op, wanted: set[Value]) -> Op:
    kept = [k for k, v in enumerate(op.results) if v in wanted]
    arms = tuple(
        pruned(replace(arm, results=tuple(arm.results[k] for k in kept))) for arm in op.regions
    )
    kind = op.kind.but(types=tuple(op.kind.types[k] for k in kept))  # type: ignore[attr-defined]
    return replace(op, kind=kind, results=tuple(op.results[k] for k in kept), regions=arms)


def _loop(op: Op, wanted: set[Value]) -> Op:
    """Return the loop with only those carried values that wanted results, its condition or effects
    need."""
    kept = {k for k, v in enumerate(op.results) if v in wanted}
    while True:
        slim = [_carrying(region, kept, k == len(op.regions) - 1)
                for k, region in enumerate(op.regions)]
        read = {v for region in slim for v in _read(region)}
        now = kept | {k for region in op.regions for k, a in enumerate(region.args) if a in read}
        if now == kept:
            break
        kept = now
    order = sorted(kept)
    regions = tuple(replace(r, args=tuple(whole.args[k] for k in order))
                    for r, whole in zip(slim, op.regions, strict=True))
    return replace(op, operands=tuple(op.operands[k] for k in order),
                   results=tuple(op.results[k] for k in order), regions=regions)


def _carrying(region: Region, kept: set[int], body: bool) -> Region:
    results = tuple(region.results[k] for k in sorted(kept)) if body else region.results
    return pruned(replace(region, results=results))


def _read(region: Region) -> set[Value]:
    return set(free_values(replace(region, args=())))


def kept_by(region: Region, keeps: Iterable[Keeps]) -> tuple[Keeps, ...]:
    """Return, of the values that backward passes keep, those of this region. Where an Again op
    stands for a value, it is the op's operand that is kept."""
    producers = {v: op for op in walk(region) for v in op.results}
    kept = []
    for some in keeps:
        values = [v for v in some.values if v in producers]
        if some.turns is None:
            values = [producers[v].operands[0] for v in values]
        if values:
            kept.append(replace(some, values=tuple(dict.fromkeys(values))))
    return tuple(kept)


def without_defined(region: Region) -> Region:
    """Return the region with each Defined op, which only says how to differentiate, replaced by its
    body."""
    instead: dict[Value, Value] = {}

    def through(region: Region) -> Region:
        ops: list[Op] = []
        for op in region.ops:
            op = replace(op, operands=tuple(instead.get(v, v) for v in op.operands))
            op = op.mapped(through)
            if isinstance(op.kind, Defined):
                ops += op.regions[0].ops
                instead.update(zip(op.results, op.regions[0].results))
            else:
                ops.append(op)
        results = tuple(instead.get(v, v) for v in region.results)
        return Region(region.args, tuple(ops), results)

    return through(region)
