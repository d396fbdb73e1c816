"""Job files: the options of ``shardrun run`` in YAML or JSON."""

from __future__ import annotations

import logging
from collections.abc import Collection, Mapping
from pathlib import Path

from launcher.common.documents import quote, read_document
from launcher.errors import ConfigError
from launcher.job.option_table import Option
from launcher.job.options import OPTIONS
from sharding.common.text import closest

log = logging.getLogger(__name__)

SECTIONS = ("generate", "submit")
"""Keys that hold options of a command: each reads its own."""


def read_job_file(path: Path) -> dict[str, object]:
    """The options in a job file, as `launcher.job.options.Options` names and types them; null is as good as
    absent. Raises `ConfigError`."""
    data = _read_mapping(path)
    for key in SECTIONS:
        _section(data, key, path)
    own = {key: value for key, value in data.items() if key not in SECTIONS}
    return read_options(own, OPTIONS, path)


def tell_unfollowed(said: Collection[str], takes: Collection[str] | None, where: str) -> None:
    """Warns of options that ``where``, such as a job file, says, and that a command does not take. None: it
    takes all."""
    if takes is not None and (left := [name for name in said if name not in takes and name != "model"]):
        log.warning("%s: this command does not follow %s", where, ", ".join(left))


def read_section(path: Path, key: str, options: Mapping[str, Option]) -> dict[str, object]:
    """The options that one of `SECTIONS` of a job file holds, or none. Raises `ConfigError`."""
    return read_options(_section(_read_mapping(path), key, path), options, path, f".{key}")


def _section(data: Mapping[str, object], key: str, path: Path) -> Mapping[str, object]:
    held = data.get(key)
    if held is not None and not isinstance(held, dict):
        raise ConfigError(f"{path}: $.{key}: expected a mapping of options, found {quote(held)}")
    return held or {}


def _read_mapping(path: Path) -> dict[str, object]:
    data, _ = read_document(path, "job file")
    if data is None:
        raise ConfigError(f"{path}: expected a mapping of options, found an empty file")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of options, found {quote(data)}")
    return data


def read_options(
    data: Mapping[str, object], options: Mapping[str, Option], path: Path, section: str = ""
) -> dict[str, object]:
    """The options in a mapping of a document, by name; ``section``: where in it, such as ``.generate``.
    Raises `ConfigError`."""
    known = [*options, *([] if section else SECTIONS)]
    for key in data:
        if key not in known:
            close = closest(key, known)
            hint = f"did you mean {close}?" if close else f"expected one of {', '.join(known)}"
            where = f" in $.{section[1:]}" if section else ""
            raise ConfigError(f"{path}: unknown key {quote(key)}{where}; {hint}")
    folder = path.absolute().parent
    try:
        return {
            name: option.kind.read(data[name], f"${section}.{name}", folder)
            for name, option in options.items()
            if data.get(name) is not None
        }
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
