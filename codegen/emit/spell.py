"""How expressions, elements and literals are spelled in C.

`abstract` cuts an Expr where it leaves the loops: what a compute phase does not compute itself
becomes a parameter; what does not change while the program runs is evaluated once at load.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from codegen.dtypes import DType, numpy_dtype
from codegen.emit.operators import applied, call, cast, single
from codegen.functions import COMBINE, FUNCTIONS
from codegen.plan.grammar import Apply, Bound, Buffer, Integer, Literal, Load, Local, Node, Runtime
from codegen.plan.indexing import placed
from codegen.symbolic import expr
from codegen.symbolic.blocks import by_parts, written
from codegen.symbolic.expr import Call, Expr, Sym
from codegen.symbolic.spelling import Binds, Text, c_operand

_WORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while main errno I r w x member index div abs exp log sin cos "
    "tan pow sqrt floor "
    "ceil round y0 y1 yn j0 j1 jn gamma signal time step load shard reserve from into linux unix "
    "total best where value lane library i j k l t text at end send pull bytes offset "
    "extent".split()
)


@cache
def identifier(name: str) -> str:
    """A C identifier that looks like the user's name."""
    text = re.sub(r"[^0-9A-Za-z_]", "_", name)
    if not text or text[0].isdigit() or text[0] == "_":
        text = f"v{text}"
    return f"{text}_" if text in _WORDS or re.fullmatch(r"[ejpt]\d+", text) else text


def suffix(dtype: DType) -> str:
    """The ending of support functions for a dtype's compute type."""
    if dtype.kind == "b":
        return "u8"
    if dtype.kind == "c":
        return "c64" if dtype.size == 8 else "c128"
    return "f32" if dtype.size == 2 and dtype.kind == "f" else f"{dtype.kind}{8 * dtype.size}"


def storage_suffix(dtype: DType) -> str:
    """The ending of functions that work on elements in memory (sorting)."""
    if dtype.kind == "f" and dtype.size == 2:
        return "bf16" if dtype.name == "bfloat16" else "f16"
    return suffix(dtype)


def abstract(e: Expr, local: frozenset[Sym], outside: Callable[[Expr], Expr]) -> Expr:
    """Rewrite an Expr so that only `local` symbols remain; the rest goes through `outside`.

    outside is handed maximal parts that mention no local symbol and are not constant.
    """
    if e.is_const:
        return e
    if not e.symbols() & local:
        return outside(e)
    e = written(e, local)
    groups: dict[Any, Expr] = {}
    factors: dict[Any, Expr] = {}
    for monomial, coefficient in e.terms:
        inner, rest = expr.const(1), expr.const(coefficient)
        for atom in monomial:
            one = Expr((((atom,), 1),))
            if isinstance(atom, Sym):
                if atom in local:
                    inner = inner * one
                else:
                    rest = rest * one
            elif one.symbols() & local:
                atom = by_parts(atom)
                args = tuple(abstract(a, local, outside) for a in atom.args)
                inner = inner * Expr((((Call(atom.op, args),), 1),))
            else:
                rest = rest * one
        factors[inner.key] = inner
        groups[inner.key] = groups.get(inner.key, expr.const(0)) + rest
    total = expr.const(0)
    for key, rest in groups.items():
        total = total + factors[key] * (rest if rest.is_const else outside(rest))
    return total


def c_expr(e: Expr, names: Mapping[Sym, str]) -> Text:
    """C of an int64_t; symbols not in `names` are spelled by their name."""
    return c_operand(e, lambda s: names.get(s, s.name))


def literal(value: Any, dtype: DType) -> Text:
    """A constant of a dtype's compute type, exact."""
    if dtype.kind == "b":
        return single("1" if value else "0")
    if dtype.kind in "iu":
        return _signed(_integer(int(value), dtype))
    if dtype.kind == "c":
        part = "f" if dtype.size == 8 else ""
        z = complex(value)
        return single(f"CMPLX{part.upper()}({_real(z.real, part)}, {_real(z.imag, part)})")
    return _signed(_rounded(value, dtype))


def _signed(text: str) -> Text:
    return text, Binds.UNARY if text.startswith(("-", "(")) else Binds.ATOM


def _integer(number: int, dtype: DType) -> str:
    if number == -(2**63):
        return "INT64_MIN"
    ending = ""
    if dtype.kind == "u" and dtype.size == 8:
        ending = "u" if number < 2**32 else "ull"
    elif abs(number) >= 2**31:
        ending = "ll" if dtype.kind == "i" else "u"
    return f"{number}{ending}"


def _rounded(value: Any, dtype: DType) -> str:
    number = numpy_dtype(dtype).type(value)
    part = "" if dtype.size == 8 else "f"
    if dtype.size == 4:
        text = repr(number.item()) if not math.isfinite(number) else str(number)
        return _real(float(text) if not math.isfinite(number) else number, part, text)
    return _real(float(number), part)


def _real(value: Any, part: str, text: str = "") -> str:
    number = float(value)
    if math.isnan(number):
        return "NAN" if part else "(double)NAN"
    if math.isinf(number):
        return ("-" if number < 0 else "") + ("INFINITY" if part else "(double)INFINITY")
    spelled = text or repr(number)
    if "." not in spelled and "e" not in spelled:
        spelled += ".0"
    return spelled + part


