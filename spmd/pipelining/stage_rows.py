"""Work on arrays with a row for each stage: each rank works on the rows that it has.

Always holds: dim 0 is the stage; of arrays with three dims or more, the last but one is the
position along the data axis, where there is one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import spmd
from codegen.trace.control.functional import changing_loop
from codegen.trace.state import fill, flatten

Body = Callable[[Any, Any, Any, Any], Any]


def by_rows(
    axis: str, data: str | None, body: Body, state: Any, read: Any, batches: Any = (),
) -> Any:
    """Return `state` after body(j, state, read, batches) for each row j of this rank's.

    state, read: trees of arrays with a row for each stage; body writes into those of the state.
    batches: a tree of arrays (microbatch, example, …), which all stages may read.
    """
    tree, leaves = flatten((state, read, batches))
    count, rows = len(flatten(state)[1]), len(flatten((state, read))[1])

    def local(*arrays: Any) -> Any:
        state, read, batches = fill(tree, iter(arrays), fresh=True)

        def row(j: Any, state: Any) -> Any:
            body(j, state, read, batches)
            return state

        state = changing_loop(0, arrays[0].shape[0], row, state, "writes")
        return tuple(flatten(state)[1])

    layouts = [layout_of_rows(axis, data, x.ndim) for x in leaves[:rows]]
    layouts += [(None, data, *(None,) * (x.ndim - 2)) for x in leaves[rows:]]
    mapped = spmd.shard_map(local, mesh=(axis,) if data is None else (data, axis),
                            in_layouts=tuple(layouts), out_layouts=tuple(layouts[:count]))
    return fill(flatten(state)[0], iter(mapped(*leaves)), fresh=True)


def layout_of_rows(axis: str, data: str | None, ndim: int) -> tuple[Any, ...]:
    """Return the layout of an array with a row for each stage."""
    if ndim < 3:
        return (axis, *(None,) * (ndim - 1))
    return (axis, *(None,) * (ndim - 3), data, None)
