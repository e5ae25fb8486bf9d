"""Checks that were asked for: the first wrong line, element and rank; silence where all holds."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.compare_ranks import compare_ranks
from codegen.checks.instrument import instrument
from codegen.checks.names import CHECKS, USUAL, checks_of
from codegen.errors import CheckError, UsageError
from codegen.ir.graph import Module
from codegen.layouts.partition import partition
from codegen.oracle.interpret import run
from spmd.cli import parsed
from spmd.eager_command import command as run_eager
from spmd.launch.processes import Processes

K = np.arange(5)


def program(body: Callable[..., Any], checks: str) -> tuple[Module, Module]:
    """Graph and Program of body(u, k, s), with these checks."""

    @spmd.program(mesh=("r",))
    def case():
        u = spmd.input("u", (12,), np.float64, layout=("r",), default=lambda i: i)
        k = spmd.input("k", (5,), np.int64, layout=("r",), default=lambda i: i)
        return body(u, k, spmd.scalar("s", 3))

    graph = case.graph({}, checks_of(checks))
    return graph, instrument(partition(graph))


def written(u, k, s):
    u[k] = 1.0
    return u


def added(u, k, s):
    np.add.at(u, k, 1.0)
    return u


def divided(u, k, s, careful=False):
    total = 0
    for k in spmd.range(s + 1):
        total = total + ((7 // (k - 2) if k != 2 else 0) if careful else 7 % (k - 2))
    return total


OUT = "index of dim 0 is out of bounds: "
# what is computed; what is given; what is said, by every level; where (3 ranks)
BOUNDS = [
    (lambda u, k, s: u[k], {"k": 5 * K}, OUT + "15 (element (3,) of the indices)", 1),
    (lambda u, k, s: u[k - 13], {}, OUT + "-13 (element (0,) of the indices)", 0),
    (lambda u, k, s: u[k - 12] + u[k + 7], {}, "", 0),
    (lambda u, k, s: u[k[2]], {"k": 7 * K}, OUT + "14", 0),
    (lambda u, k, s: u[4 * s], {}, OUT + "12", 0),
    (lambda u, k, s: u[-4 * s], {}, "", 0),
    (lambda u, k, s: u[:, None][s, k - 2], {}, "index of dim 1 is out of bounds: -2", 0),
    (written, {"k": 4 * K}, OUT + "12 (element (3,) of the indices)", 1),
    (added, {"k": 4 * K}, OUT + "12 (element (3,) of the indices)", 1),
    (lambda u, k, s: np.take(u, k), {"k": 4 * K}, OUT + "12", 1),
    (lambda u, k, s: np.take(u, k, mode="clip"), {"k": 4 * K}, "", 0),
    (lambda u, k, s: np.take_along_axis(u, k, 0), {"k": 4 * K}, OUT + "12", 1),
    (lambda u, k, s: spmd.dynamic_slice(u, (k[0] + 9,), (4,)), {}, "a box begins out of bounds in "
     "dim 0: 9", 0),
    (lambda u, k, s: spmd.dynamic_slice(u, (k[0] + 8,), (4,)), {}, "", 0),
    (lambda u, k, s: np.choose(k, [u[:5], u[1:6]] * 2), {}, "np.choose: there is no such choice: 4 "
     "(element (4,)", 2),
    (lambda u, k, s: np.unravel_index(k - 1, (2, 3)), {}, "an index of np.unravel_index is out of "
     "bounds: -1 (element (0,)", 0),
    (lambda u, k, s: np.ravel_multi_index((k, 0 * k), (4, 2)), {}, "an index of np.ravel_multi_ind"
     "ex is out of bounds: 4 (element (4,)", 2),
    (lambda u, k, s: k ** (1 - k), {}, "integers to negative integer powers are not allowed: -1 "
     "(element (2,)", 1),
    (divided, {}, "division by zero: k - 2 is 0", 0),
    (lambda u, k, s: spmd.shard_map(lambda v: v + 1 / spmd.axis_index("r"))(u), {},
     "division by zero: i_r is 0", 0),
    (lambda u, k, s: divided(u, k, s, True), {}, "", 0),
    (lambda u, k, s: (k ** k, 2 ** s + s ** -2, np.choose(k, [u[:5]] * 5)), {}, "", 0),
]


@pytest.mark.parametrize(("body", "given", "said", "rank"), BOUNDS)
def test_indices_of_run_time(body, given, said, rank):
    graph, local = program(body, "bounds")
    for module in (graph, local):
        if not said:
            run(module, {"r": 3}, given)
            continue
        with pytest.raises(CheckError) as error:
            run(module, {"r": 3}, given)
        text = str(error.value)
        assert f": {said}" in text and __file__ in text and "\n  expected: " in text
        assert module is graph or f"where:    rank {rank}" in text


MADE = "makes a NaN or an infinity where there was none"
NAN = [
    (lambda u, k, s: np.log(u), {}, f"log {MADE} (element (0,) of the array)", 0),
    (lambda u, k, s: np.log(u), {"u": np.full(12, np.nan)}, "", 0),
    (lambda u, k, s: u - u, {"u": np.full(12, np.inf)}, f"subtract {MADE}", 0),
    (lambda u, k, s: 1 / (u - 7), {}, f"divide {MADE} (element (7,) of the array)", 1),
    (lambda u, k, s: np.where(u > 0, 2 * np.log(u) + 1, 0), {}, "", 0),
    (lambda u, k, s: np.where(u >= 0, 2 * np.log(u) + 1, 0), {}, f"np.where {MADE}", 0),
    (lambda u, k, s: np.sum(u), {"u": np.full(12, 1e308)}, f"a sum {MADE}", 0),
    (lambda u, k, s: np.max(u), {"u": np.full(12, -np.inf)}, "", 0),
    (lambda u, k, s: np.cumsum(u), {"u": np.full(12, 1e308)}, f"a running total {MADE}", 0),
    (lambda u, k, s: u @ u, {"u": np.full(12, 1e200)}, f"a product of matrices {MADE}", 0),
    (lambda u, k, s: 2 * (1 / u) + 1, {}, f"this expression {MADE} (element (0,)", 0),
    (lambda u, k, s: (np.isclose(u, u), (u > 1) & (np.log(u - 1) > 0)), {"u": np.full(12, -np.inf)},
     "", 0),
    (lambda u, k, s: np.exp(-1 / u), {}, f"divide {MADE}", 0),  # which makes 0 of -inf
    (lambda u, k, s: (np.mean(u), np.std(u), np.median(u), np.sort(u), u @ u), {}, "", 0),
    (lambda u, k, s: np.sort(u) + 1, {"u": np.full(12, np.nan)}, "", 0),
    (lambda u, k, s: u.astype(np.float16), {"u": np.full(12, 1e6)}, f"a conversion {MADE}", 0),
]


@pytest.mark.parametrize(("body", "given", "said", "rank"), NAN)
def test_nan_and_infinities(body, given, said, rank):
    ends(program(body, "nan")[1], given, said, rank)


OVERFLOW = [
    (lambda u, k, s: k * 2**40 * 2**22, {}, "multiply of integers overflows int64 (element", 1),
    (lambda u, k, s: k + (2**63 - 4), {}, "add of integers overflows int64 (element (4,)", 2),
    (lambda u, k, s: 7 // k, {}, "an integer is divided by zero (element (0,)", 0),
    (lambda u, k, s: (100 * k).astype(np.int8), {}, "a number does not fit int8 (element (2,)", 1),
    (lambda u, k, s: (u * 1e18).astype(np.int64), {}, "a number does not fit int64 (element", 2),
    (lambda u, k, s: np.sum(k), {"k": 0 * K + 2**62}, "a sum of integers overflows int64", 0),
    (lambda u, k, s: -(k.astype(np.int8) - 127 - 1), {}, "negative of integers overflows int8", 0),
    (lambda u, k, s: spmd.shard_map(lambda v: v + spmd.pscan(0 * np.sum(v) + 2**62, "r"))(0 * k),
     {}, "what ranks combine of integers overflows int64", 1),
    (lambda u, k, s: spmd.shard_map(lambda v: spmd.psum_scatter(
        np.full(6, 2**62) + np.sum(v), "r", tiled=True), out_layouts=("r",))(k), {},
     "what ranks combine of integers overflows int64 (element", 0),
    (lambda u, k, s: k.astype(np.uint8) - np.uint8(3), {}, "", 0),
    (lambda u, k, s: spmd.random.normal(3, (12,)) + spmd.random.permutation(3, 12), {}, "", 0),
    (lambda u, k, s: (np.histogram(u, bins=4)[0], k + 2**62, np.sum(k * k)), {}, "", 0),
]


@pytest.mark.parametrize(("body", "given", "said", "rank"), OVERFLOW)
def test_integers(body, given, said, rank):
    ends(program(body, "overflow")[1], given, said, rank)


def ends(module: Module, given: dict[str, Any], said: str, rank: int) -> None:
    if not said:
        run(module, {"r": 3}, given)
        return
    with pytest.raises(CheckError) as error:
        run(module, {"r": 3}, given)
    text = str(error.value)
    assert f": {said}" in text and __file__ in text and f"where:    rank {rank}" in text


def ring(u, turns):
    total = passing = np.sum(u)
    for _ in spmd.range(turns):
        passing = spmd.ppermute(passing, "r", shift=1)
        total = total + passing
    return total


EQUAL = [
    (lambda u, w: ring(u, spmd.axis_size("r") - 1), (), ""),
    (lambda u, w: ring(u, spmd.axis_size("r") - 2), (), "44.0, as on the first rank|28.0"),
    (lambda u, w: w * spmd.index(), (None,), "(element (1,) of this rank's part)|0.0, as on"),
    (lambda u, w: spmd.psum(np.sum(u, keepdims=True), "r"), (None,), ""),
]


@pytest.mark.parametrize(("body", "out", "said"), EQUAL)
def test_what_all_ranks_hold(body, out, said):
    @spmd.program(mesh=("r",))
    def case():
        u = spmd.input("u", (12,), np.float64, layout=("r",), default=lambda i: i)
        w = spmd.input("w", (12,), np.float64, layout=(None,), default=lambda i: i)
        for _ in spmd.range(2):
            u = u + 0
        return spmd.shard_map(body, out_layouts=out, check_vma=False)(u, w)

    module = partition(compare_ranks(case.graph({}, ("equal",))))
    if not said:
        run(module, {"r": 3})
        return
    with pytest.raises(CheckError, match='differs between the ranks along "r"') as error:
        run(module, {"r": 3})
    assert all(part in str(error.value) for part in said.split("|"))


@spmd.program(mesh=("r",))
def several(n: int = 12):
    case = spmd.scalar("case", 0)
    u = spmd.input("u", (n,), np.float64, layout=("r",), default=lambda i: i)
    k = spmd.input("k", (4,), np.int64, layout=("r",), default=lambda i: 3 * i)
    w = spmd.input("w", (2,), np.float64, layout=(None,), default=lambda i: i)

    @spmd.shard_map(out_layouts=((None,), ("r",)))
    def apart(w, part):
        other = spmd.ppermute(w * spmd.index(), "r", shift=1)
        return np.where(case == 4, other, w), part[case // 5 * 14] + part

    same, part = apart(w, u)
    for step in spmd.range(3):
        u = np.sqrt(u + step - (case == 1) * 3)
        if case == 2:
            u[k + 3] += 1.0
        if case == 3:
            k = k * 2**61
    return u, k, same, part


def test_an_image_with_checks_and_one_without():
    """Each check names its line: 1 NaN, 2 an index, 3 overflow, 4 ranks that differ, 5 a local
    index."""
    plain = spmd.build(several)
    image = plain.checking("all")
    assert image.manifest["checks"] == list(CHECKS) and plain.checking("all") is image
    for case, line, said in (
        (0, "", ""),
        (1, "u = np.sqrt(", f"this expression {MADE} (element (0,) of the array)\n"),
        (2, "u[k + 3] +=", OUT + "12 (element (3,) of the indices)\n"),
        (3, "k = k * 2**61", "multiply of integers overflows int64 (element (2,) of the array)\n"),
        (4, "return np.where", 'the result of "apart" differs between the ranks along "r" (elem'),
        (5, "part[case // 5 * 14]", OUT + "14\n"),
    ):
        if not case:
            for a, b in zip(image.run(ranks=2), plain.run(ranks=2)):
                assert np.array_equal(a, b)
            continue
        plain.run(ranks=2, case=case)
        with pytest.raises(CheckError) as error:
            image.run(ranks=2, case=case)
        text = str(error.value)
        assert text.startswith("test_checks.py:") and line in text and f": {said}" in text
        assert "\n  where:    rank " in text and error.value.exit_code == 65
    with pytest.raises(CheckError, match="sqrt"):
        plain.run(ranks=2, case=1, check="all")
    with pytest.raises(UsageError, match="does not check overflow"):
        type(plain)(plain._checked).run(check="overflow")


def test_which_checks_are_meant(tmp_path, spmd_here):
    def of(*words: str) -> tuple[str, ...]:
        found: tuple[str, ...] = parsed(["run", *words]).check
        return found

    assert of("a.img") == () and of("a.img", "--check") == USUAL == of("--check", "a.py")
    two = ("bounds", "nan")
    assert of("--check", "nan,bounds", "a.img") == two == of("a", "--check=nan,bounds")
    assert of("--check", "all", "a.img") == tuple(CHECKS) == checks_of("all")
    assert checks_of(True) == USUAL and checks_of(["overflow"]) == ("overflow",)
    for wrong in ("speed", 7):
        with pytest.raises(UsageError, match="there is no check"):
            checks_of(wrong)
    source = tmp_path / "p.py"
    source.write_text(
        "import numpy as np\nimport spmd\n\n@spmd.program(mesh=('r',))\ndef p():\n"
        "    u = spmd.input('u', (6,), layout=('r',), default=lambda i: i)\n"
        "    return u[spmd.scalar('k', 6)]\n"
    )
    found = spmd_here("run", source, "--check", "--ranks", 2)
    assert "spmd: checks on: 1 of bounds, 0 of nan, " in found.text
    assert found.code == 65 and "p.py:7: index of dim 0 is out of bounds: 6" in found.text
    found = spmd_here("run", source, "--check", "--set", "k=5")
    assert found.code == 0 and "spmd: all checks held; they took about " in found.text
    with pytest.raises(UsageError, match="--eager runs NumPy itself"):
        run_eager(parsed(["run", str(source), "--eager", "--check"]), Processes())
    image = tmp_path / "p.img"
    assert spmd_here("build", source, "-o", image).code == 0
    found = spmd_here("run", image, "--check", "--ranks", 2)
    assert found.code == 65 and "p.py:7: index of dim 0 is out of bounds: 6" in found.text
    assert f"p.img has no such checks; built again with them from {source}" in found.text
    loaded = spmd.load(image)
    with pytest.raises(CheckError, match="p.py:7: index of dim 0 is out of bounds: 6"):
        loaded.run(ranks=2, check=True)
    with pytest.raises(CheckError, match="p.py:7: index of dim 0 is out of bounds: 6"):
        loaded.profile(ranks=2, check=True)
    assert loaded.run(k=5, check="bounds") == 5 and loaded.checking(True) is loaded.checking(True)
    source.write_text(source.read_text().replace("i)", "i + 1)"))  # no longer its program
    with pytest.raises(UsageError, match="does not check bounds, nan, equal"):
        spmd.load(image).run(check=True)
    found = spmd_here("run", image, "--check")
    assert found.code == 2 and "spmd build FILE.py --check" in found.text


@spmd.program(mesh=("r",))
def indexed():
    """Every way to name an element at run time, one line each; no line changes another's input."""
    u = spmd.input("u", (7, 5), np.float64, layout=("r", None))
    k = spmd.input("k", (4,), np.int64, layout=(None,))
    m = spmd.input("m", (6,), np.int64, layout=("r",))
    a, b, c, d = u.copy(), u.copy(), u.copy(), u.copy()
    read = u[k[0], k[1]]
    row = u[k[2]]
    gathered = u[m]
    both = u[m, m - 1]
    a[k[3]] = 9.0
    b[m] = 7.0
    np.add.at(c, (m, k[0] % 5), 1.0)
    d[:, k[1]] += 1.0
    return read, row, gathered, both, a, b, c, d


