"""Bodies of the Open Inference Protocol, for benchmarks/serving.py and benchmarks/soak.py."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

Feeds = Mapping[str, np.ndarray]
HEADER = "Inference-Header-Content-Length"
TYPES = {"float32": "FP32", "int64": "INT64"}


@dataclass
class Load:
    """What each client of a server sends."""

    path: str
    headers: Mapping[str, str]
    body: bytes

    def head(self) -> str:
        """The request's head."""
        lines = {"Host": "127.0.0.1", "Content-Length": len(self.body), **self.headers}
        return f"POST {self.path} HTTP/1.1\r\n" + "".join(f"{k}: {v}\r\n" for k, v in lines.items()) + "\r\n"


def as_json(name: str, feeds: Feeds) -> Load:
    """A request whose tensors are numbers in JSON."""
    inputs = [
        {
            "name": key,
            "shape": value.shape,
            "datatype": TYPES[value.dtype.name],
            "data": value.ravel().tolist(),
        }
        for key, value in feeds.items()
    ]
    body = json.dumps({"inputs": inputs}, separators=(",", ":")).encode()
    return Load(f"/v2/models/{name}/infer", {"Content-Type": "application/json"}, body)


def as_bytes(name: str, feeds: Feeds) -> Load:
    """The same with their bytes after the JSON."""
    inputs = [
        {
            "name": key, "shape": value.shape, "datatype": TYPES[value.dtype.name],
            "parameters": {"binary_data_size": value.nbytes},
        }
        for key, value in feeds.items()
    ]  # fmt: skip
    head = json.dumps({"inputs": inputs, "parameters": {"binary_data_output": True}}).encode()
    body = b"".join([head, *(value.tobytes() for value in feeds.values())])
    headers = {"Content-Type": "application/octet-stream", HEADER: str(len(head))}
    return Load(f"/v2/models/{name}/infer", headers, body)


METHOD = "/inference.GRPCInferenceService/ModelInfer"


def as_message(name: str, feeds: Feeds) -> bytes:
    """The same as the protocol's message for gRPC."""
    shapes = {key: b"".join(map(_varint, value.shape)) for key, value in feeds.items()}
    inputs = [
        _field(1, key.encode()) + _field(2, TYPES[value.dtype.name].encode()) + _field(3, shapes[key])
        for key, value in feeds.items()
    ]
    raw = [_field(7, value.tobytes()) for value in feeds.values()]
    return b"".join([_field(1, name.encode()), *(_field(5, one) for one in inputs), *raw])


def _varint(number: int) -> bytes:
    low, high = number & 127, number >> 7
    return bytes([low | 128]) + _varint(high) if high else bytes([low])


def _field(number: int, data: bytes) -> bytes:
    return _varint(number << 3 | 2) + _varint(len(data)) + data


def first_raw_output(message: bytes) -> np.ndarray:
    """The numbers of the first output in the answer to such a message."""
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte, at = message[at], at + 1
            value |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return value

    while True:
        key, size = varint(), varint()  # all fields of the answer have a length
        if key >> 3 == 6:
            return np.frombuffer(message[at : at + size], np.float32)
        at += size


def first_output(answer: bytes, length: str | None) -> np.ndarray:
    """The numbers of the first output in an answer."""
    head = json.loads(answer[: int(length)] if length else answer)["outputs"][0]
    if length and "data" not in head:
        size, at = head["parameters"]["binary_data_size"], int(length)
        return np.frombuffer(answer[at : at + size], np.float32)
    return np.array(head["data"], np.float32).ravel()
