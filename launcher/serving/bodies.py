"""Bodies of requests: read within a bound, and JSON of the right types."""

from __future__ import annotations

import asyncio
import json
import math
import re
import zlib
from codecs import BOM_UTF8
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from http import HTTPStatus
from typing import TypeVar, cast

import orjson

from launcher.serving.parsing.pace import LARGE
from launcher.serving.parsing.runs import Run, parsed
from launcher.serving.refusals import RefusalError

T = TypeVar("T")
_KINDS: Mapping[type, str] = {
    dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number",
    float: "a number",
}  # fmt: skip


_SURROGATE = re.compile(rb"\\u[dD][89a-fA-F]")
_PACKED = {"gzip", "x-gzip", "deflate"}


async def read_body(
    chunks: AsyncIterator[bytes],
    most: int,
    declared: str | None,
    encoding: str | None = None,
    hold: Callable[[int], None] = lambda size: None,
) -> bytes:
    """A body of at most ``most`` bytes, unpacked where its ``encoding`` says so. ``hold``: is told of its
    bytes as they come. Raises `RefusalError` for a longer one, before it is read where its length is
    declared."""
    if declared is not None and declared.isdecimal() and int(declared) > most:
        raise _too_large(most, declared)
    parts, size, came, unpacking = [], 0, 0, _unpacking(encoding)
    async for chunk in chunks:
        came += len(chunk)
        if came > most:  # of which nothing may be left when it is unpacked
            raise _too_large(most, "more")
        for part in [chunk] if unpacking is None else _unpacked(unpacking, chunk, encoding):
            size += len(part)
            if size > most:
                raise _too_large(most, "more")
            hold(len(part))
            parts.append(part)
            if unpacking is not None:  # little may hold much: others take their turns
                await asyncio.sleep(0)
    if unpacking is not None and not unpacking.eof:
        raise _not_packed(encoding)
    return b"".join(parts)


def _unpacking(encoding: str | None) -> zlib._Decompress | None:
    name = (encoding or "identity").strip().lower()
    if name in _PACKED:
        return zlib.decompressobj(zlib.MAX_WBITS | 32)  # of gzip's form or zlib's
    if name not in {"", "identity"}:
        raise RefusalError(
            HTTPStatus.UNSUPPORTED_MEDIA_TYPE,
            f"Content-Encoding: expected gzip, deflate or none, found {said(encoding)}",
        )
    return None


def _unpacked(unpacking: zlib._Decompress, chunk: bytes, encoding: str | None) -> Iterator[bytes]:
    """What a chunk holds, in parts that are not large."""
    part = b""
    while chunk or len(part) == LARGE:  # what was read may have more to give
        try:
            part = unpacking.decompress(chunk, LARGE)
        except zlib.error:
            raise _not_packed(encoding) from None
        if unpacking.unused_data:
            raise _not_packed(encoding)
        chunk = unpacking.unconsumed_tail
        yield part


def _not_packed(encoding: str | None) -> RefusalError:
    return bad(f"the body is not what Content-Encoding says: {said(encoding)}, once and whole")


def _too_large(most: int, found: str) -> RefusalError:
    return RefusalError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"expected a body of at most {most} bytes, found {found}: send less, or raise --max-body",
    )


def _read_slowly(data: bytes) -> object:
    """JSON, by Python's own parser: it reads numbers of any size, which are refused where they are asked for,
    and says what is wrong with what is none. Raises `RefusalError`."""
    try:
        found: object = json.loads(data.decode("utf-8-sig"), parse_constant=_reject)
        if _SURROGATE.search(data):  # half a character is no text for models, tokenizers and logs
            json.dumps(found, ensure_ascii=False).encode()
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is no JSON: {error}"[:200]) from None
    return found


def _reject(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def object_of(data: bytes) -> dict[str, object]:
    """The JSON object of a body. Raises `RefusalError`."""
    return _object(data, lists=True)[0]


def object_with_runs(data: bytes) -> tuple[dict[str, object], list[Run]]:
    """The same of one whose long lists of numbers are to be read later, and these. Raises `RefusalError`."""
    return _object(data, lists=False)


def _object(data: bytes, *, lists: bool) -> tuple[dict[str, object], list[Run]]:
    runs: list[Run] = []
    try:
        if len(data) >= LARGE:
            found, runs = parsed(data.removeprefix(BOM_UTF8), lists=lists)
        else:
            found = orjson.loads(memoryview(data)[len(BOM_UTF8) if data.startswith(BOM_UTF8) else 0 :])
    except orjson.JSONDecodeError as error:
        if len(data) >= LARGE:
            raise bad(f"the body is no JSON: {error}"[:200]) from None
        found = _read_slowly(data)
    if not isinstance(found, dict):
        raise bad(f"the body: expected a JSON object, found {said(found)}")
    return cast("dict[str, object]", found), runs


def field_of(body: Mapping[str, object], name: str, kind: type[T], where: str = "") -> T | None:
    """A field of an object, None where it is absent or null. Raises `RefusalError` for another type; a whole
    number is a number, too, and `IrregularError` for a `Run` that cannot be read."""
    value = body.get(name)
    if type(value) is kind and kind is not float:  # as of most fields
        return value
    if kind is list and isinstance(value, Run):
        value = value.numbers()
    if value is None:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        value = float(value) if abs(value) < 1 << 1023 else math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise bad(f"{where}{name}: expected a number that is not beyond all bounds")
    if not isinstance(value, kind) or (kind is not bool and isinstance(value, bool)):
        raise bad(f"{where}{name}: expected {_KINDS[kind]}, found {said(value)}")
    return value


def needed(body: Mapping[str, object], name: str, kind: type[T], where: str = "") -> T:
    """The same of a field that must be there."""
    value = field_of(body, name, kind, where)
    if value is None:
        raise bad(f"{where}{name}: expected {_KINDS[kind]}, found nothing")
    return value


def said(value: object) -> str:
    """A value as an error quotes it, shortened."""
    text = ""
    for piece in json.JSONEncoder(default=str).iterencode(value):
        text += piece
        if len(text) > 60:  # the rest may be long, or deep
            return f"{text[:57]}..."
    return text


def bad(message: str) -> RefusalError:
    """What is wrong with a request."""
    return RefusalError(HTTPStatus.BAD_REQUEST, message)
