"""The messages of feeding: one table says which kinds there are and what their fields hold.

A message is frames: a header (JSON, UTF-8) and raw bytes; nothing is ever unpickled. A long header
travels in pieces: heartbeats pass between frames, not within one.
Always holds: decode() gives a Message whose every field was checked, or raises MalformedMessage.
"""

from __future__ import annotations

import json
import secrets

from codegen.errors import SpmdError
from codegen.validators import (
    Invalid,
    by_name,
    each,
    flag,
    integer,
    may_be_missing,
    maybe,
    number,
    one_of,
    record,
    row,
    text,
)
from spmd.feeding.messages.field_kinds import (
    address,
    bits,
    count,
    file_name,
    identity,
    job_file,
    job_name,
    key,
    name,
    plain,
    positive,
    settings,
)
from spmd.files import ARCHIVES

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from typing import Any

    from codegen.validators import Check

VERSION = 1
HEADER_BYTES = 1 << 20
PIECE_BYTES = 16 << 10  # of a header, in one frame
MOST_PIECES = HEADER_BYTES // PIECE_BYTES
TEXT_BYTES = HEADER_BYTES - (1 << 16)  # of a pipeline's file and the modules beside it, as JSON
FRAMES = 1 << 16  # of raw bytes, in one message
ARRAY_BYTES = 1 << 32
WORK_ITEMS = 1024  # in one take
FIELDS = 64


class MalformedMessage(SpmdError):
    """Frames that are no message of ours; whoever gets them drops them and goes on."""

    exit_code = 65


LINE = maybe(integer(0, 1 << 31))
FILE = maybe(text(4096))
SOURCE = text(TEXT_BYTES)

# A process that computes. address, key: its ROUTER and the public CURVE key of that.
# local: its abstract Unix socket, for consumers of the same host;
# secret: what that one asks for. share: the part of its time that a consumer has; 0 where it has
# what others leave, behind: after those that are behind fewer.
PROCESS: dict[str, Check] = {
    "worker": identity, "address": address, "key": key, "local": maybe(text(100)),
    "secret": maybe(text(64)), "host": maybe(text(256)),
}
ASSIGNED = record(**PROCESS, share=number, behind=maybe(count))

# A field of a feed: dtype as NumPy writes it ("<f4"), shape of one example.
FIELD = record(name=name, dtype=text(32), shape=each(integer(0, 1 << 40), 32))

# An array of a result: `bytes` long when unpacked. It lies in `parts` raw frames from number
# `frame` on, packed by `codec`.
ARRAY = record(
    name=name, dtype=text(32), shape=each(integer(0, 1 << 40), 33), bytes=integer(0, ARRAY_BYTES),
    frame=integer(0, FRAMES), parts=maybe(integer(1, FRAMES)),
    codec=maybe(one_of("none", "lz4", "zstd")),
)

# An example that could not be computed: its position, its name, where and why.
BROKEN = record(position=count, example=text(), file=FILE, line=LINE, text=text(65536))

# Work: its id, the first position, how many, `through`: the last position about which the answer
# says whether the stream reaches it, and the positions that are left as zeros, not computed.
WORK = row(identity, count, integer(0, 1 << 32), count, each(count, 4096))

# A further result that differs in its id, its rows, its region and its seconds only.
ALIKE = row(identity, count, count, number)

# What a worker is at, for beats: the examples it made since it started, seconds it computed.
AT = record(position=count, example=text(), file=FILE, line=LINE, seconds=number)
MADE = record(examples=count, busy_s=number, bytes=maybe(count), queue=maybe(count), at=maybe(AT))

# What stands for an example, of a worker that is at none: before its first, and behind some.
WHILE_LOADED = "the pipeline itself, while it was loaded"
WHILE_READ = "its source, while it was read"
SOON_AFTER = "no example, but soon after some"

# A module that a pipeline imports from its folder. own_name: what the file calls the pipeline.
MODULE = record(name=text(256), file=text(), text=SOURCE)
TEXTS: dict[str, Check] = {"own_name": maybe(text(256)), "modules": maybe(each(MODULE, 65536))}

