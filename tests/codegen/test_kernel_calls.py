"""Kernels on global arrays: the same result on any number of ranks, in any layout, as eagerly."""

import itertools

import numpy as np
import pytest

import spmd
from codegen.checks.check_graph import check
from codegen.checks.matching import check as check_matching
from codegen.compile import lower
from codegen.errors import KernelError
from codegen.explain.reasons import tables
from codegen.image.kernel_source import Reading
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from codegen.trace.kernel_call import tree_of


@spmd.kernel
def reverse(x, out):
    n = x.shape[0]
    for i in range(n):
        out[i] = x[n - 1 - i]


@spmd.kernel
def running(x, out):
    s = 0.0
    for i in range(x.shape[0]):
        s += x[i]
        out[i] = s


@spmd.kernel
def first(x, out):
    out[:] = x[0]


@spmd.kernel
def spoils(x, out):
    for i in range(out.shape[0]):
        x[i] = 2 * x[i] + 1
        out[i] = x[i]


@spmd.kernel
def some(x, out):
    """Writes every second element only."""
    for i in range(0, x.shape[0], 2):
        out[i] = x[i]


@spmd.kernel
def box(u, at, a, out, count):
    """Different weights for all neighbours that there are, and the place; of two outputs."""
    rows, columns = u.shape[0] - out.shape[0] + 1, u.shape[1] - out.shape[1] + 1
    for i in range(out.shape[0]):
        for j in range(out.shape[1]):
            s = 0.0
            for k in range(rows):
                for m in range(columns):
                    s += u[i + k, j + m] * (1 + k + 5 * m)
            out[i, j] = s * a + (at[0] + i) * 1000 + at[1] + j
            count[i, j] = rows * columns


@spmd.kernel(signature="(k),(m),()->(m),()")
def horner(c, x, a, out, n):
    for i in range(x.shape[0]):
        y = 0.0
        for k in range(c.shape[0]):
            y = y * x[i] + c[k]
        out[i] = y + a
    n[0] = c.shape[0]


# Ghost cells before and behind, in two dims; wider than shards, and none.
HALOS = {"one": (1, 1), "wide": ((5, 0), (2, 4)), "rows": (2, None), "none": (0, (0, 1))}
BOUNDARIES = ("zero", "edge", "wrap", -1.5, ("wrap", "edge"))


def windows(u, layout=None):
    """box() with every halo and boundary."""
    out = {}
    for (name, halo), b in itertools.product(HALOS.items(), BOUNDARIES):
        key = f"{name}_{BOUNDARIES.index(b)}"
        count = spmd.empty(u.shape, np.int32, layout=layout)
        both = box(u, spmd.start(u), 0.5, halo={"u": halo}, boundary=b, out=spmd.like(u),
                   count=count)
        out[key], out[key + "_count"] = both
    return out


def program(layout, rows=12):
    @spmd.program(mesh=("r", "c"))
    def kernels(n: int = rows, m: int = 7):
        u = spmd.input("u", (n, m), layout=layout, default=lambda i, j: (i * 5 + j * 3) % 7 + i / 8)
        return windows(u)

    return kernels


def same(got, want):
    assert set(got) == set(want)
    for name, x in want.items():
        np.testing.assert_array_equal(got[name], x, err_msg=name)


@pytest.mark.parametrize("layout", [("r", "c"), ("c", None), (None, ("c", "r"))])
def test_every_boundary_halo_and_layout_in_the_interpreters(layout):
    p = program(layout)
    want = p.eager()
    graph = check(p.capture())
    on_ranks = check_matching(check(partition(graph)))
    i, j = np.indices((12, 7), sparse=True)
    given = {"u": (i * 5 + j * 3) % 7 + i / 8}
    same(interpret.run(graph, {"r": 1, "c": 1}, given), want)
    for r, c in [(1, 1), (2, 1), (3, 5), (1, 9)]:
        same(interpret.run(on_ranks, {"r": r, "c": c}, given), want)


TABLE = np.arange(66.0).reshape(11, 6)  # a rank reads its rows in the image


