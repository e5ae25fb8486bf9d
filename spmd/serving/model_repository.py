"""The models of a server, and what loads their image or its state anew, or unloads them.

In: names of models, and the parameters of a load. Out: models, or refusals. Always holds: a load
that fails leaves the job that is there; one that succeeds has the same models as before.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from codegen.errors import EnvironmentFault, InputError, PeerError, SpmdError, UsageError
from spmd.faces import Face, faces_of, states_of
from spmd.image import Image
from spmd.launch import loader
from spmd.serving.refusals import Refusal
from spmd.serving.served_job import JobSource, Opening, OpenJob, ServedJob
from spmd.serving.served_models import ServedModel, changes_state, models_of, unknown_model
from spmd.serving.tensors import brief
from spmd.verify.formulas import infix

LOAD = "load"  # the word behind --allow
MOST_DIFFERENCES = 4  # that one message lists
KNOWN = ("state", "image", "config")  # parameters of a load


class ModelRepository:
    """The models of one image. open_job: opens other files as the first ones were opened; allowed:
    entries that may change state, and LOAD where loads are allowed; folders: below which the files
    of a load must be, the image's first. swap: has another job called from then on."""

    def __init__(self, name: str, job: OpenJob, open_job: Opening, *, allowed: Collection[str],
                 folders: Collection[str]) -> None:
        self.job, self._open = ServedJob(name, job), open_job
        self._files, self._image = job.files, job.image
        self._folders = [Path(folder).resolve() for folder in folders]
        self._may_load = LOAD in allowed
        self.swap: Callable[[OpenJob | None], None] = self.job.replace
        self._loading = threading.Lock()
        entries = [x for x in allowed if x != LOAD or LOAD in faces_of(job.image.manifest)]
        self.models = models_of(job.image, self.job, entries)

    @property
    def name(self) -> str:
        """The name of the image, which a load says."""
        return self.job.name

    # ---- what is there

    def model(self, name: str, version: str | None) -> ServedModel:
        """Return a model; version: None for any. Raises Refusal where it is not there."""
        model = self.models.get(name)
        if model is None:
            raise Refusal(404, unknown_model(name, self.models))
        if version is not None:
            self.job.check(version)
        return model

    def callable_model(self, name: str, version: str | None) -> ServedModel:
        """Return a model that may be called. Raises Refusal."""
        model = self.model(name, version)
        if model.refusal is not None:
            raise Refusal(403, model.refusal)
        self.job.check(version)
        return model

    def index(self, only_ready: bool) -> list[dict[str, str]]:
        """Return name, version, state and reason of each model, or of those that are ready."""
        version = self.job.version
        rows = [{"name": model.name, "version": version or "",
                 "state": "UNAVAILABLE" if model.refusal or version is None else "READY",
                 "reason": "unloaded" if version is None else str(model.refusal or "")}
                for model in self.models.values()]
        return [row for row in rows if row["state"] == "READY" or not only_ready]

    # ---- loads

    def load(self, name: str, parameters: Mapping[str, Any], check_open: Callable[[], None]) -> str:
        """Open the files that parameters name, and have them called from the next call on; read the
        same files again where none is named. Returns the version that is there then. check_open:
        raises where the server ends. Raises Refusal: 400 and 403 for the parameters, 409 for the
        files."""
        self._check_loads(name)
        with self._loading:
            check_open()
            job = self._opened(self._asked(parameters))
            try:
                check_open()
                self._swap(job)
            except BaseException:
                job.close()
                raise
            self._files = job.files
            return job.version

    def unload(self, name: str) -> None:
        """Close the job that is there, after its call. Raises Refusal where that is not allowed."""
        self._check_loads(name)
        with self._loading:
            self.swap(None)

    def close(self) -> None:
        """Close the job, once a load that goes on has ended."""
        with self._loading:
            self.job.replace(None)

    def _check_loads(self, name: str) -> None:
        if not self._may_load:
            raise Refusal(403, UsageError("this server does not load while it serves",
                                          expected="a server that allows it",
                                          found=f"one without --allow {LOAD}",
                                          remedy=f"spmd serve IMAGE --allow {LOAD}"))
        if name != self.name:
            raise Refusal(404, UsageError(f"there is no image {name!r}", expected=self.name,
                                          found=name, remedy=f"{self.name}: its entries are loaded "
                                          "together"))

    def _asked(self, parameters: Mapping[str, Any]) -> JobSource:
        """Return the files that the parameters of a load name; those of before, where they name
        none."""
        if unknown := [key for key in parameters if key not in KNOWN]:
            raise InputError(f"a load has no parameter {unknown[0]!r}",
                             expected=", ".join(KNOWN), found=unknown[0])
        named = {**_in_config(parameters.get("config")), **parameters}
        image, state = (self._path(key, named[key]) if named.get(key) is not None else None
                        for key in ("image", "state"))
        if image is not None and loader.is_program(image):
            raise InputError("a load takes no program", expected="an image: spmd build FILE.py",
                             found=Path(image).name)
        before = self._files
        return JobSource(image or before.image, state or before.state,
                        {} if image else before.settings)

    def _path(self, key: str, text: Any) -> str:
        """Return the path of a file that a load names. Raises where it may not be read."""
        try:
            path = (self._folders[0] / text).resolve()
        except (TypeError, ValueError, OSError, RuntimeError):  # "\0", names too long, link loops
            raise InputError(f"parameters.{key} is {brief(text)}", found=type(text).__name__,
                             expected="the path of a file") from None
        if not any(path.is_relative_to(folder) for folder in self._folders):
            raise Refusal(403, UsageError(
                f"parameters.{key} is in no folder that this server loads from",
                expected="a file below the folder of its image", found=brief(text),
                remedy="spmd serve IMAGE --load-from FOLDER"))
        try:
            is_file = path.is_file()
        except (OSError, ValueError):
            is_file = False
        if not is_file:
            raise Refusal(409, InputError(f"parameters.{key} names no file", expected="a file that "
                                          "is there", found=brief(text)))
        return str(path)

    def _opened(self, files: JobSource) -> OpenJob:
        """Open a job's files. Raises Refusal, 409, where they do not fit what is served."""
        with _conflicts():
            return self._open(files, lambda image: self._compare(files, image))

    def _swap(self, job: OpenJob) -> None:
        """Have another job called. Raises Refusal, 409, where it does not fit a replica."""
        with _conflicts():
            self.swap(job)

    def _compare(self, files: JobSource, image: Image) -> None:
        """Raise InputError where an image has other entries, inputs, outputs or states than the
        one that is served."""
        if image.digest == self._image.digest:
            return
        before, now = interface_of(self._image.manifest), interface_of(image.manifest)
        other = [key for key in {**before, **now} if before.get(key) != now.get(key)]
        shown, more = other[:MOST_DIFFERENCES], len(other) > MOST_DIFFERENCES

        def text(rows: Mapping[str, str]) -> str:
            return "; ".join([*(f"{key}: {rows[key]}" if key in rows else f"no {key}"
                                for key in shown), *["…"] * more])

        if other:
            raise InputError(
                f"{Path(files.image).name} is the image of another program", expected=text(before),
                found=text(now), remedy="an image of the program that is served, which may compute "
                "otherwise; or a server of its own")


