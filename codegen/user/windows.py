"""halo= and boundary= of a kernel's call: the dims along which ranks compute their own parts.

Goes in: what the user wrote. Comes out: per input and dim the ghost cells before and behind, or
None where the kernel gets the whole dim; and the input with its boundary around it.
"""

from __future__ import annotations

import numbers
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any

from codegen.errors import KernelError
from codegen.gufunc import Follows

Sides = tuple[int, int]
Halo = tuple[Sides | None, ...]
Box = Mapping[Any, tuple[int, int]]  # of labels, the first element and the one after the last

@dataclass(frozen=True)
class Start:
    """An argument of a kernel, spmd.start(u), that stands for a place in u."""

    array: Any


@dataclass(frozen=True)
class Form:
    """The meaning of a call for the dims of its arrays, by the names of parameters.

    labels: of the dims that the function sees; equal ones are cut alike. halo, boundary: of inputs.
    """

    names: tuple[str, ...]
    outputs: tuple[str, ...]
    follows: Follows
    labels: Mapping[str, tuple[Any, ...]]
    halo: Mapping[str, Halo]
    boundary: Mapping[str, list[Any]]
    starts: Mapping[str, str]  # parameters that are given a Start, of which array

    def lead(self, name: str) -> tuple[int, ...]:
        """Return which loops the leading dims follow."""
        return self.follows[self.names.index(name)] or ()

    @cached_property
    def cut(self) -> list[Any]:
        """The labels along which ranks compute their own parts."""
        pairs = (zip(self.labels[n], halo, strict=True) for n, halo in self.halo.items())
        return list(dict.fromkeys(x for p in pairs for x, sides in p if sides is not None))

    def place(self, name: str, label: Any) -> int:
        """Return the dim of an array that has this label."""
        return len(self.lead(name)) + self.labels[name].index(label)

    def cuts(self, name: str) -> list[tuple[Any, int] | None]:
        """Return per dim of an array: along which label it is cut, and how many ghost cells it
        has."""
        out: list[tuple[Any, int] | None] = [None] * len(self.lead(name))
        halo = self.halo.get(name, (None,) * len(self.labels[name]))
        for label, sides in zip(self.labels[name], halo, strict=True):
            if name in self.outputs and label in self.cut:
                sides = (0, 0)
            out.append(None if sides is None else (label, sum(sides)))
        return out

    def first(self, name: str, box: Box) -> int | tuple[int, ...]:
        """Return the position at which a part of an array begins: one integer for one dim, else a
        tuple."""
        start = tuple(box[c[0]][0] if c and c[0] in box else 0 for c in self.cuts(name))
        return start if len(start) > 1 else start[0]

    def slices(self, name: str, box: Box) -> tuple[slice, ...]:
        """Return a part of an array, with its ghost cells."""
        return tuple(
            slice(box[c[0]][0], box[c[0]][1] + c[1]) if c and c[0] in box else slice(None)
            for c in self.cuts(name)
        )


_MODES = {"edge": "edge", "wrap": "wrap", "zero": "constant"}
_SPELLING = 'halo={"u": (1, 1)}: one entry per dim, an integer, (before, behind) or None'


def halos(kernel: str, halo: Any, dims: Mapping[str, int], outputs: Sequence[str]) -> dict[
    str, Halo
]:
    """Return the ghost cells of each input, by name. dims: how many dims the kernel sees of each
    array. Raise an error for inputs that the kernel does not have."""
    if halo is None:
        return {}
    if not isinstance(halo, Mapping):
        raise _refused(kernel, "halo= is a dict by the names of inputs", _SPELLING, repr(halo))
    for name in halo:
        if name not in dims or name in outputs:
            role = "an output" if name in outputs else f"no array that {kernel} is given"
            inputs = ", ".join(n for n in dims if n not in outputs) or "no input"
            raise _refused(kernel, f"halo= names {name!r}, which is {role}", inputs, repr(halo))
    return {name: _halo(kernel, name, entries, dims[name]) for name, entries in halo.items()}


