"""Why arrays lie as they do, and what ranks send each other for it: two tables for people.

Goes in: the Levels of a program. Comes out: plain dicts: a row per array that the user named, with
its layout, bytes per rank and why; a row per exchange, with its kind, bytes and the source line.
Always holds: amounts are formulas of axis sizes in prefix form; no path, no number of ranks.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

from codegen.errors import Place
from codegen.explain import advice
from codegen.explain.traffic import Meter
from codegen.graph import layout_propagation
from codegen.graph.builder import bytes_of, global_ops
from codegen.ir import plan
from codegen.ir.cuts import Window, home, layout_of
from codegen.ir.graph import Input, Module, Op, Region, Value, layout_text, walk
from codegen.ir.graph_text import user_text
from codegen.ir.steps import walk_steps
from codegen.layouts.demands import Demands
from codegen.ops import (
    Branch,
    Exchange,
    Full,
    Loop,
    MatMul,
    Relayout,
    ShardMap,
    Take,
    Update,
)
from codegen.ops.rules import Traffic
from codegen.symbolic import expr
from codegen.symbolic.expr import to_json
from codegen.target import TARGET
from codegen.trace.assignment_targets import target_at

if TYPE_CHECKING:
    from codegen.compile import Levels


def tables(levels: Levels) -> dict[str, Any]:
    """Return three lists of rows, "arrays", "traffic" and "chosen", in the order of the program."""
    explained = Explained(levels.demands, levels.program)
    sites = [x.site for x in walk_steps(levels.plan.steps)
             if isinstance(x, plan.Exchange) and x.boxes]
    rows = [
        {"site": site, **explained.exchange_row(x)}
        for site, x in zip(sites, explained.exchanges, strict=True)
    ]
    return {"arrays": explained.array_rows(), "traffic": rows, "chosen": explained.chosen()}


@dataclass(frozen=True)
class ExchangeSite:
    """An exchange of a Program, and what stands around it: loops and branches, outermost first."""

    op: Op
    around: tuple[Op, ...]


class Explained:
    """The explanations of one program. names: what the user calls a value of the Graph."""

    def __init__(self, demands: Demands, program: Module) -> None:
        self.graph, self.program, self.demands = demands.graph, program, demands
        graph = demands.graph
        self.inputs: dict[Value, Input] = {i.value: i for i in graph.inputs}
        # of a region's argument, what it is at first; of what is laid out anew to be carried, what
        # it was before
        self.before: dict[Value, Value] = {}
        self.ops = list(global_ops(graph.body))
        feeds = {f.name: f for f in graph.feeds}
        self.fields = {v: feeds[op.kind.feed] for op in self.ops if isinstance(op.kind, Take)
                       for v in op.results}
        seen = {(feed.name, v.name) for v, feed in self.fields.items()}
        self.fields |= {Value(name, t): feed for feed in graph.feeds for name, t in feed.fields
                        if (feed.name, name) not in seen}  # taken in one rank's view only
        for op in self.ops:
            carried = [*op.operands, *(v for inner in op.regions for v in inner.results)]
            definitions = [self.demands.defs.get(v) for v in carried if op.regions]
            self.before |= {d.result: d.operands[0] for d in definitions
                            if d and isinstance(d.kind, Relayout) and d.place == op.place}
            if isinstance(op.kind, Loop):
                for inner in op.regions:
                    self.before.update(zip(inner.args, op.operands, strict=True))
        self.states = {graph.inputs[s.input].value for s in graph.states}
        new = {s.new for s in graph.states}
        self.results = [o for k, o in enumerate(graph.outputs) if k not in new]
        self.before |= _of_entries(graph)
        self.names = self._names()
        self._called: dict[Value, tuple[str, Place | None]] = {}
        self.exchanges = list(_exchanges(program.body, ()))
        self.meter = Meter(program.mesh)

    # ---- arrays --------------------------------------------------------------------------------

    def _names(self) -> dict[Value, str]:
        """Return the user's names of values; of the values that one line makes, its name stands for
        the last."""
        names = {v: i.name for v, i in self.inputs.items()}
        names |= {v: f"{feed.name}.{v.name}" for v, feed in self.fields.items()}
        last: dict[tuple[str, str, int], Value] = {}
        for op in self.ops:
            for v in op.results:
                target = target_at(op.place)
                if not op.place or not v.type.ndim or v.name != target.name:
                    continue
                # what u[k] = … writes is no u
                if not target.part or op.kind.in_place:
                    last[v.name, op.place.file, op.place.line] = v
        return names | {v: v.name for v in last.values()}

    def _shown(self) -> list[Value]:
        return [*self.names, *(o.value for o in self.results)]

    def held(self, value: Value) -> Window:
        """Return the window that a rank computes or holds of a value."""
        parts = self.demands.of.get(value)
        return parts.made[0] if parts and parts.made else home(value)

    def array_rows(self) -> list[dict[str, Any]]:
        """Return rows for inputs, fields, variables, results; a name that stands twice with one
        type is one row."""
        rows: dict[Any, dict[str, Any]] = {}
        kinds = {v: "state" if v in self.states else "input" if v in self.inputs else
                "field" if v in self.fields else "variable" for v in self.names}
        shown = [(self.names[v], v, w) for v, w in kinds.items()]
        shown += [(o.name, o.value, "result") for o in self.results]
        for name, value, kind in shown:
            key = (name, value.type)
            if key not in rows or not rows[key]["bytes"]:  # what was a view before, or unused
                rows[key] = {**self._array_row(name, value), "what": rows.get(key, _NEW)["what"]}
            if kind not in rows[key]["what"]:
                rows[key]["what"] = [*rows[key]["what"], kind]
        return list(rows.values())

    def _array_row(self, name: str, value: Value) -> dict[str, Any]:
        op = self.demands.defs.get(value)
        declared = self.inputs.get(value) or self.fields.get(value)
        place = op.place if op else declared.place if declared else None
        why, because = self.why(value)
        demand = self.demands.of.get(value)
        size = expr.product(map(self.meter.cut, self.held(value))) * value.type.dtype.size
        if op is not None and op.kind.is_view:
            size = expr.const(0)
            because += "; no memory: made where it is used"
        elif demand is not None and not demand.made:
            size = expr.const(0)
            because += "; nobody uses it"
        elif demand is not None and demand.made[0] != home(value):
            as_used = tuple(c.axes for c in demand.made[0])
            if as_used != layout_of(value):
                because += f"; made as it is used, {layout_text(as_used)}"
        return {
            "name": name, "dtype": value.type.dtype.name,
            "shape": [to_json(e) for e in value.type.shape],
            "layout": [list(entry) for entry in layout_of(value)],
            "bytes": to_json(size), "why": why, "because": because, "place": place_row(place),
        }

    def chosen(self) -> list[dict[str, Any]]:
        """Return rows about what the compiler does before loops, and why: arrays laid out
        otherwise, products. They say what to try where it gathers arrays, or products are large;
        and where loops are unrolled, by it or by Python's range in a long program."""
        rows = [_chosen(op.kind.because, op.place, self.instead(op),
                        self.copied(op) > TARGET.large_copy)
                for op in self.ops if isinstance(op.kind, Relayout | MatMul) and op.kind.because]
        rows += [_chosen(advice.UNROLLED, p, advice.ONE_EXTENT) for p in self.graph.unrolled]
        if repeated := advice.unrolled(self.graph):
            place, often = repeated
            rows.append(_chosen(f"stands {often} times in the program, which is long to build",
                                place, advice.COMPILED_LOOP))
        return rows

    def instead(self, op: Op) -> str:
        """Return what to try where the compiler copies arrays before a loop, or makes a large
        product there; "" where nothing is to be done."""
        if isinstance(op.kind, MatMul):
            return advice.EACH_ITS_OWN if self.copied(op) > TARGET.large_copy else ""
        if any(op.kind.to):  # type: ignore[attr-defined]
            return ""
        name, _ = self.called(op.operands[0])
        return advice.AS_IT_IS.format(name, layout_text(layout_of(op.operands[0])))

    def copied(self, op: Op) -> int:
        """Return the bytes of what an op makes before a loop; of arrays that are copied there, of
        all of them."""
        alike = [op] if isinstance(op.kind, MatMul) else [
            o for o in self.ops if isinstance(o.kind, Relayout) and o.place == op.place
            and not any(o.kind.to)]
        return sum(bytes_of(o.result) or 0 for o in alike)

    # ---- why -----------------------------------------------------------------------------------

    def why(self, value: Value) -> tuple[str, str]:
        """Return why a value has its layout: given, follows or chosen; and the same in words."""
        value = self._first(value)
        if not value.type.ndim:
            return "chosen", "a number, the same on every rank"
        if value in self.inputs:
            return self._why_input(self.inputs[value])
        if value in self.fields:
            return "given", f"given at {_at(self.fields[value].place)}"
        op = self.demands.defs[value]
        if isinstance(op.kind, Relayout) and op.kind.because:
            return "chosen", f"chosen for the loop at {_at(op.place)}"
        if isinstance(op.kind, Relayout | ShardMap):
            return "given", f"given at {_at(op.place)}"
        source = self._decides(op, value)
        if source is None:
            return "chosen", "chosen: a literal lies on every rank"
        name, place = self.called(source)
        return "follows", f"follows from {name}{f' (line {place.line})' if place else ''}"

    def _why_input(self, source: Input) -> tuple[str, str]:
        if source.origin == "given":
            return "given", f"given at {_at(source.place)}"
        if source.origin == "rules":
            return "given", "given by the layout rules of the program"
        if any(source.layout) and not self._is_anything_given():
            return "chosen", "chosen by size: it is the largest input, and no layout is named"
        wanted = self.demands.wanted.get(source.value, {})
        for window, place in wanted.items():
            if any(c.axes for c in window) and place is not None:
                return "chosen", f"chosen for its use in line {place.line}"
        return "chosen", "chosen: no use wants it in parts"

    def _is_anything_given(self) -> bool:
        """Return whether the program names a layout that splits an array."""
        named = [i for i in self.inputs.values() if i.origin in ("given", "rules")]
        ops = (op for op in self.demands.defs.values() if isinstance(op.kind, Relayout | ShardMap))
        return any(any(i.layout) for i in named) or bool(self.fields) or any(
            not (isinstance(op.kind, Relayout) and op.kind.because) for op in ops)

    def _first(self, value: Value) -> Value:
        """Return the value that an argument of a loop is before the loop, as it lay then."""
        while value in self.before:
            value = self.before[value]
        return value

    def _decides(self, op: Op, value: Value) -> Value | None:
        """Return the operand that a result's layout comes from; None where there is none."""
        if isinstance(op.kind, Loop | Branch):
            return self._carried(op, op.results.index(value))
        if parts := [v for v in self._parts(value) if not v.type.free]:
            return next((v for v in parts if layout_of(v) == layout_of(value)), parts[0])
        arrays = [(k, v) for k, v in enumerate(op.operands) if v.type.ndim and not v.type.free]
        arrays.sort(key=lambda kv: kv[1] in self.before)  # what is carried follows from the others
        operands = [v.type for v in op.operands]
        plain = replace(value.type, layout=None)
        for k, v in arrays:
            without = replace(v.type, layout=((),) * v.type.ndim)
            types = [*operands[:k], without, *operands[k + 1 :]]
            if layout_propagation.laid_out(op.kind, types, plain) != value.type:
                return v
        return arrays[0][1] if arrays else None

    def _parts(self, value: Value) -> list[Value]:
        """Return the values from which an array is written, part by part; none if it is not."""
        out = []
        op = self.demands.defs.get(value)
        while op is not None and isinstance(op.kind, Update):
            out.append(op.operands[1])
            op = self.demands.defs.get(op.operands[0])
        blank = op is not None and isinstance(op.kind, Full) and op.kind.blank
        return out if blank else []

    def _carried(self, op: Op, k: int) -> Value:
        """Return the value that gives a loop's or branch's result its layout: before it, or at the
        end of a region."""
        ends = [*op.operands[k : k + 1], *(inner.results[k] for inner in op.regions[-1:])]
        if isinstance(op.kind, Branch):
            ends = [inner.results[k] for inner in op.regions]
        wanted = layout_of(op.results[k])
        values = [self._first(v) for v in ends]
        same = [v for v in values if layout_of(v) == wanted and not v.type.free]
        return next(iter(same or values))

    def called(self, value: Value) -> tuple[str, Place | None]:
        """Return the name of the nearest array that has one, going back to what decides its
        layout."""
        passed: list[Value] = []  # a chain is as long as the program: no recursion, and once only
        while (value := self._first(value)) not in self._called:
            passed.append(value)
            op = self.demands.defs.get(value)
            if value in self.names:
                place = self.inputs[value].place if op is None else op.place
                self._called[value] = self.names[value], place
                break
            source = self._decides(op, value) if op is not None else None
            if source is None or op is None or isinstance(op.kind, ShardMap | Relayout):
                self._called[value] = "what is computed", op.place if op else None
                break
            value = source
        name = self._called[value]
        self._called.update(dict.fromkeys(passed, name))
        return name

    # ---- exchanges -----------------------------------------------------------------------------

    def exchange_row(self, site: ExchangeSite) -> dict[str, Any]:
        op, kind = site.op, site.op.kind
        assert isinstance(kind, Exchange)
        traffic = self.meter.of(op)
        asked = any(isinstance(o.kind, Relayout) for o in self.demands.by_place.get(op.place, ()))
        words = f"change of layout, {traffic.words}" if asked else traffic.words
        return {
            "kind": traffic.kind, "words": words, "axes": list(kind.axes),
            "array": self.subject(op), "bytes": to_json(traffic.bytes),
            "often": self._often(site), "place": place_row(op.place),
            "advice": self.advice(op, traffic),
        }

    def advice(self, op: Op, traffic: Traffic) -> dict[str, str] | None:
        """Return the advice that the build prints about an exchange; None if there is none."""
        value = self.program.origins.get(op.results[0])
        if value is None or op.place is None or not advice.too_much(traffic):
            return None
        name = self.subject(op)
        remedy = advice.remedy(self.demands, op, value, name or "the operand", traffic.gathered)
        if remedy is None:
            return None
        size = traffic.result
        amount = f"{size.value / 2**20:.1f} MiB, on however many ranks" if size.is_const else (
            f"{user_text(self.program.mesh, size)} bytes")
        return {
            "message": f"every rank gets all of {name or 'an intermediate result'}: {amount}",
            "layout": f"{layout_text(layout_of(value))}, {self.why(value)[1]}",
            "try": remedy,
        }

    def subject(self, op: Op) -> str:
        """Return the user's name of the array that is exchanged; "" where it has none."""
        value = self.program.origins.get(op.results[0]) if op.results else None
        value = value and self._first(value)
        if value is None:
            return ""
        if value in self.names:
            return self.names[value]
        named = [o.name for o in self.graph.outputs if o.value is value]
        return named[0] if named else ""


    def _often(self, site: ExchangeSite) -> str:
        """Return in words how often an exchange happens."""
        entries = self.program.entry_branch
        around = [op for op in site.around if op is not entries]
        loops = [str(op.place.line) for op in around if isinstance(op.kind, Loop) and op.place]
        branches = [op.place.line for op in around if isinstance(op.kind, Branch) and op.place]
        text = "once"
        if loops:
            several = "s" if len(loops) > 1 else ""
            text = f"per turn of the loop{several} in line{several} {', '.join(loops)}"
        if branches:
            text += f", in the branch in line {branches[-1]}"
        if entries is not None and entries in site.around:
            arms = zip(self.program.entries, self.program.bodies, strict=True)
            text += ", in " + next(e.name for e, arm in arms
                                   if any(op is site.op for op in walk(arm)))
        return text


