"""Job files: the options of ``shardrun run`` in YAML or JSON, and sections for other commands."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.documents import quote, read_document
from launcher.errors import ConfigError
from launcher.job.options import OPTIONS, Option
from sharding.common.text import closest

if TYPE_CHECKING:
    from launcher.job.values import Setting

SECTIONS = ("generate",)
"""Keys with the options of one command; other commands leave them aside."""


def read_job_file(path: Path) -> dict[str, Setting]:
    """The options in a job file, as `launcher.job.options.Options` names and types them; null is as good as
    absent. Raises `ConfigError`."""
    data = _mapping(path)
    sections = {name: data.pop(name) for name in SECTIONS if name in data}
    for name, value in sections.items():
        if value is not None and not isinstance(value, dict):
            raise ConfigError(f"{path}: $.{name}: expected a mapping of options, found {quote(value)}")
    return _read(path, data, OPTIONS, "$", SECTIONS)


def read_section(path: Path, name: str, options: Mapping[str, Option]) -> dict[str, Setting]:
    """The options in one of a job file's `SECTIONS`; none where the file lacks it. Raises `ConfigError`."""
    data = _mapping(path).get(name)
    return _read(path, data, options, f"$.{name}") if isinstance(data, dict) else {}


def _mapping(path: Path) -> dict[object, object]:
    data, _ = read_document(path, "job file")
    if data is None:
        raise ConfigError(f"{path}: expected a mapping of options, found an empty file")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of options, found {quote(data)}")
    return data


def _read(
    path: Path,
    data: Mapping[object, object],
    options: Mapping[str, Option],
    where: str,
    others: tuple[str, ...] = (),
) -> dict[str, Setting]:
    for key in data:
        if key not in options:
            known = (*options, *others)
            close = closest(str(key), known)
            hint = f"did you mean {close}?" if close else f"expected one of {', '.join(known)}"
            inside = "" if where == "$" else f" in {where}"
            raise ConfigError(f"{path}: unknown key {quote(key)}{inside}; {hint}")
    folder = path.absolute().parent
    try:
        return {
            name: option.kind.read(data[name], f"{where}.{name}", folder)
            for name, option in options.items()
            if data.get(name) is not None
        }
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
