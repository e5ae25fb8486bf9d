"""Random exchanges: permutes, reductions, gathers, moved splits, and the language's ring."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from hypothesis import strategies as st

from tests.programs.control import Flow
from tests.programs.generate import SPLIT, Cut, Local, Var


def axes_in(dim: Any) -> set[str]:
    """Mesh axes on which an extent depends."""
    if isinstance(dim, Local):
        return set(dim.axes)
    return axes_in(dim.dim) if isinstance(dim, Cut) else set()


class Author(Flow):
    """Draws all that stands in one rank's view."""

    def exchanges(self) -> list[Any]:
        out = [self.permute, self.permute, self.collective, self.collective, self.moved]
        return [*out, self.ring] if self.indent < 4 else out

    def along(self) -> tuple[str, tuple[str, ...]]:
        """An axis argument, as text, and the axes it means."""
        if len(self.axes) > 1 and self.chance(40):
            k = self.draw(st.integers(2, len(self.axes)))
            axes = self.axes[:k] if self.chance(70) else self.axes[:k][::-1]
            return repr(axes), axes
        axis = self.choice(self.axes)
        return repr(axis), (axis,)

    def alike(self, v: Var, axes: Sequence[str]) -> bool:
        """All members along axes hold arrays of v's shape."""
        return not any(axes_in(d) & set(axes) for d in v.dims)

    def permute(self) -> bool:
        text, axes = self.along()
        v = self.var(lambda w: self.alike(w, axes)) if self.chance(70) else self.var()
        if v is None:
            return False
        shift = self.choice(("1", "-1", "2", "steps", "n", *(
            k for k in self.numbers if not k.startswith("i"))))
        how = f"shift={shift}"
        dims = v.dims
        if self.alike(v, axes):
            if self.chance(50):
                how = "to=" + self.choice((
                    "lambda p, m: p + 1 if p < m - 1 else None", "lambda p, m: m - 1 - p",
                    "lambda p, m: p - 1 if p > 0 else None", "lambda p, m: (p + 2) % m",
                    "lambda p, m: 0 if p == m - 1 else None", "lambda p, m: (p - steps) % m",
                    "lambda p, m: p + 1 if p % 2 == 0 and p + 1 < m else None",
                ))
        else:
            k = self.name("s")  # extents of another rank: equal to no other's
            dims = tuple(Cut(d, k) if axes_in(d) & set(axes) else d for d in dims)
        self.define(f"spmd.ppermute({v.name}, {text}, {how})", v.dtype, dims, v.exact)
        return True

    def collective(self) -> bool:
        text, axes = self.along()
        v = self.var(lambda w: self.alike(w, axes) and w.dtype != np.float16 and w.kind != "c")
        if v is None:
            return False
        what = self.choice(("psum", "pmax", "pmin", "pbroadcast", "all_ranks", "psum", "pmean",
                            "located", "placed", "placed"))
        if what in ("psum", "pmean"):
            x = f"np.clip({v.name}, -8, 8)" if v.kind == "f" else v.name
            dtype = np.dtype(np.int64) if v.kind == "b" else v.dtype
            if what == "pmean":
                dtype = (np.ones(1, dtype) / 2).dtype
            exact = v.kind != "f" and (what == "psum" or v.kind in "iub")
            self.define(f"spmd.{what}({x}, {text})", dtype, v.dims, v.exact and exact)
        elif what == "all_ranks":
            if not v.exact:
                return False
            fn = self.choice(("all_ranks", "any_ranks"))
            self.define(f"spmd.{fn}(np.any({v.name}))", bool, ())
        elif what == "located":
            if not v.exact:
                return False
            call = f"spmd.{self.choice(('pargmax', 'pargmin'))}({v.name}, {text})"
            if self.chance(50):
                self.define(f"{call}[0]", v.dtype, v.dims)
            else:
                self.define(f"{call}[1]", np.dtype(np.int64), v.dims)
        elif what == "placed":
            self.placed(v, text)
        elif what == "pbroadcast":
            self.define(f"spmd.pbroadcast({v.name}, {text})", v.dtype, v.dims, v.exact)
        else:
            self.define(f"spmd.{what}({v.name}, {text})", v.dtype, v.dims, v.exact)
        return True

    def placed(self, v: Var, text: str) -> None:
        """Define a value that depends on a member's place: a reduction to one of them, or
        prefixes."""
        what = self.choice(("preduce", "pscan", "pexscan"))
        bits = ("and", "or", "xor") if v.kind in "iub" else ()
        ends = ("min", "max") if what != "pexscan" else ()  # infinities are no use for what follows
        op = self.choice(("sum", *ends, *bits))
        x = f"np.clip({v.name}, -8, 8)" if v.kind == "f" and op == "sum" else v.name
        root = self.choice((", 0", f", spmd.axis_size({text}) - 1")) if what == "preduce" else ""
        dtype = np.dtype(np.int64) if v.kind == "b" and op == "sum" else v.dtype
        self.define(f"spmd.{what}({x}, {text}, {op!r}{root})", dtype, v.dims,
                    v.exact and (v.kind != "f" or op != "sum"))

    def moved(self) -> bool:
        """A split gathered, made or moved."""
        text, axes = self.along()
        split = [Local(n, axes) for n in SPLIT]
        what = self.draw(st.integers(0, 4))
        root = self.choice(("0", f"spmd.axis_size({text}) - 1", f"spmd.axis_size({text}) // 2"))
        if what == 0:
            v = self.var(lambda w: any(d in split for d in w.dims) and
                         sum(bool(axes_in(d) & set(axes)) for d in w.dims) == 1)
            if v is None:
                return False
            d = next(k for k, e in enumerate(v.dims) if e in split)
            dims = (*v.dims[:d], v.dims[d].whole, *v.dims[d + 1 :])
            if self.chance(40):  # by one of them, and handed out again
                whole = self.name("g")
                self.emit(f"{whole} = spmd.pgather({v.name}, {text}, {root}, {d}, tiled=True)")
                self.define(f"spmd.pscatter({whole}, {text}, {root}, {d}, tiled=True)", v.dtype,
                            v.dims, v.exact)
                return True
            self.define(f"spmd.all_gather({v.name}, {text}, {d}, tiled=True)", v.dtype, dims,
                        v.exact)
            return True
        v = self.var(lambda w: bool(w.dims) and self.alike(w, axes) and w.kind not in "bc"
                     and isinstance(w.dims[0], int) and w.dtype != np.float16)
        if v is None:
            return False
        if what == 1:
            x = f"np.clip({v.name}, -8, 8)" if v.kind == "f" else v.name
            self.define(f"spmd.psum_scatter({x}, {text}, 0, tiled=True)", v.dtype,
                        (Local(v.dims[0], axes), *v.dims[1:]), v.kind != "f")
        elif what == 4:
            self.define(f"spmd.pscatter({v.name}, {text}, {root}, tiled=True)", v.dtype,
                        (Local(v.dims[0], axes), *v.dims[1:]), v.exact)
        elif what == 2:
            got = self.define(f"spmd.all_gather({v.name}, {text})", v.dtype,
                              (Cut("members", text), *v.dims), v.exact)
            at = self.choice((f"spmd.axis_index({text})", f"spmd.axis_size({text}) - 1", "0"))
            self.define(f"{got.name}[{at}] + 0", (np.ones(1, v.dtype) + 0).dtype, v.dims, v.exact)
        else:
            w = self.var(lambda w: len(w.dims) == 2 and isinstance(w.dims[0], int)
                         and w.dims[1] in split)
            if w is None:
                return False
            self.define(f"spmd.all_to_all({w.name}, {text}, 0, 1, tiled=True)", w.dtype,
                        (Local(w.dims[0], axes), w.dims[1].whole), w.exact)
        return True

    def ring(self) -> bool:
        """The all-reduce of the language page, on any local array."""
        text, axes = self.along()
        v = self.var(lambda w: bool(w.dims) and self.alike(w, axes) and w.kind not in "bc"
                     and w.writable and w.dtype != np.float16
                     and self.may_store(w, w.kind != "f"))
        if v is None:
            return False
        b, k, p, m = self.name("b"), self.name("k"), self.name("p"), self.name("m")
        self.emit(f"{p}, {m} = spmd.axis_index({text}), spmd.axis_size({text})")
        if v.kind == "f":
            self.emit(f"{v.name}[...] = np.clip({v.name}, -8, 8)")
            v.group.exact = False
        self.emit(f"{b} = spmd.blocks({v.name}, {m})")
        self.emit(f"for {k} in spmd.range({m} - 1):")
        sent = f"{b}[({p} - {k}) % {m}]"
        self.emit(f"    {b}[({p} - {k} - 1) % {m}] += spmd.ppermute({sent}, {text}, shift=1)")
        if self.chance(60):
            self.emit(f"for {k} in spmd.range({m} - 1):")
            kept = f"{b}[({p} + 1 - {k}) % {m}]"
            self.emit(f"    {b}[({p} - {k}) % {m}] = spmd.ppermute({kept}, {text}, shift=1)")
        self.taint(v, v.kind != "f")
        return True
