"""How expressions, elements and literals are spelled in C.

`abstract` cuts an Expr where it leaves the loops: what a compute phase does not compute itself
becomes a parameter; what does not change while the program runs is evaluated once at load.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from typing import Any

from codegen import expr
from codegen.dtypes import DType
from codegen.expr import Call, Expr, Sym
from codegen.functions import FUNCTIONS
from codegen.plan import Apply, Bound, Buffer, Integer, Literal, Load, Node, Runtime

_WORDS = frozenset(
    "auto break case char const continue default do double else enum extern float for goto if "
    "inline int long register restrict return short signed sizeof static struct switch typedef "
    "union unsigned void volatile while main errno I r w x member index div abs exp log sin cos "
    "tan pow sqrt floor "
    "ceil round y0 y1 yn j0 j1 jn gamma signal time step load shard reserve from into linux unix "
    "total best where value lane library i j k l t text at end send pull bytes offset "
    "extent".split()
)


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


def bare(text: str) -> str:
    """Without the parentheses around the whole of it."""
    depth = 0
    for k, c in enumerate(text):
        depth += (c == "(") - (c == ")")
        if (depth == 0 and k < len(text) - 1) or (depth == 1 and c == ","):
            return text
    return text[1:-1] if text[:1] == "(" else text


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


def c_expr(e: Expr, names: Mapping[Sym, str] | None = None) -> str:
    """C text of an int64_t; symbols not in `names` are spelled by their name."""
    spelled = names or {}
    return e.c(lambda s: spelled.get(s, s.name))


def literal(value: Any, dtype: DType) -> str:
    """A constant of a dtype's compute type, exact."""
    if dtype.kind == "b":
        return "1" if value else "0"
    if dtype.kind in "iu":
        number = int(value)
        if number == -(2**63):
            return "INT64_MIN"
        text = str(number)
        if dtype.kind == "u" and dtype.size == 8:
            text += "u" if number < 2**32 else "ull"
        elif abs(number) >= 2**31:
            text += "ll" if dtype.kind == "i" else "u"
        return text if number >= 0 else f"({text})"
    if dtype.kind == "c":
        part = "f" if dtype.size == 8 else ""
        z = complex(value)
        return f"CMPLX{part.upper()}({_real(z.real, part)}, {_real(z.imag, part)})"
    return _rounded(value, dtype)


def _rounded(value: Any, dtype: DType) -> str:
    from codegen.dtypes import numpy_dtype

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
    spelled += part
    return f"({spelled})" if spelled.startswith("-") else spelled


class NodeWriter:
    """Spells Nodes. load spells an element in memory; integer an Expr; runtime a scalar."""

    def __init__(
        self,
        load: Callable[[Buffer, Expr], str],
        integer: Callable[[Expr], str],
        runtime: Callable[[Runtime], str],
    ) -> None:
        self.load = load
        self.integer = integer
        self.runtime = runtime
        self.lines: list[str] = []  # statements that must stand before the expression
        self.done: set[str] = set()

    def begin(self) -> None:
        self.lines, self.done = [], set()

    def bounds(self, bounds: tuple[Bound, ...]) -> None:
        """Declare the positions that data decides, kept within their limits."""
        for b in bounds:
            if b.sym.name in self.done:
                continue
            raw = self.text(b.node)
            self.done.add(b.sym.name)
            clamped = f"spmd_max(spmd_min((int64_t)({raw}), {self.integer(b.limit)}), 0)"
            self.lines.append(f"const int64_t {b.sym.name} = {clamped};")

    def text(self, node: Node) -> str:
        if isinstance(node, Literal):
            return literal(node.value, node.dtype)
        if isinstance(node, Integer):
            text = self.integer(node.value)
            plain = re.fullmatch(r"\w+(\([^()]*\))?", text)
            return cast_text(text if plain else f"({text})", "i64", node.dtype)
        if isinstance(node, Runtime):
            return cast_text(self.runtime(node), "f64", node.dtype)
        if isinstance(node, Load):
            used = node.offset.symbols()  # a stride of 0 needs no position
            self.bounds(tuple(b for b in node.bounds if b.sym in used))
            return element(node.buffer.dtype, self.load(node.buffer, node.offset))
        return self.apply(node)

    def apply(self, node: Apply) -> str:
        if node.fn in _OF_ITSELF and (known := _decided(node)):
            return known
        if node.fn == "add" and node.dtype.kind in "iu":  # the first row of a shard of one row
            rest = [a for a in node.args if not (isinstance(a, Integer) and a.value == 0)]
            if len(rest) == 1:
                return self.text(rest[0])
        args = [self.text(a) for a in node.args]
        if node.fn == "cast":
            return cast_text(args[0], suffix(node.operand), node.dtype)
        template = FUNCTIONS[node.fn].template(node.operand)
        if template.startswith("spmd_"):
            args = [bare(a) for a in args]
        text = template.format(*args, t=suffix(node.operand))
        if node.dtype.kind in "iu" and node.dtype.size < 4:
            return f"({node.dtype.compute}){text}"
        if node.dtype.size == 2 and node.dtype.kind == "f":
            return rounded(text, node.dtype)
        return text


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


def cast_text(text: str, source: str, to: DType) -> str:
    """A value of compute type `source` as another dtype, as NumPy casts."""
    if to.size == 2 and to.kind == "f":
        if source == "f64":
            if to.name == "float16":
                return f"spmd_float16_load(spmd_float16_store_f64({text}))"
            return rounded(f"(float){text}", to)
        return rounded(text if source == "f32" else f"spmd_cast_{source}_f32({text})", to)
    target = "b" if to.kind == "b" else suffix(to)
    return text if source == target else f"spmd_cast_{source}_{target}({bare(text)})"


def rounded(text: str, dtype: DType) -> str:
    return f"spmd_{dtype.name}_load(spmd_{dtype.name}_store({text}))"


def element(dtype: DType, text: str) -> str:
    """What stands in memory, in the compute type."""
    return f"spmd_{dtype.name}_load({text})" if dtype.c.startswith("spmd_") else text


def stored(dtype: DType, text: str) -> str:
    """A value of the compute type as it is stored."""
    text = bare(text)
    return f"spmd_{dtype.name}_store({text})" if dtype.c.startswith("spmd_") else text
