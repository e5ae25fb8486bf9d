"""Models of a server: the entries of an open image, or its program where it has no entries.

In: an image, its job, names of entries that may change state. Out: models by name, each with its
metadata in the protocol's words. Always holds: what a model computes is a call of the job.
"""

from __future__ import annotations

import json
from collections.abc import Collection
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from codegen.errors import UsageError
from codegen.suggest import meant
from codegen.user import named
from spmd.faces import Face, faces_of
from spmd.image import Image
from spmd.serving.infer_messages import InferRequest
from spmd.serving.joined_calls import CallPlace, JoinedRows, ModelCall, Outputs
from spmd.serving.sent_frames import SentFrames
from spmd.serving.served_job import ServedJob
from spmd.serving.tensors import NAMES
from spmd.streaming import check_saves

PLATFORM = "spmd"
HEAD = ("model_name", "model_version", "id")  # in answers of `generate`, beside outputs


class Answer(NamedTuple):
    """The result of a call. version: of the job that was called; outputs: name and array of each,
    and whether it goes as bytes."""

    version: str
    outputs: list[tuple[str, np.ndarray, bool]]


class ServedModel:
    """One entry, or a program without entries, of the job that is there now. refusal: the error of
    each request where it may not be called, else None."""

    def __init__(self, name: str, face: Face, job: ServedJob, refusal: UsageError | None = None
                 ) -> None:
        self.name, self.job, self.refusal = name, job, refusal
        self.saves = face.saves
        self._face = face
        self._scalars = frozenset(face.settable())
        self._names = frozenset(face.names())
        self._outputs = [array["name"] for _, array in face.outputs]
        self._rows = JoinedRows.of(face)

    def metadata(self) -> dict[str, Any]:
        """Return what the protocol says of a model. Scalars are inputs of shape []; parameters say
        what a call from Python needs beyond the protocol."""
        rows = {row["name"]: row for row in self._face.manifest["scalars"]}
        inputs = [_tensor(array, {"optional": True} if array["default"] or "optional" in array
                          else {}) for _, array in self._face.inputs]
        inputs += [_scalar(rows[name]) for name in self._face.settable()]
        version = self.job.version
        return {
            "name": self.name, "versions": [] if version is None else [version],
            "platform": PLATFORM, "inputs": inputs,
            "outputs": [_tensor(array, {}) for _, array in self._face.outputs],
            "parameters": {"entry": self._face.name, "returns": json.dumps(self._face.returns)},
        }

    def prepared(self, request: InferRequest, version: str | None = None,
                 frames: SentFrames | None = None) -> ModelCall:
        """Return the call that a request asks for: it gives each output that is there. version: of
        the only job that may be called; frames: takes what the call saves. Raises UsageError, as
        the call would, for a name that the model does not know."""
        if not request.arrays.keys() <= self._names:
            self._face.check_names(request.arrays)
        wanted = request.wanted
        arguments: dict[str, Any] = {
            name: _number(array) if name in self._scalars else array
            for name, array in request.arrays.items()}
        if wanted is not None:
            wanted = {name: binary for asked, binary in wanted.items()
                      for name in named.asked(asked, self._outputs, "outputs")}
            if self._face.takes_only:
                arguments["only"] = tuple(sorted(wanted))

        def finish(called: str, outputs: Outputs) -> Answer:
            return Answer(called, [
                (name, np.asarray(array), request.binary if wanted is None else wanted[name])
                for name, array in zip(self._outputs, outputs)
                if array is not None and (wanted is None or name in wanted)])

        make = self._make
        if version is not None or frames is not None:
            make = partial(make, version=version, frames=frames)
        rows = key = None
        if self._rows is not None and (rows := self._rows.rows_of(request.arrays)) is not None:
            key = self._rows.key_of(request.arrays)
        if rows is None or key is None:
            return ModelCall(make, finish, arguments)
        return ModelCall(make, finish, arguments, self._rows, rows,
                         (self.name, version, key, arguments.get("only")))

    def _make(self, arguments: dict[str, Any], _: int, place: CallPlace | None,
              version: str | None = None, frames: SentFrames | None = None
              ) -> tuple[str, Outputs]:
        entry = self._face.name or None
        if place is not None:
            return place.call(entry, arguments, version, frames)
        called, value = self.job.call(entry, arguments, version, frames)
        return called, outputs_of(self._face, value)

    def datatypes(self) -> dict[str, str]:
        """Return the datatypes of inputs and scalars by name, and one for each parameter of the
        build, which a call refuses."""
        return {**dict.fromkeys(self._face.manifest["parameters"], "INT64"),
                **{row["name"]: row["datatype"] for row in self.metadata()["inputs"]}}

    def check_generates(self, streams: bool) -> None:
        """Raise UsageError where `generate` cannot answer for the model: an output or a save is
        called as other parts of answers are; and, for generate_stream, nothing is saved."""
        if streams:
            check_saves(self._face)
        names = [*self.saves, *self._outputs]
        if taken := [name for name in names if name in HEAD]:
            raise UsageError(f"generate cannot answer for {self.name}: {taken[0]} is a name of "
                             "its own", expected=f"outputs and saves but {', '.join(HEAD)}",
                             found=", ".join(names), remedy="/infer, which says outputs only")


