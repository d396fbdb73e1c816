"""Results are written whole or not at all, and leave nothing beside them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from launcher.common.files import write_file
from launcher.errors import ConfigError


def test_a_failed_write_leaves_what_was_there(tmp_path: Path) -> None:
    target = tmp_path / "report.json"
    target.write_bytes(b"the last one")

    def fill(file: BinaryIO) -> None:
        file.write(b"half of")
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    with pytest.raises(ConfigError, match="cannot write the report: No space left"):
        write_file(target, fill, "report")
    assert target.read_bytes() == b"the last one" and list(tmp_path.iterdir()) == [target]


@pytest.mark.parametrize("mask", [0o022, 0o007])
@pytest.mark.parametrize("there", [False, True])
def test_a_written_file_has_the_mode_of_any_other(tmp_path: Path, mask: int, there: bool) -> None:
    """Also where it replaces one: those who read results may be others."""
    target = tmp_path / "report.json"
    if there:
        target.touch()
    before = os.umask(mask)
    try:
        write_file(target, b"{}", "report")
    finally:
        os.umask(before)
    assert stat.S_IMODE(target.stat().st_mode) == 0o666 & ~mask
