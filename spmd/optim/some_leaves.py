"""Transformations of some leaves of a tree: others pass, stay, or have one of their own.

Always holds: a mask, and a tree of labels, may stand for less than the tree of the parameters: what
it says in the place of a part holds for all leaves of that part.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from spmd import UsageError
from spmd.extend import converted, flatten, items, rebuilt, user_place
from spmd.optim.transformation import (
    EmptyState,
    GradientTransformation,
    leaves_of,
    map_trees,
)


class MaskedState(NamedTuple):
    """The state of what works on some leaves only."""

    inner_state: Any


class PartitionState(NamedTuple):
    """The state of each transformation, by its label."""

    inner_states: Any


def empty(_: Any) -> EmptyState:
    return EmptyState()


def set_to_zero() -> GradientTransformation:
    """Replace updates by zeros, so that parameters stay as they are."""
    return GradientTransformation(
        empty, lambda updates, state, params=None: (map_trees(np.zeros_like, updates), state))


def _said(choice: Any, tree: Any) -> Any:
    """Return what is said of the leaves of a tree, or what a function says, in its structure."""
    return _spread(converted(choice)(tree) if callable(choice) else choice, tree, "the tree")


def _spread(said: Any, tree: Any, path: str) -> Any:
    parts, mine = items(said), items(tree)
    if parts is None:
        return map_trees(lambda _: said, tree)
    if mine is None or {key for key, _ in parts} != {key for key, _ in mine}:
        raise UsageError(
            f"what is said of the leaves does not fit {path}", place=user_place(),
            expected=", ".join(str(key) for key, _ in mine) if mine else "one for this leaf",
            found=", ".join(str(key) for key, _ in parts) or "nothing",
            remedy="one in the structure of the parameters, or one for a whole part of them")
    by_key = dict(parts)
    inside = [_spread(by_key[key], item, f"{path}[{key!r}]") for key, item in mine]
    return rebuilt(tree, inside)


def masked(inner: GradientTransformation, mask: Any) -> GradientTransformation:
    """Apply inner to the leaves where the mask is True; the others pass unchanged.

    - mask: a tree of Python's True and False in the structure of the parameters, where one may
      stand for a whole part of it; or a function that makes it of them.
    """

    def chosen(tree: Any, truths: Any) -> Any:
        return map_trees(lambda x, m: x if bool(m) else None, tree, truths)

    def init(params: Any) -> MaskedState:
        return MaskedState(inner.init(chosen(params, _said(mask, params))))

    def update(updates: Any, state: MaskedState, params: Any = None) -> Any:
        truths = _said(mask, updates)
        inner_updates, new = inner.update(chosen(updates, truths), state.inner_state,
                                          None if params is None else chosen(params, truths))
        whole = map_trees(lambda u, f: u if f is None else f, updates, inner_updates)
        return whole, MaskedState(new)

    return GradientTransformation(init, update)


def partition(transforms: Mapping[Any, GradientTransformation], param_labels: Any
              ) -> GradientTransformation:
    """Apply a transformation for each label: other rates, or other optimizers, for some parameters.

    - transforms: by label.
    - param_labels: a tree of labels in the structure of the parameters, where one may stand for a
      whole part of it; or a function that makes it of them.

    UsageError for a label that has no transformation, and for leaves without a label.

    Example::

        @spmd.program
        def head_only():
            w = {"body": {"a": np.ones(2), "b": np.ones(2)}, "head": np.ones(2)}
            tx = spmd.optim.partition(
                {"fast": spmd.optim.sgd(0.5), "frozen": spmd.optim.set_to_zero()},
                {"body": "frozen", "head": "fast"})
            updates, _ = tx.update(w, tx.init(w), w)
            return spmd.optim.apply_updates(w, updates)

        print(spmd.build(head_only).run(ranks=2)["head"])    # [0.5 0.5]
    """

    def parts(tree: Any) -> dict[Any, GradientTransformation]:
        labels = _said(param_labels, tree)
        _check_labelled(tree, labels)
        unknown = [x for x in leaves_of(labels) if x not in transforms]
        if unknown:
            raise UsageError("partition: a label has no transformation", place=user_place(),
                             expected=", ".join(map(repr, transforms)), found=repr(unknown[0]))
        return {label: masked(tx, map_trees(lambda x, label=label: x == label, labels))
                for label, tx in transforms.items()}

    def init(params: Any) -> PartitionState:
        return PartitionState({label: tx.init(params) for label, tx in parts(params).items()})

    def update(updates: Any, state: PartitionState, params: Any = None) -> Any:
        after = {}
        for label, tx in parts(updates).items():
            updates, after[label] = tx.update(updates, state.inner_states[label], params)
        return updates, PartitionState(after)

    return GradientTransformation(init, update)


def _check_labelled(tree: Any, labels: Any) -> None:
    """Raise UsageError where a leaf has no label: its gradient would pass as its update."""
    structure, leaves = flatten(tree)
    bare = [path for path, x, label in zip(structure.paths(), leaves, flatten(labels)[1],
                                           strict=True) if x is not None and label is None]
    if bare:
        raise UsageError(
            f"partition: the label of {bare[0] or 'the tree itself'} is None", place=user_place(),
            expected="a label for each leaf", found="None",
            remedy="set_to_zero() under a label of its own, or freeze, for what stays as it is")


def freeze(mask: Any) -> GradientTransformation:
    """Replace updates by zeros where the mask is True, as in `masked`; the others pass
    unchanged."""
    return masked(set_to_zero(), mask)


def selective_transform(optimizer: GradientTransformation, *, freeze_mask: Any
                        ) -> GradientTransformation:
    """Return the optimizer where the mask is False; the others stay as they are, and have no
    state."""

    def labels(params: Any) -> Any:
        return map_trees(lambda m: "freeze" if m else "train", _said(freeze_mask, params))

    return partition({"train": optimizer, "freeze": set_to_zero()}, labels)
