"""What takes long is computed once where it is asked for twice, and results are NumPy's."""

from __future__ import annotations

from collections import Counter
from typing import Any

import numpy as np

import spmd
from codegen.compile import lower
from codegen.ir.graph import walk

_DRAW = np.random.default_rng(4)
GIVEN: dict[str, Any] = {
    "x": _DRAW.normal(size=500), "w": _DRAW.normal(size=500), "k": _DRAW.integers(0, 40, 500),
}


def twice(x: Any, w: Any, k: Any, turns: Any) -> Any:
    """Computes histograms, sums and lookups twice; `turns` is spmd.range, or Python's range for
    NumPy."""
    counts, weighed = np.histogram(x, 12)[0], np.histogram(x, 12, weights=w)[0]
    picked, again = w[k], w[k]
    again[3:] = again[3:] + picked[:-3]  # written over: not the other one
    scaled = x / np.max(np.abs(x)) - np.sum(x) / np.max(np.abs(x))
    signs = np.sum(x * 0.0 - 0.0) + np.sum(x * -0.0 - 0.0)
    total = np.zeros(3)
    for t in turns(3):
        total[t] = np.sum(x) * t + np.sum(x) + np.sum(w[k])
        x = x * 0.5  # another x from here on
    return {"counts": counts, "weighed": weighed, "again": again, "scaled": scaled,
            "signs": signs, "total": total, "last": np.sum(x)}


@spmd.program(mesh=("r",))
def case(rows: str = "r") -> Any:
    given = {n: spmd.input(n, a.shape, a.dtype, layout=(rows or None,)) for n, a in GIVEN.items()}
    return twice(**given, turns=spmd.range)


def test_what_takes_long_is_computed_once() -> None:
    levels = lower(case.graph({}, ()))
    ops = [op.kind for op in walk(levels.graph.body)]
    found = Counter(f"{what.called}.{getattr(what, 'fn', '')}" for what in ops)
    # min and max of one histogram and of abs; sums: two of signs, two in the loop, x before, last
    assert found["reduce.min"] == 1 and found["reduce.max"] == 2 and found["reduce.add"] == 6
    assert found["scatter.add"] == 2  # with weights, and without


def test_results_are_those_of_numpy() -> None:
    wanted = twice(**GIVEN, turns=range)
    for rows in ("r", ""):
        image = spmd.build(case, rows=rows)
        for ranks in (1, 2, 5):
            found = image.run(ranks=ranks, **GIVEN)
            for name, array in wanted.items():
                np.testing.assert_allclose(
                    found[name], array, rtol=1e-12, atol=1e-12, err_msg=f"{name} on {ranks}")
