"""Calls that leave optional inputs out, or ask for some outputs: what comes back, what does not
run, what is refused; in open jobs, on the command line, over several processes, from checkpoints.
"""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import pytest

import spmd
from codegen.errors import InputError, UnsupportedError, UsageError
from codegen.trace.program import Program

N = 12
X, W = np.linspace(-1, 1, N), np.arange(N) / 10


class Pair(NamedTuple):
    first: Any
    second: Any


@spmd.program(mesh=("r",))
def label():
    """A model that gives labels, and a loss where it is told what is right."""
    w = spmd.input("w", (N,), np.float64, layout=("r",))
    x = spmd.input("x", (N,), np.float64, layout=("r",), optional=True)
    y = spmd.input("y", (N,), np.float64, layout=("r",), optional=True)
    p = np.tanh(x * w)
    loss, back = spmd.value_and_grad(lambda w: np.sum((np.tanh(x * w) - y) ** 2))(w)
    return {"label": p, "loss": loss, "new": w - 0.1 * back, "size": Pair(np.sum(w), [p, x])}


@spmd.program(mesh=("r",), selectable=True)
def chosen():
    w = spmd.input("w", (N,), np.float64, layout=("r",))
    x = spmd.input("x", (N,), np.float64, layout=("r",), optional=True)
    only = spmd.scalar("steps", 3)
    u = w + 0
    for _ in spmd.range(only):
        u = np.roll(u, 1) * 0.5 + w
    v = np.sort(w * 2)
    return {"a": {"u": u, "sum": np.sum(u)}, "v": v, "d": np.dot(v, u + x)}


@spmd.program(mesh=("r",))
def bare():
    return 2 * spmd.input("x", (N,), np.float64, layout=("r",), optional=True)


@spmd.program(mesh=("r",))
def tree():
    w = spmd.input("w", {"k": spmd.spec((N,), np.float64), "b": spmd.spec((), np.float64)},
                   optional=True)
    x = spmd.input("x", (N,), np.float64, layout=("r",))
    return (w["k"] * x, w["b"], np.sum(x))


@pytest.fixture(scope="module")
def images():
    return {p.name: spmd.build(p) for p in (label, chosen, bare, tree)}


def same(found: Any, expected: Any) -> None:
    """Check that results have one structure, with None in the same places, and equal numbers."""
    if isinstance(expected, (tuple, list, dict)):
        assert type(found).__name__ in (type(expected).__name__, "Pair")
        assert len(found) == len(expected)
        each = expected if isinstance(expected, dict) else range(len(expected))
        for key in each:
            same(found[key], expected[key])
    elif expected is None:
        assert found is None
    else:
        np.testing.assert_allclose(found, expected, 1e-12, 1e-12)


def by_hand(x: Any, y: Any) -> dict[str, Any]:
    p = None if x is None else np.tanh(x * W)
    new = loss = None
    if x is not None and y is not None:
        loss = np.sum((p - y) ** 2)
        new = W - 0.1 * (2 * (p - y) * (1 - p**2) * x)
    return {"label": p, "loss": loss, "new": new, "size": Pair(np.sum(W), [p, x])}


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_what_needs_a_missing_input_is_none(images, ranks):
    """In every order of calls: what is left out is not taken from the call before."""
    y = np.cos(X)
    with images["label"].open(ranks=ranks) as job:
        for first, second in itertools.product(itertools.product((X, None), (y, None)), repeat=2):
            for x, y_ in (first, second, second):
                given = {k: v for k, v in (("x", x), ("y", y_)) if v is not None}
                same(job(w=W, **given), by_hand(x, y_))
                same(label.eager(w=W, **given), by_hand(x, y_))
    for nothing in ({}, {"x": None}):
        assert images["bare"].run(ranks=ranks, **nothing) is None
        assert bare.eager(**nothing) is None
    same(images["bare"].run(ranks=ranks, x=X), 2 * X)


@pytest.mark.parametrize("ranks", [1, 3])
def test_a_tree_is_there_or_not(images, ranks):
    w = {"k": np.arange(N) + 0.5, "b": np.float64(2)}
    for run in (lambda **given: images["tree"].run(ranks=ranks, **given), tree.eager):
        same(run(x=X), (None, None, np.sum(X)))
        same(run(x=X, w=w), (w["k"] * X, 2.0, np.sum(X)))
        with pytest.raises((InputError, UsageError), match="b is not given|b was not given"):
            run(x=X, w={"k": w["k"]})


def test_what_is_not_optional_is_asked_for(images):
    with pytest.raises(UsageError, match="input w was not given"):
        images["label"].run(x=X)
    with pytest.raises(InputError, match="input w is not given"):
        label.eager(x=X)

    @spmd.program
    def both():
        return spmd.input("x", (3,), np.float64, default=lambda i: i, optional=True)

    for run in (spmd.build, lambda program: program.eager()):
        with pytest.raises(UsageError, match='input "x" is optional and has a default'):
            run(both)


