"""The op that calls a user's kernel."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from codegen import dtypes, gufunc
from codegen.ir import cuts
from codegen.ir.cuts import Window
from codegen.ir.graph import ArrayType, Op, Value
from codegen.ir.indexing import loop_vars, positions
from codegen.ir.plan import Argument, KernelCall
from codegen.ops.kind import Array, Eval, Stated, extents
from codegen.ops.rules import BatchBuilder, CheckBuilder, LoopBuilder, Shards, Values
from codegen.ops.views import Broadcast

# Of an operand, per dim: the result and its dim that a part goes with, and ghost cells; None: whole
Along = tuple[tuple[int, int, int] | None, ...]


@dataclass(frozen=True)
class Kernel(Stated):
    """Call a user's kernel.

    args: for each parameter ("in", operand), ("out", (result, operand with whose elements it
    begins, or None: with any content)), ("own", …): as "out", for an input that the kernel
    overwrites, ("expr", Expr), ("start", dims) or ("starts", Exprs). follows: for each parameter,
    the loops over its leading dims, one call per iteration. along: for each operand, the dims of
    which the kernel needs only a part. apart: each rank computes its own parts of the results, and
    does not call the kernel for empty ones."""

    name = "kernel"
    has_room = False
    held = True
    kernel: Any
    args: tuple[tuple[str, Any], ...]
    types: tuple[ArrayType, ...]
    follows: gufunc.Follows = ()
    along: tuple[Along, ...] = ()
    apart: bool = False

    def title(self) -> str:
        return f"kernel {self.kernel.name}"

    @property
    def without_vjp(self) -> str:  # type: ignore[override]
        name = self.kernel.name
        return f"{name}.defvjp(back) says its way back: back(*arguments, *cotangents)"

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        holds = builder.map("isfinite", value)
        for v in op.operands:
            if v.type.dtype.kind in "fc":
                was = builder.any_of(builder.not_finite(v), range(v.type.ndim))
                wide = builder.emit(Broadcast((), value.type.shape), (was,))
                holds = builder.map("logical_or", holds, wide if value.type.ndim else was)
        return holds

    def needs(self, op: Op, window: Window, shards: Shards) -> list[Window]:
        """Return the parts of the operands that a kernel reads for a rank's blocks of its
        results."""
        return [
            tuple(
                cuts.whole(extent) if along is None
                else cuts.widened(cuts.home(op.results[along[0]])[along[1]], along[2])
                for extent, along in zip(v.type.shape, dims, strict=True)
            )
            for v, dims in zip(op.operands, self.along, strict=True)
        ]

    def depends(self, op: Op, window: Window, shards: Shards) -> list[Window | None]:
        """Return the whole of each operand's part: the user asserts that the kernel may be called
        on parts."""
        return [*super().needs(op, window, shards)]

    def batch(self, op: Op, stacked: Values, batch: BatchBuilder) -> Sequence[Value]:
        """Call the kernel for each member: their dim is one more loop, before those of its
        signature."""
        begun = {k for role, content in self.args if role in ("out", "own") for k in content[1:]}
        operands = [batch.spread(v) if g is None and (k in begun or self._loops_of(k)) else g or v
                    for k, (v, g) in enumerate(zip(op.operands, stacked))]
        own = [g is not None or x is not v for v, g, x in zip(op.operands, stacked, operands)]
        follows: list[tuple[int, ...] | None] = []
        for (role, content), loops in zip(self.args, self.follows or [None] * len(self.args)):
            has = role in ("out", "own") or (role == "in" and own[content])
            deeper = None if loops is None else tuple(k + (k != gufunc.ONLY) for k in loops)
            follows.append((0, *(deeper or ())) if has else deeper)
        args = tuple((role, _deeper(content) if role == "start" else content)
                     for role, content in self.args)
        along = tuple(
            (((0, 0, 0),) if has else ()) + tuple(a and (a[0], a[1] + 1, a[2]) for a in dims)
            for has, dims in zip(own, self.along))
        kind = self.but(args=args, types=tuple(map(batch.stacked, self.types)),
                        follows=tuple(follows), along=along)
        return batch.emit_all(kind, *operands)

    def _loops_of(self, operand: int) -> bool:
        """Return whether an operand has leading dims over which the calls loop."""
        return any(loops for arg, loops in zip(self.args, self.follows)
                   if arg == ("in", operand))

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        """Run the user's Python function on contiguous copies; 0-d operands arrive as scalars.
        Outputs that it declares to fill hold a pattern before."""
        outs = [
            np.full(extents(t.shape, value), 85, np.uint8).astype(dtypes.numpy_dtype(t.dtype))
            for t in self.types
        ]
        args: list[Any] = []
        for role, content in self.args:
            if role == "in":
                x = operands[content]
                args.append(x[()] if x.ndim == 0 else np.array(x, order="C"))
            elif role in ("out", "own"):
                j, begins = content
                if begins is not None:
                    outs[j] = np.array(operands[begins], order="C")
                args.append(outs[j])
            elif role == "expr":
                args.append(value(content))
            else:  # of a whole array, places are 0
                first = tuple(0 if role == "start" else value(e) for e in content)
                args.append(first if len(first) > 1 else first[0])
        if not self.apart or all(x.size for x in outs):
            writes = [role == "out" for role, _ in self.args]
            function = getattr(self.kernel, "function", self.kernel)
            gufunc.call(function, args, self.follows or [None] * len(args), writes)
        return outs

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        arguments: list[Argument[Value]] = []
        signature: list[gufunc.Parameter] = []
        follows = self.follows or [None] * len(self.args)
        for (role, content), loops in zip(self.args, follows, strict=True):
            if role in ("out", "own"):
                j, begins = content
                v = op.results[j]
                if begins is not None:
                    index = positions(loop_vars(v.type.shape))
                    builder.store(v, builder.node(op.operands[begins], index), op)
                arguments.append(Argument(v, v.type.dtype, v.type.shape, True))
                apart = role == "out" and self.apart
                signature.append(
                    gufunc.Parameter(v.type.dtype, v.type.ndim, role == "out", loops, apart)
                )
            elif role == "in":
                v = op.operands[content]
                if v.type.ndim:
                    lies, offset = builder.contiguous(v)
                    arguments.append(Argument(lies, v.type.dtype, v.type.shape, offset=offset))
                else:
                    arguments.append(Argument(builder.node(v, ()), v.type.dtype))
                signature.append(gufunc.Parameter(v.type.dtype, v.type.ndim, False, loops))
            else:
                numbers = content if role == "starts" else (content,)
                arguments += [Argument(e, dtypes.INT64) for e in numbers]
                many = len(numbers) if len(numbers) > 1 else 0
                signature.append(gufunc.Parameter(dtypes.INT64, 0, False, loops, many=many))
        symbol = builder.kernel(self.kernel, tuple(signature))
        builder.add(KernelCall(symbol, tuple(arguments), op.place))


def _deeper(dims: tuple[tuple[int, int] | None, ...]) -> tuple[tuple[int, int] | None, ...]:
    """Return (result, dim) pairs for results that have one more dim, the first."""
    return tuple(d and (d[0], d[1] + 1) for d in dims)