PIPELINE: dict[str, Check] = {
    "name": name, "version": count, "file": text(), "source": SOURCE, "settings": settings, **TEXTS,
}

# What whoever submits a source found in it: the order of its stream, how many environments it has,
# the fields that it gives.
FACTS: dict[str, Check] = {
    "order": maybe(text(64)), "environments": maybe(count), "gives": maybe(each(FIELD, FIELDS)),
}

# A file of a job as `spmd run` takes it: NAME=FILE, or FILE alone (""). member: as behind FILE:.
# file: what it is called where ranks run. path: where its owner has it.
JOB_ARGUMENT = record(name=text(256), member=text(256), file=file_name, number=integer(0, 999),
                      path=text())
# What a job is. words: more of `spmd run`. launch: what starts so many processes, "" as its agent
# does. device: the kind that it prefers. restarts: how often it may start again. feed: of image.
# until: the condition that ends it, as end_conditions.condition reads it; "" for none.
JOB: dict[str, Check] = {
    "image": file_name, "least": integer(1, 1 << 20), "most": integer(1, 1 << 20),
    "inputs": each(JOB_ARGUMENT, 256), "outputs": each(JOB_ARGUMENT, 256),
    "words": each(text(), 256), "launch": text(), "device": text(64),
    "restarts": integer(0, 1 << 20), "feed": text(128), "until": text(512),
}
PLACE = row(text(256), integer(1, 1 << 20))
# What has gone wrong, of the front of a server and its replicas: the class of the error, its text.
ERROR = maybe(record(kind=text(64), text=text(65536)))