def entered(image: Any, word: str, **given: Any) -> int:
    """How many operations whose line has this word a run comes to."""
    return sum(word in row.get("text", "") for row in image.profile(ranks=2, **given))


def test_work_of_a_missing_input_is_not_done(images):
    for given, lines in (({}, 0), ({"x": X}, 0), ({"y": X}, 0), ({"x": X, "y": X}, 1)):
        assert bool(entered(images["label"], "value_and_grad", w=W, **given)) == lines
    assert not entered(images["label"], "tanh", w=W)
    assert entered(images["label"], "tanh", w=W, x=X)


@pytest.mark.parametrize("ranks", [1, 3, 5])
def test_outputs_that_are_asked_for(images, ranks):
    image, whole = images["chosen"], chosen.eager(w=W, x=X)
    names = {"a.u": whole["a"]["u"], "a.sum": whole["a"]["sum"], "v": whole["v"], "d": whole["d"]}
    with image.open(ranks=ranks) as job:
        for only in (None, "a", "v", ("a.sum", "d"), ["d"], (), None, "a.u"):
            some = (only,) if isinstance(only, str) else names if only is None else only
            asked = {name for name in names if {name, name.partition(".")[0]} & {*some}}
            out, again = job(w=W, x=X, only=only), job(w=W, x=X, only=only)
            for found in (out, again, chosen.eager(w=W, x=X, only=only)):
                flat = {"a.u": found["a"]["u"], "a.sum": found["a"]["sum"], **found}
                for name, value in names.items():
                    same(flat[name], value if name in asked else None)
        same(job(w=W, only=("v", "d")), {"a": {"u": None, "sum": None}, "v": whole["v"], "d": None})
        same(job(w=W, x=X, steps=0, only="a.u")["a"], {"u": W, "sum": None})
        with pytest.raises(UsageError, match="only='w': the program has no output 'w'"):
            job(w=W, x=X, only="w")
    same(images["label"].run(w=W, x=X, only="label")["size"], Pair(None, [None, None]))


def test_work_for_outputs_that_nobody_asks_for_is_not_done(images):
    for only, sorts, rolls in (("v", True, False), ("a", False, True), ("d", False, False),
                               (("a", "v"), True, True), (None, True, True)):
        for word, there in (("sort", sorts), ("roll", rolls)):
            assert bool(entered(images["chosen"], word, w=W, only=only)) == there, (only, word)
    for image in images.values():  # whatever is given, sends and receives match
        assert len(image.verify(ranks=range(1, 9))) == 1


def test_python_does_not_decide_by_what_is_missing():
    @spmd.program
    def branches():
        x = spmd.input("x", (), np.float64, optional=True)
        assert x > 0, "left out without x"
        return 1 if x > 0 else 2

    assert branches.eager(x=3) == 1
    with pytest.raises(InputError, match="input x is not given, and what follows") as raised:
        branches.eager()
    assert "np.where(condition, a, b)" in str(raised.value)
    assert spmd.build(branches).run() is None


def test_loops_and_branches_that_what_is_missing_decides():
    @spmd.program(mesh=("r",))
    def decided():
        w = spmd.input("w", (N,), np.float64, layout=("r",))
        k = spmd.input("k", (), np.int64, optional=True)
        x = spmd.input("x", (N,), np.float64, layout=("r",), optional=True)
        u, v, t = w + 0, w + 1, w * 2
        for _ in spmd.range(k % 4):
            u = u * 0.5 + 1
        while np.sum(v) < 100:
            v = v * 2
            t = t + x
        if k > 2:
            r = w * 3
        else:
            r = w - np.roll(w, 1)
        q = w[k] + v[2]
        return u, v, t, r, q, np.max(w)

    image = spmd.build(decided)
    whole = decided.eager(w=W, k=3, x=X)
    for ranks in (1, 3, 5):
        with image.open(ranks=ranks) as job:
            for given, there in (({}, (1, 5)), ({"k": 3}, (0, 1, 3, 4, 5)), ({"x": X}, (1, 2, 5)),
                                 ({"k": 3, "x": X}, range(6))):
                same(job(w=W, **given), tuple(
                    value if place in there else None for place, value in enumerate(whole)))


@spmd.custom_vjp
def least(a, b):
    return np.minimum(a, b)


least.defvjp(
    lambda a, b: (least(a, b), (a, b)), lambda kept, ct: (ct * (kept[0] < kept[1]), ct * 0))


