"""Who sends to whom: inverses, injectivity, sums and bounds, each against enumeration."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import mesh
from codegen.errors import ProgramError
from codegen.mesh import Axis
from codegen.symbolic import estimate, expr, facts, prove
from codegen.symbolic.expr import Expr, Sym, const, symbol

X, Y = Axis("x"), Axis("y")
n = X.size
P = Sym("p", "var", const(0), n - 1)
p = symbol(P)
always = const(1)


def pairs(*perm: tuple[int, int]) -> tuple[Expr, Expr]:
    """Return destination and sends as perm=[(source, destination), ...] is traced."""
    to, sends = const(0), const(0)
    for source, destination in perm:
        here = expr.eq(p, source)
        to, sends = to + here * destination, sends + here
    return to, sends


D = Sym("d", "counter", const(1))
d = symbol(D)
XOR = p + d - 2 * d * (p // d % 2)  # where d is a power of two
PARTNER = expr.select(expr.eq(p // d % 2, 0), p + d, p - d)

WORD = symbol(Sym("word", "counter"))
BEGIN = mesh.block_offset(5, n, p + 1)  # 5 rows in blocks
OVER = sum((WORD // 2**s % 2 * expr.eq(BEGIN, s + 1) for s in range(4)), const(0))

# name -> (to, sends); right for every size that meets the condition derived
RIGHT: dict[str, tuple[Expr, Expr]] = {
    "stay": (p, always),
    "shift": ((p + 1) % n, always),
    "shift back three": ((p - 3) % n, always),
    "shift by a scalar": ((p + symbol(Sym("k", "scalar"))) % n, always),
    "reverse": (n - 1 - p, always),
    "reverse and turn": ((2 - p) % n, always),
    "up": (p + 1, expr.lt(p, n - 1)),
    "down": (p - 1, expr.gt(p, 0)),
    "two up": (p + 2, expr.lt(p + 2, n)),
    "wrap by choice": (expr.select(expr.lt(p, n - 1), p + 1, 0), always),
    "wrap down by choice": (expr.select(expr.gt(p, 0), p - 1, n - 1), always),
    "swap the ends": (
        expr.select(expr.eq(p, 0), n - 1, expr.select(expr.eq(p, n - 1), 0, p)), always),
    "pairs": pairs((0, 1), (1, 2), (2, 0)),
    "one pair": pairs((3, 0)),
    "spread": (2 * p, expr.lt(2 * p, n)),
    "doubled": ((2 * p) % n, always),
    "six times": ((6 * p + 1) % n, always),
    "to the first": (const(0), expr.eq(p, n - 1)),
    "first half to the second": (p + n // 2, expr.lt(p, n // 2)),
    "nobody": (p, const(0)),
    "up over some borders": (p + 1, expr.lt(p + 1, n) * expr.ge(OVER, 1)),
    "i ^ d": (XOR, expr.lt(XOR, n)),
    "partner at d": (PARTNER, expr.lt(PARTNER, n)),
    "i ^ 3": (p + 3 - 2 * (p % 4), expr.lt(p + 3 - 2 * (p % 4), n)),
}
SOLVED = [k for k in RIGHT if k not in ("doubled", "six times")]


def routes(to: Expr, sends: Expr, size: int, values: dict[str, int]) -> dict[int, int] | None:
    """target -> sender by enumeration; None where two collide or a target does not exist."""
    out: dict[int, int] = {}
    for k in range(size):
        at = {**values, "p": k}
        if not sends.evaluate(at):
            continue
        target = to.evaluate(at)
        if target in out or not 0 <= target < size:
            return None
        out[target] = k
    return out


@pytest.mark.parametrize("name", RIGHT)
def test_right_maps_are_proved(name: str) -> None:
    to, sends = RIGHT[name]
    proof = prove.injective(to, sends, P, n)
    assert proof.holds
    assert proof.counter_example is None
    for size in range(1, 40):
        values = {"n_x": size, "k": 5, "d": size // 7 + 1, "word": size % 16}
        right = routes(to, sends, size, values) is not None
        if proof.condition is None:
            assert right, size
        else:
            assert right == bool(proof.condition.evaluate(values)), size


def test_verdicts() -> None:
    def verdict(name: str) -> str:
        return prove.injective(*RIGHT[name], P, n).verdict

    assert verdict("shift") == verdict("up") == verdict("wrap by choice") == "always"
    assert verdict("shift by a scalar") == verdict("reverse") == "always"
    assert verdict("i ^ d") == verdict("partner at d") == verdict("i ^ 3") == "always"
    assert verdict("doubled") == verdict("pairs") == "condition"
    assert verdict("one pair") == "always"
    condition = prove.injective(*RIGHT["six times"], P, n).condition
    assert str(condition) == "n_x % 2 > 0 and n_x % 3 > 0"


@pytest.mark.parametrize("name", SOLVED)
def test_the_inverse_is_the_inverse(name: str) -> None:
    to, sends = RIGHT[name]
    inverse = prove.inverse(to, sends, P, n)
    assert inverse is not None, "not solved"
    source, receives = inverse
    condition = prove.injective(to, sends, P, n).condition or const(1)
    for size, distance in itertools.product(range(1, 24), (1, 2, 3, 5, 30)):
        values = {"n_x": size, "k": 5, "d": distance, "word": size % 16}
        if distance > 1 and D not in to.symbols():
            continue
        sender = routes(to, sends, size, values)
        if not condition.evaluate(values):
            continue
        assert sender is not None
        for k in range(size):
            at = {**values, "p": k}
            assert receives.evaluate(at) == (k in sender)
            assert 0 <= source.evaluate(at) < size
            if k in sender:
                assert source.evaluate(at) == sender[k]


def test_inverses_read_well() -> None:
    def text(name: str) -> tuple[str, str]:
        source, receives = prove.inverse(*RIGHT[name], P, n) or (const(0), const(0))
        return str(source), str(receives)

    assert text("shift") == ("(p - 1) % n_x", "1")
    assert text("up") == ("max(0, p - 1)", "p > 0")
    assert text("wrap by choice") == ("(p - 1) % n_x", "1")


def test_what_cannot_be_solved_is_none() -> None:
    assert prove.inverse((3 * p) % n, always, P, n) is None
    assert prove.inverse(p * p, always, P, n) is None
    assert prove.inverse((p * 2 + p // 2) % n, always, P, n) is None


def test_the_variable_may_have_other_bounds() -> None:
    free = Sym("g")
    source, receives = prove.inverse((symbol(free) + 1) % n, always, free, n) or (None, None)
    assert receives == 1 and source is not None
    assert [source.evaluate({"n_x": 5, "g": k}) for k in range(5)] == [4, 0, 1, 2, 3]


# name -> (to, sends, the text of the smallest counter-example)
WRONG: dict[str, tuple[Expr, Expr, str]] = {
    "all to one": (const(0), always, "with 2 ranks, ranks 0 and 1 both send to 0"),
    "no guard": (p + 1, always, "with 1 rank, rank 0 sends to 1, which does not exist"),
    "guard too wide": (
        p + 2, expr.lt(p, n - 1), "with 2 ranks, rank 0 sends to 2, which does not exist"),
    "below zero": (p - 1, always, "with 1 rank, rank 0 sends to -1, which does not exist"),
    "halved": (p // 2, always, "with 2 ranks, ranks 0 and 1 both send to 0"),
    "wrap to the second": (
        expr.select(expr.lt(p, n - 1), p + 1, 1), always,
        "with 1 rank, rank 0 sends to 1, which does not exist"),
    "modulus too small": (
        (p + 1) % expr.maximum(n - 1, 1), always, "with 2 ranks, ranks 0 and 1 both send to 0"),
    "a pair twice": (
        *pairs((0, 1), (2, 1)), "with 1 rank, rank 0 sends to 1, which does not exist"),
    "neighbours swap": (
        p + 1 - 2 * (p % 2), always, "with 1 rank, rank 0 sends to 1, which does not exist"),
    "from some size on": (
        expr.select(expr.ge(p, 5), 0, p), always, "with 6 ranks, ranks 0 and 5 both send to 0"),
}


@pytest.mark.parametrize("name", WRONG)
def test_wrong_maps_are_refused_with_the_smallest_case(name: str) -> None:
    to, sends, text = WRONG[name]
    proof = prove.injective(to, sends, P, n)
    assert proof.verdict == "refuted" and not proof.holds
    found = proof.counter_example
    assert found is not None and str(found) == text
    smaller = [routes(to, sends, size, {"n_x": size}) for size in range(1, found.members)]
    assert None not in smaller
    assert routes(to, sends, found.members, {"n_x": found.members}) is None


def test_stated_conditions_count() -> None:
    to = p + 1 - 2 * (p % 2)
    assert prove.injective(to, always, P, n, [expr.eq(n % 2, 0)]).verdict == "checked"
    assert prove.injective(const(0), always, P, n, [expr.eq(n, 1)]).holds
    assert not prove.injective(to, always, P, n, [expr.eq(n % 3, 0)]).holds


def test_fixed_and_bounded_sizes_are_tried_completely() -> None:
    four = Sym("p", "var", const(0), const(3))
    to = symbol(four) + 1 - 2 * (symbol(four) % 2)
    assert prove.injective(to, always, four, const(4)).verdict == "always"
    assert prove.injective((2 * symbol(four)) % 4, always, four, const(4)).verdict == "refuted"


def test_permutes_over_two_axes() -> None:
    size = X.size * Y.size
    var = Sym("p", "var", const(0), size - 1)
    at = symbol(var)
    assert prove.injective((at + 1) % size, always, var, size).verdict == "always"
    turned = (at % Y.size) * X.size + at // Y.size  # transposes the mesh: right for every shape
    proof = prove.injective(turned, always, var, size)
    assert proof.verdict == "checked" and proof.checked == 64
    wrong = (at % Y.size) * Y.size + at // Y.size  # right where it is square
    found = prove.injective(wrong, always, var, size)
    assert found.verdict == "refuted"
    square = prove.injective(wrong, always, var, size, [expr.eq(X.size, Y.size)])
    assert square.verdict == "checked"
    source, receives = prove.inverse((at + 3) % size, always, var, size) or (at, at)
    assert (str(source), str(receives)) == ("(p - 3) % (n_x * n_y)", "1")


@settings(max_examples=150, deadline=None)
@given(
    st.integers(-3, 3), st.integers(-4, 4), st.booleans(), st.integers(-2, 4),
    st.sampled_from(["all", "below", "above", "even", "choice"]),
)
def test_random_maps(a: int, b: int, wraps: bool, limit: int, kind: str) -> None:
    """Proofs are never wrong, counter-examples are real and the smallest, inverses invert."""
    to = (a * p + b) % n if wraps else a * p + b
    sends = {
        "all": always, "below": expr.lt(p, n - limit), "above": expr.ge(p, limit),
        "even": expr.eq(p % 2, 0), "choice": always,
    }[kind]
    if kind == "choice":
        to = expr.select(expr.lt(p, limit), p, to)
    proof = prove.injective(to, sends, P, n)
    inverse = prove.inverse(to, sends, P, n)
    for size in range(1, 20):
        values = {"n_x": size}
        sender = routes(to, sends, size, values)
        if proof.counter_example is not None:
            assert (sender is None) == (size == proof.counter_example.members) or (
                size > proof.counter_example.members)
            continue
        ok = proof.condition is None or proof.condition.evaluate(values)
        assert not ok or sender is not None, (to, sends, size)
        if sender is None or inverse is None:
            continue
        for k in range(size):
            source, receives = (e.evaluate({**values, "p": k}) for e in inverse)
            assert 0 <= source < size
            assert receives == (k in sender), (to, sends, size, k)
            assert not receives or source == sender[k], (to, sends, size, k)


# ---- sums ----------------------------------------------------------------------------------------

S = Sym("s", "scalar")
E = Sym("e", "scalar", const(0))
e = symbol(E)
SUMS: dict[str, Expr] = {
    "equal": e,
    "one": const(1),
    "linear": 3 * p + e,
    "squares": p * p,
    "balanced blocks": mesh.block_extent(e, n, p),
    "balanced blocks, the last first": mesh.block_extent(e, n, n - 1 - p) * 3,
    "blocks as users write them": e // n + expr.lt(p, e % n),
    "blocks of a constant, with halo": mesh.block_extent(17, n, p) + 2,
    "one rank more": e + expr.eq(p, 2),
    "all but the last": expr.lt(p, n - 1) * e,
    "from the third": expr.ge(p, 2),
}


@pytest.mark.parametrize("name", SUMS)
def test_prefix_sums(name: str) -> None:
    extent = SUMS[name]
    upto, total = estimate.prefix_sum(extent, P, p), estimate.prefix_sum(extent, P, n)
    assert upto is not None and total is not None
    for size, count in itertools.product(range(1, 8), range(0, 20, 3)):
        parts = [extent.evaluate({"n_x": size, "e": count, "p": k}) for k in range(size)]
        for k in range(size):
            assert upto.evaluate({"n_x": size, "e": count, "p": k}) == sum(parts[:k])
        assert total.evaluate({"n_x": size, "e": count}) == sum(parts)


def test_sums_of_blocks_are_the_meshs_own() -> None:
    extent = mesh.block_extent(e, n, p)
    assert estimate.prefix_sum(extent, P, p) == mesh.block_offset(e, n, p)
    assert estimate.prefix_sum(extent, P, n) == e
    assert estimate.prefix_sum(p * p * p, P, n) is None
    assert estimate.prefix_sum(e // (p + 1), P, n) is None


# ---- bounds --------------------------------------------------------------------------------------

I = X.coord_sym  # noqa: E741
i = symbol(I)
C = Sym("c", "counter", const(0), n - 2)
turn = (i - symbol(C)) % n
BOUNDED: dict[str, Expr] = {
    "block": mesh.block_extent(e, n, i),
    "block of a constant": mesh.block_extent(1000, n, i),
    "turned block": mesh.block_extent(e, n, turn),
    "with halo": mesh.block_extent(e, n, i) + 2,
    "product": mesh.block_extent(e, n, i) * mesh.block_extent(7, n, turn),
    "end of a block": mesh.block_offset(e, n, i) + mesh.block_extent(e, n, i),
    "choice": expr.select(expr.lt(i, 1), e, n + 3),
    "choice of a choice": expr.select(expr.lt(i, symbol(C)), expr.select(expr.eq(i, 1), 2, e), i),
    "falling": e + n - i,
    "mixed sign": (i - 2) * (symbol(C) - 1),
    "remainder": (e + i) % 5,
    "quotient": e // (i + 1),
    "remainder by it": e % (i + 1),
    "clamped": expr.maximum(0, expr.minimum(symbol(S) + i, e)),
    "square": i * i,
    "no more than": expr.minimum(symbol(S), i),
}
AWAY = {I, C}


def each(size: int) -> list[dict[str, int]]:
    return [
        {"n_x": size, "i_x": k, "c": c, "e": count, "s": s}
        for k in range(size) for c in range(size - 1) for count in (0, 1, 5, 12) for s in (-3, 2)
    ]


@pytest.mark.parametrize("name", BOUNDED)
@pytest.mark.parametrize("reach", [estimate.upper_bound, estimate.lower_bound])
def test_bounds_hold_and_mention_nothing_eliminated(
    name: str, reach: Callable[[Expr, set[Sym]], Expr]
) -> None:
    extent = BOUNDED[name]
    bound = reach(extent, AWAY)
    assert not bound.symbols() & AWAY
    for size in range(2, 6):
        for values in each(size):
            low, high = extent.evaluate(values), bound.evaluate(values)
            assert low <= high if reach is estimate.upper_bound else high <= low, values


def test_bounds_of_blocks_are_tight() -> None:
    for name, most in {"block": lambda c, s: -(-c // s), "with halo": lambda c, s: -(-c // s) + 2,
                       "turned block": lambda c, s: -(-c // s)}.items():
        bound = estimate.upper_bound(BOUNDED[name], AWAY)
        for size, count in itertools.product(range(1, 9), range(20)):
            assert bound.evaluate({"n_x": size, "e": count}) == most(count, size), name


def test_what_is_unbounded_is_said() -> None:
    free = Sym("k", "counter", const(0))
    with pytest.raises(ProgramError, match="no upper bound") as caught:
        estimate.upper_bound(e + symbol(free), {free})
    assert estimate.lower_bound(e + symbol(free), {free}) == e
    assert "min(" in str(caught.value)


# ---- trying values -------------------------------------------------------------------------------


def test_shapes_are_all_and_in_order() -> None:
    assert facts.shapes(1, 4) == [(1,), (2,), (3,), (4,)]
    assert facts.shapes(2, 4) == [
        (1, 1), (1, 2), (2, 1), (1, 3), (3, 1), (1, 4), (2, 2), (4, 1)]
    assert all(a * b * c <= 12 for a, b, c in facts.shapes(3, 12))


def test_environments_respect_bounds() -> None:
    most = Sym("n_b", "size", const(1), const(5))
    for values in facts.environments({I, C, most}, None, 12):
        assert 0 <= values["i_x"] < values["n_x"]
        assert 0 <= values["c"] <= values["n_x"] - 2
        assert values["n_b"] <= 5


def test_primes() -> None:
    assert [prove.primes(a) for a in (1, 2, 12, 97, 360)] == [[], [2], [2, 3], [97], [2, 3, 5]]
