"""Random classes that are programs: states of several shapes, dtypes and containers, and entries.

Numbers are small and whole in all types but float64, so that no order of additions shows.
"""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

SHAPES = ("()", "(5,)", "(4, 3)", "(3, 4)", "(4, 4)", "(1, 6)", "(0, 3)", "(n, 2)", "(n,)",
          "(2, 3, 4)", "(7,)", "(rows, 3)")
ROWS = 8  # the extent of a dim that a layout rule is of
DTYPES = ("float64",) * 4 + ("float32", "float32", "int64", "int32", "bool", "complex128",
                             "float16", "uint8")

HEAD = """
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

import spmd

TABLE = np.arange(60) % 5
rows = spmd.Dim("rows", 8)


class Pair(NamedTuple):
    left: Any
    right: Any


@dataclass
class Record:
    first: Any
    second: Any


class Box:
    scale = 2

    def __init__(self, value):
        self.value = value

    def bump(self, x):
        self.value = self.value + x


class Base:
    twice = 2

    def less(self, x):
        return x - self.twice

    @property
    def five(self):
        return 5
"""


def extents_of(shape: str, n: int) -> tuple[int, ...]:
    return tuple(eval(shape, {"n": n, "rows": ROWS}))


@dataclass
class State:
    """One array that stays. path: how it is written; layout: "" where it has none of its own."""

    path: str
    shape: str
    dtype: str
    layout: str
    in_place: bool

    @property
    def ndim(self) -> int:
        return len(self.extents(1))

    def extents(self, n: int) -> tuple[int, ...]:
        return extents_of(self.shape, n)

    @property
    def kind(self) -> str:
        return np.dtype(self.dtype).kind

    def like(self, other: State) -> bool:
        return (self.shape, self.dtype, self.layout) == (other.shape, other.dtype, other.layout)


@dataclass
class Machine:
    """A random class with its source text, its states, and each entry's inputs by name (shape,
    dtype)."""

    text: str
    states: list[State]
    numbers: dict[str, str]
    inputs: dict[str, dict[str, tuple[str, str]]]
    scalars: dict[str, list[str]]
    axes: tuple[str, ...]

    def arguments(self, entry: str, ranks: int, rng: np.random.Generator) -> dict[str, Any]:
        """Inputs and scalars of one call."""
        found: dict[str, Any] = {}
        for name, (shape, dtype) in self.inputs[entry].items():
            found[name] = values(extents_of(shape, ranks), dtype, rng)
        for name in self.scalars[entry]:
            if rng.integers(3):
                found[name] = int(rng.integers(0, 4))
        return found


def values(shape: tuple[int, ...], dtype: str, rng: np.random.Generator) -> Any:
    numbers = rng.integers(0, 4, shape)
    if dtype == "complex128":
        return numbers + 1j * rng.integers(-2, 3, shape)
    if dtype == "float64":
        return numbers + rng.normal(size=shape)
    return np.asarray(numbers, dtype)


