"""What a job system is: one class that writes a job, hands it in, and says how it goes.

Following the log, Ctrl-C and the exit code are common code above it (`launcher.submission.follow`). A new job
system is one module in `launcher.submission.systems`, with a `System` in it, or an entry point of the group
``shardrun.systems`` that another package brings.
"""

from __future__ import annotations

import math
import re
import subprocess
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Literal

from launcher.errors import ConfigError, LaunchError
from launcher.submission.names import SYSTEMS
from launcher.submission.options import SUBMIT, SubmitOptions
from ranks.common.sources import alone
from sharding.common.registry import Registry

if TYPE_CHECKING:
    from launcher.job.job import Job
    from launcher.submission.tails import Tail

SECONDS = 60.0
"""How long a program of a job system may take to answer."""

Phase = Literal["waiting", "running", "done", "unknown"]


@dataclass(frozen=True)
class Submission:
    """A job to hand in: what runs, on how many ranks, and what the job system is told of it."""

    job: Job
    ranks: int
    options: SubmitOptions

    def __post_init__(self) -> None:
        nodes, each = self.options.nodes, self.options.tasks_per_node
        if nodes is not None and nodes > self.ranks:
            raise ConfigError(
                f"--nodes {nodes}: expected at most one node for each of the {self.ranks} ranks"
            )
        if nodes is not None and each is not None and not nodes * each >= self.ranks > (nodes - 1) * each:
            raise ConfigError(
                f"--tasks-per-node {each}: {self.ranks} ranks on {nodes} nodes do not come to {each} a node; "
                "leave out one of --nodes and --tasks-per-node"
            )

    @property
    def nodes(self) -> int | None:
        """On how many nodes the ranks run; None where the job system decides."""
        if self.options.nodes is not None or self.options.tasks_per_node is None:
            return self.options.nodes
        return math.ceil(self.ranks / self.options.tasks_per_node)

    @property
    def per_node(self) -> int | None:
        """Ranks on each node; None where that is not the same on all, or the job system decides."""
        if self.options.tasks_per_node is not None:
            return self.options.tasks_per_node
        nodes = self.options.nodes
        return self.ranks // nodes if nodes is not None and self.ranks % nodes == 0 else None

    @property
    def name(self) -> str:
        """The job's name: the one given, or the model's without what names of jobs must not hold."""
        if self.options.name is not None:
            return self.options.name
        stem = self.job.model.stem if self.job.model is not None else ""
        return re.sub(r"[^A-Za-z0-9]+", "-", stem).strip("-").lower()[:40].strip("-") or "shardrun"


@dataclass(frozen=True)
class Status:
    """How a job goes. ``code``: with what it ended, where that is a number. ``why``: what holds it up, or
    what ended it if that is not its own exit, as the end of a sentence."""

    phase: Phase
    code: int | None = None
    why: str = ""


class JobSystem(ABC):
    """Writes jobs of one job system and hands them in."""

    name: str
    takes: frozenset[str]
    """The options of `SubmitOptions` that it knows, besides ``name``."""
    programs: Sequence[str]
    """What must be on PATH to hand in a job."""

    def check(self, submission: Submission) -> None:
        """Raises `ConfigError` for what this job system cannot do."""
        for name in submission.options.given:
            if name not in self.takes and name != "name":
                raise ConfigError(f"{SUBMIT[name].flag}: --{self.name} has no such option; leave it out")

    @abstractmethod
    def text(self, submission: Submission) -> str:
        """What is handed in: a script, or manifests."""

    @abstractmethod
    def submit(self, submission: Submission, text: str) -> str:
        """Hands it in; gives what the job is called from then on. Raises `LaunchError`."""

    @abstractmethod
    def status(self, number: str) -> Status:
        """How the job goes; ``unknown`` where the job system does not know it (any more). Raises
        `LaunchError` where it does not answer."""

    @abstractmethod
    def cancel(self, number: str) -> None:
        """Ends the job. Raises `LaunchError`."""

    def finish(self, number: str) -> None:  # noqa: B027 - most leave nothing that is in the way
        """Removes what a job that has ended leaves in the job system. Raises `LaunchError`."""

    @abstractmethod
    def tails(self, submission: Submission, number: str) -> Tail:
        """What the job prints."""

    def ask(
        self, *command: str, given: str | None = None, seconds: float = SECONDS
    ) -> subprocess.CompletedProcess[str]:
        """Runs one of its programs to its end. Raises `LaunchError` where that is not there, or hangs."""
        try:
            return subprocess.run(
                command, input=given, stdin=None if given is not None else subprocess.DEVNULL,
                capture_output=True, text=True, errors="surrogateescape", timeout=seconds, check=False,
                env=alone(),
                start_new_session=True,  # a Ctrl-C in the terminal is ours to act on
            )  # fmt: skip
        except FileNotFoundError:
            raise LaunchError(
                f"There is no {command[0]} on PATH: submit where the job system's programs are, or print the "
                "job with --dry-run and hand it in there."
            ) from None
        except subprocess.TimeoutExpired:
            raise LaunchError(f"`{command[0]}` gave no answer within {seconds:.0f} s.") from None
        except OSError as error:
            raise LaunchError(f"`{command[0]}` cannot be started: {error.strerror or error}.") from None

    def said_of(self, unknown: str, *command: str) -> str | None:
        """What one of its programs says of a job; None where it fails with the words of an ``unknown`` one.
        Raises `LaunchError`."""
        done = self.ask(*command)
        if not done.returncode:
            return done.stdout
        said = " ".join((done.stderr + done.stdout).split())
        if unknown in said:
            return None
        raise LaunchError(f"`{' '.join(command)}` failed ({said[:300]}).")

    def must(self, *command: str, given: str | None = None) -> str:
        """What one of its programs prints. Raises `LaunchError` with what it says where it fails."""
        done = self.ask(*command, given=given)
        if done.returncode:
            raise refused(done)
        return done.stdout


def refused(done: subprocess.CompletedProcess[str]) -> LaunchError:
    """The error to raise for a program that failed, with what it says."""
    said = " ".join((done.stderr.strip() or done.stdout.strip()).split())[:600]
    return LaunchError(
        f"`{done.args[0]}` refused ({said or f'exit code {done.returncode}, and not a word'})."
    )


@dataclass(frozen=True)
class System:
    """One job system: a module of `launcher.submission.systems` holds one, and has its name."""

    make: Callable[[], JobSystem]
    meaning: str = ""
    """What ``--help`` says of it."""
    in_image: bool = False
    """Whether jobs always run in a container image, whose files are not those here."""


REGISTRY = Registry(SYSTEMS, System)
