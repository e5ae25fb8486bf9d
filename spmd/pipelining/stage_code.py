"""The code of each stage of a pipeline: its layers one after the other, forward and backward.

In: layers with their parameters, cut into stages, and the types of a microbatch. Out: for each
stage the Halves of what it does, and the packings of all that stages hand on and keep.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np

from codegen.dtypes import INT64
from codegen.errors import ShapeError
from codegen.ir import ArrayType
from codegen.places import user_place
from codegen.trace.array import Array, as_array
from codegen.trace.context import Context
from codegen.trace.control.conversion import as_called
from codegen.trace.derive.backward_parts import BackwardParts, backward_parts
from codegen.trace.derive.two_parts import Halves, in_two
from codegen.trace.state import fill, flatten
from spmd.nn.layers import DropoutKey, dropout_key
from spmd.optim.transformation import map_trees
from spmd.pipelining.flat_buffers import Packing


class Masked(NamedTuple):
    """Targets, and which examples of the batch are there: bool (example,)."""

    targets: Any
    mask: Any


KEY = DropoutKey(*[ArrayType(INT64, ())] * 2)


@dataclass(frozen=True)
class Stage:
    """Some layers in a row. begin: the number of the first of them; before: the function of the
    layer before it. first, last: whether it is the first stage, or gives the loss."""

    functions: tuple[Callable[..., Any], ...]
    parameters: list[Any]
    number: int
    begin: int
    before: Callable[..., Any] | None
    first: bool
    last: bool

    def __call__(self, weights: Sequence[Any], h: Any, key: DropoutKey, *targets: Any) -> Any:
        """Return what the stage hands on, or the loss. key: of dropout in its first layer."""
        for k in range(len(self.functions)):
            with _dropout_follows(DropoutKey(key.stream + k, key.part)):
                h = self._layer(k, weights[k], h, targets)
        return h

    def without_dropout(self, weights: Sequence[Any], h: Any, *targets: Any) -> Any:
        """Return what the stage hands on, or the loss."""
        with _dropout_follows(None):
            for k in range(len(self.functions)):
                h = self._layer(k, weights[k], h, targets)
        return h

    def _layer(self, k: int, own: Any, h: Any, targets: tuple[Any, ...]) -> Any:
        """Return what a layer hands on."""
        more = targets if self.last and k == len(self.functions) - 1 else ()
        masks = [y.mask for y in more if isinstance(y, Masked)]
        plain = [y.targets if isinstance(y, Masked) else y for y in more]
        try:
            found = as_called(self.functions[k])(own, h, *plain)
        except ShapeError as error:
            if self.begin + k:
                raise self._unfit(k, h, error) from None
            raise
        return _sum_of(found, masks[0]) if masks else found

    def _unfit(self, k: int, h: Any, error: ShapeError) -> ShapeError:
        """Return the error of a layer that does not take what the one before hands on."""
        number = self.begin + k
        before = self.functions[k - 1] if k else self.before
        shapes = ", ".join(str(x.type) for x in flatten(h)[1] if isinstance(x, Array))
        return ShapeError(
            f"layer {number}, {_shown(self.functions[k])}, does not take what layer {number - 1}, "
            f"{_shown(before)}, hands on", place=error.place,
            expected=f"another shape: {error.message}", found=shapes,
            remedy="layers that fit: each takes what the one before returns")


def stages_of(layers: Sequence[tuple[Callable[..., Any], Any]], positions: Sequence[int]
              ) -> list[Stage]:
    """Return layers, pairs (function, parameters), as stages. positions: where each stage begins,
    and where the last one ends."""
    last = len(positions) - 2
    return [Stage(tuple(f for f, _ in layers[a:b]), [w for _, w in layers[a:b]], s, a,
                  layers[a - 1][0] if a else None, s == 0, s == last)
            for s, (a, b) in enumerate(zip(positions, positions[1:]))]


def _sum_of(losses: Any, mask: Any) -> Any:
    """Return the sum of the losses of the examples that are there."""
    found = as_array(losses)
    if found.type.shape != mask.type.shape:
        raise ShapeError(
            "where there is a mask, the last layer gives the loss of each example",
            place=user_place(), expected=f"floats of shape [{mask.shape[0]}]",
            found=str(found.type), remedy="np.mean(…, axis=…) over all dims but that of the batch")
    return np.sum(np.where(mask, found, 0))


@contextmanager
def _dropout_follows(key: DropoutKey | None) -> Iterator[None]:
    token = dropout_key.set(key)
    try:
        yield
    finally:
        dropout_key.reset(token)


def _shown(function: Any) -> str:
    """Return the name of a layer's function and where it is written."""
    code = getattr(function, "__code__", None)
    name = getattr(function, "__name__", type(function).__name__)
    return f"{name} ({code.co_filename}:{code.co_firstlineno})" if code else name


