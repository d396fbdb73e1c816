"""What lies where a slice is to be written is not lost, and what is in the way is named."""

from __future__ import annotations

import os
import time
from pathlib import Path
from typing import BinaryIO

import pytest

from sharding.errors import OutputError, ShardError
from sharding.slices import folder, state
from sharding.slices.manifest import read_manifest
from sharding.slices.state import StatePair, metadata_text, parse_metadata


def _fill(target: BinaryIO) -> None:
    target.write(b"after")


def test_a_pipe_is_not_replaced(tmp_path: Path) -> None:
    pipe, other = tmp_path / "pipe", tmp_path / "other"
    os.mkfifo(pipe)
    for files in ([pipe, other], [other, pipe]):
        with pytest.raises(OSError, match="a device or pipe is there, which would be replaced") as caught:
            folder.replace_files([(path, _fill) for path in files])
        assert caught.value.filename == str(pipe)
        assert [item.name for item in tmp_path.iterdir()] == ["pipe"]
    with pytest.raises(IsADirectoryError):
        folder.replace_files([(other, _fill), (tmp_path, _fill)])
    assert not other.exists()


def test_a_link_is_replaced_by_the_file(tmp_path: Path) -> None:
    (tmp_path / "there").write_bytes(b"before")
    (tmp_path / "link").symlink_to("there")
    folder.replace_files([(tmp_path / "link", _fill)])
    assert (tmp_path / "there").read_bytes() == b"before"
    assert (tmp_path / "link").read_bytes() == b"after"


def test_outputs_that_cannot_be_written_to(tmp_path: Path) -> None:
    (tmp_path / "circle").symlink_to("circle")
    with pytest.raises(OutputError, match="circle cannot be "):
        folder.check_output(tmp_path / "circle")
    (tmp_path / "file").write_text("text")
    with pytest.raises(OutputError, match=r"file is a file; choose another --output folder"):
        folder.check_output(tmp_path / "file")
    (tmp_path / "full").mkdir()
    folder.check_output(tmp_path / "full")
    (tmp_path / "full" / "letter").write_text("text")
    with pytest.raises(OutputError, match="holds other files than a slice"):
        folder.check_output(tmp_path / "full")
    folder.check_output(tmp_path / "new")
    assert sorted(item.name for item in tmp_path.iterdir()) == ["circle", "file", "full"]


def test_an_output_that_cannot_be_looked_at(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(self: Path) -> None:
        raise PermissionError(13, "Permission denied", str(self))

    (tmp_path / "closed").mkdir()
    monkeypatch.setattr(Path, "iterdir", refused)
    with pytest.raises(OutputError, match="closed cannot be read: Permission denied"):
        folder.check_output(tmp_path / "closed")


def test_only_what_slicing_has_left_is_removed(tmp_path: Path) -> None:
    """Folders of its own names, that hold its own files alone, and that are not young."""
    kept = {".out-abcd1234.partial": "letter", ".out-abcd12345.partial": "", ".other-abcd1234.partial": "",
            ".out-ABCD1234.partial": "", ".out-young123.partial": "", ".out-linked12.partial": "",
            ".out-somefile.partial": ""}  # fmt: skip
    gone = {".out-wxyz1234.partial": "rank_0.onnx", ".out-wxyz1235-old.partial": "manifest.json",
            ".out-wxyz1236.partial": "", ".out-wxyz1237.partial": ".rank_0.data.0123abcd"}  # fmt: skip
    then = time.time() - 3600
    (tmp_path / "elsewhere").mkdir()
    for name, inside in (kept | gone).items():
        path = tmp_path / name
        if "linked" in name:
            path.symlink_to("elsewhere")
        elif "somefile" in name:
            path.write_text("text")
        else:
            path.mkdir()
            if inside:
                (path / inside).write_text("text")
        if "young" not in name and "linked" not in name:
            os.utime(path, (then, then))
    os.utime(tmp_path / "elsewhere", (then, then))
    with folder.new_folder(tmp_path / "out", 1):
        pass
    assert {item.name for item in tmp_path.iterdir()} - {"out"} == {*kept, "elsewhere"}


def test_a_manifest_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(ShardError, match=r"manifest.json cannot be read: "):
        read_manifest(tmp_path / ("x" * 300))
    with pytest.raises(ShardError, match="cannot be read: embedded null byte"):
        read_manifest(f"{tmp_path}/a\0b")


def test_as_many_pairs_of_state_as_are_read(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(state, "LONGEST_STATE", 3)

    def text(count: int) -> str:
        return metadata_text(StatePair(f"i{n}", f"o{n}") for n in range(count))

    assert len(parse_metadata(text(3), "here")) == 3
    with pytest.raises(ShardError, match="a list of at most 3 pairs"):
        parse_metadata(text(4), "here")
