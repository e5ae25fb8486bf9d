"""Messages: round trips of every kind, and refusal of whatever is not exactly one."""

from __future__ import annotations

import json

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from spmd.data.computing import dtype_of
from spmd.feeding.messages.wire import (
    FRAMED,
    HEADER_BYTES,
    MOST_PIECES,
    PIECE_BYTES,
    TABLE,
    MalformedMessage,
    decode,
    encode,
    new_id,
)
from spmd.feeding.results.compression import in_frames, of_parts
from spmd.feeding.results.memory_layout import dtype_named

A, B = "0123456789abcdef", "fedcba9876543210"
PROCESS = {"worker": A, "address": "tcp://127.0.0.1:5555", "key": "k" * 40, "local": "here",
           "secret": "s", "host": "h"}
FIELD = {"name": "x", "dtype": "<f4", "shape": [8, 8]}
PIPELINE = {"name": "images", "version": 3, "file": "images.py", "source": "x = 1\n",
            "settings": {"priority": 5, "rates": {"cpu": 1.5}}, "own_name": "pictures",
            "modules": [{"name": "beside", "file": "beside.py", "text": "y = 2\n"}]}
IN_FRAME = {"name": "x", "dtype": "<f4", "shape": [1], "bytes": 4, "frame": 0, "parts": 1,
            "codec": "lz4"}
BROKEN = {"position": 7, "example": "cat.jpg", "file": "images.py", "line": 3, "text": "no"}
FACTS = {"order": "0", "environments": 4, "gives": [FIELD]}

JOB_ARGUMENT = {"name": "w", "member": "a", "file": "w.npz", "number": 3, "path": "/a/w.npz"}
JOB = {"image": "train.img", "least": 2, "most": 4, "inputs": [JOB_ARGUMENT],
       "outputs": [JOB_ARGUMENT], "words": ["--check", "nan"],
       "launch": "mpirun -n {ranks}", "device": "gpu", "restarts": 2, "feed": "train",
       "until": "loss < 0.1"}

# One message of each kind, every field filled.
ERROR = {"kind": "InputError", "text": "input x"}
EXAMPLES = {
    "replica": {"spmd": "1", "host": "h", "machine": "m"}, "parting": {},
    "opened": {"job": 1, "error": ERROR}, "made": {"call": 1, "length": 2, "error": ERROR},
    "saved": {"call": 1, "length": 2}, "serve": {"job": 1, "image": 2, "state": ".npz"},
    "keep": {"job": 1}, "read": {"call": 1}, "hush": {"call": 1}, "share": {"part": 0, "of": 2},
    "call": {"job": 1, "call": 1, "entry": "infer", "streams": False, "length": 2},
    "join": {"agent": A, "host": "h", "name": "n", "device": "cpu", "processes": [PROCESS],
             "free": "20:00-06:00", "memory": 1 << 30, "cost": 0.1, "energy": 5,
             "slots": 4},
    "beat": {"agent": A, "workers": {B: {"images": {
        "examples": 5, "busy_s": 0.5, "bytes": 10, "queue": 2,
        "at": {"position": 3, "example": "e", "file": "f", "line": 1, "seconds": 0.1}}}},
        "jobs": {B: [2, True]}},
    "leave": {"agent": A}, "drop": {"name": "images", "version": 2}, "stop": {"why": "over"},
    "who": {}, "allowed": {"keys": ["k" * 40]},
    "gone": {"worker": A, "why": "killed", "pipeline": "images", "version": 1, "position": 7,
             "example": "e", "file": "f", "line": 1, "outside": True},
    "load": PIPELINE, "submit": {**PIPELINE, **FACTS},
    "open": {"pipeline": "images", "version": 1, "text": "0", "run": "r", "feed": "feed"},
    "learnt": {"consumer": A, "order": "0"},
    "skipped": {"consumer": A, "position": 3, "text": "cat.jpg: no"},
    "said": {"consumer": A, "position": 3},
    "parted": {},
    "consume": {"consumer": A, "run": "r", "pipeline": "images", "feed": "feed", "rows": [0, 4],
                "batch": 8, "fields": [FIELD], "host": "h", "ranks": [0, 1], "device": "cpu",
                "stream": B, "version": 1, "text": "0", "blocks": 2,
                "idle": False},
    "rate": {"consumer": A, "taken": 3, "busy_s": 1.5, "waited_s": 0, "queued": 2},
    "lost": {"consumer": A, "worker": B, "why": "w"}, "done": {"consumer": A},
    "hold": {}, "held": {"consumer": A, "batches": 3},
    "end_feed": {"batches": 4}, "end_early": {"job": A, "attempt": 1},
    "reached": {"consumer": A, "worker": B},
    "workers": {"name": "images", "version": 3, "settings": PIPELINE["settings"],
                "workers": [{**PROCESS, "share": 0.5, "behind": 1}], "how": "turn"},
    "pending": {"why": "no worker is free"}, "failed": {"text": "no", "code": 65},
    "update": {"name": "images", "settings": {}, "source": "", "file": "f",
               "fixed": {"seed": 1}, "own_name": None, "modules": [], **FACTS},
    "cancel": {"name": "images", "by": "ada at nodea"}, "status": {},
    "put": {"job": A, "attempt": 1, "file": "out.3", "offset": 1 << 20},
    "get": {"job": A, "attempt": 0, "file": "image", "offset": 0},
    "submit_job": {"job": A, "pipeline": "images", **JOB}, "job": {"name": "images/3"},
    "start_job": {"job": A, "attempt": 1, "name": "images/3", "pipeline": "images", "ranks": 4,
                  "places": [["nodea", 3], ["nodeb", 1]], "part": 1, **JOB}, "end_job": {"job": A},
    "yield_job": {"job": A},
    "job_ended": {"job": A, "attempt": 1, "status": 0, "why": "", "files": {"out.0": 8},
                  "yields": False},
    "cancel_job": {"name": "images/3", "by": "ada at nodea"},
    "answer": {"value": {"rows": [1, None, True]}},
    "refused": {"text": "no", "code": 65},
    "take": {"pipeline": "images", "version": 1, "fields": [FIELD], "newest_first": False,
             "order": "0", "share": 0.5, "behind": 1, "work": [[A, 0, 8, 15, [3]]], "free": [B]},
    "free": {"ids": [A]}, "forget": {"ids": [A, B]},
    "give_back": {"pipeline": "images", "version": 1, "first": 0, "arrays": [IN_FRAME]},
    "given": {"id": A, "rows": 1, "arrays": [IN_FRAME], "region": None, "broken": [BROKEN],
              "seconds": 0.1, "end": 9, "together": 1, "order": "0", "there": "80",
              "more": [[B, 1, 2, 0.1]]},
    "broken": {"id": A, "broken": BROKEN},
    "unknown": {"pipeline": "images", "version": 1, "ids": [A]},
}


