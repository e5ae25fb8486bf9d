"""Random loops and branches, and the functional forms, around the statements of generate.py."""

from __future__ import annotations

from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.programs.generate import Group, Var
from tests.programs.library import Library


def cast(v: Var) -> str:
    return "bool" if v.kind == "b" else f"np.{v.dtype}"


class Flow(Library):
    """A Library that also knows control flow."""

    # ---- rebinding -------------------------------------------------------------------------------

    def rebind(self) -> bool:
        """v = new value of v's type: what loops and branches carry."""
        v = self.var(lambda w: w.depth < self.indent and w.group.names == 1)
        if v is None:
            return False
        made = self.formula(v) if self.chance(70) else self.alone(v)
        if made is None or (made[1].kind == "f" and v.kind in "iu"):
            return False
        text, _, exact = made
        if not self.may_store(v, exact):
            return False
        text = f"({text}).astype({cast(v)})"
        if v.kind == "f" and not (exact and v.exact):
            text = f"np.clip({text}, -8, 8)"
        self.emit(f"{v.name} = {text}")
        v.group = Group(v.exact and exact, v.group.loop)
        return True

    # ---- blocks of statements --------------------------------------------------------------------

    def block(self, count: int) -> None:
        """Statements one level deeper; what they bind is gone afterwards."""
        kept, numbers, lines = list(self.vars), list(self.numbers), len(self.lines)
        self.indent += 1
        self.statements(count)
        if not self.rebind() and len(self.lines) == lines:
            self.emit("pass")
        self.indent -= 1
        self.vars, self.numbers = kept, numbers

    def statements(self, count: int) -> None:
        for _ in range(count):
            for _ in range(4):  # a kind that finds nothing to work on gives way to another
                if self.choice(self.kinds())():
                    break

    def kinds(self) -> list[Any]:
        out = [self.elementwise] * 5 + [self.write] * 3 + [self.reduction] * 2 + [
            self.call,
            self.call,
            self.call,
            self.where, self.view, self.view, self.reshaped, self.ordered, self.matmul,
            self.element, self.element, self.gather, self.augmented, self.alias, self.helper,
            self.switch, self.conditional,
        ]
        if self.indent > 2:
            out += [self.rebind] * 5
        if self.indent < 5:
            out += [self.loop, self.while_, self.branch, self.branch, self.functional]
        return out if self.private else out + self.exchanges()

    def exchanges(self) -> list[Any]:
        """Statements that all ranks must reach together."""
        return []

    def deeper(self, count: int, private: bool, loop: bool) -> None:
        self.private += private
        self.loops += loop
        self.block(count)
        self.private -= private
        self.loops -= loop

    def loop(self) -> bool:
        k = self.name("k")
        private = self.chance(15)
        same = ("3", "steps", "n", "1, 4, 2", "3, -1, -1", "steps, 0, -1", "1, n + 1", "0")
        bounds = "i + 1" if private else self.choice(same)
        self.emit(f"for {k} in spmd.range({bounds}):")
        self.numbers.append(k)
        self.deeper(self.draw(st.integers(1, 4)), private, True)
        if k in self.numbers:
            self.numbers.remove(k)
        return True

    def while_(self) -> bool:
        flag = self.flag()
        private = flag is not None
        k = self.name("i" if private else "k")  # i…: it may differ between ranks
        extra = f" and {flag}" if flag else ""
        self.emit(f"{k} = 0")
        self.emit(f"while {k} < {self.draw(st.integers(1, 3))}{extra}:")
        self.emit(f"    {k} {self.choice(('+= 1', f'= {k} + 1'))}")
        self.numbers.append(k)
        if self.chance(30):
            self.emit(f"    if {k} > {self.draw(st.integers(0, 3))}:")
            self.emit(f"        {self.choice(('break', 'continue'))}")
        self.deeper(self.draw(st.integers(1, 3)), private, True)
        return True

    def flag(self) -> str | None:
        """A truth that may differ between ranks."""
        if self.chance(50):
            return None
        v = self.var(lambda w: w.dims == () and w.exact)
        if v is None or self.chance(40):
            return self.choice(("i % 2 == 0", "0 < i < 3", "not i == n - 1", "(i > 0 or n == 1)"))
        return f"{v.name} > {self.draw(st.integers(0, 4))}" if v.kind != "b" else v.name

    def branch(self) -> bool:
        flag = self.flag()
        private = flag is not None
        same = ("n > 2", "steps > 1", "n % 2 == 0 and steps != 3", "steps == n")
        test = flag or self.choice(same)
        self.emit(f"if {test}:")
        shared = self.var(lambda w: w.exact)
        fresh = self.name("w") if shared and self.chance(40) else ""
        arms = 3 if self.chance(25) else 2 if fresh or self.chance(60) else 1
        for arm in range(arms):
            if arm:
                last = arm == arms - 1
                self.emit("else:" if last else f"elif {self.choice(('i == 1', 'steps > 2'))}:")
            several = private or arms == 3
            self.deeper(self.draw(st.integers(1, 2)), several, False)
            if fresh and shared:
                self.emit(f"    {fresh} = ({shared.name} + {arm}).astype({cast(shared)})")
        if fresh and shared:
            group = Group(shared.exact, self.loops)
            self.vars.append(Var(fresh, shared.dtype, shared.dims, group, bool(shared.dims),
                                 self.indent))
        return True

    def conditional(self) -> bool:
        v = self.var()
        assert v is not None
        w = self.same(v, lambda w: w.dtype == v.dtype)
        assert w is not None
        test = self.choice(("i == 0", "n > 2", "steps > i", "i % 2"))
        self.define(f"{v.name}.astype({cast(v)}) if {test} else {w.name}.astype({cast(v)})",
                    v.dtype, v.dims, v.exact and w.exact)
        return True

    def switch(self) -> bool:
        v = self.var(lambda w: w.kind != "b")
        if v is None:
            return False
        arms = ["lambda x: x + 1", "lambda x: x", "lambda x: x * 2"][: self.draw(st.integers(2, 3))]
        on = self.choice(("i", "i % 3", "n - 2", "steps", "i - 1"))
        data = self.var(lambda w: w.dims == () and w.exact and w.kind in "iu")
        if data is not None and self.chance(40):
            on = f"{data.name} % 3"
        self.define(f"spmd.switch({on}, [{', '.join(arms)}], {v.name})", v.dtype, v.dims, v.exact)
        return True

    def functional(self) -> bool:
        v = self.var(lambda w: w.kind in "iu" and w.exact)
        if v is None:
            return False
        what = self.draw(st.integers(0, 3))
        if what == 0:
            text = f"spmd.fori_loop(0, steps, lambda k, x: x * 3 + k, {v.name})"
        elif what == 1:
            flag = self.flag() or "steps > 1"
            text = f"spmd.cond({flag}, lambda x: x - 1, lambda x: x ^ 3, {v.name})"
        elif what == 2 and v.dims and isinstance(v.dims[0], int) and v.dims[0]:
            at = ", ".join(["0"] + [":"] * (len(v.dims) - 1))
            text = f"spmd.scan(lambda c, x: (c + x, c * x), {v.name}[{at}] * 1, {v.name})[1]"
        else:
            text = (f"spmd.while_loop(lambda s: s[0] < 3, lambda s: (s[0] + 1, s[1] + s[0]), "
                    f"(0, {v.name}))[1]")
        self.define(text, v.dtype, v.dims, True)
        return True

    def kernel(self) -> bool:
        v = self.var(lambda w: len(w.dims) == 1 and w.dtype in (np.int64, np.float64) and w.exact)
        if v is None:
            return False
        w = self.same(v, lambda w: w.dtype == v.dtype and w.exact) or v
        k = self.choice(self.numbers)
        text = f"scaled_sum({v.name}, {w.name}, {k}, out=spmd.like({v.name}))"
        self.define(text, v.dtype, v.dims)
        return True

    def helper(self) -> bool:
        v = self.var(lambda w: bool(w.dims) and w.kind in "if" and w.writable and w.exact)
        if v is None:
            return False
        what = self.draw(st.integers(0, 2))
        if what == 0:
            self.emit(f"bump({v.name}, {self.choice(self.numbers)})")
        elif what == 1 and v.fixed:
            self.define(f"sign_of({v.name})", v.dtype, v.dims)
        else:
            w = self.same(v, lambda w: w.dtype == v.dtype and w.exact)
            self.define(f"pair({v.name}, {w.name if w else v.name})[0]", v.dtype, v.dims)
        return True
