"""A rank's place, read from a rank table of HCCL version 1.0 (JSON or YAML)."""

from __future__ import annotations

import hashlib
import itertools
from pathlib import Path
from typing import Any, NamedTuple

from ranks.errors import IdentityError
from ranks.identity.place import Identity
from sharding.common.nearby import hint

_READY = "completed"
_LARGEST = 64 << 20  # bytes; a table of 10 000 ranks has about 2 MB


def identity_from_table(
    path: str | Path, rank: int | None = None, device: int | None = None, size: int | None = None
) -> Identity:
    """The identity of one rank of the table at ``path``.

    The rank is found by its ``rank`` or, in a table of one server, by its ``device``; what is given beside it
    (``device``, ``size``) must agree with the table. Raises `IdentityError`, naming file, place in it and
    value. Source of the format: the rank table of HCCL, version 1.0.
    """
    path = Path(path)
    raw = _bytes(path)
    entries = _entries(path, raw)
    world = len(entries)
    ranks = sorted(entry.rank for entry in entries)
    if ranks != list(range(world)):
        twice = next((a for a, b in itertools.pairwise(ranks) if a == b), None)
        wrong = f"rank_id {twice} stands twice" if twice is not None else f"the rank_ids are {_short(ranks)}"
        raise IdentityError(
            f"Rank table {path}: {wrong}; {world} devices need rank_id 0 to {world - 1}, each once."
        )
    if size is not None and size != world:
        raise IdentityError(f"RANK_SIZE is {size}, but rank table {path} has {world} ranks.")
    if rank is not None:
        found = [entry for entry in entries if entry.rank == rank]
        if not found:
            raise IdentityError(f"Rank {rank} is not in rank table {path}, which has ranks 0 to {world - 1}.")
    else:
        found = [entry for entry in entries if entry.device == device]
        if len(found) != 1:
            raise IdentityError(
                f"Rank table {path}: device_id {device} stands {len(found)} times, so it does not say "
                f"which rank "
                "this process is: give the rank id."
            )
    mine = found[0]
    if device is not None and device != mine.device:
        raise IdentityError(
            f"Rank table {path} gives rank {mine.rank} device_id {mine.device}, "
            f"but this process was told device {device}."
        )
    here = sorted(entry.rank for entry in entries if entry.server == mine.server)
    return Identity(
        mine.rank,
        world,
        here.index(mine.rank),
        len(here),
        source=f"rank table {path}",
        device=mine.device,
        key="table:" + hashlib.sha256(raw).hexdigest(),
    )


class _Entry(NamedTuple):
    rank: int
    device: int
    server: str


def _bytes(path: Path) -> bytes:
    try:
        if not path.is_file():
            state = "is not a file" if path.exists() else f"does not exist{hint(path)}"
            raise IdentityError(f"Rank table {path} {state}: expected an HCCL rank table (JSON or YAML).")
        if path.stat().st_size > _LARGEST:
            raise IdentityError(
                f"Rank table {path} has {path.stat().st_size} bytes, more than any rank table."
            )
        return path.read_bytes()
    except OSError as error:
        raise IdentityError(f"Rank table {path} cannot be read: {error.strerror or error}.") from error


def _entries(path: Path, raw: bytes) -> list[_Entry]:
    table = _parse(path, raw)
    status = table.get("status", _READY) if isinstance(table, dict) else _READY
    if status != _READY:
        raise IdentityError(
            f"Rank table {path}: status must be {_READY!r}, but is {_short(status)}: a table in any other "
            "state is not ready."
        )
    entries: list[_Entry] = []
    names: set[str] = set()
    for s, server in enumerate(_list(path, table, "server_list", "")):
        where = f"server_list[{s}]"
        devices = _list(path, server, "device", where + ".")
        name = str(server.get("server_id", s))
        if name in names:
            raise IdentityError(f"Rank table {path}: {where}.server_id {_short(name)} stands twice.")
        names.add(name)
        used: set[int] = set()
        for d, device in enumerate(devices):
            place = f"{where}.device[{d}]"
            numbers = _whole(path, device, "rank_id", place), _whole(path, device, "device_id", place)
            if numbers[1] in used:
                raise IdentityError(
                    f"Rank table {path}: {place}.device_id {numbers[1]} stands twice on {_short(name)}."
                )
            used.add(numbers[1])
            entries.append(_Entry(*numbers, name))
    if not entries:
        raise IdentityError(f"Rank table {path}: server_list holds no device.")
    return entries


def _parse(path: Path, raw: bytes) -> Any:
    from sharding.common.documents import parse

    yaml = path.suffix in {".yaml", ".yml"}
    try:
        return parse(raw.decode("utf-8-sig"), "yaml" if yaml else "json")
    except (ValueError, RecursionError) as error:
        kind = "YAML" if yaml else "JSON"
        said = str(error)[:200] or "nested too deeply"
        raise IdentityError(f"Rank table {path} is not valid {kind}: {said}.") from error


def _list(path: Path, parent: Any, key: str, where: str) -> list[Any]:
    value = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(value, list):
        raise IdentityError(f"Rank table {path}: {where}{key} must be a list, but is {_short(value)}.")
    return value


def _whole(path: Path, parent: Any, key: str, where: str) -> int:
    value = parent.get(key) if isinstance(parent, dict) else None
    text = str(value) if isinstance(value, (str, int)) and not isinstance(value, bool) else ""
    if not (text.isascii() and text.isdecimal() and len(text) < 10):
        raise IdentityError(
            f"Rank table {path}: {where}.{key} must be a whole number of 0 or more, but is {_short(value)}."
        )
    return int(text)


def _short(value: Any) -> str:
    text = "missing" if value is None else repr(value)
    return text if len(text) <= 80 else text[:77] + "..."
