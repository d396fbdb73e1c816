"""Messages: every tensor type there and back, and nothing but one clear error for what is malformed."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import socket
import threading
import tracemalloc
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp

from ranks.talk import area, wire
from ranks.talk import frame as frames
from ranks.talk.stream import Stream
from ranks.talk.wire import Kind, Message, WireError
from tests.left_behind import left_open, open_descriptors

NUMERIC = [
    *("bool", "int8", "int16", "int32", "int64", "uint8", "uint16", "uint32", "uint64"),
    *("float16", "float32", "float64", "complex64", "complex128"),
    *("bfloat16", "float8_e4m3fn", "float8_e5m2"),
]


def named(name: str) -> np.dtype[Any]:
    return np.dtype(getattr(ml_dtypes, name)) if hasattr(ml_dtypes, name) else np.dtype(name)


def through(message: Message, *, shared: bool = False) -> Message:
    """What the other side of a socket receives."""
    one, two = socket.socketpair()
    sender, receiver = Stream(one), Stream(two)
    if shared:
        sender.share_memory(borrow=False)
        receiver.share_memory(borrow=False)

    def send() -> None:
        with contextlib.closing(sender):  # where it fails too, or the receiver would wait
            sender.send(message)

    thread = threading.Thread(target=send)
    thread.start()
    try:
        return receiver.receive()
    finally:
        receiver.close()
        thread.join(30)


def received(data: bytes, **limits: int) -> Message:
    """What a receiver makes of raw bytes, after which the peer is gone."""
    one, two = socket.socketpair()
    thread = threading.Thread(target=lambda: (one.sendall(data), one.close()))
    thread.start()
    stream = Stream(two)
    try:
        return stream.receive(**limits)
    finally:
        stream.close()
        thread.join(30)


def frame(message: Message) -> bytes:
    return b"".join(bytes(part) for part in wire.encode(message)[0])


def with_header(header: object, payload: bytes = b"", *, length: int | None = None) -> bytes:
    data = header if isinstance(header, bytes) else json.dumps(header).encode()
    size = len(payload) if length is None else length
    return wire.PREFIX.pack(wire.MAGIC, wire.VERSION, Kind.RESULT, len(data), size) + data + payload


def tensor(**change: Any) -> dict[str, Any]:
    described = {"name": "x", "dtype": "float32", "shape": [2], "bytes": 8, **change}
    return {"fields": {}, "tensors": [described]}


def test_a_descriptor_goes_with_the_first_bytes_only(monkeypatch: pytest.MonkeyPatch) -> None:
    """A socket may take less than it is given; what is left follows without it."""
    given, send = [], socket.send_fds

    def send_little(sock: socket.socket, parts: Any, descriptors: list[int]) -> int:
        given.append(len(descriptors))
        return send(sock, [parts[0][:3]], descriptors)

    monkeypatch.setattr(socket, "send_fds", send_little)
    array = np.arange(100_000)
    got = through(Message(Kind.RESULT, {}, {"x": array}), shared=True)
    assert np.array_equal(got.tensors["x"], array) and given == [1]


@pytest.mark.parametrize("shared", [False, True])
@pytest.mark.parametrize("size", [0, 3, 70_000])
@pytest.mark.parametrize("name", NUMERIC)
def test_every_type(name: str, size: int, shared: bool) -> None:
    bits = np.random.default_rng(0).integers(0, 2, size * 16, np.uint8)
    array = bits.astype(np.float32)[:size].astype(named(name))
    got = through(Message(Kind.RESULT, {"a": [1, None]}, {"x": array, "y": array[::2]}), shared=shared)
    assert got.kind is Kind.RESULT and got.fields == {"a": [1, None]}
    assert list(got.tensors) == ["x", "y"]
    for have, want in ((got.tensors["x"], array), (got.tensors["y"], array[::2])):
        assert have.dtype == want.dtype and have.shape == want.shape
        assert have.tobytes() == want.tobytes()
        assert have.flags.writeable


@pytest.mark.parametrize("shape", [(), (1, 0, 3), (2, 3, 4), (1,) * 32])
@pytest.mark.parametrize("shared", [False, True])
def test_shapes(shape: tuple[int, ...], shared: bool) -> None:
    array = np.arange(int(np.prod(shape)), dtype=np.int32).reshape(shape)
    strings = array.astype(str).astype(object)
    filler = np.zeros(area.MINIMUM, np.uint8)
    got = through(Message(Kind.RESULT, {}, {"x": array, "s": strings, "f": filler}), shared=shared).tensors
    assert got["x"].shape == got["s"].shape == shape
    assert np.array_equal(got["x"], array) and np.array_equal(got["s"], strings)


def test_big_endian_arrays_arrive_little_endian() -> None:
    got = through(Message(Kind.RESULT, {}, {"x": np.array([1, 2, 300], ">i4")})).tensors["x"]
    assert got.tolist() == [1, 2, 300]


def test_strings_of_every_kind() -> None:
    texts = ["", "a", "grüße 漢字 \U0001f600", "line\nline\0end", "x" * 100_000]
    got = through(Message(Kind.RESULT, {}, {"o": np.array(texts, object), "u": np.array(texts[:3])})).tensors
    assert got["o"].tolist() == texts and got["u"].tolist() == texts[:3]


@pytest.mark.parametrize(
    "array", [np.array([object()]), np.array([b"\xff"]), np.array(["\ud800"], object), np.array([1], "M8[s]")]
)
def test_what_cannot_travel(array: np.ndarray[Any, Any]) -> None:
    with pytest.raises(WireError, match="tensor 'x'"):
        wire.encode(Message(Kind.RESULT, {}, {"x": array}))


@pytest.mark.parametrize("shared", [False, True])
def test_many_messages_in_both_sizes(shared: bool) -> None:
    one, two = socket.socketpair()
    sender, receiver = Stream(one), Stream(two)
    for stream in (sender, receiver):
        if shared:
            stream.share_memory(borrow=True)
    for count in (1, 300_000, 5, 2_000_000, 0, 300_000):
        array = np.arange(count, dtype=np.float32)
        thread = threading.Thread(
            target=sender.send, args=(Message(Kind.PREDICT, {"n": count}, {"x": array}),)
        )
        thread.start()
        message = receiver.receive()
        assert message.fields["n"] == count and np.array_equal(message.tensors["x"], array)
        thread.join(30)
    sender.close()
    with pytest.raises(wire.PeerClosed):
        receiver.receive()
    receiver.close()


def test_more_buffers_than_one_call_takes() -> None:
    tensors = {str(i): np.full(i % 7, i, np.int16) for i in range(2500)}
    got = through(Message(Kind.RESULT, {}, tensors)).tensors
    assert all(np.array_equal(got[name], array) for name, array in tensors.items())


GOOD = frame(
    Message(Kind.RESULT, {"a": 1}, {"x": np.arange(3, dtype=np.float32), "s": np.array(["ab"], object)})
)


@pytest.mark.parametrize("cut", range(1, len(GOOD)))
def test_truncated_anywhere(cut: int) -> None:
    with pytest.raises(WireError, match="ended in the middle"):
        received(GOOD[:cut])


NEXT = wire.VERSION + 1
HOSTILE: dict[str, tuple[bytes, str]] = {
    "another protocol": (b"GET / HTTP/1.1\r\nHost: x\r\n\r\n", "not a shardrun message"),
    "pickle": (b"\x80\x04\x95" + b"." * 60, "not a shardrun message"),
    "version": (
        wire.PREFIX.pack(wire.MAGIC, wire.VERSION + 1, 1, 2, 0) + b"{}",
        f"version {wire.VERSION + 1}",
    ),
    "kind": (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 99, 2, 0) + b"{}", "unknown kind 99"),
    "huge header": (wire.PREFIX.pack(wire.MAGIC, wire.VERSION, 1, 2**32 - 1, 0), "announces 4294967295"),
    "huge payload": (with_header(tensor(), length=2**63), "announces"),
    "not JSON": (with_header(b"{"), "not valid JSON"),
    "not UTF-8": (with_header(b'{"fields": "\xff"}'), "not valid JSON"),
    "deep JSON": (with_header(b"[" * 200_000), "not valid JSON"),
    "a list": (with_header([]), "must be an object"),
    "a key too many": (with_header({"fields": {}, "tensors": [], "more": 1}), "must be an object"),
    "fields": (with_header({"fields": 1, "tensors": []}), "must hold an object of fields"),
    "tensors": (with_header({"fields": {}, "tensors": {}}), "must hold an object of fields"),
    "too many tensors": (with_header({"fields": {}, "tensors": [0] * 5000}), "at most 4096 tensors"),
    "a tensor as number": (with_header({"fields": {}, "tensors": [7]}), "describes a tensor as 7"),
    "name": (with_header(tensor(name=3), b"12345678"), "a name must be text"),
    "type": (with_header(tensor(dtype="object"), b"12345678"), "unknown type 'object'"),
    "type as list": (with_header(tensor(dtype=["i4"]), b"12345678"), "unknown type"),
    "negative": (with_header(tensor(shape=[-2]), b"12345678"), r"impossible shape \[-2\]"),
    "negative twice": (with_header(tensor(shape=[-1, -2]), b"12345678"), "impossible shape"),
    "fraction": (with_header(tensor(shape=[2.0]), b"12345678"), "impossible shape"),
    "boolean": (with_header(tensor(shape=[True, 2]), b"12345678"), "impossible shape"),
    "rank": (with_header(tensor(shape=[1] * 33, bytes=4), b"1234"), "impossible shape"),
    "overflow": (with_header(tensor(shape=[2**31, 2**31, 2], bytes=0)), "too large"),
    "overflow beside 0": (with_header(tensor(shape=[2**61, 2**61, 0], bytes=0)), "too large"),
    "bytes": (with_header(tensor(bytes=12), b"123456789012"), "cannot have 12 bytes"),
    "negative bytes": (with_header(tensor(bytes=-8), b"12345678"), "too large"),
    "payload": (with_header(tensor(), b"123456789"), "tensors have 8 bytes but its frame says 9"),
    "same name": (
        with_header({"fields": {}, "tensors": tensor()["tensors"] * 2}, b"1" * 16),
        "same tensor twice",
    ),
    "string count": (with_header(tensor(dtype="string", shape=[1000]), b"12345678"), "says 1000 elements"),
    "string length": (
        with_header(tensor(dtype="string", shape=[1]), b"\xff\xff\xff\xffabcd"),
        "middle of element 0",
    ),
    "string rest": (with_header(tensor(dtype="string", shape=[1]), b"\0\0\0\0abcd"), "4 bytes too many"),
    "string code": (
        with_header(tensor(dtype="string", shape=[1]), b"\4\0\0\0ab\xff\xfe"),
        "not valid UTF-8",
    ),
    "area": (with_header({**tensor(), "area": 1}), "refers to shared memory on a connection that has none"),
    "area number": (with_header({**tensor(), "area": -1}), "names its shared memory -1"),
}


@pytest.mark.parametrize("name", HOSTILE)
def test_hostile_frames(name: str) -> None:
    data, message = HOSTILE[name]
    tracemalloc.start()
    try:
        with pytest.raises(WireError, match=message):
            received(data)
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert peak < 32 << 20


def test_a_message_may_be_as_long_as_its_limits_and_no_longer(monkeypatch: pytest.MonkeyPatch) -> None:
    header, payload = wire.PREFIX.unpack_from(GOOD)[-2:]
    assert received(GOOD, max_header=header, max_payload=payload).fields == {"a": 1}
    for limits in ((header - 1, payload), (header, payload - 1)):
        said = rf"announces {header} \+ {payload} bytes; at most {limits[0]} \+ {limits[1]} are allowed"
        with pytest.raises(WireError, match=said):
            received(GOOD, max_header=limits[0], max_payload=limits[1])
    told = {"name": "x"}
    monkeypatch.setattr(frames, "MAX_HEADER", size := len(frames.head(Kind.RESULT, told)[1]))
    frames.head(Kind.RESULT, told)
    with pytest.raises(WireError, match=rf"header has {size + 1} bytes; at most {size} are allowed"):
        frames.head(Kind.RESULT, {"name": "xy"})


def test_an_announced_gigabyte_that_does_not_come() -> None:
    described = tensor(shape=[1 << 28], bytes=1 << 30)
    with pytest.raises(WireError, match="ended in the middle"):
        received(with_header(described, b"few", length=1 << 30))


def test_more_than_this_machine_has() -> None:
    described = tensor(shape=[1 << 59], bytes=1 << 61)
    with pytest.raises(WireError, match="does not fit this process's memory"):
        received(with_header(described, b"few", length=1 << 61))


@settings(max_examples=300, deadline=None)
@given(st.data())
def test_damaged_frames(data: st.DataObject) -> None:
    """A good frame with bytes changed is read as some message or refused; nothing else happens."""
    damaged = bytearray(GOOD)
    for _ in range(data.draw(st.integers(1, 4))):
        damaged[data.draw(st.integers(0, len(GOOD) - 1))] = data.draw(st.integers(0, 255))
    try:
        received(bytes(damaged), max_payload=1 << 20)
    except WireError as error:
        assert str(error)


@settings(max_examples=200, deadline=None)
@given(st.binary(max_size=300), st.binary(max_size=100))
def test_any_header(header: bytes, payload: bytes) -> None:
    with pytest.raises(WireError):
        received(with_header(header, payload))


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)


@settings(max_examples=300, deadline=None)
@given(st.dictionaries(st.sampled_from(["name", "dtype", "shape", "bytes"]), JSON, max_size=4), st.binary())
def test_any_description(change: dict[str, Any], payload: bytes) -> None:
    try:
        received(with_header(tensor(**change), payload), max_payload=1 << 20)
    except WireError as error:
        assert len(str(error)) < 500


@settings(max_examples=100, deadline=None)
@given(
    hnp.arrays(
        st.sampled_from([named(n) for n in NUMERIC if not hasattr(ml_dtypes, n)]),
        hnp.array_shapes(min_dims=0, max_dims=5, min_side=0, max_side=6),
    ),
    st.dictionaries(st.text(max_size=8), JSON, max_size=3),
)
def test_any_array(array: np.ndarray[Any, Any], fields: dict[str, Any]) -> None:
    got = through(Message(Kind.FAILED, fields, {"ü": array}))
    assert got.fields == fields
    assert got.tensors["ü"].tobytes() == array.tobytes() and got.tensors["ü"].shape == array.shape


def shared_pair() -> tuple[socket.socket, Stream]:
    one, two = socket.socketpair()
    stream = Stream(two)
    stream.share_memory(borrow=False)
    return one, stream


@pytest.mark.parametrize(
    ("size", "seal", "number", "message"),
    [
        (4, True, 1, "its area has 4096 bytes|needs|4 bytes"),
        (4096, False, 1, "could shrink"),
        (4096, True, 2, "has not come"),
        (0, True, 1, "cannot be used|mmap"),
    ],
)
def test_hostile_areas(size: int, seal: bool, number: int, message: str) -> None:
    one, stream = shared_pair()
    descriptor = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    if seal:
        fcntl.fcntl(descriptor, 1033, 2)
    socket.send_fds(one, [with_header({**tensor(), "area": number * area.SLOTS})], [descriptor])
    os.close(descriptor)
    with pytest.raises(WireError, match=message):
        stream.receive()
    stream.close()
    one.close()


def test_unused_areas_are_closed() -> None:
    before = open_descriptors()
    one, stream = shared_pair()
    own = len(left_open(before))
    for _ in range(20):
        descriptor = os.memfd_create("test")
        socket.send_fds(one, [frame(Message(Kind.BYE, {}, {}))], [descriptor])
        os.close(descriptor)
        stream.receive()
    assert len(left_open(before)) <= own + 2 * area.SLOTS
    stream.close()
    assert len(left_open(before)) < own
    one.close()


def test_a_descriptor_is_closed_once_though_two_threads_are_about_to(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between the two its number may have become that of a connection of somebody else."""
    reader, closed, close = area.Reader(), [], os.close
    made = [os.memfd_create("area", os.MFD_ALLOW_SEALING) for _ in range(2)]

    def closing(descriptor: int) -> None:
        closed.append(descriptor)
        close(descriptor)
        for number in (1, 2):  # what another thread does with a message meanwhile
            with pytest.raises(ValueError, match="its area"):
                reader._open(number * area.SLOTS)

    reader.take(made)
    monkeypatch.setattr("ranks.talk.area.os.close", closing)
    reader.close()
    late = os.memfd_create("late")
    reader.take([late])  # by a thread that was about to
    assert sorted(closed) == sorted([*made, late])


