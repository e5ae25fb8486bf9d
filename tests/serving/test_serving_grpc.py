"""The protocol over gRPC: messages as others have them, an unchanged client, and bad requests."""

from __future__ import annotations

import json
import queue
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import spmd
from spmd.arrays import numpy_dtype
from tests.conftest import PATIENCE, until
from tests.serving.serving_kit import Server, serving
from tests.serving.texts import folder_of

grpc = pytest.importorskip("grpc")
messages = pytest.importorskip("spmd.serving.grpc_messages")

MOST_BODY = 4096
X = np.array([1.0, 2.0, 3.0])


@pytest.fixture(scope="module")
def server(once: Any) -> Iterator[Server]:
    def make(path: Path) -> None:
        from tests.serving.things import Things

        spmd.build(Things).save(path)

    with serving(once("things.img", make), "--ranks", 2, "--allow", "add", "--grpc-port", 0,
                 "--max-body", MOST_BODY, "--queue", 2) as found:
        yield found


@pytest.fixture(scope="module")
def folder(once: Any, built: Any) -> Path:
    return Path(once("texts", lambda path: folder_of(path, built)))


def address(server: Server) -> str:
    kind, _, found = server.lines[-1].partition("://")
    assert kind in ("grpc", "grpcs")
    return found


@pytest.fixture(scope="module")
def ask(server: Server) -> Iterator[Any]:
    """ask("ModelInfer", message or bytes): the answer as a message."""
    with grpc.insecure_channel(address(server)) as channel:
        yield asking(channel)


def asking(channel: Any, **how: Any) -> Any:
    def ask(method: str, message: Any = b"") -> Any:
        sent = message if isinstance(message, bytes) else message.SerializeToString()
        call = channel.unary_unary(f"/{messages.SERVICE}/{method}")
        return messages.read(f"{method}Response", call(sent, timeout=PATIENCE, **how))

    return ask


def infer(model: str, *inputs: dict[str, Any], **others: Any) -> Any:
    return messages.CLASSES["ModelInferRequest"](model_name=model, inputs=inputs, **others)


def x(**others: Any) -> dict[str, Any]:
    return {"name": "x", "datatype": "FP64", "shape": [3], "contents": {"fp64_contents": X},
            **others}


def arrays(response: Any) -> dict[str, np.ndarray]:
    """The outputs of an answer."""
    return {row.name: messages.tensors.from_bytes(
        row.name, messages.tensors.checked_dtype(row.name, row.datatype), tuple(row.shape),
        memoryview(data)) for row, data in zip(response.outputs, response.raw_output_contents)}


def test_messages_are_those_of_another_project():
    theirs = pytest.importorskip("tritonclient.grpc.service_pb2").DESCRIPTOR

    def fields(kind: Any) -> list[tuple[Any, ...]]:
        return [(row.number, row.name, row.type, row.is_repeated,
                 row.containing_oneof and row.containing_oneof.name,
                 row.message_type and (row.message_type.full_name, row.message_type.GetOptions()
                                       .map_entry and fields(row.message_type)))
                for row in kind.fields]

    for name, kind in messages.CLASSES.items():
        outer, *inner = name.split(".")
        found = theirs.message_types_by_name[outer]
        for own in inner:
            found = found.nested_types_by_name[own]
        assert fields(found) == fields(kind.DESCRIPTOR), name
    from spmd.serving.grpc_service import METHODS

    (service,) = theirs.services_by_name.values()
    assert service.full_name == messages.SERVICE
    for name in METHODS:
        method = service.methods_by_name[name]
        answer = "ModelStreamInferResponse" if "Stream" in name else f"{name}Response"
        asked = "ModelInferRequest" if "Stream" in name else f"{name}Request"
        assert (method.input_type.name, method.output_type.name) == (asked, answer)


