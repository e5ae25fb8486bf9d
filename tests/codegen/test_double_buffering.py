"""Loops whose results are in other buffers than their arguments: these change places."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_plan import check_plan
from codegen.compile import lower
from codegen.errors import InternalError
from codegen.ir.plan import Load, Loop, Phase, Plan, Store
from codegen.ir.steps import walk_steps

N = 13


def field(name: str, shift: int) -> Any:
    return spmd.input(name, (N, 3), np.float64, layout=("x", None),
                      default=lambda i, j: (i * 7 + j * 3 + shift) % 11)


def near(u: Any) -> Any:
    return (np.roll(u, 1, 0) + np.roll(u, -1, 0)) * 0.5


def waves(u, p, k):
    for _ in spmd.range(k):
        u, p = 2 * u - p + 0.25 * (near(u) - u), u
    return u, p


def pinned(u, p, k):
    for _ in spmd.range(k):
        q = 2 * u - p
        q[1:-1] += 0.25 * (u[2:] + u[:-2] - 2 * u[1:-1])
        q[0] = 0
        u, p = q, u
    return u, p


def shifted(u, p, k):
    """Reads the old p at other elements than q is computed at, so q needs memory of its own."""
    for _ in spmd.range(k):
        u, p = u - p[:, ::-1], u
    return u, p


def replaced(u, p, k):
    for _ in spmd.range(k):
        u = np.stack([near(u)[:, 0], u[:, 2] - u[:, 1], p[:, 0]], axis=1)
    return u, p


def exchanged(u, p, k):
    w = u + p
    for _ in spmd.range(k):
        u += near(p)
        u, p, w = p, w, u
    return u, p, w


def two_rings(u, p, k):
    v, w = u - p, u + p
    for _ in spmd.range(k):
        u, p, v, w = p, u, near(w), v
    return u, p, v, w


def twice(u, p, k):
    v = u + p
    for _ in spmd.range(k):
        q = near(v) - u
        u, p, v = q, v, v * 2
        p = p + u
        u, p, v = p, u, p
    return u, p, v


def from_outside(u, p, k):
    fixed = u * p
    for _ in spmd.range(k):
        u, p = fixed, u
    return near(u), near(p), fixed


def nested(u, p, k):
    for j in spmd.range(k):
        for _ in spmd.range(j + 2):
            u, p = near(u) - p, u
        u, p = p, np.roll(u, j, 0)
    return u, p


def in_sequence(u, p, k):
    for _ in spmd.range(k):
        u, p = near(u) - p, u
    w = np.roll(u, 2, 0)
    for _ in spmd.range(k + 1):
        w, p = near(w) * 0.5 - p, w
    return u, p, w


def until(u, p, k):
    turns = 0
    while np.sum(np.abs(u)) < 500 + 100 * k and turns < 9:
        u, p = near(u) * 2 + p, u
        turns += 1
    return u, p, turns


def left_early(u, p, k):
    for j in spmd.range(9):
        if np.max(u) > 20 * k:
            break
        u, p = near(u) + p, u
        if j % 2 == 0:
            u, p = p * 0.5, near(u)
    return u, p


def counted(u, p, k):
    """Numbers that no exchange touches, beside an array."""
    a, b = 0, 1
    for _ in spmd.range(k):
        a, b = b, a + b
        u = near(u) + a
    return u, a, b


def in_a_branch(u, p, k):
    if np.sum(u) > np.sum(p) - k:
        for _ in spmd.range(k):
            u, p = near(u) - p, u
    else:
        u = u * 2
    return near(u), near(p)


# What rotates, by loop: how many buffers in every cycle; and how many copies of buffers are left.
# A branch and the entry of a loop copy; so does what is carried twice, or comes from outside.
PROGRAMS: list[tuple[Any, list[list[int]], int]] = [
    (waves, [[2]], 0), (pinned, [[2]], 0), (shifted, [[3]], 0), (replaced, [[2]], 0),
    (exchanged, [[3]], 0), (two_rings, [[3, 2]], 0), (twice, [[2]], 1), (from_outside, [[]], 2),
    (nested, [[2], [2]], 0), (in_sequence, [[2], [2]], 0), (until, [[2]], 0),
    (left_early, [[2]], 2), (counted, [[2]], 0), (in_a_branch, [[2]], 0),
]


def program_of(body: Any) -> Any:
    def program() -> Any:
        results = body(field("u", 0), field("p", 4), spmd.scalar("k", 3))
        return {f"r{n}": value for n, value in enumerate(results)}

    return spmd.program(mesh=("x",))(program)


def loops_of(plan: Plan) -> list[Loop]:
    return [s for s in walk_steps(plan.steps) if isinstance(s, Loop)]


def copies_in(loop: Loop) -> list[Store]:
    work = [w for s in walk_steps([loop]) if isinstance(s, Phase) for w in s.work]
    return [w for w in work if isinstance(w, Store) and isinstance(w.value, Load)
            and w.value.offset == w.offset and w.value.buffer is not w.buffer]


@pytest.mark.parametrize(("body", "cycles", "copies"), PROGRAMS)
def test_cycles(body, cycles, copies):
    loops = loops_of(lower(program_of(body).capture()).plan)
    assert [[len(cycle) for cycle in loop.rotate] for loop in loops] == cycles
    assert sum(len(copies_in(loop)) for loop in loops) == copies


@pytest.mark.parametrize("body", [p[0] for p in PROGRAMS])
def test_results_are_those_of_numpy(body):
    """Also when a job runs again: its buffers are then where they were."""
    program = program_of(body)
    image = spmd.build(program)
    expected = {k: program.eager(k=k) for k in (0, 3, 4)}
    for ranks in (1, 2, 3):
        with image.open(ranks=ranks) as job:
            for k in (0, 3, 3, 4, 4):
                agree(job(k=k), expected[k], f"{k} turns on {ranks} ranks")


def agree(found, expected, where):
    for name, e in expected.items():
        np.testing.assert_allclose(found[name], e, rtol=1e-12, err_msg=f"{name}: {where}")


def test_the_plan_checker_sees_buffers_that_cannot_change_places():
    plan = lower(program_of(waves).capture()).plan
    at = next(k for k, s in enumerate(plan.steps) if isinstance(s, Loop))
    p, u = plan.steps[at].rotate[0]
    other = next(b for b in plan.buffers if b.capacity != u.capacity)
    for rotate, rule in ((((u, other),), "one capacity"), (((p, u), (u, p)), "once")):
        steps = list(plan.steps)
        steps[at] = dataclasses.replace(steps[at], rotate=rotate)
        with pytest.raises(InternalError, match=rule):
            check_plan(dataclasses.replace(plan, steps=tuple(steps)))


LONG = 3000  # elements of a rank: more than a slot holds, so others read them where they lie


def apart(body: Any) -> Any:
    """Every rank begins with rows of its own, and ranks may run the loops of `body` differently
    often."""

    def program() -> Any:
        n = spmd.ranks()
        a, b, c = (spmd.input(name, (n, LONG), np.float64, layout=("x", None),
                              default=lambda i, j, k=k: i * 5 + j % 7 + k)
                   for k, name in enumerate("abc"))
        results = spmd.shard_map(body, mesh="x", out_layouts=(("x", None),) * 3)(a, b, c)
        return dict(zip("abc", results, strict=True))

    return spmd.program(mesh=("x",))(program)


def passed_on(*arrays: Any) -> Any:
    return tuple(spmd.ppermute(a, "x", shift=1) for a in arrays)


def by_index(a, b, c):
    if spmd.axis_index("x") % 2 == 0:
        for _ in spmd.range(4):
            a, b = b, a + b[:, ::-1]  # so that no tile takes all turns at once
    return passed_on(a, b, c)


def as_often_as_index(a, b, c):
    for _ in spmd.range(spmd.axis_index("x")):
        a, b = b, a + b
    return passed_on(a, b, c)


def not_exchanged(a, b, c):
    for _ in spmd.range(spmd.axis_index("x")):
        a, b = b, a + b
    return a, b, spmd.ppermute(c, "x", shift=1)


def met_later(a, b, c):
    """The first loop exchanges buffers that nobody else reads; in the second one all ranks turn
    alike, and one of them meets one that is sent."""
    for _ in spmd.range(spmd.axis_index("x")):
        a, b = b, a + b
    for _ in spmd.range(4):
        b, c = c, b + c[:, ::-1]
    return a, b, spmd.ppermute(c, "x", shift=1)


def turned_alike(a, b, c):
    for _ in spmd.range(4):
        a, b = b, a + b
        c = spmd.ppermute(a, "x", shift=1)
    return passed_on(a, b, c)


APART: list[tuple[Any, list[bool]]] = [  # which loops rotate
    (by_index, [False]), (as_often_as_index, [False]), (not_exchanged, [True]),
    (met_later, [True, False]), (turned_alike, [True]),
]


@pytest.mark.parametrize(("body", "rotates"), APART)
def test_ranks_that_exchange_have_turned_alike(body, rotates):
    program = apart(body)
    assert [bool(loop.rotate) for loop in loops_of(lower(program.capture()).plan)] == rotates
    image = spmd.build(program)
    for ranks in (1, 2, 3):
        agree(image.run(ranks=ranks), by_hand(body, ranks), f"{ranks} ranks")


def by_hand(body: Any, ranks: int) -> dict[str, np.ndarray]:
    """Return the results of the five bodies by NumPy, one row per rank."""
    rows = np.add.outer(np.arange(ranks) * 5.0, np.arange(LONG) % 7)
    a, b, c = rows.copy(), rows + 1, rows + 2
    for i in range(ranks):
        alike = 4 if body is turned_alike else 4 * (i % 2 == 0)
        for _ in range(alike if body in (by_index, turned_alike) else i):
            a[i], b[i] = b[i].copy(), a[i] + b[i][:: -1 if body is by_index else 1]
    if body is met_later:
        for _ in range(4):
            b, c = c, b + c[:, ::-1]
    if body is turned_alike:
        c = np.roll(a, 1, 0)
    sent = {"c": c} if body in (not_exchanged, met_later) else {"a": a, "b": b, "c": c}
    return {"a": a, "b": b, **{name: np.roll(value, 1, 0) for name, value in sent.items()}}


WAVES = """
import numpy as np
import spmd


