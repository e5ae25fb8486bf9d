"""Malformed frames by the million, against the decoder and against a live worker.

python -m tests.feeding.fuzz_frames 1000000: nothing may raise but MalformedMessage; the worker
answers whoever asks properly, before, between and after.
"""

from __future__ import annotations

import json
import random
import socket
import sys
import time

import numpy as np

from spmd.feeding.messages.sockets import Lines, received
from spmd.feeding.messages.wire import TABLE, MalformedMessage, decode, encode, new_id
from tests.feeding.feeding_kit import running
from tests.feeding.test_wire import EXAMPLES, frames_for

SOURCE = """
import spmd.data as data

@data.pipeline(source=data.range(1000), shuffle=False)
def numbers(example): return {"x": example}
"""
ODD = (None, True, -1, 2**70, 1e300, "", "0123456789abcdef", [], {}, [[]], {"x": 1}, "\x00\ud800")
BETWEEN = 2000  # frames between two proper requests


def changed(chance: random.Random, kind: str = "") -> list[bytes]:
    """A message that was right, with something done to it."""
    kind = kind or chance.choice(KINDS)
    frames = [MESSAGES[kind], *frames_for(kind)]
    how = chance.randrange(7)
    if how == 0:  # bytes
        raw = bytearray(frames[0])
        for _ in range(chance.randrange(1, 8)):
            raw[chance.randrange(len(raw))] = chance.randrange(256)
        frames[0] = bytes(raw)
    elif how == 1:  # a field
        fields = json.loads(frames[0])
        fields[chance.choice([*fields, "more"])] = chance.choice(ODD)
        frames[0] = json.dumps(fields).encode("utf-8", "surrogatepass")
    elif how == 2:  # a value deep inside
        fields = json.loads(frames[0])
        at = fields
        while isinstance(at, dict | list) and at:
            key = chance.choice(list(at) if isinstance(at, dict) else range(len(at)))
            if not isinstance(at[key], dict | list) or chance.random() < 0.3:
                at[key] = chance.choice(ODD)
                break
            at = at[key]
        frames[0] = json.dumps(fields).encode("utf-8", "surrogatepass")
    elif how == 3:  # cut short
        frames[0] = frames[0][: chance.randrange(len(frames[0]))]
    elif how == 4:  # frames
        frames = [chance.randbytes(chance.randrange(64)) for _ in range(chance.randrange(1, 5))]
    elif how == 5:  # in pieces, of which the number may be wrong, or one may be missing
        cuts = sorted(chance.choices(range(len(frames[0])), k=chance.randrange(1, 4)))
        pieces = [frames[0][a:b] for a, b in zip([0, *cuts], [*cuts, None])]
        many = json.dumps(chance.choice((len(pieces), len(pieces), 1, *ODD)))
        del pieces[chance.randrange(len(pieces)) : chance.choice((0, len(pieces)))]
        frames = [b'{"wire": 1, "kind": "in_pieces", "pieces": %s}' % many.encode(),
                  *pieces, *frames[1:]]
    else:
        frames = frames + [b"more"] * chance.randrange(1, 4)
    return frames


KINDS = sorted(TABLE)
MESSAGES = {  # of the pipeline that the worker has
    kind: encode(kind, frames_for(kind),
                 **json.loads(json.dumps(EXAMPLES[kind]).replace("images", "numbers")))[0]
    for kind in KINDS}


def fuzz_decoder(count: int, seed: int) -> int:
    """How many were refused."""
    chance, refused = random.Random(seed), 0
    for _ in range(count):
        try:
            decode(changed(chance))
        except MalformedMessage:
            refused += 1
    return refused


def fuzz_worker(count: int, seed: int) -> float:
    """The longest time that a proper request waited for its answer, in seconds."""
    chance, slowest = random.Random(seed), 0.0
    with running(SOURCE) as run:
        agent = run.workers(1)
        (pid,) = agent.wait_for_workers(1)
        said = agent.agent.workers[0].said
        lines = Lines(run.keys)
        fuzzer = lines.dealer(f"tcp://127.0.0.1:{said['port']}", said["key"], new_id())
        while not agent.agent.pipelines:  # the scheduler loads it for a consumer
            run.supply([FIELD], 4)
            time.sleep(0.2)
        for sent in range(count):
            if sent % BETWEEN == 0:
                slowest = max(slowest, asks(lines, said))
                for garbage in (b"", b"GET / HTTP/1.1\r\n\r\n", chance.randbytes(500)):
                    with socket.create_connection(("127.0.0.1", said["port"])) as stranger:
                        stranger.sendall(garbage)
            fuzzer.send_multipart(changed(chance))
            while received(fuzzer):
                pass
        slowest = max(slowest, asks(lines, said))
        assert agent.pids() == [pid], agent.said
        lines.close()
    return slowest


class FIELD:
    name, shape, dtype = "x", (4,), np.int64


def asks(lines: Lines, said: dict[str, object]) -> float:
    """Asks for four examples as a consumer does, and checks them."""
    line = lines.dealer(f"tcp://127.0.0.1:{said['port']}", str(said["key"]), new_id())
    began, number = time.monotonic(), new_id()
    line.send_multipart(encode(
        "take", pipeline="numbers", version=1, newest_first=False,
        fields=[{"name": "x", "dtype": "<i8", "shape": []}], work=[[number, 5, 4, 8, []]]))
    assert line.poll(20000), "the worker does not answer"
    message = decode(received(line))
    assert message.kind == "given" and message["id"] == number
    assert np.frombuffer(message.frames[0], "<i8").tolist() == [5, 6, 7, 8]
    lines.forget(line)
    return time.monotonic() - began


if __name__ == "__main__":
    from tests.feeding import fuzz_sockets  # it takes from here what it sends

    count, seed = int(sys.argv[1]), int(sys.argv[2] if len(sys.argv) > 2 else time.time())
    print(f"seed {seed}: {fuzz_decoder(count, seed)} of {count} frames refused by the decoder")
    print(f"a worker that got as many answered within {fuzz_worker(count, seed + 1):.3f} s")
    print(f"a scheduler: within {fuzz_sockets.fuzz_scheduler(count, seed + 2):.3f} s")
    fuzz_sockets.fuzz_agent(count // 10, seed + 3)
    print("an agent kept its worker and beat")
    taken = fuzz_sockets.fuzz_results(count, seed + 4)
    print(f"of as many results {taken} were arrays, the others were refused")
    fuzz_sockets.fuzz_unix_sockets(count // 10, seed + 5)
    print("Unix sockets: nothing was mapped that should not be, nothing is left open")
