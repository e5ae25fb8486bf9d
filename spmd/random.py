"""Random numbers that follow from a seed: the same for any number of ranks and any layout."""

from __future__ import annotations

import sys
from typing import Any

from codegen.trace.numpy import random

_NAMES = "bits normal permutation randint uniform".split()

# What people know from NumPy and JAX, and what to write here.
_INSTEAD = {
    **dict.fromkeys("key PRNGKey split fold_in seed".split(), "a seed and stream= take its place"),
    **dict.fromkeys("default_rng Generator".split(), "np.random.default_rng draws while building"),
    **dict.fromkeys("rand random random_sample".split(), "uniform(seed, shape)"),
    **dict.fromkeys("randn standard_normal".split(), "normal(seed, shape)"),
    **dict.fromkeys("integers".split(), "randint(seed, shape, low, high)"),
    **dict.fromkeys("choice".split(), "x[randint(seed, shape, 0, n)] draws from n elements"),
    **dict.fromkeys("shuffle".split(), "x[permutation(seed, n)]"),
    **dict.fromkeys("bernoulli binomial".split(), "uniform(seed, shape) < p"),
    **dict.fromkeys("exponential".split(), "-np.log1p(-uniform(seed, shape))"),
}


def __getattr__(name: str) -> Any:
    if name not in _NAMES:
        instead = _INSTEAD.get(name, f"it has {', '.join(_NAMES)}")
        module = sys.modules[__name__]
        raise AttributeError(f"spmd.random has no {name!r}: {instead}", name=None, obj=module)
    return getattr(random, name)


def __dir__() -> list[str]:
    return _NAMES
