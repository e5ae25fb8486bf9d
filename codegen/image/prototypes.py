"""Prototypes of C functions, as users write them: a name, and what each parameter takes.

Goes in: the text of a prototype. Comes out: a Prototype, or a ValueError that says what is wrong.
Always holds: an int64_t directly behind a pointer is an extent of that array.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from codegen.dtypes import BY_NAME, DType

# How C spells the element types that functions may take.
SPELLINGS = {
    "bool": "bool", "_Bool": "bool", "int": "int32", "float": "float32", "double": "float64",
    **{f"int{bits}_t": f"int{bits}" for bits in (8, 16, 32, 64)},
    **{f"uint{bits}_t": f"uint{bits}" for bits in (8, 16, 32, 64)},
    **dict.fromkeys(("float _Complex", "_Complex float", "float complex", "complex float"),
                    "complex64"),
    **dict.fromkeys(("double _Complex", "_Complex double", "double complex", "complex double"),
                    "complex128"),
}
RESERVED = ("halo", "boundary")
_QUALIFIERS = frozenset("const restrict __restrict __restrict__".split())


@dataclass(frozen=True)
class CParameter:
    """A parameter of a C function. pointer: it takes an array; writes: which the function writes.
    extent_of: the array of which an int64_t says how long a dim is."""

    name: str
    dtype: DType
    pointer: bool = False
    writes: bool = False
    extent_of: str | None = None

    @property
    def c(self) -> str:
        """Return its element type as the wrapper around the function spells it."""
        return "_Bool" if self.dtype.kind == "b" else self.dtype.c


@dataclass(frozen=True)
class Prototype:
    text: str
    name: str
    parameters: tuple[CParameter, ...]

    @property
    def inputs(self) -> tuple[CParameter, ...]:
        """Return what a call gives by position: arrays that are read, and numbers."""
        return tuple(p for p in self.parameters if not p.writes and p.extent_of is None)

    @property
    def outputs(self) -> tuple[CParameter, ...]:
        return tuple(p for p in self.parameters if p.writes)

    @property
    def extents(self) -> tuple[CParameter, ...]:
        return tuple(p for p in self.parameters if p.extent_of is not None)


def parse(text: str) -> Prototype:
    """Raises ValueError with what was expected and what was found."""
    whole = re.fullmatch(r"\s*([\w\s]*?[\s*]+)?(\w+)\s*\((.*)\)\s*;?\s*", text, re.S)
    if whole is None:
        raise ValueError("void NAME(const double *u, double *out, int64_t n)", repr(text))
    returns, name, inner = (whole[1] or "").strip(), whole[2], whole[3]
    if returns != "void":
        raise ValueError("a function that returns void, and writes into its outputs",
                         returns or "no type in front of its name")
    parameters: list[CParameter] = []
    array: str | None = None
    for part in inner.split(","):
        parameter = _parameter(part, array)
        if parameter.name in (*(p.name for p in parameters), *RESERVED):
            raise ValueError("another name for each parameter; halo and boundary are of calls",
                             f"{parameter.name}, in {part.strip()}")
        parameters.append(parameter)
        array = parameter.name if parameter.pointer else parameter.extent_of
    if not any(p.writes for p in parameters):
        raise ValueError("an output: a pointer that is not const", inner.strip() or "no parameter")
    return Prototype(text, name, tuple(parameters))


def _parameter(text: str, array: str | None) -> CParameter:
    """Return the parameter that a text declares. array: the one directly before it, or before the
    extents before it."""
    front, star, back = text.rpartition("*")
    words = (front if star else back).split()
    named = back.split() if star else words[-1:]
    words = words if star else words[:-1]
    names = [w for w in named if w not in _QUALIFIERS]
    spelled = " ".join(w for w in words if w not in _QUALIFIERS)
    dtype = BY_NAME.get(SPELLINGS.get(spelled, ""))
    if "*" in front or len(names) != 1 or not names[0].isidentifier() or dtype is None:
        raise ValueError(
            "parameters such as const float *u, double *out, int64_t n, double w; types are "
            + ", ".join(s for s in SPELLINGS if "omplex" not in s and s != "_Bool")
            + ", float _Complex, double _Complex", text.strip() or "nothing between commas")
    is_extent = not star and dtype.name == "int64" and array is not None
    return CParameter(names[0], dtype, bool(star), bool(star) and "const" not in words,
                      array if is_extent else None)
