"""Bodies of requests: read within a bound, and JSON of the right types."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator, Mapping
from http import HTTPStatus
from typing import TypeVar, cast

from launcher.serving.refusals import RefusalError

T = TypeVar("T")
_KINDS: Mapping[type, str] = {
    dict: "an object", list: "a list", str: "a text", bool: "true or false", int: "a whole number",
    float: "a number",
}  # fmt: skip


async def read_body(chunks: AsyncIterator[bytes], most: int, declared: str | None) -> bytes:
    """A body of at most ``most`` bytes. Raises `RefusalError` for a longer one, before it is read where its
    length is declared."""
    if declared is not None and declared.isdecimal() and int(declared) > most:
        raise _too_large(most, declared)
    parts, size = [], 0
    async for chunk in chunks:
        size += len(chunk)
        if size > most:
            raise _too_large(most, "more")
        parts.append(chunk)
    return b"".join(parts)


def _too_large(most: int, found: str) -> RefusalError:
    return RefusalError(
        HTTPStatus.REQUEST_ENTITY_TOO_LARGE,
        f"expected a body of at most {most} bytes, found {found}: send less, or raise --max-body",
    )


def _reject(text: str) -> None:
    raise ValueError(f"{text} is no number of JSON")


def object_of(data: bytes) -> dict[str, object]:
    """The JSON object of a body. Raises `RefusalError`."""
    try:
        found = json.loads(data, parse_constant=_reject)
    except (ValueError, RecursionError) as error:
        raise bad(f"the body is no JSON: {error}"[:200]) from None
    if not isinstance(found, dict):
        raise bad(f"the body: expected a JSON object, found {said(found)}")
    return cast("dict[str, object]", found)


def field_of(body: Mapping[str, object], name: str, kind: type[T], where: str = "") -> T | None:
    """A field of an object, None where it is absent or null. Raises `RefusalError` for another type; a whole
    number is a number, too."""
    value = body.get(name)
    if value is None:
        return None
    if kind is float and isinstance(value, int) and not isinstance(value, bool):
        return cast("T", float(value))
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
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."


def bad(message: str) -> RefusalError:
    """What is wrong with a request."""
    return RefusalError(HTTPStatus.BAD_REQUEST, message)
