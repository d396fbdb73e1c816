"""scripts/wheel_pieces.py: pieces that come one by one, damaged or not at all, and the file they make."""

from __future__ import annotations

import hashlib
import subprocess
import sys
import zipfile
from pathlib import Path

import numpy as np
import pytest

SCRIPT = Path(__file__).resolve().parents[2] / "scripts" / "wheel_pieces.py"


def run(*arguments: object) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [sys.executable, str(SCRIPT), *map(str, arguments)],
        capture_output=True,
        text=True,
        timeout=60,
        check=False,
    )


@pytest.fixture
def wheel(tmp_path: Path) -> Path:
    path = tmp_path / "thing-1.0-py3-none-any.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr("thing/__init__.py", "VALUE = 7\n")
        archive.writestr("thing/data", np.random.default_rng(1).bytes(5 << 20))
    return path


def test_pieces_make_the_file_again(wheel: Path, tmp_path: Path) -> None:
    ended = run("split", wheel, tmp_path / "pieces", "--mib", 2)
    assert ended.returncode == 0, ended.stderr
    pieces = sorted((tmp_path / "pieces").glob("*.whl.0*"))
    assert [piece.stat().st_size for piece in pieces[:2]] == [2 << 20, 2 << 20] and len(pieces) == 3
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    assert digest in ended.stdout
    ended = run("join", tmp_path / "pieces", tmp_path / "out", "--unpack", tmp_path / "packages")
    assert ended.returncode == 0, ended.stderr
    assert (tmp_path / "out" / wheel.name).read_bytes() == wheel.read_bytes()
    assert digest in ended.stdout
    program = "import thing; print(thing.VALUE)"
    used = subprocess.run(
        [sys.executable, "-c", program],
        env={"PYTHONPATH": str(tmp_path / "packages")},
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )
    assert used.stdout == "7\n"
    again = run("join", tmp_path / "pieces", tmp_path / "out")
    assert again.returncode == 0 and digest in again.stdout  # it is there already
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [wheel.name]


def test_one_piece_and_none(tmp_path: Path) -> None:
    for name, content in (("small", b"abc"), ("empty", b"")):
        (tmp_path / name).write_bytes(content)
        assert run("split", tmp_path / name, tmp_path / f"{name}.p").returncode == 0
        assert run("join", tmp_path / f"{name}.p", tmp_path / "out").returncode == 0
        assert (tmp_path / "out" / name).read_bytes() == content


@pytest.mark.parametrize(
    ("harm", "message"),
    [
        (
            "missing",
            "Of the 3 pieces of thing-1.0-py3-none-any.whl in .*, .*.001 is missing: take these over again.",
        ),
        ("short", r".*\.001 has 5 bytes instead of 2097152: take these over again"),
        ("damaged", r".*\.001 is damaged: take these over again"),
        ("no list", "holds 0 lists of pieces"),
        ("list", r"\.pieces\.json is damaged: take it over again"),
        ("outside", r"\.pieces\.json is damaged: take it over again"),
    ],
)
def test_what_did_not_come_whole(harm: str, message: str, wheel: Path, tmp_path: Path) -> None:
    import re

    folder = tmp_path / "pieces"
    assert run("split", wheel, folder, "--mib", 2).returncode == 0
    piece, told = folder / f"{wheel.name}.001", folder / f"{wheel.name}.pieces.json"
    if harm == "missing":
        piece.unlink()
    elif harm == "short":
        piece.write_bytes(b"short")
    elif harm == "damaged":
        content = bytearray(piece.read_bytes())
        content[77] ^= 1
        piece.write_bytes(content)
    elif harm == "no list":
        told.unlink()
    elif harm == "list":
        told.write_text("{")
    else:
        told.write_text(told.read_text().replace(f'"{wheel.name}.001"', '"../../etc/passwd"'))
    ended = run("join", folder, tmp_path / "out")
    assert ended.returncode == 1 and "Traceback" not in ended.stderr
    assert re.search(message, ended.stderr), ended.stderr
    assert not list((tmp_path / "out").glob("*"))


def test_nothing_is_written_over(wheel: Path, tmp_path: Path) -> None:
    assert run("split", wheel, tmp_path / "pieces").returncode == 0
    ended = run("split", wheel, tmp_path / "pieces")
    assert ended.returncode == 1 and "exists already: give another folder" in ended.stderr
    (tmp_path / wheel.name).unlink()
    (tmp_path / wheel.name).write_text("mine")
    ended = run("join", tmp_path / "pieces", tmp_path)
    assert ended.returncode == 1 and "exists already, and is another file" in ended.stderr
    assert (tmp_path / wheel.name).read_text() == "mine"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("split", "/nowhere/file", "{}"), "/nowhere/file: No such file or directory."),
        (("split", __file__, "{}", "--mib", "65"), "--mib must be from 1 to 64, but is 65."),
        (("join", "/nowhere", "{}"), "/nowhere holds 0 lists of pieces"),
    ],
)
def test_wrong_arguments(arguments: tuple[str, ...], message: str, tmp_path: Path) -> None:
    ended = run(*(text.format(tmp_path / "new") for text in arguments))
    assert ended.returncode == 1 and ended.stderr.startswith(message)
