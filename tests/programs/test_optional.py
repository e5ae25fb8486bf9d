"""Random programs with inputs that calls leave out, and calls that ask for some outputs: what is
there is what plain NumPy gives, and nothing else is there. The generator knows what each variable
follows from; `make random` searches on."""

from __future__ import annotations

import contextlib
import io
import itertools
import random
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.oracle import interpret
from tests.conftest import numbers
from tests.programs.test_expressions import LONG

N = 13
OPTIONAL = ("x", "y", "z")
HEAD = f'''import numpy as np
import spmd


@spmd.kernel
def smooth(u, out):
    for i in range(out.shape[0]):
        out[i] = 0.5 * (u[i] + u[i + 2])


@spmd.shard_map(mesh="r", in_layouts=(("r",), ("r",)), out_layouts=("r",))
def shares(a, b):
    return a + spmd.psum(np.sum(b), "r")


@spmd.shard_map(mesh="r", in_layouts=(("r",), ("r",)), out_layouts=(("r",), ()))
def pair(a, b):
    return spmd.ppermute(a * 2, "r", shift=0), spmd.pmax(np.max(b), "r")


@spmd.program(mesh=("r",), selectable=SELECTABLE)
def drawn():
    w = spmd.input("w", ({N},), np.float64, layout=("r",))
    x = spmd.input("x", ({N},), np.float64, layout=("r",), optional=True)
    y = spmd.input("y", ({N},), np.float64, optional=True)
    z = spmd.input("z", ({N},), np.float64, layout=(None,), optional=True)
    one = np.sum(w) / {N}
'''
# Lines, with operands {a}, {b}, {c} (vectors) and {s}, {t} (numbers), and for each variable that
# they make what it is and what it follows from.
STEPS = (
    ("{u} = np.tanh({a} * {b} + 0.5)", {"u": "vab"}),
    ("{u} = np.roll({a}, 3) - {b} / 2", {"u": "vab"}),
    ("{u} = np.where({a} > {b}, {a}, 0.25)", {"u": "vab"}),
    ("{u} = np.tanh(np.cumsum({a}))", {"u": "va"}),
    ("{u} = np.sort({a})", {"u": "va"}),
    ("{u} = {a}[::-1] / 2 + np.tanh({s})", {"u": "vas"}),
    ("{u} = {a}.copy()\n{u}[2:9] += {b}[1:8]", {"u": "vab"}),
    ("{u} = {a}.copy()\n{u}[3] = {s}", {"u": "vas"}),
    ("{u} = spmd.zeros(13, np.float64)\n{u}[1:] = {b}[:-1]", {"u": "vb"}),
    ("{u} = {a} * 1\nview = {u}[1:]\nview[::2] = {b}[1::2]", {"u": "vab"}),
    ("{u} = {a} * 1\n{u}[...] = {b}", {"u": "vb"}),
    ("{u} = {a}.at[4].add({s})", {"u": "vas"}),
    ("{u} = np.tanh(np.outer({a}, {b}) @ {a})", {"u": "vab"}),
    ("{u} = np.zeros_like({a}) + {s}", {"u": "vs"}),
    ("{u} = {b} / {a}.shape[0]", {"u": "vb"}),
    ("{u} = np.concatenate([{a}[:5], {b}[5:]])", {"u": "vab"}),
    ("{u} = np.tanh({a}.reshape(1, 13).T @ {b}[None])[:, 2]", {"u": "vab"}),
    ("{u} = np.tanh(np.sum({a} * {b}))", {"u": "nab"}),
    ("{u} = np.max({a}) - {s}", {"u": "nas"}),
    ("{u} = {a}[5] * {s}", {"u": "nas"}),
    ("{u} = {a}.mean() + {t}", {"u": "nat"}),
    ("{u} = np.linalg.norm({a})", {"u": "na"}),
    ("{u}, {v} = {a} + 0, {b} + 0\n"
     "for k in spmd.range(3):\n    {u} = {u} / 2 + {c}\n    {v} = {v} + 0.1 * k",
     {"u": "vac", "v": "vb"}),
    ("{u}, {v} = {a} + 0, {s} + 0\n"
     "for k in spmd.range(3):\n    {v} = np.tanh(np.sum({u}) + {v})\n    {u} = {u} * 0.5",
     {"u": "va", "v": "nas"}),
    ("{u} = {a} + 0\nfor k in spmd.range(4):\n    if k % 2 == 0:\n        {u} = {u} + {b}\n"
     "    {u} = {u} * 0.5", {"u": "vab"}),
    ("{u} = {a} + 0\nfor k in spmd.range(2):\n    for j in spmd.range(2):\n"
     "        {u}[1:] += 0.1 * {b}[:-1]\n    {u}[k] = 0.5", {"u": "vab"}),
    ("{u} = spmd.fori_loop(0, 3, lambda i, q: q * 0.5 + {b}, {a})", {"u": "vab"}),
    ("{u}, {v} = spmd.scan(lambda q, e: (np.tanh(q + e), q * 2), {s}, {a})",
     {"u": "nas", "v": "vas"}),
    ("{u} = np.tanh(shares({a}, {b}))", {"u": "vab"}),
    ("{u}, {v} = pair({a}, {b})", {"u": "va", "v": "nb"}),
    ("{u} = spmd.grad(lambda q: np.sum(np.tanh(q * {b})))({a})", {"u": "vab"}),
    ("{v}, {u} = spmd.value_and_grad(lambda q: np.sum(np.sin(q) * {b}))({a})",
     {"u": "vab", "v": "nab"}),
    ("{u} = {a}[np.argmax({b})] + {s}", {"u": "nabs"}),
    ("{u} = np.tanh(np.sum({a}[{b} > 0.25]))", {"u": "nab"}),
    ("{u} = np.tanh(spmd.vmap(lambda q: np.sum(q * {b}))(np.outer({a}, {c})))", {"u": "vabc"}),
    ("{u} = smooth({a}, out=spmd.like({a}), halo={{'u': 1}}, boundary='edge')", {"u": "va"}),
    ("{u} = np.linalg.solve(np.outer({a}, {b}) * 0.01 + np.eye(13), {a})", {"u": "vab"}),
    ("{u} = {a} - {b} if one > -5 else {a} * {b}", {"u": "vab"}),
    ("{u} = spmd.cond(one > -5, lambda q: q + {b}, lambda q: q * {b}, {a})", {"u": "vab"}),
    ('spmd.print("{here} {{:.6f}}", np.sum({a}) + {s})', {"": "as"}),
    ('spmd.print("{here} {{:.6f}}", {t})', {"": "t"}),
    ("for k in spmd.range(2):\n    spmd.print('{here} {{}} {{:.6f}}', k, {s} * k)", {"": "s"}),
    ("assert np.all({a} < 1e30) and not np.any({b} > 1e30)", {}),
)