# kind -> its fields. Raw frames come behind the header of those in FRAMED only.
TABLE: dict[str, dict[str, Check]] = {
    # agent -> scheduler. join is sent again whenever the list of processes changed.
    "join": {"agent": identity, "host": text(256), "name": text(256), "device": text(64),
             "processes": each(record(**PROCESS), 4096), "free": maybe(text(64)),
             "memory": maybe(count), "cost": maybe(number), "energy": maybe(number),
             "slots": maybe(count)},
    # jobs: those that it was told to start and not yet to end: which attempt, and does it run?
    "beat": {"agent": identity, "workers": by_name(by_name(MADE, 256, name), 4096, identity),
             "jobs": maybe(by_name(row(count, flag), 4096, identity))},
    "leave": {"agent": identity},
    # agent -> scheduler -> every consumer of that pipeline: a worker ended, at which example. Who
    # takes another version is told no position. outside: killed by somebody, for all that is known.
    "gone": {"worker": identity, "why": text(), "pipeline": maybe(name),
             "version": maybe(count), "position": maybe(count), "example": maybe(text()),
             "file": FILE, "line": LINE, "outside": maybe(flag)},
    # scheduler -> agent. load: this version of a pipeline may be asked of you, beside others.
    # drop: nobody takes that version any more. stop: end your workers.
    "load": PIPELINE,
    "drop": {"name": name, "version": count},
    "stop": {"why": text()},
    # scheduler -> agent. start_job: until your beats name it, again and again. places: its agents'
    # hosts and how many ranks each has, in their order; part: which of them you are. end_job: end
    # it if it runs, and name it no more.
    "start_job": {"job": identity, "attempt": count, "name": job_name, "pipeline": name,
                  "ranks": integer(1, 1 << 20), "places": each(PLACE, 1000),
                  "part": integer(0, 999), **JOB},
    "end_job": {"job": identity},
    "yield_job": {"job": identity},  # end it behind its next checkpoint, if it comes to one
    # scheduler -> agent: public keys of whoever may connect to your workers, and nobody else.
    "allowed": {"keys": each(key, 8192)},
    # scheduler -> agent or consumer: I do not know you (any more): join or consume again.
    "who": {},
    # consumer -> scheduler. stream, version, text: what `open` answered to its run; without them
    # the newest version. blocks: so many parts of a batch its ranks take, each its own; device: of
    # ranks; idle: it has no rows, and needs no workers any more. learnt: the order of its stream,
    # where only a worker could tell.
    "consume": {"consumer": identity, "run": text(256), "pipeline": name, "feed": name,
                "rows": row(count, count), "batch": positive, "fields": each(FIELD, FIELDS),
                "host": text(256), "ranks": each(count, 65536), "device": text(64),
                "stream": maybe(identity), "version": maybe(count), "text": maybe(text(64)),
                "blocks": maybe(count), "idle": maybe(flag)},
    "learnt": {"consumer": identity, "order": text(64)},
    # -> scheduler -> the first consumer of that stream, which says it for the whole run.
    "skipped": {"consumer": identity, "position": count, "text": text(4096)},
    "said": {"consumer": identity, "position": count},  # the same way back
    "rate": {"consumer": identity, "taken": count, "busy_s": number, "waited_s": number,
             "queued": count},
    "lost": {"consumer": identity, "worker": identity, "why": maybe(text(256))},
    "reached": {"consumer": identity, "worker": identity},  # it was lost
    "done": {"consumer": identity},
    # scheduler -> every consumer of a feed, and back. hold: give ranks no further batch; held: so
    # many were given so far. end_feed: the stream has so many batches, whatever its source has.
    "hold": {},
    "held": {"consumer": identity, "batches": count},
    "end_feed": {"batches": count},
    "parted": {},  # scheduler -> consumer: "done" is heard, and all before it
    # scheduler -> consumer. workers replaces the list given before; how: the way to ask them.
    "workers": {"name": name, "version": count, "settings": settings,
                "workers": each(ASSIGNED, 2048), "how": one_of("turn", "random", "all")},
    "pending": {"why": text()},
    "failed": {"text": text(65536), "code": integer(0, 255)},
    # client -> scheduler, and its answers. open: a run begins to take a feed; it goes on with the
    # version that is answered, in all its processes.
    "submit": {**PIPELINE, **FACTS},
    "update": {"name": name, "settings": settings, "source": maybe(SOURCE), "file": FILE,
               "fixed": maybe(settings), **TEXTS, **FACTS},
    "open": {"pipeline": name, "version": maybe(count), "text": maybe(text(64)), "run": text(256),
             "feed": name},
    "cancel": {"name": name, "by": maybe(text(256))},
    # jobs. put: bytes of a file from `offset` on; attempt 0: of whoever submits it, before it does.
    # start.N, said.N, end.N: what a launcher starts at place N, what that prints, how it has ended.
    # get answers {"size"} of the file, and bytes. job: its row. end_early: of its runner: its feed
    # is to end as soon as all ranks can; answers {"batches"}, none until that is known. job_ended:
    # files are its outputs, with their sizes; it was lost if status is none; yields: it was told to
    # (yield_job), and goes on from its checkpoint.
    "put": {"job": identity, "attempt": count, "file": job_file, "offset": count},
    "get": {"job": identity, "attempt": count, "file": job_file, "offset": count},
    "submit_job": {"job": identity, "pipeline": name, **JOB},
    "job": {"name": job_name},
    "end_early": {"job": identity, "attempt": count},
    "job_ended": {"job": identity, "attempt": count, "status": maybe(integer(0, 255)),
                  "why": text(), "files": by_name(count, 1000, job_file), "yields": maybe(flag)},
    "cancel_job": {"name": job_name, "by": maybe(text(256))},
    "status": {},
    "answer": {"value": plain(12, 65536)},
    "refused": {"text": text(65536), "code": integer(0, 255)},
    # consumer -> worker. It must know that version (load); one that does not answers unknown.
    # order: of the stream that it must be, where that is known. share, behind: as in ASSIGNED.
    # free: results that no rank looks at any more, as in a message of that name.
    "take": {"pipeline": name, "version": count, "fields": each(FIELD, FIELDS),
             "newest_first": flag, "order": maybe(text(64)), "share": maybe(number),
             "behind": maybe(count), "work": each(WORK, WORK_ITEMS),
             "free": maybe(each(identity, 65536))},
    "free": {"ids": each(identity, 65536)},
    "forget": {"ids": each(identity, 65536)},  # answers to these are not wanted any more
    "give_back": {"pipeline": name, "version": count, "first": count,
                  "arrays": each(ARRAY, FIELDS)},  # feed.send(): a row for each place
    # worker -> consumer. rows may be fewer than asked where the stream ends: end is its length.
    # It lies in frames, or in a region of the worker: there all fields that were asked for are
    # one behind the other, as placing.placed says.
    "given": {"id": identity, "rows": count, "arrays": maybe(each(ARRAY, FIELDS)),
              "region": maybe(count), "seconds": number,
              "there": maybe(bits),  # which rows have an example, where not all have one
              "broken": maybe(each(BROKEN, 65536)),  # what failed, as far as there is room
              "end": maybe(count),
              "together": maybe(count),  # examples that the pipeline computes at once
              "order": maybe(text(64)),  # of its stream, to whoever did not know it
              "more": maybe(each(ALIKE, WORK_ITEMS))},
    "broken": {"id": identity, "broken": BROKEN},  # on_error="stop": there will be no such result
    "unknown": {"pipeline": name, "version": count, "ids": each(identity, WORK_ITEMS)},
    # replica -> front of a server. replica: one that joins; opened: it has that job, or the error;
    # made: what a call has given, or the error; saved: a frame of a call; parting: it ends once
    # it is told to stop. length: of the JSON at the beginning of the frames.
    "replica": {"spmd": text(64), "host": text(256), "machine": text(256)},
    "opened": {"job": count, "error": ERROR},
    "made": {"call": count, "length": integer(0, 1 << 40), "error": ERROR},
    "saved": {"call": count, "length": integer(0, 1 << 40)},
    "parting": {},
    # front -> replica. serve: open this job, whose image is so long, and the rest of the frames a
    # state file with this ending; keep: close all jobs but this one; read: a frame was read; hush:
    # end the call; share: which part of the cores of its machine it takes.
    "serve": {"job": count, "image": count, "state": maybe(one_of(*ARCHIVES))},
    "keep": {"job": count},
    "call": {"job": count, "call": count, "entry": maybe(text(256)), "streams": flag,
             "length": integer(0, 1 << 40)},
    "read": {"call": count},
    "hush": {"call": count},
    "share": {"part": count, "of": positive},
}
_CHECKS = {kind: record(**fields) for kind, fields in TABLE.items()}
OPTIONAL = {kind: {field for field, check in fields.items() if may_be_missing(check)}
            for kind, fields in TABLE.items()}