def test_an_unchanged_client_of_another_project(server):
    client = pytest.importorskip("tritonclient.grpc")
    u = np.array([3.0, 4.0])
    with client.InferenceServerClient(address(server)) as triton:
        assert triton.is_server_live() and triton.is_server_ready()
        assert triton.is_model_ready("things.rest")
        assert triton.get_server_metadata().name == "spmd"
        row = triton.get_model_metadata("things.scaled").inputs[0]
        assert (row.name, row.datatype, list(row.shape)) == ("w.a", "FP32", [-1, 2])
        assert len(triton.get_model_repository_index().models) == 5
        given = client.InferInput("u", [2], "FP64")
        given.set_data_from_numpy(u)
        answer = triton.infer("things.rest", [given], request_id="k", timeout=10**7,
                              outputs=[client.InferRequestedOutput("result")])
        assert np.array_equal(answer.as_numpy("result"), u)
        version = answer.get_response().model_version
        assert version == server.asked("GET", "/v2/models/things.rest").json["versions"][0]
        with pytest.raises(client.InferenceServerException, match="has the wrong shape") as caught:
            given = client.InferInput("u", [1], "FP64")
            given.set_data_from_numpy(u[:1])
            triton.infer("things.rest", [given])
        assert caught.value.status() == "StatusCode.INVALID_ARGUMENT"


def test_an_unchanged_client_loads_and_streams(folder):
    client = pytest.importorskip("tritonclient.grpc")
    answers: queue.Queue[tuple[Any, Any]] = queue.Queue()
    with serving(folder / "texts.img", "--allow", "load", "--allow", "write", "--grpc-port",
                 0) as server, client.InferenceServerClient(address(server)) as triton:
        count = client.InferInput("count", [], "INT64")
        first = triton.get_model_metadata("texts.read").versions
        triton.load_model("texts", config=json.dumps(
            {"parameters": {"state": {"string_value": "w2.safetensors"}}}))
        (version,) = triton.get_model_metadata("texts.read").versions
        assert [version[:12]] == first and len(version) == 25
        for config in ('{"parameters": {"image": {"string_value": "longer.img"}}}', "x"):
            with pytest.raises(client.InferenceServerException) as caught:
                triton.load_model("texts", config=config)
            assert caught.value.status() == ("StatusCode.INVALID_ARGUMENT" if config == "x" else
                                             "StatusCode.FAILED_PRECONDITION")
        triton.start_stream(lambda result, error: answers.put((result, error)))
        for k, number in enumerate((2, 2**40)):
            count.set_data_from_numpy(np.array(number))
            triton.async_stream_infer("texts.write", [count], request_id=str(k))
            for at in (7, 8):
                result, error = answers.get(timeout=PATIENCE)
                assert error is None and result.as_numpy("token") == at
                assert result.get_response().id == str(k)
                assert result.get_response().model_version == version
            if k == 0:
                triton.async_stream_infer("texts.write", [client.InferInput("z", [], "INT64")])
                result, error = answers.get(timeout=PATIENCE)
                assert (result.as_numpy("at"), result.as_numpy("calls")) == (8, 1)
                assert result.get_response().parameters["triton_final_response"].bool_param
                result, error = answers.get(timeout=PATIENCE)
                assert result is None and "tensor z" in str(error)
        triton.stop_stream(cancel_requests=True)  # the second call would run for hours
        given = client.InferInput("x", [2], "FP64")
        given.set_data_from_numpy(X[:2])
        answer = triton.infer("texts.read", [given])
        assert np.array_equal(answer.as_numpy("y"), 2 * X[:2]) and answer.as_numpy("calls") == 1
        triton.unload_model("texts")
        assert not triton.is_model_ready("texts.read") and not triton.is_server_ready()


