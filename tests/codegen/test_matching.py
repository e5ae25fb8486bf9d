"""Communication that does not match is refused, with places and a way out; what matches is not."""

import time

import numpy as np
import pytest

import spmd
from codegen.checks.matching import check
from codegen.checks.uniformity import check_uniform
from codegen.compile import lower
from codegen.errors import MatchingError, MeshError
from codegen.graph.variance import analysed
from codegen.layouts.partition import partition
from tests.codegen import sample_programs


def on_ranks(body, mesh=("x",)):
    """A program that applies body to this rank's row of 4 numbers."""

    @spmd.program(mesh=mesh)
    def case():
        counts = [spmd.axis_size(a) for a in mesh]
        u = spmd.input("u", (*counts, 4), np.float64, layout=(*mesh, None),
                       default=lambda *at: 1 + at[0] + 10 * at[-1])
        return spmd.shard_map(body, out_layouts=(*mesh, None))(u)

    return case


def refusal(body, mesh=("x",)):
    with pytest.raises(MatchingError) as caught:
        lower(on_ranks(body, mesh).capture())
    return caught.value


def line_of(place):
    return place.source_line().strip()


# ---- destinations ------------------------------------------------------------------------------


def test_two_ranks_that_send_to_one():
    def body(u):
        return spmd.ppermute(u, "x", to=lambda i, n: i // 2)

    error = refusal(body)
    assert error.message == "with 2 ranks, ranks 0 and 1 both send to 0"
    assert line_of(error.place).startswith("return spmd.ppermute(u")
    assert "return None" in error.remedy and "at most once" in error.expected
    assert error.found == "rank p sends to p // 2"


def test_the_smallest_counter_example_comes_first():
    """Right up to 5 ranks, wrong from 6 on."""

    def body(u):
        return spmd.ppermute(u, "x", to=lambda i, n: 3 if i == 4 and n > 5 else i)

    assert refusal(body).message == "with 6 ranks, ranks 3 and 4 both send to 3"


def test_a_rank_that_sends_beyond_the_last():
    def body(u):
        return spmd.ppermute(u, "x", to=lambda i, n: i + 1)

    error = refusal(body)
    assert error.message == "with 1 rank, rank 0 sends to 1, which does not exist"
    assert error.exit_code == 65


def test_a_guard_that_is_too_wide():
    def body(u):
        return spmd.ppermute(u, "x", to=lambda i, n: i + 1 if i <= n - 1 else None)

    assert "which does not exist" in refusal(body).message


def test_a_counter_in_the_destination_is_named():
    def body(u):
        for s in spmd.range(4):
            u = u + spmd.ppermute(u, "x", to=lambda i, n: (i * s) % n)
        return u

    error = refusal(body)
    assert error.message == "with 2 ranks, ranks 0 and 1 both send to 0"
    assert "s = 0" in error.found


def test_a_counter_named_as_the_member():
    def body(u):
        for p in spmd.range(3):
            u = u + spmd.ppermute(u, "x", to=lambda i, n: (i + p) % n)
        return u

    lower(on_ranks(body).capture())


def test_a_computed_distance_must_be_agreed_on():
    def shifted(u):
        return spmd.ppermute(u, "x", shift=u[0, 0].astype(np.int64))

    def sent(u):
        far = spmd.index() + np.sum(u).astype(np.int64)
        return spmd.ppermute(u, "x", to=lambda i, n: (i + far) % n)

    for body in (shifted, sent):
        error = refusal(body)
        assert "differs between the ranks along" in error.message
        assert "axis_size" in error.found


def test_a_computed_distance_may_be_negative():
    """Nothing is known of a sum of data; a loop that doubles 1 never gives less than 1."""

    def unknown(u):
        far = spmd.psum(np.sum(u).astype(np.int64), "x")
        return spmd.ppermute(u, "x", to=lambda i, n: i + far if i + far < n else None)

    error = refusal(unknown)
    assert error.message == "with 1 rank, rank 0 sends to -1, which does not exist"
    assert "(far = -1)" in error.found

    def unnamed(u):
        return spmd.ppermute(u, "x", to=lambda i, n: i + spmd.psum(np.sum(u).astype(int), "x"))

    assert refusal(unnamed).found == "rank p sends to number + p (number = 1)"

    def growing(u, step):
        d = 1
        while d < spmd.axis_size("x"):
            u = u + spmd.ppermute(u, "x", to=lambda i, n: i + d if i + d < n else None)
            d = step(d)
        return u

    for step in (lambda d: d * 2, lambda d: d << 1, lambda d: d + d, lambda d: max(d + 1, 3)):
        lower(on_ranks(lambda u, step=step: growing(u, step)).capture())
    for step in (lambda d: d - 1, lambda d: -2 * d, lambda d: d * (d - 2)):
        assert "which does not exist" in refusal(lambda u, step=step: growing(u, step)).message


def test_right_for_some_sizes_is_a_condition_of_the_launch():
    def body(u):
        return spmd.ppermute(u, "x", to=lambda i, n: 2 * i % n)

    program = on_ranks(body)
    (condition,) = lower(program.capture()).program.conditions
    assert [condition.holds.evaluate({"n_x": n}) for n in range(1, 7)] == [1, 0, 1, 0, 1, 0]
    assert 'axis_size("x") % 2' in condition.text and "no two ranks" in condition.text
    assert line_of(condition.place).startswith("return spmd.ppermute(u")
    image = spmd.build(program)
    row = image.run(ranks=5)[:, 0]
    np.testing.assert_array_equal(row, [1, 4, 2, 5, 3])
    with pytest.raises(MeshError) as caught:
        image.run(ranks=4)
    assert 'axis_size("x") % 2' in str(caught.value)
    assert "one of these numbers of ranks: 1, 3, 5" in caught.value.remedy


def test_an_extent_that_would_be_negative_is_a_condition_of_the_launch():
    def body(u):
        return np.concatenate([u[0], np.zeros(6 - spmd.axis_size("x"))])[None, :4]

    image = spmd.build(on_ranks(body))
    assert image.run(ranks=6).shape == (6, 4)
    with pytest.raises(MeshError, match="the extent 6 - n_x is not negative"):
        image.run(ranks=7)


def test_a_transposed_mesh_must_be_square():
    def swap(u):
        rows = spmd.axis_size("x")
        return spmd.ppermute(u, ("x", "y"), to=lambda i, n: (i % rows) * rows + i // rows)

    def stated(u):
        spmd.require(spmd.axis_size("x") == spmd.axis_size("y"))
        return swap(u)

    error = refusal(swap, ("x", "y"))
    assert error.message == "with 2 ranks, rank 1 sends to 2, which does not exist"
    assert "n_x = 2, n_y = 1" in error.found and "spmd.require" in error.remedy
    lower(on_ranks(stated, ("x", "y")).capture())


def test_the_source_of_a_broadcast_must_exist():
    def body(u):
        return spmd.pbroadcast(u, "x", 3)

    (condition,) = lower(on_ranks(body).capture()).program.conditions
    assert [n for n in range(1, 7) if condition.holds.evaluate({"n_x": n})] == [4, 5, 6]

    def counted(u):
        for s in spmd.range(4):
            u = spmd.pbroadcast(u, "x", s)
        return u

    assert "does not exist" in refusal(counted).message


# ---- who comes to an exchange ------------------------------------------------------------------


def test_an_exchange_in_a_branch_on_the_index():
    def body(u):
        if spmd.axis_index("x") == 0:
            u = spmd.psum(u, "x")
        return u

    error = refusal(body)
    assert error.message == 'psum over "x" inside a branch that only some ranks along "x" may take'
    assert line_of(error.place) == 'u = spmd.psum(u, "x")'
    ((text, place),) = error.also
    assert text == "the branch is taken by some ranks only:"
    assert line_of(place) == 'if spmd.axis_index("x") == 0:'
    assert error.found == 'axis_index("x") == 0' and "np.where" in error.remedy


def test_an_exchange_in_a_switch_on_the_index():
    def body(u):
        return spmd.switch(spmd.axis_index("x") % 3, [lambda v: v, lambda v: spmd.pmax(v, "x"),
                                                      lambda v: 2 * v], u)

    assert refusal(body).message.startswith('pmax over "x" inside a branch')


def test_an_exchange_in_a_loop_whose_count_varies():
    def body(u):
        for _ in spmd.range(spmd.axis_index("x") + 1):
            u = u + spmd.ppermute(u, "x", shift=1)
        return u

    error = refusal(body)
    assert error.message.startswith('ppermute over "x" inside a loop whose number of turns may')
    assert error.found == 'stop = axis_index("x") + 1'
    assert line_of(error.also[0][1]).startswith("for _ in spmd.range(")


def test_an_exchange_in_a_loop_that_starts_elsewhere_on_each_rank():
    """Equally often, but what a neighbour sends would be addressed with its own counter."""

    def body(u):
        i = spmd.axis_index("x")
        for s in spmd.range(i, i + 3):
            u = u + spmd.ppermute(u * s, "x", shift=1)
        return u

    assert refusal(body).found == 'start = axis_index("x")'


def test_an_exchange_in_a_branch_on_data_that_varies():
    def body(u):
        if np.sum(u) > 3:
            u = u - spmd.pmean(u, "x")
        return u

    error = refusal(body)
    assert 'may differ along "x"' in error.found
    assert 'spmd.any_ranks(condition, "x")' in error.remedy


def behind_and(u):
    return u + 1 if u[0, 0] > 0 and spmd.pmax(u[0, 0], "x") > 3 else u


def behind_or(u):
    return u * (not (u[0, 0] > 0 or spmd.pmax(u[0, 0], "x") > 3))


def in_a_chain_of_comparisons(u):
    return np.where(0 < u[0, 0] < spmd.pmax(u[0, 0], "x"), u, 0)


def in_a_conditional_expression(u):
    return u + (1 if u[0, 0] > 0 else spmd.pmax(u[0, 0], "x"))


@pytest.mark.parametrize(
    "body", [behind_and, behind_or, in_a_chain_of_comparisons, in_a_conditional_expression],
    ids=lambda f: f.__name__,
)
def test_an_exchange_that_python_evaluates_on_some_ranks(body):
    error = refusal(body)
    assert error.message == 'pmax over "x" inside a branch that only some ranks along "x" may take'


def test_an_exchange_in_a_while_on_data_that_varies():
    def body(u):
        while np.max(u) > 1:
            u = u / spmd.pmax(u, "x")
        return u

    error = refusal(body)
    assert error.message.startswith('pmax over "x" inside a loop')
    assert line_of(error.also[0][1]).startswith("while np.max(u)")


def test_a_condition_reduced_over_too_few_axes():
    def body(u):
        while spmd.any_ranks(np.max(u) > 1, "x"):
            u = u / spmd.pmax(u, ("x", "y")) / 2
        return u

    error = refusal(body, ("x", "y"))
    assert 'along "y"' in error.message and 'spmd.any_ranks(condition, "y")' in error.remedy


def test_what_varies_only_after_some_iterations():
    """The flag is equal on all ranks at first; what is carried into it is not."""

    def body(u):
        total = spmd.psum(np.sum(u), "x")
        other = np.sum(u)
        for _ in spmd.range(5):
            if total > 1:
                u = u + spmd.pmean(u, "x")
            total = other
        return u

    assert 'pmean' not in refusal(body).message and "inside a branch" in refusal(body).message


def test_an_exchange_after_a_break_that_some_ranks_take():
    def body(u):
        for _ in spmd.range(5):
            if np.sum(u) > 9:
                break
            u = u + spmd.psum(u, "x")
        return u

    assert "psum" in refusal(body).message


def test_a_barrier_in_a_branch_on_the_index():
    def body(u):
        if spmd.axis_index("x") % 2 == 0:
            spmd.barrier("x")
        return u

    assert refusal(body).message.startswith('barrier over "x" inside a branch')


# ---- what matches ------------------------------------------------------------------------------


def shift(u):
    return spmd.ppermute(u, "x", shift=2)


def guarded(u):
    return spmd.ppermute(u, "x", to=lambda i, n: i + 1 if i < n - 1 else None)


def guarded_back(u):
    return spmd.ppermute(u, "x", to=lambda i, n: i - 1 if i > 0 else None)


def reversal(u):
    return spmd.ppermute(u, "x", to=lambda i, n: n - 1 - i)


def pairs(u):
    return spmd.ppermute(
        u, "x", to=lambda i, n: (i + 1 if i + 1 < n else None) if i % 2 == 0 else i - 1
    )


def shuffle(u):
    """Cards cut in two halves and laid into one another: right for every number of ranks."""
    return spmd.ppermute(
        u, "x", to=lambda i, n: 2 * i if 2 * i < n else 2 * (i - (n + 1) // 2) + 1
    )


def counted(u):
    for s in spmd.range(3):
        u = u + spmd.ppermute(u, "x", to=lambda i, n: (i + s) % n)
    return u


def other_axis_in_a_branch(u):
    if spmd.axis_index("y") == 0:
        u = spmd.psum(u, "x")
    return u


def other_axis_in_a_loop(u):
    for _ in spmd.range(spmd.axis_index("y")):
        u = u + spmd.ppermute(u, "x", shift=1)
    return u


def sizes_decide(u):
    if spmd.axis_size("x") > 2:
        u = spmd.psum(u, "x")
    return u


def reduced_condition(u):
    total = spmd.psum(np.sum(u), ("x", "y"))
    for _ in spmd.range(4):
        if total > 100:
            u = u - spmd.pmean(u, ("x", "y"))
            total = total / 2
        else:
            total = total + spmd.pmax(np.max(u), ("x", "y"))
    return u


def reduced_while(u):
    while spmd.any_ranks(np.max(u) > 1):
        u = u / (1 + spmd.pmax(u, ("x", "y")))
    return u


def group_of_a_condition(u):
    """The condition is equal along x, and so the ranks of a group along x stay together."""
    while spmd.any_ranks(np.max(u) > 1, "x"):
        u = u / (1 + spmd.pmax(u, "x"))
    return u


def gathers(u):
    rows = spmd.all_gather(u, "x", 0, tiled=True)
    parts = spmd.all_to_all(spmd.psum_scatter(u, "y", 2, tiled=True), "x", 2, 0, tiled=True)
    return u + np.sum(rows) + spmd.psum(np.sum(parts), "y")


MATCHING = [
    shift, guarded, guarded_back, reversal, pairs, shuffle, counted, other_axis_in_a_branch,
    other_axis_in_a_loop, sizes_decide, reduced_condition, reduced_while, group_of_a_condition,
    gathers,
]


@pytest.mark.parametrize("body", MATCHING, ids=lambda f: f.__name__)
def test_accepted(body):
    program = lower(on_ranks(body, ("x", "y")).capture()).program
    assert program.conditions == ()


# ---- values ------------------------------------------------------------------------------------


def varying(body, mesh=("x", "y")):
    """The axes along which the result of body may vary."""
    program = partition(on_ranks(body, mesh).capture())
    return set(analysed(program).of[program.outputs[0].value])


@pytest.mark.parametrize("call", [
    lambda u: spmd.pscatter(u, "y", 0, tiled=True), lambda u: spmd.pgather(u, "y", 0, tiled=True),
    lambda u: spmd.all_gather(u, "y", tiled=True), lambda u: spmd.pbroadcast(u, "y", 0),
    lambda u: spmd.all_to_all(u, "y", 0, 0, tiled=True), lambda u: spmd.psum(u, "y"),
    lambda u: spmd.psum_scatter(u, "y", tiled=True), lambda u: spmd.ppermute(u, "y", shift=1),
])
def test_an_axis_of_one_rank(call):
    """An axis fixed at 1 stands in no formula, and nothing has to be proved of its other ranks."""

    @spmd.program(mesh={"x": None, "y": 1})
    def case():
        u = spmd.zeros((4,), np.float64, layout=(None,))
        return spmd.shard_map(call, mesh=("x", "y"), in_layouts=((None,),), out_layouts=(None,))(u)

    lower(case.capture())


@pytest.mark.parametrize(("body", "axes"), [
    (lambda u: u, {"x", "y"}),
    (lambda u: spmd.psum(u, "x"), {"y"}),
    (lambda u: spmd.psum(u, ("x", "y")), set()),
    (lambda u: spmd.psum(u, ("x", "y")) + spmd.axis_index("y"), {"y"}),
    (lambda u: np.ones_like(u) * spmd.axis_size("x"), set()),
    (lambda u: spmd.pbroadcast(u, "y"), {"x"}),
    (lambda u: spmd.ppermute(spmd.psum(u, ("x", "y")), "x", to=lambda i, n: 0 if i == 0 else None),
     {"x"}),
    (lambda u: np.where(spmd.axis_index("x") == 0, 1, 0) + 0 * spmd.psum(u, ("x", "y")), {"x"}),
], ids="shard psum_x psum_xy index size broadcast permute where".split())
def test_variance(body, axes):
    assert varying(body) == axes


def test_variance_of_a_branch_and_a_loop():
    def branch(u):
        total = spmd.psum(u, ("x", "y"))
        return total if spmd.axis_index("x") == 0 else 2 * total

    def loop(u):
        total = spmd.psum(u, ("x", "y"))
        for _ in spmd.range(spmd.axis_index("y")):
            total = total + 1
        return total

    assert varying(branch) == {"x"} and varying(loop) == {"y"}


@pytest.mark.parametrize("name", ["ring_allreduce", "branches", "halo", "in_place"])
def test_the_check_is_fast(name):
    program = partition(getattr(sample_programs, name).capture())

    def seconds() -> float:
        start = time.process_time()
        assert check(check_uniform(program)) is program
        return time.process_time() - start

    assert any(seconds() < 0.3 for _ in range(5))


def test_a_bound_that_was_stated_is_checked_at_launch():
    def body(u):
        spmd.require(spmd.axis_size("x") <= 3)
        return spmd.ppermute(u, "x", shift=1)

    image = spmd.build(on_ranks(body))
    assert image.run(ranks=3).shape == (3, 4)
    with pytest.raises(MeshError, match="breaks a condition"):
        image.run(ranks=4)
