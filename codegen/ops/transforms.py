"""The op that transforms every lane along a dim by Fourier's sum, with the loops of NumPy's ufuncs.

Those need no Python, and take lanes at any strides; lanes that are far from contiguous are copied
together first, some at a time, so that whole cache lines are read and written.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import numpy as np

from codegen import dtypes
from codegen.dtypes import DType
from codegen.errors import InternalError
from codegen.ir.graph import ArrayType, Op, Value
from codegen.ir.indexing import affine, loop_vars, positions, strides
from codegen.ir.plan import Caller, Load, Part
from codegen.library_routines import named_in
from codegen.ops.kind import Array, Eval, Types, layout_of
from codegen.ops.reductions import Lane
from codegen.ops.rules import CheckBuilder, GradientBuilder, LoopBuilder, Values
from codegen.ops.views import Broadcast, Slice, Update
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr

# Of the complex type of a real one, and the other way round.
COMPLEX = {"float32": "complex64", "float64": "complex128"}
REAL = {c: r for r, c in COMPLEX.items()}
# What a transform of n points is multiplied with, as NumPy calls it where it is a forward one.
SCALES = {"one": "backward", "root": "ortho", "n": "forward"}

# A line that is split is transformed in four steps, of which each transforms many short lanes. The
# least length that pays for three exchanges instead of one that gathers, and the least of the two
# factors that it needs: more ranks than this would have no lanes.
FOUR_STEPS, FACTOR = 1 << 14, 32


@dataclass(frozen=True)
class Fourier(Lane):
    """Transform lanes by Fourier's sum. fn: fft or ifft of complex numbers; rfft of real ones to
    the n // 2 + 1 first results; irfft of such ones to n real numbers. scale: 1 for "one", 1 /
    sqrt(n) for "root", 1 / n for "n"."""

    name = "fourier"
    held = True
    reads = "boxes"
    fn: str
    dim: int
    n: Expr
    scale: str = "one"

    @property
    def called(self) -> str:
        return self.fn

    def result_dtype(self, operand: DType) -> DType:
        """Return the element type of the result."""
        names = {"rfft": COMPLEX, "irfft": REAL}.get(self.fn, dict(zip(REAL, REAL)))
        if operand.name not in names:
            raise InternalError(f"{self.fn} of {operand.name}")
        return dtypes.BY_NAME[names[operand.name]]

    def infer(self, types: Types) -> list[ArrayType]:
        (x,), d = types, self.dim
        few = self.n // 2 + 1
        if x.shape[d] != (few if self.fn == "irfft" else self.n):
            raise InternalError(f"{self.fn} of {self.n} points reads {x.shape[d]}")
        extent = few if self.fn == "rfft" else self.n
        return [ArrayType(self.result_dtype(x.dtype), (*x.shape[:d], extent, *x.shape[d + 1 :]))]

    def layout(self, operands: Types, result: ArrayType) -> Iterable[tuple[str, ...]]:
        """Return a layout in which a rank has its lanes whole: the axes that split them split
        another dim, one that is not split yet and the longest if there are several."""
        entries, shape = list(layout_of(operands[0])), result.shape
        moved, entries[self.dim] = entries[self.dim], ()
        others = [d for d in range(result.ndim) if d != self.dim and shape[d] != 1]
        if moved and others:
            into = max(others, key=lambda d: (not entries[d], _length(shape[d]), -d))
            entries[into] = (*entries[into], *moved)
        return entries

    def reference(self, operands: Sequence[Array], value: Eval) -> list[Array]:
        (x,), n = operands, value(self.n)
        inverse = self.fn in ("ifft", "irfft")
        norm = SCALES[self.scale]
        if inverse and norm != "ortho":
            norm = "backward" if norm == "forward" else "forward"
        shape = [*x.shape]
        shape[self.dim] = n // 2 + 1 if self.fn == "rfft" else n
        dtype = dtypes.from_numpy(x.dtype)
        assert dtype is not None
        if x.size == 0 or n == 0:
            return [np.zeros(shape, dtypes.numpy_dtype(self.result_dtype(dtype)))]
        return [getattr(np.fft, self.fn)(x, n, self.dim, norm)]

    def vjp(self, op: Op, cotangents: Values, builder: GradientBuilder) -> Values:
        """Transform the cotangent by the same matrix, which is its own transpose for fft. rfft
        leaves out what is known by symmetry, irfft counts that twice."""
        (g,), d = cotangents, self.dim
        assert g is not None
        if self.fn in ("fft", "ifft"):
            return [builder.emit(self, g)]
        many = tuple(self.n if k == d else e for k, e in enumerate(g.type.shape))
        zeros, ones = (expr.const(0),) * g.type.ndim, (1,) * g.type.ndim
        if self.fn == "rfft":
            whole = builder.emit(Update(zeros, ones), builder.zeros(ArrayType(g.type.dtype, many)),
                                 g)
            return [builder.map("real", builder.emit(self.but(fn="fft"), whole))]
        half = builder.map("conj", builder.emit(self.but(fn="rfft"), g))
        inner = self.n - half.type.shape[d]  # those that stand for two, behind the first one
        shape = tuple(inner if k == d else e for k, e in enumerate(half.type.shape))
        start = tuple(expr.const(int(k == d)) for k in range(g.type.ndim))
        twice = builder.emit(Slice(start, ones, shape), half)
        return [builder.emit(Update(start, ones), half, builder.map("add", twice, twice))]

    def title(self) -> str:
        return "a Fourier transform"

    def finite(self, op: Op, value: Value, builder: CheckBuilder) -> Value | None:
        bad = builder.any_of(builder.not_finite(op.operands[0]), [self.dim])
        kept = tuple(d for d in range(value.type.ndim) if d != self.dim)
        return builder.unless(value, builder.emit(Broadcast(kept, value.type.shape), (bad,)))

    def steps(self, op: Op, builder: LoopBuilder) -> None:
        (x,), result, d = op.operands, op.result, self.dim
        every = loop_vars(x.type.shape)
        node = builder.node(x, positions(every))
        assert isinstance(node, Load), "an operand that is read as a box lies in memory"
        address = affine(node.offset, every)
        assert address is not None, "an operand that is read as a box is strided"
        (begin, step), into = address, strides(result.type.shape)
        others = [(x.type.shape[k], step[k], into[k]) for k in range(x.type.ndim) if k != d]
        outer, (rows, row, to_row) = _batches(others)
        loops = loop_vars(tuple(e for e, _, _ in outer))
        places = positions(loops)
        first = sum((p * a for p, (_, a, _) in zip(places, outer, strict=True)), begin)
        to_first = sum((p * b for p, (_, _, b) in zip(places, outer, strict=True)), expr.const(0))
        numbers = (rows, self.n, row, step[d], to_row, into[d])
        few = expr.minimum(rows, WIDE)
        room = [builder.spare(f"{result.name}_lanes", v.type.dtype, few * (v.type.shape[d] + GAP))
                for v in ((x, result) if self.fn in ("rfft", "irfft") else (x,))]
        parts = (Part(node.buffer, first), Part(result, to_first, True),
                 *(Part(r, expr.const(0), True) for r in room))
        builder.call(self.caller(x.type.dtype), loops, numbers, parts, op)

    def caller(self, operand: DType) -> Caller:
        """Return a C function for lanes at distance `row`, whose elements are `step` apart."""
        result, fn = self.result_dtype(operand), self.fn
        real = operand if operand.kind == "f" else dtypes.BY_NAME[REAL[operand.name]]
        few, through = "n / 2 + 1", fn in ("rfft", "irfft")
        words = {
            "<T>": operand.c, "<U>": result.c, "<R>": real.c, "<wide>": str(WIDE),
            "<gap>": str(GAP),
            "<reads>": few if fn == "irfft" else "n", "<makes>": few if fn == "rfft" else "n",
            "<factor>": {"one": "1", "n": f"1 / ({real.c})n", "root": f"1 / {_ROOT[real.name]}"}[
                self.scale],
            "<turned>": "turned" if through else "lanes",
            "<loop>": "(n % 2 ? <rfft_n_odd> : <rfft_n_even>)" if fn == "rfft" else f"<{fn}>",
            "<data>": "NULL" if through else f"(void *)<{fn} data>",
        }
        takes = ("int64_t rows, int64_t n, int64_t row, int64_t step, int64_t to_row, "
                 "int64_t to_step, const <T> *from, <U> *to, <T> *lanes")
        text, takes = _TEXT, takes + ", <U> *turned" * through
        for word, said in words.items():
            text, takes = text.replace(word, said), takes.replace(word, said)
        text, routines = named_in(text, real)
        return Caller(f"{fn}_{real.name}_{self.scale}", takes, text, routines)


# So many strided lanes are copied together: a few cache lines of each row that they lie in. They
# are so many elements longer than they need be, or all would begin in one set of the cache.
WIDE, GAP = 16, 4

_ROOT = {"float32": "sqrtf((float)n)", "float64": "sqrt((double)n)"}

# An element is moved as bytes: compilers move the parts of a complex number one by one.
_TEXT = """
const int64_t reads = <reads>, makes = <makes>, in = sizeof *from, out = sizeof *to;
<R> factor = <factor>;
void *data = <data>;
char *arrays[] = {(char *)from, (char *)&factor, (char *)to};
if (step == 1 && to_step == 1) {
    <loop>(arrays, (intptr_t[]){rows, reads, makes},
           (intptr_t[]){row * in, 0, to_row * out, in, out}, data);
    return;
}
arrays[0] = (char *)lanes;
arrays[2] = (char *)<turned>;
for (int64_t first = 0; first < rows; first += <wide>) {
    const int64_t some = rows - first < <wide> ? rows - first : <wide>;
    for (int64_t j = 0; j < reads; j += 4)
        for (int64_t k = 0; k < some; k++)
            for (int64_t i = j; i < j + 4 && i < reads; i++)
                memcpy(lanes + k * (reads + <gap>) + i, from + (first + k) * row + i * step, in);
    <loop>(arrays, (intptr_t[]){some, reads, makes},
           (intptr_t[]){(reads + <gap>) * in, 0, (makes + <gap>) * out, in, out}, data);
    for (int64_t j = 0; j < makes; j += 4)
        for (int64_t k = 0; k < some; k++)
            for (int64_t i = j; i < j + 4 && i < makes; i++)
                memcpy(to + (first + k) * to_row + i * to_step,
                       <turned> + k * (makes + <gap>) + i, out);
}
"""


# Of some dims: how long each is, and how far apart its elements lie in an operand and in a result.
_Dims = list[tuple[Expr, Expr, Expr]]


def _batches(dims: _Dims) -> tuple[_Dims, tuple[Expr, Expr, Expr]]:
    """Join dims that lie in memory without gaps. Return the dims to loop over, and the dim that one
    call of the transform covers: one of contiguous lanes if there is one, else the longest."""
    joined: _Dims = []
    for extent, a, b in dims:
        if extent == 1:
            continue
        if joined and joined[-1][1:] == (extent * a, extent * b):
            extent = joined.pop()[0] * extent
        joined.append((extent, a, b))
    if not joined:
        return [], (expr.const(1), expr.const(0), expr.const(0))
    of = max(range(len(joined)), key=lambda k: (joined[k][1] == 1, _length(joined[k][0]), k))
    return joined[:of] + joined[of + 1 :], joined[of]


def _length(e: Expr) -> int:
    """Return the extent as a number; 0 where none is known."""
    return e.value if e.is_const else 0
