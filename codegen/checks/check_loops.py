"""The executable specification of Loops: runs before buffers are assigned.

Goes in: Loops. Comes out: the same, or an InternalError that names the op.
Checks: a value is defined once and before use; a Do reads its operands only and writes its results
only, all of which it writes or begins; what a nest keeps in a local is read after that.
"""

from __future__ import annotations

from collections.abc import Collection

from codegen.errors import InternalError
from codegen.ir.graph import Op, Region, Value
from codegen.ir.indexing import leaves
from codegen.ir.loops import Do, Loops
from codegen.ir.plan import LocalRead, LocalValue, Nest
from codegen.ir.steps import memory_read, memory_written, nodes
from codegen.ops import Branch, Let, Loop


def check_loops(loops: Loops) -> Loops:
    """Return the Loops unchanged. Raises InternalError at the first op that breaks a rule."""
    module, constants = loops.module, loops.constants.keys()
    for i in module.inputs:
        if i.default is not None:
            _region(i.default, set(), constants)
    defined = _region(module.body, {i.value for i in module.inputs}, constants)
    for o in module.outputs:
        _rule(o.value in defined, None, f"output {o.name} is a value of the body")
    return loops


def _region(region: Region, outer: set[Value], constants: Collection[Value]) -> set[Value]:
    """Check a region and return the values that are defined at its end."""
    defined = outer | set(region.args)
    for op in region.ops:
        _rule(defined.issuperset(op.operands), op, "a value is defined before it is read")
        _rule(defined.isdisjoint(op.results), op, "a value is defined once")
        if isinstance(op.kind, Do):
            _do(op, op.kind, constants)
        else:
            _rule(isinstance(op.kind, Loop | Let | Branch), op, "no other ops are left")
        for inner in op.regions:
            _region(inner, defined, constants)
        defined.update(op.results)
    _rule(defined.issuperset(region.results), None, "a region gives what it defines")
    return defined


def _do(op: Op, do: Do, constants: Collection[Value]) -> None:
    """Check what a Do reads and writes against its operands and results."""
    results, own = set(op.results), {*op.results, *do.scratch}
    written: set[Value] = set()
    for act in do.acts:
        others = set(memory_read(act)) - own
        _rule(others <= {*op.operands, *constants}, op, "what is read is an operand")
        written.update(memory_written(act))
        if isinstance(act, Nest):
            _nest(op, act)
    begun = {v for _, v in do.begins}
    _rule(written <= own, op, "what is written is a result")
    _rule(not do.acts or results <= written | begun, op, "every result is written")
    _rule({x for x, _ in do.begins} <= {*op.operands, *results}, op, "what begins is an operand")


def _nest(op: Op, nest: Nest[Value]) -> None:
    kept: set[str] = set()
    for part in nest.parts:
        read = {x.name for node in nodes(part) for x in leaves(node) if isinstance(x, LocalRead)}
        _rule(read <= kept, op, "a local is kept before it is read")
        if isinstance(part, LocalValue):
            _rule(part.name not in kept, op, "a local is kept once")
            kept.add(part.name)


def _rule(holds: bool, op: Op | None, rule: str) -> None:
    if not holds:
        raise InternalError.of_rule(rule, op.place if op else None)
