"""Slurm: a script for ``sbatch``, which starts each rank as a task of one ``srun``."""

from __future__ import annotations

import glob
import re
import shlex
import signal

from launcher.errors import ConfigError, LaunchError
from launcher.job.values import absolute
from launcher.starters import marks
from launcher.submission.base import JobSystem, Phase, Status, Submission, System
from launcher.submission.command import check_files, command, contained, setup
from launcher.submission.lines import Lines, saying_its_host
from launcher.submission.mpi import kind_of_mpi
from launcher.submission.options import SUBMIT, SubmitOptions, written_time
from launcher.submission.tails import FileTail
from ranks.common import sources
from ranks.identity.meeting import FIRST_PORT, PORTS

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./&|*~^()\[\]-]+", re.ASCII)
_FIELD = re.compile(r"(?:^| )(JobState|Reason|ExitCode)=(\S+)")
_JOB = re.compile(r"JobId=(\d+)")
_DONE = {
    "COMPLETED": "",
    "FAILED": "",
    "CANCELLED": "was cancelled",
    "TIMEOUT": "reached its time limit (--time)",
    "DEADLINE": "reached its deadline",
    "OUT_OF_MEMORY": "used more memory than it was given (--mem)",
    "NODE_FAIL": "lost a node",
    "BOOT_FAIL": "ended because its nodes did not start",
    "PREEMPTED": "was ended for another job",
    "REVOKED": "was taken back by another cluster",
}
"""Slurm's states of a job that has ended, and what is said where its own exit does not."""
_RUNNING = {"RUNNING", "COMPLETING", "STAGE_OUT", "SIGNALING", "SUSPENDED", "STOPPED"}
_LONGEST_NAME = 200
"""Bytes of the log's name; file systems take 255, with the number and the ending."""
_NO_LOG = 53  # what Slurm says in the place of a signal

SCRIPT = """\
#!/bin/bash
{directives}
set -e
{setup}# Where the ranks meet when they run on several nodes, and what only they know.
# This script runs on the first node, as rank 0 will.
MASTER_ADDR=$(scontrol -o show node "$SLURMD_NODENAME" | sed -n 's/.* NodeAddr=\\([^ ]*\\).*/\\1/p')
[ -n "$MASTER_ADDR" ] || MASTER_ADDR=$SLURMD_NODENAME
MASTER_PORT=$(({first} + SLURM_JOB_ID % {ports}))
SHARDRUN_JOB=$(od -An -N16 -tx1 /dev/urandom | tr -d ' \\n')
export MASTER_ADDR MASTER_PORT SHARDRUN_JOB

# srun ends the other ranks when one has failed, and then with the code of those: the first one's counts.
first_end() {{
  local line code=0
  while IFS= read -r line || [ -n "$line" ]; do
    printf '%s\\n' "$line" >&2
    [ "$code" -eq 0 ] || continue
    case $line in
      "srun: error: "*": task"*": Exited with exit code "*) code=${{line##* }} ;;
{signals}
    esac
  done
  return "$code"
}}
set +e
{{
  {run} \\
    2>&1 >&3 3>&- | first_end
  set -- "${{PIPESTATUS[@]}}"
}} 3>&1
[ "$2" -eq 0 ] || exit "$2"
exit "$1"
"""
_SIGNALS = {
    signal.SIGKILL: "Killed",
    signal.SIGSEGV: "Segmentation fault",
    signal.SIGABRT: "Aborted",
    signal.SIGBUS: "Bus error",
    signal.SIGTERM: "Terminated",
    signal.SIGILL: "Illegal instruction",
}
"""As srun names them."""