@dataclass
class Drawn:
    """A random program with optional inputs. `needs` holds the optional inputs that each variable
    follows from, `printed` those of printed lines; `outputs` maps returned names to variables."""

    lines: list[str] = field(default_factory=list)
    vectors: list[str] = field(default_factory=lambda: ["w", *OPTIONAL])
    numbers: list[str] = field(default_factory=lambda: ["one"])
    needs: dict[str, frozenset[str]] = field(default_factory=lambda: {
        "w": frozenset(), "one": frozenset(), **{k: frozenset({k}) for k in OPTIONAL}})
    printed: dict[str, frozenset[str]] = field(default_factory=dict)
    outputs: dict[str, str] = field(default_factory=dict)
    selectable: bool = False

    @property
    def text(self) -> str:
        inner = ", ".join(f'"{k[2:]}": {v}' for k, v in self.outputs.items() if k[:2] == "t.")
        rest = ", ".join(f'"{k}": {v}' for k, v in self.outputs.items() if k[:2] != "t.")
        body = "".join(f"    {line}\n" for step in self.lines for line in step.split("\n"))
        head = HEAD.replace("SELECTABLE", str(self.selectable))
        return f'{head}{body}    return {{"t": {{{inner}}}, {rest}}}\n'


def drawn(seed: int) -> Drawn:
    made, draw = Drawn(), random.Random(seed)
    for number in range(9):
        text, makes = draw.choice(STEPS)
        named = {k: draw.choice(made.vectors) for k in "abc"}
        named |= {k: draw.choice(made.numbers) for k in "st"}
        new = {k: f"{k}{number}" for k in "uv"}
        made.lines.append(text.format(**named, **new, here=f"line{number}"))
        for k, (*what, ) in makes.items():
            of = frozenset().union(*(made.needs[named[o]] for o in what[1 if k else 0:]))
            if not k:
                made.printed[f"line{number}"] = of
                continue
            made.needs[new[k]] = of
            (made.vectors if what[0] == "v" else made.numbers).append(new[k])
    names = draw.sample([v for v in made.needs if v not in OPTIONAL], 5)
    made.outputs = {f"{'t.' * (k < 2)}{v}": v for k, v in enumerate([*names[:4], draw.choice(
        OPTIONAL), names[4]])}
    made.selectable = draw.random() < 0.5
    return made


