"""Servers of the network of benchmarks.serving, which starts this file: FastAPI, LitServe.

In: which one, a file with weights, a port. Both call ONNX Runtime, with one thread. FastAPI reads
and answers bytes, LitServe the same in base64 in JSON. Needs onnx, onnxruntime, not spmd.
"""

from __future__ import annotations

import base64
import sys
from typing import Any

import numpy as np
import onnxruntime
import uvicorn
from fastapi import FastAPI, Request, Response
from litserve import LitAPI, LitServer
from onnx import TensorProto, helper, numpy_helper

FEATURES = 64


def session_of(weights: str) -> onnxruntime.InferenceSession:
    """Return what computes argmax(tanh(x @ in) @ out, 1) of any number of rows."""
    with np.load(weights) as w:
        held = [numpy_helper.from_array(w[name], name) for name in ("in", "out")]
    nodes = [helper.make_node("MatMul", ["x", "in"], ["a"]), helper.make_node("Tanh", ["a"], ["b"]),
             helper.make_node("MatMul", ["b", "out"], ["c"]),
             helper.make_node("ArgMax", ["c"], ["result"], axis=1, keepdims=0)]
    graph = helper.make_graph(
        nodes, "digits",
        [helper.make_tensor_value_info("x", TensorProto.FLOAT, ["batch", FEATURES])],
        [helper.make_tensor_value_info("result", TensorProto.INT64, ["batch"])], held)
    model = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    return onnxruntime.InferenceSession(model.SerializeToString(), options)


def computed(session: onnxruntime.InferenceSession, data: bytes) -> bytes:
    x = np.frombuffer(data, np.float32).reshape(-1, FEATURES)
    result: np.ndarray = session.run(None, {"x": x})[0]
    return result.tobytes()


def fastapi(weights: str, port: int) -> None:
    app, session = FastAPI(), session_of(weights)

    @app.post("/infer")
    async def infer(request: Request) -> Response:
        return Response(computed(session, await request.body()),
                        media_type="application/octet-stream")

    uvicorn.run(app, port=port, log_level="critical", access_log=False)


class Digits(LitAPI):
    """The network, in the process that LitServe starts for it."""

    def __init__(self, weights: str) -> None:
        super().__init__(api_path="/infer")
        self.weights = weights

    def setup(self, device: str) -> None:
        self.session = session_of(self.weights)

    def decode_request(self, request, **_: Any) -> bytes:  # type: ignore[no-untyped-def]
        return base64.b64decode(request["x"])

    def predict(self, x: bytes, **_: Any) -> bytes:
        return computed(self.session, x)

    def encode_response(self, output: bytes, **_: Any) -> dict[str, str]:
        return {"result": base64.b64encode(output).decode()}


def litserve(weights: str, port: int) -> None:
    LitServer(Digits(weights), accelerator="cpu").run(
        host="127.0.0.1", port=port, log_level="critical", access_log=False,
        generate_client_file=False)


if __name__ == "__main__":
    {"fastapi": fastapi, "litserve": litserve}[sys.argv[1]](sys.argv[2], int(sys.argv[3]))
