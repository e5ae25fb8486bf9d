"""Weights that two layers use: the same array in the parameters of both.

Each layer has a copy. Always holds: copies begin alike and have the same gradients, the sums of
what their layers find, so they stay alike.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from codegen.errors import UsageError
from codegen.places import user_place
from codegen.trace.array import Array
from codegen.trace.state import flatten
from spmd.pipelining.stage_code import Stage

if TYPE_CHECKING:
    from spmd.pipelining.training_pipeline import TrainingPipeline

Copies = list[tuple[int, int]]  # the stage of each copy, and its number among the leaves there


class SharedWeights:
    """The weights of some stages that have copies. within: those of which all copies are in one
    stage, by stage; across: others."""

    def __init__(self, stages: Sequence[Stage], flushes: bool) -> None:
        copies_of: dict[int, Copies] = {}
        names: dict[int, str] = {}
        for stage in stages:
            k = 0
            for layer, own in enumerate(stage.parameters, stage.begin):
                tree, leaves = flatten(own)
                for path, x in zip(tree.paths(), leaves, strict=True):
                    if isinstance(x, (Array, np.ndarray)):
                        copies_of.setdefault(id(x), []).append((stage.number, k))
                        names.setdefault(id(x), f"{path} of layer {layer}".lstrip())
                    k += 1
        groups = {key: copies for key, copies in copies_of.items() if len(copies) > 1}
        self.within: dict[int, list[list[int]]] = {}
        self.across: list[Copies] = []
        for key, copies in groups.items():
            numbers = sorted({s for s, _ in copies})
            if len(numbers) == 1:
                self.within.setdefault(numbers[0], []).append([k for _, k in copies])
                continue
            if not flushes:
                raise UsageError(
                    f"the weight {names[key]} is in stages {' and '.join(map(str, numbers))}, "
                    "which are updated at different times", place=user_place(),
                    expected="the layers that share a weight in one stage, or a schedule that "
                    "flushes", remedy='schedule="1f1b"')
            self.across.append(copies)
        # copies behind the first one, which a norm of all gradients leaves out
        self.later = {copy for copies in groups.values() for copy in copies[1:]}

    def kind(self, stage: int) -> str:
        """Return a text that is equal for stages whose updates count copies alike."""
        return str((self.within.get(stage), sorted(k for s, k in self.later if s == stage)))

    def summed_across(self, pipe: TrainingPipeline, gradients: dict[str, Any]) -> dict[str, Any]:
        """Return the gradients of all stages, those of shared weights summed over their copies."""
        for copies in self.across:
            parts = [pipe.leaves(gradients, s)[k] for s, k in copies]
            total = sum(parts[1:]) + parts[0]
            for s, k in copies:
                pipe.write(gradients, s, {k: total})
        return gradients

    def summed_within(self, stage: int, gradients: list[Any]) -> list[Any]:
        """Return the gradients of a stage, those of shared weights summed over their copies."""
        for copies in self.within.get(stage, ()):
            total = sum((gradients[k] for k in copies[1:]), gradients[copies[0]])
            for k in copies:
                gradients[k] = total
        return gradients
