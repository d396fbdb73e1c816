"""The log folder of a job, and which ranks are shown."""

from __future__ import annotations

import errno
import json
import os
from pathlib import Path

import pytest

from launcher.common.logs import Logs, parse_ranks, without_secrets, words_without_secrets
from launcher.errors import ConfigError
from launcher.group.logs import LogFiles
from launcher.group.starting import run_program
from tests.launcher import slices
from tests.launcher.cli_tools import shardrun


@pytest.mark.parametrize(
    ("logs", "message"),
    [
        (Logs(tee=(0, 2)), "--tee 0,2: expected ranks from 0 to 1, found 2"),
        (
            Logs(log_dir=Path("full")),
            "--log-dir full: expected a new or empty folder, found one with files in it",
        ),
        (Logs(log_dir=Path("full/file")), "--log-dir full/file: cannot write there"),
    ],
)
def test_what_cannot_be_is_refused_before_a_rank_starts(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, logs: Logs, message: str
) -> None:
    monkeypatch.chdir(tmp_path)
    Path("full").mkdir()
    Path("full/file").write_text("kept")
    with pytest.raises(ConfigError, match=message):
        run_program(["exec", "script.py"], ranks=2, launcher="local", logs=logs)
    assert Path("full/file").read_text() == "kept"


def test_a_file_that_cannot_be_written_is_named_and_warned_of_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("rank_0.log", "launcher.log"):
        (tmp_path / name).symlink_to("/dev/full")
    files = LogFiles(tmp_path)
    lost = [files.write(rank, "stdout", "x\n") for rank in (0, None)]
    assert [one and (one.errno, one.filename) for one in lost] == [
        (errno.ENOSPC, str(tmp_path / name)) for name in ("rank_0.log", "launcher.log")
    ]
    assert [record.getMessage() for record in caplog.records] == [
        f"{tmp_path / 'rank_0.log'} cannot be written (No space left on device): the job's logs are not whole"
    ]


def test_ranks_of_a_list() -> None:
    assert parse_ranks("0,3-5") == (0, 3, 4, 5)
    with pytest.raises(ConfigError, match="expected ranks such as 0,3 or 0-7, found 'all'"):
        parse_ranks("all")
    with pytest.raises(ConfigError) as long:
        parse_ranks("x" * 999)
    assert len(str(long.value)) < 150


def test_secrets_are_left_out() -> None:
    given = {
        "HF_TOKEN": "t", "AWS_SECRET_ACCESS_KEY": "k", "DB_PASSWORD": "p", "SHARDRUN_JOB": "0" * 32,
        "SLURM_JWT": "j", "GITHUB_PAT": "g", "HOME": "/root", "PROXY": "http://me:p/w@x@proxy:80/",
    }  # fmt: skip
    shown = without_secrets(given)
    assert list(shown) == sorted(given)
    assert shown["HOME"] == "/root" and shown["PROXY"] == "http://...@proxy:80/"
    assert {shown[name] for name in given if name not in {"HOME", "PROXY"}} == {"(left out)"}
    inside = {
        "JAVA_TOOL_OPTIONS": (
            "-Dx=1 -Dkey.storePassword=s -Dy=2",
            "-Dx=1 -Dkey.storePassword=(left out) -Dy=2",
        ),
        "OPTIONS": ("--db-password s --x 1", "--db-password (left out) --x 1"),
        "MODEL": ("https://h/x?a=1&X-Amz-Signature=s&b", "https://h/x?a=1&X-Amz-Signature=(left out)"),
        "STORE": ("https://h/x?sv=1&sig=s", "https://h/x?sv=1&sig=(left out)"),
        "SERVICES": ('{"user": "u", "password": "s t"}', '{"user": "u", "password":(left out)'),
        "DB_CREDS": ("me:s", "(left out)"),
        "PATH": ("/opt/tokens:/usr/bin", "/opt/tokens:/usr/bin"),
        "WORDS": ("a  b=c {'x': 1} ", "a  b=c {'x': 1} "),
    }
    shown = without_secrets({name: text for name, (text, _) in inside.items()})
    assert shown == {name: text for name, (_, text) in inside.items()}


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (["--env", "HF_TOKEN=c2VjcmV0=="], ["--env", "HF_TOKEN=(left out)"]),
        (["-x A=1 -x HF_TOKEN=s=x"], ["-x A=1 -x HF_TOKEN=(left out)"]),
        (["--api-key", "s", "-q", "--pass=s"], ["--api-key", "(left out)", "-q", "--pass=(left out)"]),
        (["postgres://me:s@x@host/db", "a=http://me:s@host"], ["postgres://...@host/db", "a=http://...@host"]),
        (["--config", '{"token": "s"}'], ["--config", '{"token":(left out)']),
        (["--max-new-tokens", "9", "x=x.bin"], ["--max-new-tokens", "9", "x=x.bin"]),
    ],
)  # fmt: skip
def test_secrets_of_command_lines_are_left_out(words: list[str], expected: list[str]) -> None:
    assert words_without_secrets(words) == expected


