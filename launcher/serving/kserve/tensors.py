"""Tensors of the Open Inference Protocol: as JSON, and in its binary extension.

Source: KServe's "Open Inference Protocol (V2)" and its "Binary tensor data extension"
(https://kserve.github.io/website/docs/concepts/architecture/data-plane/v2-protocol).
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import chain
from typing import TYPE_CHECKING, cast

import numpy as np
import orjson

from launcher.serving.bodies import bad, field_of, needed, object_of, object_with_runs, said
from launcher.serving.parsing.runs import IrregularError, Run
from ranks.common.tensors import OBJECT

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array, DType

TYPES: Mapping[str, str] = {
    "BOOL": "bool", "UINT8": "uint8", "UINT16": "uint16", "UINT32": "uint32", "UINT64": "uint64",
    "INT8": "int8", "INT16": "int16", "INT32": "int32", "INT64": "int64",
    "FP16": "float16", "FP32": "float32", "FP64": "float64", "BF16": "bfloat16", "BYTES": "object",
}  # fmt: skip
"""The protocol's name of an element type -> numpy's."""
_NAMES = {numpy: name for name, numpy in TYPES.items()}
HEADER = "inference-header-content-length"
"""The header that says how much of a body is JSON; what follows are tensors' bytes."""
_MOST_AXES, _MOST_VALUES = 32, 1 << 48
_PIECE = 1 << 14
_MOST_DIGITS = 20


@functools.lru_cache(64)  # numpy puts a name together each time
def type_name(dtype: DType) -> str:
    """The protocol's name of a numpy type; BYTES for texts."""
    return "BYTES" if dtype.kind in "OUS" else _NAMES.get(dtype.name, dtype.name.upper())


def dtype_of(name: str) -> DType:
    """The numpy type of a protocol's name. Raises `RefusalError`."""
    if name not in TYPES:
        raise bad(f"datatype: expected one of {', '.join(TYPES)}, found {said(name)}")
    if name == "BF16":
        import ml_dtypes

        return cast("DType", np.dtype(ml_dtypes.bfloat16))
    return np.dtype(TYPES[name])


@dataclass(frozen=True)
class Wanted:
    """An output that is asked for."""

    name: str
    binary: bool


@dataclass(frozen=True)
class Question:
    """One request for an inference. ``outputs``: empty for all."""

    feeds: Mapping[str, Array]
    outputs: Sequence[Wanted]
    id: str
    binary: bool
    """Whether outputs that are not named come as bytes."""
    parameters: Mapping[str, object]


def read_question(data: bytes, header: str | None, specs: Sequence[TensorSpec]) -> Question:
    """The request in a body; ``header``: the value of `HEADER`. Raises `RefusalError`."""
    length = json_length(header, len(data))
    if length is None:
        raise bad(f"{HEADER}: expected the bytes of JSON, at most {len(data)}, found {said(header)}")
    body, runs = object_with_runs(data[:length])
    try:
        try:
            return _question_in(body, memoryview(data)[length:], specs)
        finally:
            for run in runs:
                run.check()  # whatever is wrong beside it, and where nobody has asked for it
    except IrregularError:
        return _question_in(object_of(data[:length]), memoryview(data)[length:], specs)


def _question_in(body: Mapping[str, object], rest: memoryview, specs: Sequence[TensorSpec]) -> Question:
    known = {spec.name: spec for spec in specs}

    def read(item: Mapping[str, object], where: str) -> Array:
        nonlocal rest
        tensor, rest = _read_tensor(item, rest, where, known.get(str(item["name"])))
        return tensor

    question = question_of(body, read)
    if len(rest):
        raise bad(f"the body has {len(rest)} bytes more than its tensors take")
    return question


def json_length(header: str | None, size: int) -> int | None:
    """How many of the bytes of a body are JSON; None for a header that says no number of them."""
    if header is None:
        return size
    if not header.isdecimal() or len(header) > _MOST_DIGITS:
        return None
    return found if (found := int(header)) <= size else None


Read = Callable[[Mapping[str, object], str], "Array"]
"""Gives the tensor of an input, which has a name; the text says where it is in the request."""


