"""Layouts as users write them: for one array, or in a tree for the arrays of a tree."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen.errors import LayoutError
from codegen.user import pytree


class _Replicated:
    """The layout spmd.replicated, by which every rank holds the whole array."""

    def __repr__(self) -> str:
        return "spmd.replicated"


replicated = _Replicated()


@dataclass(frozen=True)
class MeshName:
    """Another mesh over the same ranks: one dim, all ranks in the order of their index."""

    name: str
    axes: tuple[str, ...]


def is_layout(spec: Any) -> bool:
    """Return whether a spec is one layout, not several: a tuple of axes, Nones and tuples of axes;
    or None, a name."""
    if spec is None or spec is replicated or isinstance(spec, (str, MeshName)):
        return True
    return isinstance(spec, (tuple, list)) and all(
        e is None or isinstance(e, (str, MeshName))
        or (isinstance(e, tuple) and e != () and all(isinstance(a, (str, MeshName)) for a in e))
        for e in spec
    )


def _several(spec: Any, count: int, ndims: Sequence[int]) -> list[Any] | None:
    """Return one layout per item where `spec` is a tuple of them; None where it is one layout for
    all."""
    if not isinstance(spec, (tuple, list)):
        return None
    flat = all(e is None or isinstance(e, str) for e in spec)
    fits = is_layout(spec) and all(n == len(spec) for n in ndims)
    if count == 1 and len(spec) == 1 and not flat and not fits:
        return list(spec)
    if count > 1 and len(spec) == count and not (flat and spec):
        return list(spec)
    if count > 1 and flat and all(e is None for e in spec) and len(spec) == count:
        return list(spec)
    if is_layout(spec):
        return None
    if len(spec) != count:
        raise LayoutError("the number of layouts is not the number of arrays",
                          expected=f"{count} layouts, or one for all",
                          found=f"{len(spec)} in {spec!r}")
    return list(spec)


def spread(spec: Any, item: Any) -> list[Any]:
    """Return one layout spec per leaf of a pytree, from a spec that may stop at an inner node."""
    if isinstance(item, dict):
        if isinstance(spec, dict):
            missing = [k for k in item if k not in spec]
            if missing:
                raise LayoutError(f"no layout for {missing[0]!r}",
                                  expected=f"layouts for {', '.join(map(repr, item))}",
                                  found=", ".join(map(repr, spec)))
            return [s for k, x in item.items() for s in spread(spec[k], x)]
        return [s for x in item.values() for s in spread(spec, x)]
    if isinstance(item, (tuple, list)):
        ndims = [x.ndim if hasattr(x, "ndim") else np.ndim(x) for x in pytree.leaves(item)]
        several = _several(spec, len(item), ndims)
        specs = [spec] * len(item) if several is None else several
        return [s for entry, x in zip(specs, item) for s in spread(entry, x)]
    return [spec]