def test_derivatives_of_what_needs_a_missing_input():
    @spmd.program(mesh=("r",))
    def derived():
        w = spmd.input("w", (N,), np.float64, layout=("r",))
        x = spmd.input("x", (N,), np.float64, layout=("r",), optional=True)
        ct = spmd.input("ct", (N,), np.float64, layout=("r",), optional=True)

        def turn(c, e):
            return np.tanh(c + e * x), np.sum(c)

        y, back = spmd.vjp(lambda q: np.sin(q) * 2, w)
        return {
            "y": y, "back": back(ct)[0], "clipped": spmd.grad(lambda q: np.sum(least(q, x)))(w),
            "jvp": spmd.jvp(lambda q: q * x, (w,), (np.ones(N),)),
            "tangent": spmd.jvp(lambda q: q * 3, (w,), (ct,)),
            "remat": spmd.grad(lambda q: np.sum(spmd.remat(lambda z: np.tanh(z * x))(q)))(w),
            "hessian": spmd.hessian(lambda q: np.sum(q**3 * x))(w),
            "scan": spmd.grad(lambda q: np.sum(spmd.scan(turn, q, w)[0]))(w),
        }

    image, ct = spmd.build(derived), np.sin(W)
    whole = derived.eager(w=W, x=X, ct=ct)
    with image.open(ranks=3) as job:
        for given in ({}, {"x": X}, {"ct": ct}, {"x": X, "ct": ct}):
            there = {"y", *(() if "x" not in given else whole.keys() - {"back", "tangent"}),
                     *(("back", "tangent") if "ct" in given else ())}
            want = {k: v if k in there else None if k not in ("jvp", "tangent") else (None, None)
                    for k, v in whole.items()}
            if "tangent" not in there:
                want["tangent"] = (whole["tangent"][0], None)
            same(job(w=W, **given), want)
            same(derived.eager(w=W, **given), want)


def test_arrays_that_are_written_to_with_what_is_missing():
    @spmd.program
    def writes():
        x = spmd.input("x", (4,), np.float64, optional=True)
        u, v = spmd.zeros(4, np.float64), spmd.ones(4, np.float64)
        part = u[1:]
        part[0] = x[0]
        v[:2] = x[2:]
        v[...] = 3.0
        w = spmd.ones(4) + 0
        w += x
        return u, u.sum(), v, v * 2, w, np.zeros_like(x), x.shape[0]

    for run in (writes.eager, spmd.build(writes).run):
        same(run(), (None, None, np.full(4, 3.0), np.full(4, 6.0), None, np.zeros(4), 4))
        x = np.arange(4.0)
        same(run(x=x), (np.zeros(4), 0, np.full(4, 3.0), np.full(4, 6.0), x + 1, np.zeros(4), 4))


class Checkpointing(Program):
    """Outputs that have an input's name are that input where they are not computed."""

    def _trace(self, context: Any, values: dict[str, Any]) -> Any:
        module = super()._trace(context, values)
        old = {i.name: i.value for i in module.inputs}
        return replace(module, outputs=tuple(
            replace(o, otherwise=old.get(o.name)) for o in module.outputs))


def test_outputs_that_are_something_else_where_they_are_not_computed():
    """An output that is not computed keeps its state: in place, in a loop, in another layout or
    order."""
    def updates():
        w = spmd.input("w", (N,), np.float64, layout=("r",))
        v = spmd.input("v", (N,), np.float64)
        x = spmd.input("x", (N,), np.float64, layout=("r",), optional=True)
        new, other = w + x, v + 0
        for k in spmd.range(3):
            new[1:] += 0.1 * new[:-1]
            other = other * 0.5 + np.sum(x) * k
        return {"w": new, "v": other, "peak": np.max(w) + np.max(v)}

    program = Checkpointing(updates, ("r",), selectable=True)
    image = spmd.build(program)
    for ranks in (1, 3, 5):
        with image.open(ranks=ranks, keep=("w", "v")) as job:
            w, v = W, X
            for x in (None, X, None, None, X, None):
                given = {} if x is None else {"x": x}
                want = program.eager(w=np.asarray(w), v=np.asarray(v), **given)
                old = {"w": np.array(w), "v": np.array(v), "peak": None}
                out = job(w=w, v=v, **given)
                same({k: np.asarray(found) for k, found in out.items()},
                     {k: old[k] if value is None else value for k, value in want.items()})
                w, v = out["w"], out["v"]


@spmd.program(mesh=("r",))
class Counter:
    def __init__(self):
        self.total = np.zeros(N)
        self.calls = 0

    @spmd.entry
    def add(self):
        x = spmd.input("x", (N,), np.float64, layout=("r",))
        w = spmd.input("w", (N,), np.float64, layout=("r",), optional=True)
        self.calls = self.calls + 1
        self.total = self.total + x * w
        return {"x": np.sum(x), "wx": np.sum(w * x), "calls": self.calls}

    @spmd.entry
    def mean(self):
        w = spmd.input("w", (N,), np.float64, layout=("r",), optional=True)
        return {"mean": np.mean(self.total), "scaled": self.total * w}

    @spmd.entry
    def poke(self):
        self.total[2] = spmd.input("t", (), np.float64, optional=True)


