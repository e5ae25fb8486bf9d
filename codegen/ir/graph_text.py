"""Graph and Program as text: stable names, one op per line, the source line where it changes.

Goes in: a Module. Comes out: text that golden tests compare and `show` prints.
Always holds: equal modules print equally, whatever the value ids are.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any

from codegen.errors import Place
from codegen.image.manifest import ENTRY
from codegen.ir.block_names import Naming
from codegen.ir.fresh import Fresh
from codegen.ir.graph import ArrayType, Keeps, Module, Op, Region, Value, layout_text, walk
from codegen.mesh import Mesh
from codegen.ops import Exchange, Fold
from codegen.symbolic.expr import Expr, const, product
from codegen.symbolic.spelling import text


class ValueNames:
    """One readable name per value: its hint, numbered where the hint is taken. expr: how an Expr
    reads."""

    def __init__(self, spelled: Callable[[Expr], str]) -> None:
        self.expr = spelled
        self._names: dict[Value, str] = {}
        self._fresh = Fresh()

    def type(self, t: ArrayType) -> str:
        where = "" if t.layout is None else f" over {layout_text(t.layout)}"
        return f"{t.dtype}[{self.shape(t.shape)}]{where}"

    def shape(self, shape: Iterable[Expr]) -> str:
        return ", ".join(map(self.expr, shape))

    def __call__(self, value: Value) -> str:
        if value not in self._names:
            self._names[value] = self._fresh.name(value.name)
        return f"%{self._names[value]}"


# What users call an exchange; an all-reduce is named by what it combines with.
_CALLS = {
    "permute": "ppermute", "reduce_scatter": "psum_scatter", "broadcast_from": "pbroadcast",
    "gather_to": "pgather", "scatter_from": "pscatter", "reduce_to": "preduce",
}
_REDUCTIONS = {
    "add": "psum", "mul": "pprod", "max": "pmax", "min": "pmin", "and": "all_ranks",
    "or": "any_ranks", "bit_and": "pand", "bit_or": "por", "bit_xor": "pxor",
}


def exchange_text(op: Op) -> str:
    """Return an exchange as its user knows it: psum over "x"."""
    kind = op.kind
    assert isinstance(kind, Exchange)
    name = _CALLS.get(kind.called, kind.called)
    if isinstance(kind, Fold):
        total = _REDUCTIONS.get(kind.fn, f"preduce of {kind.fn}")
        combined = {"all_reduce": total, "scan": "pscan"}
        name = "pexscan" if kind.flow == "before" else combined.get(kind.called, name)
    return f"{name} over {axes_text(kind.axes)}"


def axes_text(axes: Iterable[str]) -> str:
    return ", ".join(f'"{a}"' for a in axes)


def user_text(mesh: Mesh, e: Expr) -> str:
    """Return an Expr in the user's words: axis_index("x") % 2 == 0."""
    words = {axis.size_sym.name: f'axis_size("{axis.name}")' for axis in reversed(mesh.axes)}
    words |= {axis.coord_sym.name: f'axis_index("{axis.name}")' for axis in mesh.axes}
    return text(e, lambda s: words.get(s.name, s.name))


def attr_text(value: Any, spelled: Callable[[Expr], str] = str) -> str:
    """Return an attribute as text that holds no address and no id."""
    if isinstance(value, (tuple, list)):
        inner = ", ".join(attr_text(v, spelled) for v in value)
        return f"({inner},)" if len(value) == 1 else f"({inner})"
    if isinstance(value, Expr):
        return spelled(value)
    if isinstance(value, ArrayType) or value is None or isinstance(value, (int, float)):
        return str(value)
    if isinstance(value, str):
        return value
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        flat = value.ravel()
        head = ", ".join(str(x) for x in flat[:4].tolist())
        return f"[{head}{', …' if flat.size > 4 else ''}]"
    return str(getattr(value, "name", value))


# Attributes that repeat the result's type, or follow from others.
_IN_TYPE = ("shape", "dtype", "types", "cut", "near", "homes")


def _op_text(op: Op, name: ValueNames) -> str:
    results = ", ".join(f"{name(v)}: {name.type(v.type)}" for v in op.results)
    fields = {k: v for k, v in op.kind.attributes().items() if k not in _IN_TYPE}
    fn = f".{fields.pop('fn')}" if "fn" in fields else ""
    says = ", ".join(f"{k}={attr_text(v, name.expr)}" for k, v in fields.items())
    operands = ", ".join(name(v) for v in op.operands)
    inside = "; ".join(part for part in (operands, says) if part)
    call = f"{op.kind.called}{fn}({inside})"
    return f"{results} = {call}" if results else call


class EntryText:
    """The text of an entry's arm: the ops of the arm, without the blank values that stand for other
    entries' results, and then its results, such as "state w" or "output loss"."""

    def __init__(self, module: Module, number: int) -> None:
        branch, entry = module.entry_branch, module.entries[number]
        assert branch is not None
        arm, positions = branch.regions[number], {v: k for k, v in enumerate(branch.results)}
        new = {module.states[k].new: "state" for k in entry.rebinds}
        results = {k: f"{kind} {module.outputs[k].name.removeprefix(f'{entry.name}.')}"
                 for k, kind in {**new, **dict.fromkeys(entry.outputs, "output")}.items()}
        self.gives = {text: arm.results[positions[module.outputs[k].value]]
                      for k, text in results.items()}
        others = set(arm.results).difference(self.gives.values())
        self.body = arm.with_ops(
            op for op in arm.ops
            if op.operands or not op.results or not others.issuperset(op.results))
        where = f"  # line {entry.place.line}" if entry.place else ""
        self.head = f"entry {entry.name}:{where}"


