"""`verify` of large meshes: all ranks at once say what rank by rank does, and fail as it does."""

from __future__ import annotations

import copy
import json
import random
from typing import Any

import numpy as np
import pytest

from codegen.errors import ImageError
from codegen.image import manifest
from codegen.symbolic.meaning import ARGUMENTS
from codegen.verify import many as verify_many
from codegen.verify import pairs
from codegen.verify import search as verify_search
from codegen.verify.vectors import Terms
from spmd.ledger import Ledger
from spmd.verify.images import compare
from tests.conftest import EXAMPLES
from tests.spmd import rank_by_rank
from tests.spmd.plans import HALO, STENCIL, edited

LARGE = 1_000_000

LINE = '''
import numpy as np
import spmd

@spmd.program(mesh=("r",))
def line(n: int = 300_000):
    u = spmd.input("u", (n,), np.float32, layout=("r",))
    for _ in spmd.range(3):
        u[1:-1] += u[:-2] + u[2:]
    return {"u": u}
'''

EVERYBODY = '''
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def everybody(n: int = 30):
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"), default=lambda i, j: i + j)
    a = u.relayout(("y", None))

    @spmd.shard_map(mesh=("x", "y"), out_layouts=("x", "y"))
    def local(u):
        v = np.zeros(3)
        for k in spmd.range(spmd.axis_index("x") + 2):
            v = v + spmd.ppermute(v + k, "y", shift=1)
        if spmd.axis_index("y") > 1:
            v = v + spmd.pexscan(v, "x") + spmd.pbroadcast(v, "x", root=0)
        w = spmd.preduce(v, ("x", "y"), root=spmd.ranks() - 1)
        h = spmd.all_to_all(np.zeros((spmd.axis_size("x"), 2)), "x", split_dim=0, concat_dim=0)
        p = spmd.pgather(v, "y", root=spmd.axis_size("y") - 1)
        return u + np.sum(v) + np.sum(w) + np.sum(h) + np.sum(p)

    return {"a": a, "u": local(u)}
'''


def ledger_of(path: Any, change: Any = None) -> Ledger:
    """With the notes changed, without a file of them."""
    image = manifest.read(path.read_bytes(), host=False)
    notes = image.notes()
    if change:
        change(notes)
    image.notes = lambda: notes
    return Ledger(image, "the image")


def many(ledger: Ledger, mesh: tuple[int, ...], scalars: Any = None) -> tuple[int, dict[int, str]]:
    """Compare as large meshes are compared, however small this mesh is."""
    return compare(ledger, [mesh], scalars or {}, at_once=0)


def scalars(ledger: Ledger) -> dict[str, Any]:
    return {s["name"]: s["default"] for s in ledger.manifest["scalars"]}


# ---- what passes -----------------------------------------------------------------------------