def _halo(kernel: str, name: str, entries: Any, ndim: int) -> Halo:
    if entries is None or isinstance(entries, numbers.Integral):
        entries = (entries,) * ndim
    if not isinstance(entries, (tuple, list)) or len(entries) != ndim:
        raise _refused(kernel, f"halo= of {name} has not one entry per dim",
                       f"{ndim} entries, as in {_SPELLING}", repr(entries))
    return tuple(e if e is None else _sides(kernel, name, e) for e in entries)


def _sides(kernel: str, name: str, entry: Any) -> Sides:
    pair = tuple(entry) if isinstance(entry, (tuple, list)) else (entry, entry)
    if len(pair) != 2 or not all(isinstance(w, numbers.Integral) and int(w) >= 0 for w in pair):
        raise _refused(kernel, f"halo= of {name} is not a number of ghost cells",
                       f"integers of at least 0, as in {_SPELLING}", repr(entry))
    return int(pair[0]), int(pair[1])


def boundaries(kernel: str, boundary: Any, wanted: Mapping[str, Halo]) -> dict[str, list[Any]]:
    """Return, by input and dim, "edge", "wrap", or the number that stands beyond the ends."""
    wide = any(sides and any(sides) for halo in wanted.values() for sides in halo)
    if boundary is None and wide:
        raise _refused(kernel, "halo= without boundary=: what stands beyond the ends of the array?",
                       '"zero", "edge", "wrap", or a number', "boundary=None")
    if isinstance(boundary, Mapping) and (unknown := set(boundary) ^ set(wanted)):
        raise _refused(kernel, f"boundary= and halo= differ in {sorted(unknown)[0]!r}",
                       "one boundary for all, or one for each name in halo=",
                       repr(boundary))
    out = {}
    for name, halo in wanted.items():
        mine = boundary[name] if isinstance(boundary, Mapping) else boundary
        each = list(mine) if isinstance(mine, (tuple, list)) else [mine] * len(halo)
        if len(each) != len(halo):
            raise _refused(kernel, f"boundary= of {name} has not one entry per dim",
                           f"{len(halo)} entries, or one for all", repr(mine))
        out[name] = [_boundary(kernel, b) for b in each]
    return out


def _boundary(kernel: str, boundary: Any) -> Any:
    if boundary is None or (isinstance(boundary, str) and boundary == "zero"):
        return 0
    if isinstance(boundary, str) and boundary not in _MODES:
        raise _refused(kernel, f"{boundary!r} is not a boundary",
                       '"zero", "edge", "wrap", or a number', repr(boundary))
    return boundary


def with_boundary(x: Any, halo: Halo, boundary: Sequence[Any], pad: Callable[..., Any]) -> Any:
    """Return x with ghost cells around it; pad: np.pad, or ours. Corners are as np.pad's, which
    goes from dim to dim."""
    none: Sides = (0, 0)
    widths = [sides or none for sides in halo]
    todo = [d for d, sides in enumerate(widths) if any(sides)]
    while todo:
        same = [d for d in todo if _alike(boundary[d], boundary[todo[0]])]
        same = same if same == todo else todo[:1]
        now = [widths[d] if d in same else none for d in range(len(widths))]
        b = boundary[same[0]]
        if isinstance(b, str):
            x = pad(x, now, mode=_MODES[b])
        else:
            x = pad(x, now, mode="constant", constant_values=b)
        todo = [d for d in todo if d not in same]
    return x


def _alike(a: Any, b: Any) -> bool:
    return a is b or (isinstance(a, str) and isinstance(b, str) and a == b)


def _refused(kernel: str, text: str, expected: str, found: str) -> KernelError:
    return KernelError(f'kernel "{kernel}": {text}', expected=expected, found=found)


def ghosts(form: Form, name: str) -> tuple[Halo, list[Any]]:
    """Return halo and boundary of an input for all its dims, also those that are looped over."""
    lead = len(form.lead(name))
    return (None,) * lead + form.halo[name], [0] * lead + form.boundary[name]


def least(form: Form, name: str) -> list[tuple[int, int, str]]:
    """Return the dims of an input that its boundary is made of: dim, elements that it needs,
    boundary."""
    out = []
    for d, (sides, b) in enumerate(zip(*ghosts(form, name), strict=True)):
        if isinstance(b, str) and sides and any(sides):
            out.append((d, max(sides) if b == "wrap" else 1, b))
    return out
