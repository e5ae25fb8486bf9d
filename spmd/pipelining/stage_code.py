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
from codegen.errors import ProgramError, ShapeError, SpmdError, UnsupportedError
from codegen.ir.graph import ArrayType, Op, Region, walk
from codegen.places import is_ours, put_place, user_place
from codegen.places import last as last_step
from codegen.trace.array import Array, as_array
from codegen.trace.context import Context
from codegen.trace.control.conversion import as_called
from codegen.trace.derive.backward_parts import BackwardParts, backward_parts
from codegen.trace.derive.halves import Halves
from codegen.trace.number import Number
from codegen.trace.numpy_errors import MISTAKES
from codegen.trace.state import fill, flatten
from codegen.user.signatures import check_call
from spmd.nn.layers import DropoutKey, dropout_key
from spmd.pipelining.flat_buffers import Packing
from spmd.pipelining.layer_texts import function_name, place_of_function, types_text
from spmd.pipelining.split_axes import SplitAxes


class Masked(NamedTuple):
    """Targets, and which examples of the batch are there: bool (example,)."""

    targets: Any
    mask: Any


KEY = DropoutKey(*[ArrayType(INT64, ())] * 2)


@dataclass(frozen=True)
class Stage:
    """Some layers in a row. types: of the parameters, as of SplitAxes. begin: the number of the
    first of them; before: the function of the layer before it. first, last: whether it is the first
    stage, or gives the loss."""

    functions: tuple[Callable[..., Any], ...]
    parameters: list[Any]
    types: list[Any]
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
        returned = self._called(k, {"parameters": own, "x" if self.first and not k else "h": h,
                                    **({"y": plain[0]} if plain else {})})
        return _sum_of(returned, masks[0]) if masks else returned

    def _called(self, k: int, arguments: dict[str, Any]) -> Any:
        """Return what a layer's function returns for these arguments. Errors in it say which layer
        it is, and with what it is called."""
        function = self.functions[k]
        try:
            check_call(function, "its function", *arguments.values(), expected=(
                f"a function of ({', '.join(arguments)}), as layer {self.begin + k} is called"))
            returned = as_called(function)(*arguments.values())
            _check_returned(returned)
        except SpmdError as error:
            put_place(error)
            self._say_which(k, arguments, error)
            raise
        except MISTAKES as error:
            inner = last_step(error.__traceback__)
            if inner is None or is_ours(inner.tb_frame.f_code.co_filename):
                raise  # no mistake of the user's
            failed = ProgramError(f"{type(error).__name__}: {error}")
            put_place(failed.with_traceback(error.__traceback__))
            self._say_which(k, arguments, failed)
            raise failed from error
        return returned

    def _say_which(self, k: int, arguments: dict[str, Any], error: SpmdError) -> None:
        """Say in an error of a layer which one it is, and with what it is called."""
        number, function = self.begin + k, self.functions[k]
        before = self.functions[k - 1] if k else self.before
        error.message = f"layer {number}, {function_name(function)}: {error.message}"
        texts = [f"{name} {types_text(x)}" for name, x in arguments.items()]
        called = f"called with {'; '.join(texts)}"
        if before is not None:
            called += f"; h is what layer {number - 1}, {function_name(before)}, returns"
        error.found = f"{error.found}; {called}" if error.found else called
        error.remedy = error.remedy or (
            "a last layer that also does without targets, as f(w, h, y=None)"
            if self.last and number and "y" not in arguments and k == len(self.functions) - 1 else
            "layers that fit: each takes (parameters, h), h as the one before returns it")
        known = {(p.file, p.line) for p in [error.place] if p}
        for n, f in ((number, function), (number - 1, before or function)):
            place = place_of_function(f)
            if place and (place.file, place.line) not in known:
                known.add((place.file, place.line))
                error.also += (f"layer {n}, {function_name(f)}, is in", place),


def stages_of(layers: Sequence[tuple[Callable[..., Any], Any]], positions: Sequence[int],
              split: SplitAxes) -> list[Stage]:
    """Return layers, pairs (function, parameters), as stages. positions: where each stage begins,
    and where the last one ends."""
    last = len(positions) - 2
    return [Stage(tuple(f for f, _ in layers[a:b]), [w for _, w in layers[a:b]],
                  [split.types_of(w) for _, w in layers[a:b]], s, a,
                  layers[a - 1][0] if a else None, s == 0, s == last)
            for s, (a, b) in enumerate(zip(positions, positions[1:]))]


def _sum_of(losses: Any, mask: Any) -> Any:
    """Return the sum of the losses of the examples that are there."""
    each = as_array(losses)
    if each.type.shape != mask.type.shape:
        raise ShapeError(
            "where there is a mask, the last layer gives the loss of each example",
            place=user_place(), expected=f"floats of shape [{mask.shape[0]}]",
            found=str(each.type), remedy="np.mean(…, axis=…) over all dims but that of the batch")
    return np.sum(np.where(mask, each, 0))


