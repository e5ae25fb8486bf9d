"""Random calls of NumPy's functions on arrays whose extents are numbers."""

from __future__ import annotations

from typing import Any

import numpy as np

from tests.programs.generate import Var, Writer

# {a}: an array; {b}: one of the same type; {d}: a dim. Results that may be views are copied.
ANY = """np.roll({a}, 1, axis={d})|np.roll({a}, -2)|np.flip({a})|np.flip({a}, axis={d})
np.repeat({a}, 2, axis={d})|np.tile({a}, 2)|np.swapaxes({a}, 0, -1).copy()|np.ravel({a}).copy()
np.moveaxis({a}, 0, -1).copy()|np.expand_dims({a}, {d}).copy()|np.squeeze({a}).copy()
np.stack([{a}, {b}], axis={d})|np.concatenate([{a}, {b}], axis={d})|np.take({a}, 0, axis={d})
np.count_nonzero({a})|np.atleast_2d({a}).copy()|np.zeros_like({a})|np.full_like({a}, 1)
{a}.T.reshape(-1).copy()|{a}[::-1].T.ravel()[::2].copy()
{a}.flatten()|{a}.reshape(-1)[::2].copy()|{a}[..., None].copy()|{a}[..., -1].copy()
np.hstack([{a}, {b}])|np.vstack([{a}, {b}])|np.array_split({a}, 2, axis={d})[0].copy()
np.broadcast_to({a}, (2, *{a}.shape)).copy()|{a}.T.copy().T.copy()
np.where({a}, {b}, {a})|{a}.squeeze().copy()|{a}.ravel()[-1]|np.pad({a}, 1)|np.any({a}, axis=None)
np.take({a}, np.array([0, -1]), axis={d})|np.array([[0, 1], [2, 3]])[None] * np.sum({a})
np.logical_and({a}, {b})|np.logical_xor({a}, {b})|{a}.sum(axis={d}, keepdims=True)"""
NUMBERS = """np.diff({a}, axis={d})|np.cumsum({a})|np.clip({a}, 0, 3)|np.clip({a}, {b}, None)
np.triu(np.atleast_2d({a}))|np.maximum({a}, {b})|np.outer({a}, {b})|np.positive({a})
np.max({a}, axis={d}, keepdims=True)|np.argmax({a})|np.min({a})|np.ptp({a}, axis={d})
np.minimum.reduce({a}, axis={d})|np.maximum.accumulate({a}, axis={d})|np.sort({a}, axis=None)
np.histogram({a}, 4, (-3, 3))[0]|np.histogram({a}, [-2, 0, 1, 5])[0]
np.digitize({a}, [-1, 0, 2])
np.amax({a})|np.round({a})|np.argmin({a}, axis={d})|np.max({a}, initial=2)"""
INTEGERS = """np.histogram({a}, 5)[0]|np.histogram({a}, 3, weights={a})[0]|np.histogram({a}, 7)[1]
np.dot(np.ravel({a}), np.ravel({b}))
np.add.reduce({a}, axis={d})|np.prod({a}, axis={d})|np.vdot({a}, {b})|np.bitwise_and({a}, 3)
np.tensordot({a}, {b}, 0)|np.cumprod({a}, axis={d})|np.left_shift({a}, 1)|np.inner({a}, {b})
np.searchsorted(np.sort(np.ravel({a})), np.ravel({b}))|np.floor_divide({a}, 3)|divmod({a}, 3)[1]
np.tril(np.atleast_2d({a}), -1)|np.trace(np.atleast_2d({a}))|np.sum({a}, dtype=np.int64)
np.mean({a} // 8 * 8, dtype=np.float64) * 0|np.multiply.outer({a}, np.arange(2))"""
FLOATS = """np.searchsorted(np.sort(np.ravel({a})), {b})|np.digitize({a}, [2.0, 0.0, -1.0])
np.searchsorted(np.sort(np.ravel({a})), {b}, side='right')
np.nan_to_num({a}, posinf=1, neginf=-1)|np.isclose({a}, {a})|np.trunc({a})
np.isnan({a})|np.isinf({a})|np.sqrt(np.abs({a}))|np.fmod({a}, 3)|np.reciprocal(np.abs({a}))
np.where(np.isfinite({a}), {a}, {b})|np.fabs({a})|np.floor({a}) // 2"""
ROUNDED = """np.mean({a}, axis={d})|np.log1p(np.abs({a}))|np.hypot({a}, {b})|np.var({a})|np.exp({a})
np.linalg.norm(np.ravel({a}))|np.dot(np.ravel({a}), np.ravel({b}))|np.std({a}, axis={d})
np.cbrt({a})|np.log(np.abs({a}) + 1)|np.sum({a}, axis={d})|np.cumsum({a})|np.prod(np.sign({a}))
np.einsum('i,i->', np.ravel({a}), np.ravel({b}))|np.arctan({a})|np.sinh({a} / 4)|np.cosh({a} / 4)
np.expm1({a})|np.logaddexp({a}, {b})|np.average({a}, axis={d})|np.exp2({a})"""


def rows(text: str) -> list[str]:
    return [row for line in text.splitlines() for row in line.split("|")]


class Library(Writer):
    """A Writer that also knows NumPy's functions."""

    def call(self) -> bool:
        v = self.var(lambda w: w.fixed and bool(w.dims) and len(w.dims) < 4)
        if v is None:
            return False
        w = self.same(v, lambda w: w.dtype == v.dtype and w.exact >= v.exact) or v
        form, exact = self.form(v, v.exact and w.exact)
        d = self.draw_dim(v)
        names = {"a": v.name, "b": w.name}
        if not exact:  # finite and small, so that rounding stays rounding
            names = {k: f"np.clip(np.where({x} == {x}, {x}, 0), -8, 8)" for k, x in names.items()}
        made = self.tried(form.format(a="a", b="b", d=d), v)
        if made is None:
            return False
        self.define(form.format(**names, d=d), made[0], made[1], exact and v.exact and w.exact)
        return True

    def draw_dim(self, v: Var) -> int:
        return int(self.choice(range(len(v.dims))))

    def form(self, v: Var, exact: bool) -> tuple[str, bool]:
        """A template, and whether it adds no rounding of its own."""
        groups = [ANY] if exact else ["np.roll({a}, 1, axis={d})|np.flip({a})|np.tile({a}, 2)"]
        if exact and v.kind not in "bc":
            groups.append(NUMBERS)
        if exact and v.kind in "iu":
            groups.append(INTEGERS)
        if exact and v.kind == "f":
            groups.append(FLOATS)
        if v.kind == "f" and v.dtype != np.float16:
            groups.append(ROUNDED)
        group = self.choice(groups)
        return self.choice(rows(group)), group is not ROUNDED

    def tried(self, text: str, v: Var) -> tuple[Any, tuple[int, ...]] | None:
        """dtype and shape that NumPy gives for such arrays; None where it refuses."""
        one = np.ones(v.dims, v.dtype)
        try:
            with np.errstate(all="ignore"):
                got = eval(text, {"np": np, "a": one, "b": one, "divmod": divmod})
        except (TypeError, ValueError, IndexError, np.linalg.LinAlgError):
            return None
        ok = got.size and got.size < 200 and got.ndim < 4
        return (got.dtype, got.shape) if ok and got.dtype.kind in "biufc" else None
