"""Results are written whole or not at all, and leave nothing beside them."""

from __future__ import annotations

import errno
import os
import stat
from pathlib import Path
from typing import BinaryIO

import pytest

from launcher.common import files
from launcher.common.files import check_folder, check_target, read_at_most, write_file
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


def test_a_link_stays_and_leads_to_the_result(tmp_path: Path) -> None:
    (tmp_path / "kept").mkdir()
    target, link = tmp_path / "kept" / "report.json", tmp_path / "link.json"
    target.write_bytes(b"old")
    link.symlink_to(target)
    write_file(link, b"new", "report")
    assert link.is_symlink() and target.read_bytes() == b"new" and not target.is_symlink()


def test_a_device_gets_what_was_written_with_seeks(tmp_path: Path) -> None:
    """As writers of archives do; what is no file is not replaced."""

    def fill(file: BinaryIO) -> None:
        file.write(b"??cd")
        file.seek(0)
        file.write(b"ab")

    reader, writer = os.pipe()
    write_file(f"/dev/fd/{writer}", fill, "report")
    os.close(writer)
    with os.fdopen(reader, "rb") as file:
        assert file.read() == b"abcd"
    write_file("/dev/null", fill, "report")
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)  # noqa: PTH116


@pytest.mark.parametrize("lacks", ["nothing", "O_TMPFILE", "link"])
def test_a_file_without_a_name_is_not_needed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, lacks: str
) -> None:
    def link(*_: object, **__: object) -> None:
        raise FileExistsError

    if lacks == "O_TMPFILE":  # as on file systems that have no such files
        monkeypatch.delattr(os, lacks)
    elif lacks == "link":  # another process was faster
        monkeypatch.setattr(os, lacks, link)
    target = tmp_path / "report.json"
    write_file(target, b"{}", "report")
    assert target.read_bytes() == b"{}" and list(tmp_path.iterdir()) == [target]
    assert stat.S_IMODE(target.stat().st_mode) & 0o200


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("absent/x", "the folder .*absent does not exist"),
        ("file/x", "the folder .*file is no folder"),
        ("folder", "expected the name of a file, found a folder"),
        ("n" * 300, "the folder .* cannot be written"),
    ],
)
def test_where_no_file_can_be_written(tmp_path: Path, name: str, message: str) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "folder").mkdir()
    with pytest.raises(ConfigError, match=f"^--output .*{message}"):
        check_folder("--output", tmp_path / name)
    with pytest.raises(ConfigError, match=f"^--output .*{message}"):
        check_target("--output", tmp_path / name, "page")
    assert sorted(path.name for path in tmp_path.iterdir()) == ["file", "folder"]


@pytest.mark.parametrize(
    ("kind", "content", "taken"),
    [
        *((kind, b"", True) for kind in ("archive", "page", "plan", "report")),
        ("archive", b"PK\3\4more", True),
        ("page", b"<!DOCTYPE html><p>", True),
        ("plan", b'{\n  "format": "shardrun-plan", ', True),
        ("report", b'{"metrics": {}}', True),
        ("archive", b"a model", False),
        ("page", b" <!DOCTYPE html>", False),
        ("plan", b'{"metrics": {}}', False),
        ("report", b'{"format": "shardrun-plan"}', False),
    ],
)
def test_only_its_like_is_replaced(tmp_path: Path, kind: str, content: bytes, taken: bool) -> None:
    target = tmp_path / "there"
    target.write_bytes(content)
    if taken:
        check_target("--output", target, kind)
    else:
        with pytest.raises(
            ConfigError, match=f"is there already, and it is no {kind} that could be replaced"
        ):
            check_target("--output", target, kind)
    assert target.read_bytes() == content
    check_target("--output", Path("/dev/null"), kind)
    check_target("--output", tmp_path / "new", kind)
    assert list(tmp_path.iterdir()) == [target]


def test_secrets_are_read_up_to_a_bound_whatever_they_come_from(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    path = tmp_path / "secret"
    path.write_bytes(b"0123456789")
    assert [read_at_most(path, most) for most in (0, 4, 10, 99)] == [
        b"",
        b"0123",
        b"0123456789",
        b"0123456789",
    ]
    reader, writer = os.pipe()
    for part in (b"abc", b"def"):
        os.write(writer, part)
    assert read_at_most(Path(f"/dev/fd/{reader}"), 5) == b"abcde"
    os.close(writer)
    assert read_at_most(Path(f"/dev/fd/{reader}"), 5) == b"f"  # and then its end
    os.close(reader)
    monkeypatch.setattr(files, "PIPE_SECONDS", 0.01)
    os.mkfifo(tmp_path / "pipe")
    held = os.open(tmp_path / "pipe", os.O_RDWR)
    with pytest.raises(OSError, match=r"nobody has written into this pipe for 0\.01 s") as caught:
        read_at_most(tmp_path / "pipe", 5)
    assert caught.value.errno == errno.ETIMEDOUT
    os.close(held)
