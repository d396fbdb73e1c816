"""Tensors in gRPC's messages: as bytes, or as values in the field for their element type."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, cast

import numpy as np

from launcher.serving.bodies import bad
from launcher.serving.grpc.schema import PARAMETER, classes
from launcher.serving.kserve.tensors import (
    Question,
    declared,
    from_bytes,
    question_of,
    size_of,
    to_bytes,
    type_name,
    wanted_of,
)
from ranks.common.tensors import OBJECT

if TYPE_CHECKING:
    from google.protobuf.internal.containers import MessageMap

    from launcher.serving.context import Call
    from launcher.serving.grpc.messages import (
        InferParameter,
        InferTensorContents,
        ModelInferRequest,
        ModelInferResponse,
    )
    from launcher.serving.models import Model
    from sharding.common.arrays import Array, DType

_FIELDS: Mapping[str, tuple[str, str]] = {
    "BOOL": ("bool_contents", "bool"), "BYTES": ("bytes_contents", "object"),
    "FP32": ("fp32_contents", "float32"), "FP64": ("fp64_contents", "float64"),
    "INT64": ("int64_contents", "int64"), "UINT64": ("uint64_contents", "uint64"),
    **dict.fromkeys(("INT8", "INT16", "INT32"), ("int_contents", "int32")),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), ("uint_contents", "uint32")),
}  # fmt: skip
"""The field for values of a type, and of which type its numbers are; halves have none."""
_AT_ONCE = 1 << 14
"""Values that are read or written at once: other threads take turns between."""


async def asked_question(call: Call, asked: ModelInferRequest, size: int) -> Question:
    """The request in a message of so many bytes, whose tensors are counted: a value of one byte may take
    eight. Raises `RefusalError`."""
    question = await call.apart(size, lambda: read_question(asked))
    call.grow(size_of(question.feeds))
    return question


async def written_answer(
    call: Call, model: Model, asked: ModelInferRequest, question: Question, outputs: Mapping[str, Array]
) -> ModelInferResponse:
    """The answer, which is counted until it is taken. Raises `RefusalError`."""
    size = size_of(outputs)
    call.grow(size)

    def written() -> tuple[ModelInferResponse, int]:
        answer = write_answer(model, asked, question, outputs)
        return answer, answer.ByteSize()  # for which it is put together

    answer, size = await call.apart(size, written)
    call.grow(size)
    return answer


def read_question(asked: ModelInferRequest) -> Question:
    """The request in a message. Raises `RefusalError`."""
    raw = asked.raw_input_contents
    if raw and len(raw) != len(asked.inputs):
        raise bad(
            f"raw_input_contents: expected one for each of the {len(asked.inputs)} inputs, found {len(raw)}"
        )
    tensors = iter(enumerate(asked.inputs))

    def read(item: Mapping[str, object], where: str) -> Array:
        number, tensor = next(tensors)
        shape, dtype, _ = declared(item, where)
        if not raw:
            return from_contents(tensor.contents, dtype, shape, where)
        if tensor.contents.ByteSize():
            raise bad(f"{where}contents: it excludes raw_input_contents; leave one out")
        return from_bytes(raw[number], dtype, shape, where)

    body: dict[str, object] = {
        "id": asked.id,
        "parameters": plain(asked.parameters),
        "inputs": [
            {
                "name": tensor.name, "datatype": tensor.datatype, "shape": list(tensor.shape),
                "parameters": plain(tensor.parameters),
            }
            for tensor in asked.inputs
        ],
        "outputs": [
            {"name": output.name, "parameters": plain(output.parameters)} for output in asked.outputs
        ],
    }  # fmt: skip
    return question_of(body, read)


def plain(parameters: MessageMap[InferParameter]) -> dict[str, object]:
    """Parameters as JSON would have them; None for those without a value."""
    found: dict[str, object] = {}
    for name, value in parameters.items():
        chosen = value.WhichOneof(PARAMETER)
        found[name] = None if chosen is None else getattr(value, chosen)
    return found


def from_contents(
    contents: InferTensorContents, dtype: DType, shape: Sequence[int], where: str = ""
) -> Array:
    """A tensor of values in their field. Raises `RefusalError`."""
    kind, count = type_name(dtype), math.prod(shape)
    if kind not in _FIELDS:
        raise bad(f"{where}contents: there is no field for values of {kind}: send raw_input_contents")
    name, wide = _FIELDS[kind]
    if other := next((field.name for field, _ in contents.ListFields() if field.name != name), None):
        raise bad(f"{where}contents: expected values of {kind} in {name}, found {other}")
    values = getattr(contents, name)
    if len(values) != count:
        raise bad(f"{where}contents: expected {count} values for the shape {shape}, found {len(values)}")
    if dtype == OBJECT:
        try:
            found = np.array([value.decode() for value in values], OBJECT)
        except UnicodeDecodeError:
            raise bad(f"{where}contents: expected texts in UTF-8, found other bytes") from None
    else:
        found = np.empty(count, wide)
        for at in range(0, count, _AT_ONCE):
            found[at : at + _AT_ONCE] = values[at : at + _AT_ONCE]
    if found.dtype != dtype and count:
        bounds = np.iinfo(dtype)
        if found.min() < bounds.min or found.max() > bounds.max:
            raise bad(f"{where}contents: a value of {kind} is outside {bounds.min} to {bounds.max}")
    return cast("Array", found.astype(dtype, copy=False).reshape(shape))


def write_answer(
    model: Model, asked: ModelInferRequest, question: Question, outputs: Mapping[str, Array]
) -> ModelInferResponse:
    """The answer, in values where the request was and all types have a field, else in bytes. Raises
    `RefusalError` for an output that there is not."""
    wanted = wanted_of(question, outputs)
    answer = cast("ModelInferResponse", classes()["ModelInferResponse"]())
    answer.model_name, answer.model_version, answer.id = model.name, model.version, question.id
    in_values = bool(asked.inputs) and not asked.raw_input_contents
    in_values = in_values and all(type_name(value.dtype) in _FIELDS for _, value in wanted)
    for each, value in wanted:
        kind = type_name(value.dtype)
        entry = answer.outputs.add(name=each.name, datatype=kind, shape=value.shape)
        if not in_values:
            answer.raw_output_contents.append(to_bytes(value))
            continue
        values, whole = getattr(entry.contents, _FIELDS[kind][0]), value.reshape(-1)
        for at in range(0, len(whole), _AT_ONCE):
            flat = whole[at : at + _AT_ONCE].tolist()
            if kind == "BYTES":
                flat = [text if isinstance(text, bytes) else str(text).encode() for text in flat]
            values.extend(flat)
    return answer
