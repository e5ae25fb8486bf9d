"""Random per-rank programs as source text, and what is known about each value in them.

A value knows its dtype, its dims (an int, or a Local extent), and whether two evaluations agree to
the bit (`exact`). Inexact values never decide anything: no comparison, no index, no division by
them, and they are clipped, so that a difference stays a rounding error.
Always holds: a program is legal Python and NumPy for every number of ranks, and draws end it.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from hypothesis import strategies as st

FLOATS = ("float32", "float64", "float16")
COMPLEX = ("complex64", "complex128")
INTS = ("int64", "int32", "int8", "uint8", "uint16", "uint64")
EXTENTS = (1, 2, 3, 4, 5)
SPLIT = (1, 2, 3, 5, 7, 12, 0)


@dataclass(frozen=True)
class Local:
    """The extent of a split dim: this rank's block of a dim of `whole` over `axes`."""

    whole: int
    axes: tuple[str, ...]


@dataclass(frozen=True)
class Cut:
    """The extent of dim[key], for a Local or Cut dim."""

    dim: Any
    key: str


Dim = Any  # int, Local or Cut


@dataclass
class Group:
    """Arrays that share memory; once one holds rounding errors, all do. loop: where it was made."""

    exact: bool = True
    loop: int = 0
    names: int = 1


@dataclass
class Var:
    name: str
    dtype: np.dtype
    dims: tuple[Dim, ...]
    group: Group = field(default_factory=Group)
    writable: bool = True
    depth: int = 0  # indentation where it was bound

    @property
    def exact(self) -> bool:
        return self.group.exact

    @property
    def kind(self) -> str:
        return self.dtype.kind

    @property
    def fixed(self) -> bool:
        """Every extent is a number."""
        return all(isinstance(d, int) for d in self.dims)


@dataclass
class Input:
    name: str
    dtype: np.dtype
    shape: tuple[int, ...]
    layout: tuple[Any, ...]

    def data(self, seed: int) -> np.ndarray:
        """Small numbers, the extremes of the dtype, and for floats what is no number."""
        random = np.random.default_rng(seed)
        n = int(np.prod(self.shape))
        if self.dtype.kind == "b":
            return random.integers(0, 2, self.shape).astype(bool)
        if self.dtype.kind == "c":
            return (
                (random.normal(0, 3, (2, n)).round(1).T @ [1, 1j])
                .astype(self.dtype)
                .reshape(self.shape)
            )
        if self.dtype.kind == "f":
            x = random.normal(0, 3, n).astype(self.dtype)
            special: list[Any] = [0.0, 1.0, -2.0, np.inf, -np.inf, np.nan, 0.5]
        else:
            info = np.iinfo(self.dtype)
            x = random.integers(max(info.min, -20), min(info.max, 20), n).astype(self.dtype)
            special = [0, 1, 2, info.max, info.min, 3]
        odd = random.random(n) < 0.15
        with np.errstate(invalid="ignore"):
            x[odd] = random.choice(np.array(special).astype(self.dtype), n)[odd]
        return x.reshape(self.shape)


@dataclass
class Program:
    """A random program as a module's source; if `clamps`, it has indices at which NumPy itself
    raises."""

    text: str
    axes: tuple[str, ...]
    inputs: list[Input]
    outputs: list[tuple[str, bool]]  # name, exact
    sizes: list[dict[str, int]]
    seed: int
    clamps: bool = False
    scalars: dict[str, Any] = field(default_factory=dict)

    def __repr__(self) -> str:
        return f"seed={self.seed} sizes={self.sizes} scalars={self.scalars}\n{self.text}"


Step = Callable[[], bool]


