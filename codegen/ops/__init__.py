"""The vocabulary: every op kind is one class, with its fields and its rules, in a file per family.

Always holds: no kind imports a pass: a pass asks a kind for a rule and passes it an object with the
methods that the rule may use; rules.py has a protocol for each.
"""

from __future__ import annotations

from codegen.ops.batches import Feeding, More, Send, Take
from codegen.ops.control import Branch, Control, Defined, Let, Loop, Relayout, ShardMap
from codegen.ops.convolutions import Convolve
from codegen.ops.edges import Edge
from codegen.ops.effects import POSITION, Expect, Point, Print, Save
from codegen.ops.exchanges import Barrier, Exchange, Fold, Move, Permute
from codegen.ops.kernels import Kernel
from codegen.ops.kind import Kind
from codegen.ops.lapack import Cholesky, Lu, LuSolve, Swapped, Triangular
from codegen.ops.lookups import DynamicSlice, DynamicUpdate, Gather, Scatter
from codegen.ops.maps import Map
from codegen.ops.matmul import MatMul
from codegen.ops.order import Count, Merge, Partition, SearchSorted
from codegen.ops.reductions import ArgReduce, ArgSort, Cumulative, Reduce, Sort
from codegen.ops.reshapes import Again, Constant, Named, OnceAtZero, Reshape
from codegen.ops.sources import Const, Full, Iota, RunScalar, Symbolic
from codegen.ops.spectra import Eig, Eigh, Qr, Svd
from codegen.ops.transforms import Fourier
from codegen.ops.views import Broadcast, Diagonal, Roll, Slice, Transpose, Update

__all__ = [
    "OPS", "POSITION", "Again", "ArgReduce", "ArgSort", "Barrier", "Branch", "Broadcast",
    "Cholesky", "Const", "Constant", "Control", "Convolve", "Count", "Cumulative", "Defined",
    "Diagonal", "DynamicSlice", "DynamicUpdate", "Edge", "Eig", "Eigh", "Exchange", "Expect",
    "Feeding", "Fold", "Fourier", "Full", "Gather", "Iota", "Kernel", "Kind", "Let", "Loop", "Lu",
    "LuSolve", "Map", "MatMul", "Merge", "More", "Move", "Named", "OnceAtZero", "Partition",
    "Permute", "Point", "Print", "Qr", "Reduce", "Relayout", "Reshape", "Roll", "RunScalar",
    "Save", "Scatter", "SearchSorted", "Send", "ShardMap", "Slice", "Sort", "Svd", "Swapped",
    "Symbolic", "Take", "Transpose", "Triangular", "Update",
]

OPS: dict[str, type[Kind]] = {
    kind.name: kind
    for kind in (
        Const, Full, Iota, Symbolic, RunScalar, Map, Broadcast, Slice, Transpose, Diagonal,
        Reshape, Constant, Again, Named, OnceAtZero, Roll, Update, DynamicSlice, DynamicUpdate,
        Gather, Scatter, Reduce, Edge, ArgReduce, Cumulative, MatMul, Convolve, Sort, ArgSort,
        Merge, Partition, Count, SearchSorted, Cholesky, Lu, LuSolve, Swapped, Triangular, Qr, Svd,
        Eigh, Eig, Fourier, Kernel, Permute, Move, Fold, Barrier, Print, Expect, Point, Save, Take,
        More, Send, Loop, Let, Branch, Relayout, ShardMap, Defined,
    )
}
