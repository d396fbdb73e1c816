"""run.sh before and around its installing: what it refuses, and in which words."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
TOOLS = ("bash", "cat", "dirname", "flock", "ls", "mkdir", "readlink", "rm", "sha256sum")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A folder for PATH with what run.sh calls, and no Python."""
    folder = tmp_path / "tools"
    folder.mkdir()
    for name in TOOLS:
        if found := shutil.which(name):
            (folder / name).symlink_to(found)
    return folder


def run(*arguments: str, cwd: Path = ROOT, **environment: str) -> subprocess.CompletedProcess[str]:
    inherited = {name: os.environ[name] for name in ("PATH", "HOME", "TMPDIR") if name in os.environ}
    return subprocess.run(
        [shutil.which("bash") or "bash", str(ROOT / "run.sh"), *arguments],
        cwd=cwd,
        env=inherited | environment,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )


def script(path: Path, text: str) -> Path:
    path.write_text("#!/bin/bash\n" + text)
    path.chmod(0o755)
    return path


def test_help_needs_nothing(tmp_path: Path) -> None:
    done = run("help", cwd=tmp_path, SHARDRUN_VENV=str(tmp_path / "venv"))
    assert done.returncode == 0
    assert "./run.sh test" in done.stdout
    assert not (tmp_path / "venv").exists()


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (("tset",), "unknown command 'tset'; expected test, lint, check, setup or help"),
        (("",), "unknown command ''"),
        (("lint", "launcher"), "'lint' takes no further arguments, but got: launcher"),
        (("setup", "-v"), "'setup' takes no further arguments"),
    ],
)
def test_wrong_arguments(tmp_path: Path, arguments: tuple[str, ...], sentence: str) -> None:
    done = run(*arguments, SHARDRUN_VENV=str(tmp_path / "venv"))
    assert done.returncode == 2
    assert sentence in done.stderr
    assert not (tmp_path / "venv").exists()


def test_no_python(tmp_path: Path, tools: Path) -> None:
    script(tools / "python3", 'echo "Python 2.7"; exit 1\n')
    done = run("setup", PATH=str(tools), SHARDRUN_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "no Python 3.10, 3.11 or 3.12 was found on PATH" in done.stderr
    assert not (tmp_path / "venv").exists()


def test_python_without_venv(tmp_path: Path, tools: Path) -> None:
    script(tools / "python3", f'case "$2" in *ensurepip*) exit 1 ;; esac\nexec "{sys.executable}" "$@"\n')
    done = run("setup", PATH=str(tools), SHARDRUN_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    version = "{}.{}".format(*sys.version_info[:2])
    assert (
        f"has no venv module with pip; on Debian and Ubuntu: apt install python{version}-venv" in done.stderr
    )


def test_named_python_must_work(tmp_path: Path) -> None:
    done = run("setup", SHARDRUN_PYTHON="/bin/false", SHARDRUN_VENV=str(tmp_path / "venv"))
    assert done.returncode == 1
    assert "SHARDRUN_PYTHON is '/bin/false', which is not a working Python 3.10, 3.11 or 3.12" in done.stderr


def test_another_folder_is_never_removed(tmp_path: Path) -> None:
    (tmp_path / "thesis.txt").write_text("years of work")
    done = run("setup", SHARDRUN_VENV=str(tmp_path))
    assert done.returncode == 1
    assert "run.sh did not make it" in done.stderr
    assert (tmp_path / "thesis.txt").read_text() == "years of work"


def test_unwritable_place(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    done = run("setup", SHARDRUN_VENV=str(tmp_path / "file" / "venv"))
    assert done.returncode == 1
    assert f"cannot write to {tmp_path}/file; name another folder with SHARDRUN_VENV" in done.stderr


def test_half_made_environment_is_made_anew(tmp_path: Path) -> None:
    """Killed while it made the environment; then an index without packages: the next step says so."""
    venv = tmp_path / "with space" / "venv"
    (venv / "bin").mkdir(parents=True)
    (venv / ".made-by-run.sh").touch()
    script(venv / "bin" / "python", "exit 1\n")
    done = run(
        "setup",
        cwd=tmp_path,
        SHARDRUN_VENV="with space/venv",
        SHARDRUN_PYTHON=sys.executable,
        PIP_NO_INDEX="1",
        PIP_CONFIG_FILE=os.devnull,
        PIP_RETRIES="0",
    )
    assert done.returncode == 1
    assert "making a virtual environment" in done.stderr
    assert "installing the build tools failed" in done.stderr
    assert (venv / "pyvenv.cfg").is_file()
    assert not list(venv.glob(".shardrun-*"))
    assert not (venv / ".installing").exists()
    assert subprocess.run([venv / "bin" / "python", "-m", "pip", "--version"], check=False).returncode == 0


def test_installation_that_was_killed_is_not_trusted(tmp_path: Path) -> None:
    """A kill in the middle of pip's work leaves packages without files; the environment is made anew: here
    without pip, which takes seconds to put there."""
    venv = tmp_path / "venv"
    python = script(
        tmp_path / "python",
        '[ "$1 $2" != "-m venv" ] || set -- -m venv --without-pip "${@:3}"\n'
        f'exec "{sys.executable}" "$@"\n',
    )
    subprocess.run([sys.executable, "-m", "venv", "--without-pip", venv], check=True, timeout=120)
    (venv / ".made-by-run.sh").touch()
    (venv / ".installing").touch()
    (venv / "torn").touch()
    done = run(
        "setup",
        SHARDRUN_VENV=str(venv),
        SHARDRUN_PYTHON=str(python),
        PIP_NO_INDEX="1",
        PIP_CONFIG_FILE=os.devnull,
    )
    assert done.returncode == 1
    assert f"an earlier set-up of {venv} was cut off: starting anew" in done.stderr
    assert (venv / "pyvenv.cfg").is_file() and "installing the build tools failed" in done.stderr
    assert not (venv / "torn").exists()
    assert not (venv / ".installing").exists()