class Writer:
    """Draws a program line by line."""

    def __init__(self, draw: Callable[[Any], Any], axes: Sequence[str]) -> None:
        self.draw = draw
        self.axes = tuple(axes)
        self.lines: list[str] = []
        self.indent = 2
        self.vars: list[Var] = []
        self.count = 0
        self.loops = 0
        self.numbers = ["n", "i", "steps"]  # weak, small, not negative
        self.private = 0  # in a branch on the index or on data: no exchange there

    # ---- drawing ---------------------------------------------------------------------------------

    def choice(self, items: Sequence[Any]) -> Any:
        return items[self.draw(st.integers(0, len(items) - 1))]

    def chance(self, percent: int) -> bool:
        return self.draw(st.integers(0, 99)) >= 100 - percent

    def var(self, test: Callable[[Var], bool] = lambda _: True) -> Var | None:
        fits = [v for v in self.vars if test(v)]
        return fits[-1 - self.draw(st.integers(0, len(fits) - 1))] if fits else None

    def emit(self, text: str) -> None:
        self.lines.append("    " * self.indent + text)

    def name(self, prefix: str = "v") -> str:
        self.count += 1
        return f"{prefix}{self.count}"

    def define(self, text: str, dtype: Any, dims: Sequence[Dim], exact: bool = True) -> Var:
        """A new name for an expression."""
        group = Group(exact, self.loops)
        v = Var(self.name(), np.dtype(dtype), tuple(dims), group, depth=self.indent)
        if not exact and v.dtype.kind == "f":
            text = f"np.clip({text}, -8, 8)"
        v.writable = bool(v.dims)
        self.emit(f"{v.name} = {text}")
        self.vars.append(v)
        return v

    def same(self, v: Var, test: Callable[[Var], bool] = lambda _: True) -> Var | None:
        return self.var(lambda w: w.dims == v.dims and test(w))

    # ---- element by element ----------------------------------------------------------------------

    def operand(self, v: Var) -> tuple[str, Any, bool]:
        """Something that combines with v: text, a sample for the dtype, exact."""
        what = self.draw(st.integers(0, 9))
        if what < 5:
            fits = self.var(
                lambda w: w.dims == v.dims or w.dims == () or
                (len(w.dims) < len(v.dims) and w.dims == v.dims[len(v.dims) - len(w.dims):])
            )
            if fits is not None:
                return fits.name, np.ones(1, fits.dtype), fits.exact
        if what < 7:
            return self.choice(self.numbers), 1, True
        if what == 7 and v.kind in "fb":
            return self.choice(("0.5", "weight", "1.25")), 0.5, True
        value = self.choice((1, 2, 3, 5, 4, 0, -1, 300))
        return str(value), value, True

    def sample(self, text: str, a: Any, b: Any) -> np.dtype | None:
        """The dtype NumPy gives; None where it refuses."""
        try:
            with np.errstate(all="ignore"):
                return eval(text, {"np": np, "a": a, "b": b}).dtype
        except (TypeError, OverflowError):
            return None

    def formula(self, v: Var) -> tuple[str, np.dtype, bool] | None:
        """An expression of v's dims over v: text, dtype, exact."""
        other, sample, exact = self.operand(v)
        exact = exact and v.exact
        a = np.ones(1, v.dtype)
        forms = ["{a} + {b}", "{a} * {b}", "{a} - {b}", "np.maximum({a}, {b})",
                 "np.minimum({b}, {a})", "{b} - {a}"]
        if v.kind in "iub":
            forms += ["{a} & {b}", "{a} | {b}", "{a} ^ {b}"]
        if v.kind in "iu" and not isinstance(sample, float):
            forms += ["{a} // {b}", "{a} % {b}", "{b} // {a}", "{b} % {a}"]
        if exact:
            forms += ["{a} < {b}", "{a} >= {b}", "{a} == {b}", "{b} != {a}",
                      "{a} / np.abs({b})", "np.where({a} > {b}, {a}, {b})"]
            if v.kind == "f":
                forms += ["{a} // np.abs({b})", "{a} % np.abs({b})"]
        if v.kind == "c" or getattr(sample, "dtype", a.dtype).kind == "c":  # not ordered
            forms = ["{a} + {b}", "{a} * {b}", "{a} - {b}", "{b} - {a}"]
            forms += ["{a} == {b}", "{b} != {a}"] if exact else []
        form = self.choice(forms)
        dtype = self.sample(form.format(a="a", b="b"), a, sample)
        large = v.kind in "iu" and isinstance(sample, int) and sample > np.iinfo(v.dtype).max
        if dtype is None or (large and "where" in form):  # NumPy's where wraps it around
            return None
        if dtype.kind == "c" and "*" in form:
            exact = False  # NumPy fuses the products of a complex one where the processor can
        return form.format(a=v.name, b=other), dtype, exact

    def alone(self, v: Var) -> tuple[str, np.dtype, bool] | None:
        """A function of v only."""
        a = np.ones(1, v.dtype)
        forms = [("np.abs({a})", v.exact), ("np.square({a})", v.exact)]
        if v.kind != "b":
            forms += [("-{a}", v.exact), ("np.sign({a})", v.exact)]
            if v.exact:
                forms += [("np.logical_not({a})", True), ("{a} ** 2", True)]
        if v.kind in "iub":
            forms += [("~{a}", True), ("np.invert({a})", True)]
        if v.kind in "iu":
            forms += [("{a} << 2", True), ("{a} >> 1", True), ("np.bitwise_xor({a}, 3)", True)]
        if v.kind == "f":
            bound = "np.clip({a}, -8, 8)"
            forms += [(f"np.{f}({bound})", False) for f in ("exp", "sin", "tanh", "arctan")]
            if v.exact:
                forms += [(f"np.{f}({{a}})", True) for f in ("floor", "ceil", "isnan", "rint")]
                forms += [("np.sqrt(np.abs({a}))", True), ("np.isfinite({a})", True)]
                safe = "np.clip(np.where({a} == {a}, {a}, 0), -100, 100)"
                forms += [(f"{safe}.astype(np.int16)", True), (f"{safe}.astype(np.int64)", True)]
        else:
            forms += [(f"{{a}}.astype(np.{t})", True) for t in ("int8", "float64", "uint32")]
            forms += [("{a}.astype(bool)", True), ("{a}.astype(np.float32)", True)]
        if v.kind == "c":
            plain = (
                "-{a}",
                "np.conj({a})",
                "{a}.real",
                "np.imag({a})",
                "{a}.astype(np.complex128)",
            )
            forms = [(form, v.exact) for form in plain]
        form, exact = self.choice(forms)
        dtype = self.sample(form.format(a="a"), a, 0)
        return None if dtype is None else (form.format(a=v.name), dtype, exact)

    def elementwise(self) -> bool:
        v = self.var()
        assert v is not None
        made = self.formula(v) if self.chance(65) else self.alone(v)
        if made is None:
            return False
        text, dtype, exact = made
        self.define(text, dtype, v.dims, exact)
        return True

    def where(self) -> bool:
        v = self.var()
        assert v is not None
        mask = self.same(v, lambda w: w.kind == "b")
        other, sample, exact = self.operand(v)
        condition = mask.name if mask else f"{self.choice(self.numbers)} % 2 == 0"
        dtype = self.sample("np.where(a == a, a, b)", np.ones(1, v.dtype), sample)
        if dtype is None or self.sample("a + b", np.ones(1, v.dtype), sample) is None:
            return False  # np.where wraps a number that the dtype cannot hold; spmd refuses it
        self.define(f"np.where({condition}, {v.name}, {other})", dtype, v.dims, exact and v.exact)
        return True

    # ---- shapes ----------------------------------------------------------------------------------

    def key_of(self, dim: Dim) -> tuple[str, Dim]:
        """A slice of one dim, and the extent that it leaves."""
        if isinstance(dim, int):
            forms = (":", "::2", "::-1", "1:", ":-1", "1:-1", f":{dim}", "-2:", "2::-1", "::-2")
            key = self.choice(forms)
            parts = [int(p) if p else None for p in key.split(":")]
            return key, len(range(dim)[slice(*parts)])
        key = self.choice([":", "1:", ":-1", "1:-1", "::2", "::-1", "2:", ":-2"])
        return key, (dim if key in (":", "::-1") else Cut(dim, key))

    def view(self) -> bool:
        v = self.var(lambda w: bool(w.dims))
        if v is None:
            return False
        pairs = [self.key_of(d) for d in v.dims]
        if any(d == 0 for _, d in pairs if isinstance(d, int)):
            return False
        out = self.shared(v, tuple(d for _, d in pairs))
        self.emit(f"{out.name} = {v.name}[{', '.join(k for k, _ in pairs)}]")
        return True

    def shared(self, v: Var, dims: tuple[Dim, ...]) -> Var:
        """Another name for (a part of) v's memory."""
        v.group.names += 1
        out = Var(self.name(), v.dtype, dims, v.group, v.writable, self.indent)
        self.vars.append(out)
        return out

    def reshaped(self) -> bool:
        v = self.var(lambda w: bool(w.dims))
        if v is None:
            return False
        what = self.draw(st.integers(0, 4))
        dims = v.dims
        if what == 0:
            text, dims = f"{v.name}.T", dims[::-1]
        elif what == 1:
            text, dims = f"{v.name}[None]", (1, *dims)
        elif what == 2 and v.fixed:
            total = int(np.prod(dims))
            text, dims = f"np.reshape({v.name}, (-1,))", (total,)
        elif what == 3 and len(dims) < 3:
            text, dims = f"np.broadcast_to({v.name}, (2, *{v.name}.shape)) + 0", (2, *dims)
            if v.kind == "b":
                return False
        else:
            other = self.same(v, lambda w: w.dtype == v.dtype)
            assert other is not None
            if not isinstance(dims[0], int):
                text = f"np.stack([{v.name}, {other.name}])"
                self.define(text, v.dtype, (2, *dims), v.exact and other.exact)
                return True
            text = f"np.concatenate([{v.name}, {other.name}])"
            self.define(text, v.dtype, (2 * dims[0], *dims[1:]), v.exact and other.exact)
            return True
        if len(dims) > 3:
            return False
        if what == 3:
            self.define(text, v.dtype, dims, v.exact)
        else:
            self.emit(f"{self.shared(v, dims).name} = {text}")
        return True

    def reduction(self) -> bool:
        v = self.var(lambda w: bool(w.dims) and w.dtype != np.float16 and w.kind != "c")
        if v is None:
            return False
        d = self.draw(st.integers(0, len(v.dims)))
        over = v.dims if d == len(v.dims) else (v.dims[d],)
        left = () if d == len(v.dims) else v.dims[:d] + v.dims[d + 1 :]
        axis = "" if d == len(v.dims) else f", axis={d}"
        fns = ["sum"] * 2
        if all(isinstance(e, int) and e for e in over):
            fns += ["max", "min"]
            if v.exact and d < len(v.dims):
                fns += ["argmax", "argmin"]
        if v.kind in "iub":
            fns += ["prod"]
        if v.exact:
            fns += ["any", "all"]
        if d < len(v.dims) and v.kind != "f":
            fns.append("cumsum")
        fn = self.choice(fns)
        rounds = v.kind == "f" and fn == "sum"
        exact = v.exact and not rounds
        x = f"np.clip({v.name}, -8, 8)" if rounds else v.name
        dtype = getattr(np, fn)(np.ones((1, 1), v.dtype)).dtype
        dims = v.dims if fn == "cumsum" else left
        self.define(f"np.{fn}({x}{axis})", dtype, dims, exact)
        return True

    def ordered(self) -> bool:
        v = self.var(lambda w: bool(w.dims) and w.kind != "c")
        if v is None:
            return False
        d = self.draw(st.integers(0, len(v.dims) - 1))
        if v.exact and self.chance(40) and v.kind in "iu":
            self.define(f"np.argsort({v.name}, axis={d}, kind='stable')", np.int64, v.dims)
        else:
            self.define(f"np.sort({v.name}, axis={d})", v.dtype, v.dims, v.exact)
        return True

    def matmul(self) -> bool:
        v = self.var(lambda w: len(w.dims) == 2 and w.kind not in "bc" and w.dtype != np.float16)
        if v is None:
            return False
        w = self.var(lambda w: len(w.dims) in (1, 2) and w.dims[0] == v.dims[1]
                     and w.dtype == v.dtype)
        dims = (v.dims[0], *w.dims[1:]) if w else (v.dims[0], v.dims[0])
        texts = (v.name, w.name) if w else (v.name, f"{v.name}.T")
        if v.kind == "f":  # finite: a product of zero and infinity must not depend on blocking
            texts = tuple(f"np.clip(np.where({t} == {t}, {t}, 0), -8, 8)" for t in texts)
        self.define(" @ ".join(texts), v.dtype, dims, v.kind != "f")
        return True

    # ---- subscripts known at run time ------------------------------------------------------------

    def position(self, extent: int) -> str | None:
        """An index within an extent (or below it by a whole turn), known at run time."""
        what = self.draw(st.integers(0, 3))
        if what == 0:
            text = f"({self.choice(self.numbers)} + {self.draw(st.integers(0, 3))}) % {extent}"
        elif what == 1:
            text = f"({self.choice(self.numbers)} * 2) % {extent} - {extent}"
        else:
            v = self.var(lambda w: w.dims == () and w.exact and w.kind in "iu")
            if v is None:
                return None
            text = f"{v.name}.astype(np.int64) % {extent}"
            if what == 3:
                text += f" - {extent}"
        return text

    def element(self) -> bool:
        v = self.var(lambda w: bool(w.dims) and isinstance(w.dims[0], int) and w.dims[0] > 0)
        if v is None or (at := self.position(v.dims[0])) is None:
            return False
        if len(v.dims) == 1:
            self.define(f"{v.name}[{at}]", v.dtype, (), v.exact)
        else:
            self.emit(f"{self.shared(v, v.dims[1:]).name} = {v.name}[{at}]")
        return True

    def gather(self) -> bool:
        v = self.var(lambda w: bool(w.dims) and isinstance(w.dims[0], int) and w.dims[0] > 0)
        index = self.var(lambda w: len(w.dims) == 1 and w.exact and w.kind in "iu")
        if v is None or index is None:
            return False
        key = f"{index.name}.astype(np.int64) % {v.dims[0]}"
        if self.chance(60):
            self.define(f"{v.name}[{key}]", v.dtype, (*index.dims, *v.dims[1:]), v.exact)
            return True
        if len(v.dims) != 1 or v.kind in "bc" or not v.writable or self.frozen(v):
            return False
        if v.kind in "iu":
            form = self.choice(("{v}[{k}] = {x}", "np.add.at({v}, {k}, {x})"))
            self.emit(form.format(v=v.name, k=key, x=self.draw(st.integers(1, 5))))
        else:
            self.define(f"{v.name}.at[{key}].max(1)", v.dtype, v.dims, v.exact)
        return True

    # ---- writes ----------------------------------------------------------------------------------

    def frozen(self, v: Var) -> bool:
        return not v.dims or not v.writable

    def write(self) -> bool:
        v = self.var(lambda w: not self.frozen(w))
        if v is None:
            return False
        pairs = [self.key_of(d) for d in v.dims]
        dims = tuple(d for _, d in pairs)
        key = ", ".join(k for k, _ in pairs)
        if isinstance(v.dims[0], int) and v.dims[0] and self.chance(30):
            at = self.position(v.dims[0])
            if at is not None:
                key, dims = at, v.dims[1:]
        source = self.var(lambda w: w.dims == dims and np.can_cast(w.dtype, v.dtype, "same_kind")
                          and w.kind == v.kind)
        value, exact = str(self.draw(st.integers(0, 3))), True
        if source is not None and self.chance(70):
            if self.may_store(v, source.exact):
                value, exact = source.name, source.exact
        signs = {"b": ("=",), "c": ("=", "+=")}.get(v.kind, ("=", "=", "+=", "*="))
        sign = self.choice(signs)
        self.emit(f"{v.name}[{key}] {sign} {value}")
        self.taint(v, exact)
        return True

    def may_store(self, v: Var, exact: bool) -> bool:
        """Whether v may take such values: what a loop meets again must stay as exact as it was."""
        return exact or not v.exact or v.group.loop == self.loops

    def taint(self, v: Var, exact: bool) -> None:
        """v's memory now holds rounding errors; keep them small."""
        if v.exact and exact:
            return
        v.group.exact = False
        if v.kind == "f":
            self.emit(f"{v.name}[...] = np.clip({v.name}, -8, 8)")

    def augmented(self) -> bool:
        """Emit v += w, which works in place on arrays and makes a new value of scalars."""
        v = self.var(lambda w: w.kind != "b" and w.writable and (not w.dims or w.fixed))
        if v is None or not v.dims:
            return False
        text, sample, exact = self.operand(v)
        op = self.choice(("+", "-") if v.kind == "c" else ("+", "*", "-"))
        dtype = self.sample(f"a {op} b", np.ones(1, v.dtype), sample)
        if dtype is None or not np.can_cast(dtype, v.dtype, "same_kind"):
            return False
        if not self.may_store(v, exact):
            return False
        self.emit(f"{v.name} {op}= {text}")
        self.taint(v, exact)
        return True

    def alias(self) -> bool:
        v = self.var(lambda w: bool(w.dims))
        if v is None:
            return False
        if self.chance(60):
            self.emit(f"{self.shared(v, v.dims).name} = {v.name}")
        else:
            self.define(f"{v.name}.copy()", v.dtype, v.dims, v.exact)
        return True