def meant(u: Any, k: Any, m: Any) -> tuple[list[Any], list[int]]:
    """Return the results of `indexed` (reads are clamped, writes dropped) and its lines that are
    wrong."""

    def at(i: Any, n: int) -> Any:
        return np.where(np.asarray(i) < 0, np.asarray(i) + n, i)

    def wrong(*pairs: tuple[Any, int]) -> bool:
        return any(bool(np.any((at(i, n) < 0) | (at(i, n) >= n))) for i, n in pairs)

    def read(i: Any, n: int) -> Any:
        return np.clip(at(i, n), 0, n - 1)

    def kept(i: Any, n: int) -> Any:
        return at(i, n)[(at(i, n) >= 0) & (at(i, n) < n)]

    a, b, c, d = (u.copy() for _ in range(4))
    a[kept(k[3:], 7)] = 9.0
    b[kept(m, 7)] = 7.0
    np.add.at(c, (kept(m, 7), k[0] % 5), 1.0)
    d[:, kept(k[1:2], 5)] += 1.0
    out = [u[read(k[0], 7), read(k[1], 5)], u[read(k[2], 7)], u[read(m, 7)],
           u[read(m, 7), read(m - 1, 5)], a, b, c, d]
    lines = [wrong((k[0], 7), (k[1], 5)), wrong((k[2], 7)), wrong((m, 7)),
             wrong((m, 7), (m - 1, 5)), wrong((k[3], 7)), wrong((m, 7)), wrong((m, 7)),
             wrong((k[1], 5))]
    return out, [line for line, holds in enumerate(lines) if holds]


