"""Requests whose rows are joined: each gets what it would get by itself, and nobody else's."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from spmd.faces import faces_of
from spmd.serving.call_queue import CallQueue, DeadlineError, GoneError
from spmd.serving.joined_calls import JoinedRows, ModelCall
from tests.conftest import PATIENCE, until
from tests.serving.serving_kit import Server, serving, tensor

CLIENTS, REQUESTS, MOST = 32, 12, 64


@pytest.fixture(scope="module")
def image(once: Any) -> Path:
    def make(path: Path) -> None:
        from tests.serving.rows import Joined  # built where it is first asked for

        spmd.build(Joined).save(path)

    return Path(once("rows.img", make))


@pytest.fixture(scope="module", params=[1, 3])
def server(image: Path, request: Any) -> Iterator[Server]:
    with serving(image, "--ranks", request.param, "--wait", "5ms", "--allow", "add") as found:
        yield found


def in_clients(count: int, work: Any) -> list[Any]:
    """Return the results, or errors, of work(k) in so many threads that begin together."""
    found: list[Any] = [None] * count
    start = threading.Barrier(count)

    def run(k: int) -> None:
        start.wait(PATIENCE)
        try:
            found[k] = work(k)
        except Exception as error:
            found[k] = error

    threads = [threading.Thread(target=run, args=(k,)) for k in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(PATIENCE)
    return found


def calls_and_rows(server: Server, model: str) -> np.ndarray:
    return np.array([server.metric(f'spmd_call_rows_{what}{{model="rows.{model}"}}')
                     for what in ("count", "sum")])


@pytest.mark.parametrize("alike", [False, True])
def test_many_clients_get_their_own_rows(server, alike):
    """Rows, scalars and inputs without rows differ; each answer is compared with NumPy. Where only
    rows differ, any two requests may be joined, and each waits for others: most are."""
    before = calls_and_rows(server, "scaled")

    def asked(k: int) -> int:
        rng, rows = np.random.default_rng(k), 0
        with spmd.connect(server.url) as remote:
            scaled = remote["rows.scaled"]
            for _ in range(REQUESTS):
                n = int(rng.integers(0, 9))
                x = k + rng.random((2, n))
                by, shift = float(rng.integers(2, 4)), np.full(2, k % 2)
                if alike:
                    by, shift = 2.0, np.ones(2)
                found = scaled(x=x, by=by, shift=shift)
                np.testing.assert_array_equal(found["y"], x.T * by + shift)
                np.testing.assert_array_equal(found["least"], np.min(x, 0))
                np.testing.assert_array_equal(found["shift"], shift)
                rows += n
        return rows

    rows = in_clients(CLIENTS, asked)
    assert all(isinstance(n, int) for n in rows), rows
    calls, total = calls_and_rows(server, "scaled") - before
    assert total == sum(rows)
    assert calls < CLIENTS * REQUESTS / (2 if alike else 1)


def test_rows_that_are_not_independent_are_not_joined(server):
    def asked(k: int) -> bool:
        x = np.arange(k + 1.0)
        with spmd.connect(server.url) as remote:
            return np.allclose(remote["rows.centred"](x=x), x - np.mean(x))

    assert in_clients(8, asked) == [True] * 8
    assert list(calls_and_rows(server, "centred")) == [0, 0]


def test_an_error_is_the_answer_of_the_request_that_has_it(server):
    def asked(k: int) -> Any:
        with spmd.connect(server.url) as remote:
            return remote["rows.positive"](x=[4.0, -1.0 if k == 3 else 9.0])

    for _ in range(3):
        found = in_clients(8, asked)
        guilty = found.pop(3)
        assert isinstance(guilty, spmd.SpmdError)
        assert "x must not be negative" in str(guilty)
        assert [list(y) for y in found] == [[2, 3]] * 7


def test_more_rows_than_a_call_may_have(image, server):
    x = np.ones((2, MOST + 1))
    with spmd.load(image).open() as here, pytest.raises(spmd.InputError) as local:
        here.scaled(x=x)
    with spmd.connect(server.url) as remote, pytest.raises(spmd.InputError) as caught:
        remote["rows.scaled"](x=x)
    assert str(caught.value) == str(local.value)


def test_who_has_gone_is_not_joined(image):
    """Nor is anybody whose time is over: the call has the rows of those that still wait."""
    with serving(image, "--wait", "2s") as server:
        body = json.dumps({"inputs": [tensor("x", "FP64", [2, 5], [1.0] * 10)]}).encode()
        with socket.create_connection(("127.0.0.1", server.port)) as connection:
            connection.sendall(b"POST /v2/models/rows.scaled/infer HTTP/1.1\r\nHost: h\r\n"
                               b"Content-Length: %d\r\n\r\n%s" % (len(body), body))
            until(lambda: server.metric("spmd_requests_waiting") == 1)
        until(lambda: server.metric("spmd_requests_waiting") == 0)
        late = server.infer("rows.scaled", {"inputs": [tensor("x", "FP64", [2, 3], [1.0] * 6)],
                                            "parameters": {"timeout": 50_000}})
        assert late.status == 504
        found = server.infer("rows.scaled", {"inputs": [tensor("x", "FP64", [2, 1], [3, 4])]})
        assert found.json["outputs"][0]["data"] == [6, 8]
        assert list(calls_and_rows(server, "scaled")) == [1, 1]


def test_show_says_what_is_joined_and_why_not(image, spmd_here):
    text = spmd_here("show", image).expect(0).out
    assert text.count("independent along batch: requests may be joined") == 2
    assert "not joined: depends on how many rows batch has  (rows.py:" in text
    assert "return x - np.mean(x))" in text


def test_the_time_to_wait_has_a_unit(image, spmd_here):
    spmd_here("serve", image, "--wait", "2", "--port", 0).expect(2, "2ms, 500us or 1.5s")


# ---- the queue itself


def joined(key: object, name: str, made: list[str], rows: int = 1) -> ModelCall:
    """A call of a model that notes what it is made of; key None: it is made by itself."""
    rule = JoinedRows(MOST, {"x": 0}, set(), [0])

    def make(arguments: dict[str, Any], *_: Any) -> tuple[str, list[Any]]:
        made.append("".join(arguments["x"]))
        return "", [np.array([*arguments["x"]])]

    x = np.array([name] * rows)
    return ModelCall(make, lambda _, outputs: "".join(outputs[0]), {"x": x},
                     None if key is None else rule, 0 if key is None else rows, key)


def results(calls: list[ModelCall], wait: float = 0.0) -> list[Any]:
    """Return the results of calls that are all in the queue before any of them is made."""
    async def run() -> list[Any]:
        queue = CallQueue(99, wait)
        try:
            waiting = [queue.add(call) for call in calls]
            return await asyncio.gather(*(queue.result(w, PATIENCE) for w in waiting))
        finally:
            queue.close()

    return asyncio.run(run())


def test_what_the_queue_joins():
    """Calls of one key, also past those of another; never past one that is made by itself, which
    may change state; and no more rows than a call may have."""
    made: list[str] = []
    names = ["a", "B", "c", "D", "e"]
    keys = [1, 2, 1, None, 1]
    found = results([joined(key, name, made) for key, name in zip(keys, names)], wait=0.05)
    assert found == names
    assert made == ["ac", "B", "D", "e"]
    made.clear()
    assert results([joined(1, "a", made, 40), joined(1, "b", made, 30), joined(1, "c", made, 24)]
                   ) == ["a" * 40, "b" * 30, "c" * 24]
    assert made == ["a" * 40 + "c" * 24, "b" * 30]


def test_calls_that_are_short_are_made_in_the_event_loop():
    """Once it is known that they are; others in a thread of the queue."""
    threads: list[int] = []

    async def run() -> None:
        queue = CallQueue(99)
        for key, seconds in (("short", 0.0), ("long", 0.05)):
            for _ in range(4):
                call = joined(key, "x", [])
                make = call.make
                call.make = lambda *given, make=make, seconds=seconds: (
                    threads.append(threading.get_ident()), threading.Event().wait(seconds),
                    make(*given))[2]
                assert await queue.result(queue.add(call), PATIENCE) == "x"
        queue.close()

    asyncio.run(run())
    here = threading.get_ident()
    assert threads[0] != here and here in threads[1:4]
    assert here not in threads[4:]


def test_a_call_that_takes_long_hears_of_its_deadline_and_of_its_client():
    async def run() -> None:
        queue = CallQueue(9)
        over, begun = threading.Event(), threading.Event()
        slow = joined(None, "x", [])
        slow.make = lambda *_: (begun.set(), over.wait(PATIENCE), [np.array(["x"])])[2]

        async def gone() -> None:
            await asyncio.sleep(0.03)

        with pytest.raises(DeadlineError, match="a call that still runs"):
            await queue.result(queue.add(slow), 0.05)
        assert begun.is_set()
        with pytest.raises(GoneError):
            await queue.result(queue.add(joined(None, "y", [])), PATIENCE, gone)
        with pytest.raises(DeadlineError, match=r"waits behind 1 other\b"):
            await queue.result(queue.add(joined(None, "y", [])), 0.001)
        over.set()
        queue.close()

    asyncio.run(run())


def test_which_calls_have_one_key(image):
    """Calls of one dtype and shape, with equal bytes in inputs without rows, have one key."""
    rule = JoinedRows.of(faces_of(spmd.load(image).manifest)["scaled"])
    assert rule is not None
    x, shift = np.ones((2, 3)), np.zeros(2)
    arrays = {"x": x, "shift": shift, "by": np.array([2.0])}
    assert rule.rows_of(arrays) == 3
    key = rule.key_of(arrays)
    assert key == rule.key_of(dict(reversed(arrays.items()))) == rule.key_of(
        {**arrays, "x": np.zeros((2, 60))})
    for other in ({"x": x.astype(np.float32)}, {"x": np.ones((1, 3))}, {"shift": -shift},
                  {"by": np.array([3.0])}, {"by": np.array(2.0)}):
        assert rule.key_of({**arrays, **other}) != key
    assert rule.key_of({"x": x}) != key
    assert rule.key_of({**arrays, "shift": np.zeros(1 << 14)}) is None
    for none in ({"x": np.ones(2)}, {"x": np.ones((2, MOST + 1))}):
        assert rule.rows_of({**arrays, **none}) is None
    assert JoinedRows.of(faces_of(spmd.load(image).manifest)["centred"]) is None
