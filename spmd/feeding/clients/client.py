"""spmd.data.Client: what users and the command line ask of a scheduler.

In: its address and keys. Out: what it answers, as plain values, or an error with its exit code.
Always holds: no call waits longer than its time limit and what a long text needs on its way.
"""

from __future__ import annotations

import getpass
import json
import os
import socket
import time
from collections.abc import Mapping, Sequence
from math import ceil
from types import TracebackType
from typing import Any

from codegen.errors import PeerError, UsageError
from codegen.suggest import meant
from spmd.data.pipeline_files import file_and_name, load, load_text, select_pipeline
from spmd.data.pipelines import Pipeline, check_name
from spmd.data.reading_time import source_in_time
from spmd.data.settings import FIXED, Settings, read
from spmd.feed_options import HERE
from spmd.feeding.clients.client_jobs import Files, Follow, fetch_job, submit_job
from spmd.feeding.clients.first_example import fields_of, first_example
from spmd.feeding.clients.image_check import check_image
from spmd.feeding.clients.reload_check import reloaded
from spmd.feeding.messages.keys import Keys, keys_of
from spmd.feeding.messages.scheduler_replies import refused
from spmd.feeding.messages.sockets import OF_KEYS, Lines, received
from spmd.feeding.messages.wire import TEXT_BYTES, Message, decode, encode, new_id

LOOK_S = 0.2  # between two looks of wait(), and at the line
SLOW = 50_000  # bytes/s of a line over which a long text is waited for


