"""Where a model's external data lie: beside the model, or beside the file that the model's name links to.

A model hub keeps files as blobs, and a model's folder holds links to them (``snapshots/REV/model.onnx`` to
``../../blobs/SHA``), to the data as to the model. Whoever made the folder with the link's target chose its
files as much as whoever made the link; a model's text, which may be hostile, leads to no other folder.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

from sharding.errors import ModelError
from sharding.onnx_files.placeholders import placeholder
from sharding.onnx_files.protobuf import IN_MODEL_FILE, read_message

if TYPE_CHECKING:
    import onnx
    from google.protobuf.message import Message

_SHOWN = 80


class Place(NamedTuple):
    """Where a tensor with external data says that they lie; ``length`` is None where it does not say it."""

    location: str
    offset: int
    length: int | None


def place_of(tensor: onnx.TensorProto) -> Place:
    """What a tensor with external data says. Raises `ValueError` where an offset or length is no number."""
    told = {entry.key: entry.value for entry in tensor.external_data if entry.value}
    location = told.get("location", "")
    if not isinstance(location, str):  # protobuf gives what is not UTF-8 as bytes
        location = repr(location)
    length = told.get("length")
    return Place(location, int(told.get("offset") or 0), int(length) if length else None)


def put_place(tensor: onnx.TensorProto, location: str, offset: int, length: int) -> None:
    """Has a tensor say where its data lie, and nothing else of them."""
    del tensor.external_data[:]
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(length))):
        tensor.external_data.add(key=key, value=value)
    tensor.data_location = tensor.EXTERNAL


def file_of(model: Path, location: str, what: str) -> Path:
    """As `find_data`; the model's own file where the location says so."""
    return model if location == IN_MODEL_FILE else find_data(model, location, what)


def find_data(model: Path, location: str, what: str) -> Path:
    """The file with external data that ``model`` names ``location``; it need not be there.

    Raises `ModelError`, which begins with ``what``, where the location is not a relative path, leads out of
    both folders (also by a link), or leads to something that is not a file.
    """
    folder = model.parent
    if not location or "\0" in location or _leads_out(location):
        raise ModelError(
            f"{what} lies in {location[:_SHOWN]!r}, which is not a path inside {folder}: only files in the "
            "model's folder are read."
        )
    try:
        roots = _folders(model)
        path = next((there for root in roots if (there := root / location).exists()), folder / location)
        resolved, is_file = path.resolve(), path.is_file() or not path.exists()
        inside = any(resolved.is_relative_to(root.resolve()) for root in roots)
    except (OSError, RuntimeError, ValueError):  # too long a name, links in a circle, half characters
        raise ModelError(
            f"{what} lies in {location[:_SHOWN]!r}, which cannot be the path of a file."
        ) from None
    if not inside:
        also = f", and in {roots[1]}, where the model itself lies," if len(roots) > 1 else ""
        raise ModelError(
            f"{what} lies in {location!r}, a link that leads out of {folder} to {resolved}: only files in "
            f"the model's folder{also} are read."
        )
    if not is_file:
        raise ModelError(f"{what} lies in {path}, which is not a file.")
    instead = placeholder(path)
    if instead is not None:
        raise ModelError(f"{what} lies in {path}, which {instead}.")
    return path


def target_of(model: Path) -> Path:
    """The path at which ONNX Runtime finds a model's data by itself: it looks beside the name that it is
    given. That is the model's own name, or the target of a link where data lie beside the target only."""
    if not model.is_symlink():
        return model
    try:
        target = model.resolve()
        names = locations(read_message(model))
        elsewhere = any(
            not (model.parent / name).exists() and (target.parent / name).exists() for name in names
        )
    except Exception:  # whoever reads the model says what is wrong with it
        return model
    return target if elsewhere else model


def locations(message: Message) -> list[str]:
    """The names of external data files anywhere in a protobuf message, sorted; those that lead out of the
    model's folder by their text, which its reader refuses, are left out."""
    names = {text for key, text in entries(message) if key == "location" and text != IN_MODEL_FILE}
    return sorted(name for name in names if not _leads_out(name))


_KEYS = {"location", "offset", "length", "checksum", "basepath"}
Extent = tuple[int, "int | None"]
"""First byte, and the one after the last; None: to the end of the file."""


def extents(message: Message) -> dict[str, list[Extent]]:
    """For each of `locations`, in order, what tensors use of the file: parts that neither meet nor overlap.
    The file may be far longer."""
    found: dict[str, list[tuple[int, float]]] = {name: [] for name in locations(message)}
    for tensor in _external(message):
        try:
            place = place_of(tensor)
        except ValueError:  # a reader says so; then nothing is known of the file
            return {name: [(0, None)] for name in found}
        start, end = place.offset, math.inf
        if not {entry.key for entry in tensor.external_data} <= _KEYS:
            start = 0  # such as weights that ONNX Runtime has packed and keeps anywhere in the file
        elif place.length is not None and place.length > 0:  # 0 is as much as nothing, to ONNX Runtime
            end = start + place.length
        if place.location in found and 0 <= start < end:
            found[place.location].append((start, end))
    return {name: _joined(parts) for name, parts in found.items()}


def _joined(parts: list[tuple[int, float]]) -> list[Extent]:
    found: list[tuple[int, float]] = []
    for start, end in sorted(parts):
        if found and start <= found[-1][1]:
            found[-1] = found[-1][0], max(end, found[-1][1])
        else:
            found.append((start, end))
    return [(start, None if end == math.inf else int(end)) for start, end in found]


def entries(message: Message) -> Iterator[tuple[str, str]]:
    """What tensors with external data, anywhere in a protobuf message, say of where they lie."""
    for tensor in _external(message):
        yield from ((entry.key, entry.value) for entry in tensor.external_data)


def _external(message: Message) -> Iterator[onnx.TensorProto]:
    from google.protobuf.message import Message

    from sharding.onnx_files.messages import TensorProto

    for field, value in message.ListFields():
        if isinstance(message, TensorProto) and field.name == "external_data":
            yield message
        elif isinstance(value, Message):
            yield from _external(value)
        elif field.message_type is not None and isinstance(value, Iterable):
            for item in value:
                yield from _external(item)


def _leads_out(location: str) -> bool:
    return Path(location).is_absolute() or ".." in Path(location).parts


def _folders(model: Path) -> list[Path]:
    """The model's folder, and that of the file it is a link to, if it is one."""
    folders = [model.parent]
    if model.is_symlink():
        target = model.resolve().parent
        if target != model.parent.resolve():
            folders.append(target)
    return folders
