"""What strangers give the command: flags, job files, models and scripts that are no such thing."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.errors import ConfigError
from tests.launcher.cli_tools import save_mlp


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    save_mlp(tmp_path / "model.onnx")
    return tmp_path


def refused(capsys: pytest.CaptureFixture[str], *arguments: str) -> str:
    """The one sentence that the command ends with, which is about what it was given."""
    try:
        code: object = main(arguments)
    except SystemExit as leaving:
        code = leaving.code
    told = capsys.readouterr().err
    assert code == 2, told
    start = "shardrun: error: "
    assert told.startswith(start) and told.endswith("\n") and told.count("\n") == 1, told
    return told[len(start) : -1]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["slice", "--nosuch"], "slice: unrecognized arguments: --nosuch; the following arguments are requ"),
        (["slice", "--rnaks=2"], "unrecognized arguments: --rnaks; did you mean '--ranks'?; the following"),
        (["slice", "--rank"], "slice: argument --rank: expected one argument"),
        (["slice", "--out", "x"], "slice: the following arguments are required: MODEL.onnx"),
        (["table", "make", "--hsots", "a"], "table make: unrecognized arguments: --hsots; did you mean"),
        (["exec"], "exec: the following arguments are required: SCRIPT.py (see"),
        (
            ["run", "m", "--timeout", "1e8"],
            "expected a number of seconds above 0 and at most 10000000, found",
        ),
        (["run", "m", "--timeout", "٣"], "expected a number of seconds above 0 and at most 10000000, f"),
        (
            ["run", "m", "--timeout", "1_0"],
            "expected a number of seconds above 0 and at most 10000000, found",
        ),
        (
            ["scripts", "model.onnx", "--ranks=2", "--output=/dev/null"],
            "new or empty folder, found what is no",
        ),
        (["run", "model.onnx", "--ranks=2", "--input=x="], "--input 'x=': expected NAME=FILE or FILE.npz"),
        (["run", "model.onnx", "--ranks=2", "--input="], "--input '': expected NAME=FILE or FILE.npz"),
    ],
    ids=lambda value: " ".join(value)[:40] if isinstance(value, list) else None,
)
def test_flags(arguments: list[str], words: str, folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert words in refused(capsys, *arguments)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("j.yaml", "<<: {model: x}", "line 1: << merges what anchors name, which are not allowed"),
        ("j.yaml", "ranks: 1:30", '$.ranks: expected a whole number from 1 to 4096, found "1:30"'),
        ("j.yaml", "timeout: 1:30.5", "$.timeout: expected a number of seconds above 0 and at most 1"),
        ("j.yaml", "timeout: 1.0e+8", "$.timeout: expected a number of seconds above 0 and at most 10000000"),
        ("j.json", f'{{"seed": {"9" * 5000}}}', "has more digits than a number may have"),
        (
            "j.yaml",
            "memory: 1e400",
            "$.memory: expected bytes such as 24GB or 512MiB, above 0, found '1e400'",
        ),
        ("j.yaml", "mesh: tensor=x", "$.mesh: The mesh 'tensor=x' gives tensor the size 'x'; expected a"),
    ],
)
def test_job_files(
    name: str, text: str, words: str, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / name).write_text(text)
    told = refused(capsys, "run", "--config", name)
    assert words in told and told.count(words[:20]) == 1 and "set_int_max_str_digits" not in told


@pytest.mark.parametrize(
    ("name", "content", "words"),
    [
        ("words.txt", b"root:x:0:0:root\n", "words.txt is not "),
        ("program", b"\x7fELF" + bytes(100), "program is not "),
        ("weights.data", bytes(range(256)), "weights.data is not "),
        ("job.yaml", b"model: m\n", "job.yaml steers a job and is no model: give a job file with --config"),
        ("table.json", b"{}", "table.json steers a job and is no model"),
        ("manifest.json", b"{}", "manifest.json is the manifest of a slice folder: give the folder, `.`"),
        ("script.py", b"import os\n", "script.py is a script and no model: `shardrun exec` runs it"),
        ("x.npy", b"\x93NUMPY", "x.npy holds an array and no model: give it with --input"),
        ("x.npz", b"PK\x03\x04", "x.npz holds arrays and no model: give it with --input"),
        ("none", b"", "none is empty; expected an ONNX model"),
    ],
)
@pytest.mark.parametrize("ranks", [(), ("--ranks", "2")], ids=["", "ranks"])
def test_what_is_no_model_is_named_whether_or_not_ranks_are_given(
    name: str, content: bytes, words: str, ranks: tuple[str, ...], folder: Path,
    capsys: pytest.CaptureFixture[str],
) -> None:  # fmt: skip
    (folder / name).write_bytes(content)
    assert words in refused(capsys, "run", name, *ranks)
    assert not [item for item in folder.glob("cache/slices/*") if item.suffix != ".lock"]


def test_a_slice_folder_holds_regular_files(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A pipe in the place of a rank's model would be waited for, and a device be read without end."""
    assert main(["slice", "model.onnx", "--ranks", "2", "--output", "slices"]) == 0
    capsys.readouterr()
    rank_model = folder / "slices" / "rank_0.onnx"
    for make in (os.mkfifo, lambda path: path.symlink_to("/dev/zero")):
        rank_model.unlink()
        make(rank_model)
        assert "rank_0.onnx" in refused(capsys, "inspect", "slices")


