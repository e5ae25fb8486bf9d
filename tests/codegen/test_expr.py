"""Symbolic integers against brute force: every operation, every small value, every spelling."""

from __future__ import annotations

import itertools
import time

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from codegen import mesh
from codegen.errors import ProgramError
from codegen.image import manifest
from codegen.symbolic import estimate, expr, spelling
from codegen.symbolic.expr import Expr, Sym, const, symbol
from codegen.symbolic.meaning import OPERATIONS
from codegen.verify.vectors import Terms

N = Sym("n", "size", const(1))
I = Sym("i", "coord", const(0), symbol(N) - 1)  # noqa: E741
S = Sym("s", "counter", const(0), symbol(N) - 2)
E = Sym("e", "scalar", const(0))
Z = Sym("z", "scalar")
n, i, s, e, z = (symbol(x) for x in (N, I, S, E, Z))


def points(names: str = "nisez", top: int = 6) -> list[dict[str, int]]:
    """Every assignment within the bounds, small values."""
    out = []
    for size in range(1, top):
        ranges = {"n": [size], "i": range(size), "s": range(size - 1), "e": range(0, 14, 3),
                  "z": range(-4, 5)}
        for values in itertools.product(*(ranges[k] for k in names)):
            out.append(dict(zip(names, values, strict=True)))
    return out


ALL = points()

# ---- every operation, exhaustively ---------------------------------------------------------------

OPERANDS = [const(-3), const(0), const(1), const(2), const(5), n, i, e, z, n - 1, i - s, 2 * i + 1,
            z - n, i * n + s, -e, 3 * z - 2]
BINARY = ["floordiv", "mod", "min", "max"]


@pytest.mark.parametrize("op", BINARY)
def test_binary_operations_on_all_small_values(op: str) -> None:
    build = {"floordiv": expr.floordiv, "mod": expr.mod, "min": expr.minimum,
             "max": expr.maximum}[op]
    for a, b in itertools.product(OPERANDS, repeat=2):
        made = expr.function(build(a, b), "nisez")
        left, right = expr.function(a, "nisez"), expr.function(b, "nisez")
        for p in ALL:
            v = p.values()
            assert made(*v) == OPERATIONS[op](left(*v), right(*v)), (op, a, b, p)


def test_comparisons_and_logic_on_all_small_values() -> None:
    table = {
        expr.ge: int.__ge__, expr.gt: int.__gt__, expr.le: int.__le__, expr.lt: int.__lt__,
        expr.eq: int.__eq__, expr.ne: int.__ne__,
    }
    for a, b in itertools.product(OPERANDS, repeat=2):
        for build, reference in table.items():
            made = expr.function(build(a, b), "nisez")
            left, right = expr.function(a, "nisez"), expr.function(b, "nisez")
            for p in ALL[::3]:
                v = p.values()
                assert made(*v) == int(reference(left(*v), right(*v))), (build, a, b, p)