class Client:
    """A connection to a scheduler (`spmd feed serve`).

    - address: `tcp://HOST:PORT`; without one, the scheduler of this user.
    - keys: the folder that `feed keys` made; without one, the keys of this user.
    - timeout: seconds to wait for an answer, beside those that a long text needs on a slow line.

    ::

        with spmd.data.Client("tcp://head:5570", keys="feed-keys") as client:
            client.submit("images.py", priority=5)
            client.wait("images")

    Raises UsageError without keys, PeerError where no scheduler answers.
    """

    def __init__(self, address: str = HERE, keys: str | Keys = "", timeout: float = 5.0) -> None:
        self.address, self.timeout = address, timeout
        self._ended: dict[str, set[str]] = {}  # by pipeline: runs of which wait() saw the end
        self._lines = Lines(keys if isinstance(keys, Keys) else keys_of(keys))
        try:
            self._line = self._dealer()
        except UsageError:
            self._lines.close()
            raise

    def __enter__(self) -> Client:
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None,
                 trace: TracebackType | None) -> None:
        self.close()

    def close(self) -> None:
        """Close the connection; pipelines that were submitted stay."""
        self._lines.close()

    # ---- what can be asked

    def submit(self, pipeline: str | os.PathLike[str] | Pipeline, *, name: str = "",
               compute: bool = True, **settings: Any) -> dict[str, Any]:
        """Give the scheduler a pipeline: a file, FILE.py:NAME, or a Pipeline.

        The modules that it imports from its folder go with it.

        - name: the name that it has there.
        - settings: replace those of its decorator.

        If the pipeline names an image, its fields are compared with the image's feeds first.
        Submitted twice, it is there once.
        compute: the first example, in a process of its own, so that runs are compared with it as
        they begin; where that fails here, a worker's first example tells.

        Returns {"name", "version", "what": "new", "changed" or "unchanged", "first_example": why
        that is not known, or ""}; where workers=[…] names some that are not here, these are
        "not_here" and the machines that are "here". Raises InputError where pipeline and image do
        not fit, UsageError for a wrong name or setting, for a Pipeline that is not what workers
        find in its file, or where another one of that name is running, OutputError where the
        scheduler's disk is full.
        """
        loaded = pipeline if isinstance(pipeline, Pipeline) else load(pipeline)
        check_name("what is submitted", name or loaded.name, None if name else loaded.place)
        changed, texts = _submitted_with(loaded, settings), _texts(loaded)
        facts, why = _facts(loaded, texts, changed.image, compute)
        said = self._ask("submit", name=name or loaded.name, version=0, settings=changed.as_json(),
                         **texts, **facts)
        return {**said, "first_example": why}

    def status(self, name: str = "") -> dict[str, Any]:
        """Return tables of pipelines, consumers, workers, agents, warnings; or one row.

        UsageError where there is no pipeline of that name.
        """
        seen = self._ask("status")
        if not name:
            return seen
        return row_of(seen, name)

    def wait(self, name: str, state: str = "done", timeout: float | None = None, *,
             run: str = "") -> dict[str, Any]:
        """Wait until a pipeline is "running" (has workers) or "done" (no rank takes it any more).

        It is done once a run has taken it, within the last day, and all have ended. Called again,
        it waits for a run that no call before has seen the end of. run: only for those of this
        name, which SPMD_RUN gives them. Returns its row, in which "runs" are the last ones.

        Raises PeerError after so many seconds.
        """
        if state not in ("running", "done"):
            raise UsageError(f"wait(state={state!r})", expected='"running" or "done"')
        end = None if timeout is None else time.monotonic() + timeout
        before = self._ended.get(name)
        while True:
            seen = self.status()
            row = row_of(seen, name)
            runs = {past_run["stream"] for past_run in row["runs"]
                    if run in ("", past_run["run"])} - (before or set())
            began = bool(runs) or (before is None and row["ran"] and not run)
            over = began and not seen["scheduler"]["coming"] and not any(
                c["pipeline"] == name and run in ("", c["run"]) for c in seen["consumers"])
            if state == "done" and over:
                self._ended[name] = runs | (before or set())
                return row
            if row["state"] == state:
                return row
            if end is not None and time.monotonic() > end:
                why = row["why"] or ("" if began else "no run has taken it" if before is None else
                                     "no run has taken it since it was done")
                raise PeerError(f"pipeline {name} is not {state} after {timeout:g} s",
                                found=f"{row['state']}{': ' if why else ''}{why}")
            time.sleep(LOOK_S)

    def update(self, name: str, *, source: str | os.PathLike[str] = "",
               **settings: Any) -> dict[str, Any]:
        """Change settings (workers, priority, …) or the file of a pipeline, even while it runs.

        Nothing is lost: what workers do not give any more is asked of others.

        Settings hold at once. Another file is a new version: runs that have begun go on with the
        version with which they began, so that no batch mixes two; runs that begin later take the
        new one.

        Returns {"name", "version", "settings", "runs_before": how many runs go on with an older
        version}, and with a file "first_example", as submit. Raises UsageError for a setting that
        says which examples there are: only another file can change those. InputError where that has
        a mistake, or does not fit its image.
        """
        if not source and not settings:
            raise UsageError(f"update {name}: nothing is given that is to change",
                             expected="a setting, or another source",
                             remedy=f"python -m spmd feed update {name} --priority 5, or --source "
                             "FILE.py; --max-workers none takes a limit away")
        if not source:
            return self._ask("update", name=name, settings=settings)
        pipeline = _of_file(source, self.status(name)["own_name"])
        image, texts = settings.get("image", pipeline.settings.image), _texts(pipeline)
        facts, why = _facts(pipeline, texts, image, compute=True)
        fixed = {key: value for key, value in pipeline.settings.as_json().items() if key in FIXED}
        said = self._ask("update", name=name, settings=settings, fixed={**fixed, "image": image},
                         **texts, **facts)
        return {**said, "first_example": why}

    def open(self, name: str, feed: str, run: str, *, version: int | None = None,
             text: str = "") -> dict[str, Any]:
        """Register a run that begins to take a pipeline, or goes on with that version and text of
        it.

        Returns {"stream", "version", "text", "facts"}: what all its processes go on with.
        """
        return self._ask("open", pipeline=name, feed=feed, run=run, version=version,
                         text=text or None)

    def cancel(self, name: str) -> dict[str, Any]:
        """Remove a pipeline; runs that take it end with a message.

        Returns {"name", "what", "runs": how many runs it ended}.
        """
        return self._ask("cancel", name=name, by=_owner())

    # ---- jobs

    def submit_job(
        self, pipeline: str, image: str | os.PathLike[str],
        ranks: int | Sequence[int] | None = None, *,
        inputs: Mapping[str, str] | Files = (), outputs: Mapping[str, str] | Files = (),
        options: Sequence[str] = (), launch: str = "", device: str = "", restarts: int = 0,
        feed: str = "", until: str = "",
    ) -> dict[str, Any]:
        """Start ranks that take a pipeline which is submitted: a job, queued for slots of agents.

        - image: a file here. ranks: how many, or (least, most); None: as the pipeline says.
        - inputs, outputs: files here, by name. options: further words of `spmd run`.
        - launch: the command that starts so many processes, as "mpirun -n {ranks}"; "": as the
          agent does, else one process with all ranks, or mpirun where they are on several agents.
        - device: the kind that it prefers, "": as the pipeline says. restarts: how often it may
          begin again when it is lost.
        - feed: the feed that takes the pipeline, where the image has several.
        - until: "loss < 0.1": once a value that the program saves so is that, the feed ends, and
          with it the program's loop. Of an array its mean counts.

        It goes on when this client ends. Returns its row: "name", "state", "why" it waits.
        Raises UsageError for a pipeline that is not there, or a value that the program does not
        save; InputError for a file that is not there.
        """
        if ranks is None or not device:
            said = row_of(self.status(), pipeline)["settings"]
            ranks, device = ranks or said.get("ranks"), device or said.get("device", "")
        if ranks is None:
            raise UsageError(f"how many ranks take {pipeline}?", expected="ranks=N, here or in "
                             "@data.pipeline", found="neither")
        return submit_job(self, pipeline, os.fspath(image), ranks, inputs=_pairs(inputs),
                          outputs=_pairs(outputs), words=options, launch=launch, device=device,
                          restarts=restarts, feed=feed, until=until)

    def fetch(self, job: str, *, outputs: Mapping[str, str] | Files = (),
              follow: Follow | None = None) -> dict[str, Any]:
        """Wait for the end of a job, and write its outputs where it was told, all or none.

        - outputs: other files for some of them, by name.
        - follow: is called with "stdout", "stderr" or "note", and a text, as these come.

        Returns its row: "status" is its exit status, "why" how it ended, "said" its last lines.
        Raises UsageError for a job that is not there, OutputError for a file that cannot be
        written.
        """
        return fetch_job(self, job, _pairs(outputs), follow)

    def job(self, name: str) -> dict[str, Any]:
        """Return the row of a job: "state", "status", "why", "said": what it printed last.

        UsageError where there is no job of that name.
        """
        return self._ask("job", name=name)

    def cancel_job(self, job: str) -> dict[str, Any]:
        """End a job; one that has ended is forgotten. Returns {"name", "what": which of both}."""
        return self._ask("cancel_job", name=job, by=_owner())

    # ---- the line

    def _dealer(self) -> Any:
        return self._lines.dealer(self.address, self._lines.keys.server, new_id())

    def _ask(self, kind: str, **fields: Any) -> Any:
        return self.ask(kind, **fields)["value"]

    def ask(self, kind: str, raw: Sequence[Any] = (), /, **fields: Any) -> Message:
        """Send a request and return the answer; send it again where the line broke: a scheduler
        that was killed may have heard it."""
        frames = encode(kind, raw, **fields)
        self._line.send_multipart(frames)
        watch = self._lines.watch(self._line)
        end = time.monotonic() + self.timeout
        sent = end + sum(map(len, frames)) / SLOW
        while (left := (sent if watch.stands else end) - time.monotonic()) > 0:
            if self._line.poll(ceil(min(left, LOOK_S) * 1000)) and (
                    said := received(self._line)):
                message = decode(said)
                if message.kind == "answer":
                    return message
                if message.kind == "refused":
                    raise refused(message)
            if watch.broke() and kind not in ("cancel", "cancel_job"):  # twice, it is refused
                self._renew_line()
                watch = self._lines.watch(self._line)
                self._line.send_multipart(frames)
        watch.broke()
        reason = "" if watch.stands else watch.why()
        self._renew_line()
        if reason in OF_KEYS:
            raise PeerError(
                f"the scheduler at {self.address} has other keys than we", found=reason,
                expected="the folder of keys that it was started with",
                remedy="--keys FOLDER, or SPMD_FEED_KEYS=FOLDER")
        raise PeerError(
            f"no scheduler answers at {self.address}", expected=f"within {self.timeout:g} s",
            found=reason,
            remedy="python -m spmd feed serve starts one; --keys must be the folder that it uses")

    def _renew_line(self) -> None:
        """An answer that comes later would be taken for the next one's."""
        self._lines.forget(self._line)
        self._line = self._dealer()