def test_tensors_as_contents_and_as_bytes(server, ask):
    local = {f"x_{name}": np.array([0, 1, 100]).astype(numpy_dtype(name)) for name in (
        "bool", "int8", "uint64", "float16", "float64", "complex64", "bfloat16")}
    names = {name: messages.tensors.datatype_of(array) for name, array in local.items()}
    rows = [{"name": name, "datatype": names[name], "shape": [3]} for name in local]
    raw = [messages.tensors.as_bytes(array) for array in local.values()]
    found = arrays(ask("ModelInfer", infer("things.kinds", *rows, raw_input_contents=raw)))
    for name, array in local.items():
        assert np.array_equal(found[name.removeprefix("x_")], array), name
    listed = {"BOOL": "bool_contents", "INT8": "int_contents", "UINT64": "uint64_contents",
              "FP64": "fp64_contents"}
    assert listed.items() <= messages.CONTENTS.items()
    refused = code_of(lambda: ask("ModelInfer", infer("things.kinds", *(
        {**row, "contents": {listed.get(row["datatype"], "fp32_contents"): [0, 1, 1]}}
        for row in rows))))
    assert refused[0] == "INVALID_ARGUMENT" and "raw_input_contents" in refused[1]
    found = arrays(ask("ModelInfer", infer("things.add", x())))
    assert list(found) == ["total", "steps"]
    only = ask("ModelInfer", infer("things.add", x(), outputs=[{"name": "steps"}], id="k"))
    assert list(arrays(only)) == ["steps"] and only.id == "k"


def code_of(call: Any) -> tuple[str, str]:
    with pytest.raises(grpc.RpcError) as caught:
        call()
    return caught.value.code().name, caught.value.details()


BAD: dict[str, tuple[str, str, Any, str]] = {
    "no model": ("NOT_FOUND", "ModelInfer", infer("things.at"), "there is no model 'things.at'"),
    "no version": ("NOT_FOUND", "ModelInfer", infer("things.add", x(), model_version="7"),
                   "has no version '7'"),
    "no page": ("UNIMPLEMENTED", "ModelConfig", b"", ""),
    "no message": ("INVALID_ARGUMENT", "ModelInfer", b"\xff" * 9, "is no ModelInferRequest"),
    "dtype": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(datatype="BYTES")), "BYTES"),
    "shape": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(shape=[-1])), "no proper"),
    "few": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(shape=[4])), "another shape"),
    "wrong shape": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(
        shape=[2], contents={"fp64_contents": [1, 2]})), "input x has the wrong shape"),
    "other contents": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(
        contents={"fp32_contents": X})), "another shape"),
    "twice": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(), x()), "is there twice"),
    "raw": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(), raw_input_contents=[b""]),
            "contents beside"),
    "raw, few": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", {
        **x(), "contents": None}, raw_input_contents=[b"1"]), "wrong number of bytes"),
    "raw, many": ("INVALID_ARGUMENT", "ModelInfer", infer(
        "things.add", raw_input_contents=[b"1"]), "not as many"),
    "no output": ("INVALID_ARGUMENT", "ModelInfer", infer(
        "things.add", x(), outputs=[{"name": "q"}]), "no output 'q'"),
    "timeout": ("INVALID_ARGUMENT", "ModelInfer", infer("things.add", x(), parameters={
        "timeout": {"string_param": "1"}}), "microseconds"),
    "the program": ("INVALID_ARGUMENT", "ModelInfer", infer("things.least", x(
        contents={"fp64_contents": -X})), "x must not be negative"),
    "late": ("DEADLINE_EXCEEDED", "ModelInfer", infer("things.add", x(), parameters={
        "timeout": {"int64_param": 1}}), "no result"),
    "load": ("PERMISSION_DENIED", "RepositoryModelLoad", b"", "--allow load"),
    "unload": ("PERMISSION_DENIED", "RepositoryModelUnload", b"", "--allow load"),
    "too long": ("RESOURCE_EXHAUSTED", "ModelInfer", b" " * (MOST_BODY + 1), ""),
}


@pytest.mark.parametrize("what", BAD)
def test_a_bad_request_is_refused(what, ask):
    code, method, message, words = BAD[what]
    found = code_of(lambda: ask(method, message))
    assert (found[0], words in found[1]) == (code, True), found


