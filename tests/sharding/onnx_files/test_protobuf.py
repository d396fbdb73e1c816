"""The framing of ONNX's messages, and models without their large weights."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnx
import pytest
from onnx import numpy_helper

from sharding.onnx_files import protobuf
from sharding.onnx_files.protobuf import IN_MODEL_FILE, INLINE_BYTES, MalformedError

NUMBERS = [0, 1, 127, 128, 129, 16383, 16384, 2**31, 2**32 + 5, 2**63 - 1]


@pytest.mark.parametrize("number", NUMBERS)
def test_a_number_is_read_as_it_was_written(number: int) -> None:
    written = protobuf.varint(number)
    assert len(written) == max(1, -(-number.bit_length() // 7))
    assert protobuf._read_varint(memoryview(b"x" + written + b"y"), 1, len(written) + 2) == (
        number,
        len(written) + 1,
    )
    for end in range(len(written)):
        with pytest.raises(MalformedError, match=f"a number breaks off at byte {end}"):
            protobuf._read_varint(memoryview(written), 0, end)


def test_fields_of_all_kinds() -> None:
    data = b"".join((
        protobuf.varint(1 << 3) + protobuf.varint(300), protobuf.varint(2 << 3 | 1) + bytes(8),
        protobuf.field(300, b"abc"), protobuf.field(4, b""), protobuf.varint(5 << 3 | 5) + bytes(4),
    ))  # fmt: skip
    found = list(protobuf.fields(memoryview(data), 0, len(data)))
    assert [(number, wire) for number, wire, *_ in found] == [(1, 0), (2, 1), (300, 2), (4, 2), (5, 5)]
    assert [one[2] for one in found] == [0, *(one[4] for one in found[:-1])] and found[-1][4] == len(data)
    assert [data[payload:stop] for _, wire, _, payload, stop in found if wire == 2] == [b"abc", b""]
    assert [stop - payload for *_, payload, stop in found] == [2, 8, 3, 0, 4]


@pytest.mark.parametrize(
    "data",
    [
        b"\x0a", b"\x0a\x05abcd", b"\x08", b"\x08\x80", b"\x09" + bytes(7), b"\x0d" + bytes(3),
        b"\x0b", b"\x0c", b"\x0e", b"\x0f", b"\x00\x00", b"\x80" * 11,
    ],
)  # fmt: skip
def test_what_is_no_message(data: bytes) -> None:
    """Cut short, of an unknown kind, without a number."""
    with pytest.raises(MalformedError):
        list(protobuf.fields(memoryview(data), 0, len(data)))


def model(sizes: list[int], **more: Any) -> onnx.ModelProto:
    held = [numpy_helper.from_array(np.arange(size, dtype=np.uint8), f"w{size}") for size in sizes]
    graph = onnx.GraphProto(name="g", initializer=held, doc_string="d" * (2 * INLINE_BYTES))
    return onnx.ModelProto(ir_version=8, graph=graph, **more)


@pytest.mark.parametrize(("more", "good"), [(8, True), (9, False), (200, False)])
def test_a_number_has_at_most_ten_bytes(more: int, good: bool) -> None:
    """Of which the last says that it is the last: else a small file would make an endless number."""
    data = b"\x08" + b"\x80" * (more + 1) + b"\x01"
    if good:
        assert [number for number, *_ in protobuf.fields(memoryview(data), 0, len(data))] == [1]
    else:
        with pytest.raises(MalformedError, match="a number breaks off at byte 11"):
            list(protobuf.fields(memoryview(data), 0, len(data)))


@pytest.mark.parametrize("size", [1, INLINE_BYTES, INLINE_BYTES + 1, 3 * INLINE_BYTES])
def test_large_weights_are_left_where_they_lie(size: int) -> None:
    """All else is as it was."""
    whole = model([5, size, 7], producer_name="p")
    data = whole.SerializeToString()
    found = onnx.ModelProto.FromString(protobuf.without_weights(memoryview(data)))
    tensor = found.graph.initializer[1]
    if size > INLINE_BYTES:
        told = {entry.key: entry.value for entry in tensor.external_data}
        assert told.pop("location") == IN_MODEL_FILE and tensor.data_location == tensor.EXTERNAL
        begin, length = int(told.pop("offset")), int(told.pop("length"))
        assert not told and not tensor.HasField("raw_data")
        tensor.raw_data = data[begin : begin + length]
        del tensor.external_data[:]
        tensor.ClearField("data_location")
    assert found == whole


def test_a_message_that_is_cut_short_is_no_model() -> None:
    data = model([2 * INLINE_BYTES]).SerializeToString()
    for end in (1, len(data) // 2, len(data) - 1):
        with pytest.raises(MalformedError):
            protobuf.without_weights(memoryview(data)[:end])
