"""Messages of the Open Inference Protocol's gRPC service, and what they say.

In: a table of their fields. Out: classes of protobuf, made when this is imported: no protoc, and no
generated file that only some versions of protobuf read. This is the only file that imports
protobuf. Always holds: names and numbers are those of the public grpc_service.proto.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np
from google.protobuf import descriptor_pb2, descriptor_pool, message_factory
from google.protobuf.message import DecodeError

from codegen.errors import InputError
from spmd.serving import tensors
from spmd.serving.infer_messages import InferRequest, seconds_of

PACKAGE = "inference"
SERVICE = f"{PACKAGE}.GRPCInferenceService"
# Fields in the order of their numbers, which begin at 1: [] is repeated, {} a map from text, and |
# one of several that one field stands for. Names that begin with a capital letter are messages.
MESSAGES = {
    "ServerLiveRequest": "", "ServerLiveResponse": "bool live",
    "ServerReadyRequest": "", "ServerReadyResponse": "bool ready",
    "ModelReadyRequest": "string name, string version", "ModelReadyResponse": "bool ready",
    "ServerMetadataRequest": "",
    "ServerMetadataResponse": "string name, string version, string[] extensions",
    "ModelMetadataRequest": "string name, string version",
    "ModelMetadataResponse.TensorMetadata": "string name, string datatype, int64[] shape",
    "ModelMetadataResponse": "string name, string[] versions, string platform, "
                             "ModelMetadataResponse.TensorMetadata[] inputs, "
                             "ModelMetadataResponse.TensorMetadata[] outputs",
    "InferParameter": "bool| bool_param, int64| int64_param, string| string_param, "
                      "double| double_param, uint64| uint64_param",
    "InferTensorContents": "bool[] bool_contents, int32[] int_contents, int64[] int64_contents, "
                           "uint32[] uint_contents, uint64[] uint64_contents, "
                           "float[] fp32_contents, double[] fp64_contents, bytes[] bytes_contents",
    "ModelInferRequest.InferInputTensor":
        "string name, string datatype, int64[] shape, InferParameter{} parameters, "
        "InferTensorContents contents",
    "ModelInferRequest.InferRequestedOutputTensor":
        "string name, InferParameter{} parameters",
    "ModelInferRequest":
        "string model_name, string model_version, string id, InferParameter{} parameters, "
        "ModelInferRequest.InferInputTensor[] inputs, "
        "ModelInferRequest.InferRequestedOutputTensor[] outputs, bytes[] raw_input_contents",
    "ModelInferResponse.InferOutputTensor":
        "string name, string datatype, int64[] shape, InferParameter{} parameters, "
        "InferTensorContents contents",
    "ModelInferResponse":
        "string model_name, string model_version, string id, InferParameter{} parameters, "
        "ModelInferResponse.InferOutputTensor[] outputs, bytes[] raw_output_contents",
    "ModelStreamInferResponse": "string error_message, ModelInferResponse infer_response",
    "RepositoryIndexRequest": "string repository_name, bool ready",
    "RepositoryIndexResponse.ModelIndex":
        "string name, string version, string state, string reason",
    "RepositoryIndexResponse": "RepositoryIndexResponse.ModelIndex[] models",
    "ModelRepositoryParameter": "bool| bool_param, int64| int64_param, string| string_param, "
                                "bytes| bytes_param",
    "RepositoryModelLoadRequest": "string repository_name, string model_name, "
                                  "ModelRepositoryParameter{} parameters",
    "RepositoryModelLoadResponse": "",
    "RepositoryModelUnloadRequest": "string repository_name, string model_name, "
                                    "ModelRepositoryParameter{} parameters",
    "RepositoryModelUnloadResponse": "",
}
# The contents that elements of a datatype stand in; others come as raw bytes only.
CONTENTS = {
    "BOOL": "bool_contents", "INT8": "int_contents", "INT16": "int_contents",
    "INT32": "int_contents", "INT64": "int64_contents", "UINT8": "uint_contents",
    "UINT16": "uint_contents", "UINT32": "uint_contents", "UINT64": "uint64_contents",
    "FP32": "fp32_contents", "FP64": "fp64_contents",
}
CHOICE = "parameter_choice"  # the name of what |-fields are one of

Field = descriptor_pb2.FieldDescriptorProto


def _file() -> Any:
    """Return the description of all messages, as protoc would make it."""
    file = descriptor_pb2.FileDescriptorProto(
        name="grpc_service.proto", package=PACKAGE, syntax="proto3")
    known: dict[str, Any] = {}
    for name in sorted(MESSAGES, key=lambda name: name.count(".")):
        outer, _, own = name.rpartition(".")
        message = known[outer].nested_type.add() if outer else file.message_type.add()
        message.name, known[name] = own, message
    for name, fields in MESSAGES.items():
        for number, row in enumerate(filter(None, fields.split(", ")), 1):
            kind, own = row.split(" ")
            _add_field(known[name], f".{PACKAGE}.{name}", own, number, kind)
    return file


def _add_field(message: Any, path: str, name: str, number: int, kind: str) -> None:
    field = message.field.add(name=name, number=number, label=Field.LABEL_OPTIONAL)
    plain = kind.rstrip("[]{}|")
    if kind.endswith("|"):
        if not message.oneof_decl:
            message.oneof_decl.add(name=CHOICE)
        field.oneof_index = 0
    elif kind != plain:
        field.label = Field.LABEL_REPEATED
    if kind.endswith("{}"):  # a map is a list of pairs
        pair = message.nested_type.add(name=f"{name.capitalize()}Entry")
        pair.options.map_entry = True
        _add_field(pair, "", "key", 1, "string")
        _add_field(pair, "", "value", 2, plain)
        field.type, field.type_name = Field.TYPE_MESSAGE, f"{path}.{pair.name}"
    elif plain[0].isupper():
        field.type, field.type_name = Field.TYPE_MESSAGE, f".{PACKAGE}.{plain}"
    else:
        field.type = getattr(Field, f"TYPE_{plain.upper()}")


# A pool of its own: a client in the same process has these names, too.
POOL = descriptor_pool.DescriptorPool()
POOL.Add(_file())
CLASSES: dict[str, Any] = {
    name: message_factory.GetMessageClass(POOL.FindMessageTypeByName(f"{PACKAGE}.{name}"))
    for name in MESSAGES}


def read(kind: str, data: bytes) -> Any:
    """Return the message in these bytes. Raises InputError where they are none."""
    try:
        return CLASSES[kind].FromString(data)
    except DecodeError as error:
        raise InputError(f"the request is no {kind}", expected="a message of protobuf",
                         found=str(error)[:200]) from None


def parameters_in(rows: Mapping[str, Any]) -> dict[str, Any]:
    """Return the parameters of a message by name."""
    return {key: getattr(row, row.WhichOneof(CHOICE)) for key, row in rows.items()
            if row.WhichOneof(CHOICE)}


def infer_request(message: Any) -> InferRequest:
    """Return what a ModelInferRequest asks for. Raises InputError."""
    arrays: dict[str, np.ndarray] = {}
    for name, array in _arrays(message):
        if name in arrays:
            raise InputError(f"tensor {name} is there twice", expected="each tensor once")
        arrays[name] = array
    wanted = {row.name: True for row in message.outputs} or None
    return InferRequest(arrays, wanted, True, seconds_of(parameters_in(message.parameters)),
                        message.id or None)


def _arrays(message: Any) -> Iterator[tuple[str, np.ndarray]]:
    raw = message.raw_input_contents
    if raw and len(raw) != len(message.inputs):
        raise InputError("raw_input_contents are not as many as inputs",
                         expected=str(len(message.inputs)), found=str(len(raw)))
    for k, row in enumerate(message.inputs):
        name = row.name
        if not name:
            raise InputError("a tensor has no name", expected="InferInputTensor.name",
                             found="nothing")
        dtype = tensors.checked_dtype(name, row.datatype)
        shape = tensors.checked_shape(name, list(row.shape))
        if raw:
            if row.HasField("contents"):
                raise InputError(f"tensor {name} has contents beside raw_input_contents",
                                 expected="one of them")
            yield name, tensors.from_bytes(name, dtype, shape, memoryview(raw[k]))
            continue
        field = CONTENTS.get(row.datatype)
        if field is None:
            raise InputError(f"tensor {name} has no contents of {row.datatype}",
                             expected="raw_input_contents", found="contents")
        yield name, tensors.from_list(name, dtype, shape, list(getattr(row.contents, field)))


def infer_response(name: str, version: str, asked: InferRequest,
                   arrays: list[tuple[str, np.ndarray]]) -> Any:
    """Return a ModelInferResponse with these arrays, as raw bytes."""
    response = CLASSES["ModelInferResponse"](
        model_name=name, model_version=version, id=asked.id or "")
    for output, array in arrays:
        response.outputs.add(name=output, datatype=tensors.datatype_of(array), shape=array.shape)
        response.raw_output_contents.append(tensors.as_bytes(array))
    return response
