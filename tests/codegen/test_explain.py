"""What a user is told of layouts and communication: in the text of a Program, and in tables."""

from __future__ import annotations

import inspect
import re
import sys
from math import prod
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.compile import Levels, lower
from codegen.describe import manifest_of, notes_of
from codegen.explain.advice import unrolled
from codegen.explain.reasons import tables
from codegen.explain.traffic import unclipped
from codegen.image.manifest import evaluate
from codegen.ir.block_names import Naming
from codegen.ir.graph import walk
from codegen.ir.graph_text import module_text
from codegen.mesh import local_extent, local_offset
from codegen.symbolic import expr
from spmd import layout_table
from spmd.verify.formulas import infix


@spmd.program(mesh=("x", "y"))
def stencil(n: int = 30):
    steps = spmd.scalar("steps", 3)
    u = spmd.input("u", (n, n), np.float32, layout=("x", "y"))
    for _ in spmd.range(steps):
        around = u[:-2, 1:-1] + u[2:, 1:-1] + u[1:-1, :-2] + u[1:-1, 2:]
        u[1:-1, 1:-1] += 0.1 * (around - 4 * u[1:-1, 1:-1])
    return {"u": u, "peak": np.max(u)}


@pytest.fixture(scope="module")
def levels() -> Levels:
    return lower(stencil.capture())


def test_what_is_transposed_as_it_is_exchanged_has_its_name() -> None:
    @spmd.program(mesh=("r",))
    def program():
        a, b = (spmd.input(name, (30, 30), layout=("r", None)) for name in "ab")
        return a.T + b

    (row,) = tables(lower(program.capture()))["traffic"]
    assert row["words"] == "all-to-all: dim 0 is split instead of dim 1" and row["array"] == "a"


def test_a_line_that_a_python_loop_copies_is_named() -> None:
    @spmd.program(mesh=("r",))
    def program(turns: int):
        u = spmd.input("u", (8,), layout=("r",))
        for _ in range(turns):
            u = np.sin(u) * np.cos(u) + u
        return u

    place, often = unrolled(program.capture(turns=600))
    assert often == 600 and "np.sin(u)" in place.source_line()
    assert unrolled(program.capture(turns=100)) is None


def test_a_loop_that_is_unrolled_for_an_extent_is_named() -> None:
    @spmd.program(mesh=("r",))
    def program():
        total = np.zeros(())
        for i in spmd.range(1, 4):
            total += np.arange(i).sum()
        for _ in spmd.range(3):
            total += 1
        return total

    (row,) = notes_of(lower(program.capture()))["chosen"]
    assert row["message"] == "this loop is unrolled: an extent in it depends on its counter"
    assert row["place"]["text"].strip() == "for i in spmd.range(1, 4):" and "mask" in row["try"]


# ---- short names in the text of a Program ------------------------------------------------------


def test_bounds_of_blocks_have_short_names(levels: Levels) -> None:
    text = module_text(levels.program)
    assert 'block x0:x1 of 30 over "x": x0 = begin(i_x, 30, n_x)' in text
    assert "have=((x0, x1), (y0, y1)), want=((x0 - 1, x1 + 1), (y0 - 1, y1 + 1))" in text
    used = text.partition("parameter")[2]
    assert "//" not in used and "i_x" not in used