FRAMED = frozenset({"given", "give_back", "put", "answer", "serve", "call", "made", "saved"})
IN_PIECES = "in_pieces"  # no kind of message: so many frames behind this one are the header of one


class Message:
    """Holds a checked message: its kind, its fields (message["id"]), its raw frames."""

    __slots__ = ("fields", "frames", "kind")

    def __init__(self, kind: str, fields: dict[str, Any], frames: Sequence[Any] = ()) -> None:
        self.kind, self.fields, self.frames = kind, fields, frames

    def __getitem__(self, field: str) -> Any:
        return self.fields[field]

    def __repr__(self) -> str:
        return f"Message({self.kind!r}, {self.fields!r}, {len(self.frames)} frames)"


def new_id() -> str:
    """Return a name that nobody else has: 16 hexadecimal digits."""
    return secrets.token_hex(8)


def encode(kind: str, frames: Sequence[Any] = (), /, **fields: Any) -> list[Any]:
    """Return the frames of a message. A field that its table does not allow is our own mistake: it
    raises as decode() would at the other end."""
    _checked(kind, fields, len(frames))
    header = _ENCODER.encode(
        {"wire": VERSION, "kind": kind,
         **{name: value for name, value in fields.items()
            if value is not None or name not in OPTIONAL[kind]}}).encode("utf-8", "replace")
    if len(header) > HEADER_BYTES:
        raise _malformed(f"a header of {kind}: expected at most {HEADER_BYTES} bytes, "
                         f"found {len(header)}")
    if len(header) <= PIECE_BYTES:
        return [header, *frames]
    pieces = [header[offset : offset + PIECE_BYTES]
              for offset in range(0, len(header), PIECE_BYTES)]
    first = json.dumps({"wire": VERSION, "kind": IN_PIECES, "pieces": len(pieces)}).encode()
    return [first, *pieces, *frames]


