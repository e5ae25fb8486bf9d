"""A user's program, as mypy reads it: `make types` checks that the names of spmd have types.

Every `type: ignore` is a mistake that mypy finds: without it, or without the mistake, it complains.
"""

from __future__ import annotations

from typing import assert_type

import numpy as np

import spmd


def laplacian(u: spmd.Array) -> spmd.Array:
    total: spmd.Array = np.roll(u, 1) + np.roll(u, -1) - 2 * u
    return total


@spmd.program(mesh=("x",))
def heat(n: int = 16) -> dict[str, spmd.Array]:
    u = spmd.input("u", (n,), np.float64, layout=("x",), default=lambda i: i)
    assert_type(u, spmd.Array)

    @spmd.shard_map(mesh="x", out_layouts=("x",))
    def scaled(part: spmd.Array) -> spmd.Array:
        largest: spmd.Array = spmd.pmax(np.max(part), "x")
        share: spmd.Array = part / largest
        return share

    for _ in spmd.range(3):
        u = u + 0.1 * laplacian(u)
    return {"u": scaled(u), "n": spmd.axis_sise("x")}  # type: ignore[attr-defined]


def use() -> None:
    assert_type(heat, spmd.Program)
    image = spmd.build(heat, n=8)
    assert_type(image, spmd.Image)
    image.rum()  # type: ignore[attr-defined]
    image.open(time_limit="long")  # type: ignore[arg-type]
    image.open(rnaks=4)  # type: ignore[call-arg]
    image.run(mesh=4, u=np.arange(8.0))  # type: ignore[arg-type]
    image.profile(threads="all")  # type: ignore[arg-type]
    assert_type(image.timeline("t.json", ranks=4, u=np.arange(8.0)), str)
    image.timeline("t.json", ranks="4")  # type: ignore[arg-type]
    for row in image.profile(ranks=4):
        assert_type(row["seconds"] > 1, bool)  # type: ignore[assert-type]
    with image.open(ranks=4, keep=True) as job:
        assert_type(job, spmd.Opened)
    error: type[spmd.SpmdError] = spmd.InputError
    print(error, spmd.random.uniform, spmd.numpy.roll)
