"""A function of C while it is written: its lines, and the scalars that they compute.

Goes in: Nodes and Exprs. Comes out: lines of C, declarations before what reads them.
Always holds: what a function uses is known when its lines are; nobody reads them again.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from codegen.dtypes import DType
from codegen.emit.expressions import applied, cast, single
from codegen.emit.lines import comment, source
from codegen.emit.spell import (
    converted,
    element,
    literal,
    rounded,
    suffix,
)
from codegen.errors import Place
from codegen.functions import FUNCTIONS
from codegen.ir.plan import (
    Apply,
    Bound,
    Branch,
    Buffer,
    Integer,
    Literal,
    Load,
    LocalRead,
    Loop,
    Node,
    Runtime,
    Var,
    WorkBranch,
    WorkLoop,
)
from codegen.symbolic import expr
from codegen.symbolic.expr import Expr
from codegen.symbolic.spelling import Binds, Text, within


class CFunction:
    """A C function while it is written. Subclasses spell an Expr (`symbolic`), an element in memory
    (`load`) and a run-time scalar (`runtime`)."""

    def __init__(self, depth: int = 1) -> None:
        self.lines: list[str] = []
        self.depth = depth
        self.quoted: Place | None = None  # the source line of what was written last
        self.declared: set[str] = set()  # positions that data decides, where they are known
        self.kept: dict[str, str] = {}  # the variable of what a nest keeps

    def symbolic(self, e: Expr) -> Text:
        raise NotImplementedError

    def load(self, buffer: Buffer, offset: Expr) -> str:
        raise NotImplementedError

    def runtime(self, node: Runtime) -> str:
        raise NotImplementedError

    # ---- lines -----------------------------------------------------------------------------------

    def line(self, text: str) -> None:
        self.lines.append("    " * self.depth + text)

    def open(self, text: str) -> None:
        """Write a line that begins a block."""
        self.line(text)
        self.depth += 1

    def close(self, count: int = 1) -> None:
        for _ in range(count):
            self.depth -= 1
            self.line("}")

    def loop(self, v: Var, ends: tuple[str, str] | None = None) -> None:
        """Open a loop over all positions of a variable, or over those between the two C expressions
        `ends`."""
        j, (begin, end) = v.sym.name, ends or ("0", self.integer(v.extent))
        self.open(f"for (int64_t {j} = {begin}; {j} < {end}; {j}++) {{")

    def loops(self, loops: Sequence[Var]) -> int:
        """Open the loops that have more than one iteration; return how many were opened."""
        long = [v for v in loops if v.extent != 1]
        for v in long:
            self.loop(v)
        return len(long)

    def turns(self, counter: str, loop: Loop | WorkLoop) -> str:
        """Return the head of a counted loop in C: its start, test and step, separated by
        semicolons."""
        start, step = (self.integer(e, Binds.CHOICE) for e in (loop.start, loop.step))
        test = self.test_of(counter, loop)
        advance = f"{counter}++" if loop.step == 1 else f"{counter} += {step}"
        if loop.stop is not None and not _stays_far(loop.stop, loop.step):
            advance = f"{counter} = spmd_next({counter}, {step})"
        return f"{counter} = {start}; {test}; {advance}"

    def test_of(self, counter: str, loop: Loop | WorkLoop) -> str:
        """Return the C condition under which a loop executes an iteration with this counter; "" if
        the loop has no bound."""
        if loop.stop is None:
            return ""
        stop = self.integer(loop.stop)
        if loop.step.is_const:
            return f"{counter} {'<' if loop.step.value >= 0 else '>'} {stop}"
        by = self.integer(loop.step)
        return f"{by} > 0 ? {counter} < {stop} : {by} < 0 && {counter} > {stop}"

    def arms(self, branch: Branch | WorkBranch) -> Iterator[int]:
        """Open the arms of a branch one after the other, yielding the number of each; close the
        last."""
        last = len(branch.arms) - 1
        for k in range(last + 1):
            if k == last and k and not branch.arms[k]:
                break
            test = f"if ({self.chooses(branch.on, k)}) {{" if k < last else "{"
            if k:
                self.depth -= 1
            self.open(f"}} else {test}" if k else test)
            yield k
        self.close()

    def chooses(self, on: Expr | Load, arm: int) -> str:
        """Return a C condition that is true if `on` selects this arm; numbers below 0 select arm
        0."""
        if isinstance(on, Expr):
            if not arm and len(on.terms) > 1 and expr.nonneg(on):  # a sum of what may be true
                return f"!({self.integer(on)})"
            return self.integer(expr.eq(on, arm) if arm else expr.le(on, 0), Binds.CHOICE)
        value = self.load(on.buffer, on.offset)
        if on.buffer.dtype.kind == "b":
            return value if arm else f"!{value}"
        return f"{value} {'==' if arm else '<='} {arm}"

    def quote(self, place: Place | None, text: str = "") -> None:
        """Write the source line of `place` as a comment, unless it was the last line quoted."""
        if place and (text or self.quoted is None or self.quoted.line != place.line):
            self.lines.append(comment(text + source(place), indent="    " * self.depth))
            self.quoted = place

    # ---- scalars ---------------------------------------------------------------------------------

    def integer(self, e: Expr, least: Binds = Binds.SUM) -> str:
        """Return the C of an Expr, in parentheses where it binds less tightly than `least`."""
        return within(self.symbolic(e), least)

    def position(self, node: Node) -> str:
        """Return the C of an integer that the program computes, as an int64_t."""
        text = self.value(node)
        return text[0] if dtype_of(node).compute == "int64_t" else cast("int64_t", text)[0]

    def bounds(self, bounds: Sequence[Bound]) -> None:
        """Declare the positions that data decides, clamped to their limits."""
        for b in bounds:
            if b.sym.name not in self.declared:
                raw = self.position(b.node)
                self.declared.add(b.sym.name)
                clamped = f"spmd_max(spmd_min({raw}, {self.symbolic(b.limit)[0]}), 0)"
                self.line(f"const int64_t {b.sym.name} = {clamped};")

    def value(self, node: Node) -> Text:
        """Return the text that computes a Node, in its dtype's compute type."""
        match node:
            case Literal():
                return literal(node.value, node.dtype)
            case Integer():
                self.bounds(node.bounds)
                return converted(self.symbolic(node.value), "i64", node.dtype)
            case Runtime():
                return converted(single(self.runtime(node)), "f64", node.dtype)
            case LocalRead():
                return single(self.kept[node.name])
            case Load():
                self.bounds(node.bounds)
                return element(node.buffer.dtype, self.load(node.buffer, node.offset))
            case Apply():
                return self.applied(node)

    def applied(self, node: Apply) -> Text:
        args = [self.value(a) for a in node.args]
        if node.fn == "cast":
            return converted(args[0], suffix(node.operand), node.dtype)
        text = applied(FUNCTIONS[node.fn].form(node.operand), args, suffix(node.operand))
        if node.dtype.kind in "iu" and node.dtype.size < 4:
            return cast(node.dtype.compute, text)
        if node.dtype.size == 2 and node.dtype.kind == "f":
            return rounded(text, node.dtype)
        return text


def _stays_far(stop: Expr, step: Expr) -> bool:
    """Return whether a counter that exceeds its stop by less than a step provably fits an int64."""
    far = stop.is_const and step.is_const and abs(stop.value) + abs(step.value) < 2**62
    return far or step in (1, -1)


def dtype_of(node: Node) -> DType:
    return node.buffer.dtype if isinstance(node, Load) else node.dtype
