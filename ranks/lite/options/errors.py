"""Errors of the inference API: of our kind, and of the kind that mindspore_lite raises."""

from __future__ import annotations

import functools

from ranks.errors import ShardrunError


@functools.cache  # errors of one kind are of one kind here, too
def _also_runtime_error(kind: type[ShardrunError]) -> type[ShardrunError]:
    if issubclass(kind, RuntimeError):
        return kind
    return type(kind.__name__, (kind, RuntimeError), {"__module__": kind.__module__, "__doc__": kind.__doc__})


def runtime_error(message: str, kind: type[ShardrunError] = ShardrunError) -> ShardrunError:
    """An error of ``kind`` that is a `RuntimeError` as well, as scripts written for mindspore_lite expect."""
    return _also_runtime_error(kind)(message)  # type: ignore[arg-type]  # any class can be hashed


def as_runtime_error(prefix: str, error: ShardrunError) -> ShardrunError:
    """``error`` under mindspore_lite's ``prefix``: same kind and attributes, and a `RuntimeError` as well."""
    converted = runtime_error(f"{prefix} Error is {error}", type(error))
    converted.__dict__.update(error.__dict__)
    return converted