class Author:
    """Writes a machine with these random numbers."""

    def __init__(self, rng: random.Random) -> None:
        self.rng, self.axes = rng, ("r",) if rng.randrange(4) else ("r", "c")
        self.lines: list[str] = []
        self.depth = 2
        self.states: list[State] = []
        self.numbers: dict[str, str] = {}
        self.inputs: dict[str, tuple[str, str]] = {}
        self.scalars: list[str] = []
        self.count = 0

    def chance(self, percent: int) -> bool:
        return self.rng.random() * 100 < percent

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    # ---- __init__ --------------------------------------------------------------------------------

    def initial(self) -> None:
        self.line("n = spmd.axis_size('r')")
        paths = [f"self.s{k}" for k in range(self.rng.randint(2, 4))]
        forms = ['self.tree = {"p": A, "q": [B, {"deep": C}]}', "self.pair = Pair(A, B)",
                 "self.record = Record(A, (B,))", "self.box = Box(A)", "self.twins = [A, B, C]"]
        leaves = {forms[0]: ('self.tree["p"]', 'self.tree["q"][0]', 'self.tree["q"][1]["deep"]'),
                  forms[1]: ("self.pair.left", "self.pair.right"),
                  forms[2]: ("self.record.first", "self.record.second[0]"),
                  forms[3]: ("self.box.value",),
                  forms[4]: ("self.twins[0]", "self.twins[1]", "self.twins[2]")}
        for path in paths:
            self.line(f"{path} = {self.made(path)}")
        for form in self.rng.sample(forms, self.rng.randint(0, 2)):
            for letter, path in zip("ABC", leaves[form]):
                self.line(f"{letter} = {self.made(path)}")
            self.line(form)
        if self.chance(60):
            self.numbers["self.count"] = "int"
            self.line("self.count = 0")
        if self.chance(40):
            self.numbers["self.rate"] = "float"
            self.line("self.rate = 0.5")
        self.line("self.label = 'fixed'")

    def made(self, path: str) -> str:
        """An expression for a new state: often of the type of another."""
        rng = self.rng
        known = [s for s in self.states if s.layout or not s.ndim]
        if known and self.chance(50):
            other = rng.choice(known)
            shape, dtype, layout = other.shape, other.dtype, other.layout
        else:
            shape, dtype, layout = rng.choice(SHAPES), rng.choice(DTYPES), ""
            dims = extents_of(shape, 1)
            if dims and "rows" not in shape and self.chance(75):
                entries: list[str | None] = [None] * len(dims)
                if self.chance(70):
                    entries[rng.randrange(len(dims)) if "n" not in shape else 0] = "r"
                    if self.axes[1:] and "n" not in shape:
                        entries[rng.randrange(len(dims))] = "c"
                layout = repr(tuple(entries))
            if "n" in shape and "r" not in layout:
                layout = repr(("r", *[None] * (len(dims) - 1)))
        s = State(path, shape, dtype, layout, self.chance(60) and path[-1] != "]")
        self.states.append(s)
        tail = f", layout={layout}" if layout else ""
        kind = rng.randrange(4)
        fixed = s.ndim and "n" not in shape and "rows" not in shape
        if kind == 0 and fixed and s.dtype != "bool" and not layout:
            size = int(np.prod(s.extents(1)))
            return f"TABLE[:{size}].reshape({shape}).astype(np.{dtype})"
        dtype = "bool" if dtype == "bool" else f"np.{dtype}"
        if kind == 1 and s.ndim:
            return f"spmd.full({shape}, 1, {dtype}{tail})"
        if kind == 2 and s.ndim == 1 and s.dtype != "bool":
            return f"spmd.zeros({shape}, {dtype}{tail}) + np.arange({shape}[0]).astype({dtype})"
        return f"spmd.zeros({shape}, {dtype}{tail})"

    # ---- entries ---------------------------------------------------------------------------------

    def entry(self, name: str) -> None:
        self.lines += ["", "    @spmd.entry", f"    def {name}(self):"]
        self.inputs, self.scalars = {}, []
        self.line("n = spmd.axis_size('r')")
        for k in range(self.rng.randint(0, 2)):
            s = self.rng.choice(self.states)
            x = "xy"[k]
            self.inputs[x] = s.shape, s.dtype
            dtype = "bool" if s.dtype == "bool" else f"np.{s.dtype}"
            tail = f", layout={s.layout}" if s.layout else ""
            self.line(f'{x} = spmd.input("{x}", {s.shape}, {dtype}{tail})')
        if self.chance(40):
            self.scalars.append("steps")
            self.line('steps = spmd.scalar("steps", 2)')
        for _ in range(self.rng.randint(1, 5)):
            self.statement(2)
        self.returned()

    def statement(self, deep: int) -> None:
        kinds = [self.rebind] * 4 + [self.write] * 3 + [self.swap, self.number, self.mapped,
                                                        self.helped, self.aliased]
        if deep:
            kinds += [self.branch, self.loop, self.turning]
        kind = self.rng.choice(kinds)
        if kind in (self.branch, self.loop, self.turning):
            kind(deep - 1)
        else:
            kind()

    def block(self, deep: int) -> None:
        self.depth += 1
        for _ in range(self.rng.randint(1, 2)):
            self.statement(deep)
        self.depth -= 1

    def of_type(self, s: State) -> list[str]:
        """Names of arrays of the type of a state."""
        return [o.path for o in self.states if o.like(s)] + [
            x for x, (shape, dtype) in self.inputs.items() if (shape, dtype) == (s.shape, s.dtype)]

    def value(self, s: State) -> str:
        """An expression of its shape and dtype."""
        rng, a = self.rng, self.rng.choice(self.of_type(s))
        b = rng.choice(self.of_type(s))
        if s.kind == "b":
            return rng.choice((f"{a} ^ {b}", f"~{a}", f"np.logical_and({a}, {b})"))
        forms = [f"{a} + {b}", f"{a} - {b}", f"{b} * 2 - {a}", f"{a} + 1", f"{a} * {b}",
                 f"self.less({a})", f"np.where({a} == {b}, {a}, 1)", f"{a} + self.five",
                 f"{a}.copy()", f"{a} + Box.scale"]
        if s.kind != "c":
            forms += [f"np.maximum({a}, {b})"]
        if s.ndim:
            forms += [f"np.roll({a}, 1, axis=0)", f"{a}[::-1] + {b}", f"{a} + np.sum({b}, axis=0)"]
        if s.shape == "(4, 4)":
            forms += [f"{a} @ {b}", f"{a}.T", f"{a}.T @ {b}"]
        if s.dtype == "float64":
            forms += [f"0.5 * {a} + np.tanh({b})", f"np.exp(-np.abs({a}))"]
            if "self.rate" in self.numbers:
                forms.append(f"{a} * self.rate")
        if s.dtype in ("float64", "int64") and "self.count" in self.numbers:
            forms.append(f"{a} + self.count")
        if s.dtype == "float64" and self.inputs:
            x = rng.choice(list(self.inputs))
            if self.inputs[x][1] != "complex128":
                forms.append(f"{a} + np.sum({x})")
        return self.small(rng.choice(forms), s)

    def small(self, text: str, s: State) -> str:
        if s.kind == "c":
            return f"np.clip(({text}).real, -9, 9) + 1j * np.clip(({text}).imag, -9, 9)"
        cast = f".astype(np.{s.dtype})"
        low = 0 if s.kind == "u" else -9
        return f"np.clip({text}, {low}, 9){cast}"

    def condition(self) -> str:
        forms = ["self.five > 4"]
        for s in self.states:
            if s.kind in "if" and s.dtype != "float16":
                forms += [f"np.sum({s.path}) > 3"]
        forms += ["self.count % 2 == 0"] * ("self.count" in self.numbers)
        forms += ["steps > 1"] * ("steps" in self.scalars)
        return self.rng.choice(forms)

    def rebind(self) -> None:
        s = self.rng.choice(self.states)
        if s.path.startswith("self.pair."):
            self.line(f"self.pair = self.pair._replace({s.path[10:]}={self.value(s)})")
        elif s.path == "self.record.second[0]":
            self.line(f"self.record.second = ({self.value(s)},)")
        else:
            self.line(f"{s.path} = {self.value(s)}")

    def write(self) -> None:
        ours = [s for s in self.states if s.in_place]
        if not ours:
            return self.rebind()
        s = self.rng.choice(ours)
        if not s.ndim:  # NumPy's operations give numbers there, which cannot be written
            return self.rebind()
        form = self.rng.choice((
            "{p}[...] = {v}", "{p}[0] = ({v})[-1]", "{p}[1:] = {p}[:-1]", "{p}[::2] = 1",
            "{p} += 1", "{p} *= 2", "{p}[-1] += {p}[0]"))
        if s.extents(1)[0] == 0 and ("[0]" in form or "[-1]" in form):
            form = "{p}[...] = {v}"
        if "+=" in form or "*=" in form:
            if s.kind == "b" or "pair" in s.path:
                form = "{p}[...] = {v}"
            else:
                self.line(form.format(p=s.path, v=self.value(s)))
                self.line(f"{s.path}[...] = {self.small(s.path, s)}")
                return None
        self.line(form.format(p=s.path, v=self.value(s)))
        return None

    def swap(self) -> None:
        plain = [s for s in self.states if "pair" not in s.path and "second" not in s.path]
        a = self.rng.choice(plain)
        others = [s for s in plain if s.like(a) and s is not a]
        if not others:
            return self.rebind()
        some = [a, *self.rng.sample(others, min(len(others), self.rng.randint(1, 2)))]
        left = ", ".join(s.path for s in some)
        right = ", ".join(s.path for s in [*some[1:], some[0]])
        self.line(f"{left} = {right}")
        return None

    def aliased(self) -> None:
        """One array bound to two states, neither of which is ever written in place."""
        plain = [s for s in self.states if not s.in_place and "pair" not in s.path
                 and "second" not in s.path]
        pairs = [(a, b) for a in plain for b in plain if a is not b and a.like(b)]
        if not pairs:
            return self.rebind()
        a, b = self.rng.choice(pairs)
        self.line(f"{a.path} = {b.path}" + (
            self.rng.choice(("", "[::-1]", "[:]")) if a.ndim else ""))
        return None

    def number(self) -> None:
        if not self.numbers:
            return self.rebind()
        path = self.rng.choice(list(self.numbers))
        if self.numbers[path] == "int":
            self.line(f"{path} = ({path} + {self.rng.randint(1, 3)}) % 7")
        else:
            self.line(f"{path} = {path} * 0.5 + 1")
        return None

    def mapped(self) -> None:
        """A shard_map over a state that is split."""
        split = [s for s in self.states if s.layout.startswith("('r'") and s.kind not in "bcu"
                 and "pair" not in s.path and "second" not in s.path and s.dtype != "float16"
                 and not self.axes[1:]]
        if not split:
            return self.rebind()
        s = self.rng.choice(split)
        self.count += 1
        body = ['u + spmd.psum(np.sum(u), "r").astype(u.dtype)', "u * 2 - spmd.axis_index('r')"]
        if s.shape.startswith("(n"):
            body += ["u + spmd.ppermute(u, 'r', shift=1)", "spmd.ppermute(u, 'r', shift=-1)"]
        self.line(f"@spmd.shard_map(in_layouts=({s.layout},), out_layouts={s.layout})")
        self.line(f"def body{self.count}(u):")
        self.line(f"    return {self.small(self.rng.choice(body), s)}")
        self.line(f"{s.path} = body{self.count}({s.path})")
        return None

    def helped(self) -> None:
        """Add a line in which an object of the user changes its own state."""
        box = [s for s in self.states if s.path == "self.box.value" and s.kind in "if"]
        if not box:
            return self.rebind()
        self.line(f"self.box.bump({self.value(box[0])})")
        self.line(f"self.box.value = {self.small('self.box.value', box[0])}")
        return None

    def branch(self, deep: int) -> None:
        self.line(f"if {self.condition()}:")
        self.block(deep)
        if self.chance(50):
            self.line("else:")
            self.block(deep)

    def loop(self, deep: int) -> None:
        turns = "steps" if "steps" in self.scalars and self.chance(60) else self.rng.randint(0, 3)
        self.count += 1
        self.line(f"for i{self.count} in spmd.range({turns}):")
        self.block(deep)

    def turning(self, deep: int) -> None:
        self.count += 1
        k = f"k{self.count}"
        self.line(f"{k} = 0")
        self.line(f"while {k} < 2 and {self.condition()}:")
        self.block(deep)
        self.line(f"    {k} += 1")

    def returned(self) -> None:
        kind = self.rng.randrange(5)
        s = self.rng.choice(self.states)
        if kind == 1:
            self.line(f"return {s.path}")
        elif kind == 2:
            other = self.rng.choice(self.states).path
            self.line(f'return {{"a": {s.path}, "b": ({other} + {other}, [{s.path}])}}')
        elif kind == 3 and self.numbers:
            self.line(f"return {self.rng.choice(list(self.numbers))}, {s.path}.copy()")
        elif kind == 4:
            self.line(f"return {self.value(s)}")