def frames_for(kind):
    return [b"abcd"] if kind in FRAMED else []


def test_every_kind_is_tried():
    assert set(EXAMPLES) == set(TABLE)
    assert len({new_id() for _ in range(100)}) == 100


@pytest.mark.parametrize("kind", TABLE)
def test_round_trip(kind):
    message = decode(encode(kind, frames_for(kind), **json.loads(json.dumps(EXAMPLES[kind]))))
    assert (message.kind, message.fields) == (kind, EXAMPLES[kind])
    assert [bytes(f) for f in message.frames] == frames_for(kind)


def test_a_long_header_travels_in_pieces():
    """Also before raw frames, and a text whose characters are cut in two."""
    text = "é" * (3 * PIECE_BYTES)
    frames = encode("load", **{**PIPELINE, "source": text})
    assert len(frames) > 6 and all(len(f) <= PIECE_BYTES for f in frames)
    assert decode(frames)["source"] == text
    many = [{**BROKEN, "text": "x" * 60000}] * 2
    given = {**EXAMPLES["given"], "broken": many}
    message = decode(encode("given", [b"abcd"], **given))
    assert message["broken"] == many and [bytes(f) for f in message.frames] == [b"abcd"]


WHO = [b'{"wire": 1, ', b'"kind": "who"}']


def header(**fields):
    return [json.dumps({"wire": 1, **fields}).encode()]


