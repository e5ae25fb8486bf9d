"""Loads and unloads of a server that goes on: what each answer comes from, and what is refused."""

from __future__ import annotations

import json
import random
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from spmd.serving import served_job
from spmd.serving.refusals import Refusal
from tests.serving.serving_kit import Server, serving, tensor
from tests.serving.texts import folder_of, state

LOAD, UNLOAD = (f"/v2/repository/models/texts/{word}" for word in ("load", "unload"))
X = {"inputs": [tensor("x", "FP64", [2], [1, 2])]}


@pytest.fixture(scope="module")
def folder(once: Any, built: Any) -> Path:
    return Path(once("texts", lambda path: folder_of(path, built)))


@pytest.fixture(scope="module")
def server(folder: Path) -> Iterator[Server]:
    with serving(folder / "texts.img", "--ranks", 2, "--allow", "load", "--allow", "write",
                 "--state", folder / "w2.safetensors") as found:
        yield found


def load(server: Server, **parameters: object) -> Any:
    return server.asked("POST", LOAD, {"parameters": parameters})


def read(server: Server, version: str | None = None) -> Any:
    path = "texts.read" if version is None else f"texts.read/versions/{version}"
    return server.infer(path, X)


def values(answer: Any) -> tuple[str, dict[str, list[float]]]:
    """The version of an answer, and its outputs."""
    assert answer.status == 200, answer.body
    return answer.json["model_version"], {row["name"]: row["data"]
                                          for row in answer.json["outputs"]}


def test_a_load_names_state_image_both_or_neither(server, folder):
    version, found = values(read(server))
    assert found["y"] == [2, 4]
    assert version == spmd.load(folder / "texts.img").digest[:12] + version[12:]
    assert len(version) == 25 and version[12] == "-"
    answer = load(server, state="w3.safetensors")
    third = answer.json["version"]
    assert answer.json == {"name": "texts", "version": third, "state": "READY"}
    assert values(read(server)) == (third, {"y": [3, 6], "w": [3, 3, 3], "calls": [0]})
    assert third[:12] == version[:12] and third != version

    gone = read(server, version)
    assert (gone.status, f"has no version '{version}'" in gone.error) == (404, True)
    assert f"expected: {third}" in gone.error
    assert values(read(server, third))[0] == third

    other = load(server, image="other.img").json["version"]  # with the state file of before
    assert values(read(server)) == (other, {"y": [-3, -6], "w": [3, 3, 3], "calls": [0]})
    assert other[12:] == third[12:] and other[:12] != third[:12]
    server.infer("texts.write", {"inputs": []})
    assert values(read(server))[1]["calls"] == [1]
    assert server.asked("POST", LOAD).json["version"] == other  # the same files again
    assert values(read(server))[1]["calls"] == [0]
    both = load(server, image="texts.img", state="w2.safetensors").json["version"]
    assert (both, values(read(server))) == (version, (version, {
        "y": [2, 4], "w": [2, 2, 2], "calls": [0]}))


def test_an_unloaded_image_comes_back(server):
    ready = "/v2/health/ready"
    assert server.asked("POST", UNLOAD, {}).json == {"name": "texts", "state": "UNAVAILABLE"}
    for page in ("/v2/models/texts.read/ready", ready):
        assert server.asked("GET", page).status == 404
    refused = read(server)
    assert (refused.status, LOAD in refused.error) == (404, True)
    index = server.asked("POST", "/v2/repository/index").json
    assert [(row["state"], row["reason"]) for row in index] == [("UNAVAILABLE", "unloaded")] * 3
    assert server.asked("POST", "/v2/repository/index", {"ready": True}).json == []
    assert server.asked("POST", LOAD, b"").status == 200
    assert len(server.asked("POST", "/v2/repository/index", {"ready": True}).json) == 3
    assert server.asked("GET", ready).status == 200 == read(server).status


