"""Programs with the names of Slurm's, which run jobs on this machine: enough for scripts and followers.

`install` writes them into a folder; each is this file, told its name. A job is files with its number: its
script, the process that runs it, and its state as ``scontrol`` shows it.
"""

from __future__ import annotations

import ctypes
import os
import shlex
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

NAMES = ("sbatch", "scontrol", "scancel", "srun")
NODES = ("h1", "h2")
# Who follows a job asks for its state again and again: a shell answers sooner than Python.
_STATE = """\
state="$STAND_IN_JOBS/$4.state"
[ "$1 $2 $3" = "-o show job" ] && [ -e "$state" ] && exec cat "$state"
"""


def install(folder: Path) -> dict[str, str]:
    """Writes the programs; gives the variables with which they are found."""
    programs, state = folder / "bin", folder / "jobs"
    programs.mkdir()
    state.mkdir()
    for name in NAMES:
        quick = _STATE if name == "scontrol" else ""
        (programs / name).write_text(f'#!/bin/sh\n{quick}exec "{sys.executable}" "{__file__}" {name} "$@"\n')
        (programs / name).chmod(0o755)
    return {"PATH": f"{programs}:{os.environ['PATH']}", "STAND_IN_JOBS": str(state)}


def _jobs() -> Path:
    return Path(os.environ["STAND_IN_JOBS"])


def _set(number: str, state: str, code: str = "0:0") -> None:
    new = _jobs() / f"{number}.new"
    new.write_text(
        f"JobId={number} JobName=x JobState={state} Reason=None Requeue=0 ExitCode={code} RunTime=0\n"
    )
    new.rename(_jobs() / f"{number}.state")


def sbatch(arguments: list[str]) -> int:
    assert arguments == ["--parsable"]
    script = sys.stdin.read()
    asked = {}
    for line in script.splitlines():
        if line.startswith("#SBATCH "):
            (word,) = shlex.split(line.removeprefix("#SBATCH "))
            name, _, value = word.removeprefix("--").partition("=")
            asked[name] = value
    number = str(len(list(_jobs().glob("*.sh"))) + 1)
    (_jobs() / f"{number}.sh").write_text(script)
    _set(number, "PENDING")
    if os.fork() == 0:
        os.setsid()
        for descriptor, mode in ((0, os.O_RDONLY), (1, os.O_WRONLY), (2, os.O_WRONLY)):
            os.dup2(os.open(os.devnull, mode), descriptor)
        _run(number, asked)
        os._exit(0)
    print(number)
    return 0


def _run(number: str, asked: dict[str, str]) -> None:
    indices = range(1)
    if "array" in asked:
        first, last = asked["array"].split("-")
        indices = range(int(first), int(last) + 1)
    codes = []
    for index in indices:
        log = asked["output"].replace("%%", "\0").replace("%j", number).replace("%A", number)
        log = log.replace("%a", str(index)).replace("\0", "%")
        more = {"SLURM_JOB_ID": number, "SLURMD_NODENAME": "h1", "SLURM_JOB_NODELIST": "h[1-2]"}
        more["SLURM_NTASKS"], more["SLURM_NNODES"] = asked["ntasks"], asked.get("nodes", "1")
        if "array" in asked:
            more["SLURM_ARRAY_TASK_ID"] = str(index)
        with Path(log).open("wb") as file:
            process = subprocess.Popen(
                ["bash", str(_jobs() / f"{number}.sh")], stdout=file, stderr=file, env={**os.environ, **more},
                start_new_session=True,
            )  # fmt: skip
            (_jobs() / f"{number}.pid").write_text(str(process.pid))
            _set(number, "RUNNING")
            codes.append(process.wait())
    if (_jobs() / f"{number}.cancelled").exists():
        _set(number, "CANCELLED", "0:15")
    else:
        _set(number, "FAILED" if max(codes) else "COMPLETED", f"{max(codes)}:0")


def scancel(arguments: list[str]) -> int:
    (number,) = arguments
    (_jobs() / f"{number}.cancelled").touch()
    os.killpg(int((_jobs() / f"{number}.pid").read_text()), signal.SIGTERM)
    return 0


def scontrol(arguments: list[str]) -> int:
    if arguments[:3] == ["-o", "show", "job"]:
        print("slurm_load_jobs error: Invalid job id specified", file=sys.stderr)
        return 1  # else the shell has answered
    assert arguments[:3] == ["-o", "show", "node"]
    print(f"NodeName={arguments[3]} Arch=x86_64 NodeAddr=127.0.0.1 NodeHostName=here Version=22")
    return 0


def srun(arguments: list[str]) -> int:
    """Tasks with labels before their lines; when one fails, the others are ended."""
    ctypes.CDLL(None).prctl(15, b"slurmstepd", 0, 0, 0)  # the name of what starts tasks in Slurm
    while arguments[0].startswith("--"):
        arguments = arguments[1:]
    size, nodes = int(os.environ["SLURM_NTASKS"]), int(os.environ["SLURM_NNODES"])
    each = -(-size // nodes)
    tasks, readers = [], []
    for rank in range(size):
        more = {
            "SLURM_STEP_ID": "0", "SLURM_PROCID": str(rank), "SLURM_LOCALID": str(rank % each),
            "SLURM_NODEID": str(rank // each), "SLURM_STEP_NUM_TASKS": str(size),
            "SLURM_STEP_TASKS_PER_NODE": f"{each}(x{nodes})" if nodes > 1 else str(each),
        }  # fmt: skip
        task = subprocess.Popen(
            arguments, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env={**os.environ, **more}
        )
        for stream, out in ((task.stdout, sys.stdout), (task.stderr, sys.stderr)):
            readers.append(threading.Thread(target=_label, args=(rank, stream, out)))
            readers[-1].start()
        tasks.append(task)
    ended: dict[int, int] = {}
    while len(ended) < size:
        for rank, task in enumerate(tasks):
            if rank not in ended and task.poll() is not None:
                ended[rank] = task.returncode
                if task.returncode:
                    how = f"Exited with exit code {task.returncode}" if task.returncode > 0 else "Killed"
                    print(f"srun: error: h1: task {rank}: {how}", file=sys.stderr, flush=True)
                    for other in tasks:
                        other.terminate()
        time.sleep(0.02)
    for reader in readers:
        reader.join()
    return max(code if code >= 0 else 128 - code for code in ended.values())


def _label(rank: int, stream, out) -> None:
    for line in stream:
        print(f"{rank}: {line}", end="", file=out, flush=True)


if __name__ == "__main__":
    sys.exit(globals()[sys.argv[1]](sys.argv[2:]))
