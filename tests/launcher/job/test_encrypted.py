"""Encrypted models on the command line: every command takes a key, and nothing plain is left behind."""

from __future__ import annotations

import contextlib
import json
import os
import pty
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from launcher import cli
from launcher.common.files import read_at_most
from launcher.errors import ConfigError
from launcher.inspection.reference import refer
from launcher.job.decryption import read_key
from launcher.serving.access import read_tokens
from ranks.run import executor
from tests.elsewhere import not_ours
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import mpirun, save_mlp

DATA = Path(__file__).parents[2] / "data" / "mindir"
KEY = b"0123456789ABCDEF"
GCM, CBC = "model_aes_gcm.mindir", "model_aes_cbc.mindir"

pytest.importorskip("cryptography", reason="cryptography is not installed: encrypted files cannot be read")


@pytest.fixture
def here(tmp_path: Path) -> Path:
    """A folder with encrypted models, their key, and a place for temporary files."""
    for name in (GCM, CBC):
        (tmp_path / name).write_bytes((DATA / "mlp_encrypted" / name).read_bytes())
    (tmp_path / "key.bin").write_bytes(KEY)
    (tmp_path / "tmp").mkdir()
    archive = np.load(DATA / "mlp" / "io.npz")
    np.savez(tmp_path / "in.npz", x=archive["in_0"])
    return tmp_path


Command = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def command(here: Path) -> Command:
    def run(
        *arguments: object, before: list[str] | None = None, code: int = 0
    ) -> subprocess.CompletedProcess[str]:
        done = shardrun(*arguments, cwd=here, before=before or [], TMPDIR=str(here / "tmp"))
        assert done.returncode == code, done.stderr
        assert "Traceback" not in done.stderr and KEY.decode() not in done.stdout + done.stderr
        # Nothing plain is left, neither among temporary files nor in the cache.
        assert not list((here / "tmp").glob("shardrun-*")), list((here / "tmp").rglob("*"))
        assert not [path for path in (here / "cache").rglob("*.onnx") if path.is_file()]
        assert not list((here / "cache").glob("weights/blobs/*"))
        return done

    return run


def check_answers(path: Path) -> None:
    known = np.load(DATA / "mlp" / "io.npz")["out_0"]
    found = np.load(path)["output"]
    assert np.max(np.abs(found - known)) <= 1e-5 * np.max(np.abs(known))


@pytest.mark.parametrize(
    ("name", "flags"), [(GCM, ["--launcher", "mpirun"]), (CBC, ["--dec-mode", "AES-CBC", "--verify"])]
)
def test_run(here: Path, command: Command, name: str, flags: list[str]) -> None:
    command(
        "run", name, "--ranks", "2", "--dec-key-file", "key.bin", "--input", "in.npz", "--output", "y.npz",
        *flags,
    )  # fmt: skip
    check_answers(here / "y.npz")


def test_run_by_a_job_file_and_a_pipe(here: Path, command: Command) -> None:
    """A pipe gives its bytes once."""
    (here / "job.json").write_text(
        json.dumps({"model": GCM, "ranks": 2, "dec_key_file": "pipe", "dec_mode": "AES-GCM", "verify": True})
    )
    os.mkfifo(here / "pipe")
    writer = subprocess.Popen([sys.executable, "-c", f"open({str(here / 'pipe')!r}, 'wb').write({KEY!r})"])
    try:
        assert "sliced" not in command("run", "--config", "job.json").stderr
        assert writer.wait(20) == 0
    finally:  # a command that never opens the pipe leaves the writer waiting for it
        writer.kill()
        writer.wait()


def test_a_key_that_is_typed_at_a_terminal() -> None:
    master, terminal = pty.openpty()
    try:
        typing = threading.Timer(0.1, os.write, (master, b"0123456789ABCDEF\n"))
        typing.start()
        assert read_at_most(Path(os.ttyname(terminal)), 16) == b"0123456789ABCDEF"
        typing.join()
    finally:
        os.close(master)
        os.close(terminal)


