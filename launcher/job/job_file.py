"""Job files: the options of ``shardrun run`` in YAML or JSON."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.documents import quote, read_document
from launcher.errors import ConfigError
from launcher.job.options import OPTIONS
from sharding.common.text import closest

if TYPE_CHECKING:
    from launcher.job.values import Setting


def read_job_file(path: Path) -> dict[str, Setting]:
    """The options in a job file, as `launcher.job.options.Options` names and types them; null is as good as
    absent. Raises `ConfigError`."""
    data, _ = read_document(path, "job file")
    if data is None:
        raise ConfigError(f"{path}: expected a mapping of options, found an empty file")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of options, found {quote(data)}")
    for key in data:
        if key not in OPTIONS:
            close = closest(key, OPTIONS)
            hint = f"did you mean {close}?" if close else f"expected one of {', '.join(OPTIONS)}"
            raise ConfigError(f"{path}: unknown key {quote(key)}; {hint}")
    folder = path.absolute().parent
    try:
        return {
            name: option.kind.read(data[name], f"$.{name}", folder)
            for name, option in OPTIONS.items()
            if data.get(name) is not None
        }
    except ConfigError as problem:
        raise ConfigError(f"{path}: {problem}") from None
