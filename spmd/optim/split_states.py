"""Optimizers whose state is split over the ranks that share the data (Rajbhandari et al., 2020).

Gradients are laid out split before the optimizer sees them, so that their sums over the ranks are
reduce-scatters; its updates are gathered. States hold what one rank works on: ZeRO, stages 1 and 2.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from spmd import UsageError
from spmd.extend import user_place
from spmd.optim.transformation import GradientTransformation, map_trees


def sharded(tx: GradientTransformation, axis: str) -> GradientTransformation:
    """Return the same optimizer, with its state and its work split over a mesh axis: that of the
    data, along which parameters are replicated.

    - tx: any transformation; its results are the same, up to rounding of norms.
    - axis: the mesh axis. Each array is split along its longest dim that is not split yet, into
      blocks that may be uneven; one that the axis splits already stays as it is.

    A step sends a reduce-scatter of each gradient and an all-gather of each update, which is as
    much as an all-reduce of each gradient. UsageError where axis is no name.

    Example::

        @spmd.program(mesh=("data",))
        def halves(n: int = 6):
            x = spmd.input("x", (n, 4), np.float64, layout=("data", None), default=lambda i, j: i)
            w = np.ones(4)
            tx = spmd.optim.sharded(spmd.optim.sgd(0.1, momentum=0.9), "data")
            state = tx.init(w)
            for _ in spmd.range(2):
                grads = spmd.grad(lambda w: np.mean(x @ w))(w)
                updates, state = tx.update(grads, state, w)
                w = spmd.optim.apply_updates(w, updates)
            return w, state[0].trace

        print(spmd.build(halves).run(ranks=2)[0])    # [0.275 0.275 0.275 0.275]
    """
    if not isinstance(axis, str):
        raise UsageError("sharded: axis is no name of a mesh axis", place=user_place(),
                         expected='sharded(tx, "data")', found=repr(axis))

    def split(x: Any) -> Any:
        layout = _split(x, axis)
        return x if layout is None else x.relayout(layout)

    def joined(update: Any, x: Any) -> Any:
        return update if _split(x, axis) is None else update.relayout(x.layout)

    def init(params: Any) -> Any:
        return tx.init(map_trees(split, params))

    def update(updates: Any, state: Any, params: Any = None) -> Any:
        mine = None if params is None else map_trees(split, params)
        result, new = tx.update(map_trees(split, updates), state, mine)
        return map_trees(joined, result, updates), new

    return GradientTransformation(init, update)


def _split(x: Any, axis: str) -> tuple[Any, ...] | None:
    """Return the layout of an array that the axis splits too; None where it cannot, or does
    already."""
    layout = getattr(x, "layout", None)
    if layout is None:
        layout = (None,) * np.ndim(x)
    entries = [e if isinstance(e, tuple) else (e,) for e in layout]
    free = [d for d, e in enumerate(entries) if e in ((None,), ())]
    if not free or any(axis in e for e in entries) or not hasattr(x, "relayout"):
        return None
    longest = max(free, key=lambda d: int(np.shape(x)[d]))
    return tuple(axis if d == longest else e for d, e in enumerate(layout))