def _entry_lines(
    module: Module, name: ValueNames, indent: str, last: list[Place | None]
) -> Iterator[str]:
    for shown in (EntryText(module, number) for number in range(len(module.entries))):
        yield f"{indent}{shown.head}"
        yield from _region_lines(shown.body, name, f"{indent}  ", last)
        yield from (f"{indent}  {label} = {name(v)}" for label, v in shown.gives.items())


def _body_lines(module: Module, name: ValueNames) -> Iterator[str]:
    last: list[Place | None] = [None, None]
    if module.entry_branch is None:
        yield from _region_lines(module.body, name, "  ", last)
        return
    yield from _region_lines(module.body.with_ops(module.body.ops[:-1]), name, "  ", last)
    yield from _entry_lines(module, name, "  ", last)


def _region_lines(
    region: Region, name: ValueNames, indent: str, last: list[Place | None]
) -> Iterator[str]:
    for op in region.ops:
        if op.place and (last[0] is None or (op.place.file, op.place.line) != last[1:][0]):
            yield f"{indent}# line {op.place.line}: {op.place.source_line().strip()}".rstrip(": ")
            last[:] = [op.place, (op.place.file, op.place.line)]  # type: ignore[list-item]
        yield indent + _op_text(op, name)
        for k, inner in enumerate(op.regions):
            args = ", ".join(f"{name(v)}: {name.type(v.type)}" for v in inner.args)
            yield f"{indent}  region {k} ({args}):"
            yield from _region_lines(inner, name, indent + "    ", last)
            results = ", ".join(name(v) for v in inner.results)
            yield f"{indent}    yield {results}".rstrip()


def _all_exprs(module: Module) -> Iterator[Expr]:
    for region in module.regions:
        for op in walk(region):
            for value in op.results:
                yield from value.type.shape
            yield from op.kind.exprs()


def module_text(module: Module) -> str:
    """Return the whole module; ends with a newline."""
    blocks = Naming(module.mesh, _all_exprs(module))
    name = ValueNames(blocks)
    axes = ", ".join(a.name if a.fixed is None else f"{a.name}={a.fixed}" for a in module.mesh.axes)
    lines = [f"{module.level} {module.name} over mesh ({axes})", *blocks.definitions()]
    lines += [f"parameter {k} = {v!r}" for k, v in module.parameters]
    lines += [f"scalar {s.name}: {s.dtype} = {s.default}" if s.at_most is None else
              f"dim {s.name}: 0 to {s.at_most}" for s in module.scalars
              if not (module.entries and s.name == ENTRY)]
    states = {module.inputs[s.input] for s in module.states}
    for i in module.inputs:
        kind = "state" if i in states else "input"
        lines.append(
            f"{kind} {name(i.value)}: {i.value.type.dtype}[{name.shape(i.shape)}] "
            f"over {layout_text(i.layout)}"
            + (f", optional: {i.flag.name}" if i.flag else "")
        )
        if i.default is not None:
            lines.append("  default:")
            lines += _region_lines(i.default, name, "    ", [None, None])
            lines.append("    yield " + ", ".join(name(v) for v in i.default.results))
    for f in module.feeds:
        fields = ", ".join(f"{field}: {name.type(t)}" for field, t in f.fields)
        lines.append(f"feed {f.name} of {fields}")
    lines += [f"condition {c.holds}  # {c.text}" for c in module.conditions]
    lines += _body_lines(module, name)
    for o in module.outputs if not module.entries else ():
        lines.append(
            f"output {o.name} = {name(o.value)}: [{name.shape(o.shape)}] "
            f"over {layout_text(o.layout)}"
            + (f", if {o.wanted.name}" if o.wanted else "")
            + (f", needs {', '.join(o.needs)}" if o.needs else "")
        )
    for some in module.keeps if module.level == "graph" else ():
        lines += _kept_lines(some, name)
    return "\n".join(lines) + "\n"


def _kept_lines(some: Keeps, name: ValueNames) -> Iterator[str]:
    """Yield lines about the values that a reverse pass keeps, with the bytes of the whole
    arrays."""
    place = f" at line {some.place.line}" if some.place else ""
    reason = "to compute again what is called" if some.turns is None else "of each turn of the loop"
    yield f"kept {reason}{place}: {_kept_bytes(some.values, some.turns, name)}"
    for v in some.values:
        yield f"  {name(v)}: {name.type(v.type)}: {_kept_bytes([v], some.turns, name)}"


def _kept_bytes(values: Sequence[Value], turns: Expr | None, name: ValueNames) -> str:
    def size(of: slice) -> str:
        total = sum((product(v.type.shape[of]) * v.type.dtype.size for v in values), const(0))
        return f"{total.value:,}" if total.is_const else name.expr(total)

    every = size(slice(None))
    if turns is None:
        return f"{every} bytes"
    return f"{size(slice(1, None))} bytes a turn, {every} in {name.expr(turns)} turns"