def question_of(body: Mapping[str, object], read: Read) -> Question:
    """The request that a body of JSON, or what has its fields, holds. Raises `RefusalError`."""
    feeds: dict[str, Array] = {}
    for number, item in enumerate(needed(body, "inputs", list)):
        where = f"inputs[{number}]."
        if not isinstance(item, dict):
            raise bad(f"inputs[{number}]: expected an object, found {said(item)}")
        name = needed(item, "name", str, where)
        if name in feeds:
            raise bad(f"{where}name: the input {said(name)} is given twice")
        feeds[name] = read(item, where)
    parameters = field_of(body, "parameters", dict) or {}
    binary = bool(field_of(parameters, "binary_data_output", bool, "parameters."))
    wanted: list[Wanted] = []
    named: set[str] = set()
    for number, item in enumerate(field_of(body, "outputs", list) or []):
        where = f"outputs[{number}]."
        if not isinstance(item, dict):
            raise bad(f"outputs[{number}]: expected an object, found {said(item)}")
        own = field_of(item, "parameters", dict, where) or {}
        if "classification" in own:
            raise bad(f"{where}parameters.classification: this server gives tensors alone; leave it out")
        _refuse_shared(own, where)
        asked = field_of(own, "binary_data", bool, f"{where}parameters.")
        name = needed(item, "name", str, where)
        if name in named:
            raise bad(f"{where}name: the output {said(name)} is asked for twice")
        named.add(name)
        wanted.append(Wanted(name, binary if asked is None else asked))
    return Question(feeds, wanted, field_of(body, "id", str) or "", binary, parameters)


def _refuse_shared(parameters: Mapping[str, object], where: str) -> None:
    if "shared_memory_region" in parameters:
        raise bad(f"{where}parameters.shared_memory_region: this server has no shared memory with clients")


def declared(item: Mapping[str, object], where: str) -> tuple[list[int], DType, Mapping[str, object]]:
    """Shape, element type and parameters of an input. Raises `RefusalError`."""
    shape = _shape(needed(item, "shape", list, where), where)
    dtype = dtype_of(needed(item, "datatype", str, where))
    parameters: Mapping[str, object] = field_of(item, "parameters", dict, where) or {}
    _refuse_shared(parameters, where)
    return shape, dtype, parameters


def _read_tensor(
    item: Mapping[str, object], rest: memoryview, where: str, spec: TensorSpec | None
) -> tuple[Array, memoryview]:
    shape, dtype, parameters = declared(item, where)
    size = field_of(parameters, "binary_data_size", int, f"{where}parameters.")
    if size is None:
        data = item.get("data")
        values = data if isinstance(data, Run) else needed(item, "data", list, where)
        return _from_json(values, dtype, shape, where, spec), rest
    if "data" in item:
        raise bad(f"{where}data: it excludes parameters.binary_data_size; leave one out")
    if not 0 <= size <= len(rest):
        raise bad(
            f"{where}parameters.binary_data_size: expected at most the {len(rest)} bytes left, found {size}"
        )
    return from_bytes(rest[:size], dtype, shape, where), rest[size:]


def _shape(given: list[object], where: str) -> list[int]:
    """The lengths of a shape, whose product is no larger than arrays may be."""
    shape = [axis for axis in given[: _MOST_AXES + 1] if type(axis) is int and 0 <= axis <= _MOST_VALUES]
    if len(shape) != len(given) or len(shape) > _MOST_AXES or math.prod(map(_one, shape)) > _MOST_VALUES:
        raise bad(
            f"{where}shape: expected lengths, at most {_MOST_AXES}, of a tensor that fits into memory, "
            f"found {said(given)}"
        )
    return shape


def _one(axis: int) -> int:
    return axis or 1


def _from_json(
    data: list[object] | Run, dtype: DType, shape: Sequence[int], where: str, spec: TensorSpec | None
) -> Array:
    count = math.prod(shape)
    try:
        most, pieces = _values_of(data, dtype)
        flat, at = np.empty(min(count, most), dtype), 0
        for piece in pieces:
            if at + len(piece) <= len(flat):
                flat[at : at + len(piece)] = _converted(piece, dtype)
            at += len(piece)
        if at != count:
            raise ValueError(f"found {at} for the shape {list(shape)}")
    except (ValueError, TypeError, OverflowError) as error:
        raise bad(f"{where}data: expected {count} values of {type_name(dtype)}: {error}"[:240]) from None
    return cast("Array", flat.reshape(shape))


