"""Transposed operands are read in strips, and what comes out is what NumPy says."""

from __future__ import annotations

from typing import Any

import numpy as np

import spmd
from codegen.compile import lower
from codegen.plan.grammar import Phase, Store
from codegen.plan.steps import walk_steps
from codegen.plan.text import work_text

_DRAW = np.random.default_rng(3)
GIVEN: dict[str, Any] = {
    "a": _DRAW.normal(size=(37, 53)), "t": _DRAW.normal(size=(11, 20, 18)).astype(np.float32),
    "c": (_DRAW.normal(size=(19, 33)) + 1j).astype(np.complex64),
    "h": np.arange(840).reshape(40, 21).astype(np.int8),
}


def turned(a: Any, t: Any, c: Any, h: Any) -> Any:
    out = np.zeros((53, 37))
    out += a.T
    own = a[:30, :30].copy()
    own[:] = own.T + own
    return {
        "added": out, "copied": a.T.copy(), "numbered": a.T + np.arange(37), "own": own,
        "reversed": t.transpose(2, 1, 0) + 0.5, "rolled": t.transpose(2, 0, 1) - 1,
        "inner": t.transpose(0, 2, 1) * 2, "conjugate": np.conj(c).T, "bytes": h.T[::2, ::-1] * 3,
        "function": np.exp(a.T),
    }


@spmd.program(mesh=("x",))
def case() -> Any:
    return turned(**{n: spmd.input(n, x.shape, x.dtype, layout=(None,) * (x.ndim - 1) + ("x",))
                     for n, x in GIVEN.items()})


def test_operands_across_are_read_in_strips() -> None:
    steps = walk_steps(lower(case.capture()).finished.steps)
    works = [w for s in steps if isinstance(s, Phase) for w in s.work]
    texts = [work_text(w) for w in works if isinstance(w, Store)]
    strips = [text for text in texts if "_strip <" in text]
    assert len(strips) > 4 and not any("exp(" in text for text in strips)
    image = spmd.build(case)
    for ranks in (1, 3, 20):
        found = image.run(ranks=ranks, **GIVEN)
        for name, wanted in turned(**GIVEN).items():
            np.testing.assert_allclose(found[name], wanted, rtol=1e-6, err_msg=f"{name} on {ranks}")