@spmd.program(mesh=("x",))
def waves(n: int = 50, m: int = 700):
    u = spmd.input("u", (n, m), np.float64, layout=("x", None), default=lambda i, j: (i * j) % 11)
    p = u.copy()
    for _ in spmd.range(5):
        q = 2 * u - p
        q[1:-1] += 0.25 * (u[2:] + u[:-2] - 2 * u[1:-1])
        u, p = q, u
    return {"u": u, "p": p}
"""


@pytest.mark.one_mpi
@pytest.mark.parametrize("transport", ["auto", "mpi"])
def test_under_mpirun(mpirun, built, tmp_path, transport):
    out = tmp_path / "out.npz"
    mpirun(3, "-m", "spmd", "run", built(WAVES), "--transport", transport, "--ranks", 4,
           "-o", f"u={out}", "-o", f"p={out}").expect(0)
    u = np.fromfunction(lambda i, j: (i * j) % 11, (50, 700))
    p = u.copy()
    for _ in range(5):
        q = 2 * u - p
        q[1:-1] += 0.25 * (u[2:] + u[:-2] - 2 * u[1:-1])
        u, p = q, u
    agree(np.load(out), {"u": u, "p": p}, transport)


def test_exchanges_of_buffers_that_change_places_are_verified(built, spmd_command):
    image = built(WAVES)
    spmd_command("show", image, "--plan").expect(0, "rotate p to u_2 to p")
    spmd_command("verify", image, "--ranks", "1-30", "--execute").expect(0, "say the same")
