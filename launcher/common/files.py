"""Files: results are written whole or not at all, and secrets read, which may come through a pipe."""

from __future__ import annotations

import errno
import os
import re
import select
import shutil
import stat
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import BinaryIO

from launcher.errors import ConfigError
from sharding.common.storage import probe, why_unwritable

KINDS = {
    "archive": rb"PK",
    "page": rb"<!DOCTYPE html>",
    "plan": rb'\{\s*"format": "shardrun-plan"',
    "report": rb'\{\s*"metrics"',
}
"""How a file begins that a command writes and may therefore replace."""


def check_folder(flag: str, path: Path) -> None:
    """Raises `ConfigError` unless ``path`` can be the name of a file, in a folder that may be written."""
    folder = path.absolute().parent
    try:
        if not folder.is_dir():
            state = "is no folder" if folder.exists() else "does not exist"
            raise ConfigError(f"{flag} {path}: the folder {folder} {state}")
        if path.is_dir():
            raise ConfigError(f"{flag} {path}: expected the name of a file, found a folder")
        if path.is_file() or not path.exists():
            # A device is written itself, a file by way of another one beside it.
            probe(path.absolute())
    except OSError as problem:
        raise ConfigError(
            f"{flag} {path}: the folder {folder} cannot be written: {why_unwritable(problem)}"
        ) from None


def check_target(flag: str, path: Path, kind: str) -> None:
    """Raises `ConfigError` unless a result may be written to this path: the folder exists, and what is there
    already is empty, a device, or such a file as it will be; never somebody's model or data."""
    check_folder(flag, path)
    if not path.is_file():
        return
    try:
        with path.open("rb") as file:
            begin = file.read(64)
    except OSError as problem:
        raise ConfigError(f"{flag} {path}: cannot be read to see what it is: {problem.strerror}") from None
    if begin and not re.match(KINDS[kind], begin):
        raise ConfigError(
            f"{flag} {path}: this file is there already, and it is no {kind} that could be replaced; "
            f"choose another name, or remove it"
        )


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
        if _write_unnamed(target, content):
            return
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name[:100]}.", dir=target.parent)
        with os.fdopen(descriptor, "wb") as file:
            _fill(file, content)
            os.fchmod(file.fileno(), 0o666 & ~_umask())
        Path(temporary).replace(target)
        temporary = None
    except (OSError, ValueError) as problem:
        raise ConfigError(f"{path}: cannot write the {what}: {why_unwritable(problem)}") from None
    finally:
        if temporary is not None:
            Path(temporary).unlink(missing_ok=True)


def _write_unnamed(target: Path, content: bytes | Callable[[BinaryIO], None]) -> bool:
    """Writes a new file that has no name until it is whole, so that even a process that is killed leaves
    nothing; False where the file system has no such files, or the target is there already."""
    if not hasattr(os, "O_TMPFILE") or os.path.lexists(target):
        return False
    try:
        descriptor = os.open(target.parent, os.O_TMPFILE | os.O_WRONLY | os.O_CLOEXEC, 0o666)
    except OSError:
        return False
    with os.fdopen(descriptor, "wb") as file:
        _fill(file, content)
        file.flush()
        try:
            # Where a folder is given, Python asks for what the entry leads to, and else for the entry itself,
            # which lies on a file system of its own.
            folder = os.open("/proc/self/fd", os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
            try:
                os.link(str(descriptor), target, src_dir_fd=folder, follow_symlinks=True)
            finally:
                os.close(folder)
        except OSError:  # made by another process meanwhile, or no /proc
            return False
    return True


def _fill(file: BinaryIO, content: bytes | Callable[[BinaryIO], None]) -> None:
    if callable(content):
        content(file)
    else:
        file.write(content)


def _umask() -> int:
    mask = os.umask(0)
    os.umask(mask)
    return mask


PIPE_SECONDS = 30.0
"""How long it is waited for what a pipe should bring."""


def read_at_most(path: Path, most: int) -> bytes:
    """The first bytes of a file or of a pipe, as a secret may come through. Raises `OSError`, also where
    nobody writes into the pipe."""
    # A terminal is not to become this process's: one that has none, such as a server, would end with it.
    flags = os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY
    with os.fdopen(os.open(path, flags), "rb", 0) as file:
        arrived = select.poll()
        piped = stat.S_ISFIFO(os.fstat(file.fileno()).st_mode)
        os.set_blocking(file.fileno(), True)  # a person at a terminal takes time
        if piped:
            arrived.register(file, select.POLLIN)
        data = b""
        while len(data) < most:
            if piped and not arrived.poll(PIPE_SECONDS * 1000):
                why = f"nobody has written into this pipe for {PIPE_SECONDS:g} s"
                raise OSError(errno.ETIMEDOUT, why, str(path))
            if not (block := file.read(most - len(data))):
                break
            data += block
    return data
