"""A kernel's call as an op of the Graph.

Comes out: per parameter ("in", operand), ("out", (result, operand that it begins as)), ("own", …):
a copy of an input that the kernel writes, ("expr", integer) or ("start", dims); and for each
operand the dims along which ranks need a part of it only (`along`: result, dim of it, ghost cells).
Always holds: a result begins as zeros, or as what was in the array, unless the kernel fills it.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from codegen import ops
from codegen.gufunc import ONLY
from codegen.ir.graph import ArrayType, Value
from codegen.mesh import Layout, LayoutEntry
from codegen.ops import Edge, Full, Relayout, Roll
from codegen.symbolic import expr
from codegen.trace.array import Array, Number, as_array, as_value, full_value, wrap
from codegen.trace.context import Context
from codegen.trace.numpy import padding
from codegen.user import windows
from codegen.user.windows import Form, Start

Along = tuple[tuple[int, int, int] | None, ...]


def emit(kernel: Any, context: Context, form: Form, bound: Mapping[str, Any]) -> Any:
    """Emit the call; return the outputs, which it writes."""
    return _Call(kernel, context, form, bound).emit()


class _Call:
    def __init__(self, kernel: Any, context: Context, form: Form, bound: Mapping[str, Any]) -> None:
        self.kernel = kernel
        self.context = context
        self.form = form
        self.bound = bound
        self.operands: list[Value] = []
        self.along: list[Along] = []
        self.own: list[ArrayType] = []
        self.types_before: dict[str, ArrayType] = {}  # arrays as they were before the call

    def emit(self) -> Any:
        arrays = [as_array(self.bound[n]) for n in self.form.outputs]
        self.types_before = {n: a.held.type for n, a in zip(self.form.outputs, arrays, strict=True)}
        args = tuple(self.argument(name, x) for name, x in self.bound.items())
        types = [
            ArrayType(a.type.dtype, a.extents, None if self.context.rank_view else layout)
            for a, layout in zip(arrays, self.layouts(), strict=True)
        ]
        is_global = not self.context.rank_view
        call = ops.Kernel(self.kernel, args, (*types, *self.own),
                          follows=tuple(self.form.follows) if self.kernel.signature else (),
                          along=tuple(self.along) if is_global else (),
                          apart=is_global and bool(self.form.cut))
        names = [self.kernel.name] * len(call.types)
        results = self.context.emit(call, self.operands, names=names)
        for array, value in zip(arrays, results):
            array.write(value)
        return arrays[0] if len(arrays) == 1 else tuple(arrays)

    # ---- arguments -------------------------------------------------------------------------------

    def argument(self, name: str, x: Any) -> tuple[str, Any]:
        if name in self.form.outputs:
            begins = None
            if not self.kernel.reading.fills(name, len(self.form.labels[name])):
                begins = self.operand(name, self.content(as_array(x)))
            return "out", (self.form.outputs.index(name), begins)
        if isinstance(x, Start):
            return "start", self.start(self.form.starts[name])
        if isinstance(x, Number) or type(x) in (bool, int):
            return "expr", x.expr if isinstance(x, Number) else expr.const(int(x))
        array = as_array(x)
        self.types_before[name] = array.read().type
        if name in self.form.halo:
            array = self.with_boundary(name, array)
        k = self.operand(name, as_value(self.context, array))
        if array.ndim and self.kernel.reading.writes(name, len(self.form.labels[name])):
            self.own.append(self.operands[k].type)
            return "own", (len(self.form.outputs) + len(self.own) - 1, k)
        return "in", k

    def operand(self, name: str, value: Value) -> int:
        self.operands.append(value)
        self.along.append(self.dims(name) if value.type.shape else ())
        return len(self.operands) - 1

    def content(self, out: Array) -> Value:
        """Return the value of an output before the call; zeros are made again, which needs no
        memory."""
        value = out.read()
        if _is_zeros(self.context, value):
            shape = value.type.shape
            return full_value(self.context, 0, value.type.dtype, shape)
        return value

    def with_boundary(self, name: str, array: Array) -> Array:
        for d, least, boundary in windows.least(self.form, name):
            have = array.extents[d]
            if expr.nonneg(have - least):
                continue
            text = f'boundary="{boundary}" of {name} wants more than dim {d} has'
            if expr.nonneg(least - 1 - have):
                raise self.kernel.refused(text, f"at least {least} elements", str(have))
            self.context.hold(expr.ge0(have - least), f'kernel "{self.kernel.name}": {text}')
        padded: Array = windows.with_boundary(array, *windows.ghosts(self.form, name), _pad)
        return padded

    def start(self, name: str) -> tuple[tuple[int, int] | None, ...]:
        return tuple(None if d is None else d[:2] for d in self.dims(name))

    # ---- dims ------------------------------------------------------------------------------------

    def dims(self, name: str) -> Along:
        """Return, for each dim of an array, the result and the dim of it that a rank's part
        follows."""
        form = self.form
        mine = form.outputs.index(name) if name in form.outputs else 0
        out = [None if k == ONLY else (mine, k, 0) for k in form.lead(name)]
        for cut in form.cuts(name)[len(out) :]:
            whose = form.outputs[mine]
            out.append(None if cut is None else (mine, form.place(whose, cut[0]), cut[1]))
        return tuple(out)

    def layouts(self) -> list[Layout]:
        """Return the layouts of the results: split where they may be, as the outputs or the inputs
        are."""
        form = self.form
        chosen: dict[Any, LayoutEntry] = {}
        used: set[str] = set()
        for name, before in self.types_before.items():
            if not before.layout or before.free:
                continue
            for entry, key in zip(before.layout, self.keys(name), strict=True):
                if key is not None and entry and key not in chosen and not used & set(entry):
                    chosen[key] = entry
                    used |= set(entry)
        return [
            tuple(() if key is None else chosen.get(key, ()) for key in self.keys(name))
            for name in form.outputs
        ]

    def keys(self, name: str) -> list[Any]:
        """Return, for each dim, a key of the dims that it is cut together with; None where it is
        not cut."""
        form = self.form
        loops = [None if k == ONLY else ("loop", k) for k in form.lead(name)]
        return loops + [cut and ("dim", cut[0]) for cut in form.cuts(name)[len(loops) :]]


def _is_zeros(context: Context, value: Value) -> bool:
    defining_ops = (op for block in context.blocks for op in block.ops if value in op.results)
    op = next(defining_ops, None)
    if op is not None and isinstance(op.kind, Relayout):
        return _is_zeros(context, op.operands[0])
    return op is not None and isinstance(op.kind, Full) and bool(op.kind.value == 0)


def _pad(x: Array, widths: list[tuple[int, int]], mode: str, **more: Any) -> Array:
    """Pad an array as np.pad does, by ops that ranks compute from their own parts and ghost
    cells."""
    if mode == "constant":
        padded: Array = padding.pad(x, widths, mode, **more)
        return padded
    context, value = x.context, x.read()
    if mode == "edge":
        return wrap(context, context.emit_one(Edge(widths=tuple(widths)), value))
    for d, (before, after) in enumerate(widths):
        if before or after:
            extent = x.extents[d] + before + after
            value = context.emit_one(Roll(dim=d, shift=expr.const(before), extent=extent), value)
    return wrap(context, value)
