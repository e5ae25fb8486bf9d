"""What every exchange op gives its members, in NumPy: one rule per row of codegen.ops.

A rule takes the members of a group in the order of their positions; it gives each one's results.
Always holds: a permute looks only at `to` and `sends`, so that it checks `source` and `receives`;
offsets that an op states must be those that the members' extents give, or InternalError.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import InternalError, MatchingError
from codegen.expr import IntLike, as_expr
from codegen.functions import neutral
from codegen.ir import Op
from codegen.ops.kind import Array, Eval, extents
from codegen.ops.reductions import combine


@dataclass
class Member:
    operands: list[Array]
    env: Mapping[str, int]
    value: Eval  # of Exprs in these symbols

    def eval(self, e: IntLike, **more: int) -> int:
        return as_expr(e).evaluate({**self.env, **more}) if more else self.value(e)


Exchange = Callable[[Sequence[Member], Op], list[list[Array]]]


def _permute(members: Sequence[Member], op: Op) -> list[list[Array]]:
    var = op.attrs["var"].name
    (stated,) = op.attrs["types"]
    sender: dict[int, int] = {}
    for k, member in enumerate(members):
        if not member.eval(op.attrs["sends"], **{var: k}):
            continue
        to = member.eval(op.attrs["to"], **{var: k})
        if not 0 <= to < len(members):
            raise MatchingError(
                f"with {len(members)} ranks, rank {k} sends to {to}, which does not exist",
                place=op.place,
            )
        if to in sender:
            raise MatchingError(
                f"with {len(members)} ranks, ranks {sender[to]} and {k} both send to {to}",
                place=op.place,
            )
        sender[to] = k
    out = []
    for k, member in enumerate(members):
        if k in sender:
            out.append([members[sender[k]].operands[0].copy()])
        else:
            shape = extents(stated.shape, member.value)
            out.append([np.zeros(shape, dtypes.numpy_dtype(stated.dtype))])
        _solved(op, member, var, k, sender.get(k))
    return out


def _solved(op: Op, member: Member, var: str, position: int, sender: int | None) -> None:
    """The solved inverse must name the member that really sends here."""
    receives, source = op.attrs["receives"], op.attrs["source"]
    if receives is None or source is None:
        return
    says = member.eval(source, **{var: position}) if (
        member.eval(receives, **{var: position})) else None  # fmt: skip
    if says != sender:
        raise InternalError(
            f"the solved source of member {position} is {says}, and it receives from {sender}",
            place=op.place,
        )


def _total(members: Sequence[Member], op: Op) -> Array:
    arrays = [m.operands[0] for m in members]
    if any(a.shape != arrays[0].shape for a in arrays):
        raise MatchingError(
            f"{op.kind}: the members' arrays differ in shape", place=op.place,
            found=", ".join(str(a.shape) for a in arrays),
        )  # fmt: skip
    ufunc = combine(op.attrs["fn"])
    total = arrays[0]
    for a in arrays[1:]:
        total = ufunc(total, a).astype(total.dtype)
    return total.copy()


def _all_reduce(members: Sequence[Member], op: Op) -> list[list[Array]]:
    total = _total(members, op)
    return [[total.copy()] for _ in members]


def _joined(members: Sequence[Member], op: Op, parts: Sequence[Array], dim: int, at: int) -> Array:
    """The parts one after the other along dim, as member `at` sees them and their offsets."""
    first = 0
    for k, part in enumerate(parts):
        stated = members[at].eval(op.attrs["offset"], **{op.attrs["var"].name: k})
        if part.shape[dim] and stated != first:
            raise InternalError(
                f"{op.kind}: member {k}'s part begins at {first}, the op says {stated}",
                place=op.place,
            )
        first += part.shape[dim]
    return np.concatenate(parts, axis=dim)


def _all_gather(members: Sequence[Member], op: Op) -> list[list[Array]]:
    parts = [m.operands[0] for m in members]
    return [[_joined(members, op, parts, op.attrs["dim"], k)] for k in range(len(members))]


def _reduce_scatter(members: Sequence[Member], op: Op) -> list[list[Array]]:
    total = _total(members, op)
    parts = np.array_split(total, len(members), axis=op.attrs["dim"])
    return [[p.copy()] for p in parts]


def _all_to_all(members: Sequence[Member], op: Op) -> list[list[Array]]:
    split, concat = op.attrs["split"], op.attrs["concat"]
    pieces = [np.array_split(m.operands[0], len(members), axis=split) for m in members]
    return [
        [_joined(members, op, [from_[k] for from_ in pieces], concat, k)]
        for k in range(len(members))
    ]


def _redistribute(members: Sequence[Member], op: Op) -> list[list[Array]]:
    """Every element from the member that holds it; what nobody holds is nobody's."""
    have = [[(m.eval(a), m.eval(b)) for a, b in op.attrs["have"]] for m in members]
    (stated,) = op.attrs["types"]
    out = []
    for member in members:
        want = [(member.eval(a), member.eval(b)) for a, b in op.attrs["want"]]
        made = _poison([b - a for a, b in want], stated.dtype)
        for held, source in zip(have, members, strict=True):
            for wrap in _wraps(member, op, held):
                box = _box(wrap, want)
                if not box or not _is_read(source, member, op):
                    continue
                made[_within(box, want)] = source.operands[0][_within(box, wrap)]
        out.append([made])
    return out


