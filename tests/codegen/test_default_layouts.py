"""shard_map without out_layouts: results lie as the compiler knows, or the call is refused."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.errors import LayoutError

# a body of (whole, rows, tiles, line), and the layouts that its results have
FOLLOW = {
    "as an argument": (lambda w, r, t, q: r * 2, ("x", None)),
    "as that of two dims": (lambda w, r, t, q: t + 1, ("x", "y")),
    "two axes on one dim": (lambda w, r, t, q: q + spmd.index(), (("x", "y"),)),
    "equal on all ranks": (lambda w, r, t, q: w[1:] * 3, (None,)),
    "combined": (lambda w, r, t, q: spmd.psum(np.sum(q), ("x", "y")), ()),
    "combined over one axis": (lambda w, r, t, q: spmd.psum(np.sum(t, axis=1), "y"), ("x",)),
    "gathered": (lambda w, r, t, q: spmd.all_gather(r, "x", tiled=True), (None, None)),
    "one dim left": (lambda w, r, t, q: np.max(r, axis=1), ("x",)),
    "one dim more": (lambda w, r, t, q: np.outer(w, r[:, 0]), (None, "x")),
    "turned": (lambda w, r, t, q: t.T, ("y", "x")),
    "scattered": (lambda w, r, t, q: spmd.psum_scatter(w + np.sum(r), "x", tiled=True), ("x",)),
    "all to all": (lambda w, r, t, q: spmd.all_to_all(r, "x", 1, 0, tiled=True), (None, "x")),
    "a tuple": (lambda w, r, t, q: (r, np.sum(w), [t]), (("x", None), (), [("x", "y")])),
    "a dict": (lambda w, r, t, q: {"a": w, "b": 7, "c": q + 0.5},
               {"a": (None,), "b": (), "c": (("x", "y"),)}),
    "times the index": (lambda w, r, t, q: r[:, :2] * spmd.axis_index("x"), ("x", None)),
}
ASKED = [
    (lambda w, r, t, q: np.sum(r), ("x",), 'argument "rows"', 'with out_layouts=("x",) returns'),
    (lambda w, r, t, q: np.array([np.min(r), np.max(r)]), ("x",), 'argument "rows"',
     'out_layouts=("x",) joins the parts'),
    (lambda w, r, t, q: (w, spmd.psum(np.sum(t), "y")), ("x",), 'argument "tiles"',
     'spmd.psum(value, "x")'),
    (lambda w, r, t, q: {"a": r, "b": w[:2] * spmd.axis_index("y")}, ("y",), "the index along",
     """out_layouts={'a': ("x", None), 'b': ("y",)} joins the parts"""),
    (lambda w, r, t, q: np.sum(t, axis=1), ("x", "y"), 'split over "y"',
     'np.expand_dims(value, 0) with out_layouts=("y", "x")'),
    (lambda w, r, t, q: r * spmd.axis_index("y"), ("x", "y"), 'the index along "y"',
     'spmd.psum(value, "y")'),
    (lambda w, r, t, q: spmd.axis_index("x") + spmd.axis_index("y"), ("x", "y"), "the index along",
     'np.reshape(value, 1) with out_layouts=(("x", "y"),)'),
    (lambda w, r, t, q: spmd.ppermute(np.sum(r), "x", shift=1), ("x",), 'argument "rows"',
     "out_layouts=spmd.replicated where you know"),
    (lambda w, r, t, q: spmd.ppermute(r, "x", shift=1), ("x",), 'argument "rows"',
     'spmd.require(11 % spmd.axis_size("x") == 0)'),
    (lambda w, r, t, q: w[spmd.axis_index("x") :], ("x",), "dim 0 has other extents",
     "give it one shape on all ranks"),
]


def inputs():
    whole = spmd.input("whole", (7,), np.float64, default=lambda i: i * i)
    rows = spmd.input("rows", (11, 5), np.float64, ("x", None), default=lambda i, j: 5 * i - j)
    tiles = spmd.input("tiles", (6, 9), np.float64, ("x", "y"), default=lambda i, j: i + j * j)
    line = spmd.input("line", (13,), np.float64, (("x", "y"),), default=lambda i: 3 * i)
    return whole, rows, tiles, line


@spmd.program(mesh=("x", "y"))
def both():
    """Every body without out_layouts, and with them."""
    given = inputs()
    out = []
    for body, layout in FOLLOW.values():
        out += leaves(spmd.shard_map(body)(*given))
        out += leaves(spmd.shard_map(body, out_layouts=layout)(*given))

    @spmd.shard_map(mesh="x")
    def step(part):
        return part + spmd.axis_size("x") + given[0][0]

    rows = given[1]
    for _ in spmd.range(3):
        rows = step(rows)
    return [*out, rows, given[1] + 3 * spmd.axis_size("x")]


def test_results_lie_as_the_layouts_that_one_would_write():
    maps = [op.kind.out_layouts for op in both.capture().body.ops if op.kind.name == "shard_map"]
    maps = maps[: 2 * len(FOLLOW)]
    assert maps[::2] == maps[1::2]
    image = spmd.build(both)
    for ranks in (1, 2, 3, 5):
        out = iter(image.run(ranks=ranks))
        for layouts, name in [*zip(maps[::2], FOLLOW, strict=True), (((),), "in a loop")]:
            computed = [next(out) for _ in layouts]
            same(computed, [next(out) for _ in layouts], f"{name}, {ranks} ranks")


def test_eager_runs_return_what_images_do():
    for name, (body, layout) in FOLLOW.items():
        @spmd.program(mesh=("x", "y"))
        def case(body=body, layout=layout):
            computed = spmd.shard_map(body)(*inputs())
            return computed, spmd.shard_map(body, out_layouts=layout)(*inputs())

        for ranks in (2, 6):
            same(*case.eager(ranks=ranks), f"{name}, {ranks} ranks")


def same(x, y, what):
    for a, b in zip(leaves(x), leaves(y), strict=True):
        np.testing.assert_array_equal(a, b, err_msg=what)


def leaves(x):
    if isinstance(x, dict):
        return [leaf for item in x.values() for leaf in leaves(item)]
    return [leaf for item in x for leaf in leaves(item)] if isinstance(x, (tuple, list)) else [x]


@pytest.mark.parametrize(("body", "axes", "found", "remedy"), ASKED)
def test_where_nothing_follows_the_error_says_what_to_write(body, axes, found, remedy):
    @spmd.program(mesh=("x", "y"))
    def case():
        return spmd.shard_map(body)(*inputs())

    for run in (case.capture, lambda: case.eager(ranks=2)):
        with pytest.raises(LayoutError) as error:
            run()
        e = error.value
        assert "needs out_layouts" in e.message and e.place.function == "case"
        assert e.message.endswith("along " + ", ".join(f'"{a}"' for a in axes))
        assert found in e.found and remedy in e.remedy
        assert ("other extents" in e.found) == ("one shape on all ranks" in e.remedy)


def test_what_the_error_proposes_builds():
    def case(body, **options):
        @spmd.program(mesh=("x", "y"))
        def program():
            if not options:
                spmd.require(11 % spmd.axis_size("x") == 0)
            return spmd.shard_map(body, **options)(*inputs())

        return program.eager(mesh={"x": 1, "y": 3} if not options else {"x": 2, "y": 2})

    total = case(lambda w, r, t, q: np.expand_dims(np.sum(r), 0), out_layouts=("x",))
    assert total.shape == (2,)
    sums = case(lambda w, r, t, q: np.expand_dims(np.sum(t, 1), 0), out_layouts=("y", "x"))
    assert sums.shape == (2, 6)
    index = case(lambda w, r, t, q: np.reshape(spmd.axis_index("x") + spmd.axis_index("y"), 1),
                 out_layouts=(("x", "y"),))
    assert list(index) == [0, 1, 1, 2]
    assert case(lambda w, r, t, q: spmd.ppermute(r, "x", shift=1)).shape == (11, 5)


def test_two_layouts_that_fit_are_both_named():
    @spmd.program(mesh=("x",))
    def case():
        spmd.require(6 % spmd.axis_size("x") == 0)
        u = spmd.input("u", (6,), np.float64, ("x",))
        return spmd.shard_map(lambda v: np.outer(v, v))(u)

    with pytest.raises(LayoutError, match=r'\("x", None\) and \(None, "x"\) fit') as error:
        case.capture()
    assert error.value.remedy.startswith('out_layouts=("x", None), or')


def test_eager_runs_ask_the_compiler_and_say_when_it_does_not_know():
    @spmd.program(mesh=("x",))
    def several():
        u = spmd.input("u", (6,), np.float64, ("x",), default=lambda i: i)
        w = spmd.input("w", (6,), np.float64, default=lambda i: i)
        return [spmd.shard_map(lambda v: v * 0)(v) for v in (u, w)]

    image = spmd.build(several)
    assert [x.shape for x in image.run(ranks=2)] == [(6,), (6,)]
    with pytest.raises(LayoutError) as error:
        several.eager(ranks=2)
    assert "other layouts in other calls of this line" in error.value.found
    assert "out_layouts" in error.value.remedy

    @spmd.program(mesh=("x",))
    def refused():
        u = spmd.input("u", (6,), np.float64, ("x",), default=lambda i: i)
        v = spmd.shard_map(lambda v: v * 0)(u)  # equal on all ranks, and yet joined
        return v + sum(1 for x in u if x > 2)

    with pytest.raises(LayoutError, match="in an eager run") as error:
        refused.eager(ranks=2)
    assert "does not build" in error.value.found

    def other(**layouts):
        @spmd.program(mesh=("x",))
        def program():  # plain NumPy does not know how the sums lie
            u = spmd.input("u", (6, 2), np.float64, ("x", None), default=lambda i, j: i)
            sums = np.sum(u, axis=1)
            return spmd.shard_map(lambda v: spmd.psum(np.sum(v), "x"), **layouts)(sums)

        return program

    with pytest.raises(LayoutError, match="in an eager run") as error:
        other().eager(ranks=2)
    assert 'the arguments out as ("x",)' in error.value.found
    assert "in_layouts" in error.value.remedy
    assert other(in_layouts=("x",)).eager(ranks=2) == 30
