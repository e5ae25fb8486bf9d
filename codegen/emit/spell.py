"""How numbers of every type are spelled in C: literals, casts, elements in memory."""

from __future__ import annotations

import math
from typing import Any

from codegen.dtypes import DType, numpy_dtype
from codegen.emit.expressions import applied, call, single
from codegen.functions import COMBINE, FUNCTIONS
from codegen.symbolic.spelling import Binds, Text


def suffix(dtype: DType) -> str:
    """Return the ending of support functions for a dtype's compute type."""
    if dtype.kind == "b":
        return "u8"
    if dtype.kind == "c":
        return "c64" if dtype.size == 8 else "c128"
    return "f32" if dtype.size == 2 and dtype.kind == "f" else f"{dtype.kind}{8 * dtype.size}"


def storage_suffix(dtype: DType) -> str:
    """Return the ending of functions that work on elements in memory (sorting)."""
    if dtype.kind == "f" and dtype.size == 2:
        return "bf16" if dtype.name == "bfloat16" else "f16"
    return suffix(dtype)


def literal(value: Any, dtype: DType) -> Text:
    """Return a constant of a dtype's compute type, exact."""
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
    if dtype.size == 4:  # its shortest text, not that of the float64 that it is
        return _real(float(number), "f", str(number))
    return _real(float(number), "" if dtype.size == 8 else "f")


def _real(number: float, part: str, text: str = "") -> str:
    if math.isnan(number):
        return "NAN" if part else "(double)NAN"
    if math.isinf(number):
        return ("-" if number < 0 else "") + ("INFINITY" if part else "(double)INFINITY")
    spelled = text or repr(number)
    if "." not in spelled and "e" not in spelled:
        spelled += ".0"
    return spelled + part


def converted(value: Text, source: str, to: DType) -> Text:
    """Return a value of compute type `source` as another dtype, as NumPy casts."""
    if to.size == 2 and to.kind == "f":
        if source == "f64":
            if to.name == "float16":
                return call("spmd_float16_load", call("spmd_float16_store_f64", value))
            return rounded(call("spmd_round_f32", value), to)
        return rounded(value if source == "f32" else call(f"spmd_cast_{source}_f32", value), to)
    target = "b" if to.kind == "b" else suffix(to)
    return value if source == target else call(f"spmd_cast_{source}_{target}", value)


def rounded(value: Text, dtype: DType) -> Text:
    return call(f"spmd_{dtype.name}_load", call(f"spmd_{dtype.name}_store", value))


def element(dtype: DType, place: str) -> Text:
    """Return an element in memory, converted to the compute type."""
    text = single(place)
    return call(f"spmd_{dtype.name}_load", text) if dtype.c.startswith("spmd_") else text


def stored(dtype: DType, value: Text) -> str:
    """Return a value of the compute type in the type of memory; a half that was loaded is stored
    unchanged."""
    if not dtype.c.startswith("spmd_"):
        return value[0]
    load = f"spmd_{dtype.name}_load("
    inside = value[0].removeprefix(load).removesuffix(")")
    if value[0] == f"{load}{inside})" and _closed(inside):
        return inside
    return call(f"spmd_{dtype.name}_store", value)[0]


def _closed(text: str) -> bool:
    """Return whether every parenthesis is closed after it is opened."""
    depth = 0
    for c in text:
        depth += (c == "(") - (c == ")")
        if depth < 0:
            return False
    return depth == 0


def combined(fn: str, dtype: DType, a: Text, b: Text) -> Text:
    """Return COMBINE[fn] of two values of a dtype's compute type."""
    return applied(FUNCTIONS[COMBINE[fn]].form(dtype), (a, b), suffix(dtype))