def _values_of(data: list[object] | Run, dtype: DType) -> tuple[int, Iterator[list[object]]]:
    """How many values there are at most, and all of them in pieces. Raises `ValueError` for values of other
    types; so do the pieces."""
    if isinstance(data, Run):
        return data.most, (_of_type(piece, _kinds_in(piece), dtype) for piece in data.pieces())
    values, kinds = _flat(data)
    return len(values), (piece for _, piece in _pieces(_of_type(values, kinds, dtype)))


def _of_type(values: list[object], kinds: set[type], dtype: DType) -> list[object]:
    if wrong := kinds - _kinds(dtype):
        found = ", ".join(sorted(kind.__name__ for kind in wrong))
        raise ValueError("a value is no text" if dtype == OBJECT else f"values are {found}")
    return values


def _converted(values: list[object], dtype: DType) -> Array:
    if dtype.kind in "iub":
        least, most = (0, 1) if dtype.kind == "b" else (np.iinfo(dtype).min, np.iinfo(dtype).max)
        whole = cast("list[int]", values)
        if min(whole) < least or max(whole) > most:
            raise ValueError(f"a value is outside {least} to {most}")
    with np.errstate(over="ignore"):
        found = np.array(values, np.float64 if dtype.kind in "fV" else dtype).astype(dtype, copy=False)
    if dtype.kind in "fV" and not np.isfinite(found).all():
        raise ValueError("a value is too large for it")
    return found


def _pieces(values: list[object]) -> Iterator[tuple[int, list[object]]]:
    """Where each part of a list begins, and the part: small enough that threads take turns between two."""
    for at in range(0, len(values), _PIECE):
        yield at, values[at : at + _PIECE]


def _kinds(dtype: DType) -> set[type]:
    """What values of a type are in JSON."""
    if dtype == OBJECT:
        return {str}
    return {"f": {int, float}, "V": {int, float}, "b": {bool, int}}.get(dtype.kind, {int})


def _kinds_in(values: list[object]) -> set[type]:
    return set().union(*(set(map(type, piece)) for _, piece in _pieces(values)))


def _flat(data: list[object]) -> tuple[list[object], set[type]]:
    """The values of nested lists, and of which types they are. numpy is not let at values of other types: a
    long text among numbers would give each of them as much room."""
    while list in (kinds := _kinds_in(data)):
        if kinds != {list} or len({len(row) for row in cast("list[list[object]]", data)}) > 1:
            raise ValueError("lists of different lengths, or of values and lists")
        flat: list[object] = []
        for _, piece in _pieces(data):
            flat.extend(chain.from_iterable(cast("list[list[object]]", piece)))
        data = flat
    return data, kinds


def from_bytes(data: memoryview | bytes, dtype: DType, shape: Sequence[int], where: str = "") -> Array:
    """A tensor of little-endian bytes; each text after its length in 4 bytes. Raises `RefusalError`."""
    count = math.prod(shape)
    if dtype == OBJECT:
        texts: list[str] = []
        view, at = memoryview(data), 0
        while at < len(view):
            size = int.from_bytes(view[at : at + 4], "little") if at + 4 <= len(view) else -1
            if size < 0 or at + 4 + size > len(view) or len(texts) == count:
                raise bad(
                    f"{where}data: expected {count} texts, each after its length in 4 bytes, found others"
                )
            try:
                texts.append(str(view[at + 4 : at + 4 + size], "utf-8"))
            except UnicodeDecodeError:
                raise bad(f"{where}data: expected texts in UTF-8, found other bytes") from None
            at += 4 + size
        if len(texts) != count:
            raise bad(f"{where}data: expected {count} texts for the shape {list(shape)}, found {len(texts)}")
        return np.array(texts, OBJECT).reshape(shape)
    expected = count * dtype.itemsize
    if len(data) != expected:
        raise bad(f"{where}data: expected {expected} bytes for the shape {list(shape)}, found {len(data)}")
    if dtype == np.bool_ and count and int(np.frombuffer(data, np.uint8).max()) > 1:
        raise bad(f"{where}data: expected bytes of 0 and 1 for BOOL, found others")
    return np.frombuffer(data, dtype).reshape(shape)


