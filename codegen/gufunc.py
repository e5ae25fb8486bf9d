"""Kernels that are called point by point, as NumPy's generalised ufuncs: "(n),()->(n)".

A signature names the dims that the function sees; the dims before them are loops, broadcast as
NumPy broadcasts. Comes out: per parameter which loop each of its leading dims follows.
Always holds: an output has all loops; what a call reads and writes of other turns it cannot see.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codegen.dtypes import DType

ONLY = -1  # instead of a loop: the dim has one element, which serves every turn

# Per parameter, which loop each leading dim follows; None: it is handed over as it is.
Follows = Sequence[tuple[int, ...] | None]

_DIMS = r"\(\s*(?:\w+\s*(?:,\s*\w+\s*)*)?\)"
_LIST = rf"\s*{_DIMS}\s*(?:,\s*{_DIMS}\s*)*"


class Parameter(NamedTuple):
    """The type of a kernel's parameter. loops: the loops that its leading dims follow; None: it is
    passed as it is. apart: the kernel is not called where this output's part is empty. many: the
    number of integers, if the parameter is a tuple of them; else 0."""

    dtype: DType
    ndim: int = 0
    writes: bool = False
    loops: tuple[int, ...] | None = None
    apart: bool = False
    many: int = 0


def c_types(p: Parameter) -> list[str]:
    """Return the C types for a parameter: the address of an array and its extents, a number, or the
    parts of a complex one."""
    if p.ndim or p.writes:
        return ["void *"] + ["int64_t"] * p.ndim
    part = p.dtype.compute.removesuffix(" _Complex")
    return [part] * (2 if p.dtype.kind == "c" else p.many or 1)


def c_names(k: int, p: Parameter) -> list[str]:
    """Return the names of these in the function around a kernel, whose parameter number k it is."""
    if p.ndim or p.writes:
        return [f"p{k}", *(f"n{k}_{d}" for d in range(p.ndim))]
    if p.dtype.kind == "c":
        return [f"p{k}", f"q{k}"]
    return [f"p{k}", *(f"q{k}_{d}" for d in range(1, p.many))]


@dataclass(frozen=True)
class Signature:
    """A signature of a kernel. dims: per parameter, inputs first, the names of the dims that the
    function sees."""

    text: str
    dims: tuple[tuple[str, ...], ...]
    inputs: int

    def follows(
        self,
        names: Sequence[str],
        shapes: Sequence[tuple[Any, ...]],
        same: Callable[[Any, Any], bool],
    ) -> list[tuple[int, ...]]:
        """Return, for each parameter, which loop each leading dim follows. Raises ValueError with
        what does not fit. same: whether two extents are equal."""
        sizes: dict[str, tuple[str, Any]] = {}
        leads = []
        for name, shape, dims in zip(names, shapes, self.dims, strict=True):
            lead = len(shape) - len(dims)
            if lead < 0:
                raise ValueError(
                    f"{name} has {len(shape)} dims, and the signature says {len(dims)} of it"
                )
            for dim, extent in zip(dims, shape[lead:], strict=True):
                other, known = sizes.setdefault(
                    dim, ("the signature", int(dim)) if dim.isdigit() else (name, extent)
                )
                if not same(extent, known):
                    raise ValueError(f"dim {dim} is {extent} in {name} and {known} in {other}")
            leads.append(shape[:lead])
        loops = leads[self.inputs]
        return [
            self._of_one(name, lead, loops, k >= self.inputs, same)
            for k, (name, lead) in enumerate(zip(names, leads, strict=True))
        ]

    def _of_one(
        self, name: str, lead: tuple[Any, ...], loops: tuple[Any, ...], writes: bool,
        same: Callable[[Any, Any], bool],
    ) -> tuple[int, ...]:
        first = len(loops) - len(lead)
        if first < 0 or (writes and first):
            raise ValueError(f"{name} has {len(lead)} loop dims, and the first output {len(loops)}")
        out = []
        for k, extent in enumerate(lead, first):
            if same(extent, loops[k]):
                out.append(k)
            elif not writes and same(extent, 1):
                out.append(ONLY)
            else:
                raise ValueError(
                    f"loop dim {k} is {extent} in {name} and {loops[k]} in the first output"
                )
        return tuple(out)


def parse(text: str) -> Signature:
    """Return the signature in a text; raise ValueError where it is none."""
    if not isinstance(text, str) or not re.fullmatch(rf"(?:{_LIST}|\s*)->{_LIST}", text):
        raise ValueError(repr(text))
    sides = [
        [tuple(re.findall(r"\w+", dims)) for dims in re.findall(_DIMS, side)]
        for side in text.split("->")
    ]
    return Signature(text, (*sides[0], *sides[1]), len(sides[0]))


def call(
    function: Callable[..., Any], args: Sequence[Any], follows: Follows, writes: Sequence[bool]
) -> None:
    """Call the function on NumPy arrays and numbers, once for every iteration of the loops."""
    extents: dict[int, int] = {}
    for x, dims in zip(args, follows, strict=True):
        for k, extent in zip(dims or (), np.shape(x)):
            if k != ONLY:
                extents[k] = extent
    for turn in np.ndindex(*(extents[k] for k in range(len(extents)))):
        function(*(
            x if dims is None else _turn(x, dims, turn, written)
            for x, dims, written in zip(args, follows, writes, strict=True)
        ))


def _turn(x: Any, dims: tuple[int, ...], turn: tuple[int, ...], written: bool) -> Any:
    """Return the argument of one call. An output of single elements arrives as an array of one."""
    index: tuple[Any, ...] = tuple(0 if k == ONLY else turn[k] for k in dims)
    if not written or x.ndim > len(dims):
        return x[index] if isinstance(x, np.ndarray) else x
    if not index:
        return x.reshape(1)
    return x[(*index[:-1], slice(index[-1], index[-1] + 1))]