class Slurm(JobSystem):
    """Hands in jobs with ``sbatch``, asks with ``scontrol``, ends them with ``scancel``."""

    name = "slurm"
    takes = frozenset(SUBMIT) - {"kind", "namespace", "volumes", "shm"}
    programs = ("sbatch", "scontrol", "scancel")

    def __init__(self) -> None:
        self._ended: dict[str, Status] = {}
        """How jobs have ended: Slurm forgets one of an array after minutes, while others may run for days."""

    def check(self, submission: Submission) -> None:
        super().check(submission)
        check_files(submission)
        for text in submission.options.directives:
            if not text.startswith("--") or len(text.split()) != 1:
                raise ConfigError(f"--directive {text}: expected one option of sbatch, as --qos=high")
        kind_of_mpi(submission)
        folder = _folder(submission.options)
        if re.search(r"[\\\x00-\x1f\x7f]", folder):
            raise ConfigError(
                f"--log {folder}: a path with a backslash or a control character says something else to "
                "Slurm; name another folder"
            )

    def text(self, submission: Submission) -> str:
        made = setup(submission)
        return SCRIPT.format(
            directives="".join(f"#SBATCH {text}\n" for text in _directives(submission)),
            setup=f"{made}\n\n" if made else "",
            first=FIRST_PORT,
            ports=PORTS,
            signals="\n".join(
                f'      "srun: error: "*": task"*": {text}"*) code={128 + number} ;;'
                for number, text in _SIGNALS.items()
            ),
            run=_run(submission),
        )

    def submit(self, submission: Submission, text: str) -> str:
        said = self.must("sbatch", "--parsable", given=text)
        number = said.strip().split("\n")[-1].partition(";")[0]
        if not number.isdecimal():
            raise LaunchError(f"sbatch took the job, but does not say its number (it said {said[:80]!r}).")
        return number

    def status(self, number: str) -> Status:
        """See `JobSystem.status`; of an array, the worst of its jobs."""
        said = self.said_of("Invalid job id", "scontrol", "-o", "show", "job", number)
        if said is None:
            return self._worst()
        goes: list[Status] = []
        for line in filter(str.strip, said.splitlines()):
            one, job = _status(line), _JOB.match(line)
            name = "" if job is None else job[1]
            if one.phase == "done":
                self._ended[name] = one
            else:
                self._ended.pop(name, None)  # it may be started again
                goes.append(one)
        return next(
            (one for phase in ("running", "waiting") for one in goes if one.phase == phase), self._worst()
        )

    def _worst(self) -> Status:
        found = [self._ended[name] for name in sorted(self._ended, key=int)]
        if not found:
            return Status("unknown")
        return next((one for one in found if one.why), max(found, key=lambda one: one.code or 0))

    def cancel(self, number: str) -> None:
        self.must("scancel", number)

    def tails(self, submission: Submission, number: str) -> FileTail:
        stem = glob.escape(f"{_folder(submission.options)}/{_file_name(submission)}-{number}")
        if submission.options.array is None:
            return FileTail(f"{stem}.log", lambda path: Lines(submission, marks.SRUN).shown)
        return FileTail(
            f"{stem}_*.log",
            lambda path: Lines(submission, marks.SRUN, job=path.stem.rpartition("_")[2]).shown,
        )


def _status(record: str) -> Status:
    said = dict(_FIELD.findall(record))
    state = said.get("JobState", "")
    if state not in _DONE:
        phase: Phase = "running" if state in _RUNNING else "waiting"
        reason = said.get("Reason", "None")
        return Status(phase, why="" if reason == "None" or phase == "running" else reason)
    code, _, number = said.get("ExitCode", "").partition(":")
    why = _DONE[state]
    if number.isdecimal() and int(number) and not why:
        why = _killed(int(number))
    return Status("done", int(code) if code.isdecimal() else None, why)


def _killed(number: int) -> str:
    if number == _NO_LOG:
        return "did not start: its node cannot write the log; name another folder with --log"
    names = {one.value: one.name for one in signal.Signals}
    return f"was killed by {names.get(number, f'signal {number}')}"


def _directives(submission: Submission) -> list[str]:
    options = submission.options
    kind = f"{options.gpus.kind}:" if options.gpus and options.gpus.kind else ""
    file = f"{_folder(options)}/{_file_name(submission)}".replace("%", "%%")
    log = f"{file}-%A_%a.log" if options.array is not None else f"{file}-%j.log"
    asked: list[tuple[str, str | int | None]] = [
        ("job-name", submission.name),
        ("partition", options.partition),
        ("account", options.account),
        ("time", None if options.time is None else written_time(options.time)),
        ("nodes", submission.nodes),
        ("ntasks", submission.ranks),
        ("ntasks-per-node", submission.per_node),
        ("cpus-per-task", options.cpus),
        ("mem", None if options.mem is None else f"{-(-options.mem // 1024)}K"),
        ("constraint", options.constraint),
        ("array", options.array),
        ("output", log),
    ]
    if options.gpus is not None and submission.per_node is not None:
        asked.append(("gpus-per-node", f"{kind}{options.gpus.count * submission.per_node}"))
    elif options.gpus is not None:
        asked.append(("gpus", f"{kind}{options.gpus.count * submission.ranks}"))
    found = [f"--{name}={_directive(str(value))}" for name, value in asked if value is not None]
    found.append("--requeue" if options.requeue else "--no-requeue")
    return found + [_option(text) for text in options.directives]


def _directive(text: str) -> str:
    """A value of an ``#SBATCH`` line, which sbatch reads with quotes and backslashes of its own."""
    if _PLAIN.fullmatch(text):
        return text
    return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


def _option(text: str) -> str:
    name, equals, value = text.partition("=")
    return f"{name}={_directive(value)}" if equals else _directive(text)


def _run(submission: Submission) -> str:
    options = submission.options
    words = ["srun", "--label", "--kill-on-bad-exit=1", "--export=ALL", f"--mpi={kind_of_mpi(submission)}"]
    if options.cpus is not None:  # srun does not take it from sbatch
        words.append(f"--cpus-per-task={options.cpus}")
    if options.image is not None and options.container == "pyxis":
        words.append(f"--container-image={shlex.quote(options.image)}")
    index = sources.SLURM_ARRAY_TASK_ID if options.array is not None else ""
    return f"{' '.join(words)} {saying_its_host(contained(submission, command(submission, index)))}"


def _folder(options: SubmitOptions) -> str:
    return absolute(options.log or ".")


def _file_name(submission: Submission) -> str:
    """The job's name, as far as it can be a part of a file's."""
    name = re.sub(r"[/\\\0]", "-", submission.name).encode("utf-8", "surrogateescape")[:_LONGEST_NAME]
    return name.decode("utf-8", "ignore")


SYSTEM = System(Slurm, "a script for sbatch")