def test_a_deadline_a_client_that_leaves_and_a_full_queue(server):
    waiting = "spmd_requests_waiting"
    nap = infer("things.rest", {"name": "seconds", "datatype": "FP64", "shape": [],
                                "contents": {"fp64_contents": [1.0]}})
    with grpc.insecure_channel(address(server)) as channel:
        call = channel.unary_unary(f"/{messages.SERVICE}/ModelInfer")
        sent = nap.SerializeToString()
        runs = call.future(sent)
        until(lambda: server.metric(waiting) == 0 and code_of(
            lambda: call(sent, timeout=0.02))[0] == "DEADLINE_EXCEEDED")
        others = [call.future(sent) for _ in range(2)]
        until(lambda: server.metric(waiting) == 2)
        assert code_of(lambda: call(sent)) == ("RESOURCE_EXHAUSTED", """\
too many requests wait
  expected: at most 2
  found:    2
  try:      the same request later; --queue N of spmd serve""")
        for other in others:
            other.cancel()
        server.waits_for(waiting, 0)
        assert runs.result(timeout=PATIENCE)


def test_tokens_tls_and_what_sigterm_does(folder, tmp_path):
    tokens, key, cert = (tmp_path / name for name in ("tokens", "key.pem", "cert.pem"))
    tokens.write_text("secret\n")
    make_certificate(key, cert)
    with serving(folder / "texts.img", "--allow", "write", "--token-file", tokens, "--tls-cert",
                 cert, "--tls-key", key, "--grpc-port", 0) as server:
        trust = grpc.ssl_channel_credentials(cert.read_bytes())
        with grpc.secure_channel(address(server), trust) as channel:
            without = asking(channel)
            assert without("ServerLive").live and without("ServerReady").ready
            assert code_of(lambda: without("ServerMetadata"))[0] == "UNAUTHENTICATED"
            wrong = asking(channel, metadata=[("authorization", "Bearer other")])
            assert "another token" in code_of(lambda: wrong("RepositoryIndex"))[1]
            stream = channel.stream_stream(f"/{messages.SERVICE}/ModelStreamInfer")
            assert code_of(lambda: list(stream(iter([b""]))))[0] == "UNAUTHENTICATED"
            head = [("authorization", "Bearer secret")]
            ask = asking(channel, metadata=head)
            assert len(ask("RepositoryIndex").models) == 3
            events = stream(iter([infer("texts.write", {
                "name": "count", "datatype": "INT64", "shape": [],
                "contents": {"int64_contents": [5_000]}}).SerializeToString()]), metadata=head)
            next(events)
            server.launch.process.send_signal(signal.SIGTERM)
            until(lambda: not ask("ServerReady").ready)
            refused = code_of(lambda: ask("ModelInfer", infer("texts.write")))
            assert refused[0] == "UNAVAILABLE" and "this server ends" in refused[1]
            last = messages.read("ModelStreamInferResponse", list(events)[-1]).infer_response
            assert arrays(last)["at"] == 3 + 5_000
        server.launch.finish().expect(143)


def make_certificate(key: Path, cert: Path) -> None:
    subprocess.run(
        ["openssl", "req", "-x509", "-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1",
         "-nodes", "-keyout", key, "-out", cert, "-subj", "/CN=localhost", "-days", "2",
         "-addext", "subjectAltName=IP:127.0.0.1"], check=True, capture_output=True)


def test_what_the_command_refuses(folder, spmd_here, monkeypatch):
    with socket.create_server(("127.0.0.1", 0)) as taken:
        spmd_here("serve", folder / "texts.img", "--port", 0, "--grpc-port",
                  taken.getsockname()[1]).expect(69, "cannot listen at 127.0.0.1", "--grpc-port 0")
    monkeypatch.setitem(sys.modules, "grpc", None)
    monkeypatch.delitem(sys.modules, "spmd.serving.grpc_service")
    spmd_here("serve", folder / "texts.img", "--port", 0, "--grpc-port", 0).expect(
        69, "no grpc", "pip install 'spmd[grpc]'")
