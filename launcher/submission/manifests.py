"""The objects of Kubernetes that run a job: an indexed Job with its headless Service, or an MPIJob."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import TYPE_CHECKING, TypeAlias

from launcher.common.mpi_library import AS_ROOT
from launcher.submission.command import arguments
from launcher.submission.lines import HOST_SAYING
from launcher.submission.mpirun import NAMED, choice
from ranks.common import sources

if TYPE_CHECKING:
    from launcher.submission.base import Submission

Object: TypeAlias = dict[str, object]

PORT = 29500
SHM = 1 << 30
HOSTS = "/etc/mpi/hostfile"
"""Where the MPI operator puts the names of the workers."""
_PLAIN = re.compile(r"[A-Za-z/][A-Za-z0-9/_.-]*(:[A-Za-z0-9/_.-]+)*", re.ASCII)
_WORDS = {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
_INDEX = "batch.kubernetes.io/job-completion-index"
_RETRIES = 3  # for each rank, where a job may be started again
_SSHD = ["/usr/sbin/sshd", "-De"]
_SLOTS = "/tmp/hosts"
"""The same as MPICH and Intel MPI read it; the operator writes it for Open MPI."""
_LAUNCH = """\
MASTER_ADDR=$(sed -n '1s/[ :].*//;1p;q' {hosts})
MASTER_PORT={port}
export MASTER_ADDR MASTER_PORT
{named}
sed 's/ *slots=/:/' {hosts} >{slots}
run() {{ exec mpirun -n {ranks} "$@"; }}
# No variable here may have the name of one of the ranks'.
run $({choice}; printf '%s ' "$@") "$@"
"""


def indexed_job(submission: Submission) -> list[Object]:
    """A pod for each rank; they find rank 0 by the name that the Service gives it."""
    name, ranks, options = submission.name, submission.ranks, submission.options
    environment: list[Object] = [
        {"name": sources.RANK, "valueFrom": {"fieldRef": {"fieldPath": f"metadata.annotations['{_INDEX}']"}}},
        *_values(
            **{
                sources.WORLD_SIZE: f"{ranks}", sources.LOCAL_RANK: "0", sources.LOCAL_WORLD_SIZE: "1",
                sources.MASTER_ADDR: f"{name}-0.{name}", sources.MASTER_PORT: f"{PORT}",
            },
        ),
        *_values(**submission.job.env),
    ]  # fmt: skip
    container: Object = {
        "command": ["shardrun"],
        "args": [_literal(word) for word in arguments(submission)],
        "env": environment,
        "ports": [{"containerPort": PORT}],
    }
    spec: Object = {
        "completions": ranks,
        "parallelism": ranks,
        "completionMode": "Indexed",
        "backoffLimit": _RETRIES * ranks if options.requeue else 0,
        "template": _pod(submission, container, subdomain=name),
    }
    if options.time is not None:
        spec["activeDeadlineSeconds"] = options.time
    service: Object = {
        "apiVersion": "v1",
        "kind": "Service",
        "metadata": _metadata(submission),
        "spec": {
            "clusterIP": "None",
            "selector": {"job-name": name},
            "ports": [{"port": PORT}],
            # The others look for rank 0 before it is ready.
            "publishNotReadyAddresses": True,
        },
    }
    job: Object = {"apiVersion": "batch/v1", "kind": "Job", "metadata": _metadata(submission), "spec": spec}
    return [service, job]


def mpi_job(submission: Submission) -> list[Object]:
    """An MPIJob: workers that wait for ssh, and a launcher that runs mpirun over them."""
    options, each = submission.options, submission.per_node or 1
    workers = submission.nodes or -(-submission.ranks // each)
    script = _LAUNCH.format(
        hosts=HOSTS, slots=_SLOTS, port=PORT, ranks=submission.ranks, named=NAMED,
        choice=choice(HOSTS, submission.job.env, slots=_SLOTS).replace("\n", "\n  "),
    )  # fmt: skip
    launcher: Object = {
        "command": ["sh", "-c", _literal(script), "sh"],
        "args": [_literal(word) for word in (*HOST_SAYING, "shardrun", *arguments(submission))],
        "env": _values(**{**AS_ROOT, **submission.job.env}),
    }
    policy: Object = {
        "cleanPodPolicy": "Running",
        "backoffLimit": _RETRIES * submission.ranks if options.requeue else 0,
    }
    if options.time is not None:
        policy["activeDeadlineSeconds"] = options.time
    launching = _pod(submission, launcher, works=False)
    working = _pod(submission, {"command": _SSHD}, each=each)
    return [
        {
            "apiVersion": "kubeflow.org/v2beta1",
            "kind": "MPIJob",
            "metadata": _metadata(submission),
            "spec": {
                "slotsPerWorker": each,
                "runPolicy": policy,
                "mpiReplicaSpecs": {
                    "Launcher": {"replicas": 1, "restartPolicy": "Never", "template": launching},
                    "Worker": {"replicas": workers, "restartPolicy": "Never", "template": working},
                },
            },
        }
    ]


def as_yaml(objects: Sequence[Object]) -> str:
    """Manifests as YAML that is read alike by all its versions: kubectl's takes more words for truth values
    and numbers than PyYAML's, such as y and 1e3, so every text that may be one stands in quotes."""
    import yaml

    class Dumper(yaml.SafeDumper):
        """The dumper of manifests, whose lists and mappings are never the same object."""

        def ignore_aliases(self, data: object) -> bool:
            return True

    def quoted(dumper: Dumper, text: str) -> yaml.ScalarNode:
        plain = _PLAIN.fullmatch(text) is not None and text.lower() not in _WORDS
        return dumper.represent_scalar("tag:yaml.org,2002:str", text, style=None if plain else '"')

    Dumper.add_representer(str, quoted)
    return str(yaml.dump_all(objects, Dumper=Dumper, sort_keys=False, width=100, allow_unicode=True))


