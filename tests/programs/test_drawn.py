"""Random programs that draw from all of NumPy: the layouts of arrays, how they came to be, where a
function is called and the number of ranks never change its results.

Rows are those of expressions.py; how their operands are made is drawn here. `make random` searches
on, and builds images.
"""

from __future__ import annotations

import functools
import itertools
import math
import random
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from codegen.checks.check_graph import check
from codegen.checks.matching import check as check_matching
from codegen.checks.uniformity import check_uniform
from codegen.graph.split_at_edges import split_at_edges
from codegen.layouts.partition import partition
from codegen.oracle import interpret
from tests.conftest import numbers
from tests.programs.expressions import ARRAYS
from tests.programs.global_recipes import AXES, sizes
from tests.programs.test_expressions import (
    BY_MACHINE,
    FLAT,
    GIVEN,
    HEAD,
    LONG,
    WORKING,
    agree,
    functions,
    loaded,
    numpy_says,
    used,
)

# All but what says how its operand lies in memory, what views of some kinds do not have, and what
# depends on the machine.
LEFT_OUT = ("isfortran", ".flat[", *BY_MACHINE)
ROWS = [text for _, text in WORKING if not any(part in text for part in LEFT_OUT)]
MOST = 8  # rows in a program

# The same elements, made otherwise.
MAKERS = (
    "{a}", "{a}", "{a}.copy()", "{a}[::-1][::-1]", "np.roll(np.roll({a}, 3, 0), -3, 0)",
    "np.concatenate([{a}[:2], {a}[2:]])", "np.stack([{a}, {a}])[1]", "{a}.T.copy().T",
    "np.take({a}, np.arange({a}.shape[0]), axis=0)", "np.where({a} == 3, {a}, {a})",
    "spmd.asarray({a}, layout={layout})", "turned({a})", "chosen({a})", "written({a})",
    "{a}.reshape(-1).reshape({a}.shape)", "np.pad({a}, 1)[(slice(1, -1),) * {a}.ndim]",
)
# A call in the program, in a loop, in a branch, and on every rank for itself.
CALLS = (
    "{f}({args})", "{f}({args})", "in_loop({f}, {args})", "in_branch({f}, {args})",
    "alone({f}, {args})",
)
HELPERS = """def turned(a):
    a = a.copy()
    for k in spmd.range(2):
        a = np.roll(a, 1 - 2 * k, 0)
    return a


def chosen(a):
    if np.sum(a == a) > -1:
        return a.copy()
    return a[::-1].copy()


def written(a):
    b = np.zeros_like(a)
    b[1:] = a[1:]
    b[0] = a[0]
    return b


def in_loop(f, *args):
    for _ in spmd.range(2):
        made = f(*args)
    return made


def in_branch(f, *args):
    if np.sum(args[0] == args[0]) > -1:
        made = f(*args)
    else:
        made = f(*(a[::-1] for a in args))
    return made


def alone(f, *args):
    lie = tuple((None,) * a.ndim for a in args)
    return spmd.shard_map(f, in_layouts=lie, out_layouts=spmd.replicated)(*args)


"""


@dataclass(frozen=True)
class Drawn:
    """A random program that calls rows of ROWS, each with the way of its call and a maker for each
    array. `layouts` holds those of inputs and of makers."""

    axes: tuple[str, ...]
    rows: tuple[tuple[int, str, tuple[str, ...]], ...]
    layouts: dict[str, tuple[Any, Any]]

    @property
    def texts(self) -> list[str]:
        return [ROWS[k] for k, _, _ in self.rows]

    @property
    def text(self) -> str:
        """The program; e1_0 is the first result of the second row."""
        out = HEAD + FLAT + HELPERS + functions(self.texts)
        out += f"@spmd.program(mesh={self.axes!r})\ndef case():\n"
        for a in (a for a in ARRAYS if any(a in used(t) for t in self.texts)):
            x, layout = GIVEN[a], self.layouts[a][0]
            out += f"    {a} = spmd.input('{a}', {x.shape}, np.{x.dtype}, layout={layout!r})\n"
        out += "    found = {}\n"
        for k, (row, call, makers) in enumerate(self.rows):
            made = [m.format(a=a, layout=repr(self.layouts[a][1]))
                    for a, m in zip(used(ROWS[row]), makers)]
            if not made:
                call = CALLS[0]
            out += f"    found['e{k}'] = {call.format(f=f'f{k}', args=', '.join(made))}\n"
        return out + "    return flat(found)\n"


def drawn(number: int) -> tuple[Drawn, dict[str, int]]:
    """The program of this number, and a mesh."""
    draw = random.Random(number)
    axes = AXES[: draw.randint(1, 2)]
    rows = [(k, draw.choice(CALLS), tuple(draw.choice(MAKERS) for _ in used(ROWS[k])))
            for k in draw.sample(range(len(ROWS)), draw.randint(1, MOST))]
    layouts = {a: (draw.choice(_layouts(x.ndim, axes)), draw.choice(_layouts(x.ndim, axes)))
               for a, x in GIVEN.items()}
    mesh = sizes(draw.randint(1, 12), len(axes), draw.randint(0, 5))
    return Drawn(axes, tuple(rows), layouts), mesh


@functools.cache
def _layouts(ndim: int, axes: tuple[str, ...]) -> list[Any]:
    """Each dim over an axis, several or none."""
    entries = [None, *axes, *(itertools.permutations(axes) if len(axes) > 1 else ())]
    found = []
    for layout in itertools.product(entries, repeat=ndim):
        named = [x for e in layout if e for x in (e if isinstance(e, tuple) else (e,))]
        if len(named) == len(set(named)):
            found.append(layout)
    return found


expected = functools.cache(numpy_says)


def compare(program: Drawn, mesh: dict[str, int], folder: Path, image: bool = False) -> None:
    case = loaded(program.text, folder, f"drawn{next(_files)}").case
    wanted = [expected(text) for text in program.texts]
    graph = check(split_at_edges(check(case.capture())))
    inputs = {i.name: GIVEN[i.name] for i in graph.inputs}
    if image:
        found = spmd.build(case).run(ranks=math.prod(mesh.values()), mesh=mesh, **inputs)
    else:
        lowered = check_matching(check_uniform(check(partition(graph))))
        found = interpret.run(lowered, mesh, inputs)
    agree(found, program.texts, wanted, f"{mesh}")


_files = itertools.count()


@pytest.mark.filterwarnings("ignore")
def test_results_do_not_depend_on_layouts(tmp_path: Path) -> None:
    """A fourth of the programs of a long run as images."""
    for number in numbers(1000) if LONG else range(1, 9):
        program, mesh = drawn(number)
        try:
            compare(program, mesh, tmp_path, image=LONG and number % 4 == 0)
        except Exception as error:
            raise AssertionError(f"drawn({number})\n{program.text}") from error


def test_makers_make_the_same(tmp_path: Path) -> None:
    """In plain NumPy, of every array; layouts and loops stand in programs only."""
    helpers = loaded(HEAD + HELPERS, tmp_path, "helpers")
    for maker in (m for m in MAKERS if "layout" not in m and "turned" not in m):
        for a, x in GIVEN.items():
            made = eval(maker.format(a=a), {**vars(helpers), a: x})
            np.testing.assert_array_equal(made, x, err_msg=f"{maker} of {a}", strict=True)