@contextmanager
def _conflicts() -> Iterator[None]:
    """Raise Refusal, 409, for what is wrong with files that are loaded."""
    try:
        yield
    except (EnvironmentFault, PeerError):
        raise
    except SpmdError as error:
        raise Refusal(409, error) from None


def interface_of(manifest: Mapping[str, Any]) -> dict[str, str]:
    """Return what clients of an image, and its state files, rely on: each input, scalar, output,
    save and state, by a name that says where it belongs."""
    whole = dict(manifest)
    faces = faces_of(whole) or {"": Face(whole)}
    most = {row["name"]: row["at_most"] for row in whole["scalars"] if "at_most" in row}
    scalars = {row["name"]: row for row in whole["scalars"]}
    saves = {row["name"]: row for row in whole["saves"]}

    def array(row: Mapping[str, Any]) -> str:
        shape = ", ".join(f"{extent} at most {most[extent]}" if extent in most else infix(extent)
                          for extent in row["shape"])
        return f"{row['dtype']} ({shape})"

    rows = {f"state {name}": array(row) for name, (_, row) in states_of(whole).items()}
    for entry, face in faces.items():
        suffix = f" of {entry}" if entry else ""
        if entry:
            rows[f"entry {entry}"] = "changes state" if changes_state(face) else "keeps state"
        rows |= {f"input {row['name']}{suffix}": array(row) + " or none" * (
            bool(row["default"]) or "optional" in row) for _, row in face.inputs}
        rows |= {f"scalar {name}{suffix}": f"{scalars[name]['dtype']} = {scalars[name]['default']}"
                 for name in face.settable()}
        rows |= {f"output {row['name']}{suffix}": array(row) for _, row in face.outputs}
        rows |= {f"save {name}{suffix}": array(saves[name]) for name in face.saves}
        rows |= {f"feed {name}{suffix}": "a feed" for name in face.feeds}
        if "dim" in face.rows():
            rows[f"rows{suffix}"] = f"independent along {face.rows()['dim']}"
        rows[f"what{suffix or ' the program'} returns"] = json.dumps(face.returns)
    return rows


def _in_config(config: Any) -> dict[str, Any]:
    """Return the files in a model configuration, as Triton's clients give one:
    {"parameters": {"state": {"string_value": PATH}}}, as text."""
    if config is None:
        return {}
    try:
        rows = json.loads(config)["parameters"]
        return {key: rows[key]["string_value"] for key in KNOWN[:2] if key in rows}
    except (ValueError, TypeError, LookupError, RecursionError):
        raise InputError("parameters.config is no model configuration", found=brief(config),
                         expected='JSON: {"parameters": {"state": {"string_value": PATH}}}'
                         ) from None