@spmd.program(mesh=("r", "c"))
def whole(n: int = 11, m: int = 6):
    steps = spmd.scalar("steps", 2)
    x = spmd.input("x", (n,), np.float64, layout=("r",), default=lambda i: i * i - 3.0)
    u = spmd.input("u", (n, m), np.float64, layout=("r", "c"), default=lambda i, j: i * 1.5 - j * j)
    flat = spmd.like(x)
    spoilt = spoils(x, out=flat)
    some(x[::-1], out=flat)  # what it leaves alone stays
    odd = x[1::2]
    out = {"reverse": reverse(x, out=spmd.like(x)), "running": running(odd, out=spmd.like(odd)),
           "first": first(x, out=spmd.empty(n)), "spoils": spoilt, "x": x, "flat": flat,
           "some": some(x, out=spmd.like(x))}
    into = spmd.zeros((n, 3), layout=("r", None))
    horner(u, a=0.5, x=x[:3], out=into[:, ::-1], n=spmd.zeros(n, int))  # as NumPy's out=
    out["into"], out["read"] = into, scaled(a=flat, k=3, out=spmd.like(x))
    out["rows"], out["n"] = horner(u, x[3:6], 2, out=spmd.empty((n, 3), layout=("c", None)),
                                   n=spmd.empty((n,), np.int64))
    out["rows of a constant"], _m = horner(
        TABLE, x[3:6], 2, out=spmd.empty((n, 3), layout=("r", None)), n=spmd.empty((n,), np.int64))
    out["columns"], _m = horner(u.T[:, None], x[:, None], u[0, 0], out=spmd.empty((m, n, 1)),
                               n=spmd.empty((m, n), np.int64, layout=("c", "r")))
    here, there = x + 1, np.zeros(n)
    for _ in spmd.range(steps):
        scaled(here, 2, out=there)
        here, there = there, here
    out["there"] = there
    for _ in spmd.range(steps):
        u[:], _n = box(u, spmd.start(u), 0.125, halo={"u": 1}, boundary="wrap", out=spmd.like(u),
                      count=spmd.like(u))
    out["u"] = u
    out["edge"], _k = box(u, spmd.start(u), 1, halo={"u": (4, 1)}, boundary="edge",
                         out=spmd.like(u), count=spmd.like(u))

    @spmd.shard_map(out_layouts=("r",))
    def local(x):
        return spoils(x, out=spmd.like(x)) - 2 * x

    out["local"] = local(x)
    return out


def test_images_give_what_python_gives():
    """A reversal, a running sum, the first element everywhere, an input that is written: they saw
    shards once. Three more: elements that nobody writes, rows by a signature, windows in a loop."""
    image = spmd.build(whole)
    want = whole.eager()
    for ranks in (1, 2, 3, 5, 8, 13):
        same(image.run(ranks=ranks), want)


def called(call):
    @spmd.program(mesh=("r",))
    def one():
        x = spmd.input("x", (12,), layout=("r",), default=lambda i: i * 1.0)
        return call(x, spmd.like(x))

    return one


@spmd.kernel
def neighbours(u, out):
    for i in range(out.shape[0]):
        out[i] = u[i] - u[u.shape[0] - out.shape[0] + i]


@spmd.kernel
def scaled(a, k, out):
    for i in range(out.shape[0]):
        out[i] = a[i] * k


@spmd.kernel(signature="(n),()->(n)")
def row(a, k, out):
    for i in range(out.shape[0]):
        out[i] = a[i] * k


def in_rows(out, x):
    return row(x, spmd.start(out), out=out)


