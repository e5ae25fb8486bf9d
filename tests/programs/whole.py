"""Whole random programs: inputs, one rank's view, and every value that can be returned."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.programs.exchanges import Author
from tests.programs.generate import (
    COMPLEX,
    EXTENTS,
    FLOATS,
    INTS,
    SPLIT,
    Cut,
    Input,
    Local,
    Program,
    Var,
)

HELPERS = """
def bump(x, k):
    x[...] = x + k


def sign_of(x):
    if np.sum(x > 0) > 2:
        return x * 2
    if x.shape[0] > 1:
        return x + 1
    return -x


def pair(x, y):
    out = x
    for j in spmd.range(2):
        if j == 1 and steps_are_even(j + 1):
            out = out + y
        else:
            out = y - out
    return out, y


def steps_are_even(k):
    return k % 2 == 0


@spmd.kernel
def scaled_sum(u, w, k, out):
    total = u[:1].sum() * 0
    for j in range(out.shape[0]):
        total += u[j]
        out[j] = u[j] * k + w[j] if j % 2 == 0 else total
"""


def output(axes: Sequence[str], v: Var) -> tuple[str, tuple[Any, ...]] | None:
    """An expression of a shape that can be returned, and its layout."""
    used = [a for d in v.dims if isinstance(d, Local) for a in d.axes]
    if any(isinstance(d, Cut) for d in v.dims) or len(set(used)) < len(used):
        if v.kind in "fc":
            return None
        return output(axes, Var(f"np.sum({v.name})", np.dtype(np.int64), ()))
    rest = tuple(a for a in axes if a not in used)
    layout: list[Any] = [d.axes if isinstance(d, Local) else None for d in v.dims]
    text = v.name
    if rest:
        at = next((k for k, d in enumerate(v.dims) if isinstance(d, int)), None)
        if at is None:
            text, at = f"np.reshape({v.name}, (1, *{v.name}.shape))", 0
            if not v.dims:
                text = f"np.reshape({v.name}, (1,))"
            layout.insert(0, None)
        layout[at] = rest
    entries = tuple(e if e is None or len(e) > 1 else e[0] for e in layout)
    return text, entries


def mesh_sizes(draw: Any, axes: Sequence[str], fixed: dict[str, int]) -> list[dict[str, int]]:
    grid = itertools.product(range(1, 10), repeat=len(axes))
    fits = [c for c in grid if np.prod(c) <= 9 and all(
        fixed.get(a, n) == n for a, n in zip(axes, c))]
    picks = [fits[draw(st.integers(0, len(fits) - 1))] for _ in range(3)]
    return [dict(zip(axes, c)) for c in dict.fromkeys(picks)]


@st.composite
def programs(draw: Any, size: int = 22) -> Program:
    """A few inputs, `size` statements at the top level, and all that they compute returned."""
    axes = ("x", "y", "z")[: draw(st.sampled_from((1, 1, 2, 2, 3)))]
    author = Author(draw, axes)
    inputs = []
    for k in range(draw(st.integers(2, 4))):
        free = list(axes)
        shape, layout, dims = [], [], []
        for _ in range(draw(st.sampled_from((1, 1, 2, 2, 3)))):
            entry = None
            if free and author.chance(50):
                entry = (free.pop(draw(st.integers(0, len(free) - 1))),)
                if free and author.chance(20):
                    entry = (*entry, free.pop(0))
            n = author.choice(SPLIT if entry else EXTENTS)
            shape.append(n)
            layout.append(entry if entry is None or len(entry) > 1 else entry[0])
            dims.append(Local(n, entry) if entry else n)
        dtype = np.dtype(
            author.choice((*FLOATS, *INTS, *COMPLEX[:1], "float64", "int64", "float32", "bool"))
        )
        one = Input(f"a{k}", dtype, tuple(shape), tuple(layout))
        inputs.append(one)
        author.vars.append(Var(one.name, dtype, tuple(dims), depth=2))
    author.statements(size)
    outputs, layouts, texts = [], [], []
    for v in author.vars:
        made = output(axes, v)
        if made is None or (v.dtype == np.float16 and not v.exact):
            continue
        outputs.append((f"o{len(outputs)}", v.exact))
        texts.append(made[0])
        layouts.append(made[1])
    fixed = {axes[-1]: draw(st.integers(1, 3))} if author.chance(15) else {}
    text = module(axes, fixed, inputs, author, texts, layouts)
    seed = draw(st.integers(0, 999))
    scalars = {"steps": draw(st.integers(0, 4))} if author.chance(50) else {}
    return Program(text, axes, inputs, outputs, mesh_sizes(draw, axes, fixed), seed,
                   scalars=scalars)


def module(
    axes: Sequence[str], fixed: dict[str, int], inputs: Sequence[Input], author: Author,
    texts: Sequence[str], layouts: Sequence[Any],
) -> str:
    mesh = repr({a: fixed.get(a) for a in axes}) if fixed else repr(tuple(axes))
    lines = ["import numpy as np", "import spmd", "", HELPERS, "", f"@spmd.program(mesh={mesh})",
             "def random_program():", '    steps = spmd.scalar("steps", 2)',
             '    weight = spmd.scalar("weight", 0.75)']
    for one in inputs:
        dtype = "bool" if one.dtype.kind == "b" else f"np.{one.dtype}"
        lines.append(f'    {one.name} = spmd.input("{one.name}", {one.shape}, {dtype}, '
                     f"layout={one.layout})")
    names = ", ".join(one.name for one in inputs)
    outs = "".join(f"{e}, " for e in layouts)
    lines += ["", f"    @spmd.shard_map(out_layouts=({outs}))", f"    def body({names}):",
              "        i, n = spmd.index(), spmd.ranks()"]
    lines += author.lines
    lines += [f"        return ({''.join(f'{t}, ' for t in texts)})", "",
              f"    out = body({names})",
              "    return {f'o{k}': x for k, x in enumerate(out)}", ""]
    return "\n".join(lines)