def test_a_terminal_that_brings_a_key_is_not_taken_over() -> None:
    """A server that has none would be ended with it, when it is closed."""
    master, terminal = pty.openpty()
    os.write(master, b"0123456789ABCDEF\n")
    if not (child := os.fork()):
        with contextlib.suppress(BaseException):
            os.setsid()
            assert read_at_most(Path(os.ttyname(terminal)), 16) == b"0123456789ABCDEF"
            try:
                os.open("/dev/tty", os.O_RDONLY)
            except OSError:
                os._exit(7)
        os._exit(1)
    try:
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 7
    finally:
        os.close(master)
        os.close(terminal)


def test_a_pipe_that_nobody_writes_into(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    os.mkfifo(here / "pipe")
    monkeypatch.setattr("launcher.common.files.PIPE_SECONDS", 0.01)
    for read in (lambda path: read_key(path, None), read_tokens):
        with pytest.raises(ConfigError, match=r"pipe: nobody has written into this pipe for 0\.01 s"):
            read(here / "pipe")


def test_ranks_that_something_else_started(here: Path, command: Command) -> None:
    command(
        "run", GCM, "--dec-key-file", "key.bin", "--input", "in.npz", "--output", "y.npz", "--verify",
        before=mpirun(2),
    )  # fmt: skip
    check_answers(here / "y.npz")
    (here / "key.bin").write_bytes(b"x" * 16)
    done = command("run", GCM, "--dec-key-file", "key.bin", before=mpirun(2), code=2)
    assert "the key is wrong" in done.stderr


def test_slices_are_plain_and_their_source_needs_the_key(here: Path, command: Command) -> None:
    command("slice", GCM, "--ranks", "2", "--dec-key-file", "key.bin", "--output", "slices")
    done = command("run", "slices", "--verify", code=2)
    assert f"{GCM} is encrypted (AES-GCM): give its key (--dec-key-file FILE" in done.stderr
    command(
        "run", "slices", "--verify", "--dec-key-file", "key.bin", "--input", "in.npz", "--output", "y.npz"
    )
    check_answers(here / "y.npz")


def test_inspect(here: Path, command: Command) -> None:
    found = json.loads(command("inspect", GCM, "--dec-key-file", "key.bin", "--json").stdout)
    assert [weight["name"] for weight in found["weights"]][:2] == ["fc2.weight", "fc1.weight"]
    planned = command("inspect", GCM, "--dec-key-file", "key.bin", "--ranks", "2").stdout
    assert f"{GCM}: 2 ranks" in planned and "\nfc1 " in planned
    assert "ranks" in command("inspect", GCM, "--dec-key-file", "key.bin", "--world", "2,4").stdout


@pytest.mark.parametrize("ranks", [1, 2])
def test_eval(here: Path, command: Command, ranks: int) -> None:
    archive = np.load(DATA / "mlp" / "io.npz")
    np.savez(here / "data.npz", x=archive["in_0"], targets=archive["out_0"])
    flags = ["--ranks", "2"] if ranks == 2 else []
    command(
        "eval", GCM, "--dec-key-file", "key.bin", "--data", "data.npz", "--metric", "max_error", "--label",
        "targets", "--output", "report.json", *flags,
    )  # fmt: skip
    report = json.loads((here / "report.json").read_text())
    assert report["ranks"] == ranks and report["metrics"]["max_error"] < 1e-5


def test_scripts_name_the_keys_file_only(here: Path, command: Command) -> None:
    command("scripts", GCM, "--ranks", "2", "--dec-key-file", "key.bin", "--verify", "--output", "job")
    texts = [path.read_text() for path in (here / "job").glob("*.sh")]
    assert len(texts) == 3 and not any(KEY.decode() in text for text in texts)
    assert sum(f"--dec-key-file {here / 'key.bin'}" in text for text in texts) == 2
    command("scripts", GCM, "--ranks", "2", "--dec-key-file", "key.bin", "--output", "plain")
    assert not any("dec-key" in path.read_text() for path in (here / "plain").glob("*.sh"))


def test_rank_models(here: Path, command: Command, monkeypatch: pytest.MonkeyPatch) -> None:
    """Equal files for all ranks are rank models too."""
    for rank in range(2):
        (here / f"rank_{rank}").mkdir()
        (here / f"rank_{rank}" / "model.mindir").write_bytes((here / GCM).read_bytes())
    pattern = "rank_{}/model.mindir"
    command("run", pattern, "--dec-key-file", "key.bin", "--input", "in.npz", "--output", "y.npz")
    check_answers(here / "y.npz")
    monkeypatch.chdir(here)
    assert refer(Path(pattern)).encrypted
    assert "2 rank models" in command("inspect", pattern, "--dec-key-file", "key.bin").stdout
    for verb in ("run", "inspect"):
        done = command(verb, pattern, code=2)
        assert "rank_0/model.mindir is encrypted (AES-GCM): give its key" in done.stderr
    command("scripts", pattern, "--dec-key-file", "key.bin", "--output", "job")
    assert f"--dec-key-file {here / 'key.bin'}" in (here / "job" / "rank_1.sh").read_text()


def test_what_is_wrong_is_said(
    here: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(here)
    monkeypatch.setenv("SHARDRUN_CACHE", str(here / "cache"))
    (here / "short").write_bytes(b"short")
    plain = str(DATA / "mlp" / "model.mindir")
    table = {
        "version": "1.0", "server_count": "2", "status": "completed", "server_list": [
            {"server_id": host, "device": [{"device_id": "0", "rank_id": str(rank)}]}
            for rank, host in enumerate(not_ours(2))
        ],
    }  # fmt: skip
    (here / "table.json").write_text(json.dumps(table))
    key = ["--dec-key-file", "key.bin"]
    for arguments, words in (
        (["run", GCM, "--ranks", "2"], "is encrypted (AES-GCM): give its key (--dec-key-file FILE"),
        (["run", GCM, *key], "is not sliced yet: say over how many ranks"),
        (["run", CBC, "--ranks", "2", *key], "is encrypted with AES-CBC, but dec_mode is 'AES-GCM'"),
        (["run", plain, "--ranks", "2", *key], "is not encrypted, but a key was given: leave --dec-key-file"),
        (["slice", plain, "--ranks", "2", "--plan-only", *key], "is not encrypted, but a key was given"),
        (["inspect", plain, *key], "is not encrypted, but a key was given"),
        (["run", GCM, "--ranks", "2", "--dec-mode", "AES-CBC"], "--dec-mode AES-CBC says how to use a key"),
        (["inspect", GCM, "--dec-key-file", "nowhere"], "--dec-key-file nowhere: No such file"),
        (["slice", GCM, "--ranks", "2", "--plan-only", "--dec-key-file", "short"], "expected 16, 24, 32"),
        (["inspect", GCM, "--dec-key-file", "/dev/zero"], "expected 16, 24, 32"),
        (["slice", GCM, "--ranks", "2", *key, "--annotate", "a.onnx"], "convert it first"),
        (
            ["run", GCM, "--rank-table", "table.json", *key],
            f"`shardrun slice {GCM} --ranks 2 --output DIR --dec-key-file key.bin`",
        ),
    ):
        assert cli.main(list(map(str, arguments))) == 2
        err = capsys.readouterr().err
        assert words in err and KEY.decode() not in err


def test_a_key_is_never_shown(tmp_path: Path) -> None:
    (tmp_path / "key").write_bytes(KEY + b"\n")
    key = read_key(tmp_path / "key", None)
    assert key is not None and key.secret == KEY and KEY.decode() not in repr(key)
    with pytest.raises(ConfigError, match="Is a directory"):
        read_key(tmp_path, None)


@pytest.mark.parametrize("keep", [True, False])
def test_weights_are_kept_unless_told_not_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, keep: bool
) -> None:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "on")
    executor.load(save_mlp(tmp_path / "m.onnx"), options=executor.LoadOptions(keep=keep)).close()
    assert any((tmp_path / "cache").glob("weights/*/*")) == keep