@dataclass(frozen=True)
class StageCode:
    """What stages do with microbatches of one type.

    halves: of each stage. like: of each stage, the first one with the same code. activations: what
    stages hand on, by the stage that gives it. cotangents: of the floats of these. kept: what
    stages keep from F to B, or to W. parts, crossing: where W is an action of its own, what B and W
    do, and what W reads of B.
    """

    halves: list[Halves]
    parts: list[BackwardParts]
    like: list[int]
    activations: Packing
    cotangents: Packing
    kept: Packing
    crossing: Packing

    def handed(self, stage: int, leaves: Sequence[Any]) -> Any:
        """Return the tree that a stage hands on, of its leaves."""
        return fill(self.halves[stage].out, iter(leaves), fresh=True)


def type_of(x: Any) -> ArrayType:
    """Return the type of a leaf as a local array."""
    array = x if isinstance(x, Array) else as_array(x)
    return ArrayType(array.type.dtype, array.type.shape)


def types_of(tree: Any) -> Any:
    """Return the tree with types in the place of arrays."""
    return map_trees(type_of, tree)


def kind_of(tree: Any) -> str:
    """Return a text that is equal for trees of one structure, with leaves of the same types."""
    shape, leaves = flatten(tree)
    return str([*zip(shape.paths(), leaves, strict=True), *map(type, shape.containers())])


def code_of(context: Context, stages: Sequence[Stage], x: Any, y: Any, backward: bool = True,
            apart: bool = False) -> StageCode:
    """Return the code of stages for microbatches x and targets y, trees of types. y: None where the
    last layer is called without targets. apart: whether W is an action of its own."""
    halves: list[Halves] = []
    like: list[int] = []
    known: dict[Any, int] = {}
    h: Any = x
    for stage in stages:
        given = [h, *([KEY] if backward else []), *([y] if stage.last and y is not None else [])]
        wanted = [not stage.first, False, False][:len(given)]
        own = types_of(stage.parameters)
        key = (*map(id, stage.functions), kind_of(own), kind_of(given), stage.first, stage.last)
        like.append(known.setdefault(key, stage.number))
        made = halves[like[-1]] if like[-1] < stage.number else in_two(
            context, stage if backward else stage.without_dropout, own, given, wanted, backward)
        halves.append(made)
        if stage.last and y is not None and (made.out.kind != "leaf" or made.out_types[0].shape
                           or made.out_types[0].dtype.kind != "f"):
            raise ShapeError("the last layer of a pipeline gives the loss of a microbatch",
                             expected="one float, an array of shape ()",
                             found=", ".join(map(str, made.out_types)),
                             remedy="np.mean(…) of the losses of its examples")
        h = fill(made.out, iter(made.out_types), fresh=True)
    inner = [m.out_types for m in halves]
    if backward:  # nobody is handed the loss
        inner[-1] = []
    floats = [[t for t in types if t.dtype.kind in "fc"] for types in inner]
    unlike = {s: backward_parts(halves[s]) for s in set(like)} if apart else {}
    parts = [unlike[s] for s in like] if apart else []
    return StageCode(halves, parts, like, Packing(inner), Packing(floats),
                     Packing([m.kept_types for m in halves]),
                     Packing([p.crossing_types for p in parts]))