def with_room(broken: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return the first of these failures: as many as the header of a message surely has room
    for."""
    used = 0
    for k, failure in enumerate(broken):
        texts = failure["example"], failure["file"] or "", failure["text"]
        used += 200 + 6 * sum(map(len, texts))
        if k and used > HEADER_BYTES // 2:
            return broken[:k]
    return broken


def decode(frames: Sequence[Any]) -> Message:
    """Return the message that these frames are: bytes, memoryviews or frames of pyzmq."""
    if not 1 <= len(frames) <= 1 + MOST_PIECES + FRAMES:
        raise _malformed(f"expected 1 to {1 + MOST_PIECES + FRAMES} frames, found {len(frames)}")
    raw = [memoryview(f) for f in frames]
    kind, fields = _header(raw[0])
    if kind == IN_PIECES:
        many = fields.get("pieces")
        if type(many) is not int or not 1 <= many <= min(MOST_PIECES, len(raw) - 1) or (
                len(fields) > 1):
            raise _malformed(f"a header in pieces: expected the number of its frames, at most "
                             f"{MOST_PIECES}, found {str(many)[:40]} and {len(raw) - 1} frames")
        if sum(piece.nbytes for piece in raw[1 : 1 + many]) > HEADER_BYTES:
            raise _malformed(f"a header: expected at most {HEADER_BYTES} bytes")
        raw = [memoryview(b"".join(raw[1 : 1 + many])), *raw[1 + many :]]
        kind, fields = _header(raw[0])
    _checked(kind, fields, len(raw) - 1)
    return Message(kind, fields, raw[1:])


def _header(raw: memoryview) -> tuple[str, dict[str, Any]]:
    """Return the kind of a message of our version, and its fields, not yet checked."""
    if raw.nbytes > HEADER_BYTES:
        raise _malformed(f"a header: expected at most {HEADER_BYTES} bytes, found {raw.nbytes}")
    try:
        text = str(raw, "utf-8")
        header = _DECODER.decode(text)
        if "\\u" in text:  # half of a character is none: no file and no terminal takes it
            json.dumps(header, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise _malformed(f"a header that is no JSON: {str(error)[:200]}") from None
    if not isinstance(header, dict):
        raise _malformed("a header: expected an object")
    version, kind = header.pop("wire", None), header.pop("kind", None)
    if version != VERSION or type(version) is not int:
        raise _malformed(f"expected a message of version {VERSION}, found {str(version)[:40]}; "
                         "use one version of spmd everywhere")
    if not isinstance(kind, str):
        raise _malformed("expected a kind of message")
    return kind, header


def _checked(kind: str, fields: dict[str, Any], frames: int) -> None:
    if kind not in TABLE:
        raise _malformed(f"no such kind of message: {kind[:40]!r}")
    if frames and kind not in FRAMED:
        raise _malformed(f"{kind}: expected no raw frames, found {frames}")
    try:
        _CHECKS[kind](fields)
    except Invalid as error:
        raise _malformed(f"{kind}: {error}") from None
    for array in fields.get("arrays") or ():
        if array["frame"] + (array["parts"] or 1) > frames:
            raise _malformed(f"{kind}: array {array['name']} is in no frame")
    if kind == "given" and (fields.get("arrays") is None) == (fields.get("region") is None):
        raise _malformed("given: expected either arrays or a region")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    entries = dict(pairs)
    if len(entries) != len(pairs):
        raise ValueError("a key that stands there twice")
    return entries


def _constant(constant: str) -> None:
    raise ValueError(f"{constant} is no number of JSON")


# Made once: json.loads and json.dumps make another one for each call with options.
_DECODER = json.JSONDecoder(object_pairs_hook=_unique, parse_constant=_constant)
_ENCODER = json.JSONEncoder(ensure_ascii=False, separators=(",", ":"), allow_nan=False)


def _malformed(text: str) -> MalformedMessage:
    return MalformedMessage(f"a malformed message: {text}")