def test_a_file_that_steers_has_an_end(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """It is not read to its end to learn that it is too long."""
    with (folder / "steer.yaml").open("wb") as file:
        file.truncate(1 << 42)
    told = refused(capsys, "run", "model.onnx", "--ranks", "2", "--steer", "steer.yaml")
    assert "steer.yaml: a steering file has at most" in told


def test_a_schema_that_is_none_is_named(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for text in ("", "{", '{"type": NaN,}'):
        (folder / "schema.json").write_text(text)
        told = refused(capsys, "generate", "model.onnx", "--prompt", "a", "--json-schema", "schema.json")
        assert "schema.json: this JSON schema is no JSON" in told


def test_a_model_may_have_any_name(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Also one that other files of a job usually have."""
    for name in ("model.json", "model.yaml", "model.npz"):
        (folder / "model.onnx").rename(folder / name)
        assert "is not sliced yet" in refused(capsys, "run", name)
        (folder / name).rename(folder / "model.onnx")


def test_a_model_is_a_regular_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    os.mkfifo("pipe")
    for ranks in ((), ("--ranks", "2")):
        assert "is not a file; expected an ONNX file" in refused(capsys, "run", "pipe", *ranks)
    told = refused(capsys, "slice", "pipe", "--ranks", "2", "--output", "slices")
    assert "pipe is not a file; expected an ONNX file" in told


@pytest.mark.parametrize("command", [("run",), ("run", "--ranks", "2"), ("inspect",)], ids=" ".join)
@pytest.mark.parametrize("content", [b"\x08\x01junk" * 50, b"hello\n", b"\x08\x08" + b"\xff" * 100])
def test_junk_is_no_model_of_the_format_that_its_name_says(
    command: tuple[str, ...], content: bytes, folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, kind in (("junk.mindir", "a MindIR file"), ("junk.onnx", "an ONNX file")):
        (folder / name).write_bytes(content)
        assert f"{name} is not {kind}, or it is truncated" in refused(capsys, command[0], name, *command[1:])


def test_a_script_is_a_regular_file(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device would be read until memory ends, a pipe until somebody writes into it."""
    os.mkfifo("pipe")
    for ranks in ((), ("--ranks", "2")):
        for name in ("/dev/zero", "/dev/null", "pipe"):
            told = refused(capsys, "exec", *ranks, name)
            assert told == f"{name} is a pipe or a device; expected a script in a regular file."
        assert refused(capsys, "exec", *ranks, "") == "There is no script ''."
        assert "is a folder without a __main__.py" in refused(capsys, "exec", *ranks, str(folder))


def test_an_interrupt_while_the_command_is_read(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The modules of all commands are imported then."""

    def interrupted(_: str, **_given: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr("launcher.cli.build_parser", interrupted)
    assert main(["run"]) == 130
    assert capsys.readouterr().err == "shardrun: interrupted\n"


def test_a_full_disk_under_the_cache(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """The cache is named, not the folder that it works in, and what helps."""
    monkeypatch.setattr("shutil.disk_usage", lambda _: type("Usage", (), {"free": 10, "total": 100}))
    told = refused(capsys, "run", "model.onnx", "--ranks", "2")
    assert told.startswith(f"the cache of sliced models at {folder / 'cache' / 'slices'} cannot be used: ")
    assert " are needed, but only 10 B are free on its disk: free some space there, or set SHARDRUN_" in told


def test_a_demo_that_cannot_be_written_leaves_nothing(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def full(*_: object) -> None:
        raise ConfigError("No space left on device")

    monkeypatch.setattr("launcher.common.files.write_file", full)
    (folder / "mine").mkdir()
    for name in ("new", "mine"):
        assert refused(capsys, "demo", name) == "No space left on device"
    assert (folder / "mine").is_dir() and not (folder / "new").exists()