def test_random_indices_with_checks_and_without():
    """Without checks, indices are clamped or writes dropped; with them, the first wrong line is
    named."""
    plain = spmd.build(indexed)
    image = plain.checking("bounds")
    rng = np.random.default_rng(5)
    told = []
    source = Path(__file__).read_text().split("\n")
    first = source.index("    read = u[k[0], k[1]]") + 1
    for turn in range(60):
        wide = 5 if turn % 3 == 0 else 9
        u, ranks = rng.random((7, 5)), int(rng.integers(1, 6))
        k, m = rng.integers(-wide, wide, 4), rng.integers(1 - wide, wide, 6)
        out, wrong = meant(u, k, m)
        for one, other in zip(plain.run(ranks=ranks, u=u, k=k, m=m), out):
            assert np.array_equal(one, other), (turn, ranks, k, m)
        if not wrong:
            image.run(ranks=ranks, u=u, k=k, m=m)
            continue
        with pytest.raises(CheckError, match="index of dim [01] is out of bounds") as error:
            image.run(ranks=ranks, u=u, k=k, m=m)
        line = int(str(error.value).removeprefix("test_checks.py:").partition(":")[0]) - first
        assert line == wrong[0] if ranks == 1 else line in wrong  # ranks do not wait to be wrong
        told.append(line)
    assert {0, 1, 2} <= set(told) and len(told) < 60