def _owner() -> str:
    return f"{getpass.getuser()} at {socket.gethostname()}"[:256]


def _pairs(files: Mapping[str, str] | Files) -> Files:
    return list(files.items()) if isinstance(files, Mapping) else files


def row_of(seen: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Return a pipeline's row of what status() returns. Raises UsageError where there is none of
    that name."""
    rows: dict[str, Any] = {row["name"]: row for row in seen["pipelines"]}
    if name in rows:
        return dict(rows[name])
    raise UsageError(f"there is no pipeline {name}", expected=", ".join(rows) or "none is there",
                     remedy=meant(name, rows) or "python -m spmd feed submit FILE.py")


def _submitted_with(pipeline: Pipeline, settings: Mapping[str, Any]) -> Settings:
    """Return a pipeline's settings with others in their place. UsageError for one that the file
    alone can say."""
    changed = read({**pipeline.settings.as_json(), **settings})
    for name in sorted(FIXED - {"image"}):
        if getattr(changed, name) != getattr(pipeline.settings, name):
            raise UsageError(
                f"{name} says which examples there are: workers read it in the file",
                place=pipeline.place, found=f"{name}={settings[name]!r}",
                remedy=f"@data.pipeline(…, {name}={settings[name]!r}) there")
    return changed


def _of_file(source: str | os.PathLike[str], name: str) -> Pipeline:
    """Return the pipeline of a file: FILE.py:NAME, or the one of this name, or the only one."""
    file, said = file_and_name(source)
    pipelines = load_text(_text_of(file), file)
    named = name in pipelines or len(pipelines) != 1
    return select_pipeline(pipelines, file, said or (name if named else ""))


def _texts(pipeline: Pipeline) -> dict[str, Any]:
    """Return the texts from which workers load a pipeline: its file, and the modules beside it."""
    fresh = pipeline if pipeline.own else reloaded(pipeline, _text_of(pipeline.file))
    own = fresh.own
    assert own is not None
    texts = {"file": os.path.abspath(own.file), "source": own.text, "modules": own.texts(),
             "own_name": pipeline.name}
    if fresh is not pipeline:
        own.close()
    size = len(json.dumps(texts, ensure_ascii=False).encode())
    if size > TEXT_BYTES:
        raise UsageError(
            f"{pipeline.file} and what it imports from its folder are too long",
            expected=f"{TEXT_BYTES} bytes at most, which travel to workers",
            found=f"{size} in {1 + len(texts['modules'])} files",
            remedy="install what is long as a package where workers run; data belongs into files")
    return texts


def _facts(pipeline: Pipeline, texts: dict[str, Any], image: str | None,
           compute: bool) -> tuple[dict[str, Any], str]:
    """Return what is known of a pipeline's stream here, and why its first example is not known. Its
    order is None where its files are on other machines. Raises InputError where it does not fit its
    image."""
    with source_in_time(pipeline):
        try:
            # What is only known by reading on is read here where an example was, else at workers.
            order = pipeline.order() if image or pipeline.source.found_by() != "reading" else None
        except Exception:  # whatever the user's source raises: workers will say what is wrong
            order = None
        acts = pipeline.acts
    gives, why = None, "it was not computed"
    if image:
        check_image(pipeline, image)
        gives, why = fields_of(pipeline), ""
    elif compute:
        gives, why = first_example(texts)
    return {"order": order, "gives": gives,
            "environments": getattr(pipeline.source, "count", None) if acts else None}, why


def _text_of(file: str) -> str:
    try:
        with open(file, encoding="utf-8") as opened:
            return opened.read()
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{file}: the text of the pipeline cannot be read: {error}",
                         remedy="write it into a file") from None