@contextmanager
def _dropout_follows(key: DropoutKey | None) -> Iterator[None]:
    token = dropout_key.set(key)
    try:
        yield
    finally:
        dropout_key.reset(token)


def _check_returned(tree: Any) -> None:
    """Raise ProgramError where what a layer returns is no tree of arrays."""
    for leaf in flatten(tree)[1]:
        if not isinstance(leaf, (Array, Number, np.ndarray, np.generic, int, float, complex)):
            raise ProgramError(
                f"it returns {types_text(tree)}", expected="an array, or a tree of arrays",
                remedy="return what the layer computes" if leaf is None else "")


@dataclass(frozen=True)
class StageCode:
    """The code that stages run for microbatches of one type.

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

    @property
    def unlike(self) -> list[int]:
        """Return the first stage of each code."""
        return sorted(set(self.like))

    @property
    def numbers(self) -> np.ndarray:
        """Return, for each stage, the number of its code in `unlike`."""
        return np.searchsorted(self.unlike, self.like)

    def handed(self, stage: int, leaves: Sequence[Any]) -> Any:
        """Return the tree that a stage hands on, of its leaves."""
        return fill(self.halves[stage].out, iter(leaves), fresh=True)


def kind_of(tree: Any) -> str:
    """Return a text that is equal for trees of one structure, with leaves of the same types."""
    shape, leaves = flatten(tree)
    return str([*zip(shape.paths(), leaves, strict=True), *map(type, shape.containers())])


def _check_index(context: Context, axis: str, ops: Sequence[Op]) -> None:
    """Raise UnsupportedError where a layer reads the index of its rank along the axis of stages."""
    index = next(a.coord_sym for a in context.mesh.axes if a.name == axis)
    for op in walk(Region((), tuple(ops), ())):
        if any(index in e.symbols() for e in op.kind.exprs()):
            raise UnsupportedError(
                f'a layer of a pipeline reads the index of its rank along "{axis}"', place=op.place,
                expected="layers whose results are the same on any number of ranks",
                remedy="a parameter of the layer, or a number that its function has, in its place")


def code_of(split: SplitAxes, axis: str, stages: Sequence[Stage], x: Any, y: Any,
            backward: bool = True, splits_backward: bool = False) -> StageCode:
    """Return the code of stages for microbatches x and targets y, trees of types. axis: along which
    stages lie. y: None where the last layer is called without targets.
    splits_backward: whether W is an action of its own."""
    halves: list[Halves] = []
    outs: list[Sequence[ArrayType]] = []  # what each stage hands on, as global arrays
    like: list[int] = []
    known: dict[Any, int] = {}
    h: Any = split.types_of(x)
    key_types, y = split.types_of(KEY), None if y is None else split.types_of(y)
    for stage in stages:
        arguments = [h, *([key_types] if backward else []),
                     *([y] if stage.last and y is not None else [])]
        wanted = [not stage.first, False, False][:len(arguments)]
        own = stage.types
        key = (*map(id, stage.functions), kind_of(own), kind_of(arguments), stage.first, stage.last)
        like.append(known.setdefault(key, stage.number))
        if like[-1] < stage.number:
            half, out = halves[like[-1]], outs[like[-1]]
        else:
            half, out = split.halves(stage if backward else stage.without_dropout, own, arguments,
                                     wanted, backward, whole=stage.last)
        halves.append(half)
        outs.append(out)
        _check_index(split.context, axis, (*half.ahead, *half.later))
        if stage.last and y is not None and (half.out.kind != "leaf" or half.out_types[0].shape
                           or half.out_types[0].dtype.kind != "f"):
            raise ShapeError("the last layer of a pipeline gives the loss of a microbatch",
                             expected="one float, an array of shape ()",
                             found=f"{', '.join(map(str, half.out_types))}, of layer "
                             f"{stage.begin + len(stage.functions) - 1}, "
                             f"{function_name(stage.functions[-1])}",
                             remedy="np.mean(…) of the losses of its examples")
        h = fill(half.out, iter(out), fresh=True)
    inner = [m.out_types for m in halves]
    if backward:  # nobody is handed the loss
        inner[-1] = []
    floats = [[t for t in types if t.dtype.kind in "fc"] for types in inner]
    unlike = {s: backward_parts(halves[s]) for s in set(like)} if splits_backward else {}
    parts = [unlike[s] for s in like] if splits_backward else []
    return StageCode(halves, parts, like, split.packing(inner), split.packing(floats),
                     split.packing([m.kept_types for m in halves]),
                     split.packing([p.crossing_types for p in parts]))