@pytest.mark.parametrize(("frames", "says"), [
    ([], "found 0"),
    ([b""], "no JSON"),
    ([b"\xff\xfe"], "no JSON"),
    ([b"[" * 100000], "no JSON"),
    ([b'{"wire": 1, "kind": "who", "kind": "who"}'], "twice"),
    ([b'{"wire": 1, "kind": "rate", "busy_s": NaN}'], "NaN"),
    ([b'{"wire": ' + b"9" * 5000 + b', "kind": "who"}'], "no JSON"),
    ([b" " * (HEADER_BYTES + 1)], "at most"),
    ([b"3"], "an object"),
    ([b'{"wire": 1, "kind": "drop", "name": "\\ud800"}'], "surrogates"),
    ([b'{"kind": "who"}'], "version 1"),
    ([b'{"wire": true, "kind": "who"}'], "version 1"),
    (header(kind="shell"), "no such kind"),
    (header(kind=["who"]), "a kind"),
    (header(kind="who", more=1), "only the fields"),
    (header(kind="leave"), "field 'agent'"),
    (header(kind="leave", agent="0123"), "16 hexadecimal digits"),
    (header(kind="leave", agent=A + "\n"), "16 hexadecimal digits"),
    (header(kind="drop", name="../../etc"), "a name"),
    ([*header(kind="who"), b"raw"], "no raw frames"),
    (header(kind="free", ids=A), "a list"),
    (header(kind="rate", consumer=A, taken=-1, busy_s=0, waited_s=0, queued=0), "taken"),
    (header(kind="rate", consumer=A, taken=True, busy_s=0, waited_s=0, queued=0), "taken"),
    (header(kind="rate", consumer=A, taken=1, busy_s=1e999, waited_s=0, queued=0), "Infinity"),
    (header(kind="give_back", pipeline="p", version=0, first=0, arrays=[IN_FRAME]), "in no frame"),
    (header(kind="given", id=A, rows=1, seconds=0), "either arrays or a region"),
    (header(kind="given", id=A, rows=1, seconds=0, region=3, arrays=[]), "either arrays or a reg"),
    ([*header(kind="give_back", pipeline="p", version=0, first=0,
              arrays=[{**IN_FRAME, "parts": 2}]), b"abcd"], "in no frame"),
    ([*header(kind="in_pieces", pieces=3), *WHO], "in pieces"),
    ([*header(kind="in_pieces", pieces=0), *WHO], "in pieces"),
    ([*header(kind="in_pieces", pieces=True), *WHO], "in pieces"),
    ([*header(kind="in_pieces", pieces=2, more=1), *WHO], "in pieces"),
    ([*header(kind="in_pieces", pieces=1), *WHO], "no JSON"),
    ([*header(kind="in_pieces", pieces=2), *WHO, b"raw"], "no raw frames"),
    ([*header(kind="in_pieces", pieces=MOST_PIECES + 1), *[b" "] * (MOST_PIECES + 1)], "in pieces"),
    ([*header(kind="in_pieces", pieces=2), b" " * HEADER_BYTES, b" "], "at most"),
    ([*header(kind="in_pieces", pieces=1), *header(kind="in_pieces", pieces=1)], "no such kind"),
], ids=str)
def test_what_is_no_message_is_refused(frames, says):
    with pytest.raises(MalformedMessage, match=says):
        decode(frames)


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=8), inner,
                                                                max_size=4), max_leaves=12)


@settings(max_examples=120, deadline=None)
@given(st.sampled_from(sorted(TABLE)), st.data())
def test_a_changed_field_is_refused_or_checked(kind, data):
    """Whatever stands in one field: a message whose fields were checked again, or a refusal."""
    fields = json.loads(json.dumps(EXAMPLES[kind]))
    if fields:
        where = data.draw(st.sampled_from(sorted(fields)))
        fields[where] = data.draw(JSON)
    raw = [json.dumps({"wire": 1, "kind": kind, **fields}).encode(), *frames_for(kind)]
    try:
        message = decode(raw)
    except MalformedMessage:
        return
    again = decode(encode(kind, message.frames, **message.fields))
    assert again.fields == message.fields


@settings(max_examples=300, deadline=None)
@given(st.sampled_from(sorted(TABLE)), st.data())
def test_flipped_bytes_raise_nothing_else(kind, data):
    fields = json.loads(json.dumps(EXAMPLES[kind]))
    raw = bytearray(encode(kind, frames_for(kind), **fields)[0])
    for _ in range(data.draw(st.integers(1, 4))):
        raw[data.draw(st.integers(0, len(raw) - 1))] = data.draw(st.integers(0, 255))
    try:
        decode([bytes(raw), *frames_for(kind)])
    except MalformedMessage as error:
        assert "malformed message" in str(error)


@pytest.mark.parametrize("dtype", ["bfloat16", "float16", "complex64", "bool"])
def test_values_sent_back_keep_their_dtype(dtype):
    """Also one that NumPy writes as "<V2"."""
    value = np.ones((3, 2), dtype_of(dtype))
    (array,), frames = in_frames({"a": value})
    assert dtype_named(array["dtype"]) == value.dtype
    assert of_parts(frames[: array["parts"]]) == value.tobytes()