def _halo(members: Sequence[Member], op: Op) -> list[list[Array]]:
    """In place: what is a member's own stays."""
    have = [[(m.eval(a), m.eval(b)) for a, b in op.attrs["have"]] for m in members]
    want = [[(m.eval(a), m.eval(b)) for a, b in op.attrs["want"]] for m in members]
    room = [[(m.eval(a), m.eval(b)) for a, b in op.attrs["room"]] for m in members]
    out = []
    for k, member in enumerate(members):
        made = member.operands[0].copy()
        for j, source in enumerate(members):
            around = _wraps(member, op, room[j])
            for wrap, there in zip(_wraps(member, op, have[j]), around, strict=True):
                box = _box(wrap, want[k])
                own = j == k and wrap == have[k]
                if own or not box or not _is_read(source, member, op):
                    continue
                made[_within(box, room[k])] = source.operands[0][_within(box, there)]
        out.append([made])
    return out


Bounds = Sequence[tuple[int, int]]


def _wraps(member: Member, op: Op, bounds: Bounds) -> list[Bounds]:
    """Where a part stands, in dims that go on beyond their ends."""
    per_dim = []
    for (low, high), wrap in zip(bounds, op.attrs.get("wraps") or [None] * len(bounds)):
        before, beyond, period = map(member.eval, wrap or (0, 0, 0))
        moved = [k * period for k in range(-before, beyond + 1)]
        per_dim.append([(low + by, high + by) for by in moved])
    return [list(one) for one in itertools.product(*per_dim)]


def _box(a: Bounds, b: Bounds) -> Bounds:
    """What lies in both; [] where nothing does."""
    box = [(max(p, q), min(m, n)) for (p, m), (q, n) in zip(a, b, strict=True)]
    return [] if any(high <= low for low, high in box) else box


def _within(box: Bounds, held: Bounds) -> tuple[slice, ...]:
    return tuple(slice(a - h, b - h) for (a, b), (h, _) in zip(box, held, strict=True))


def _is_read(giver: Member, taker: Member, op: Op) -> bool:
    """Whether they are near each other, as both must say."""
    reads = told = True
    for axis, (begin, end, first, last) in zip(op.attrs["axes"], op.attrs.get("near", ())):
        coord, size = f"i_{axis}", taker.env.get(f"n_{axis}", 1)
        there, here = giver.env.get(coord, 0), taker.env.get(coord, 0)
        reads &= (there - taker.eval(begin)) % size < taker.eval(end) - taker.eval(begin)
        told &= (here - giver.eval(first)) % size < giver.eval(last) - giver.eval(first)
    if reads != told:
        raise InternalError("one member reads of another that does not know it", place=op.place)
    return reads


def _poison(shape: Sequence[int], dtype: DType) -> Array:
    """Elements that would be seen in a result."""
    kind = dtypes.numpy_dtype(dtype)
    made = np.empty(shape, kind)
    made.view(np.uint8 if made.ndim else kind).fill(0xB5)
    return made


def _root(members: Sequence[Member], op: Op) -> int:
    roots = {m.eval(op.attrs["root"]) for m in members}
    if len(roots) > 1 or not 0 <= min(roots) < len(members):
        raise MatchingError(
            f"the members name roots {sorted(roots)}", place=op.place,
            expected=f"one root from 0 to {len(members) - 1}",
        )  # fmt: skip
    return roots.pop()


def _broadcast_from(members: Sequence[Member], op: Op) -> list[list[Array]]:
    value = members[_root(members, op)].operands[0]
    return [[value.copy()] for _ in members]


def _gather_to(members: Sequence[Member], op: Op) -> list[list[Array]]:
    root, dim = _root(members, op), op.attrs["dim"]
    whole = _joined(members, op, [m.operands[0] for m in members], dim, root)
    empty = np.take(whole, [], axis=dim)
    return [[whole if k == root else empty.copy()] for k in range(len(members))]


def _scatter_from(members: Sequence[Member], op: Op) -> list[list[Array]]:
    whole = members[_root(members, op)].operands[0]
    parts = np.array_split(whole, len(members), axis=op.attrs["dim"])
    return [[p.copy()] for p in parts]


def _reduce_to(members: Sequence[Member], op: Op) -> list[list[Array]]:
    root, total = _root(members, op), _total(members, op)
    return [[total if k == root else np.zeros_like(total)] for k in range(len(members))]


def _scan(members: Sequence[Member], op: Op) -> list[list[Array]]:
    fn, exclusive = op.attrs["fn"], op.attrs["exclusive"]
    sums = [_total(members[: k + 1], op) for k in range(len(members))]
    if exclusive:
        none = np.full_like(sums[0], neutral(fn, op.result.type.dtype))
        sums = [none, *sums[:-1]]
    return [[s] for s in sums]



def _barrier(members: Sequence[Member], _: Op) -> list[list[Array]]:
    return [[] for _ in members]


EXCHANGE: dict[str, Exchange] = {
    "permute": _permute,
    "all_reduce": _all_reduce,
    "all_gather": _all_gather,
    "reduce_scatter": _reduce_scatter,
    "all_to_all": _all_to_all,
    "redistribute": _redistribute,
    "halo": _halo,
    "broadcast_from": _broadcast_from,
    "gather_to": _gather_to,
    "scatter_from": _scatter_from,
    "reduce_to": _reduce_to,
    "scan": _scan,
    "barrier": _barrier,
}
