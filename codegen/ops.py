"""The vocabulary: every op kind is one row of OPS, with its attributes and its shape rule.

Reference rules (NumPy) live beside the oracles, C rules beside the emitter, under the same kind.
Always holds: `infer` gives the types of an op's results from its operands' types and attrs alone;
Exprs in attrs are in the view of the rank that executes the op.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from codegen import dtypes, expr
from codegen.errors import InternalError
from codegen.functions import FUNCTIONS
from codegen.ir import ArrayType, Shape

POSITION = "@"  # a spec of an `expect`: where the element is

Types = Sequence[ArrayType]
Attrs = Mapping[str, Any]


@dataclass(frozen=True)
class OpRule:
    """attrs: the names an op of this kind carries. group: what passes ask of a kind.

    group: source, map, view, update, reduce, compute, exchange, effect, control.
    """

    kind: str
    group: str
    attrs: tuple[str, ...]
    infer: Callable[[Types, Attrs], list[ArrayType]]
    doc: str


def _given(_: Types, attrs: Attrs) -> list[ArrayType]:
    return [ArrayType(attrs["dtype"], tuple(attrs["shape"]))]


def _same(types: Types, _: Attrs) -> list[ArrayType]:
    return [ArrayType(types[0].dtype, types[0].shape)]


def _map(types: Types, attrs: Attrs) -> list[ArrayType]:
    fn = FUNCTIONS[attrs["fn"]]
    for t in types[1:]:
        if t.shape != types[0].shape:
            raise InternalError(f"map {fn.name}: shapes {types[0]} and {t} differ")
    if fn.name == "cast":
        return [ArrayType(attrs["dtype"], types[0].shape)]
    if fn.name == "select":
        return [ArrayType(types[1].dtype, types[0].shape)]
    return [ArrayType(fn.result_dtype(types[0].dtype), types[0].shape)]


def _reshaped(types: Types, attrs: Attrs) -> list[ArrayType]:
    return [ArrayType(types[0].dtype, tuple(attrs["shape"]))]


def _rolled(types: Types, attrs: Attrs) -> list[ArrayType]:
    shape = list(types[0].shape)
    shape[attrs["dim"]] = attrs.get("extent", shape[attrs["dim"]])
    return [ArrayType(types[0].dtype, tuple(shape))]


def _wider(types: Types, attrs: Attrs) -> list[ArrayType]:
    pairs = zip(types[0].shape, attrs["widths"], strict=True)
    return [ArrayType(types[0].dtype, tuple(e + before + after for e, (before, after) in pairs))]


def _transpose(types: Types, attrs: Attrs) -> list[ArrayType]:
    return [ArrayType(types[0].dtype, tuple(types[0].shape[d] for d in attrs["perm"]))]


def _dropped(shape: Shape, dims: Sequence[int]) -> Shape:
    return tuple(e for d, e in enumerate(shape) if d not in dims)


def _reduce(types: Types, attrs: Attrs) -> list[ArrayType]:
    return [ArrayType(types[0].dtype, _dropped(types[0].shape, attrs["dims"]))]


def _argreduce(types: Types, attrs: Attrs) -> list[ArrayType]:
    return [ArrayType(dtypes.INT64, _dropped(types[0].shape, (attrs["dim"],)))]


def _argsort(types: Types, _: Attrs) -> list[ArrayType]:
    return [ArrayType(dtypes.INT64, types[0].shape)]


def _matmul(types: Types, _: Attrs) -> list[ArrayType]:
    a, b = types
    return [ArrayType(a.dtype, (*a.shape[:-1], b.shape[-1]))]


def _gather(types: Types, attrs: Attrs) -> list[ArrayType]:
    x, index = types[0], types[1]
    dims = attrs["dims"]
    rest = _dropped(x.shape, dims)
    at = attrs["at"]
    return [ArrayType(x.dtype, (*rest[:at], *index.shape, *rest[at:]))]


def _stated(_: Types, attrs: Attrs) -> list[ArrayType]:
    return list(attrs["types"])


def _carried(types: Types, _: Attrs) -> list[ArrayType]:
    return list(types)


def _nothing(_: Types, __: Attrs) -> list[ArrayType]:
    return []


_ROWS = (
    # -- sources -----------------------------------------------------------------------------------
    OpRule("const", "source", ("data",), lambda t, a: [_const_type(a)],
           "a NumPy array in the image"),
    OpRule("full", "source", ("value", "dtype", "shape", "blank?"), _given,
           "a Python number everywhere; blank: it need not be written, since updates replace all"),
    OpRule("iota", "source", ("dim", "dtype", "shape"), _given, "0, 1, 2 … along a dim (local)"),
    OpRule("expr", "source", ("value", "dtype"), lambda t, a: [ArrayType(a["dtype"], ())],
           "a symbolic integer as a 0-d array"),
    OpRule("scalar", "source", ("name", "dtype"), lambda t, a: [ArrayType(a["dtype"], ())],
           "a run-time scalar as a 0-d array"),
    # -- element by element ------------------------------------------------------------------------
    OpRule("map", "map", ("fn", "dtype?"), _map,
           "FUNCTIONS[fn] of operands of one shape; cast has dtype"),
    # -- views: another index map of the operand, no work of their own -----------------------------
    OpRule("broadcast", "view", ("dims", "shape"), _reshaped,
           "dims[k]: the result dim of operand dim k (increasing); a 1 may stretch"),
    OpRule("slice", "view", ("start", "step", "shape", "cut?"), _reshaped,
           "result[j] = operand[start + step * j]; start Exprs, step ints (not 0), in bounds; "
           "cut: by the arithmetic of codegen.layouts.cuts"),
    OpRule("transpose", "view", ("perm",), _transpose, "result dim d is operand dim perm[d]"),
    OpRule("reshape", "view", ("shape",), _reshaped, "the same elements in row-major order"),
    OpRule("roll", "view", ("dim", "shift", "extent?"), _rolled,
           "Graph level: result[j] = operand[(j - shift) mod its extent] along dim; extent: of the "
           "result, where it is another one"),
    # -- writes: the operand with something replaced -----------------------------------------------
    OpRule("update", "update", ("start", "step", "cut?", "apart?"), _same,
           "x with x[start + step * j] = v[j]; operands x, v; always in bounds; apart: of updates "
           "that make an array of a blank one, no two have an element in common"),
    # -- indices known only at run time; reads are clamped, writes beyond the ends dropped ---------
    OpRule("dynamic_slice", "compute", ("shape",), _reshaped,
           "operands x, one 0-d int64 start per dim, clamped so that the box fits; else zeros"),
    OpRule("dynamic_update", "update", (), _same,
           "operands x, v, starts; elements that fall outside x are dropped"),
    OpRule("gather", "compute", ("dims", "at"), _gather,
           "operands x, index arrays of one shape for dims; they stand at `at` in the result"),
    OpRule("scatter", "update", ("dims", "at", "fn"), _same,
           "operands x, v, index arrays; fn set add mul min max; v has gather's result shape"),
    # -- reductions and friends --------------------------------------------------------------------
    OpRule("reduce", "reduce", ("fn", "dims"), _reduce, "COMBINE[fn] over dims, which are dropped"),
    OpRule("edge", "compute", ("widths",), _wider,
           "Graph level: the first and the last element again, before and behind along every dim; "
           "parts of it are wanted with all that lies between"),
    OpRule("argreduce", "compute", ("fn", "dim"), _argreduce, "fn min or max: first position"),
    OpRule("cumulative", "compute", ("fn", "dim"), _same, "running COMBINE[fn] along a dim"),
    OpRule("matmul", "compute", (), _matmul, "[…, m, k] x […, k, n]; equal leading dims"),
    OpRule("sort", "compute", ("dim",), _same, "ascending, NaN last"),
    OpRule("argsort", "compute", ("dim",), _argsort, "stable"),
    OpRule("kernel", "compute", ("kernel", "args", "types", "follows?", "along?", "apart?"),
           _stated,
           "a user's kernel; args: per parameter ('in', k), ('out', (result, k or None: begins as "
           "anything)), ('own', …): a copy of an input that it writes, ('expr', Expr), ('start', "
           "dims) or ('starts', Exprs); follows: which loops their leading dims follow; "
           "along: per operand the dims of which a part will do (result, dim of it, ghost cells); "
           "apart: parts of results are computed apart, empty ones not at all"),
    # -- exchange; axes: mesh axes taken as one, row-major; var: a member's position along them ----
    OpRule("permute", "exchange",
           ("axes", "var", "to", "sends", "source", "receives", "types"), _stated,
           "member var sends its operand to member `to` where `sends`; as seen by the receiver, it "
           "comes from member `source` where `receives` (in var; None: not solved); else zeros"),
    OpRule("all_reduce", "exchange", ("axes", "fn"), _same, "COMBINE[fn] over the members"),
    OpRule("all_gather", "exchange", ("axes", "dim", "var", "offset", "types"), _stated,
           "members' operands one after the other along dim; member var's begins at `offset`"),
    OpRule("reduce_scatter", "exchange", ("axes", "dim", "fn", "types"), _stated,
           "COMBINE[fn] over the members; member k keeps balanced block k of dim"),
    OpRule("all_to_all", "exchange", ("axes", "split", "concat", "var", "offset", "types"), _stated,
           "balanced block k of dim split goes to member k; pieces are joined along dim concat, "
           "member var's begins at `offset`"),
    OpRule("redistribute", "exchange", ("axes", "have", "want", "near?", "wraps?", "types"),
           _stated,
           "members hold the elements low … high - 1 of every dim that `have` says, and get those "
           "that `want` says: halos, shifts, other layouts; each in the view of who holds or gets; "
           "near: along each axis begin and end of the members that I read, and of my readers; "
           "wraps: per dim how often it stands before itself and behind, and its period"),
    OpRule("halo", "exchange", ("axes", "have", "want", "room", "near?", "wraps?"), _same,
           "a redistribute in place: the operand has the elements of `room`, with `want` among "
           "them; a member's own are in it already"),
    OpRule("broadcast_from", "exchange", ("axes", "root", "types"), _stated,
           "the root member's operand"),
    OpRule("gather_to", "exchange", ("axes", "dim", "var", "offset", "root", "types"), _stated,
           "all_gather on the root member; elsewhere dim is empty"),
    OpRule("scatter_from", "exchange", ("axes", "dim", "root", "types"), _stated,
           "of the root member's operand, member k gets balanced block k of dim"),
    OpRule("reduce_to", "exchange", ("axes", "fn", "root"), _same,
           "COMBINE[fn] over the members, on the root member; zeros elsewhere"),
    OpRule("scan", "exchange", ("axes", "fn", "exclusive"), _same,
           "COMBINE[fn] over the members up to this one, in their order; exclusive: without it, so "
           "that the first has what is neutral"),
    OpRule("barrier", "exchange", ("axes",), _nothing, "all members have arrived"),
    # -- effects -----------------------------------------------------------------------------------
    OpRule("print", "effect", ("parts", "every_rank"), _nothing,
           "parts: texts and format specs in turn, one spec per operand"),
    OpRule("expect", "effect", ("parts", "start?", "check?"), _nothing,
           "ends the run where the first operand (bool, of any shape) does not hold: with `parts`, "
           "as of print, of the other operands (of its shape, or 0-d) at the first such element; "
           "the spec POSITION has no operand; start: of this rank's part in a global array; check: "
           "the row of CHECKS that asked for it"),
    # -- control -----------------------------------------------------------------------------------
    OpRule("loop", "control", ("counter", "start", "stop", "step"), _carried,
           "regions (body) or (condition, body) over the carried; stop None: until the condition"),
    OpRule("let", "control", ("counter",), _nothing,
           "from here on the symbol `counter` is the operand, a 0-d int64 that ranks agree on"),
    OpRule("branch", "control", ("on", "types"), _stated,
           "region number `on` (an Expr, clamped), or the operand if None; if: (else, then)"),
    OpRule("nest", "control", ("outer", "sweeps", "types"), _stated,
           "in passes only: maps and reductions within the loops `outer`, those of a sweep in one"),
    OpRule("relayout", "control", ("layout",), _same,
           "Graph level: the same elements, laid out otherwise"),
    OpRule("shard_map", "control", ("in_layouts", "out_layouts", "types", "sure?"), _stated,
           "Graph level: the region is one rank's view of the operands' shards; sure: the user "
           "says that results are equal along the axes that their layouts do not name"),
)  # fmt: skip


def _const_type(attrs: Attrs) -> ArrayType:
    data = attrs["data"]
    dtype = dtypes.from_numpy(data.dtype)
    assert dtype is not None, f"no element type for {data.dtype}"
    return ArrayType(dtype, tuple(expr.const(n) for n in data.shape))


OPS: dict[str, OpRule] = {row.kind: row for row in _ROWS}


def infer(kind: str, types: Types, attrs: Attrs) -> list[ArrayType]:
    """Types of the results of an op. Raises InternalError where the operands break its rule."""
    return OPS[kind].infer(types, attrs)
