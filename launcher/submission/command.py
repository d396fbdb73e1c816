"""The command that a submitted job runs for each rank: ``shardrun run``, started by the job system."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.job.options import (
    DATA,
    ENCRYPTED,
    FILES,
    OPTIONS,
    RANKS,
    SLICING,
    TYPES,
    flags_for_a_rank,
)
from launcher.job.values import absolute
from launcher.starters.environment import python_path

if TYPE_CHECKING:
    from launcher.job.job import Job
    from launcher.submission.base import Submission

INDEX = "%a"
"""In a path, the index of one job of an array."""


def arguments(submission: Submission) -> list[str]:
    """What follows ``shardrun``, with absolute paths; nothing is quoted."""
    job = submission.job
    found = ["run", absolute(job.model or "."), "--launcher=external"]
    for texts in flags_for_a_rank(job, RANKS, TYPES, SLICING, DATA, FILES, ENCRYPTED):
        # As one word, so that a value may begin with a hyphen.
        found += texts if len(texts) == 1 else map("=".join, zip(texts[::2], texts[1::2], strict=True))
    if job.threads is None and submission.options.cpus is not None:
        found.append(f"--threads={submission.options.cpus}")
    return found


def quoted(text: str, index: str = "") -> str:
    """A word for the shell; ``index``: the variable that `INDEX` stands for, if there is one."""
    if not index:
        return shlex.quote(text)
    return f'"${{{index}}}"'.join(shlex.quote(part) if part else "" for part in text.split(INDEX))


def command(submission: Submission, index: str = "") -> str:
    """The whole command, quoted for the shell."""
    return " ".join([program(submission), *(quoted(text, index) for text in arguments(submission))])


def program(submission: Submission) -> str:
    """How ``shardrun`` is started: from the image, from the virtual environment, or as here."""
    options = submission.options
    if options.image is not None or options.venv is not None:
        return "shardrun"
    beside = Path(sys.executable).parent / "shardrun"
    if beside.is_file():
        return shlex.quote(str(beside))
    return f"{shlex.quote(sys.executable)} -m launcher.cli"


def setup(submission: Submission) -> str:
    """Lines of a script that load modules and the virtual environment, and set variables."""
    options = submission.options
    lines = []
    if options.modules:
        lines += [
            "# A job's shell may not have read what defines `module`.",
            'command -v module >/dev/null || . "${LMOD_PKG:-${MODULESHOME:-/usr/share/lmod/lmod}}/init/bash"',
            *(f"module load {shlex.quote(name)}" for name in options.modules),
        ]
    if options.venv is not None:
        lines.append(f". {shlex.quote(absolute(options.venv))}/bin/activate")
    path = python_path({})
    if options.venv is None and options.image is None and path and "-m launcher.cli" in program(submission):
        lines.append(f'export PYTHONPATH={shlex.quote(path)}"${{PYTHONPATH:+:$PYTHONPATH}}"')
    lines += [f"export {name}={shlex.quote(value)}" for name, value in submission.job.env.items()]
    return "\n".join(lines)


def contained(submission: Submission, run: str) -> str:
    """The command inside the container image, where there is one that Slurm itself does not start."""
    options = submission.options
    if options.image is None or options.container == "pyxis":
        return run
    gpus = " --nv" if options.gpus else ""
    return f"{options.container or 'apptainer'} exec{gpus} {shlex.quote(options.image)} {run}"


def check_files(submission: Submission) -> None:
    """Raises `ConfigError` for a virtual environment that is not there, and for folders that are not."""
    options = submission.options
    if options.venv is not None and not (options.venv / "bin" / "activate").is_file():
        raise ConfigError(f"--venv {options.venv}: expected a virtual environment, with a bin/activate in it")
    if options.log is not None and not options.log.is_dir():
        raise ConfigError(f"--log {options.log}: expected a folder that is there")
    if options.container is not None and options.image is None:
        raise ConfigError("--container says what runs a container image: give one with --image")
    if options.venv is not None and options.image is not None:
        raise ConfigError("--venv and --image exclude each other: the image has its own Python")


def paths_of(job: Job) -> list[tuple[str, Path]]:
    """The paths that the ranks are told, with their flags."""
    found = [] if job.model is None else [("the model", job.model)]
    for name, option in OPTIONS.items():
        value = getattr(job, name)
        if isinstance(value, Path) and name != "model":
            found.append((option.flag, value))
    return found + [("--input", Path(text.rpartition("=")[2])) for text in job.inputs]
