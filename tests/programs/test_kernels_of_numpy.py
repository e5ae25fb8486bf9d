"""Kernels as people write them in NumPy give NumPy's results on any number of ranks."""

from __future__ import annotations

import numpy as np

import spmd
from tests.programs.numpy_kernels import KERNELS, arguments, changed, inputs, plain, program


def test_kernels_give_what_numpy_gives() -> None:
    small = {name: kernel.small for name, kernel in KERNELS.items()}
    image, wanted = spmd.build(program(small)), {}
    assert "dgemm" in {library["routine"] for library in image.manifest["libraries"]}
    for name, function in plain().items():
        given = arguments(name, small[name])
        wanted[name] = [np.asarray(v) for v in changed(function(**given), given)]
    for ranks in (1, 2, 3, 5, 16):
        for name, found in image.run(ranks=ranks, **inputs(small)).items():
            for got, want in zip(found, wanted[name], strict=True):
                tolerance = 1e-6 if want.dtype == np.float32 else 1e-11
                np.testing.assert_allclose(
                    got, want, rtol=tolerance, err_msg=f"{name} on {ranks} ranks")
