"""What a rank alone would copy to itself is read where it lies, unless something writes there."""

from __future__ import annotations

import numpy as np
import pytest

import spmd
from codegen.compile import lower
from codegen.ir.plan import Exchange
from codegen.ir.steps import walk_steps

N = 40


@spmd.program(mesh=("r",))
def program():
    x, y, z = (spmd.input(name, (N,), layout=("r",)) for name in "xyz")
    m = spmd.input("m", (6, N), layout=("r", None))
    before = x[::2].copy()  # once each
    shown = {"diff": np.diff(y), "joined": np.concatenate([y, y + 1]), "turned": y[::-1].copy(),
             "rows": np.diff(m, axis=0), "overlaps": np.convolve(y, np.array([1.0, 2, 3]))}
    along = 2 * m
    for k in spmd.range(1, N):
        along[:, k] += 0.5 * along[:, k - 1]
    down = along.relayout((None, "r"))  # nobody needs the other one any more
    for k in spmd.range(1, 6):
        down[k] += 0.5 * down[k - 1]
    shown["added up"] = down.relayout(("r", None))
    for k in spmd.range(3):
        x[1:] = np.diff(x) + np.sum(np.diff(y))
        z[k] = np.sum(before) + np.max(np.diff(z))
    return {**shown, "before": before, "x": x, "z": z}


def test_only_what_nobody_writes_is_shown() -> None:
    def exchanges(f):
        levels = lower(spmd.program(mesh=("r",))(f).capture())
        return [s.shifts for s in walk_steps(levels.finished.steps) if isinstance(s, Exchange)]

    def read():
        return np.diff(spmd.input("x", (N,), layout=("r",)))

    def written():
        x = spmd.input("x", (N,), layout=("r",))
        before = x.copy()
        x[3] = 1
        return x, np.diff(before)  # what it reads is from before, and x has changed

    def written_later():
        x = spmd.input("x", (N,), layout=("r",))
        d = np.diff(x)
        x[3] = 1
        for _ in spmd.range(2):
            x[1:] = d * 2
        return x, d[::-1]

    def laid_out_anew():
        m = spmd.input("m", (6, N), layout=("r", None))
        for _ in spmd.range(2):
            turned = m.relayout((None, "r"))
            m[:] = np.cumsum(turned, axis=0)
        return m

    def filled_again():
        x = spmd.input("x", (N,), layout=("r",))
        for _ in spmd.range(2):
            x[1:-1] = x[2:] + x[:-2]
        return x

    assert exchanges(read) == [True]
    assert exchanges(written_later) == [True] * 3
    assert not all(exchanges(written)) and not any(exchanges(filled_again))
    assert any(exchanges(laid_out_anew))
    levels = lower(program.graph({}))
    assert sum(s.swaps for s in walk_steps(levels.finished.steps) if isinstance(s, Exchange)) == 2


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_results_in_one_job_run_after_run(ranks: int) -> None:
    rng = np.random.default_rng(0)
    with spmd.build(program).open(ranks=ranks) as job:
        for _ in range(3):
            given = {n: rng.normal(size=N) for n in "xyz"} | {"m": rng.normal(size=(6, N))}
            wanted = program.eager(**given)
            for name, found in job(**given).items():
                np.testing.assert_allclose(found, wanted[name], 1e-12, 1e-12, err_msg=name)