@pytest.mark.parametrize(("name", "mesh", "dense", "sparse"), [
    ("life", (400, 250), 10**10, 9 * 10**5), ("kmeans", (LARGE,), 4 * LARGE**2, 0),
    ("ring_allreduce", (LARGE // 10,), 8 * LARGE // 10, 0),
])
def test_examples_pass_on_many_ranks(built, name, mesh, dense, sparse):
    """Every pair of those that exchange with everybody is compared, none for a sample."""
    ledger = ledger_of(built(EXAMPLES / f"{name}.py"))
    found, sampled = many(ledger, mesh, {**scalars(ledger), "steps": 3})
    assert sampled == {} and dense <= found <= dense + sparse


TWO = """
import numpy as np
import spmd

@spmd.program(mesh=("x", "y"))
def two(n: int = 2048):
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"))
    v = spmd.input("v", (n, n), np.float32, layout=("x", "y"))
    for _ in spmd.range(3):
        lu, lv = np.roll(u, 1, 0) + np.roll(u, -1, 1), np.roll(v, 1, 0) + np.roll(v, -1, 1)
        u, v = lu - u * v, lv + u * v
    return {"u": u, "v": v}
"""


def test_exchanges_that_differ_in_their_buffers_only_are_checked_once(built, monkeypatch):
    """Both count, and the pairs of each rank are looked at once, not once for every rank's wrap."""
    ledger, looked = ledger_of(built(TWO)), []
    one_by_one = verify_search.Search._one_by_one

    def counted(self: Any, low: Any, high: Any) -> Any:
        looked.append(np.prod(high - low + 1, axis=0).sum())
        return one_by_one(self, low, high)

    monkeypatch.setattr(verify_search.Search, "_one_by_one", counted)
    found, _ = many(ledger, (100, 100), scalars(ledger))
    assert len(ledger.table.rows) == 2 and found == 2 * 4 * 10_000
    assert sum(looked) < 20 * 10_000

    def wrong(notes: Any) -> None:
        notes["exchanges"][1]["into"]["offset"] = ["+", notes["exchanges"][1]["into"]["offset"], 1]

    with pytest.raises(ImageError, match="exchange 1"):
        many(ledger_of(built(TWO), wrong), (100, 100), scalars(ledger))


def test_what_is_said(built, spmd_here):
    image = built(LINE)
    done = spmd_here("verify", image, "--ranks", LARGE // 10, "--execute").expect(
        0, "ranks      100000: who exchanges what", "at once    100000:",
        "1 match: 299998 transfers", "plan functions of 4097 ranks say the same",
    )
    assert "sample" not in done.out
    found = json.loads(spmd_here("verify", image, "--ranks", "63-66", "--json").out)
    assert found["at_once"] == [65, 66] and found["sampled"] == {}


def test_what_is_only_a_sample_is_called_so(built, spmd_here, monkeypatch, capfd):
    from spmd import cli

    image = str(built(EVERYBODY))
    ledger = ledger_of(built(EVERYBODY))
    whole, sampled = many(ledger, (40, 25))
    monkeypatch.setattr(verify_many, "BUDGET", 20)
    part, some = many(ledger, (40, 25))
    assert sampled == {} and part < whole
    assert list(some) == [0]
    assert cli.main(["verify", image, "--mesh", "x=40,y=25"]) == 0
    out = capfd.readouterr().out
    monkeypatch.setattr(verify_many, "LISTED", 20)
    part, some = many(ledger_of(built(LINE)), (1000,))
    assert part == 2998 and some[0].startswith("2998 of 2998 transfers on 1000")
    assert "a sample   of exchange 0: 4994 of 1000000 transfers on 1000 ranks: every rank's" in out
    assert f"exchanges  {len(ledger.table.rows) - 1} match" in out


# ---- what does not ---------------------------------------------------------------------------


def only(at: int, by: int, e: Any) -> Any:
    """An expression, and that much more on one rank along "r"."""
    return ["+", e, ["*", by, ["eq0", ["+", "i_r", -at]]]]


def box(name: str, part: str, at: int, by: int) -> Any:
    def change(notes: Any) -> None:
        found = notes["exchanges"][0][name]
        if part == "offset":
            found[part] = only(at, by, found[part])
        else:
            found[part][0] = only(at, by, found[part][0])

    return change


def near(k: int, at: int, by: int) -> Any:
    def change(notes: Any) -> None:
        (ranges,) = notes["exchanges"][0]["near"]
        ranges[k] = only(at, by, ranges[k])

    return change


def both_too_short(notes: Any) -> None:
    near(1, 77_777, -1)(notes)
    near(2, 77_778, 1)(notes)


@pytest.mark.parametrize(("change", "text"), [
    (box("into", "offset", 77_777, 1), "rank 77776 to rank 77777: both name one place"),
    (box("from", "offset", 77_777, 1), "rank 77776 to rank 77777: both name one box"),
    (box("send", "offset", 77_777, 9), "rank 77777 to rank 77776: box 'send' within"),
    (box("into", "extent", 77_777, 1), "rank 77776 to rank 77777: both name one place"),
    (near(1, 77_777, -1), "rank 77778 and rank 77777 agree whether rank 77778 is read"),
    (near(3, 77_777, -1), "rank 77777 and rank 77778 agree whether rank 77777 is read"),
    (near(3, 77_777, 1), "rank 77777 and rank 77779 agree whether rank 77777 is read"),
    (near(0, 77_777, -77_776), "agree whether rank 0 is read"),
    (near(1, 77_777, LARGE), f"members 0 to {LARGE // 10 - 1} along r"),
    (both_too_short, "rank 77777 reads nothing of rank 77778, which it does not list"),
])
def test_neighbours_that_do_not_match_on_one_of_many(built, change, text):
    """The message names ranks, box and line."""
    ledger = ledger_of(built(LINE), change)
    with pytest.raises(ImageError) as found:
        many(ledger, (LARGE // 10,))
    assert text in str(found.value) and "exchange 0 (halo, " in str(found.value)
    assert ".py:9)" in str(found.value)


@pytest.mark.parametrize(("change", "text"), [
    (lambda row: row.update(dest=only(99_999, 1, row["dest"])), "rank 99999 sends to member"),
    (lambda row: row.update(source=only(99_999, 1, row["source"])), "rank 99999 receives from"),
    (lambda row: row.update(receives=only(500, -1, 1)), "rank 500 receives from member"),
    (lambda row: row.update(guards=[[["eq0", ["+", "i_r", -9]], 0, 2]]), "all members come to it"),
    (lambda row: row["into"].update(offset=only(99_999, -1, 0)), "box 'into' within"),
])
def test_a_permute_that_does_not_match_on_one_of_many(built, change, text):
    def edit(notes: Any) -> None:
        text = json.dumps(notes["exchanges"]).replace("i_ring", "i_r")
        notes.update(coordinates=["i_r"], exchanges=json.loads(text), load=[])
        change(notes["exchanges"][0])

    ledger = ledger_of(built(EXAMPLES / "ring_allreduce.py"), edit)
    with pytest.raises(ImageError, match=text):
        many(ledger, (100_000,))


@pytest.mark.parametrize("name", ["from", "into", "send", "give"])
def test_a_gather_that_does_not_match_on_one_of_many(built, name):
    """A mismatch is found among 10^12 pairs of ranks."""
    change = box(name, "offset", 1500, 1)
    with pytest.raises(ImageError, match=r"all_gather, kmeans.py:\d+.*\n.*rank 1500"):
        many(ledger_of(built(EXAMPLES / "kmeans.py"), change), (LARGE,))


def squares(row: Any) -> None:
    """Names each of which is the square of the one before it."""
    names = [["s0", ["+", "member", 3]]]
    names += [[f"s{k + 1}", ["*", f"s{k}", f"s{k}"]] for k in range(60)]
    row["into"].update(names=[*row["into"]["names"], *names], offset="s60")


def larger_squares(row: Any) -> None:
    names = [["s0", ["+", "member", 3]]]
    names += [[f"s{k + 1}", ["max", 2, ["*", f"s{k}", f"s{k}"]]] for k in range(60)]
    row["into"].update(names=[*row["into"]["names"], *names], offset="s60")


@pytest.mark.parametrize("mesh", [(3,), (1000,)])
@pytest.mark.parametrize("change", [
    lambda row: row.update(wraps=2**62), squares, larger_squares,
])
def test_work_without_end_is_refused(built, change, mesh):
    ledger = ledger_of(built(LINE), lambda notes: change(notes["exchanges"][0]))
    with pytest.raises(ImageError):
        many(ledger, mesh)
    with pytest.raises(ImageError):
        compare(ledger, [mesh[:1] if mesh[0] < 64 else (60,)], {})


def test_a_command_that_finds_it(built, spmd_here, tmp_path):
    copy = edited(built(LINE), tmp_path, box("into", "offset", 77_777, 1))
    spmd_here("verify", copy, "--ranks", LARGE // 10).expect(65, "rank 77776 to rank 77777")
    spmd_here("verify", copy, "--ranks", "64").expect(0)


# ---- beside the ledger, rank by rank -----------------------------------------------------------


def formulas(row: Any) -> list[tuple[Any, Any]]:
    """Return the places of all formulas of an exchange, as (object, key)."""
    found = [(row, k) for k in ("sends", "dest", "receives", "source", "root")
             if row[k] is not None]
    for one in (row[k] for k in ("from", "into", "send", "give") if row[k]):
        found += [(one, "offset")]
        found += [(part, k) for part in (one["extent"], one["stride"]) for k in range(len(part))]
    return found + [(ranges, k) for ranges in row["near"] for k in range(4)]


def mutate(notes: Any, rng: random.Random) -> None:
    row = rng.choice(notes["exchanges"])
    notes["exchanges"] = [row]
    for where, k in rng.sample(formulas(row), rng.choice([0, 1, 1, 2]) if formulas(row) else 0):
        other, j = rng.choice(formulas(row))
        symbol = rng.choice(notes["coordinates"])
        where[k] = rng.choice([
            ["+", where[k], rng.choice([-1, 1])], ["*", where[k], rng.choice([0, 2, -1])],
            ["+", where[k], ["eq0", ["+", symbol, -rng.randrange(4)]]], copy.deepcopy(other[j]),
        ])


def verdict(check: Any) -> Any:
    try:
        return check()[0]
    except ImageError:
        return None


@pytest.mark.parametrize("program", [HALO, STENCIL, EVERYBODY])
def test_the_same_verdict_as_rank_by_rank(built, monkeypatch, program):
    """Plans with changed formulas get one verdict, checked as small meshes are and as large ones;
    small limits cut ranges down to single pairs."""
    rng, seen = random.Random(1), []
    for _ in range(25):
        ledger = ledger_of(built(program), lambda notes: mutate(notes, rng))
        mesh = rng.choice([(1, 1), (2, 3), (5, 2), (1, 7), (11, 1), (4, 4)])
        for where, name in ((verify_search, "FEW"), (verify_search, "RANGES"), (pairs, "POINTS")):
            monkeypatch.setattr(where, name, rng.choice([2, 5, 40]))
        seen.append(rank_by_rank.transfers(ledger, mesh, {}))
        assert verdict(lambda: compare(ledger, [mesh], {})) == seen[-1], (mesh, ledger.table.rows)
        assert verdict(lambda: many(ledger, mesh)) == seen[-1], (mesh, ledger.table.rows)
    assert 5 < seen.count(None) < 23


# ---- formulas ----------------------------------------------------------------------------------

SMALL, HUGE = 6, 1 << 45


def formula(rng: random.Random, depth: int, most: int) -> Any:
    if depth == 0:
        return rng.choice(["a", "b", rng.randrange(-most, most), rng.randrange(-2, 3)])
    op = rng.choice(["+", "*", "table", *ARGUMENTS])
    if op == "table":
        entries = [rng.randrange(-most, most) for _ in range(5)]
        return [op, formula(rng, depth - 1, most), *entries]
    parts = ARGUMENTS.get(op, 3)
    return [op, *(formula(rng, rng.randrange(depth), most) for _ in range(parts))]


def test_formulas_that_are_too_large_are_not_called_damaged():
    """A user's program may have them."""
    terms = Terms()
    large = terms.number(1 << 600)
    with pytest.raises(ImageError, match="too large to be compared"):
        terms.row("*", large, large)


@pytest.mark.parametrize("most", [SMALL, HUGE])
def test_terms_have_the_value_of_their_formulas(most):
    """At points exactly, in more than 64 bits where need be; bounds hold for all points."""
    rng, types = random.Random(2), set()
    for _ in range(300):
        e = formula(rng, 4, most)
        terms = Terms()
        low = rng.randrange(-most, most)
        a, b = terms.symbol("a", low, low + 7), terms.symbol("b", -3, 3)
        term = terms.read(e, {"a": a, "b": b})
        dtype = terms.dtype(term)
        types.add(dtype)
        places = np.array([(i, j) for i in range(low, low + 8) for j in range(-3, 4)], dtype=dtype)
        found = terms.points((term,), {a: places[:, 0], b: places[:, 1]})[term]
        exact = [rank_by_rank.value(e, {"a": int(i), "b": int(j)}) for i, j in places]
        assert np.broadcast_to(found, len(exact)).tolist() == exact, e
        ends = {a: places[:1, 0], b: places[:1, 1]}, {a: places[-1:, 0], b: places[-1:, 1]}
        least, largest = terms.ranges((term,), {s: (ends[0][s], ends[1][s]) for s in (a, b)})[term]
        assert np.all(least <= min(exact)) and np.all(largest >= max(exact)), e
    assert types == ({np.int64} if most == SMALL else {np.int64, object})


def test_a_position_along_several_axes_is_not_divided():
    terms = Terms()
    x, y, z = (terms.symbol(k, 0, n - 1) for k, n in (("x", 5), ("y", 7), ("z", 11)))
    names = {"m": tuple((k, terms.number(n)) for k, n in ((x, 5), (y, 7), (z, 11)))}
    assert terms.read(["mod", "m", 11], names) == z
    assert terms.read(["floordiv", ["floordiv", "m", 11], 7], names) == x
    assert terms.read(["mod", ["floordiv", "m", 11], 7], names) == y
    assert terms.read(["floordiv", "m", 77], names) == x
    far = terms.read(["+", "m", ["*", -1, ["mod", "m", 5]]], names)
    at = {x: np.array([3]), y: np.array([2]), z: np.array([9])}
    assert terms.points((far,), at)[far].tolist() == [260]  # of member 3 * 77 + 2 * 11 + 9 = 262