def _of_entries(graph: Module) -> dict[Value, Value]:
    """Return, by the result of the branch between entries, the value that an entry's own arm
    makes."""
    branch, values = graph.entry_branch, dict[Value, Value]()
    for entry, arm in zip(graph.entries, graph.bodies):
        outputs = [graph.outputs[k].value for k in entry.outputs]
        values |= {v: arm.results[branch.results.index(v)] for v in outputs
                  if branch is not None and v in branch.results}
    return values


def _chosen(message: str, place: Place | None, remedy: str, costs: bool = True) -> dict[str, Any]:
    """Return a row of what the compiler has chosen. costs: it takes memory, or time, so that it is
    pointed out at build."""
    return {"message": message, "place": place_row(place), "try": remedy, "costs": costs}


_NEW: dict[str, Any] = {"what": []}


def _exchanges(region: Region, around: tuple[Op, ...]) -> Iterator[ExchangeSite]:
    for op in region.ops:
        if isinstance(op.kind, Exchange) and op.results:
            yield ExchangeSite(op, around)
        for inner in op.regions:
            yield from _exchanges(inner, (*around, op))


def place_row(place: Place | None) -> dict[str, Any] | None:
    """Return a position with its source line, so that an image can quote it."""
    if place is None:
        return None
    return {"file": os.path.basename(place.file), "line": place.line, "column": place.column,
            "end": place.end_column, "text": place.source_line()}


def _at(place: Place | None) -> str:
    return f"{os.path.basename(place.file)}:{place.line}" if place else "an unknown place"