def test_messages_in_different_slots_lie_apart() -> None:
    """The tensors of one are on loan while the next comes; each slot's area grows by itself."""
    one, two = socket.socketpair()
    sender, receiver = Stream(one), Stream(two)
    for stream in (sender, receiver):
        stream.share_memory(borrow=True)
    kept = []
    for number, count in enumerate((20_000, 1_000_000, 30_000, 2_000_000)):
        sender.send(Message(Kind.PREDICT, {}, {"x": np.full(count, number, np.float32)}), number)
    for _ in range(area.SLOTS):
        kept.append(receiver.receive().tensors["x"])
    assert [set(tensor.tolist()) for tensor in kept] == [{0.0}, {1.0}, {2.0}, {3.0}]
    sender.send(Message(Kind.PREDICT, {}, {"x": np.full(5_000_000, 9, np.float32)}), 1)  # a larger area there
    assert set(receiver.receive().tensors["x"].tolist()) == {9.0}
    assert [set(kept[slot].tolist()) for slot in (0, 2, 3)] == [{0.0}, {2.0}, {3.0}]
    for stream in (sender, receiver):
        stream.close()


@pytest.mark.parametrize("count", [area.MINIMUM // 4, 300_000])
def test_what_was_received_outlives_later_messages(count: int) -> None:
    """Tensors in shared memory are copied out, unless asked for as a loan: the next message lies there."""
    one, two = socket.socketpair()
    sender, receiver = Stream(one), Stream(two)
    for stream in (sender, receiver):
        stream.share_memory(borrow=False)
    kept = []
    for number in range(3):
        array = np.full(count, number, np.float32)
        thread = threading.Thread(target=sender.send, args=(Message(Kind.RESULT, {}, {"x": array}),))
        thread.start()
        kept.append(receiver.receive().tensors["x"])
        thread.join(30)
    assert [set(tensor.tolist()) for tensor in kept] == [{0.0}, {1.0}, {2.0}]
    sender.close()
    receiver.close()
