"""Writing result files: whole or not at all."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from launcher.errors import ConfigError


def write_file(path: str | Path, content: bytes | Callable[[BinaryIO], None], what: str) -> None:
    """Writes a file by way of a temporary one beside it, so that ``path`` never holds half a file.

    ``content`` is the bytes, or a function which writes them. Raises `ConfigError` naming the file, what it
    was to hold, and the system's reason. A device or pipe (``/dev/null``) is written directly.
    """
    target = Path(path)
    temporary: str | None = None
    try:
        if target.exists() and not target.is_file():
            # Devices and pipes cannot seek, as writers of archives want to.
            with tempfile.TemporaryFile() as whole, target.open("wb") as file:
                _fill(whole, content)
                whole.seek(0)
                shutil.copyfileobj(whole, file)
            return
        # A link is followed: its target is replaced, the link stays.
        target = target.resolve()
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, content)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        Path(temporary).replace(target)
        temporary = None
    except (OSError, ValueError) as problem:
        reason = getattr(problem, "strerror", None) or problem
        raise ConfigError(f"{path}: cannot write the {what}: {reason}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _fill(file: BinaryIO, content: bytes | Callable[[BinaryIO], None]) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask
