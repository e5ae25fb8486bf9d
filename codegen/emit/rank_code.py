"""Where a rank finds what the program names, and C functions whose argument is the rank.

Goes in: a finished Plan. Comes out: C of buffers and symbols. Always holds: a function declares the
symbols that it uses, each once, and no other."""

from __future__ import annotations

from collections.abc import Container

from codegen.emit.function import CFunction
from codegen.ir.names import buffer_names, identifier
from codegen.ir.plan import Buffer, Let, Loop, Plan, Runtime
from codegen.ir.steps import walk_steps
from codegen.symbolic.expr import Expr, Sym
from codegen.symbolic.spelling import Binds, Text, c_operand


class Places:
    """The places of a rank's data. counters: the slots of a rank that loops and `let` write.
    constants: whether any constant is used."""

    def __init__(self, plan: Plan) -> None:
        self.names = buffer_names(plan)
        self.at_load = plan.at_load
        self.mesh = plan.mesh
        self.constants = False
        arrays = (*plan.inputs, *plan.outputs)
        self.flags = {a.flag: k for k, a in enumerate(arrays) if a.flag is not None}
        self.counters = {s.counter: s.slot for s in walk_steps(plan.steps)
                         if isinstance(s, (Loop, Let)) and s.counter is not None}

    def number(self, buffer: Buffer) -> str:
        return f"B_{self.names[id(buffer)]}"

    def address(self, buffer: Buffer) -> str:
        if buffer.data is None:
            return f"AT(r, {self.number(buffer)})"
        self.constants = True
        return f"CONSTANT(r, {buffer.number})"

    def symbol(self, s: Sym, world: str = "r->world") -> str:
        """Return the C by which a rank reads the value of a symbol; "" for a variable of its own
        function."""
        if s in self.at_load:
            return f"r->at_load[{self.entry(s)}]"
        if s in self.counters:
            return f"r->counter[{self.counter(s)}]"
        if s.kind == "flag":
            return f"{world}->given[{self.flags[s]}]"
        if s.kind in ("scalar", "extent"):
            return f"{world}->scalar[SCALAR_{identifier(s.name)}]"
        for axis in self.mesh.axes:
            if s == axis.coord_sym:
                return f"r->coord[AXIS_{axis.name}]"
            if s == axis.size_sym:
                return f"{world}->size[AXIS_{axis.name}]"
        return ""

    def entry(self, s: Sym) -> str:
        return s.name.replace("x_", "X_", 1)

    def counter(self, s: Sym) -> str:
        return f"C_{identifier(s.name)}"


class RankFunction(CFunction):
    """A C function that takes the rank `r` as its argument. changing: symbols whose values change
    within it, which are read from memory each time; others are copied to local variables."""

    def __init__(
        self, places: Places, depth: int = 1, changing: Container[Sym] = (), world: str = "r->world"
    ) -> None:
        super().__init__(depth)
        self.places, self.changing, self.world = places, changing, world
        self.variables: dict[str, str] = {}  # and where their values are found

    def symbolic(self, e: Expr) -> Text:
        return c_operand(e, self.name)

    def name(self, s: Sym) -> str:
        place = self.places.symbol(s, self.world)
        if s in self.changing:
            return place
        name = s.name if s.kind == "var" else identifier(s.name)
        if place:
            self.variables[name] = place
        return name

    def load(self, buffer: Buffer, offset: Expr) -> str:
        index = self.integer(offset, Binds.CHOICE)
        return f"(({buffer.dtype.c} *){self.places.address(buffer)})[{index}]"

    def runtime(self, node: Runtime) -> str:
        return f"spmd_scalar_f64(r, {node.number})"

    def body(self) -> str:
        """Return the lines of the function, after the declarations of the symbols that they use."""
        names = sorted(self.variables.items())
        declarations = (f"    const int64_t {n} = {value};" for n, value in names)
        return "\n".join([*declarations, *self.lines])