def to_bytes(value: Array) -> bytes:
    """The bytes of a tensor, as `from_bytes` reads them."""
    return bytes(_bytes_of(np.asarray(value)))


def _bytes_of(array: Array) -> bytes | memoryview:
    """The same, not copied where that can be."""
    if array.dtype.kind in "OUS":
        parts = []
        for text in array.reshape(-1):
            raw = text if isinstance(text, bytes) else str(text).encode()
            parts += [len(raw).to_bytes(4, "little"), raw]
        return b"".join(parts)
    return np.ascontiguousarray(array).reshape(-1).view(np.uint8).data


def described(spec: TensorSpec) -> dict[str, object]:
    """An input or output in a model's metadata; -1 for an open length."""
    shape = [axis if isinstance(axis, int) else -1 for axis in spec.shape]
    return {"name": spec.name, "datatype": type_name(spec.dtype), "shape": [-1] if spec.open_rank else shape}


def wanted_of(question: Question, outputs: Mapping[str, Array]) -> list[tuple[Wanted, Array]]:
    """The outputs that are asked for. Raises `RefusalError` for one that there is not."""
    found = []
    for each in question.outputs or [Wanted(name, question.binary) for name in outputs]:
        if each.name not in outputs:
            raise bad(f"outputs: there is no output {said(each.name)}: there is {', '.join(outputs)}")
        found.append((each, np.asarray(outputs[each.name])))
    return found


def write_answer(
    model: str, version: str, question: Question, outputs: Mapping[str, Array]
) -> tuple[bytes, int | None]:
    """The body of an answer, and the bytes of JSON in it where bytes follow. Raises `RefusalError` for an
    output that there is not."""
    shown: list[dict[str, object]] = []
    tail: list[bytes | memoryview] = []
    for each, value in wanted_of(question, outputs):
        entry: dict[str, object] = {
            "name": each.name, "datatype": type_name(value.dtype), "shape": list(value.shape),
        }  # fmt: skip
        if each.binary:
            tail.append(_bytes_of(value))
            entry["parameters"] = {"binary_data_size": len(tail[-1])}
        else:
            entry["data"] = orjson.Fragment(_as_json(value, each.name))
        shown.append(entry)
    answer: dict[str, object] = {"model_name": model, "model_version": version, "outputs": shown}
    if question.id:
        answer["id"] = question.id
    head = orjson.dumps(answer)
    return (b"".join([head, *tail]), len(head)) if tail else (head, None)


def _as_json(value: Array, name: str) -> bytes:
    """The values as a list in JSON, without nesting: numbers as short as their type takes them."""
    flat = value.reshape(-1)
    if value.dtype.kind in "fcV":
        flat = np.ascontiguousarray(flat, None if value.dtype == np.float32 else np.float64)
        if not np.isfinite(flat).all():
            raise bad(
                f"the output {said(name)} holds numbers that JSON has not: ask for it as bytes (binary_data)"
            )
    texts = value.dtype.kind in "OUS"
    parts = []
    for at in range(0, len(flat), _PIECE):
        part = flat[at : at + _PIECE]
        parts.append(orjson.dumps(part.tolist() if texts else part, option=orjson.OPT_SERIALIZE_NUMPY)[1:-1])
    return b"[" + b",".join(parts) + b"]"


def size_of(tensors: Mapping[str, Array]) -> int:
    """Bytes of tensors; of texts, what their references take."""
    return sum(np.asarray(value).nbytes for value in tensors.values())


def to_read(data: bytes, header: str | None, specs: Sequence[TensorSpec]) -> int:
    """Bytes of a body that are looked at one by one, JSON and texts; others are taken as they lie."""
    found = json_length(header, len(data))
    return len(data) if found is None or any(spec.dtype == OBJECT for spec in specs) else found


def to_write(question: Question, outputs: Mapping[str, Array]) -> int:
    """The same of an answer."""
    binary = {one.name: one.binary for one in question.outputs}
    return sum(
        np.asarray(value).nbytes
        for name, value in outputs.items()
        if not binary.get(name, question.binary) or value.dtype.kind in "OUS"
    )