class NodeWriter:
    """Spells Nodes. load spells an element in memory; symbolic an Expr; runtime a scalar."""

    def __init__(
        self,
        load: Callable[[Buffer, Expr], str],
        symbolic: Callable[[Expr], Text],
        runtime: Callable[[Runtime], str],
    ) -> None:
        self.load = load
        self.symbolic = symbolic
        self.runtime = runtime
        self.lines: list[str] = []  # statements that must stand before the expression
        self.done: set[str] = set()
        self.names: dict[str, str] = {}  # of what nests keep

    def begin(self) -> None:
        self.lines, self.done = [], set()

    def integer(self, e: Expr) -> str:
        return self.symbolic(e)[0]

    def bounds(self, bounds: tuple[Bound, ...]) -> None:
        """Declare the positions that data decides, kept within their limits."""
        for b in bounds:
            if b.sym.name in self.done:
                continue
            raw = self.position(b.node)
            self.done.add(b.sym.name)
            clamped = f"spmd_max(spmd_min({raw}, {self.integer(b.limit)}), 0)"
            self.lines.append(f"const int64_t {b.sym.name} = {clamped};")

    def position(self, node: Node) -> str:
        """A number that the program computes, as an int64_t."""
        dtype = node.buffer.dtype if isinstance(node, Load) else node.dtype
        text = self.operand(node)
        return text[0] if dtype.compute == "int64_t" else cast("int64_t", text)[0]

    def text(self, node: Node) -> str:
        return self.operand(node)[0]

    def operand(self, node: Node) -> Text:
        """What a Node computes, in its dtype's compute type."""
        if isinstance(node, Literal):
            return literal(node.value, node.dtype)
        if isinstance(node, Integer):
            self.bounds(_used(node, node.value))
            return converted(self.symbolic(node.value), "i64", node.dtype)
        if isinstance(node, Runtime):
            return converted(single(self.runtime(node)), "f64", node.dtype)
        if isinstance(node, Local):
            return single(self.names[node.name])
        if isinstance(node, Load):
            self.bounds(_used(node, node.offset))
            return element(node.buffer.dtype, self.load(node.buffer, node.offset))
        return self.apply(node)

    def apply(self, node: Apply) -> Text:
        if node.fn in _OF_ITSELF and (known := _decided(node)):
            return single(known)
        args = [self.operand(a) for a in node.args]
        if node.fn == "cast":
            return converted(args[0], suffix(node.operand), node.dtype)
        text = applied(FUNCTIONS[node.fn].form(node.operand), args, suffix(node.operand))
        if node.dtype.kind in "iu" and node.dtype.size < 4:
            return cast(node.dtype.compute, text)
        if node.dtype.size == 2 and node.dtype.kind == "f":
            return rounded(text, node.dtype)
        return text


def _used(node: Load | Integer, at: Expr) -> tuple[Bound, ...]:
    """The positions that data decides in where or what this is, and those where they stand
    themselves: they come before them. A stride of 0 needs no position."""
    used, kept = set(at.symbols()), []
    for b in reversed(node.bounds):
        if b.sym in used:
            kept.append(b)
            for inner in placed(b.node):
                used.update((inner.offset if isinstance(inner, Load) else inner.value).symbols())
    return tuple(reversed(kept))


_OF_ITSELF = {"eq": "1", "le": "1", "ge": "1", "ne": "0", "lt": "0", "gt": "0"}
# a op limit, for the smallest and the largest value of the type
_AT_LOW, _AT_HIGH = {"ge": "1", "lt": "0"}, {"le": "1", "gt": "0"}
_SWAPPED = {"lt": "gt", "gt": "lt", "le": "ge", "ge": "le"}


def _decided(node: Apply) -> str:
    """What an integer comparison always gives, where C compilers warn about it; "" where open."""
    if node.operand.kind not in "biu":
        return ""
    if node.args[0] == node.args[1]:
        return _OF_ITSELF[node.fn]
    for fn, other in ((node.fn, node.args[1]), (_SWAPPED.get(node.fn, ""), node.args[0])):
        if isinstance(other, Literal):
            bits = 8 * node.operand.size
            low = -(2 ** (bits - 1)) if node.operand.kind == "i" else 0
            high = 1 if node.operand.kind == "b" else low + 2**bits - 1
            table = {low: _AT_LOW, high: _AT_HIGH}.get(int(other.value), {})
            if fn in table:
                return table[fn]
    return ""


def converted(value: Text, source: str, to: DType) -> Text:
    """A value of compute type `source` as another dtype, as NumPy casts."""
    if to.size == 2 and to.kind == "f":
        if source == "f64":
            if to.name == "float16":
                return call("spmd_float16_load", call("spmd_float16_store_f64", value))
            return rounded(cast("float", value), to)
        return rounded(value if source == "f32" else call(f"spmd_cast_{source}_f32", value), to)
    target = "b" if to.kind == "b" else suffix(to)
    return value if source == target else call(f"spmd_cast_{source}_{target}", value)


def rounded(value: Text, dtype: DType) -> Text:
    return call(f"spmd_{dtype.name}_load", call(f"spmd_{dtype.name}_store", value))


def element(dtype: DType, place: str) -> Text:
    """What stands in memory, in the compute type."""
    text = single(place)
    return call(f"spmd_{dtype.name}_load", text) if dtype.c.startswith("spmd_") else text


def stored(dtype: DType, value: Text) -> str:
    """A value of the compute type as it is stored."""
    return call(f"spmd_{dtype.name}_store", value)[0] if dtype.c.startswith("spmd_") else value[0]


def combined(fn: str, dtype: DType, a: Text, b: Text) -> Text:
    """COMBINE[fn] of two values of a dtype's compute type."""
    return applied(FUNCTIONS[COMBINE[fn]].form(dtype), (a, b), suffix(dtype))