REFUSED = [
    (lambda x, o: running(x, out=o, halo={"x": 0}), "another result on a part", "None for that"),
    (lambda x, o: first(x, out=o, halo={"x": 3}, boundary=0), "another result", "ghost cells"),
    (lambda x, o: neighbours(x, out=o, halo={"u": 1}), "without boundary=", '"zero", "edge"'),
    (lambda x, o: neighbours(x, out=o, halo={"u": 13}, boundary="wrap"), "wants more", "12"),
    (lambda x, o: neighbours(x, out=o, halo={"u": 1}, boundary="mirror"), "'mirror'", "number"),
    (lambda x, o: neighbours(x, out=o, halo={"out": 1}, boundary=0), "an output", "u"),
    (lambda x, o: neighbours(x, out=o, halo={"u": (1, 1)}, boundary=0), "per dim", "1 entries"),
    (lambda x, o: neighbours(x, out=o, halo={"u": -1}, boundary=0), "ghost cells", "at least 0"),
    (lambda x, o: neighbours(x, out=o, halo=1, boundary=0), "is a dict", "{"),
    (lambda x, o: neighbours(x, out=spmd.empty(9), halo={"u": 1}, boundary=0), "not have", "(9,)"),
    (lambda x, o: scaled(x, out=o), "missing a required argument: 'k'", "scaled(a, k, out)"),
    (lambda x, o: scaled(x, 2, result=o), "argument", "scaled(a, k, out)"),
    (lambda x, o: scaled(x, 2, spmd.zeros(12)), "without an output", "spmd.like"),
    (lambda x, o: scaled(x, "2", out=o), "k is a str", "numbers"),
    (lambda x, o: scaled(x, 2**70, out=o), "64 bits", "2**63"),
    (lambda x, o: scaled(x.astype(np.float16), 2, out=o), "a is of float16", "float32"),
    (lambda x, o: scaled(x, spmd.start(x * 2), out=o), "not passed", "spmd.start(u) beside u"),
    (lambda x, o: row(x, x, out=o), "loop dim 0 is 12 in k", "a (12,), k (12,)"),
    (lambda x, o: row(x[:, None], spmd.start(x), out=spmd.empty((12, 1))), "not passed", "u"),
    (lambda x, o: in_rows(spmd.empty((3, 12)), x), "loops over", "spmd.arange"),
    (lambda x, o: spmd.shard_map(lambda x: neighbours(x, out=spmd.like(x), halo={"u": 1},
     boundary=0), out_layouts=("r",))(x), "inside a shard_map", "spmd.ppermute"),
]


@pytest.mark.parametrize("call, text, more", REFUSED)
def test_refused_with_the_line_and_what_to_write(call, text, more):
    """While building as in eager runs."""
    for use in (called(call).capture, called(call).eager):
        with pytest.raises(KernelError) as caught:
            use()
        assert text in str(caught.value) and more in str(caught.value)
        assert caught.value.place.file == __file__


@pytest.mark.parametrize("signature", ["(n)", "(n)->()->()", "n->n", "(n),(n)->(n)", 3])
def test_signatures_that_do_not_fit(signature):
    with pytest.raises(KernelError, match="signature"):
        spmd.kernel(signature=signature)(lambda a, out: None)


def reads(x, out):
    for i in range(len(out)):
        for j in range(out.shape[1]):
            out[i, j] = x[i, j] + x.shape[0] + np.sum(x[i]) + twice(x, i) + (x[:, j] * 2.0).sum()


def twice(x, i):
    return 2 * x[i, i]


def renames(x, out):
    y = x
    y[0, 0] = 1
    out[:, 0] = 2


def passes_on(x, out):
    changes(x)
    for i in range(out.shape[0]):
        if i > 2:
            continue
        out[i] = 0


def changes(a):
    a[0] += 1


def by_row(x, out):
    for i in range(out.shape[0]):
        r = x[i]
        r[0] = 1
        for j in range(out.shape[1]):
            out[i, j] = 0
            j = 2


@pytest.mark.parametrize(
    "function, writes, fills",
    [(reads, False, True), (renames, True, False), (passes_on, True, False), (by_row, True, False)],
)
def test_what_a_kernels_source_says(function, writes, fills):
    reading = Reading(function, tree_of)
    assert reading.writes("x", 2) is writes
    assert reading.fills("out", 2) is fills


def test_a_kernel_that_wants_all_of_a_large_array_is_pointed_out():
    @spmd.program(mesh=("r",))
    def large():
        x = spmd.input("x", (1 << 22,), layout=("r",))
        return reverse(x, out=spmd.like(x))

    (row,) = [r for r in tables(lower(large.capture()))["traffic"] if r["advice"]]
    assert row["advice"]["message"].startswith("every rank gets all of x: 32.0 MiB")
    assert row["advice"]["try"].startswith("halo= in the call of reverse")
