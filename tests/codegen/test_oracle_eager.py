"""Programs as plain NumPy: shards, exchange between threads, aliasing, errors of one rank."""

import threading

import numpy as np
import pytest

import spmd
from codegen.errors import (
    DtypeError,
    InputError,
    LayoutError,
    MatchingError,
    MeshError,
    ProgramError,
    UsageError,
)


@spmd.program(mesh=("ring",))
def ring_allreduce(count: int = 5):
    n = spmd.axis_size("ring")
    part = spmd.input(
        "part", (n, count), np.float32, layout=("ring", None), default=lambda r, c: r + c % 7
    )

    @spmd.shard_map(mesh="ring", out_layouts=("ring", None))
    def reduce(row):
        i = spmd.axis_index("ring")
        b = spmd.blocks(row[0], n)
        for s in spmd.range(n - 1):
            b[(i - s - 1) % n] += spmd.ppermute(b[(i - s) % n], "ring", shift=1)
        for s in spmd.range(n - 1):
            b[(i - s) % n] = spmd.ppermute(b[(i + 1 - s) % n], "ring", shift=1)
        return row

    return {"sum": reduce(part)}


@pytest.mark.parametrize("ranks", range(1, 10))
@pytest.mark.parametrize("count", [0, 1, 5, 16])
def test_the_ring_of_the_language_page(ranks, count):
    rows = np.arange(ranks)[:, None] + np.arange(count) % 7
    out = ring_allreduce.eager(ranks=ranks, count=count)["sum"]
    assert out.dtype == np.float32 and type(out) is np.ndarray
    np.testing.assert_array_equal(out, np.broadcast_to(rows.sum(0), (ranks, count)))
    given = np.random.default_rng(0).integers(0, 9, (ranks, count)).astype(np.float32)
    out = ring_allreduce.eager(ranks=ranks, count=count, part=given)["sum"]
    np.testing.assert_array_equal(out, np.broadcast_to(given.sum(0), (ranks, count)))


def over(axes, out, shape=(7,), layout=("x",), dtype=np.float64):
    """A program over one input u that maps `f` over its shards."""

    def decorate(f):
        def body():
            u = spmd.input("u", shape, dtype, layout=layout, default=lambda *k: sum(k))
            return spmd.shard_map(f, out_layouts=out)(u)

        return spmd.program(body, mesh=axes)

    return decorate


def shards_of(n):
    return np.array_split(np.arange(7.0), n)


@pytest.mark.parametrize("ranks", [1, 2, 3, 8])
def test_shards_are_cut_as_array_split_cuts(ranks):
    @over(("x",), ("x",))
    def offsets(u):
        return u * 0 + spmd.axis_index("x")

    expected = np.concatenate([p * 0 + k for k, p in enumerate(shards_of(ranks))])
    np.testing.assert_array_equal(offsets.eager(ranks=ranks), expected)


def test_collectives():
    @over(("x",), spmd.replicated)
    def total(u):
        whole = spmd.all_gather(u, "x", tiled=True)
        mine = spmd.psum_scatter(whole, "x", tiled=True)
        sums = spmd.psum(np.sum(u), "x")
        ends = spmd.pmax(np.max(u, initial=-1), "x"), spmd.pmin(np.min(u, initial=9), "x")
        return spmd.all_gather(mine, "x", tiled=True), sums, ends, spmd.pbroadcast(sums, "x")

    for ranks in (1, 2, 3, 9):
        back, sums, (high, low), again = total.eager(ranks=ranks)
        np.testing.assert_array_equal(back, ranks * np.arange(7.0))
        assert (sums, high, low, again) == (21, 6, 0, 21)


def test_a_rank_that_receives_nothing_gets_zeros():
    @over(("x",), ("x",), shape=(8,))
    def shifted(u):
        return spmd.ppermute(u, "x", to=lambda i, n: i + 1 if i < n - 1 else None)

    np.testing.assert_array_equal(shifted.eager(ranks=4), [0, 0, 0, 1, 2, 3, 4, 5])


