"""What must hold of an op for all sizes, proved or tried: what the rules of its kind claim through.

Always holds: what is not proved has been tried at small sizes, the smallest first. A claim raises
MatchingError where the user stated what fails, InternalError where the compiler derived it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import NoReturn

from codegen.errors import InternalError, MatchingError
from codegen.ir.graph import Condition, Module, Op, Route, Shape
from codegen.ir.graph_text import axes_text, exchange_text, user_text
from codegen.ops import Exchange
from codegen.ops.group import Bounds, Span, each
from codegen.symbolic import estimate, expr, prove
from codegen.symbolic.expr import LAUNCH, Expr, Sym, const
from codegen.symbolic.facts import Facts, related
from codegen.symbolic.sampling import Claim, first_failure, route_fault

Axes = tuple[str, ...]


class Claims:
    """The claims of one op after the other. facts: what is known where the op stands. conditions,
    routes: what is found to be asked at launch."""

    def __init__(self, program: Module) -> None:
        self.mesh = program.mesh
        # what was said of sizes is known of their symbols as well: one symbol per axis
        self.sizes = {s: a.size for a in program.mesh.axes
                      for c in program.conditions for s in c.holds.symbols()
                      if s.name == a.size_name}
        stated = [c.holds.subst(self.sizes) for c in program.conditions]
        self.stated = set(stated)
        self.facts: Facts = tuple(g for g in stated if g != 1)
        self.conditions: dict[Expr, Condition] = {}
        self.routes: list[Route] = []
        self.op: Op
        self.axes: Axes = ()  # of an exchange

    def of(self, op: Op, facts: Facts) -> None:
        """Begin with the claims of this op: what is claimed from now on is claimed of it."""
        self.op, self.facts = op, facts
        if isinstance(op.kind, Exchange):
            self.axes = axes = op.kind.axes
            if not axes or len(set(axes)) < len(axes) or not set(axes) <= set(self.mesh.names):
                self.broken("an exchange goes along different axes of the mesh", repr(axes))
        op.kind.claims(op, self)

    # ---- proved, or tried ------------------------------------------------------------------------

    def same(self, a: Expr, b: Expr, rule: str) -> None:
        """Raises InternalError where a and b may differ."""
        self.hold([("equal", a - b)], rule, lambda: f"{a}, where {b} is expected")

    def hold(
        self, claims: Sequence[Claim], rule: str, found: Callable[[], str],
        unless: tuple[Expr, ...] = (), facts: Facts | None = None,
    ) -> None:
        """Raises InternalError where a claim fails. unless: extents of which none may be 0."""
        for claim in claims:
            failure = first_failure(claim, self.facts if facts is None else facts, unless)
            if failure is not None:
                self.broken(rule, f"{found()} ({where(failure)})")

    def broken(self, rule: str, found: str) -> NoReturn:
        found = f"op {self.op.kind.called}: {found}"
        raise InternalError.of_rule(rule, self.op.place, found)

    def require(self, holds: Expr, why: str) -> None:
        """Ask at launch that a condition holds."""
        if holds not in self.stated and holds not in self.conditions:
            text = f"{user_text(self.mesh, holds)}, so that {why}"
            self.conditions[holds] = Condition(holds, text, self.op.place)

    # ---- of the members of an exchange -----------------------------------------------------------

    def position(self) -> Expr:
        """Return this rank's position among the members."""
        return self.mesh.position(self.axes)

    def on_member(self, e: Expr, position: Expr) -> Expr:
        """Return `e` as the member at a position evaluates it."""
        return e.subst(self.mesh.coordinates(self.axes, position))

    def among(self) -> Facts:
        """Return facts that hold for all members, whatever their positions."""
        own = {self.mesh.axis(a).coord_sym for a in self.axes}
        return tuple(f for f in self.facts if not f.symbols() & own)

    def independent(self, shape: Shape, dims: Iterable[int] | None = None) -> None:
        """Raises MatchingError where an extent differs between the members, of these dims or of
        all."""
        member = Sym("p", "var", const(0), self.mesh.size(self.axes) - 1)
        for d in range(len(shape)) if dims is None else dims:
            extent = shape[d]
            there = self.on_member(extent, expr.symbol(member))
            failure = first_failure(("equal", extent - there), self.facts, ())
            if failure is not None:
                raise MatchingError(
                    f"{exchange_text(self.op)}: dim {d} has different extents on different ranks",
                    place=self.op.place,
                    expected=f"one shape on all ranks along {axes_text(self.axes)}",
                    found=f"{user_text(self.mesh, extent)} ({where(failure)})",
                    remedy="pad to one extent, or reduce over that dim first",
                )

    def injective(self, to: Expr, sends: Expr, var: Sym) -> None:
        """Claim that no two members send to one, and all to some that exist."""
        size = self.mesh.size(self.axes)
        used = to.symbols() | sends.symbols() | size.symbols()
        proof = prove.injective(to, sends, var, size, related(used - {var}, self.among()))
        if proof.condition is not None:
            self.require(proof.condition, "no two ranks send to one")
        words = user_text(self.mesh, to) + ("" if sends == 1 else
                                            f" where {user_text(self.mesh, sends)}")
        if proof.holds:
            known = {s for s in used - {var} if s.kind in LAUNCH}
            if proof.verdict == "checked" and used - {var} == known:
                self.routes.append(Route(to, sends, var, size, words, self.op.place))
            return
        wrong = proof.counter_example
        assert wrong is not None
        axes = {a.size_sym.name for a in self.mesh.axes}
        more = [f"{n} = {v}" for n, v in wrong.values.items() if len(axes) > 1 or n not in axes]
        raise MatchingError(
            str(wrong),
            place=self.op.place,
            expected=f"{exchange_text(self.op)} sends to ranks that exist, at most once to each, "
            "on every mesh",
            found=f"rank {var.name} sends to {words}"
            + (f" ({', '.join(more)})" if more else ""),
            remedy="let to= return None where a rank sends nothing, or wrap around with % n; "
            "or say with spmd.require(...) for which sizes it is right",
        )

    def inverse(self, to: Expr, sends: Expr, source: Expr, receives: Expr, var: Sym) -> None:
        """Claim that who sends to me is who I receive from."""
        conditions = (*self.conditions, *self.among())
        size = self.mesh.size(self.axes)
        if fault := route_fault((to, sends, source, receives), var, size, conditions):
            self.broken("`source` and `receives` are the inverse of `to` and `sends`", fault)

    def root(self, root: Expr, does: str) -> Expr:
        """Return the root's position, which all members know. Raises MatchingError where none is
        there. does: what that rank does."""
        size = self.mesh.size(self.axes)
        if root.symbols() & {self.mesh.axis(a).coord_sym for a in self.axes}:
            self.broken("all members name one root", str(root))
        exists = expr.ge0(root) * expr.lt(root, size)
        if exists == 1:
            return root
        if exists != 0 and all(s.kind in LAUNCH for s in exists.symbols()):
            self.require(exists, f"the rank that {does} exists")
            return root
        failure = first_failure(("truth", exists), self.facts, ())
        if failure is not None:
            raise MatchingError(
                f"{exchange_text(self.op)}: the rank that {does} does not exist",
                place=self.op.place,
                expected=f"a position from 0 to {user_text(self.mesh, size - 1)}",
                found=f"{user_text(self.mesh, root)} ({where(failure)})",
            )
        return root

    def tiles(self, part: Span, total: Expr) -> None:
        """Claim that what members have, or want, of a dim of this extent is one part after the
        other."""
        n = self.mesh.size(self.axes)
        p = Sym("p", "var", const(0), n - 1)
        position = expr.symbol(p)
        low, high = (self.on_member(e, position) for e in part)
        each = high - low
        sums = estimate.prefix_sum(each, p, position), estimate.prefix_sum(each, p, n)
        if sums == (low, total):
            return
        rule = "the parts of the members make up a dim, one after the other"

        def parts_text() -> str:
            return f"parts from {low} to {high} of an extent of {total}"

        inner = (*self.among(), expr.lt(position, n - 1))
        self.same(low.subst({p: const(0)}), const(0), rule)
        self.hold([("equal", low.subst({p: position + 1}) - high)], rule, parts_text, facts=inner)
        self.hold([("equal", high.subst({p: n - 1}) - total)], rule, parts_text)

    def spans(self, bounds: Bounds, shape: Shape) -> None:
        """Claim that an array has the elements that are stated, where some are."""
        rule = "members hold and get the elements that are stated"
        for span, extent in zip(each(bounds, len(shape)), shape, strict=True):
            if span is not None:
                self.same(extent, span[1] - span[0], rule)

    # ---- extents and boxes -----------------------------------------------------------------------

    def shapes(self, expected: Shape, received: Expr | None = None) -> None:
        """Claim that the result has the extents of what is received, where something is."""
        shape = self.op.result.type.shape
        rule = f"the result of {self.op.kind.called} has the extents of what is received"
        if len(shape) != len(expected):
            self.broken(rule, f"{len(shape)} dims for {len(expected)}")
        if received is not None and not received.is_const:
            self.facts = (*self.facts, received)
        for e, f in zip(expected, shape, strict=True):
            self.same(f, e, rule)

    def no_less_than_nothing(self, shape: Iterable[Expr]) -> None:
        for m in shape:
            self.hold([("nonneg", m)], "an extent is not negative", lambda: "a box")

    def inside(
        self, starts: Sequence[Expr], steps: Sequence[int], part: Shape, whole: Shape
    ) -> None:
        """Claim that a box lies in an array; where the box is empty, it may lie anywhere."""
        for first, step, m, e in zip(starts, steps, part, whole, strict=True):
            if step != 1 or first != 0 or m != e:
                self._range(first, step, m, e, part)

    def _range(self, first: Expr, step: int, m: Expr, e: Expr, part: Shape) -> None:
        """Claim that m elements of one dim, from `first` on in steps, lie inside it."""
        last = first + (m - 1) * step
        low, high = (first, last) if step > 0 else (last, first)
        self.hold([("nonneg", m)], "an extent is not negative", lambda: f"extent {m}")
        self.hold([("nonneg", low), ("nonneg", e - 1 - high)],
                  f"the box of {self.op.kind.name} lies in bounds",
                  lambda: f"elements {first} to {last} of an extent of {e}", part)


def where(values: Iterable[tuple[str, int]]) -> str:
    return "with " + ", ".join(f"{n} = {v}" for n, v in values)
