"""What a client does with jobs: it sends ranks to run, follows what they print, brings outputs.

In: a Client, an image, files by name. Out: the job's row; outputs in files, whole or not at all.
Always holds: a job goes on whatever becomes of its client; a scheduler that restarts is waited for.
"""

from __future__ import annotations

import codecs
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from typing import Any

from codegen.errors import InputError, OutputError, PeerError, UsageError
from codegen.image.manifest import read
from spmd.feeding.messages.end_conditions import check_condition, condition
from spmd.feeding.messages.scheduler_replies import Refused
from spmd.feeding.messages.wire import new_id
from spmd.files import ZARR, is_series
from spmd.files.frames import check_path, check_paths, no_place
from spmd.files.inputs import split
from spmd.files.outputs import check_ending
from spmd.files.packed_frames import unpacked
from spmd.files.whole import check_place, whole
from spmd.launch.loader import is_program, named

TYPE_CHECKING = False
if TYPE_CHECKING:
    from spmd.feeding.clients.client import Client

PART_BYTES = 1 << 20
LOOK_S = 0.2
PRINTS = "stdout", "stderr"
Files = Sequence[tuple[str, str]]  # (name, path), as `-o` has them; the name may be ""
Follow = Callable[[str, str], None]


def submit_job(client: Client, pipeline: str, image: str, ranks: int | Sequence[int], *,
               inputs: Files, outputs: Files, words: Sequence[str], launch: str, device: str,
               restarts: int, feed: str, until: str) -> dict[str, Any]:
    """Send the image and the inputs, then submit the job that uses them."""
    job = new_id()
    least, most = (ranks, ranks) if isinstance(ranks, int) else ranks
    if not 1 <= least <= most:
        raise UsageError(f"ranks={ranks!r}", expected="N, or (LEAST, MOST)")
    _check_saves(image, outputs, until, feed)
    for name, path in outputs:
        if not is_series(path):
            check_ending(name, path)
            check_place(split(path, existing=False)[0], f"output {name}" if name else "outputs")
    input_rows, output_rows = _arguments(inputs, existing=True), _arguments(outputs, existing=False)
    _check_names([os.path.abspath(image), *(row["path"] for row in (*input_rows, *output_rows))])
    sent = {(f"in.{row['number']}", row["path"]): 0 for row in input_rows}
    for file, path in [("image", image), *sent]:
        send_file(client, job, file, path)
    return dict(client.ask(
        "submit_job", job=job, pipeline=pipeline, image=os.path.basename(image), least=least,
        most=most, inputs=input_rows, outputs=output_rows, words=list(words), launch=launch,
        device=device, restarts=restarts, feed=feed, until=until)["value"])


def _check_saves(image: str, outputs: Files, until: str, feed: str) -> None:
    """Refuse frames that the program of an image does not save, or that have no place here, and a
    condition on what it does not save."""
    ends = condition(until) if until else None
    if is_program(image):  # what it saves is known once it is built, where it runs
        if ends or any(is_series(path) for _, path in outputs):
            raise UsageError(f"what {image} saves while it runs is not known before it is built",
                             expected="an image", found="a program",
                             remedy="python -m spmd build, then --image with that")
        return
    try:
        with open(image, "rb") as file, named(image):
            manifest = read(file.read(), host=False).manifest
    except OSError as error:
        raise InputError(f"{image}: {error.strerror}") from None
    saved = {row["name"] for row in manifest["saves"]}
    series = {name: path for name, path in outputs if is_series(path) or name in saved}
    check_paths(manifest, series)
    for name, path in series.items():
        if why := no_place(path):
            raise OutputError(f"frames of {name}: cannot write {path}: {why}",
                              remedy="another path")
    if ends:
        check_condition(ends, manifest, feed)


def _arguments(files: Files, existing: bool) -> list[dict[str, Any]]:
    """Return files as rows of wire.JOB: those of one path have one number."""
    numbers: dict[str, int] = {}
    rows = []
    for name, argument in files:
        path, member = (argument, "") if is_series(argument) else split(argument, existing)
        path = os.path.abspath(path)
        rows.append({"name": name, "member": member, "file": os.path.basename(path),
                     "number": numbers.setdefault(path, len(numbers)), "path": path})
    return rows


def _check_names(paths: Sequence[str]) -> None:
    """Refuse two files of one name: they lie in one folder where ranks run."""
    names: dict[str, str] = {}
    for path in paths:
        before = names.setdefault(os.path.basename(path), path)
        if before != path:
            raise UsageError("two files of a job have the same name", expected="names of their own",
                             found=f"{before} and {path}", remedy="call one of them otherwise")


def send_file(client: Client, job: str, file: str, path: str) -> None:
    """Sends a file that a job reads, before the job is submitted. Raises InputError."""
    try:
        with open(path, "rb") as opened:
            while data := opened.read(PART_BYTES):
                client.ask("put", [data], job=job, attempt=0, file=file,
                           offset=opened.tell() - len(data))
            if not opened.tell():
                client.ask("put", [b""], job=job, attempt=0, file=file, offset=0)
    except OSError as error:
        raise InputError(f"{path}: {error.strerror}") from None


