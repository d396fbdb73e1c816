"""PBS: a script for ``qsub``, which runs the ranks of one node itself, and those of several by mpirun."""

from __future__ import annotations

import glob
import re
import shlex
import signal

from launcher.errors import ConfigError, LaunchError
from launcher.job.values import absolute
from launcher.starters import marks
from launcher.submission import mpirun
from launcher.submission.base import JobSystem, Status, Submission, System
from launcher.submission.command import arguments, check_files, contained, program, quoted, setup
from launcher.submission.lines import Lines, saying_its_host
from launcher.submission.options import SUBMIT, written_time
from launcher.submission.tails import FileTail
from ranks.common import sources
from sharding.common.ranges import in_ranges

_PLAIN = re.compile(r"[A-Za-z0-9_@%+=:,./~-]+", re.ASCII)
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.+-]{0,229}", re.ASCII)
_FIELD = re.compile(r"^    (job_state|Exit_status|comment) = (.*)$", re.MULTILINE)
_DONE = {"F", "C", "X"}
_RUNNING = {"R", "E", "B", "S", "U"}

SCRIPT = """\
#!/bin/bash
{directives}
set -e
cd -- "$PBS_O_WORKDIR"
# PBS itself would show what is printed when the job has ended only.
exec >{log} 2>&1
{setup}{run}
"""
SEVERAL = """\
# Where the ranks meet, should it not be by MPI.
MASTER_ADDR=$(head -n 1 "$PBS_NODEFILE")
MASTER_PORT=$((20000 + (${{PBS_JOBID%%[!0-9]*}} + ${{PBS_ARRAY_INDEX:-0}}) % 10000))
export MASTER_ADDR MASTER_PORT
{named}
{choice}
exec mpirun -n {ranks} "$@" \\
  {command}"""


