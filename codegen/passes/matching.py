"""Sends and receives that match, extents that fit, boxes in bounds: proved, or tried.

In: a Program. Out: the same, with conditions on sizes that its permutes need at launch. Raises
MatchingError for what the user stated, InternalError for what the compiler derived from it.
Always holds: what is not proved has been tried at small sizes, the smallest first.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import NoReturn

from codegen import expr, prove
from codegen.errors import InternalError, LayoutError, MatchingError
from codegen.expr import Expr, Sym, const
from codegen.ir import Condition, Module, Op, Region, Route, Shape, Value, layout_text
from codegen.mesh import Layout, block_extent, local_extent
from codegen.ops import OPS, Exchange
from codegen.printer import axes_text, exchange_text, user_text
from codegen.sampling import Claim, Facts, first_failure, related, route_fault

Axes = tuple[str, ...]


def check(program: Module) -> Module:
    """Raises MatchingError, LayoutError or InternalError at the first op that is wrong."""
    work = _Matching(program)
    for i in program.inputs:
        work.blocks(i.value, i.layout, i.shape, f'input "{i.name}"')
        if i.default is not None:
            work.region(i.default, work.facts)
    work.region(program.body, work.facts)
    for o in program.outputs:
        work.blocks(o.value, o.layout, o.shape, f'output "{o.name}"')
    new = tuple(work.conditions.values())
    if not new and not work.routes:
        return program
    return replace(program, conditions=program.conditions + new, routes=tuple(work.routes))


class _Matching:
    def __init__(self, program: Module) -> None:
        self.mesh = program.mesh
        # what was said of sizes is known of their symbols as well: one symbol per axis
        self.sizes = {s: a.size for a in program.mesh.axes
                      for c in program.conditions for s in c.holds.symbols()
                      if s.name == a.size_name}  # fmt: skip
        given = [c.holds.subst(self.sizes) for c in program.conditions]
        self.stated = set(given)
        self.facts: Facts = tuple(g for g in given if g != 1)
        self.conditions: dict[Expr, Condition] = {}
        self.routes: list[Route] = []

    # ---- what is known where ---------------------------------------------------------------------

    def region(self, region: Region, facts: Facts) -> None:
        for op in region.ops:
            rule = _RULES.get(op.kind)
            if rule is not None:
                rule(self, op, facts)
            if op.regions:
                for k, inner in enumerate(op.regions):
                    fact = _fact(op, k)
                    if fact != 0:
                        self.region(inner, facts if fact == 1 else (*facts, fact))

    # ---- proved, or tried ------------------------------------------------------------------------

    def same(self, op: Op, a: Expr, b: Expr, facts: Facts, what: str) -> None:
        """Raises InternalError where a and b may differ."""
        self.hold(op, [("equal", a - b)], facts, what, lambda: f"{a}, where {b} is expected")

    def hold(
        self, op: Op, claims: Sequence[Claim], facts: Facts, what: str, found: Callable[[], str],
        unless: tuple[Expr, ...] = (),
    ) -> None:  # fmt: skip
        """Raises InternalError where a claim fails. unless: extents of which none may be 0."""
        for claim in claims:
            at = first_failure(claim, facts, unless)
            if at is not None:
                _broken(op, what, f"{found()} ({_where(at)})")

    def independent(self, op: Op, shape: Shape, axes: Axes, facts: Facts) -> None:
        """Raises MatchingError where an extent differs between the members."""
        member = Sym("p", "var", const(0), self.mesh.size(axes) - 1)
        there = self.mesh.at(axes, expr.symbol(member))
        for d, extent in enumerate(shape):
            at = first_failure(("equal", extent - extent.subst(there)), facts, ())
            if at is not None:
                raise MatchingError(
                    f"{exchange_text(op)}: dim {d} has different extents on different ranks",
                    place=op.place,
                    expected=f"one shape on all ranks along {axes_text(axes)}",
                    found=f"{user_text(self.mesh, extent)} ({_where(at)})",
                    remedy="pad to one extent, or reduce over that dim first",
                )

    def among(self, facts: Facts, axes: Axes) -> Facts:
        """Those that hold for all members, whatever their positions."""
        own = {self.mesh.axis(a).coord_sym for a in axes}
        return tuple(f for f in facts if not f.symbols() & own)

    def axes(self, op: Op) -> Axes:
        axes = tuple(op.attrs["axes"])
        if not axes or len(set(axes)) < len(axes) or not set(axes) <= set(self.mesh.names):
            _broken(op, "an exchange goes along different axes of the mesh", repr(axes))
        return axes

    # ---- exchange --------------------------------------------------------------------------------

    def permute(self, op: Op, facts: Facts) -> None:
        axes = self.axes(op)
        a, size, known = op.attrs, self.mesh.size(axes), self.among(facts, axes)
        self.injective(op, a["to"], a["sends"], a["var"], size, known)
        if a["source"] is None or a["receives"] is None:
            self.independent(op, op.operands[0].type.shape, axes, facts)
            self.shapes(op, op.operands[0].type.shape, facts)
            return
        route = (a["to"], a["sends"], a["source"], a["receives"])
        conditions = tuple(self.conditions) + known
        if fault := route_fault(route, a["var"], size, conditions):
            _broken(op, "`source` and `receives` are the inverse of `to` and `sends`", fault)
        here = {a["var"]: self.mesh.position(axes)}
        there = self.mesh.at(axes, a["source"].subst(here))
        sent = tuple(e.subst(there) for e in op.operands[0].type.shape)
        received = a["receives"].subst(here)
        self.shapes(op, sent, facts if received.is_const else (*facts, received))

    def injective(
        self, op: Op, to: Expr, sends: Expr, var: Sym, size: Expr, facts: Facts
    ) -> None:  # fmt: skip
        used = to.symbols() | sends.symbols() | size.symbols()
        proof = prove.injective(to, sends, var, size, related(used - {var}, facts))
        if proof.condition is not None:
            self.require(op, proof.condition, "no two ranks send to one")
        words = user_text(self.mesh, to) + ("" if sends == 1 else
                                            f" where {user_text(self.mesh, sends)}")  # fmt: skip
        if proof.holds:
            known = {s for s in used - {var} if s.kind in ("size", "scalar")}
            if proof.verdict == "checked" and used - {var} == known:
                self.routes.append(Route(to, sends, var, size, words, op.place))
            return
        wrong = proof.counter_example
        assert wrong is not None
        axes = {a.size_sym.name for a in self.mesh.axes}
        more = [f"{n} = {v}" for n, v in wrong.values.items() if len(axes) > 1 or n not in axes]
        raise MatchingError(
            str(wrong),
            place=op.place,
            expected=f"{exchange_text(op)} sends to ranks that exist, at most once to each, "
            "on every mesh",
            found=f"rank {var.name} sends to {words}"
            + (f" ({', '.join(more)})" if more else ""),
            remedy="let to= return None where a rank sends nothing, or wrap around with % n; "
            "or say with spmd.require(...) for which sizes it is right",
        )

    def require(self, op: Op, holds: Expr, why: str) -> None:
        if holds not in self.stated and holds not in self.conditions:
            text = f"{user_text(self.mesh, holds)}, so that {why}"
            self.conditions[holds] = Condition(holds, text, op.place)

    def all_reduce(self, op: Op, facts: Facts) -> None:
        self.independent(op, op.operands[0].type.shape, self.axes(op), facts)

    def barrier(self, op: Op, _: Facts) -> None:
        self.axes(op)

    def broadcast_from(self, op: Op, facts: Facts) -> None:
        axes = self.axes(op)
        root = self.root(op, axes, facts)
        there = self.mesh.at(axes, root)
        self.shapes(op, tuple(e.subst(there) for e in op.operands[0].type.shape), facts)

    def root(self, op: Op, axes: Axes, facts: Facts) -> Expr:
        """The root's position, which all members know. Raises MatchingError where none is there."""
        root, size = expr.as_expr(op.attrs["root"]), self.mesh.size(axes)
        if root.symbols() & {self.mesh.axis(a).coord_sym for a in axes}:
            _broken(op, "all members name one root", str(root))
        exists = expr.ge0(root) * expr.lt(root, size)
        if exists == 1:
            return root
        if exists != 0 and all(s.kind in ("size", "scalar") for s in exists.symbols()):
            self.require(op, exists, f"the rank that {_ROOT_DOES[op.kind]} exists")
            return root
        at = first_failure(("truth", exists), facts, ())
        if at is not None:
            raise MatchingError(
                f"{exchange_text(op)}: the rank that {_ROOT_DOES[op.kind]} does not exist",
                place=op.place,
                expected=f"a position from 0 to {user_text(self.mesh, size - 1)}",
                found=f"{user_text(self.mesh, root)} ({_where(at)})",
            )
        return root

    def gather_to(self, op: Op, facts: Facts) -> None:
        axes, d = self.axes(op), op.attrs["dim"]
        root = self.root(op, axes, facts)
        shape = list(op.operands[0].type.shape)
        rest = tuple(e for k, e in enumerate(shape) if k != d)
        self.independent(op, rest, axes, facts)
        total = op.result.type.shape[d].subst(self.mesh.at(axes, root))
        whole = self.joined(op, axes, shape[d], facts, total)
        shape[d] = whole * expr.eq(self.mesh.position(axes), root)
        self.shapes(op, tuple(shape), facts)

    def reduce_to(self, op: Op, facts: Facts) -> None:
        self.root(op, self.axes(op), facts)
        self.all_reduce(op, facts)

    def scatter_from(self, op: Op, facts: Facts) -> None:
        axes, d = self.axes(op), op.attrs["dim"]
        there = self.mesh.at(axes, self.root(op, axes, facts))
        shape = [e.subst(there) for e in op.operands[0].type.shape]
        shape[d] = block_extent(shape[d], self.mesh.size(axes), self.mesh.position(axes))
        self.shapes(op, tuple(shape), facts)

    def all_gather(self, op: Op, facts: Facts) -> None:
        axes, d = self.axes(op), op.attrs["dim"]
        shape = list(op.operands[0].type.shape)
        rest = tuple(e for k, e in enumerate(shape) if k != d)
        self.independent(op, rest, axes, facts)
        shape[d] = self.joined(op, axes, shape[d], facts, op.result.type.shape[d])
        self.shapes(op, tuple(shape), facts)

    def reduce_scatter(self, op: Op, facts: Facts) -> None:
        axes, d = self.axes(op), op.attrs["dim"]
        shape = list(op.operands[0].type.shape)
        self.independent(op, tuple(shape), axes, facts)
        shape[d] = block_extent(shape[d], self.mesh.size(axes), self.mesh.position(axes))
        self.shapes(op, tuple(shape), facts)

    def all_to_all(self, op: Op, facts: Facts) -> None:
        axes, s, c = self.axes(op), op.attrs["split"], op.attrs["concat"]
        n, me = self.mesh.size(axes), self.mesh.position(axes)
        shape = list(op.operands[0].type.shape)
        rest = tuple(e for k, e in enumerate(shape) if k != c or s == c)
        self.independent(op, rest, axes, facts)
        if s == c:
            block = block_extent(shape[c], n, me)
            shape[c] = self.joined(op, axes, block, facts, op.result.type.shape[c], own=True)
        else:
            whole = self.joined(op, axes, shape[c], facts, op.result.type.shape[c])
            shape[s], shape[c] = block_extent(shape[s], n, me), whole
        self.shapes(op, tuple(shape), facts)

    def redistribute(self, op: Op, facts: Facts) -> None:
        """Members hold and get what is stated; that they hold all of it follows from the cuts."""
        self.axes(op)
        what = "members hold and get the elements that are stated"
        for stated, value in ((op.attrs["have"], op.operands[0]), (op.attrs["want"], op.result)):
            for (low, high), extent in zip(stated, value.type.shape, strict=True):
                self.same(op, extent, high - low, facts, what)

    def halo(self, op: Op, facts: Facts) -> None:
        self.axes(op)
        for (low, high), extent in zip(op.attrs["room"], op.result.type.shape, strict=True):
            self.same(op, extent, high - low, facts, "there is room for what is wanted")

    def joined(
        self, op: Op, axes: Axes, extent: Expr, facts: Facts, total: Expr, own: bool = False
    ) -> Expr:
        """The extent `total` of all members' pieces; checks it and `offset`. own: all have mine."""
        n, var, offset = self.mesh.size(axes), op.attrs["var"], expr.as_expr(op.attrs["offset"])
        p = Sym(var.name, "var", const(0), n - 1)
        at = expr.symbol(p)
        stated = offset.subst({var: at})
        piece = extent if own else extent.subst(self.mesh.at(axes, at))
        sums = prove.prefix_sum(piece, p, at), prove.prefix_sum(piece, p, n)
        if sums == (stated, total):
            return total
        what = "`offset` is where a member's piece begins, and the result ends with the last"

        def found() -> str:
            return f"offset {stated}, extent {total} of pieces of {piece}"

        after = stated.subst({p: at + 1})
        inner = (*self.among(facts, axes), expr.lt(at, n - 1))
        self.same(op, stated.subst({p: const(0)}), const(0), facts, what)
        self.hold(op, [("equal", after - stated - piece)], inner, what, found)
        last = {p: n - 1}
        self.hold(op, [("equal", (stated + piece).subst(last) - total)], facts, what, found)
        return total

    def shapes(self, op: Op, expected: Shape, facts: Facts) -> None:
        found = op.result.type.shape
        what = f"the result of {op.kind} has the extents of what is received"
        if len(found) != len(expected):
            _broken(op, what, f"{len(found)} dims for {len(expected)}")
        for e, f in zip(expected, found, strict=True):
            self.same(op, f, e, facts, what)

    # ---- boxes -----------------------------------------------------------------------------------

    def slice(self, op: Op, facts: Facts) -> None:
        self.box(op, op.operands[0].type.shape, op.result.type.shape, facts)

    def update(self, op: Op, facts: Facts) -> None:
        self.box(op, op.operands[0].type.shape, op.operands[1].type.shape, facts)

    def box(self, op: Op, whole: Shape, part: Shape, facts: Facts) -> None:
        if op.attrs.get("cut"):
            return
        for dim in zip(op.attrs["start"], op.attrs["step"], part, whole, strict=True):
            self.range(op, *dim, part, facts)

    def range(
        self, op: Op, start: Expr, step: int, m: Expr, e: Expr, part: Shape, facts: Facts
    ) -> None:
        """The m elements of one dim; where the box `part` is empty, they may lie anywhere."""
        first = expr.as_expr(start)
        if step == 1 and first == 0 and m == e:
            return
        last = first + (m - 1) * step
        low, high = (first, last) if step > 0 else (last, first)
        self.hold(op, [("nonneg", m)], facts, "an extent is not negative", lambda: f"extent {m}")
        self.hold(op, [("nonneg", low), ("nonneg", e - 1 - high)], facts,
                  f"the box of {op.kind} lies in bounds",
                  lambda: f"elements {first} to {last} of an extent of {e}", part)  # fmt: skip

    def dynamic(self, op: Op, facts: Facts) -> None:
        """The box may be larger than the array, which gives zeros, but not less than nothing."""
        for m in op.result.type.shape:
            self.hold(op, [("nonneg", m)], facts, "an extent is not negative", lambda: "a box")

    # ---- the edges of a program ------------------------------------------------------------------

    def blocks(self, value: Value, layout: Layout, shape: Shape, what: str) -> None:
        """Raises LayoutError unless a rank holds its balanced block of every dim."""
        axes = [a for entry in layout for a in entry]
        if len(set(axes)) < len(axes) or not set(axes) <= set(self.mesh.names):
            raise LayoutError(
                f"{what} has the layout {layout_text(layout)}, which is illegal",
                expected="axes of the mesh, each for one dim only",
            )
        for d, (extent, entry) in enumerate(zip(shape, layout, strict=True)):
            want, have = local_extent(self.mesh, extent, entry), value.type.shape[d]
            at = None if want == have else first_failure(("equal", want - have), self.facts, ())
            if at is not None:
                raise LayoutError(
                    f"{what}: dim {d} is not split into balanced blocks over "
                    f"{axes_text(entry) or 'no axis'}",
                    expected=f"local extent {user_text(self.mesh, want)}",
                    found=f"{user_text(self.mesh, have)} ({_where(at)})",
                    remedy="return a part of the extent of an argument's shard",
                )