@pytest.mark.parametrize("mesh", [(1, 1), (2, 3), (7, 2), (40, 33)])
def test_short_names_mean_what_they_stand_for(levels: Levels, mesh: tuple[int, int]) -> None:
    exprs = {e for op in walk(levels.program.body) for v in op.results for e in v.type.shape}
    naming = Naming(levels.program.mesh, exprs)
    for at in [(0, 0), (mesh[0] - 1, mesh[1] - 1), (mesh[0] // 2, 0)]:
        values = dict(zip(("n_x", "n_y", "i_x", "i_y"), (*mesh, *at)))
        said = {"min": min, "max": max, **values}
        for (extent, axes), (low, high) in naming.names.items():
            begin = local_offset(naming.mesh, extent, axes)
            end = begin + local_extent(naming.mesh, extent, axes)
            said |= {low.name: begin.evaluate(values), high.name: end.evaluate(values)}
        for e in exprs:
            assert eval(naming(e), {}, dict(said)) == e.evaluate(values), e
    assert sum("x0" in naming(e) or "y0" in naming(e) for e in exprs) > 5


def test_a_name_of_the_users_is_not_taken() -> None:
    @spmd.program(mesh=("x",))
    def taken():
        x0 = spmd.scalar("x0", 1)
        u = spmd.input("u", (9,), np.float64, layout=("x",))
        return u * x0

    text = module_text(lower(taken.capture()).program)
    assert "block x0_2:x1_2 of 9" in text and "scalar x0" in text


# ---- why arrays lie as they do -----------------------------------------------------------------


@spmd.program(mesh=("x",))
def network(b: int = 48, n: int = 1024, m: int = 512):
    x = spmd.input("x", (b, n), np.float32, layout=("x", None))
    w = spmd.input("w", (n, m), np.float32, layout=("x", None))
    v = spmd.input("v", (n, m), np.float32)
    h = np.tanh(x @ w)
    scale = spmd.full((b, m), 2.0, np.float32)
    y = h * scale
    g = x.T @ y
    back = y.relayout((None, "x"))
    total = np.cumsum(y, axis=0)
    far = y + y[3]
    for k in spmd.range(5):
        far += y[k]
    return {"back": back, "g": g, "total": total, "far": far, "mean": np.mean(x @ v)}


def rows(program: Any) -> dict[str, dict[str, Any]]:
    return {row["name"]: row for row in tables(lower(program.capture()))["arrays"]}


def line(text: str) -> int:
    """The line of the program `network` that has this text."""
    source, first = inspect.getsourcelines(network.function)
    return first + next(k for k, at in enumerate(source) if text in at)


@pytest.mark.parametrize(
    "name, what, layout, why, because",
    [
        ("x", ["input"], [["x"], []], "given", "given at test_explain.py:{x = }"),
        ("v", ["input"], [[], []], "chosen", "chosen: no use wants it in parts"),
        ("h", ["variable"], [["x"], []], "follows", "follows from x (line {x = })"),
        ("scale", ["variable"], [[], []], "chosen",
         "chosen: a literal lies on every rank; no memory: "),
        ("y", ["variable"], [["x"], []], "follows", "follows from h (line {h = })"),
        ("back", ["variable", "result"], [[], ["x"]], "given",
         "given at test_explain.py:{back = }"),
        ("far", ["variable", "result"], [["x"], []], "follows", "follows from y (line {y = })"),
        ("mean", ["result"], [], "chosen", "a number, the same on every rank"),
    ],
)
def test_why(name: str, what: list[str], layout: Any, why: str, because: str) -> None:
    row = rows(network)[name]
    assert (row["what"], row["layout"], row["why"]) == (what, layout, why)
    head, brace, tail = because.partition("{")
    text, _, end = tail.partition("}")
    assert row["because"].startswith(head + (f"{line(text)}{end}" if brace else ""))


def test_what_is_carried_follows_from_what_its_turns_make() -> None:
    @spmd.program(mesh=("x",))
    def carried(n: int = 12):
        u = spmd.input("u", (n, n), np.float64, layout=("x", None))
        acc = spmd.zeros((n,))
        for _ in spmd.range(4):
            acc = acc + np.sum(u, axis=1)
        if spmd.scalar("k", 2) > 1:
            t = u * 2
        else:
            t = spmd.ones((n, n))
        hist = spmd.zeros((16,))
        hist = hist.at[u.reshape(n * n).astype(np.int64) % 16].add(1.0)
        return {"total": acc, "t": t, "hist": hist}

    found = rows(carried)
    for name, layout, source in [
        ("acc", [["x"]], "u"), ("total", [["x"]], "acc"), ("t", [["x"], []], "u"),
        ("hist", [[]], "u"),
    ]:
        assert found[name]["layout"] == layout
        assert found[name]["because"].startswith(f"follows from {source} (line "), name
    kinds = [r["kind"] for r in tables(lower(carried.capture()))["traffic"]]
    assert kinds == ["all-reduce"]  # each rank has its part of the flattened array


def test_what_is_made_piece_by_piece_is_one_array() -> None:
    @spmd.program(mesh=("x",))
    def wave(n: int = 30) -> Any:
        u = spmd.input("u", (n, n), np.float32, layout=("x", None))
        p = u * 1
        for _ in spmd.range(5):
            q = 2 * u - p
            q[1:-1] += 0.1 * (u[2:] + u[:-2] - 2 * u[1:-1])
            q[:, 0] = 0
            u, p = q, u
        return {"u": u}

    found = rows(wave)
    assert list(found) == ["u", "p", "q"]
    assert found["q"]["shape"] == found["u"]["shape"]
    assert found["q"]["because"].startswith("follows from u")


def test_layouts_that_the_compiler_chose_say_for_which_use() -> None:
    @spmd.program(mesh=("x",))
    def chosen():
        u = spmd.input("u", (40, 3), np.float64, layout=("x", None))
        v = spmd.input("v", (40, 3), np.float64)
        return u + v

    row = rows(chosen)["v"]
    assert row["layout"] == [["x"], []] and row["why"] == "chosen"
    assert re.fullmatch(r"chosen for its use in line \d+", row["because"])


def test_what_is_made_otherwise_than_it_lies_says_so() -> None:
    @spmd.program(mesh=("x",))
    def gathered(n: int = 40):
        q = spmd.input("q", (n, 8), np.float64, layout=("x", None))
        at = spmd.input("at", (6,), np.int64, layout=(None,))
        k = q * 2
        lost = q + 1
        del lost
        return {"picked": k[at], "sum": np.sum(q)}

    found = rows(gathered)
    assert found["k"]["because"].endswith("; made as it is used, (None, None)")
    assert found["k"]["bytes"] == 40 * 8 * 8
    assert found["lost"]["because"].endswith("; nobody uses it")
    assert found["lost"]["bytes"] == 0


# ---- what is exchanged -------------------------------------------------------------------------


def test_what_is_exchanged_in_words() -> None:
    found = tables(lower(network.capture()))["traffic"]
    said = [(r["words"], r["array"], r["place"]["text"].partition(" =")[0].strip()) for r in found]
    assert said == [
        ("all-to-all: dim 1 is split instead of dim 0", "x", "h"),
        ("reduce-scatter of partial sums into blocks of dim 0", "", "h"),
        ("broadcast of row 3 of dim 0", "y", "far"),
        ("change of layout, all-to-all: dim 1 is split instead of dim 0", "y", "back"),
        ("all-reduce of partial sums", "g", "g"),
        ("exclusive scan of partial sums", "total", "total"),
        ("broadcast of row k of dim 0", "y", "far += y[k]"),
        ("all-reduce of partial sums", "", 'return {"back": back, "g": g, "total": total, "far": '
         'far, "mean": np.mean(x @ v)}'),
    ]
    assert [r["often"] for r in found if r["often"] != "once"] == [
        f"per turn of the loop in line {line('for k')}"
    ]


def test_halos_shifts_and_moves_in_words() -> None:
    @spmd.program(mesh=("x", "y"))
    def moves(n: int = 40):
        u = spmd.input("u", (n, n), np.float64, layout=("x", "y"))
        w = spmd.input("w", (n, n), np.float64, layout=("x", None))
        z = spmd.input("z", (n, n), np.complex128, layout=("x", "y"))
        k = spmd.input("k", (n,), np.float64, layout=(("x", "y"),))
        v = spmd.input("v", (n, n), np.float64, layout=("x", "y"))
        shifted = np.roll(v, 3, axis=1)
        w[:-2] += w[1:-1] + w[2:]
        most = np.max(u, axis=0)
        parts = k.relayout(("x",))
        lanes = z[spmd.input("q", (n,), np.int64, layout=(None,))]
        both = spmd.shard_map(lambda a: spmd.psum(np.sum(a), ("x", "y")), out_layouts=())(u)
        return {"a": w, "b": most, "c": parts, "d": lanes, "e": both, "f": shifted}

    said = [(r["words"], tuple(r["axes"]), r["array"])
            for r in tables(lower(moves.capture()))["traffic"]]
    assert sorted(said) == [
        ("all-gather along dim 0", ("x",), "z"),
        ("all-reduce of maxima", ("x",), "most"),
        ("all-reduce of partial sums", ("x", "y"), ""),
        ("change of layout, change of blocks along dim 0", ("x", "y"), "k"),
        ("halo of width 2 on one side along dim 0", ("x",), "w"),
        ("shift by 3 along dim 1", ("y",), "v"),
    ]


@pytest.mark.parametrize(("points", "words"), [
    (100, ["all-gather along dim 0", "all-gather along dim 0"]),
    (1000, ["reduce-scatter of partial sums into blocks of dim 0"]),
])
def test_few_points_are_gathered_and_many_are_combined_in_parts(
    points: int, words: list[str]
) -> None:
    @spmd.program(mesh=("x",))
    def scattered() -> Any:
        t = spmd.input("t", (1000,), np.float64, layout=("x",))
        k = spmd.input("k", (points,), np.int64, layout=("x",))
        v = spmd.input("v", (points,), np.float64, layout=("x",))
        np.add.at(t, k, v)
        return {"t": t}

    assert [r["words"] for r in tables(lower(scattered.capture()))["traffic"]] == words


# ---- how much: counted against the boxes that are exchanged ------------------------------------


@pytest.mark.parametrize("name", ["stencil", "network"])
@pytest.mark.parametrize("ranks", [1, 2, 3, 4, 6, 7])
def test_bytes(name: str, ranks: int) -> None:
    """The formula is what the rank that gets most gets at most, the number what it does get."""
    levels = lower(globals()[name].capture())
    image = Noted(levels)
    found = layout_table.table(image, ranks, {})
    values = {f"n_{axis}": size for axis, size in found["mesh"].items()}
    for row in found["exchanges"]:
        most = evaluate(row["bytes"], values)
        assert row["rank_bytes"] <= most, row["words"]
        assert ranks > 1 or row["kind"] in layout_table._FOLDS or row["rank_bytes"] == 0
        assert row["kind"] != "all-gather" or row["rank_bytes"] == most
    for row in found["arrays"]:
        shard = [-(-e // prod(values[f"n_{a}"] for a in entry))
                 for e, entry in zip(row["shape"], row["layout"])]
        size = prod(shard) * np.dtype(row["dtype"]).itemsize
        if row["what"] != ["variable"]:
            assert row["rank_bytes"] == size
        elif row["rank_bytes"]:  # of blocks of an array with which it lies
            assert size <= row["rank_bytes"] <= 4 * size


def test_of_a_halo_only_what_others_have_counts() -> None:
    image = Noted(lower(stencil.capture()))
    for mesh, most in [((1, 1), 0), ((2, 1), 30), ((3, 1), 60), ((2, 2), 31), ((3, 3), 44)]:
        found = layout_table.table(image, None, dict(zip("xy", mesh)))
        (halo,) = [row for row in found["exchanges"] if row["kind"] == "halo"]
        assert halo["rank_bytes"] == 4 * most
    assert infix(halo["bytes"]) == "8 * ceil(30 / n_x) + 8 * ceil(30 / n_y) + 16"


def test_of_an_array_with_room_only_what_is_wanted_counts() -> None:
    """The first and the last column are nobody's neighbours."""

    @spmd.program(mesh=("x",))
    def rims(n: int = 16):
        u = spmd.input("u", (n, n), np.float64, layout=("x", None))
        for _ in spmd.range(9):
            u[1:-1, 1:-1] += u[:-2, 1:-1] + u[2:, 1:-1]
        return u

    (halo,) = tables(lower(rims.capture()))["traffic"]
    assert (halo["kind"], halo["bytes"]) == ("halo", 2 * 14 * 8)


def test_amounts_hold_no_counters_of_loops() -> None:
    """The bound of one counter may be another one."""

    @spmd.program(mesh=("x",))
    def factor(n: int = 3000):
        a = spmd.input("a", (n, n), np.float64, layout=("x", None))
        for i in spmd.range(1, n):
            for j in spmd.range(i):
                a[i, j] -= np.dot(a[i, :j], a[j, :j])
        return a

    rows = layout_table.table(Noted(lower(factor.capture())), 2, {})["exchanges"]
    assert [row["bytes"] for row in rows if row["kind"] == "broadcast"] == [8 * 2998] * 2


class Noted:
    """The manifest and notes of an image, without building the image."""

    def __init__(self, levels: Levels) -> None:
        self.manifest = manifest_of(levels.plan, "x86-64")
        self.said = notes_of(levels)

    def notes(self) -> dict[str, Any]:
        return self.said


@pytest.mark.parametrize("clip", ["hi", "lo", "both"])
def test_extents_without_their_ends_are_no_less(clip: str) -> None:
    a, b = (expr.symbol(expr.Sym(name, "coord")) for name in "ab")
    low, high = expr.const(2), expr.const(9)
    first = a if clip == "hi" else expr.maximum(expr.minimum(a, high), low)
    last = b if clip == "lo" else expr.maximum(expr.minimum(b + 1, high), low)
    if clip == "hi":
        last = expr.minimum(b, high)
    found = unclipped(last - first)
    assert not expr.calls(found) or clip == "lo"
    for values in ({"a": i, "b": j} for j in range(-3, 14) for i in range(-3, j + 1)):
        assert found.evaluate(values) >= (last - first).evaluate(values)


# ---- what is pointed out at build --------------------------------------------------------------


def advised(program: Any) -> list[tuple[str, str]]:
    found = tables(lower(program.capture()))["traffic"]
    return [(r["array"], r["advice"]["try"]) for r in found if r["advice"]]


def large(of_w: Any, of_x: Any = ("x", None)) -> Any:
    @spmd.program(mesh=("x",))
    def product(n: int = 1024):
        x = spmd.input("x", (256, n), np.float32, layout=of_x)
        w = spmd.input("w", (n, 512), np.float32, layout=of_w)
        return np.tanh(x @ w)

    return product


def test_what_grows_with_the_mesh_is_a_formula() -> None:
    @spmd.program(mesh=("x",))
    def ordered(rows: int = 1000):
        n = spmd.axis_size("x")
        x = spmd.input("x", (rows * n, 100), np.complex128, layout=("x", None))
        return x[spmd.input("q", (4,), np.int64, layout=(None,))]

    def said(**given: Any) -> list[str]:
        found = tables(lower(ordered.capture(**given)))["traffic"]
        return [r["advice"]["message"] for r in found if r["advice"]]

    assert said() == ['every rank gets all of x: 1600000 * axis_size("x") bytes']
    assert said(rows=1) == []


def test_a_part_of_the_columns_is_fetched_with_its_rows() -> None:
    @spmd.program(mesh=("x",))
    def columns():
        x = spmd.input("x", (1 << 20,), np.float64, layout=("x",))
        return x.reshape(1024, 1024)[:, 3:1000].copy()

    assert [r["advice"] for r in tables(lower(columns.capture()))["traffic"]] == [None]


def test_an_input_that_is_read_whole_everywhere() -> None:
    assert advised(large(("x", None))) == [
        ("w", "(None, None) for w: each rank then reads all of it from the start")
    ]
    assert advised(large((None, None))) == []


def test_a_product_that_could_be_summed_in_parts() -> None:
    def computed(of_x: Any) -> Any:
        @spmd.program(mesh=("x",))
        def product(n: int = 1024):
            x = spmd.input("x", (256, n), np.float32, layout=of_x)
            w = spmd.input("w", (n, 512), np.float32, layout=("x", None))
            return {"y": x @ w, "w": w + 1}

        return product

    ((array, text),) = advised(computed(("x", None)))
    assert array == "w" and text.startswith('the layout (None, "x") for the left operand')
    assert advised(computed((None, "x"))) == []


def test_lanes_that_could_be_whole() -> None:
    def lanes(layout: Any) -> Any:
        @spmd.program(mesh=("x",))
        def program(n: int = 4096):
            p = spmd.input("p", (n, 128), np.complex64, layout=layout)
            order = p[spmd.input("q", (n,), np.int64, layout=(None,))]
            return {"order": order, "p": p + 1}

        return program

    assert advised(lanes(("x", None))) == [
        ("p", '(None, "x") for p: each rank then has dim 0 whole')
    ]
    assert advised(lanes((None, "x"))) == []


def test_what_was_asked_for_or_is_small_is_not_pointed_out() -> None:
    @spmd.program(mesh=("x",))
    def asked(n: int = 4096):
        p = spmd.input("p", (n, 128), np.float32, layout=("x", None))
        small = spmd.input("small", (n,), np.float32, layout=("x",))
        whole = p.relayout(spmd.replicated)
        return {"whole": whole, "pairs": small[:, None] - small[None, :]}

    kinds = {r["kind"] for r in tables(lower(asked.capture()))["traffic"]}
    assert kinds == {"all-gather"} and advised(asked) == []


def test_unrolled_loops_of_any_length():
    """No analysis goes back along a chain of operations by recursion."""

    @spmd.program(mesh=("r",))
    def unrolled():
        x = spmd.input("x", (16,), layout=("r",))
        for k in range(400):
            x = x * 1.5 + k
        return x

    before = sys.getrecursionlimit()
    sys.setrecursionlimit(len(inspect.stack(0)) + 300)
    try:
        assert notes_of(lower(unrolled.capture()))
    finally:
        sys.setrecursionlimit(before)
