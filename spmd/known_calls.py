"""Calls of an open job that need no new setup: those that give what one before them gave.

In: calls that were checked, with their setups. Out: the setup of a call that is like one of them,
but for the extents of named dims that only a run knows; else None.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from codegen.image.conditions import broken_condition
from spmd.arguments import extents_of
from spmd.arrays import numpy_dtype
from spmd.faces import Face
from spmd.launch.job import Setup

Forms = tuple[tuple[str, np.dtype, tuple[int, ...]], ...]  # arrays by their names, as given
MOST = 1024  # calls of each face that are remembered


class KnownCalls:
    """Of each face by its number, what calls gave that were whole inputs and nothing else."""

    def __init__(self, manifest: dict[str, Any]) -> None:
        self.manifest = manifest
        self.setups: dict[int | None, dict[Forms, Setup]] = {}

    def keep(self, face: Face, setup: Setup, arguments: dict[str, Any]) -> None:
        """Remember the setup of a call that was checked. A tree or a scalar that one call gives,
        the next may leave out: such calls are not remembered."""
        arrays = {array["name"]: array for _, array in face.inputs}
        if arguments.keys() <= arrays.keys():
            self._keep(face, setup, tuple(
                (name, numpy_dtype(arrays[name]["dtype"]), setup.shape(arrays[name]))
                for name in arguments))

    def _keep(self, face: Face, setup: Setup, forms: Forms) -> None:
        setups = self.setups.setdefault(face.number, {})
        if len(setups) >= MOST:
            setups.clear()
        setups[forms] = setup

    def find(self, face: Face, arguments: dict[str, Any]) -> Setup | None:
        """Return the setup of a call of this face, where one is known."""
        setups = self.setups.get(face.number)
        if not setups:
            return None
        for value in arguments.values():
            if type(value) is not np.ndarray:
                return None
        forms = tuple([(name, value.dtype, value.shape) for name, value in arguments.items()])
        setup = setups.get(forms)
        if setup is None and (setup := self._resized(face, setups, forms)) is not None:
            self._keep(face, setup, forms)
        return setup

    def _resized(self, face: Face, setups: dict[Forms, Setup], forms: Forms) -> Setup | None:
        """Return the setup of a call before that differs in the extents of named dims only, with
        the extents of this one; None where there is none, or they may not fit the program."""
        shapes = {name: shape for name, _, shape in forms}
        arrays = [array for _, array in face.inputs if array["name"] in shapes]
        before = next((setup for known, setup in reversed(setups.items())
                       if [name for name, *_ in known] == list(shapes)), None)
        extents = extents_of(self.manifest, arrays, shapes)
        if before is None or not extents:
            return None
        setup = before.resized(extents)
        dtypes = {name: dtype for name, dtype, _ in forms}
        same = all(shapes[array["name"]] == setup.shape(array)
                   and dtypes[array["name"]] == numpy_dtype(array["dtype"]) for array in arrays)
        if not same or self.manifest["routes"] or broken_condition(
                self.manifest["conditions"], setup.values):
            return None
        return setup
