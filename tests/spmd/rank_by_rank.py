"""The exchanges of an image judged rank by rank, by the formulas alone: beside codegen.verify.

In: rows of the table, a mesh. Out: how many transfers there are, or None where two ranks do not
fit.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from typing import Any

from codegen.errors import ImageError
from codegen.symbolic.meaning import OPERATIONS

Values = dict[str, int]


class Wrong(Exception):
    """Two ranks do not fit."""


def transfers(ledger: Any, mesh: tuple[int, ...], scalars: dict[str, Any]) -> int | None:
    try:
        return sum(_Exchange(row, ledger, mesh, scalars).transfers()
                   for row in ledger.table.rows if not row.unknown)
    except (Wrong, ImageError):
        return None


def value(e: Any, values: Values) -> int:
    """In integers of any size."""
    if not isinstance(e, list):
        return e if isinstance(e, int) else values[e]
    op, *args = e[0], *(value(a, values) for a in e[1:])
    if op in ("+", "*"):
        return sum(args) if op == "+" else math.prod(args)
    return OPERATIONS[op](*args)


class _Exchange:
    def __init__(self, row: Any, ledger: Any, mesh: tuple[int, ...], scalars: Any) -> None:
        self.row, self.axes, self.mesh = row.said, row.axes, dict(zip(ledger.axes, mesh))
        ranks = [ledger.rank(mesh, scalars, k) for k in range(math.prod(mesh))]
        self.symbol = dict(zip(ledger.axes, ledger.coordinates))
        self.loops = row.loops
        self.capacity = [value(e, ranks[0]) for e in row.table.capacity]
        groups: dict[Any, list[Values]] = {}
        for rank in ranks:
            across = [rank[self.symbol[a]] for a in self.mesh if a not in self.axes]
            groups.setdefault(tuple(across), []).append(rank)
        self.groups = [sorted(g, key=lambda r: [r[self.symbol[a]] for a in self.axes])
                       for g in groups.values()]

    def transfers(self) -> int:
        count = 0
        for group in self.groups:
            for counters in self._turns(group[0], self.loops):
                members = [{**rank, **counters} for rank in group]
                comes = {self._comes(rank) for rank in members}
                if len(comes) > 1:
                    raise Wrong
                if comes == {True} and self.row["kind"] != "barrier":
                    count += self._group(members)
        return count

    def _turns(self, rank: Values, loops: Any) -> Iterator[Values]:
        if not loops:
            yield {}
            return
        (name, start, stop, step), *inner = loops
        first, by = value(start, rank), value(step, rank) or 1
        each = range(first, first + 4 * by if stop is None else value(stop, rank), by)
        for k in (*each[:3], *(each[-1:] if each[3:] else ())):
            for more in self._turns({**rank, name: k}, inner):
                yield {name: k, **more}

    def _comes(self, rank: Values) -> bool:
        return all(min(max(value(on, rank), 0), arms - 1) == arm
                   for on, arm, arms in self.row["guards"] if on is not None)

    def _group(self, group: list[Values]) -> int:
        row, members = self.row, range(len(group))
        if row["dest"] is not None:
            to = {p: value(row["dest"], r) for p, r in enumerate(group) if value(row["sends"], r)}
            if len(set(to.values())) < len(to) or not set(to.values()) <= set(members):
                raise Wrong
            sender = {q: p for p, q in to.items()}
            if row["source"] is not None:
                for q, r in enumerate(group):
                    says = value(row["source"], r) if value(row["receives"], r) else None
                    if says != sender.get(q):
                        raise Wrong
            pairs = list(to.items())
        else:
            roots = {0 if row["root"] is None else value(row["root"], r) for r in group}
            if len(roots) > 1 or not roots <= set(members):
                raise Wrong
            (root,) = roots
            reads = {"from_root": lambda p, q: p == root, "to_root": lambda p, q: q == root,
                     "up_to": lambda p, q: p <= q, "before": lambda p, q: p < q}
            flow = reads.get(row["flow"], lambda p, q: True)
            pairs = [(p, q) for p in members for q in members if flow(p, q)]
            if row["fn"] == "":
                self._idle(group, {(p, q) for p in members for q in members} - set(pairs))
            pairs = self._near(group, pairs) if row["flow"] == "near" else pairs
        for p, q in pairs:
            for wrap in range(value(row["wraps"], group[0])):
                self._transfer(group, p, q, wrap)
        return len(pairs)

    def _near(self, group: list[Values], pairs: Any) -> list[tuple[int, int]]:
        read = {(p, q) for q, r in enumerate(group) for p in self._ranges(r, 0)}
        told = {(p, q) for p, r in enumerate(group) for q in self._ranges(r, 2)}
        if read != told:
            raise Wrong
        self._idle(group, set(pairs) - read)
        return sorted(read)

    def _idle(self, group: list[Values], pairs: set[tuple[int, int]]) -> None:
        for p, q in pairs:
            for wrap in range(value(self.row["wraps"], group[0])):
                for name, me, other in (("into", q, p), ("send", p, q)):
                    if self.row[name] and math.prod(self._box(name, group[me], other, wrap)[1]):
                        raise Wrong

    def _ranges(self, rank: Values, first: int) -> list[int]:
        positions = [0]
        for a, ranges in zip(self.axes, self.row["near"]):
            n, begin, end = self.mesh[a], value(ranges[first], rank), value(ranges[first + 1], rank)
            if begin < end and not 0 <= begin < end <= n and self.row["wraps"] == 1:
                raise Wrong
            along = sorted({k % n for k in range(begin, min(end, begin + n))})
            positions = [p * n + k for p in positions for k in along]
        return positions

    def _box(self, name: str, rank: Values, member: int, wrap: int) -> Any:
        box = self.row[name]
        values = {**rank, self.row["member"]: member, "wrap": wrap}
        for local, e in box["names"]:
            values[local] = value(e, values)
        return (value(box["offset"], values), [max(0, value(e, values)) for e in box["extent"]],
                [value(e, values) for e in box["stride"]])

    def _transfer(self, group: list[Values], p: int, q: int, wrap: int) -> None:
        elements = {}
        for name, me, other in (("from", q, p), ("into", q, p), ("send", p, q), ("give", p, q)):
            if self.row[name]:
                offset, extent, stride = self._box(name, group[me], other, wrap)
                every = itertools.product(*(range(e) for e in extent))
                elements[name] = [offset + sum(k * s for k, s in zip(at, stride)) for at in every]
                if not set(elements[name]) <= set(range(self.capacity[self.row[name]["buffer"]])):
                    raise Wrong
        for a, b in (("send", "from"), ("give", "into")):
            if a in elements and b in elements and elements[a] != elements[b]:
                raise Wrong
        if "into" in elements and len(elements["into"]) != len(elements["from"]):
            raise Wrong