def test_entries_leave_states_as_they_are():
    image = spmd.build(Counter)
    for counter in (Counter.eager(), *(image.open(ranks=n) for n in (1, 3, 5))):
        with counter:
            for calls, (given, only) in enumerate(
                    [({"w": W}, None), ({}, None), ({"w": None}, None), ({}, "x"), ({}, "x"),
                     ({"w": W}, "wx"), ({"w": W}, ("wx",))], start=1):
                out = counter.add(x=X, **given, only=only)
                there = given.get("w") is not None and (only is None or "wx" in only)
                same(out, {"x": X.sum() if only in (None, "x") else None,
                           "wx": (W * X).sum() if there else None,
                           "calls": calls if only is None else None})
            total = 3 * W * X
            for given in ({}, {}, {"w": W}, {"w": X}):
                w = given.get("w")
                same(counter.mean(**given), {"mean": total.mean(),
                                             "scaled": None if w is None else total * w})
            for t in (None, 7.0, None):
                counter.poke(**({} if t is None else {"t": np.float64(t)}))
                total[2] = total[2] if t is None else t
                same(counter.state()["total"], total)
            same(counter.state()["calls"], 7)


def test_a_class_is_not_selectable():
    with pytest.raises(UnsupportedError, match="is a class, and selectable"):
        spmd.program(mesh=("r",), selectable=True)(Counter.cls)


SEVERAL = """
import sys
import numpy as np
import spmd
from mpi4py import MPI

image = spmd.load(sys.argv[1])
w, x = np.arange(12) / 10, np.linspace(-1, 1, 12)
for transport in ("auto", "mpi"):
    with image.open(comm=MPI.COMM_WORLD, transport=transport) as job:
        for given, only in (({}, None), ({"x": x}, None), ({"x": x}, "d"), ({}, ("v", "d"))):
            out = job(w=w, **given, only=only)
            assert (out["d"] is None) == (not given or only == ("v", "d"))
            assert (out["v"] is None) == (only == "d")
            if out["v"] is not None:
                v = out["v"].gather()
                assert v is None or np.allclose(v, w * 2)
    with image.open(comm=MPI.COMM_WORLD, transport=transport) as job:
        if MPI.COMM_WORLD.rank:
            job.follow()
            continue
        for given, only in (({}, None), ({"x": x}, None), ({"x": x}, "d"), ({}, ("v", "d"))) * 2:
            for _ in range(3):
                out = job(w=w, **given, only=only)
                assert (out["d"] is None) == (not given or only == ("v", "d"))
                assert (out["v"] is None) == (only == "d")
                assert out["v"] is None or np.allclose(out["v"], w * 2)
"""


def test_several_processes(images, mpirun, tmp_path):
    images["chosen"].save(tmp_path / "chosen.img")
    (tmp_path / "several.py").write_text(SEVERAL)
    done = mpirun(3, tmp_path / "several.py", tmp_path / "chosen.img")
    assert done.code == 0, done.text


def test_the_command_line_leaves_outputs_out(images, spmd_here, tmp_path):
    images["chosen"].save(tmp_path / "chosen.img")
    for name, array in (("w", W), ("x", X)):
        np.save(tmp_path / f"{name}.npy", array)
    run = ("run", tmp_path / "chosen.img", "-i", f"w={tmp_path}/w.npy")
    assert "d:" not in spmd_here(*run).text
    lines = spmd_here(*run, "-i", f"x={tmp_path}/x.npy", "--only", "d,a.sum").text.splitlines()
    assert [line.partition(":")[0] for line in lines] == ["a.sum", "d"]
    done = spmd_here(*run, "-o", f"d={tmp_path}/d.npy")
    assert done.code == 2 and "-o d: this run does not compute the output" in done.text
    spmd_here(*run, "-o", tmp_path / "all.npz")
    assert set(np.load(tmp_path / "all.npz")) == {"a.u", "a.sum", "v"}
    assert "optional" in spmd_here("show", tmp_path / "chosen.img").text


def test_a_run_goes_on_from_one_that_computed_the_same(tmp_path):
    image, folder = spmd.build(chosen, checkpoint=True), str(tmp_path / "kept")
    image.run(w=W, only="a", ranks=2, checkpoint=folder, every=1)
    same(image.run(w=W, only="a", ranks=3, resume=folder)["a"], chosen.eager(w=W)["a"])
    with pytest.raises(InputError, match="kept by a run that computed other outputs"):
        image.run(w=W, only="v", resume=folder)