def test_a_folder_that_another_job_takes_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of it is changed, and no rank is started."""
    logs = Logs(log_dir=tmp_path / "logs")
    check = Logs.check

    def checked(self: Logs, size: int) -> None:
        check(self, size)
        (tmp_path / "logs" / "job.json").write_text("another's")

    monkeypatch.setattr(Logs, "check", checked)
    with pytest.raises(ConfigError, match="logs: expected a new or empty folder, found one with files"):
        run_program(["exec", "script.py"], ranks=2, launcher="local", logs=logs)
    assert [path.read_text() for path in (tmp_path / "logs").iterdir()] == ["another's"]


def test_the_folder_of_a_job(tmp_path: Path) -> None:
    """Bytes that are no text, much of it and no line end, hurt nobody; processes have the job's name."""
    script = tmp_path / "script.py"
    script.write_text(
        "import os, sys\nfrom pathlib import Path\nrank = os.environ['RANK']\n"
        "print(Path('/proc/self/cmdline').read_bytes().rstrip(b'\\0').decode())\n"
        "sys.stdout.flush()\n"
        "if rank == '1':\n    os.write(2, b'\\xff' + b'x' * (4 << 20) + b'\\nlast')\n"
    )
    done = shardrun(
        "exec", "--ranks", 2, "--launcher", "local", "--log-dir", "logs", "--tee", "0",
        "--env", "API_KEY=hidden=", "script.py", "--token", "hidden", cwd=tmp_path,
    )  # fmt: skip
    assert (done.returncode, done.stderr) == (0, "")
    job = json.loads((tmp_path / "logs" / "job.json").read_text())
    host = os.uname().nodename
    assert done.stdout == f"[0@{host}] shardrun rank 0 of 2, job {job['job']}: exec script.py\n"
    assert (
        job["hosts"] == [host] * 2
        and job["launcher"] == "local"
        and job["program"] == ["exec", "script.py", "--token", "(left out)"]
    )
    assert "hidden" not in (tmp_path / "logs" / "job.json").read_text()
    assert (tmp_path / "logs" / "job.json").stat().st_mode & 0o777 == 0o600
    written = (tmp_path / "logs" / "rank_1.log").read_bytes()
    assert written.replace(b"\n", b"").endswith(b"\xff" + b"x" * (4 << 20) + b"last")


def test_the_plan_of_a_job(tmp_path: Path) -> None:
    made = slices.make_slices(tmp_path / "slices")
    done = shardrun("run", made, "--launcher", "local", "--log-dir", "logs", "--quiet", cwd=tmp_path)
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")
    assert (tmp_path / "logs" / "plan.json").read_bytes() == (made / "manifest.json").read_bytes()


def test_logs_of_one_of_several_groups() -> None:
    whole = Logs(log_dir=Path("a"), tee=(0, 2, 3), log_json=True)
    assert whole.of_one("draft") == Logs(Path("a/draft"), (0, 2, 3), log_json=True)
    assert whole.of_one("draft", 3) == Logs(Path("a/draft"), (0, 2), log_json=True)
    assert Logs().of_one("draft", 1) == Logs()
    assert whole.log_dir == Path("a")


def test_a_folder_for_logs_is_made_and_an_empty_one_is_taken(tmp_path: Path) -> None:
    Logs(log_dir=tmp_path / "a" / "b", tee=(1,)).check(2)
    assert (tmp_path / "a" / "b").is_dir()
    Logs(log_dir=tmp_path / "a" / "b").check(2)
    Logs(tee=()).check(1)
    with pytest.raises(ConfigError, match=r"--tee 1: expected ranks from 0 to 0, found 1: there is 1 rank"):
        Logs(tee=(1,)).check(1)
    taken = Logs(log_dir=tmp_path / "a").unwritable(FileExistsError(errno.EEXIST, "x"))
    assert "expected a new or empty folder" in str(taken)
    full = Logs(log_dir=tmp_path / "a").unwritable(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC)))
    assert "cannot write there: No space left" in str(full)
