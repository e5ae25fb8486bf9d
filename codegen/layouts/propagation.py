"""The layout of an operation's result, where nobody says one: it follows from the operands.

Goes in: the kind of an op, the types of its operands, its attrs, its result without a layout.
Comes out: the result with one. A literal is free: it takes on whatever layout others have.
Always holds: no mesh axis stands in two entries of a layout.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from codegen.ir import ArrayType
from codegen.layouts import reshapes
from codegen.mesh import Layout, LayoutEntry

Types = Sequence[ArrayType]
Attrs = Mapping[str, Any]


def laid_out(kind: str, operands: Types, attrs: Attrs, result: ArrayType) -> ArrayType:
    """The result's type with a layout; 0-d ones need none."""
    if not result.ndim or result.layout is not None:
        return result
    rule = _RULES.get(kind)
    entries = rule(operands, attrs, result) if rule else [()] * result.ndim
    free = all(t.free or not t.ndim for t in operands) and kind != "relayout"
    return replace(result, layout=without_repeats(entries), free=free)


def without_repeats(entries: Iterable[LayoutEntry]) -> Layout:
    """Each axis where it stands first."""
    seen: set[str] = set()
    out = []
    for entry in entries:
        kept = tuple(a for a in entry if a not in seen)
        seen.update(kept)
        out.append(kept if kept == entry else ())
    return tuple(out)


def joined(layouts: Sequence[Layout]) -> Layout:
    """One layout for arrays of one shape: what is split in one of them, most split ones first; of
    equals, what is split in outer dims: inner ones are reduced more often, and lie contiguous."""

    def split(entries: Layout) -> tuple[int, list[int]]:
        dims = [d for d, entry in enumerate(entries) if entry]
        return -len(dims), dims

    ordered = sorted(layouts, key=split)
    out = list(ordered[0])
    for layout in ordered[1:]:
        used = {a for entry in out for a in entry}
        for d, entry in enumerate(layout):
            if not out[d] and not used & set(entry):
                out[d] = entry
                used |= set(entry)
    return tuple(out)


def met(a: ArrayType, b: ArrayType) -> ArrayType:
    """The type for one and the other, which differ in their layouts at most: what is carried, or
    comes from one arm or another. A chosen layout wins over a free one."""
    if not a.layout or not b.layout:
        return a if a.layout else b
    if a.free != b.free:
        return b if a.free else a
    return replace(a, layout=joined([a.layout, b.layout]))


def of(t: ArrayType) -> Layout:
    return t.layout or ((),) * t.ndim


# ---- rules ---------------------------------------------------------------------------------------


def _map(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    return joined([of(t) for t in operands])


def _broadcast(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    (x,) = operands
    entries: list[LayoutEntry] = [()] * result.ndim
    for d, e, entry in zip(attrs["dims"], x.shape, of(x), strict=True):
        if e != 1 or result.shape[d] == 1:
            entries[d] = entry
    return tuple(entries)


def _slice(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    return tuple(() if e == 1 else entry for e, entry in zip(result.shape, of(operands[0])))


def _dynamic_slice(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    x = operands[0]
    kept = zip(result.shape, x.shape, of(x), strict=True)
    return tuple(entry if m == e else () for m, e, entry in kept)


def _transpose(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    return tuple(of(operands[0])[d] for d in attrs["perm"])


def _reshape(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    return reshapes.layout(operands[0].shape, result.shape, of(operands[0]))


def _first(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    return of(operands[0])


def _update(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    x, v = operands[:2]
    return of(v) if x.free and v.ndim == x.ndim else of(x)


def _gather(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    x, index = operands[0], operands[1]
    rest = [entry for d, entry in enumerate(of(x)) if d not in attrs["dims"]]
    at = attrs["at"]
    return (*rest[:at], *of(index), *rest[at:])


def _reduce(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    gone = attrs["dims"] if "dims" in attrs else (attrs["dim"],)
    return tuple(entry for d, entry in enumerate(of(operands[0])) if d not in gone)


def _lane(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    return tuple(() if d == attrs["dim"] else entry for d, entry in enumerate(of(operands[0])))


def _matmul(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    a, b = map(of, operands)
    batch = joined([a[:-2], b[:-2]]) if a[:-2] else ()
    return (*batch, a[-2], b[-1])


def _relayout(operands: Types, attrs: Attrs, result: ArrayType) -> Layout:
    layout: Layout = attrs["layout"]
    return layout


_RULES: dict[str, Callable[[Types, Attrs, ArrayType], Layout]] = {
    "map": _map, "broadcast": _broadcast, "slice": _slice, "dynamic_slice": _dynamic_slice,
    "transpose": _transpose, "reshape": _reshape, "update": _update, "dynamic_update": _update,
    "scatter": _first, "cumulative": _first, "roll": _first, "edge": _first, "gather": _gather,
    "reduce": _reduce, "argreduce": _reduce, "sort": _lane, "argsort": _lane, "matmul": _matmul,
    "relayout": _relayout,
}  # fmt: skip