def _tensor(array: dict[str, Any], parameters: dict[str, Any]) -> dict[str, Any]:
    """Return a row of the metadata; -1 stands for an extent that the image does not fix."""
    shape = [extent if isinstance(extent, int) else -1 for extent in array["shape"]]
    row = {"name": array["name"], "datatype": NAMES[array["dtype"]], "shape": shape}
    return {**row, "parameters": parameters} if parameters else row


def _scalar(row: dict[str, Any]) -> dict[str, Any]:
    """Return the row of a scalar: a tensor of one number, or of a truth value."""
    default = row["default"]
    dtype = "bool" if isinstance(default, bool) else row["dtype"]
    return _tensor({"name": row["name"], "dtype": dtype, "shape": []},
                   {"scalar": True} if default is None else
                   {"scalar": True, "optional": True, "default": default})


def _number(array: np.ndarray) -> Any:
    """Return the number in an array of one element; another array as it is."""
    return array.item() if array.size == 1 else array


def outputs_of(face: Face, value: Any) -> Outputs:
    """Return the outputs of what a call has returned, in their order; None for those that were not
    asked for."""
    outputs: Outputs = [None] * len(face.outputs)
    _collect(face.returns, value, outputs)
    return outputs


def _collect(tree: Any, value: Any, outputs: list[Any]) -> None:
    """Put the outputs that a call has returned into a list, by their numbers in `tree`."""
    if isinstance(tree, list):
        kind, *inner = tree
        items = value.values() if kind == "dict" else value
        for row, item in zip(inner[1:] if kind == "named" else inner, items):
            _collect(row[1] if kind in ("dict", "named") else row, item, outputs)
    elif tree is not None:
        outputs[tree] = value


def models_of(image: Image, job: ServedJob, allowed: Collection[str]) -> dict[str, ServedModel]:
    """Return the models of an image by name, as digits.infer. Those that take batches of a feed are
    left out. allowed: entries that change state and may be called. Raises UsageError for an entry
    that does not exist."""
    faces = faces_of(image.manifest)
    if unknown := [name for name in allowed if name not in faces]:
        raise _no_such_entry(image, unknown, faces)
    if not faces:
        face = Face(image.manifest)
        return {} if face.feeds else {job.name: ServedModel(job.name, face, job)}
    models = {}
    for entry, face in faces.items():
        name = f"{job.name}.{entry}"
        refusal = None
        if changes_state(face) and entry not in allowed:
            refusal = UsageError(f"{name} changes the state of the image",
                                 expected="a server that allows it",
                                 found=f"one without --allow {entry}",
                                 remedy=f"spmd serve IMAGE --allow {entry}")
        if not face.feeds:
            models[name] = ServedModel(name, face, job, refusal)
    return models


def changes_state(face: Face) -> bool:
    """Return whether an entry binds state anew, or writes into it."""
    entry = face.manifest["entries"][face.number]
    return bool(entry["rebinds"] or entry["updates"])


def _no_such_entry(image: Image, names: Collection[str], faces: dict[str, Face]) -> UsageError:
    name = next(iter(names))
    return UsageError(f"--allow {name}: {image.manifest['program']} has no such entry",
                      expected=", ".join(faces) or "no --allow: the program has no entries",
                      remedy=meant(name, faces))


def unknown_model(name: str, known: Collection[str]) -> UsageError:
    """Return the error of a request for a model that is not there."""
    return UsageError(f"there is no model {name!r}", expected=", ".join(known),
                      remedy=meant(name, known))
