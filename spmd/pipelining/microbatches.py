"""A batch as microbatches: checked, cut into equal parts, and laid out for the stages that read it.

In: trees of arrays whose dim 0 is the batch. Out: Microbatches. Always holds: all microbatches have
as many rows, and a mask says which of these are examples.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any

import numpy as np

import spmd
from codegen.errors import ShapeError
from codegen.ir.graph import ArrayType
from codegen.places import user_place
from codegen.symbolic import expr
from codegen.trace.array import Array, as_array
from codegen.trace.number import Number, expr_of
from codegen.trace.state import fill, flatten
from spmd.optim.transformation import map_trees
from spmd.pipelining.stage_code import Masked

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import TrainingPipeline


@dataclass(frozen=True)
class Microbatches:
    """A batch as microbatches: x and y, trees of arrays (stage, microbatch, example, …), of which x
    has the row of the first stage only, and y that of the last one: other ranks hold nothing.

    mask: bool (microbatch, example), None where all examples are there. data: the mesh axis that
    splits the examples, and how many ranks lie along it. x_types, y_types: trees of the types of
    one microbatch on a rank.
    """

    x: Any
    y: Any
    mask: Any
    data: str | None
    ranks: Any
    x_types: Any
    y_types: Any

    @classmethod
    def of(cls, pipe: TrainingPipeline, x: Any, y: Any, count: int) -> Microbatches:
        """Return a batch cut into so many microbatches."""
        tree, leaves = flatten((x, y))
        arrays = [as_array(leaf) for leaf in leaves]
        batch = _examples_of(arrays[0])
        if isinstance(y, Masked):
            _check_mask(as_array(y.mask), batch)
        _check_examples(arrays, batch)
        if batch % count or not batch:
            fits = [k for k in range(1, batch + 1) if batch % k == 0]
            near = sorted(sorted(fits, key=lambda k: abs(k - count))[:2])
            raise ShapeError(
                f"{count} microbatches of a batch of {batch} examples", place=user_place(),
                expected="parts that are equal",
                remedy=(f"microbatches={' or '.join(map(str, near))}, or " if near else "")
                + f"a batch of {-(-max(batch, 1) // count) * count} with a mask")
        data = _data_axis(arrays[0], 0, pipe.axis) if batch > count else None  # one is not split
        if isinstance(y, Masked):
            arrays = [*_present(arrays[:-1], arrays[-1]), arrays[-1]]
        parts = [a.reshape(count, batch // count, *a.shape[1:]) for a in arrays]
        x, y = fill(tree, iter(parts), fresh=True)
        mask = y.mask.relayout((None, data)) if isinstance(y, Masked) else None
        x, y = (map_trees(lambda a, s=stage: pipe.places.only(s, a, data), tree)
                for stage, tree in ((0, x), (pipe.schedule.stages - 1, y)))
        return cls.in_flight(pipe, x, y, mask)

    @classmethod
    def in_flight(cls, pipe: TrainingPipeline, x: Any, y: Any, mask: Any) -> Microbatches:
        """Return microbatches (stage, microbatch, example, …), laid out as layout_of_batch says."""
        tree, parts = flatten((x, y))
        data = _data_axis(parts[0], 2, pipe.axis)
        size, ranks = int(parts[0].shape[2]), 1
        if data is not None:
            ranks = spmd.axis_size(data)
            spmd.require(
                ranks <= size,
                f"each rank along {data} has some of the {size} examples of a microbatch")
            spmd.require(
                size % ranks == 0,
                f"the ranks along {data} share the {size} examples of a microbatch equally")
        own = size if data is None else expr.floordiv(expr.const(size), expr_of(ranks))
        types = [ArrayType(a.type.dtype, (expr.as_expr(own), *a.type.shape[3:])) for a in parts]
        x_types, y_types = fill(tree, iter(types), fresh=True)
        return cls(x, y, mask, data, ranks, x_types, y_types)

    @property
    def count(self) -> int:
        """Return the number of microbatches."""
        return int(flatten(self.x)[1][0].shape[1])

    @property
    def masked(self) -> bool:
        """Return whether a mask says which examples are there."""
        return self.mask is not None

    def examples(self) -> Any:
        """Return how many examples of each microbatch are there."""
        return np.sum(self.mask, axis=1, dtype=np.int64)

    def weight(self) -> Any:
        """Return what gradients of the whole batch are divided by: how many examples are there, or
        how many microbatches."""
        if not self.masked:
            return self.count
        return np.maximum(np.sum(self.examples()), 1)

    def but(self, x: Any, y: Any, mask: Any) -> Microbatches:
        """Return a copy of this batch with other microbatches of the same types."""
        return replace(self, x=x, y=y, mask=mask)


def _examples_of(x: Array) -> int:
    """Return how many examples an array has; ShapeError where only the run knows that."""
    number = x.shape[0] if x.ndim else 0
    if isinstance(number, Number) and not number.expr.is_const:
        raise ShapeError(
            "a batch of as many examples as only the run knows", place=user_place(),
            expected="a number of examples that is known while building", found=str(x.type),
            remedy='spmd.Dim("batch", 32), and a mask where a batch may be shorter')
    return int(number)


def _check_examples(arrays: Sequence[Array], batch: int) -> None:
    """Raise ShapeError where not all arrays of a batch have its examples in dim 0."""
    wrong = next((a for a in arrays if not a.ndim or int(a.shape[0]) != batch), None)
    if wrong is not None:
        raise ShapeError(
            "an array of x or y has not as many examples as the first one of x"
            if arrays[0].ndim else "the first array of x has no examples",
            place=user_place(), expected=f"{batch} examples in dim 0" if batch else
            "examples in dim 0", found=str(wrong.type),
            remedy="x and y of one batch; what all examples share is a constant of a layer")


def _present(arrays: Sequence[Array], mask: Array) -> Iterator[Array]:
    """Yield arrays in which each example that is not there is another one: the first one that is,
    or zeros where none is. So what it holds, NaN too, makes no loss and no slope NaN."""
    first, some = np.argmax(mask), np.any(mask)
    for x in arrays:
        row = np.where(some, x[first], spmd.zeros((), x.type.dtype.name))
        yield as_array(np.where(mask.reshape(-1, *(1,) * (x.ndim - 1)), x, row))


def _check_mask(mask: Array, batch: int) -> None:
    """Raise ShapeError for a mask that does not say of each example whether it is there."""
    if mask.dtype != np.bool_ or mask.ndim != 1 or int(mask.shape[0]) != batch:
        raise ShapeError("mask says which examples of a batch are there", place=user_place(),
                         expected=f"bool[{batch}]", found=str(mask.type),
                         remedy="mask.astype(bool), as long as x" if mask.ndim == 1 else
                         f"np.arange({batch}) < count")


def _data_axis(x: Array, dim: int, axis: str) -> str | None:
    entry = (x.layout or (None,) * x.ndim)[dim]
    names = [entry] if isinstance(entry, str) else list(entry or ())
    return next((name for name in names if name != axis), None)