def machine(seed: int) -> Machine:
    """The source of a random class with up to three entries."""
    author = Author(random.Random(seed))
    author.lines = ["", "    def __init__(self):"]
    author.initial()
    inputs, scalars = {}, {}
    for name in ("one", "two", "three")[: author.rng.randint(1, 3)]:
        author.entry(name)
        inputs[name], scalars[name] = author.inputs, author.scalars
    rules = ', layout={"rows": "r"}' if "(rows, 3)" in "".join(author.lines) else ""
    text = HEAD + "\n".join(author.lines)
    text += f"\n\n\nMachine = spmd.program(mesh={author.axes}{rules})(Base)\n"
    return Machine(text, author.states, author.numbers, inputs, scalars, author.axes)


def plain_text(one: Machine, entry: str, layouts: dict[str, Any], paths: Sequence[str],
               types: dict[str, tuple[str, str]]) -> str:
    """One entry as a program of its own: states are inputs, in these layouts, and outputs."""
    lines = [f"\n\n@spmd.program(mesh={one.axes})", f"def plain_{entry}():", "    self = Base()",
             "    n = spmd.axis_size('r')"]
    for k, path in enumerate(paths):
        shape, dtype = types[path]
        dtype = "bool" if dtype == "bool" else f"np.{dtype}"
        made = f'spmd.input("s{k}", {shape}, {dtype}, layout={layouts[path]})'
        if path.startswith("self.pair."):
            lines.append(f"    self.pair = self.pair._replace({path[10:]}={made})")
        elif path == "self.record.second[0]":
            lines.append(f"    self.record.second = ({made},)")
        else:
            lines.append(f"    {path} = {made}")
    lines.append(f"    result = self.{entry}()")
    outs = ", ".join(f'"s{k}": {path}' for k, path in enumerate(paths))
    lines.append(f"    return {{{outs}, **({{}} if result is None else {{'result': result}})}}")
    return "\n".join(lines) + "\n"