def _metadata(submission: Submission) -> Object:
    found: Object = {"name": submission.name, "labels": {"app.kubernetes.io/managed-by": "shardrun"}}
    if submission.options.namespace is not None:
        found["namespace"] = submission.options.namespace
    return found


def _pod(
    submission: Submission, container: Object, *, each: int = 1, works: bool = True, subdomain: str = ""
) -> Object:
    """The template of a pod that runs ``each`` ranks; without ``works`` none."""
    options = submission.options
    mounts: list[Object] = [{"name": "shm", "mountPath": "/dev/shm"}]
    volumes: list[Object] = [
        {"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": f"{options.shm or SHM}"}}
    ]
    for number, text in enumerate(options.volumes):
        claim, _, path = text.partition(":")
        mounts.append({"name": f"claim-{number}", "mountPath": path})
        volumes.append({"name": f"claim-{number}", "persistentVolumeClaim": {"claimName": claim}})
    whole: Object = {"name": "rank" if works else "launcher", "image": options.image, **container}
    limits = _limits(submission, each) if works else {}
    if limits:
        # Limits without requests: what is limited is also asked for.
        whole["resources"] = {"limits": limits}
    whole["volumeMounts"] = mounts
    spec: Object = {"restartPolicy": "Never", "containers": [whole], "volumes": volumes}
    if subdomain:
        spec["subdomain"] = subdomain
    if options.constraint is not None:
        label, _, value = options.constraint.partition("=")
        spec["nodeSelector"] = {label: value}
    return {"metadata": {"labels": {"app.kubernetes.io/name": submission.name}}, "spec": spec}


def _limits(submission: Submission, each: int) -> Object:
    options = submission.options
    limits: Object = {}
    if options.cpus is not None:
        limits["cpu"] = f"{options.cpus * each}"
    if options.mem is not None:
        limits["memory"] = f"{options.mem}"
    if options.gpus is not None:
        limits[options.gpus.kind or "nvidia.com/gpu"] = f"{options.gpus.count * each}"
    return limits


def _values(**values: str) -> list[Object]:
    return [{"name": name, "value": _literal(value)} for name, value in values.items()]


def _literal(word: str) -> str:
    """A word that Kubernetes leaves as it is: it puts a variable for ``$(NAME)``, and ``$`` for ``$$``."""
    return word.replace("$", "$$")