class Pbs(JobSystem):
    """Hands in jobs with ``qsub``, asks with ``qstat``, ends them with ``qdel``."""

    name = "pbs"
    takes = frozenset(SUBMIT) - {"kind", "namespace", "volumes", "shm", "mpi"}
    programs = ("qsub", "qstat", "qdel")

    def check(self, submission: Submission) -> None:
        super().check(submission)
        check_files(submission)
        options = submission.options
        if options.container == "pyxis":
            raise ConfigError("--container pyxis is a part of Slurm: expected apptainer or singularity")
        if not _NAME.fullmatch(submission.name):
            raise ConfigError(
                f"--name {submission.name}: PBS takes letters, digits and _ . + - only, a letter first"
            )
        if options.array is not None and not re.fullmatch(r"\d+-\d+(:\d+)?(%\d+)?", options.array):
            raise ConfigError(f"--array {options.array}: PBS takes one range, such as 0-3 or 0-30:10%2")
        for name in ("partition", "account", "constraint"):
            value = getattr(options, name)
            if value is not None and not _PLAIN.fullmatch(value):
                raise ConfigError(
                    f"{SUBMIT[name].flag} {value}: PBS can be told letters, digits and _@%+=:,./~- only"
                )
        for text in options.directives:
            if not re.fullmatch(r"-[A-Za-z]( [!-~]+)?", text):
                raise ConfigError(f"--directive {text}: expected one option of qsub, as '-l place=excl'")
        if options.gpus is not None and options.gpus.kind:
            raise ConfigError(
                f"--gpus {options.gpus.kind}:{options.gpus.count}: PBS has no types of GPUs; give "
                "their number, and with --constraint what nodes of that type have"
            )
        if submission.per_node is None and self._nodes(submission) > 1:
            raise ConfigError(
                f"--nodes {options.nodes}: PBS gives all nodes alike, and {submission.ranks} ranks "
                "cannot be shared out evenly"
            )

    @staticmethod
    def _nodes(submission: Submission) -> int:
        return submission.nodes or 1

    def text(self, submission: Submission) -> str:
        made = setup(submission)
        return SCRIPT.format(
            directives="".join(f"#PBS {text}\n" for text in self._directives(submission)),
            log=f'{shlex.quote(_stem(submission))}-"${{PBS_JOBID%%.*}}".log',
            setup=f"{made}\n" if made else "",
            run=self._run(submission),
        )

    def _directives(self, submission: Submission) -> list[str]:
        options = submission.options
        each = submission.per_node or submission.ranks
        chunk = f"select={self._nodes(submission)}:ncpus={each * (options.cpus or 1)}:mpiprocs={each}"
        if options.gpus is not None:
            chunk += f":ngpus={each * options.gpus.count}"
        if options.mem is not None:
            chunk += f":mem={-(-options.mem // 1024)}kb"
        if options.constraint is not None:
            chunk += f":{options.constraint}"
        asked = [
            ("-N", submission.name),
            ("-q", options.partition),
            ("-A", options.account),
            ("-l", chunk),
            ("-l", None if options.time is None else f"walltime={written_time(options.time)}"),
            ("-J", options.array),
            ("-r", "y" if options.requeue else "n"),
        ]
        found = [f"{flag} {value}" for flag, value in asked if value is not None]
        return [*found, "-j oe", "-o /dev/null", *options.directives]

    def _run(self, submission: Submission) -> str:
        index = sources.PBS_ARRAY_INDEX if submission.options.array is not None else ""
        words = arguments(submission)
        if self._nodes(submission) == 1:  # the ranks are this command's own
            words = [word for word in words if word != "--launcher=external"]
            words += [f"--launcher={_starter(submission)}", f"--ranks={submission.ranks}"]
            tee, as_json = submission.job.tee, submission.job.log_json
            words += [*([] if tee is None else [f"--tee={in_ranges(tee)}"]), *["--log-json"] * as_json]
        whole = " ".join([program(submission), *(quoted(word, index) for word in words)])
        whole = contained(submission, whole)
        if self._nodes(submission) == 1:
            return f"exec {whole}"
        return SEVERAL.format(
            named=mpirun.NAMED,
            choice=mpirun.choice('"$PBS_NODEFILE"', submission.job.env),
            ranks=submission.ranks,
            command=saying_its_host(whole),
        )

    def submit(self, submission: Submission, text: str) -> str:
        said = self.must("qsub", given=text).strip()
        if not re.fullmatch(r"\d+(\[\])?(\.[\w.-]+)?", said):
            raise LaunchError(f"qsub took the job, but does not say its number (it said {said[:80]!r}).")
        return said

    def status(self, number: str) -> Status:
        said = self.said_of("Unknown Job", "qstat", "-x", "-f", number)
        if said is None:
            return Status("unknown")
        fields = dict(_FIELD.findall(said))
        state = fields.get("job_state", "").strip()
        if state in _DONE:
            return _ended(fields.get("Exit_status", "").strip())
        if state in _RUNNING:
            return Status("running")
        return Status("waiting", why=fields.get("comment", "").strip())

    def cancel(self, number: str) -> None:
        self.must("qdel", number)

    def tails(self, submission: Submission, number: str) -> FileTail:
        begin, _, _ = number.partition(".")
        stem = glob.escape(_stem(submission))
        if not begin.endswith("[]"):
            return FileTail(f"{stem}-{begin}.log", lambda path: Lines(submission, *marks.OF_MPIRUN).shown)
        return FileTail(
            f"{stem}-{glob.escape(begin[:-1])}*{glob.escape(']')}.log",
            lambda path: (
                Lines(submission, *marks.OF_MPIRUN, job=path.stem.rpartition("[")[2].rstrip("]")).shown
            ),
        )


def _starter(submission: Submission) -> str:
    """What starts the ranks of one node."""
    from ranks.collectives import BACKENDS

    asked = submission.job.collectives or "auto"
    return "mpirun" if asked != "auto" and BACKENDS[asked].by_mpi else "local"


def _ended(text: str) -> Status:
    if not re.fullmatch(r"-?\d+", text):
        return Status("done", None, "ended before it had run, or was deleted")
    code = int(text)
    if code < 0:
        return Status("done", None, f"could not be started by PBS (its code {code})")
    number = code - 256 if code > 256 else code - 128
    if code >= 128 and 0 < number < signal.NSIG:
        return Status("done", 128 + number)
    return Status("done", code & 0xFF)


def _stem(submission: Submission) -> str:
    """The log without its number."""
    return f"{absolute(submission.options.log or '.')}/{submission.name}"


SYSTEM = System(Pbs, "a script for qsub")