def flat(out: Any) -> dict[str, Any]:
    return {**{f"t.{k}": v for k, v in out["t"].items()},
            **{k: v for k, v in out.items() if k != "t"}}


def told(call: Any) -> tuple[Any, list[str]]:
    with contextlib.redirect_stdout(io.StringIO()) as text:
        out = call()
    return out, text.getvalue().splitlines()


def agrees(found: dict[str, Any], expected: dict[str, Any], said: list[str], lines: list[str],
           where: str) -> None:
    assert found.keys() == expected.keys(), where
    for name, value in expected.items():
        assert (found[name] is None) == (value is None), f"{name}, {where}"
        if value is not None:
            np.testing.assert_allclose(found[name], value, 1e-9, 1e-12, err_msg=f"{name}, {where}")
    assert said == lines, where


def runs(seed: int, folder: Path) -> None:
    made, draw = drawn(seed), random.Random(seed)
    file = folder / f"optional_{seed}.py"
    file.write_text(made.text)
    space: dict[str, Any] = {}
    exec(compile(made.text, str(file), "exec"), space)
    program = space["drawn"]
    values = np.random.default_rng(seed).uniform(-1, 1, (4, N))
    given = dict(zip(("w", *OPTIONAL), values))
    whole, lines = told(lambda: program.eager(**given))
    whole = flat(whole)
    graph, image = program.graph({}), spmd.build(program)
    with contextlib.ExitStack() as stack:
        jobs = [(n, stack.enter_context(image.open(ranks=n))) for n in (1, 3, 5)]
        for k, there in enumerate(itertools.product((False, True), repeat=3)):
            missing = {name for name, here in zip(OPTIONAL, there) if not here}
            call = {name: x for name, x in given.items() if name not in missing}
            expected = {name: None if made.needs[v] & missing else whole[name]
                        for name, v in made.outputs.items()}
            kept = [text for text in lines if not made.printed[text.split()[0]] & missing]
            where = f"seed {seed} without {sorted(missing)}\n{made.text}"
            out, said = told(lambda call=call: program.eager(**call))
            agrees(flat(out), expected, said, kept, f"eager, {where}")
            said = []
            inner = interpret.run(graph, {"r": 2}, call, prints=said)
            agrees(inner | dict.fromkeys(expected.keys() - inner.keys()), expected,
                   "\n".join(said).splitlines(), kept, f"Graph, {where}")
            for ranks, job in jobs if k in (0, 7) else [jobs[k % 3]]:
                only = draw.sample(sorted(expected), 2)
                out, said = told(lambda job=job, call=call: job(**call))
                agrees(flat(out), expected, said, kept, f"{ranks} ranks, {where}")
                some = {name: v if name in only else None for name, v in expected.items()}
                out, said = told(lambda job=job, call=call, only=only: job(**call, only=only))
                agrees(flat(out), some, said, kept, f"only={only}, {ranks} ranks, {where}")


@pytest.mark.filterwarnings("ignore")
def test_calls_that_leave_inputs_out(tmp_path: Path) -> None:
    for seed in numbers(1000) if LONG else range(4):
        runs(seed, tmp_path)
