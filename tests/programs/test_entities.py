"""Random classes that are programs: an open image against the class as plain Python, call by call.

And each entry against the program that it would be alone, to the bit.
"""

from __future__ import annotations

import importlib.util
import os
import sys
from typing import Any

import numpy as np
import pytest
from hypothesis import settings

import spmd
from codegen.oracle.eager import mesh_sizes
from codegen.user.named import named
from tests.conftest import numbers
from tests.programs.entities import Machine, machine, plain_text

LONG = settings.get_profile(settings._current_profile or "short").max_examples > 100  # make random
RANKS = (1, 2, 3, 5)
CALLS = int(os.environ.get("SPMD_RANDOM_CALLS", "6"))


def loaded(text: str, folder: Any, name: str) -> dict[str, Any]:
    path = folder / f"{name}_of_{folder.name}.py"
    path.write_text(text)
    spec = importlib.util.spec_from_file_location(path.stem, path)
    assert spec and spec.loader
    module = importlib.util.module_from_spec(spec)
    sys.modules[path.stem] = module  # where dataclasses look for it
    spec.loader.exec_module(module)
    return vars(module)


def same(found: Any, expected: Any, what: str) -> None:
    if expected is None:
        assert found is None, what
        return
    left, right = list(named(found)), list(named(expected))
    assert [n for n, _ in left] == [n for n, _ in right], what
    for (name, a), (_, b) in zip(left, right, strict=True):
        x, y = np.asarray(a), np.asarray(b)
        assert (x.dtype, x.shape) == (y.dtype, y.shape), (what, name, x.dtype, y.dtype)
        np.testing.assert_allclose(x, y, rtol=1e-9, atol=1e-9, err_msg=f"{what}: {name}")


def calls(one: Machine, space: dict[str, Any], ranks: int, seed: int) -> None:
    """The same calls of both; now and then both get the same state."""
    rng = np.random.default_rng(seed)
    plain = space["Machine"].eager(ranks=ranks)
    n = mesh_sizes(one.axes, dict.fromkeys(one.axes), ranks)["r"]
    with spmd.build(space["Machine"]).open(ranks=ranks) as job:
        same(job.state(), plain.state(), "the state at first")
        for k in range(CALLS):
            entry = str(rng.choice(list(one.inputs)))
            given = one.arguments(entry, n, rng)
            what = f"call {k}, {entry}, of {ranks} ranks"
            same(job.entries[entry](**given), plain.entries[entry](**given), what)
            same(job.state(), plain.state(), f"the state after {what}")
            if not rng.integers(4):
                state = {name: np.asarray(x + x.dtype.type(1) if x.dtype != bool else ~x)
                         for name, x in plain.state().items()}
                plain.load(state)
                job.load(state)


def alone(one: Machine, space: dict[str, Any], folder: Any, ranks: int, seed: int) -> None:
    """Each entry once, from some state: the program that it is alone gives the same bits."""
    rng = np.random.default_rng(seed)
    image = spmd.build(space["Machine"])
    n = mesh_sizes(one.axes, dict.fromkeys(one.axes), ranks)["r"]
    rows = [(s["path"], image.manifest["inputs"][s["input"]]) for s in image.manifest["states"]]
    paths = [path for path, _ in rows]
    layouts = {p: tuple(None if not e else tuple(e) for e in row["layout"]) for p, row in rows}
    shapes = {s.path: s.shape for s in one.states} | dict.fromkeys(one.numbers, "()")
    types = {p: (shapes[p], row["dtype"]) for p, row in rows}
    text = one.text + "".join(plain_text(one, e, layouts, paths, types) for e in one.inputs)
    programs = loaded(text, folder, "alone")
    with image.open(ranks=ranks) as job:
        for entry in one.inputs:
            given = one.arguments(entry, n, rng)
            state = list(job.state().values())
            result = job.entries[entry](**given)
            inputs = {f"s{k}": x for k, x in enumerate(state)}
            out = spmd.build(programs[f"plain_{entry}"]).run(ranks=ranks, **inputs, **given)
            for k, (name, x) in enumerate(job.state().items()):
                assert x.tobytes() == out[f"s{k}"].tobytes(), (entry, name, x, out[f"s{k}"])
            if result is not None:
                for (_, a), (_, b) in zip(named(result), named(out["result"]), strict=True):
                    assert np.asarray(a).tobytes() == np.asarray(b).tobytes(), (entry, a, b)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(2))
def test_random_classes(part: int, tmp_path: Any) -> None:
    for seed in numbers(10_000) if LONG else range(4):
        if seed % 2 != part:
            continue
        one = machine(seed)
        folder = tmp_path / str(seed)
        folder.mkdir()
        try:
            space = loaded(one.text, folder, "machine")
            calls(one, space, RANKS[seed % 4], seed)
            if seed % 3 == 0:
                alone(one, space, folder, RANKS[seed // 3 % 4], seed)
        except BaseException:
            print(f"seed {seed}\n{one.text}")
            raise