@pytest.mark.parametrize("d", [-7, -2, -1, 0, 1, 2, 3, 8])
def test_division_by_constants_is_pythons(d: int) -> None:
    for a in (z, 5 * z + 3, -z, 8 * z - 1, 2 * z + 7 * i, i - 3 * s):
        for p in points("nisz"):
            x = a.evaluate(p)
            assert (a // d).evaluate(p) == (x // d if d else 0)
            assert (a % d).evaluate(p) == (x % d if d else 0)


def test_blocks_are_numpys() -> None:
    for count, blocks in itertools.product(range(12), range(1, 7)):
        parts = np.array_split(np.arange(count), blocks)
        for k in range(blocks):
            values = {"n": blocks, "i": k, "e": count}
            assert mesh.block_extent(e, n, i).evaluate(values) == len(parts[k])
            assert mesh.block_offset(e, n, i).evaluate(values) == sum(map(len, parts[:k]))


# ---- random trees --------------------------------------------------------------------------------

Tree = tuple
TABLE = (4, -1, 0, 3, 2)


def trees() -> st.SearchStrategy[Tree]:
    leaf = st.one_of(
        st.integers(-4, 6).map(lambda v: ("const", v)), st.sampled_from("nisez").map(lambda x: (x,))
    )
    ops = ["+", "-", "*", "floordiv", "mod", "min", "max", "ge", "eq", "select", "begin", "block",
           "table"]
    return st.recursive(
        leaf, lambda t: st.tuples(st.sampled_from(ops), t, t, t), max_leaves=9
    )


def build(t: Tree) -> Expr:
    if t[0] == "const":
        return const(t[1])
    if len(t) == 1:
        return {"n": n, "i": i, "s": s, "e": e, "z": z}[t[0]]
    a, b, c = (build(x) for x in t[1:])
    return {
        "+": lambda: a + b, "-": lambda: a - b, "*": lambda: a * b,
        "floordiv": lambda: a // b, "mod": lambda: a % b,
        "min": lambda: expr.minimum(a, b), "max": lambda: expr.maximum(a, b),
        "ge": lambda: expr.ge(a, b), "eq": lambda: expr.eq(a, b),
        "select": lambda: expr.select(expr.lt(a, b), c, a),
        "begin": lambda: expr.begin(a, b, c), "block": lambda: mesh.block_extent(b, c, a),
        "table": lambda: expr.table(a, *TABLE),
    }[t[0]]()


def value(t: Tree, p: dict[str, int]) -> int:
    if t[0] == "const":
        return int(t[1])
    if len(t) == 1:
        return p[t[0]]
    a, b, c = (value(x, p) for x in t[1:])
    simple = {"+": a + b, "-": a - b, "*": a * b, "min": min(a, b), "max": max(a, b),
              "ge": int(a >= b), "eq": int(a == b), "select": c if a < b else a,
              "begin": OPERATIONS["begin"](a, b, c), "table": OPERATIONS["table"](a, *TABLE),
              "block": OPERATIONS["floordiv"](b, c) + (a < OPERATIONS["mod"](b, c))}
    return simple[t[0]] if t[0] in simple else OPERATIONS[t[0]](a, b)


SOME = points(top=5)[::7]


def test_begin_on_all_small_values() -> None:
    numbers, extents = [*OPERANDS[:8], n - 1, z - n], [const(7), n, e, z, i * n + s]
    sizes = [const(0), const(1), const(3), n, z, n - 1]
    for k, b, size in itertools.product(numbers, extents, sizes):
        made = expr.function(expr.begin(k, b, size), "nisez")
        parts = [expr.function(x, "nisez") for x in (k, b, size)]
        for p in SOME:
            v = p.values()
            assert made(*v) == OPERATIONS["begin"](*(f(*v) for f in parts)), (k, b, size, p)


@settings(max_examples=250, deadline=None)
@given(trees())
def test_all_domains_hold_the_integers(t: Tree) -> None:
    """An expression means the same in Python, in C, to ranks, at many points at once, at sample
    points, over ranges of its symbols, and without some of them."""
    made, exact = build(t), [value(t, p) for p in SOME]
    fast, prefix, c = expr.function(made, "nisez"), expr.to_json(made), made.c(lambda s: s.name)
    assert [fast(*p.values()) for p in SOME] == exact
    for p, v in list(zip(SOME, exact, strict=True))[::7]:
        assert made.evaluate(p) == manifest.evaluate(prefix, p) == c_value(c, p) == v, (made, p)
    drawn = {x.name: x.samples for x in (N, I, S, E, Z)}
    for k, v in enumerate(made.samples):
        p = {name: column[k] for name, column in drawn.items()}
        assert v == (value(t, p) if None not in p.values() else v), (made, p)
    in_vectors_and_ranges(made, exact)
    try:
        bounds = estimate.lower_bound(made, {I, S}), estimate.upper_bound(made, {I, S})
    except ProgramError:
        return
    for p, v in list(zip(SOME, exact, strict=True))[::5]:
        assert bounds[0].evaluate(p) <= v <= bounds[1].evaluate(p), (made, p)


def in_vectors_and_ranges(made: Expr, exact: list[int]) -> None:
    terms = Terms()
    columns = {name: [p[name] for p in SOME] for name in "nisez"}
    names = {k: terms.symbol(k, min(v), max(v)) for k, v in columns.items()}
    term = terms.read(expr.to_json(made), names)
    dtype = terms.dtype(term)
    arrays = {names[k]: np.array(v, dtype=dtype) for k, v in columns.items()}
    found = terms.points((term,), arrays)[term]
    assert np.broadcast_to(found, len(exact)).tolist() == exact
    ends = {s: (a.min(keepdims=True), a.max(keepdims=True)) for s, a in arrays.items()}
    least, most = terms.ranges((term,), ends)[term]
    assert np.all(least <= min(exact)) and np.all(most >= max(exact))


@pytest.mark.parametrize("table", range(256))
def test_every_truth_of_three_truths_is_spelled_right(table: int) -> None:
    """All functions of three truth values, which no chain of and, or spells for most of them."""
    truths = [expr.ge0(i - 1), expr.eq0(expr.mod(s, const(2))), expr.lt(e, s)]
    made = const(0)
    for row in range(8):
        term = const(table >> row & 1)
        for k, truth in enumerate(truths):
            term = term * (truth if row >> k & 1 else 1 - truth)
        made = made + term
    fast, c = expr.function(made, "nisez"), spelling.c_text(made, lambda x: x.name)
    for p in SOME[::11]:
        row = (p["i"] >= 1) + 2 * (p["s"] % 2 == 0) + 4 * (p["e"] < p["s"])
        assert fast(*p.values()) == c_value(c, p) == table >> row & 1


def c_value(text: str, p: dict[str, int]) -> int:
    """C text read by Python: the operators used mean the same there, but for ?: and the words."""
    return int(_C(text.replace("&&", " and ").replace("||", " or "), p))


def _C(text: str, p: dict[str, int]) -> int:
    names = {"spmd_floordiv": OPERATIONS["floordiv"], "spmd_mod": OPERATIONS["mod"],
             "spmd_min": min, "spmd_max": max, "spmd_begin": OPERATIONS["begin"],
             "spmd_table": OPERATIONS["table"], **p}
    return eval(_choices(text), names)


def _choices(text: str) -> str:
    """Rewrite C's choices (a ? b : c) inside each pair of parentheses as Python writes them."""
    out, at = "", 0
    while at < len(text):
        if text[at] == "(":
            end = _closing(text, at)
            out += f"({_choices(text[at + 1 : end])})"
            at = end + 1
        else:
            out += text[at]
            at += 1
    return ",".join(_one_choice(part) for part in _top_split(out, ","))


def _one_choice(text: str) -> str:
    parts = _top_split(text, "?")
    if len(parts) == 1:
        return text
    yes, no = _top_split(parts[1], ":")
    return f"({yes}) if ({parts[0]}) else ({no})"


def _closing(text: str, at: int) -> int:
    depth = 0
    for k in range(at, len(text)):
        depth += {"(": 1, ")": -1}.get(text[k], 0)
        if not depth:
            return k
    raise AssertionError(f"unbalanced: {text}")


def _top_split(text: str, mark: str) -> list[str]:
    parts, depth = [""], 0
    for ch in text:
        depth += {"(": 1, ")": -1}.get(ch, 0)
        if ch == mark and not depth:
            parts.append("")
        else:
            parts[-1] += ch
    return parts


@settings(max_examples=250, deadline=None)
@given(trees())
def test_what_is_proved_is_true(t: Tree) -> None:
    made = build(t)
    values = [made.evaluate(p) for p in SOME]
    if expr.nonneg(made):
        assert min(values) >= 0, made
    if expr.nonneg(-made - 1):
        assert max(values) < 0, made
    if expr.equal(made, 3):
        assert set(values) == {3}


@settings(max_examples=100, deadline=None)
@given(trees(), trees())
def test_substitution_is_evaluation(t: Tree, u: Tree) -> None:
    """z := u, then evaluate, is evaluate u, then t."""
    inner = build(u)
    made = build(t).subst({Z: inner})
    for p in SOME[::11]:
        assert made.evaluate(p) == value(t, {**p, "z": inner.evaluate(p)})


def test_a_name_with_other_bounds_is_another_symbol() -> None:
    wide, narrow = symbol(Sym("k")), symbol(Sym("k", "var", const(0)))
    assert expr.nonneg(narrow) and not expr.nonneg(wide)
    assert wide != narrow
    assert wide - wide == 0


# ---- facts that must be provable -----------------------------------------------------------------

J = Sym("j", "coord", const(0), symbol(Sym("m", "size", const(1))) - 1)
j, m = symbol(J), symbol(Sym("m", "size", const(1)))
turn = (i - s) % n


def extent(k: Expr, count: Expr | int = e) -> Expr:
    return mesh.block_extent(count, n, k)


def offset(k: Expr, count: Expr | int = e) -> Expr:
    return mesh.block_offset(count, n, k)



PART = Sym("j0", "var", const(0), extent(i) - 1)  # counts within this rank's block

NONNEG = {
    "an offset": offset(i),
    "an extent": extent(i),
    "a block ends within the dim": e - offset(i) - extent(i),
    "a block of a constant": 1000 - offset(i, 1000) - extent(i, 1000),
    "a turned block ends within the dim": e - offset(turn) - extent(turn),
    "a turned block of a constant": 1000 - offset(turn, 1000) - extent(turn, 1000),
    "a turn is below n": n - 1 - turn,
    "a turn by one": n - 1 - (i + 1) % n,
    "an offset grows": offset(i + 1) - offset(i),
    "a turned block does not begin before the dim": offset(turn),
    "two blocks are at most twice the longest": 2 * extent(const(0)) - offset(i + 2) + offset(i),
    "and no shorter than two short ones": offset(i + 2) - offset(i) - 2 * (e // n),
    "a part of a block ends within the dim": e - 1 - offset(i) - symbol(PART),
    "blocks that a user wrote": e - i * (e // n) - expr.minimum(i, e % n) - extent(i),
    "offset plus extent is the next offset": offset(i) + extent(i) - offset(i + 1),
    "and not less": offset(i + 1) - offset(i) - extent(i),
    "blocks differ by one at most": extent(i) + 1 - extent(const(0)),
    "the first is the largest": extent(const(0)) - extent(i),
    "min": i - expr.minimum(i, z),
    "max": expr.maximum(i, z) - i,
    "max of min": expr.maximum(0, expr.minimum(z, n - 1)),
    "clamped": n - 1 - expr.maximum(0, expr.minimum(z, n - 1)),
    "choice in range": n - 1 - expr.select(expr.lt(i, n - 1), i + 1, 0),
    "product of sizes": n * m - n,
    "position on two axes": n * m - 1 - (i * m + j),
    "a quotient": n - 1 - (i * m + j) // m,
    "half": e - e // 2,
    "remainder": e - e % n,
    "square": n * n - n,
    "halo": extent(i) + 2 - 1 - extent(i),
    "quotients of one divisor": (e + 3) // n - e // n,
}


@pytest.mark.parametrize("name", NONNEG)
def test_nonneg_facts(name: str) -> None:
    fact = NONNEG[name]
    fact = fact.subst({PART: extent(i) - 1})
    names = sorted({x.name for x in fact.symbols()})
    for size, other in itertools.product(range(1, 5), repeat=2):
        free = {"n": [size], "m": [other], "i": range(size), "j": range(other),
                "s": range(size - 1), "e": range(9), "z": range(-4, 8)}
        for values in itertools.product(*(free[x] for x in names)):
            assert fact.evaluate(dict(zip(names, values, strict=True))) >= 0, "the fact is false"
    assert expr.nonneg(NONNEG[name])


EQUAL = {
    "wrap by choice": ((i + 1) % n, expr.select(expr.lt(i, n - 1), i + 1, 0)),
    "wrap down": ((i - 1) % n, expr.select(expr.gt(i, 0), i - 1, n - 1)),
    "mod of mods": (((i + 1) % n - s) % n, (i - s + 1) % n),
    "mod adds n": ((i + n - 1) % n, (i - 1) % n),
    "there and back": (((i + 1) % n - 1) % n, i),
    "neighbours' shards": (
        extent((i - s - 1) % n), extent(((i + 1) % n - s - 2) % n)),
    "division undone": (n * (e // n) + e % n, e),
    "division by two undone": (2 * (e // 2) + e % 2, e),
    "min and max": (expr.minimum(i, z) + expr.maximum(i, z), i + z),
    "not not": (1 - (1 - expr.lt(i, z)), expr.lt(i, z)),
    "interval": (expr.ge(i, 2) * expr.ge(i, 1), expr.ge(i, 2)),
    "empty interval": (expr.ge(i, 2) * expr.lt(i, 1), const(0)),
    "either": (expr.lt(z, 3) + expr.ge(z, 3), const(1)),
    "scaled comparison": (expr.ge(2 * z, 5), expr.ge(z, 3)),
    "scaled equation": (expr.eq(2 * z, 5), const(0)),
    "position of coordinates": (((i * m + j) // m) * m + (i * m + j) % m, i * m + j),
    "the last": (expr.eq(i, n - 1), 1 - expr.lt(i, n - 1)),
    "all blocks": (offset(n), e),
    "the last block": (extent(n - 1), e // n),
    "one block": (mesh.block_offset(e, 1, i), i * e),
    "whole blocks": (mesh.block_offset(6 * n, n, i), 6 * i),
    "an offset as users write it": (i * (e // n) + expr.minimum(i, e % n), offset(i)),
    "an extent as users write it": (e // n + expr.lt(turn, e % n), extent(turn)),
    "the first is rounded up": (-(-e // n), extent(const(0))),
}


@pytest.mark.parametrize("name", EQUAL)
def test_equal_facts(name: str) -> None:
    a, b = EQUAL[name]
    assert expr.equal(a, b), f"{a}  ==  {b}"


def test_unequal_is_not_proved() -> None:
    for a, b in [(i, s), (i + 1, (i + 1) % n), (e // n, e), (offset(i), offset(i + 1))]:
        assert not expr.equal(a, b)


# ---- reading and speed ---------------------------------------------------------------------------

TEXTS = {
    "i < n - 1": expr.lt(i, n - 1),
    "i == 0": expr.eq(i, 0),
    "i > 0": expr.ne(i, 0),
    "z >= 3": expr.ge(z, 3),
    "e == z": expr.eq(e, z),
    "i + 1 if i < n - 1 else 0": expr.select(expr.lt(i, n - 1), i + 1, 0),
    "e // n + (i < e % n)": extent(i),
    "begin(i, e, n)": offset(i),
    "(i - s) % n": turn,
    "n - 1": n - 1,
    "0": const(0),
    "-2 * z": -2 * z,
    "i > 0 and z >= 2": expr.ge(i, 1) * expr.ge(z, 2),
}


@pytest.mark.parametrize("text", TEXTS)
def test_text_reads_well(text: str) -> None:
    assert str(TEXTS[text]) == text


def test_c_text_is_in_parentheses() -> None:
    def name(sym: Sym) -> str:
        return sym.name

    assert extent(i).c(name) == "spmd_floordiv(e, n) + (i < spmd_mod(e, n))"
    assert expr.select(expr.lt(i, n - 1), i + 1, 0).c(name) == "(i < n - 1 ? i + 1 : 0)"
    assert expr.lt(i, n - 1).c(name) == "(i < n - 1)"


def test_prefix_form() -> None:
    assert expr.to_json(const(0)) == 0
    assert expr.to_json(2 * i + 1) == ["+", ["*", 2, "i"], 1]
    assert expr.to_json((i + z) % n) == ["mod", ["+", "i", "z"], "n"]


def test_construction_is_fast() -> None:
    """The whole of a ring's addresses, new each time: microseconds per operation, with room."""
    def each(turn: int) -> float:
        start, operations = time.process_time(), 0
        for k in range(60 * turn, 60 * turn + 60):
            size = symbol(Sym(f"n{k}", "size", const(1)))
            at = symbol(Sym(f"i{k}", "coord", const(0), size - 1))
            step = symbol(Sym(f"s{k}", "counter", const(0), size - 2))
            for back in range(3):
                block = (at - step - back) % size
                where = mesh.block_offset(1000 + k, size, block)
                expr.minimum(where + mesh.block_extent(1000 + k, size, block), 1000 + k)
                operations += 20
        return (time.process_time() - start) / operations

    assert any(each(turn) < 1e-3 for turn in range(5))

# ---- divisibility ------------------------------------------------------------------------------

D = Sym("d", "size", const(1), const(12), 12)
K = Sym("k", "coord", const(0), symbol(D) - 1)
DIVISORS = [{"d": d, "k": k, "z": z} for d in (1, 2, 3, 4, 6, 12) for k in range(d)
            for z in range(-7, 8)]


def test_a_size_that_divides_a_number() -> None:
    """Equal values at all divisors; and whole blocks have one extent, whatever the index."""
    d, k = symbol(D), symbol(K)
    operands = [const(c) for c in (-24, -12, -5, 0, 7, 12, 30, 36)]
    operands += [12 * z + k, 24 * z - 12 * k + 5, z * d + 12, 12 - k, 12 * k * z]
    for a in operands:
        for op in BINARY:
            build = {"floordiv": expr.floordiv, "mod": expr.mod, "min": expr.minimum,
                     "max": expr.maximum}[op]
            made, left = expr.function(build(a, d), "dkz"), expr.function(a, "dkz")
            for p in DIVISORS:
                v = p.values()
                assert made(*v) == OPERATIONS[op](left(*v), p["d"]), (op, a, p)
    for extent in (12, 24, 36):
        assert mesh.block_extent(extent, d, k) == const(extent) // d
        assert (const(extent) // d) * d == extent
    assert mesh.block_extent(18, d, k) != const(18) // d


def test_halves_are_within_the_whole() -> None:
    """It proves n // 2 <= n - 1 for n >= 1, which `blocks(x, n)[n // 2]` needs, and does not
    overclaim."""
    for e in (n // 2, (n - 1) // 2, n // 3, (n + i) // 2, (2 * n - 1) // 2, (n - 1) * 2 // 3):
        assert expr.nonneg(e) and expr.nonneg(n - 1 - e), e
    for e in ((n + 1) // 2, n // 1, (n + 2) // 3):
        assert not expr.nonneg(n - 1 - e), e
    assert expr.nonneg((n + 3) // 2 - 2) and not expr.nonneg((n + 2) // 2 - 2)
