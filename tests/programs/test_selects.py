"""Conditional values in small nests of loops: where gcc 12 vectorised masked loads wrongly."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import spmd

SHAPES = [(4, 5), (3, 3), (5, 7), (3, 4, 5), (2, 24), (7, 17), (3, 100)]
PAIRS = [("float64", "float64"), ("int32", "float64"), ("float32", "float32"), ("int16", "int64")]


def chosen(a: Any, b: Any, m: Any) -> dict[str, Any]:
    """Each result selects by m, a mask of its own, or by the data."""
    return {
        "sum": np.sum(a, where=m),
        "sum_of_where": np.sum(np.where(m, a, 0)),
        "rows": np.sum(np.where(a > 0, a, b), axis=-1),
        "columns": np.sum(np.where(m, b, a), axis=0),
        "where": np.where(a > 0, a, b),
        "both": np.concatenate([a, b]),
        "stacked": np.stack([np.where(m, a, b), np.where(m, b, a)]).sum(0),
        "last": np.sum(a[-1] * np.where(m[0], a[0], b[0])),
        "select": np.select([a > 1, b > 1], [a, b], 3),
        "largest": np.max(np.where(m, a, b), axis=-1),
        "product": np.prod(np.where(m, b, 1), axis=-1),
        "all": np.all((a > 0) | m, axis=-1),
    }


@pytest.mark.parametrize("pair", PAIRS, ids="-".join)
def test_selects_agree_with_numpy(pair: tuple[str, str]) -> None:
    """All shapes in one image: each is a program of its own for the C compiler."""
    draw = np.random.default_rng(5)
    names = ["x".join(map(str, s)) for s in SHAPES]

    @spmd.program(mesh=("r",))
    def program():
        def given(name, shape, dtype):
            return spmd.input(name, shape, dtype, layout=(None,) * len(shape))

        sets = [tuple(given(f"{k}{n}", s, t) for k, t in zip("abm", (*pair, "bool"), strict=True))
                for n, s in zip(names, SHAPES, strict=True)]

        @spmd.shard_map(mesh="r", out_layouts=spmd.replicated)
        def local(sets):
            return [chosen(*arrays) for arrays in sets]

        out = local(sets)
        return {f"{k}{n}": v for n, made in zip(names, out, strict=True) for k, v in made.items()}

    image = spmd.build(program)
    for density in (0.02, 0.5):
        inputs: dict[str, Any] = {}
        for n, s in zip(names, SHAPES, strict=True):
            for k, t in zip("ab", pair, strict=True):
                inputs[k + n] = draw.integers(-3, 4, s).astype(t)
            inputs["m" + n] = draw.random(s) < density
        out = image.run(**inputs)
        for n in names:
            wanted = chosen(*(inputs[k + n] for k in "abm"))
            for k, v in wanted.items():
                np.testing.assert_array_equal(out[k + n], v, err_msg=f"{k} of {n}")
