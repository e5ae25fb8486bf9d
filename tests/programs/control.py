"""Random loops, branches and exchanges around the statements of generate.py, and whole programs."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.programs.generate import (
    EXTENTS, FLOATS, INTS, SPLIT, Cut, Group, Input, Local, Program, Var, Writer,
)  # fmt: skip

HELPERS = '''
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
'''


def cast(v: Var) -> str:
    return "bool" if v.kind == "b" else f"np.{v.dtype}"


def axes_in(dim: Any) -> set[str]:
    """Mesh axes on which an extent depends."""
    if isinstance(dim, Local):
        return set(dim.axes)
    return axes_in(dim.dim) if isinstance(dim, Cut) else set()


class Author(Writer):
    """A Writer that also knows control flow and exchange."""

    # ---- rebinding -------------------------------------------------------------------------------

    def rebind(self) -> bool:
        """v = new value of v's type: what loops and branches carry."""
        v = self.var(lambda w: w.depth < self.indent and w.group.names == 1)
        if v is None:
            return False
        made = self.formula(v) if self.chance(70) else self.alone(v)
        if made is None or (made[1].kind == "f" and v.kind in "iu"):
            return False
        text, _, exact = made
        if not self.may_store(v, exact):
            return False
        text = f"({text}).astype({cast(v)})"
        if v.kind == "f" and not (exact and v.exact):
            text = f"np.clip({text}, -8, 8)"
        self.emit(f"{v.name} = {text}")
        v.group = Group(v.exact and exact, v.group.loop)
        return True

    # ---- blocks of statements --------------------------------------------------------------------

    def block(self, count: int) -> None:
        """Statements one level deeper; what they bind is gone afterwards."""
        kept, numbers, lines = list(self.vars), list(self.numbers), len(self.lines)
        self.indent += 1
        self.statements(count)
        if not self.rebind() and len(self.lines) == lines:
            self.emit("pass")
        self.indent -= 1
        self.vars, self.numbers = kept, numbers

    def statements(self, count: int) -> None:
        for _ in range(count):
            for _ in range(4):  # a kind that finds nothing to work on gives way to another
                if self.choice(self.kinds())():
                    break

    def kinds(self) -> list[Any]:
        out = [self.elementwise] * 5 + [self.write] * 3 + [self.reduction] * 2 + [
            self.where, self.view, self.view, self.reshaped, self.ordered, self.matmul,
            self.element, self.element, self.gather, self.augmented, self.alias, self.helper,
            self.switch, self.conditional,
        ]  # fmt: skip
        if self.indent > 2:
            out += [self.rebind] * 5
        if self.indent < 5:
            out += [self.loop, self.while_, self.branch, self.branch, self.functional]
        if not self.private:
            out += [self.permute, self.permute, self.collective, self.collective, self.moved]
            if self.indent < 4:
                out += [self.ring]
        return out

    def deeper(self, count: int, private: bool, loop: bool) -> None:
        self.private += private
        self.loops += loop
        self.block(count)
        self.private -= private
        self.loops -= loop

    def loop(self) -> bool:
        k = self.name("k")
        private = self.chance(15)
        bounds = self.choice(("i + 1",) if private else (
            "3", "steps", "n", "1, 4, 2", "3, -1, -1", "steps, 0, -1", "1, n + 1", "0"))  # fmt: skip
        self.emit(f"for {k} in spmd.range({bounds}):")
        self.numbers.append(k)
        self.deeper(self.draw(st.integers(1, 4)), private, True)
        if k in self.numbers:
            self.numbers.remove(k)
        return True

    def while_(self) -> bool:
        k = self.name("k")
        flag = self.flag()
        private = flag is not None
        extra = f" and {flag}" if flag else ""
        self.emit(f"{k} = 0")
        self.emit(f"while {k} < {self.draw(st.integers(1, 3))}{extra}:")
        self.emit(f"    {k} {self.choice(('+= 1', f'= {k} + 1'))}")
        self.numbers.append(k)
        if self.chance(30):
            self.emit(f"    if {k} > {self.draw(st.integers(0, 3))}:")
            self.emit(f"        {self.choice(('break', 'continue'))}")
        self.deeper(self.draw(st.integers(1, 3)), private, True)
        return True

    def flag(self) -> str | None:
        """A truth that may differ between ranks."""
        if self.chance(50):
            return None
        v = self.var(lambda w: w.dims == () and w.exact)
        if v is None or self.chance(40):
            return self.choice(("i % 2 == 0", "0 < i < 3", "not i == n - 1", "i > 0 or n == 1"))
        return f"{v.name} > {self.draw(st.integers(0, 4))}" if v.kind != "b" else v.name

    def branch(self) -> bool:
        flag = self.flag()
        private = flag is not None
        test = flag or self.choice(("n > 2", "steps > 1", "n % 2 == 0 and steps != 3", "steps == n"))
        self.emit(f"if {test}:")
        shared = self.var(lambda w: w.exact)
        fresh = self.name("w") if shared and self.chance(40) else ""
        arms = 3 if self.chance(25) else 2 if fresh or self.chance(60) else 1
        for arm in range(arms):
            if arm:
                last = arm == arms - 1
                self.emit("else:" if last else f"elif {self.choice(('i == 1', 'steps > 2'))}:")
            several = private or arms == 3
            self.deeper(self.draw(st.integers(1, 2)), several, False)
            if fresh and shared:
                self.emit(f"    {fresh} = ({shared.name} + {arm}).astype({cast(shared)})")
        if fresh and shared:
            group = Group(shared.exact, self.loops)
            self.vars.append(Var(fresh, shared.dtype, shared.dims, group, bool(shared.dims),
                                 self.indent))  # fmt: skip
        return True

    def conditional(self) -> bool:
        v = self.var()
        assert v is not None
        w = self.same(v, lambda w: w.dtype == v.dtype)
        assert w is not None
        test = self.choice(("i == 0", "n > 2", "steps > i", "i % 2"))
        self.define(f"{v.name}.astype({cast(v)}) if {test} else {w.name}.astype({cast(v)})",
                    v.dtype, v.dims, v.exact and w.exact)  # fmt: skip
        return True

    def switch(self) -> bool:
        v = self.var(lambda w: w.kind != "b")
        if v is None:
            return False
        arms = ["lambda x: x + 1", "lambda x: x", "lambda x: x * 2"][: self.draw(st.integers(2, 3))]
        on = self.choice(("i", "i % 3", "n - 2", "steps", "i - 1"))
        data = self.var(lambda w: w.dims == () and w.exact and w.kind in "iu")
        if data is not None and self.chance(40):
            on = f"{data.name} % 3"
        self.define(f"spmd.switch({on}, [{', '.join(arms)}], {v.name})", v.dtype, v.dims, v.exact)
        return True

    def functional(self) -> bool:
        v = self.var(lambda w: w.kind in "iu" and w.exact)
        if v is None:
            return False
        what = self.draw(st.integers(0, 3))
        if what == 0:
            text = f"spmd.fori_loop(0, steps, lambda k, x: x * 3 + k, {v.name})"
        elif what == 1:
            flag = self.flag() or "steps > 1"
            text = f"spmd.cond({flag}, lambda x: x - 1, lambda x: x ^ 3, {v.name})"
        elif what == 2 and v.dims and isinstance(v.dims[0], int) and v.dims[0]:
            at = ", ".join(["0"] + [":"] * (len(v.dims) - 1))
            text = f"spmd.scan(lambda c, x: (c + x, c * x), {v.name}[{at}] * 1, {v.name})[1]"
        else:
            text = (f"spmd.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + s[0]), "
                    f"(0, {v.name}))[1]")  # fmt: skip
        self.define(text, v.dtype, v.dims, True)
        return True

    def helper(self) -> bool:
        v = self.var(lambda w: bool(w.dims) and w.kind in "if" and w.writable and w.exact)
        if v is None:
            return False
        what = self.draw(st.integers(0, 2))
        if what == 0:
            self.emit(f"bump({v.name}, {self.choice(self.numbers)})")
        elif what == 1 and v.fixed:
            self.define(f"sign_of({v.name})", v.dtype, v.dims)
        else:
            w = self.same(v, lambda w: w.dtype == v.dtype and w.exact)
            self.define(f"pair({v.name}, {w.name if w else v.name})[0]", v.dtype, v.dims)
        return True

    # ---- exchange --------------------------------------------------------------------------------

    def along(self) -> tuple[str, tuple[str, ...]]:
        """An axis argument, as text, and the axes it means."""
        if len(self.axes) > 1 and self.chance(40):
            k = self.draw(st.integers(2, len(self.axes)))
            axes = self.axes[:k] if self.chance(70) else self.axes[:k][::-1]
            return repr(axes), axes
        axis = self.choice(self.axes)
        return repr(axis), (axis,)

    def alike(self, v: Var, axes: Sequence[str]) -> bool:
        """All members along axes hold arrays of v's shape."""
        return not any(axes_in(d) & set(axes) for d in v.dims)

    def permute(self) -> bool:
        text, axes = self.along()
        v = self.var(lambda w: self.alike(w, axes)) if self.chance(70) else self.var()
        if v is None:
            return False
        shift = self.choice(("1", "-1", "2", "steps", "n", *(k for k in self.numbers if k != "i")))
        how = f"shift={shift}"
        dims = v.dims
        if self.alike(v, axes):
            if self.chance(50):
                how = "to=" + self.choice((
                    "lambda p, m: p + 1 if p < m - 1 else None", "lambda p, m: m - 1 - p",
                    "lambda p, m: p - 1 if p > 0 else None", "lambda p, m: (p + 2) % m",
                    "lambda p, m: 0 if p == m - 1 else None", "lambda p, m: (p - steps) % m",
                    "lambda p, m: p + 1 if p % 2 == 0 and p + 1 < m else None",
                ))  # fmt: skip
        else:
            k = self.name("s")  # extents of another rank: equal to no other's
            dims = tuple(Cut(d, k) if axes_in(d) & set(axes) else d for d in dims)
        self.define(f"spmd.ppermute({v.name}, {text}, {how})", v.dtype, dims, v.exact)
        return True

    def collective(self) -> bool:
        text, axes = self.along()
        v = self.var(lambda w: self.alike(w, axes) and w.dtype != np.float16)
        if v is None:
            return False
        what = self.choice(("psum", "pmax", "pmin", "pbroadcast", "all_ranks", "psum", "pmean"))
        if what in ("psum", "pmean"):
            x = f"np.clip({v.name}, -8, 8)" if v.kind == "f" else v.name
            dtype = np.dtype(np.int64) if v.kind == "b" else v.dtype
            if what == "pmean":
                dtype = (np.ones(1, dtype) / 2).dtype
            exact = v.kind != "f" and (what == "psum" or v.kind in "iub")
            self.define(f"spmd.{what}({x}, {text})", dtype, v.dims, v.exact and exact)
        elif what == "all_ranks":
            if not v.exact:
                return False
            fn = self.choice(("all_ranks", "any_ranks"))
            self.define(f"spmd.{fn}(np.any({v.name}))", bool, ())
        elif what == "pbroadcast":
            self.define(f"spmd.pbroadcast({v.name}, {text})", v.dtype, v.dims, v.exact)
        else:
            self.define(f"spmd.{what}({v.name}, {text})", v.dtype, v.dims, v.exact)
        return True

    def moved(self) -> bool:
        """A split gathered, made or moved."""
        text, axes = self.along()
        split = [Local(n, axes) for n in SPLIT]
        what = self.draw(st.integers(0, 3))
        if what == 0:
            v = self.var(lambda w: any(d in split for d in w.dims) and
                         sum(bool(axes_in(d) & set(axes)) for d in w.dims) == 1)  # fmt: skip
            if v is None:
                return False
            d = next(k for k, e in enumerate(v.dims) if e in split)
            dims = (*v.dims[:d], v.dims[d].whole, *v.dims[d + 1 :])
            self.define(f"spmd.all_gather({v.name}, {text}, {d}, tiled=True)", v.dtype, dims,
                        v.exact)  # fmt: skip
            return True
        v = self.var(lambda w: bool(w.dims) and self.alike(w, axes) and w.kind != "b"
                     and isinstance(w.dims[0], int) and w.dtype != np.float16)  # fmt: skip
        if v is None:
            return False
        if what == 1:
            x = f"np.clip({v.name}, -8, 8)" if v.kind == "f" else v.name
            self.define(f"spmd.psum_scatter({x}, {text}, 0, tiled=True)", v.dtype,
                        (Local(v.dims[0], axes), *v.dims[1:]), v.kind != "f")  # fmt: skip
        elif what == 2:
            got = self.define(f"spmd.all_gather({v.name}, {text})", v.dtype,
                              (Cut("members", text), *v.dims), v.exact)  # fmt: skip
            at = self.choice((f"spmd.axis_index({text})", f"spmd.axis_size({text}) - 1", "0"))
            self.define(f"{got.name}[{at}] + 0", (np.ones(1, v.dtype) + 0).dtype, v.dims, v.exact)
        else:
            w = self.var(lambda w: len(w.dims) == 2 and isinstance(w.dims[0], int)
                         and w.dims[1] in split)  # fmt: skip
            if w is None:
                return False
            self.define(f"spmd.all_to_all({w.name}, {text}, 0, 1, tiled=True)", w.dtype,
                        (Local(w.dims[0], axes), w.dims[1].whole), w.exact)  # fmt: skip
        return True

    def ring(self) -> bool:
        """The all-reduce of the language page, on any local array."""
        text, axes = self.along()
        v = self.var(lambda w: bool(w.dims) and self.alike(w, axes) and w.kind != "b"
                     and w.writable and w.dtype != np.float16
                     and self.may_store(w, w.kind != "f"))  # fmt: skip
        if v is None:
            return False
        b, k, p, m = self.name("b"), self.name("k"), self.name("p"), self.name("m")
        self.emit(f"{p}, {m} = spmd.axis_index({text}), spmd.axis_size({text})")
        if v.kind == "f":
            self.emit(f"{v.name}[...] = np.clip({v.name}, -8, 8)")
            v.group.exact = False
        self.emit(f"{b} = spmd.blocks({v.name}, {m})")
        self.emit(f"for {k} in spmd.range({m} - 1):")
        self.emit(f"    {b}[({p} - {k} - 1) % {m}] += spmd.ppermute({b}[({p} - {k}) % {m}], {text}, "
                  "shift=1)")  # fmt: skip
        if self.chance(60):
            self.emit(f"for {k} in spmd.range({m} - 1):")
            self.emit(f"    {b}[({p} - {k}) % {m}] = spmd.ppermute({b}[({p} + 1 - {k}) % {m}], "
                      f"{text}, shift=1)")  # fmt: skip
        self.taint(v, v.kind != "f")
        return True

    # ---- what a program returns ------------------------------------------------------------------

    def output(self, v: Var) -> tuple[str, tuple[Any, ...]] | None:
        """An expression of a shape that can be returned, and its layout."""
        used = [a for d in v.dims if isinstance(d, Local) for a in d.axes]
        if any(isinstance(d, Cut) for d in v.dims) or len(set(used)) < len(used):
            if v.kind == "f":
                return None
            return self.output(Var(f"np.sum({v.name})", np.dtype(np.int64), ()))
        rest = tuple(a for a in self.axes if a not in used)
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
        fixed.get(a, n) == n for a, n in zip(axes, c))]  # fmt: skip
    picks = [fits[draw(st.integers(0, len(fits) - 1))] for _ in range(3)]
    return [dict(zip(axes, c)) for c in dict.fromkeys(picks)]