def fetch_job(client: Client, name: str, outputs: Files,
              follow: Follow | None) -> dict[str, Any]:
    """Follow a job to its end, and fetch its outputs. outputs: other paths than those of its
    submission."""
    row = client.ask("job", name=name)["value"]
    row = _Followed(client, name, row, follow or (lambda kind, text: None)).to_end()
    if row["status"] == 0:
        _bring(client, row, dict(outputs))
    return row


class _Followed:
    """A job while its client looks at it. follow: is called with stdout, stderr or note, a text."""

    def __init__(self, client: Client, name: str, row: dict[str, Any], follow: Follow) -> None:
        self.client, self.name, self.row, self.follow = client, name, row, follow
        self.attempt, self.told, self.away = 0, "", False
        self._begin()

    def _begin(self) -> None:
        """Begin to follow an attempt of the job: the first one, or the next."""
        self.attempt, self.offsets = self.row["attempt"], dict.fromkeys(PRINTS, 0)
        self.readers = {stream: codecs.getincrementaldecoder("utf-8")("replace")
                        for stream in PRINTS}

    def to_end(self) -> dict[str, Any]:
        while True:
            try:
                self.row = self.client.ask("job", name=self.name)["value"]
                if self.row["attempt"] != self.attempt:
                    self._begin()
                if self.attempt:
                    for stream in PRINTS:
                        self._pass_on(stream)
                self._tell()
                self.away = False
                if self.row["state"] == "ended":
                    return self.row
            except Refused:
                raise
            except PeerError as error:
                if not self.away:
                    self.away = True
                    self.follow("note", f"{error.message}; {self.name} goes on, and so does this")
            time.sleep(LOOK_S)

    def _tell(self) -> None:
        """Tell why the job waits, or where it runs, when that has changed."""
        row, why = self.row, self.row["why"]
        ranks = f"{row['ranks']} rank{'s' * (row['ranks'] != 1)}"
        text = {"pending": f"{self.name} waits: {why}" if why else "",
                "running": f"{self.name} runs on {row['host']} with {ranks}" + (
                    f", start {row['attempt']}" if row["attempt"] > 1 else ""),
                "ended": f"{self.name} ended with status {row['status']}" + (
                    f": {why}" * bool(why)) if row["status"] or why else ""}[row["state"]]
        if text and text != self.told:
            self.follow("note", text)
        self.told = text or self.told

    def _pass_on(self, stream: str) -> None:
        while True:
            answer = self.client.ask("get", job=self.row["job"], attempt=self.attempt, file=stream,
                                     offset=self.offsets[stream])
            data = b"".join(bytes(frame) for frame in answer.frames)
            self.offsets[stream] += len(data)
            if text := self.readers[stream].decode(data, final=self.row["state"] == "ended"):
                self.follow(stream, text)
            if not data:
                return


def _bring(client: Client, row: dict[str, Any], others: Mapping[str, str]) -> None:
    """Write all outputs, or none: a file takes its name when all of them are here."""
    paths = {a["number"]: a["path"] for a in row["asked"]["outputs"]}
    series = {a["number"] for a in row["asked"]["outputs"] if is_series(a["file"])}
    names = {a["name"] or os.path.basename(a["path"]): a["number"]
             for a in row["asked"]["outputs"]}
    for name, path in others.items():
        if name not in names:
            raise UsageError(f"{row['name']} has no output {name}",
                             expected=", ".join(names) or "none: it was asked for none")
        number = names[name]
        if (number in series) != is_series(path) or (
                number in series and paths[number].endswith(ZARR) != path.endswith(ZARR)):
            raise UsageError(f"-o {name}={path}: that is another kind of file",
                             expected=f"one as {paths[number]}, as the job was given it")
        if number in series:
            check_path(name, path, "float64")
        paths[number] = path
    try:
        with ExitStack() as files:
            for number, path in paths.items():
                if number in series:
                    frames = files.enter_context(unpacked(path))
                    _receive(client, row, f"out.{number}", frames.file)
                    frames.unpack()
                    continue
                check_place(path, f"an output of {row['name']}")
                _receive(client, row, f"out.{number}", files.enter_context(whole(path)))
    except OSError as error:
        raise OutputError(
            f"cannot write {error.filename}: {error.strerror}",
            remedy=f"python -m spmd feed fetch {row['name']} brings it again") from None


def _receive(client: Client, row: dict[str, Any], file: str, to: Any) -> None:
    while True:
        answer = client.ask("get", job=row["job"], attempt=row["attempt"], file=file,
                            offset=to.tell())
        for frame in answer.frames:
            to.write(frame)
        if not answer.frames:
            break
    if to.tell() != row["files"][file]:
        raise OutputError(f"an output of {row['name']} is not whole at the scheduler",
                          expected=f"{row['files'][file]} bytes", found=f"{to.tell()}")