WRONG: dict[str, tuple[int, dict[str, Any], str]] = {
    "half a state": (409, {"state": "half.safetensors"}, "is truncated"),
    "state of another shape": (409, {"state": "longer.safetensors"}, "w: float64 (4,)"),
    "no state": (409, {"state": "texts.img"}, "texts.img"),
    "half an image": (409, {"image": "half.img"}, "truncated image"),
    "a changed image": (409, {"image": "changed.img"}, "digest"),
    "no image": (409, {"image": "w2.safetensors"}, "not an spmd image"),
    "another program": (409, {"image": "longer.img"},
                        "state w: float64 (3); output w of read: float64 (3)\n"
                        "  found:    state w: float64 (4); output w of read: float64 (4)"),
    "no file": (409, {"state": "w7.safetensors"}, "names no file"),
    "a folder": (409, {"state": "."}, "names no file"),
    "elsewhere": (403, {"state": "/etc/passwd"}, "--load-from FOLDER"),
    "above": (403, {"image": "../texts.img"}, "--load-from FOLDER"),
    "a link": (403, {"state": "link.safetensors"}, "--load-from FOLDER"),
    "a program": (400, {"image": "p.py"}, "spmd build FILE.py"),
    "a number": (400, {"state": 7}, "the path of a file"),
    "zero byte": (400, {"state": "w\0"}, "the path of a file"),
    "long": (409, {"state": "w" * 300}, "names no file"),
    "unknown": (400, {"stat": "w2.safetensors"}, "no parameter 'stat'"),
    "config": (400, {"config": "{}"}, "no model configuration"),
}


@pytest.fixture(scope="module")
def odd_files(folder: Path) -> None:
    (folder / "p.py").write_text("raise SystemExit\n")
    (folder / "link.safetensors").symlink_to("/etc/passwd")


@pytest.mark.parametrize("what", WRONG)
def test_a_wrong_load_leaves_what_is_there(what, server, odd_files):
    status, parameters, words = WRONG[what]
    before = values(read(server))
    answer = load(server, **parameters)
    assert (answer.status, words in answer.error) == (status, True), (answer.status, answer.error)
    assert values(read(server)) == before


def test_a_wrong_body_of_a_load(server):
    for body in (b"[1]", b"{", b'{"parameters": 1}', b"\xff"):
        assert server.asked("POST", LOAD, body).status == 400
    answer = server.asked("POST", LOAD.replace("texts", "texts.read"))
    assert (answer.status, "its entries are loaded together" in answer.error) == (404, True)
    assert server.asked("GET", LOAD).status == 405


def test_an_unchanged_client_of_another_project(server):
    client = pytest.importorskip("tritonclient.http")
    with client.InferenceServerClient(server.url.removeprefix("http://")) as triton:
        for k in (4, 2):
            triton.load_model("texts", config=json.dumps(
                {"parameters": {"state": {"string_value": f"w{k}.safetensors"}}}))
            assert values(read(server))[1]["y"] == [k, 2 * k]
        triton.load_model("texts")
        with pytest.raises(client.InferenceServerException, match="names no file") as caught:
            triton.load_model("texts", config=json.dumps(
                {"parameters": {"image": {"string_value": "w7.img"}}}))
        assert caught.value.status() == "409"
        with pytest.raises(client.InferenceServerException, match="no parameter 'file:1'"):
            triton.load_model("texts", config='{"parameters": {}}', files={"file:1": b"w"})
        triton.unload_model("texts")
        assert not triton.is_model_ready("texts.read")
        triton.load_model("texts")
        assert triton.is_model_ready("texts.read")


@pytest.mark.parametrize("count", [150])
def test_damaged_files_are_refused_or_read(count, folder, server):
    """Files with other bytes, or fewer: what is there goes on, or is what the file says."""
    chance, statuses = random.Random(5), {}
    with spmd.load(folder / "texts.img").open(state=state(2)) as texts:
        texts.save(folder / "w2.npz")
    for k in range(count):
        key, name = chance.choice([("state", "w2.safetensors"), ("state", "w2.npz"),
                                   ("image", "other.img")])
        data = bytearray((folder / name).read_bytes())
        for _ in range(chance.randint(1, 6)):
            data[chance.randrange(len(data))] = chance.randrange(256)
        path = folder / f"damaged{k}{Path(name).suffix}"
        path.write_bytes(data[:chance.randrange(len(data))] if chance.random() < 0.2 else data)
        before = values(read(server))
        answer = load(server, **{key: path.name})
        assert answer.status in (200, 409), (answer.status, answer.body, path)
        assert answer.status == 200 or values(read(server)) == before
        statuses.setdefault(name, set()).add(answer.status)
        path.unlink()
    assert statuses.pop("other.img") == {409} == statuses["w2.npz"] - {200}
    assert 409 in statuses["w2.safetensors"]
    assert load(server, state="w2.safetensors").status == 200


