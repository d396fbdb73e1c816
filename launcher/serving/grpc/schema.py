"""The messages and methods of the Open Inference Protocol over gRPC, as protobuf classes that are made from
the numbers below.

Names and numbers are facts: those of KServe's ``open_inference_grpc.proto``, with the extensions that
Triton's ``grpc_service.proto`` has (repository, statistics, configuration, streams). KServe's server takes
the name of a model to load under number 1 and answers with two fields; Triton's has it under 2 and answers
with none: both are here. The last are those of gRPC's health protocol, ``grpc.health.v1``.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import TYPE_CHECKING

from google.protobuf.message import DecodeError

from launcher.serving.bodies import bad
from launcher.serving.parsing.pace import LARGE, PIECE, breathe
from sharding.onnx_files.made_messages import Fields, message_classes
from sharding.onnx_files.protobuf import MalformedError, field, fields

if TYPE_CHECKING:
    from google.protobuf.message import Message

SERVICE, HEALTH = "inference.GRPCInferenceService", "grpc.health.v1.Health"
PARAMETER = "parameter_choice"
"""The name of what one field of a parameter is set of."""
_DURATION = "StatisticDuration"
_MOST_FIELDS, _FEW_BYTES = 8192, 4096
"""Fields of a message and of its tensors: each takes a hundred bytes, however few it came in. A message of so
few bytes cannot have too many."""
_SIZES = {"float": 4, "double": 8, **dict.fromkeys(("bool", "int32", "int64", "uint32", "uint64"), 0)}
"""Bytes of a number in a field of many; 0 where they differ."""
_PARAMETERS: Fields = {
    "bool_param": (1, "bool"), "int64_param": (2, "int64"), "string_param": (3, "string"),
}  # fmt: skip

MESSAGES: dict[str, Fields] = {
    "Empty": {},
    "Named": {"name": (1, "string"), "version": (2, "string")},
    "ServerLive": {"live": (1, "bool")},
    "Ready": {"ready": (1, "bool")},
    "ServerMetadata": {"name": (1, "string"), "version": (2, "string"), "extensions": (3, "string*")},
    "TensorMetadata": {"name": (1, "string"), "datatype": (2, "string"), "shape": (3, "int64*")},
    "ModelMetadata": {
        "name": (1, "string"), "versions": (2, "string*"), "platform": (3, "string"),
        "inputs": (4, "TensorMetadata*"), "outputs": (5, "TensorMetadata*"),
    },
    "InferParameter": {**_PARAMETERS, "double_param": (4, "double"), "uint64_param": (5, "uint64")},
    "InferTensorContents": {
        "bool_contents": (1, "bool*"), "int_contents": (2, "int32*"), "int64_contents": (3, "int64*"),
        "uint_contents": (4, "uint32*"), "uint64_contents": (5, "uint64*"), "fp32_contents": (6, "float*"),
        "fp64_contents": (7, "double*"), "bytes_contents": (8, "bytes*"),
    },
    "InferTensor": {
        "name": (1, "string"), "datatype": (2, "string"), "shape": (3, "int64*"),
        "parameters": (4, "InferParameter{}"), "contents": (5, "InferTensorContents"),
    },
    "InferRequestedOutput": {"name": (1, "string"), "parameters": (2, "InferParameter{}")},
    "ModelInferRequest": {
        "model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
        "parameters": (4, "InferParameter{}"), "inputs": (5, "InferTensor*"),
        "outputs": (6, "InferRequestedOutput*"), "raw_input_contents": (7, "bytes*"),
    },
    "ModelInferResponse": {
        "model_name": (1, "string"), "model_version": (2, "string"), "id": (3, "string"),
        "parameters": (4, "InferParameter{}"), "outputs": (5, "InferTensor*"),
        "raw_output_contents": (6, "bytes*"),
    },
    "ModelStreamInferResponse": {"error_message": (1, "string"), "infer_response": (2, "ModelInferResponse")},
    "ModelInput": {"name": (1, "string"), "data_type": (2, "int32"), "dims": (4, "int64*")},
    "ModelOutput": {"name": (1, "string"), "data_type": (2, "int32"), "dims": (3, "int64*")},
    "ModelConfig": {
        "name": (1, "string"), "platform": (2, "string"), "max_batch_size": (4, "int32"),
        "input": (5, "ModelInput*"), "output": (6, "ModelOutput*"),
    },
    "ModelConfigResponse": {"config": (1, "ModelConfig")},
    _DURATION: {"count": (1, "uint64"), "ns": (2, "uint64")},
    "InferStatistics": {
        "success": (1, _DURATION), "fail": (2, _DURATION), "queue": (3, _DURATION),
        "compute_input": (4, _DURATION), "compute_infer": (5, _DURATION), "compute_output": (6, _DURATION),
    },
    "ModelStatistics": {
        "name": (1, "string"), "version": (2, "string"), "last_inference": (3, "uint64"),
        "inference_count": (4, "uint64"), "execution_count": (5, "uint64"),
        "inference_stats": (6, "InferStatistics"),
    },
    "ModelStatisticsResponse": {"model_stats": (1, "ModelStatistics*")},
    "RepositoryIndexRequest": {"repository_name": (1, "string"), "ready": (2, "bool")},
    "ModelIndex": {
        "name": (1, "string"), "version": (2, "string"), "state": (3, "string"), "reason": (4, "string"),
    },
    "RepositoryIndexResponse": {"models": (1, "ModelIndex*")},
    "ModelRepositoryParameter": {**_PARAMETERS, "bytes_param": (4, "bytes")},
    "RepositoryModelRequest": {
        "repository_name": (1, "string"), "model_name": (2, "string"),
        "parameters": (3, "ModelRepositoryParameter{}"),
    },
    "RepositoryModelResponse": {"model_name": (1, "string"), "isLoaded": (2, "bool")},
    "HealthCheckRequest": {"service": (1, "string")},
    "HealthCheckResponse": {"status": (1, "int32")},
}  # fmt: skip

METHODS = {
    "ServerLive": ("Empty", "ServerLive"),
    "ServerReady": ("Empty", "Ready"),
    "ModelReady": ("Named", "Ready"),
    "ServerMetadata": ("Empty", "ServerMetadata"),
    "ModelMetadata": ("Named", "ModelMetadata"),
    "ModelInfer": ("ModelInferRequest", "ModelInferResponse"),
    "ModelStreamInfer": ("ModelInferRequest", "ModelStreamInferResponse"),
    "ModelConfig": ("Named", "ModelConfigResponse"),
    "ModelStatistics": ("Named", "ModelStatisticsResponse"),
    "RepositoryIndex": ("RepositoryIndexRequest", "RepositoryIndexResponse"),
    "RepositoryModelLoad": ("RepositoryModelRequest", "RepositoryModelResponse"),
    "RepositoryModelUnload": ("RepositoryModelRequest", "RepositoryModelResponse"),
}
"""Request and answer of each method of `SERVICE`."""


@lru_cache(maxsize=1)
def classes() -> dict[str, type[Message]]:
    """The message classes by name."""
    choices = dict.fromkeys(("InferParameter", "ModelRepositoryParameter"), PARAMETER)
    return message_classes("shardrun.inference", MESSAGES, syntax="proto3", choices=choices)


def parsed(data: bytes, name: str) -> Message:
    """The message in these bytes. Raises `RefusalError`."""
    try:
        if len(data) > _FEW_BYTES:
            _bound_fields(memoryview(data), name)
        if len(data) < LARGE:
            return classes()[name].FromString(data)
        message = classes()[name]()
        _merge(message, memoryview(data), name)
        return message
    except (DecodeError, MalformedError):
        raise bad(f"the message is no {name} of protobuf") from None


def _merge(message: Message, data: memoryview, name: str) -> None:
    """Reads a large message of this name in pieces: several messages one after the other are the one of all
    their fields, and numbers may be in one field or in several."""
    kinds = {number: (known, kind) for known, (number, kind) in MESSAGES[name].items()}
    begun = 0
    for count, (number, wire, first, start, end) in enumerate(fields(data, 0, len(data))):
        if count == _MOST_FIELDS:  # each number in a field of its own
            break
        known, kind = kinds.get(number, ("", ""))
        single = kind.rstrip("*")
        if wire == 2 and end - start > PIECE and (single in MESSAGES or single in _SIZES):
            message.MergeFromString(data[begun:first])
            begun = end
            if single in _SIZES:
                for piece in _numbers(data[start:end], _SIZES[single]):
                    message.MergeFromString(field(number, piece))
                    breathe()
            else:
                inner = getattr(message, known)
                _merge(inner.add() if kind != single else inner, data[start:end], single)
        elif end - begun > PIECE:
            message.MergeFromString(data[begun:end])
            begun = end
            breathe()
    message.MergeFromString(data[begun:])


def _numbers(data: memoryview, size: int) -> Iterator[bytes]:
    """Many numbers in pieces. ``size``: of each in bytes; 0 for numbers of different sizes, of which the last
    byte is below 128."""
    at = 0
    while len(data) - at > PIECE:
        end = at + PIECE
        while not size and data[end - 1] >= 0x80 and end - at < 2 * PIECE and end < len(data):
            end += 1
        yield bytes(data[at:end])
        at = end
    yield bytes(data[at:])


def _bound_fields(data: memoryview, name: str) -> None:
    """Raises `RefusalError` for a message of too many fields, before they take room."""
    kinds = {number: kind.rstrip("*") for number, kind in MESSAGES[name].values()}
    count = 0
    for number, wire, _, start, end in fields(data, 0, len(data)):
        within = wire == 2 and kinds.get(number) in MESSAGES
        for _ in fields(data, start, end) if within else ():
            count += 1
            _refuse_above(count)
        count += 1
        _refuse_above(count)


def _refuse_above(count: int) -> None:
    if count > _MOST_FIELDS:
        raise bad(
            f"expected a message of at most {_MOST_FIELDS} fields with those of its tensors, found more"
        )