@st.composite
def programs(draw: Any, size: int = 22) -> Program:
    """A program with a few inputs, `size` statements at its top level and all it computed returned."""
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
        dtype = np.dtype(author.choice((*FLOATS, *INTS, "float64", "int64", "float32", "bool")))
        one = Input(f"a{k}", dtype, tuple(shape), tuple(layout))
        inputs.append(one)
        author.vars.append(Var(one.name, dtype, tuple(dims), depth=2))
    author.statements(size)
    outputs, layouts, texts = [], [], []
    for v in author.vars:
        if (made := author.output(v)) is not None and v.dtype != np.float16 or v.exact and made:
            outputs.append((f"o{len(outputs)}", v.exact))
            texts.append(made[0])
            layouts.append(made[1])
    fixed = {axes[-1]: draw(st.integers(1, 3))} if author.chance(15) else {}
    text = module(axes, fixed, inputs, author, texts, layouts)
    seed = draw(st.integers(0, 999))
    scalars = {"steps": draw(st.integers(0, 4))} if author.chance(50) else {}
    return Program(text, axes, inputs, outputs, mesh_sizes(draw, axes, fixed), seed,
                   scalars=scalars)  # fmt: skip


def module(
    axes: Sequence[str], fixed: dict[str, int], inputs: Sequence[Input], author: Author,
    texts: Sequence[str], layouts: Sequence[Any],
) -> str:  # fmt: skip
    mesh = repr({a: fixed.get(a) for a in axes}) if fixed else repr(tuple(axes))
    lines = ["import numpy as np", "import spmd", "", HELPERS, "", f"@spmd.program(mesh={mesh})",
             "def random_program():", '    steps = spmd.scalar("steps", 2)',
             '    weight = spmd.scalar("weight", 0.75)']  # fmt: skip
    for one in inputs:
        dtype = "bool" if one.dtype.kind == "b" else f"np.{one.dtype}"
        lines.append(f'    {one.name} = spmd.input("{one.name}", {one.shape}, {dtype}, '
                     f"layout={one.layout})")  # fmt: skip
    names = ", ".join(one.name for one in inputs)
    outs = "".join(f"{e}, " for e in layouts)
    lines += ["", f"    @spmd.shard_map(out_layouts=({outs}))", f"    def body({names}):",
              "        i, n = spmd.index(), spmd.ranks()"]  # fmt: skip
    lines += author.lines
    lines += [f"        return ({''.join(f'{t}, ' for t in texts)})", "",
              f"    out = body({names})",
              "    return {f'o{k}': x for k, x in enumerate(out)}", ""]  # fmt: skip
    return "\n".join(lines)