def test_loads_need_leave_and_folders(folder, tmp_path):
    (tmp_path / "w5.safetensors").write_bytes((folder / "w5.safetensors").read_bytes())
    with serving(folder / "texts.img") as server:
        for page in (LOAD, UNLOAD):
            answer = server.asked("POST", page)
            assert (answer.status, "spmd serve IMAGE --allow load" in answer.error) == (403, True)
    with serving(folder / "texts.img", "--allow", "load", "--load-from", tmp_path) as server:
        assert values(read(server))[0] == spmd.load(folder / "texts.img").digest[:12]
        assert load(server, state=str(tmp_path / "w5.safetensors")).status == 200
        assert values(read(server))[1]["y"] == [5, 10]


def test_a_call_is_made_by_one_job(folder):
    """In threads that change at any line: a call never meets a job that is closed, and the version
    that it says is that of the job which made it."""
    def job(k: int) -> served_job.OpenJob:
        files = served_job.JobSource(str(folder / "texts.img"), str(folder / f"w{k}.safetensors"))
        return served_job.open_job(files, lambda _: None, options={"ranks": 1}, no_cache=False)

    first = job(2)
    served, known = served_job.ServedJob("texts", first), {first.version: 2.0}
    found: list[tuple[str, float]] = []
    errors: list[BaseException] = []

    def work() -> None:
        try:
            while not ends:
                version, outputs = served.call("read", {"x": np.ones(2)}, None)
                found.append((version, float(outputs["y"][0])))
        except BaseException as error:
            errors.append(error)

    ends: list[bool] = []
    interval = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        threads = [threading.Thread(target=work) for _ in range(2)]
        for thread in threads:
            thread.start()
        for k in range(60):
            later = job(2 + k % 4)
            known[later.version] = 2.0 + k % 4
            served.replace(later)
    finally:
        ends.append(True)
        for thread in threads:
            thread.join()
        sys.setswitchinterval(interval)
        served.replace(None)
    assert errors == [] and len({version for version, _ in found}) == 4
    assert all(known[version] == y for version, y in found)
    with pytest.raises(Refusal, match="texts is not loaded"):
        served.call("read", {"x": np.ones(2)}, None)


@pytest.mark.slow
@pytest.mark.parametrize(("count", "swaps"), [(10_000, 20)])
def test_requests_during_swaps(count, swaps, folder):
    """None is lost, and what each says is what its version answers. Every fourth asks for a version
    that may be gone; damaged files and other programs are refused meanwhile."""
    with serving(folder / "texts.img", "--ranks", 2, "--allow", "load", "--state",
                 folder / "w2.safetensors") as server:
        known = {values(read(server))[0]: 2.0}
        loads = [({"image": image, "state": f"w{k}.safetensors"}, sign * k)
                 for k in range(2, 6) for image, sign in (("texts.img", 1.), ("other.img", -1.))]
        answers: list[list[tuple[str, list[float], list[float]]]] = [[], [], [], []]
        gone: list[str] = []
        threads = [threading.Thread(target=ask, args=(server, count // 4, found, gone))
                   for found in answers]
        for thread in threads:
            thread.start()
        for swap in range(swaps):
            share = (swap + 1) * count // (swaps + 1)
            while sum(map(len, answers)) + len(gone) < share and any(
                    thread.is_alive() for thread in threads):
                threads[0].join(0.005)
            wrong = load(server, **list(WRONG.values())[swap % 6][1])
            assert wrong.status == 409, wrong.body
            parameters, factor = loads[swap % len(loads)]
            known[load(server, **parameters).json["version"]] = factor
        for thread in threads:
            thread.join()
    every = [row for found in answers for row in found]
    assert len(every) + len(gone) == count
    assert len(known) == len(loads) and len({version for version, _, _ in every}) > 4
    for version, y, w in every:
        factor = known[version]
        assert y == [factor, 2 * factor] and w == [abs(factor)] * 3, (version, y, w)
    assert all("has no version" in text for text in gone) and len(gone) < count / 4


def ask(server: Server, count: int, found: list[Any], gone: list[str]) -> None:
    """Make so many requests over one connection."""
    path, body = "/v2/models/texts.read", json.dumps(X).encode()
    with spmd.connect(server.url) as remote:
        version = ""
        for k in range(count):
            asked = f"{path}/versions/{version}" if k % 4 == 3 and version else path
            try:
                answer = remote._json("POST", f"{asked}/infer", body)
            except spmd.UsageError as error:
                gone.append(str(error))
                version = ""
                continue
            rows = {row["name"]: row["data"] for row in answer["outputs"]}
            version = answer["model_version"]
            found.append((version, rows["y"], rows["w"]))
