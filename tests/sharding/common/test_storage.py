"""Advice for each reason why nothing can be written, and where commands say it before they slice."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from launcher.common.files import check_folder, write_file
from launcher.errors import ConfigError
from launcher.job import cache
from sharding.common.storage import is_place, probe, why_unwritable
from sharding.errors import OutputError, SliceError
from sharding.slices.folder import check_output, new_folder
from tests.launcher.cli_tools import save_mlp, shardrun


@pytest.mark.parametrize(
    ("number", "advice", "place"),
    [
        (errno.ENOSPC, "free some space", False),
        (errno.EDQUOT, "quota", False),
        (errno.EFBIG, "ulimit -f", False),
        (errno.EACCES, "this user may not write there", True),
        (errno.EPERM, "does not let this user", True),
        (errno.EROFS, "read only", True),
        (errno.ENOTDIR, "is a file, and no folder", True),
        (errno.ENAMETOOLONG, "shorter name", True),
        (errno.ELOOP, "in a circle", True),
        (errno.EMFILE, "ulimit -n", False),
    ],
)
def test_advice(
    number: int, advice: str, place: bool, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """The same wherever it is written: a result, a slice folder, the cache."""
    error = OSError(number, os.strerror(number), "somewhere")
    assert why_unwritable(error).startswith(f"{os.strerror(number)}: ")
    assert is_place(error) is place

    def fail(*_: object, **__: object) -> None:
        raise error

    model = save_mlp(tmp_path / "m.onnx")
    monkeypatch.setattr("tempfile.mkdtemp", fail)
    monkeypatch.setattr("tempfile.mkstemp", fail)
    monkeypatch.setattr("launcher.common.files._write_unnamed", lambda *_: False)  # there are none here
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    with pytest.raises(OutputError if place else SliceError) as sliced, new_folder(tmp_path / "s", 1):
        pass
    with pytest.raises(ConfigError) as cached:
        cache.sliced(model, 2)
    with pytest.raises(ConfigError) as written:
        write_file(tmp_path / "out", b"x", "page")
    for caught in (sliced, cached, written):
        assert advice in str(caught.value)
        assert ("free some space" in str(caught.value)) is (number == errno.ENOSPC)
    assert "SHARDRUN_CACHE" in str(cached.value)
    assert isinstance(sliced.value, OutputError) is place


def _loop(folder: Path) -> Path:
    (folder / "loop").symlink_to("loop")
    return folder / "loop" / "out"


def _file(folder: Path) -> Path:
    (folder / "file").touch()
    return folder / "file" / "deeper" / "out"


def _dangling(folder: Path) -> Path:
    (folder / "dangling").symlink_to("nowhere")
    return folder / "dangling" / "out"


@pytest.mark.parametrize(
    ("make", "advice"),
    [
        (_loop, "circle"),
        (_file, "is a file, and no folder"),
        (_dangling, "no folder"),
        (lambda folder: folder / ("x" * 300), "shorter name"),
        (lambda folder: folder / ("x" * 300) / "out", "shorter name"),
    ],
)
def test_bad_output_folders_end_with_2_before_anything_is_read(
    make: object, advice: str, tmp_path: Path
) -> None:
    output = make(tmp_path)  # type: ignore[operator]
    with pytest.raises(OSError) as found:
        probe(output)
    assert str(tmp_path) in str(found.value)  # which place, for what does not say it itself
    with pytest.raises(OutputError, match=advice):
        check_output(output)
    with pytest.raises(ConfigError):
        check_folder("--output", output)
    (tmp_path / "bad.onnx").write_bytes(b"no model at all")
    for command in (("slice",), ("scripts",)):
        done = shardrun(*command, "bad.onnx", "--ranks", 2, "--output", output, cwd=tmp_path)
        assert (done.returncode, done.stdout) == (2, "")
        assert advice in done.stderr
        assert "free some space" not in done.stderr


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write every folder")
def test_a_folder_of_somebody_else(tmp_path: Path) -> None:
    tmp_path.chmod(0o500)
    with pytest.raises(OutputError, match="this user may not write there"):
        check_output(tmp_path / "out")


def test_what_can_be_made_passes(tmp_path: Path) -> None:
    probe(tmp_path / "a" / "b" / "c")
    probe(tmp_path)
    assert not any(tmp_path.iterdir())


def test_a_path_that_is_too_long_by_all_its_parts(tmp_path: Path) -> None:
    with pytest.raises(OSError) as found:
        probe(tmp_path.joinpath(*["x" * 200] * 30))
    assert found.value.errno == errno.ENAMETOOLONG
