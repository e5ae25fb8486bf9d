"""The executable specification of the IR: runs between passes, on Graphs and Programs.

Goes in: a Module. Comes out: the same Module, or an InternalError that names the op.
Checks: every value is defined once and before use, result types follow from the op's rule, what
an op does is a Kind, regions fit their op, and each level holds only what belongs to it.
"""

from __future__ import annotations

from collections.abc import Sequence

from codegen import dtypes
from codegen.errors import InternalError
from codegen.ir.graph import ArrayType, Module, Op, Region, Value
from codegen.ops import (
    Branch,
    Fold,
    Kind,
    Loop,
    ShardMap,
)


def check(module: Module) -> Module:
    """Return the module unchanged. Raises InternalError at the first op that breaks a rule."""
    defined = {i.value for i in module.inputs}
    for i in module.inputs:
        if i.default is not None:
            _region(module, i.default, set())
            computed = i.default.results[0].type.shape
            _expect(computed == i.value.type.shape or module.level == "graph", None,
                    f"default of {i.name} has the shard's shape")
    _region(module, module.body, defined)
    scope = defined | {v for op in module.body.ops for v in op.results}
    for out in module.outputs:
        _expect(out.value in scope, None, f"output {out.name} is a value of the body")
        _expect(len(out.layout) == out.value.type.ndim, None, f"output {out.name}: layout per dim")
    return module


def _expect(condition: bool, op: Op | None, rule: str, *about: object) -> None:
    """Raise InternalError with the rule unless a condition holds. `about` fills each {} of the rule
    and is turned into text only then."""
    if not condition:
        raise InternalError.of_rule(
            rule.format(*map(_text, about)), op.place if op else None,
            f"op {op.kind.called}" if op else "",
        )


def _text(x: object) -> str:
    return str([str(i) for i in x]) if isinstance(x, list) else str(x)


def _region(module: Module, region: Region, outer: set[Value]) -> None:
    scope = set(outer)
    for value in region.args:
        _expect(value not in scope, None, "{} is defined once", value)
        scope.add(value)
    for op in region.ops:
        _op(module, op, scope)
        scope.update(op.results)
    for value in region.results:
        _expect(value in scope, None, "a region's result {} is defined in it", value)


def _op(module: Module, op: Op, scope: set[Value]) -> None:
    """Check an op with its operands, results, result types, regions and level."""
    _expect(isinstance(op.kind, Kind), op, "what an op does is a Kind")
    for value in op.operands:
        _expect(value in scope, op, "operand {} is defined before its use", value)
    for value in op.results:
        _expect(value not in scope, op, "{} is defined once", value)
    inferred = op.kind.infer([v.type for v in op.operands])
    stated = [v.type for v in op.results]
    follows = "results follow from the rule: {} against {}"
    _expect(_same_types(inferred, stated), op, follows, inferred, stated)
    for inner in op.regions:
        _region(module, inner, scope)
    if isinstance(op.kind, Fold):
        stored = op.operands[0].type.dtype
        _expect(dtypes.folded_in(stored) == stored, op, "ranks fold no {}", stored)
    _level(module, op)
    if isinstance(op.kind, Loop):
        _loop(op, op.kind)
    elif isinstance(op.kind, Branch):
        for inner in op.regions:
            _expect(
                _same_types([v.type for v in inner.results], [v.type for v in op.results]),
                op,
                "every arm of a branch yields the branch's types",
            )


def _level(module: Module, op: Op) -> None:
    if module.level == "program":
        _expect(not isinstance(op.kind, ShardMap), op, "a Program holds no shard_map")
        for value in op.results:
            _expect(value.type.layout is None, op, "a Program holds local arrays only")


def _loop(op: Op, loop: Loop) -> None:
    carried = [v.type for v in op.operands]
    _expect(len(op.regions) in (1, 2), op, "a loop has a body, or a condition and a body")
    for inner in op.regions:
        _expect(
            _same_types([v.type for v in inner.args], carried),
            op,
            "the regions of a loop take what it carries",
        )
    _expect(
        _same_types([v.type for v in op.regions[-1].results], carried),
        op,
        "the body of a loop yields what it carries",
    )
    if len(op.regions) == 2:
        _expect(len(op.regions[0].results) == 1, op, "a loop's condition yields one truth value")
    else:
        _expect(loop.stop is not None, op, "a loop without a condition has a stop")


def _same_types(a: Sequence[ArrayType], b: Sequence[ArrayType]) -> bool:
    return len(a) == len(b) and all(
        x.dtype == y.dtype and x.shape == y.shape
        and ((x.layout or None) == (y.layout or None) or x.layout is None)
        for x, y in zip(a, b, strict=True)
    )