def test_collisions_are_named():
    @over(("x",), ("x",), shape=(8,))
    def halved(u):
        return spmd.ppermute(u, "x", to=lambda i, n: i // 2)

    with pytest.raises(MatchingError, match="with 4 ranks, ranks 0 and 1 both send to 0"):
        halved.eager(ranks=4)


def test_axes_taken_as_one_are_row_major():
    @over(("x", "y"), (("x", "y"),), shape=(6,), layout=(("x", "y"),))
    def shifted(u):
        assert spmd.index() == spmd.axis_index(("x", "y")) and spmd.ranks() == 6
        return spmd.ppermute(u, ("y", "x"), shift=1)

    out = shifted.eager(mesh={"x": 2, "y": 3})
    np.testing.assert_array_equal(out, [5, 3, 4, 0, 1, 2])


def test_views_write_through_and_arguments_are_copies():
    u = np.arange(6.0)

    @over(("x",), ("x",), shape=(6,))
    def written(v):
        tail = v[1:]
        tail += 10
        v.at[0].set(99)  # a new array
        return v

    np.testing.assert_array_equal(written.eager(ranks=2, u=u), [0, 11, 12, 3, 14, 15])
    np.testing.assert_array_equal(u, np.arange(6.0))


def test_global_arrays_met_by_closure_are_shards():
    @spmd.program(mesh=("x",))
    def program():
        u = spmd.input("u", (5,), np.float64, layout=("x",), default=lambda i: i)
        w = spmd.input("w", (5,), np.float64, layout=("x",), default=lambda i: 10 * i)

        def helper(v):
            return v + w

        return spmd.shard_map(helper, out_layouts=("x",))(u)

    np.testing.assert_array_equal(program.eager(ranks=3), 11 * np.arange(5.0))


def test_control_flow_is_pythons():
    @over(("x",), ("x",))
    def flow(u):
        count = 0
        while count < 3 and spmd.any_ranks(np.any(u < 100)):
            u = u * 10 if spmd.axis_index("x") == 0 else u + 1
            count += 1
        u = spmd.fori_loop(0, 2, lambda k, v: v + k, u)
        u = spmd.switch(spmd.axis_index("x") + 5, [lambda v: v, lambda v: -v], u)
        carry, outs = spmd.scan(lambda c, x: (c + x, c * x), 0.0, u)
        return outs

    assert flow.eager(ranks=2).shape == (7,)


def test_different_exchanges_name_both_ranks():
    @over(("x",), spmd.replicated)
    def torn(u):
        if spmd.axis_index("x") == 0:
            return spmd.psum(np.sum(u), "x")
        return spmd.ppermute(np.sum(u), "x", shift=1)

    with pytest.raises(MatchingError, match=r"rank 0 waits in psum at .*, rank 1 in ppermute"):
        torn.eager(ranks=2)


def test_a_rank_that_left_is_named():
    @over(("x",), ("x",))
    def early(u):
        if spmd.axis_index("x") == 2:
            return u
        return u + spmd.psum(1.0, "x")

    with pytest.raises(MatchingError, match="rank 0 waits in psum .* rank 2 has ended"):
        early.eager(ranks=3)


def test_an_exception_on_one_rank_is_the_users_own_and_no_thread_is_left():
    @over(("x",), ("x",))
    def broken(u):
        spmd.barrier()
        if spmd.axis_index("x") == 1:
            raise ZeroDivisionError("on rank 1")
        spmd.barrier()
        return u

    before = threading.active_count()
    with pytest.raises(ZeroDivisionError, match="on rank 1"):
        broken.eager(ranks=3)
    assert threading.active_count() <= before


def test_replicated_results_must_agree():
    @over(("x",), spmd.replicated)
    def sums(u):
        return np.sum(u)

    with pytest.raises(MatchingError, match="differs between ranks 0 and 1"):
        sums.eager(ranks=2)


def test_scalars_inputs_and_names():
    @spmd.program(mesh=("x",))
    def program(n: int = 3):
        steps = spmd.scalar("steps", 2)
        rate = spmd.scalar("rate", 0.5)
        spmd.require(spmd.axis_size("x") != 4)
        u = spmd.input("u", (n,), np.float32, layout=("x",))
        spmd.print("{} steps, rate {:.2f}", steps, rate)
        return {"u": u + np.float32(steps) * rate, "n": n}

    out = program.eager(u=np.zeros(3), rate=1)
    np.testing.assert_array_equal(out["u"], np.full(3, 2, np.float32))
    with pytest.raises(UsageError, match="no 'rat'"):
        program.eager(u=np.zeros(3), rat=1)
    with pytest.raises(InputError, match="input u is not given"):
        program.eager()
    with pytest.raises(InputError, match="another shape"):
        program.eager(n=4, u=np.zeros(3))
    with pytest.raises(MeshError, match="a condition"):
        program.eager(ranks=4, u=np.zeros(3))


def test_prints(capsys):
    @over(("x",), ("x",))
    def noisy(u):
        spmd.print("sum {:.1f} of {}", np.sum(u), u[:2])
        spmd.print("here", every_rank=True)
        return u

    noisy.eager(ranks=2)
    lines = capsys.readouterr().out.splitlines()
    assert lines == ["sum 6.0 of [0.0 1.0]", "rank 0: here", "rank 1: here"]


def test_where_functions_may_stand():
    @spmd.program(mesh=("x",))
    def program():
        return spmd.axis_index("x")

    with pytest.raises(ProgramError, match="axis_index stands outside a shard_map"):
        program.eager()

    @over(("x",), ("x",))
    def wrong(u):
        return spmd.psum(u, "q")

    with pytest.raises(LayoutError, match="'q' is not an axis"):
        wrong.eager()


def test_division_by_zero_is_silent(recwarn):
    @over(("x",), ("x",), dtype=np.int32)
    def divided(u):
        return u // (u * 0) + u % (u * 0)

    np.testing.assert_array_equal(divided.eager(ranks=2), np.zeros(7))
    assert not recwarn.list


@spmd.kernel
def smooth(u, weight, out):
    for i in range(1, out.shape[0] - 1):
        out[i] = weight * (u[i - 1] + u[i + 1])
    u[:] = -1  # inputs are by value


def test_kernels_run_their_python_function():
    @over(("x",), ("x",))
    def smoothed(u):
        return u * 0 + smooth(u, 0.5, out=spmd.like(u)) + u

    np.testing.assert_array_equal(smoothed.eager(), [0, 2, 4, 6, 8, 10, 6])


def test_bfloat16_by_name():
    @spmd.program(mesh=("r",))
    def half():
        return spmd.input("x", (3,), "bfloat16", layout=("r",), default=lambda i: i)

    assert str(half.eager(ranks=2).dtype) == "bfloat16"


@spmd.program
def several(case: int = 0):
    if case == 0:  # the same declaration again
        return sum(spmd.input("u", (3,), default=lambda i: i) for _ in range(2))
    if case == 1:
        return sum(spmd.input("u", (3,), default=lambda i, n=n: i + n) for n in range(2))
    if case == 2:
        return spmd.input("u", (3,), default=1.0) + spmd.input("u", (3,), default=2.0)
    if case == 3:
        return spmd.input("u", (3,), np.int32, default=np.nan)
    return np.ones(2) * spmd.scalar("flag", True) * spmd.scalar("n", 3) * spmd.scalar("h", 0.5)


def test_declarations_are_refused_as_in_a_build():
    assert several.eager().tolist() == [0, 2, 4]
    for case, kind, text in ((1, ProgramError, "another default"), (3, DtypeError, "nan out of"),
                             (2, ProgramError, "declared before at")):
        for refuse in (several.eager, several.capture):
            with pytest.raises(kind, match=text):
                refuse(case=case)
    assert several.eager(case=4, flag=0, n=np.int8(2), h=2).tolist() == [0, 0]
    for wrong in ({"n": 2.0}, {"n": True}, {"n": "3"}, {"h": True}, {"h": "1"}, {"flag": 2}):
        ((name, _),) = wrong.items()
        with pytest.raises(UsageError, match=f"scalar {name} cannot be"):
            several.eager(case=4, **wrong)


def test_asarray_of_a_constant_is_a_copy():
    table = np.arange(6.0).reshape(3, 2)

    @spmd.program(mesh=("x",))
    def program():
        whole, turned, made = spmd.asarray(table), spmd.asarray(table.T), np.zeros(2)
        whole[0], turned[1], spmd.asarray(made)[0] = 9, 8, 7  # made is an array of the program
        return whole, turned, made

    for found in program.eager(), program.eager():
        for x, expected in zip(found, ([[9, 9], [2, 3], [4, 5]], [[0, 2, 4], [8, 8, 8]], [7, 0])):
            np.testing.assert_array_equal(x, expected)
    np.testing.assert_array_equal(table, [[0, 1], [2, 3], [4, 5]])
