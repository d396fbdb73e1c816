"""Kubernetes: manifests for ``kubectl``, of an indexed Job with a headless Service or of an MPIJob."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from launcher.errors import ConfigError, LaunchError
from launcher.starters import marks
from launcher.submission.base import JobSystem, Status, Submission, System, refused
from launcher.submission.command import arguments, paths_of
from launcher.submission.lines import Lines
from launcher.submission.manifests import as_yaml, indexed_job, mpi_job
from launcher.submission.options import SUBMIT
from launcher.submission.tails import ProgramTail, Tail

_LABEL = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?", re.ASCII)
_LONGEST_LABEL = 63
_KEY = re.compile(r"([a-z0-9.-]{1,253}/)?[A-Za-z0-9]([A-Za-z0-9_.-]{,61}[A-Za-z0-9])?", re.ASCII)
_VALUE = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{,61}[A-Za-z0-9])?)?", re.ASCII)
_CREATED = re.compile(r"^(\S+/\S+) created$", re.MULTILINE)
_LONGEST_NAME = 52
"""A pod's name ends in the rank, and is a part of a host's name of at most 63 characters."""
_MOST_LOGS = 32
"""Ranks whose logs are shown: each takes a connection."""
_FINISHED = {"Complete", "SuccessCriteriaMet", "Succeeded"}


class Kubernetes(JobSystem):
    """Hands in jobs with ``kubectl create``, asks with ``kubectl get``, ends them with ``kubectl delete``."""

    name = "kubernetes"
    takes = frozenset(SUBMIT) - {
        *("partition", "account", "array", "directives", "modules", "venv", "container", "mpi", "log"),
    }
    programs = ("kubectl",)

    def __init__(self) -> None:
        self._where: list[str] = []
        self._kind = "job"

    def check(self, submission: Submission) -> None:
        super().check(submission)
        options = submission.options
        if options.image is None:
            raise ConfigError("--kubernetes: say in which container image the ranks run (--image IMAGE)")
        name = submission.name
        if not (_LABEL.fullmatch(name) and name[0].isalpha() and len(name) <= _LONGEST_NAME):
            raise ConfigError(
                f"--name {name}: expected at most {_LONGEST_NAME} of a-z, 0-9 and -, a letter first"
            )
        if options.namespace is not None and not (
            _LABEL.fullmatch(options.namespace) and len(options.namespace) <= _LONGEST_LABEL
        ):
            raise ConfigError(
                f"--namespace {options.namespace}: expected at most {_LONGEST_LABEL} of a-z, 0-9 and -"
            )
        if options.constraint is not None:
            label, equals, value = options.constraint.partition("=")
            if not (equals and _KEY.fullmatch(label) and _VALUE.fullmatch(value)):
                raise ConfigError(
                    f"--constraint {options.constraint}: expected LABEL=VALUE, a label of nodes of Kubernetes"
                )
        if (
            options.gpus is not None
            and (kind := options.gpus.kind)
            and not ("." in kind.partition("/")[0] and "/" in kind and _KEY.fullmatch(kind))
        ):
            raise ConfigError(
                f"--gpus {options.gpus.kind}:{options.gpus.count}: expected a resource of Kubernetes as the "
                "type, such as nvidia.com/gpu"
            )
        if options.kind != "mpijob":
            for name in ("nodes", "tasks_per_node"):
                if getattr(options, name) is not None:
                    raise ConfigError(
                        f"{SUBMIT[name].flag}: a Job has a pod for each rank; give --kind mpijob"
                    )
        paths = [text.partition(":")[2].rstrip("/") or "/" for text in options.volumes]
        if twice := next((path for path in paths if [*paths, "/dev/shm"].count(path) > 1), None):
            raise ConfigError(f"--volume {twice}: something else is mounted there already; name another path")
        for word in (*arguments(submission), *submission.job.env.values()):
            if any("\ud800" <= sign <= "\udfff" for sign in word):
                raise ConfigError(
                    f"{word}: Kubernetes takes UTF-8 only, and this is none; give it another name"
                )
        for flag, path in paths_of(submission.job):
            if not path.is_absolute():
                raise ConfigError(
                    f"{flag} {path}: ranks look for it in the container: expected a path from its root"
                )

    def text(self, submission: Submission) -> str:
        return as_yaml(
            mpi_job(submission) if submission.options.kind == "mpijob" else indexed_job(submission)
        )

    def submit(self, submission: Submission, text: str) -> str:
        options = submission.options
        self._where = [] if options.namespace is None else [f"--namespace={options.namespace}"]
        self._kind = options.kind or "job"
        done = self.ask("kubectl", "create", *self._where, "--filename=-", given=text)
        if not done.returncode:
            return submission.name
        error = refused(done)
        for made in _CREATED.findall(done.stdout):  # it goes on after an object that cannot be made
            self.ask("kubectl", "delete", made, *self._where, "--ignore-not-found", "--wait=false")
        if "AlreadyExists" in str(error):
            raise LaunchError(
                f"{error} Remove that job and its service (`kubectl delete {self._kind},service "
                f"{' '.join([submission.name, *self._where])}`), or give another name with --name."
            )
        raise error

    def status(self, number: str) -> Status:
        said = self.said_of("NotFound", "kubectl", "get", self._kind, number, *self._where, "--output=json")
        if said is None:
            return Status("unknown")
        state = _mapping(_mapping(_json(said)).get("status"))
        for one in _items(state.get("conditions")):
            condition = _mapping(one)
            if condition.get("status") != "True":
                continue
            if condition.get("type") in _FINISHED:
                return Status("done", 0)
            if condition.get("type") == "Failed":
                return self._failed(number, condition)
        counts = [state, *_mapping(state.get("replicaStatuses")).values()]
        running = any(_mapping(one).get("ready") or _mapping(one).get("active") for one in counts)
        return Status("running" if running else "waiting")

    def _failed(self, number: str, condition: Mapping[str, object]) -> Status:
        """The code of the rank that failed first, if a pod still says it."""
        if condition.get("reason") == "DeadlineExceeded":
            return Status("done", None, "reached its time limit (--time)")
        label = "job-name" if self._kind == "job" else "training.kubeflow.org/job-name"
        done = self.ask(
            "kubectl", "get", "pods", f"--selector={label}={number}", *self._where, "--output=json"
        )
        ends = []
        for pod in _items(_mapping(_json(done.stdout)).get("items")):
            for container in _items(_mapping(_mapping(pod).get("status")).get("containerStatuses")):
                ended = _mapping(_mapping(_mapping(container).get("state")).get("terminated"))
                code = ended.get("exitCode")
                if isinstance(code, int) and code:
                    ends.append((str(ended.get("finishedAt")), code))
        if ends:
            return Status("done", min(ends)[1])
        why = " ".join(f"{condition.get('reason', '')} {condition.get('message', '')}".split())
        return Status("done", None, f"failed ({why[:300]})")

    def cancel(self, number: str) -> None:
        self.must("kubectl", "delete", self._kind, number, *self._where, "--ignore-not-found", "--wait=false")
        self.finish(number)

    def finish(self, number: str) -> None:
        """See `JobSystem.finish`: the service is of no use without the job."""
        if self._kind == "job":
            self.must(
                "kubectl", "delete", "service", number, *self._where, "--ignore-not-found", "--wait=false"
            )

    def tails(self, submission: Submission, number: str) -> Tail:
        # Of a pod that a label names, kubectl shows ten lines of those before.
        show = ["kubectl", "logs", "--follow", "--tail=-1", *self._where]
        if self._kind == "mpijob":
            lines = Lines(submission, *marks.OF_MPIRUN)
            return ProgramTail([*show, f"job/{number}-launcher"], lines.shown)
        return _Ranks(
            [
                ProgramTail(
                    [*show, f"--selector=job-name={number},batch.kubernetes.io/job-completion-index={rank}"],
                    Lines(submission, rank=rank, host=f"{submission.name}-{rank}").shown,
                )
                for rank in range(min(submission.ranks, _MOST_LOGS))
            ]
        )


class _Ranks(Tail):
    def __init__(self, tails: list[ProgramTail]) -> None:
        self._tails = tails

    def lines(self) -> list[str]:
        return [line for tail in self._tails for line in tail.lines()]

    def rest(self) -> list[str]:
        return [line for tail in self._tails for line in tail.rest()]

    def close(self) -> None:
        for tail in self._tails:
            tail.close()


def _json(text: str) -> object:
    try:
        return json.loads(text)
    except ValueError:
        return None


def _mapping(value: object) -> Mapping[str, object]:
    return value if isinstance(value, dict) else {}


def _items(value: object) -> list[object]:
    return value if isinstance(value, list) else []


SYSTEM = System(Kubernetes, "manifests for kubectl", in_image=True)