_RULES: dict[str, Callable[[_Matching, Op, Facts], None]] = {
    "permute": _Matching.permute,
    "all_reduce": _Matching.all_reduce,
    "all_gather": _Matching.all_gather,
    "reduce_scatter": _Matching.reduce_scatter,
    "all_to_all": _Matching.all_to_all,
    "redistribute": _Matching.redistribute,
    "halo": _Matching.halo,
    "broadcast_from": _Matching.broadcast_from,
    "gather_to": _Matching.gather_to,
    "scatter_from": _Matching.scatter_from,
    "reduce_to": _Matching.reduce_to,
    "scan": _Matching.all_reduce,
    "barrier": _Matching.barrier,
    "slice": _Matching.slice,
    "update": _Matching.update,
    "dynamic_slice": _Matching.dynamic,
}
assert {k for k, rule in OPS.items() if issubclass(rule, Exchange)} <= set(_RULES)

_ROOT_DOES = {
    "broadcast_from": "is sent from", "scatter_from": "is sent from", "gather_to": "receives",
    "reduce_to": "receives",
}  # fmt: skip


def _fact(op: Op, k: int) -> Expr:
    """What holds in region k of an op, as far as it follows from an expression."""
    a = op.attrs
    if op.kind == "loop":
        step = expr.as_expr(a["step"])
        if k < len(op.regions) - 1 or a["stop"] is None or not step.is_const:
            return const(1)
        more = expr.as_expr(a["stop"]) - expr.as_expr(a["start"])
        return expr.ge(more if step.value > 0 else -more, 1)
    if op.kind != "branch" or a["on"] is None:
        return const(1)
    on, last = expr.as_expr(a["on"]), len(op.regions) - 1
    if k == 0 and last:
        return expr.le(on, 0)
    return expr.ge(on, k) if k == last else expr.eq(on, k)


def _where(values: Iterable[tuple[str, int]]) -> str:
    return "with " + ", ".join(f"{n} = {v}" for n, v in values)


def _broken(op: Op, rule: str, found: str) -> NoReturn:
    raise InternalError(
        f"the compiler broke a rule of its own: {rule}",
        place=op.place,
        found=f"op {op.kind}: {found}",
        remedy="report this program: it is a defect of spmd",
    )
