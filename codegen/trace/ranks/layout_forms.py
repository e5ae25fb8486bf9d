"""Layouts and mesh axes as the user writes them, made into codegen.mesh's form and checked.

An axis is a name of the program's mesh, a tuple of names taken as one (row-major), or a mesh that
`spmd.mesh("ring")` named. A layout has one entry per dim.
Always holds: what is returned names axes of the mesh only, each at most once.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from codegen.errors import LayoutError
from codegen.ir.graph import layout_text
from codegen.ir.graph_text import axes_text
from codegen.mesh import Layout, LayoutEntry, Mesh, Owned
from codegen.trace.context import Context
from codegen.trace.number import DimNumber
from codegen.user.dims import BoundedDim, Dim
from codegen.user.layout_trees import MeshName, is_layout, replicated

_NAMED = (Dim, DimNumber, BoundedDim)


def by_rules(context: Context, shape: Any, spec: Any) -> Any:
    """Return the layout that the program's rules give the named dims of a shape; spec where it is
    one."""
    items = shape if isinstance(shape, (tuple, list)) else (shape,)
    dims = {i.name: None for i in items if isinstance(i, _NAMED)}
    context.named_dims |= dims
    if (spec is not None and spec != "auto") or not dims.keys() & context.rules.keys():
        return spec if spec != "auto" else None
    return tuple(context.rules.get(i.name) if isinstance(i, _NAMED) else None for i in items)


def axes_of(context: Context, axis: Any, function: str) -> tuple[str, ...]:
    """Return the program's mesh axes that an axis argument means, in the order given."""
    if isinstance(axis, MeshName):
        return axis.axes
    if isinstance(axis, str):
        if axis in context.mesh.names:
            return (axis,)
        if axis in context.mesh_names:
            return context.mesh_names[axis]
    elif isinstance(axis, (tuple, list)) and axis:
        out = tuple(n for a in axis for n in axes_of(context, a, function))
        if len(set(out)) == len(out):
            return out
        raise LayoutError(f"{function}: an axis stands twice in {axis!r}",
                          expected="each axis once", found=repr(axis))
    named = "".join(f', "{n}"' for n in context.mesh_names)
    raise LayoutError(f"{function}: {axis!r} is not an axis of this program's mesh",
                      expected=f"one of {axes_text(context.mesh.names)}{named}, or a tuple of them",
                      found=repr(axis),
                      remedy='mesh=("x", "y") of @spmd.program, or of spmd.entity, names the axes')


def layout_of(context: Context, spec: Any, ndim: int, subject: str, pad: bool = False) -> Layout:
    """Return a layout for an array of so many dims. None, "auto" and spmd.replicated: replicated.

    pad: missing entries at the end are None, as in JAX's partition specs.
    """
    if spec is None or spec is replicated or (spec == "auto" and "auto" not in context.mesh.names):
        return ((),) * ndim
    if isinstance(spec, (str, MeshName)):
        spec = (spec,)
    if not is_layout(spec):
        raise LayoutError(f"{subject}: {spec!r} is not a layout",
                          expected="one entry per dim: a mesh axis, None, or a tuple of mesh axes",
                          found=repr(spec),
                          remedy=f"axes are {axes_text(context.mesh.names)}")
    entries = [e or () if e is None or isinstance(e, Owned) else axes_of(context, e, subject)
               for e in spec]
    if all(not e for e in entries):
        return ((),) * ndim
    if pad and len(entries) < ndim:
        entries += [()] * (ndim - len(entries))
    _check(context.mesh, entries, ndim, spec, subject)
    return tuple(entries)


def _check(mesh: Mesh, entries: Sequence[LayoutEntry], ndim: int, spec: Any, subject: str) -> None:
    if len(entries) != ndim:
        nearest = (*entries, *[()] * ndim)[:ndim]
        raise LayoutError(
            f"{subject}: a layout has one entry per dim",
            expected=f"{ndim} entries for an array of {ndim} dims",
            found=f"{len(entries)} in {spec!r}",
            remedy=f"layout={layout_text(tuple(nearest))}" if ndim or subject != "out_layouts" else
            "return value[None] to join one number of each rank; out_layouts=() is for one number "
            "that is the same on all of them",
        )
    seen: set[str] = set()
    nearest_legal: list[LayoutEntry] = []
    double = ""
    for entry in entries:
        repeated = [a for a in entry if a in seen]
        double = double or (repeated[0] if repeated else "")
        nearest_legal.append(tuple(a for a in entry if a not in seen))
        seen.update(entry)
    if double:
        raise LayoutError(
            f'{subject}: axis "{double}" splits two dims, so each rank would hold only the blocks '
            "on the diagonal and the others would be lost",
            expected="each mesh axis in one place at most", found=repr(spec),
            remedy=f"layout={layout_text(tuple(nearest_legal))}",
        )
