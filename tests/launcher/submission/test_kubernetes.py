"""Manifests against the schemas that Kubernetes and the MPI operator publish, and a stand-in for kubectl."""

from __future__ import annotations

import copy
import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import jsonschema
import kubernetes_validate
import pytest
import yaml

from launcher.errors import LaunchError
from launcher.job.job import Job
from launcher.submission.base import Status, Submission
from launcher.submission.options import SubmitOptions
from launcher.submission.systems.kubernetes import Kubernetes
from launcher.submission.tails import ProgramTail
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import save_mlp

VERSIONS = ("1.28", "1.37")
REPLICAS = {
    "type": "object",
    "properties": {
        "replicas": {"type": "integer"},
        "restartPolicy": {"enum": ["Always", "OnFailure", "Never", "ExitCode"]},
        "template": {"type": "object"},
    },
    "additionalProperties": False,
}
MPI_JOB = {
    "type": "object",
    "properties": {
        "slotsPerWorker": {"type": "integer"},
        "mpiImplementation": {"enum": ["OpenMPI", "Intel", "MPICH"]},
        "sshAuthMountPath": {"type": "string"},
        "launcherCreationPolicy": {"enum": ["AtStartup", "WaitForWorkersReady"]},
        "runPolicy": {
            "type": "object",
            "properties": {
                "activeDeadlineSeconds": {"type": "integer", "minimum": 0},
                "backoffLimit": {"type": "integer", "minimum": 0},
                "cleanPodPolicy": {"enum": ["None", "Running", "All"]},
                "suspend": {"type": "boolean"},
                "ttlSecondsAfterFinished": {"type": "integer", "minimum": 0},
            },
            "additionalProperties": False,
        },
        "mpiReplicaSpecs": {
            "type": "object",
            "properties": {"Launcher": REPLICAS, "Worker": REPLICAS},
            "required": ["Launcher"],
            "additionalProperties": False,
        },
    },
    "required": ["mpiReplicaSpecs"],
    "additionalProperties": False,
}
"""What the MPI operator's definition of an MPIJob (v2beta1 of kubeflow.org) says of ``spec``, but for the
templates of pods, which are Kubernetes' own."""


def dry(folder: Path, *arguments: object) -> list[dict[str, Any]]:
    done = shardrun("submit", "--kubernetes", *arguments, "--image", "r/i:1", "--dry-run", cwd=folder)
    assert done.returncode == 0, done.stderr
    return list(yaml.safe_load_all(done.stdout))


def validate(manifest: dict[str, Any]) -> None:
    for version in VERSIONS:
        kubernetes_validate.validate(manifest, version, strict=True)


def expanded(word: str, variables: dict[str, str]) -> str:
    """As Kubernetes says that it reads words: ``$$`` is ``$``, ``$(NAME)`` a variable that there is, and
    everything else is itself."""
    return re.sub(r"\$(?:(\$)|\((.*?)\))", lambda found: found[1] or variables.get(found[2], found[0]), word)


def container(job: dict[str, Any]) -> dict[str, Any]:
    (found,) = job["spec"]["template"]["spec"]["containers"]
    return dict(found)


def test_an_indexed_job_and_its_service(tmp_path: Path) -> None:
    service, job = dry(
        tmp_path, "/m/slices", "--ranks", 4, "--gpus", 2, "--cpus", 3, "--mem", "2GiB", "--shm", "4GiB",
        "--volume", "models:/m", "--time", "1:00:00", "--constraint", "pool=fast", "--namespace", "us",
        "--name", "it", "--input", "/m/x $(RANK)$$(A)$.npz", "--target", "gpu", "--env", "A=y",
        "--env", "B=$$(A)$(RANK)$x$", "--env", "C=1e3",
    )  # fmt: skip
    validate(service)
    validate(job)
    assert service["spec"]["clusterIP"] == "None" and service["spec"]["selector"] == {"job-name": "it"}
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (spec["completions"], spec["parallelism"], spec["completionMode"]) == (4, 4, "Indexed")
    assert (spec["activeDeadlineSeconds"], spec["backoffLimit"]) == (3600, 0)
    assert pod["subdomain"] == service["metadata"]["name"] == "it" and pod["nodeSelector"] == {"pool": "fast"}
    rank = container(job)
    assert rank["resources"]["limits"] == {"cpu": "3", "memory": str(2 << 30), "nvidia.com/gpu": "2"}
    volumes = {one["name"]: one for one in pod["volumes"]}
    mounted = {one["mountPath"]: volumes[one["name"]] for one in rank["volumeMounts"]}
    assert mounted["/dev/shm"]["emptyDir"] == {"medium": "Memory", "sizeLimit": str(4 << 30)}
    assert mounted["/m"]["persistentVolumeClaim"] == {"claimName": "models"}
    told = {one["name"]: one.get("value") for one in rank["env"]}
    assert (told["WORLD_SIZE"], told["MASTER_ADDR"]) == ("4", "it-0.it")
    # Kubernetes puts variables into words.
    given = {"RANK": "3", **{name: value for name, value in told.items() if value is not None}}
    assert "--input=/m/x $(RANK)$$(A)$.npz" in [expanded(word, given) for word in rank["args"]]
    assert expanded(told["B"], given) == "$$(A)$(RANK)$x$" and (told["A"], told["C"]) == ("y", "1e3")


def test_the_pods_of_a_job_are_its_ranks(tmp_path: Path) -> None:
    """The command of each pod, run here as Kubernetes would run it, but for where rank 0 is."""
    save_mlp(tmp_path / "m.onnx")
    arguments = (tmp_path / "m.onnx", "--ranks", 2, "--collectives", "gloo", "--timeout", 90, "--name", "it")
    _, job = dry(tmp_path, *arguments)
    ranks = []
    for index in range(2):
        own = {"SHARDRUN_CACHE": str(tmp_path / "cache")}
        for one in container(job)["env"]:
            annotation = one.get("valueFrom", {}).get("fieldRef", {}).get("fieldPath", "")
            assert ("value" in one) != ("job-completion-index" in annotation)
            own[one["name"]] = one.get("value", str(index))
        assert own["MASTER_ADDR"] == "it-0.it"
        own |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(27000 + os.getpid() % 5000)}
        (program,), words = container(job)["command"], container(job)["args"]
        assert program == "shardrun"
        command = [sys.executable, "-m", "launcher.cli", *(expanded(word, own) for word in words)]
        ranks.append(
            subprocess.Popen(
                command, env={**os.environ, **own}, stdout=subprocess.PIPE, stderr=subprocess.PIPE
            )
        )
    try:
        said = [rank.communicate(timeout=120) for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
    assert [rank.returncode for rank in ranks] == [0, 0], said
    assert b"gloo" in said[0][0] and said[1][0] == b""


TEXTS = (
    *("y", "N", "on", "1e3", "0x1f", "0o17", "1_000", ".5", "1:30", "~", "null", "", " a ", "a: b", "a #b"),
    *("- a", "é\x85\u2028", "'\"\\", "line\nline\n", "\t", "*a", "&a", "!a", "%a", "@a", "`a", "{a}", "[a]"),
    *("a" * 300 + " b", "\U0001f600", "=", "<<", "a:", ":a", "2026-11-29", "+1", "0b1", "infinity", ".inf"),
)


def test_every_text_is_a_text(tmp_path: Path) -> None:
    """In whichever version of YAML: only words that no version takes for anything else are in no quotes."""
    given = [word for number, text in enumerate(TEXTS) for word in ("--env", f"A{number}={text}")]
    done = shardrun(
        "submit", "--kubernetes", "/m", "--ranks", 2, "--image", "i", *given, "--dry-run", cwd=tmp_path
    )
    assert done.returncode == 0, done.stderr
    _, job = yaml.safe_load_all(done.stdout)
    told = {one["name"]: one.get("value") for one in container(job)["env"]}
    assert [told[f"A{number}"] for number in range(len(TEXTS))] == list(TEXTS)
    for node in yaml.compose_all(done.stdout):
        for scalar in scalars(node):
            word = scalar.value
            number = scalar.tag.endswith((":int", ":bool")) and word in {"2", "29500", "0", "true"}
            plain = re.fullmatch(r"[A-Za-z/][\w/.:-]*", word, re.ASCII) and not word.endswith(":")
            safe = plain and word.lower() not in {"y", "n", "yes", "no", "on", "off", "true", "false", "null"}
            assert scalar.style is not None or number or safe, word


def scalars(node: yaml.Node) -> Iterator[yaml.ScalarNode]:
    if isinstance(node, yaml.ScalarNode):
        yield node
    elif isinstance(node, yaml.SequenceNode):
        for item in node.value:
            yield from scalars(item)
    else:
        for pair in node.value:
            for item in pair:
                yield from scalars(item)


def test_an_mpi_job(tmp_path: Path) -> None:
    (job,) = dry(
        tmp_path, "/m/slices", "--ranks", 4, "--kind", "mpijob", "--nodes", 2, "--gpus", "amd.com/gpu:1",
        "--requeue", "--time", "30", "--input", "/m/$(x) y.npz",
    )  # fmt: skip
    assert (job["apiVersion"], job["kind"]) == ("kubeflow.org/v2beta1", "MPIJob")
    spec = job["spec"]
    jsonschema.validate(spec, MPI_JOB)
    for replicas in spec["mpiReplicaSpecs"].values():
        template = copy.deepcopy(replicas["template"])
        validate({"apiVersion": "v1", "kind": "PodTemplate", "metadata": {"name": "x"}, "template": template})
    workers = spec["mpiReplicaSpecs"]["Worker"]
    assert (workers["replicas"], spec["slotsPerWorker"]) == (2, 2)
    assert container({"spec": workers})["resources"]["limits"] == {"amd.com/gpu": "2"}
    assert "resources" not in container({"spec": spec["mpiReplicaSpecs"]["Launcher"]})  # it computes nothing
    assert spec["runPolicy"]["activeDeadlineSeconds"] == 1800


@pytest.mark.parametrize(
    ("version", "marks"),
    [
        ("mpirun (Open MPI) 5.0.11", "--output tag --bind-to none --map-by slot:OVERSUBSCRIBE --hostfile"),
        ("mpirun (Open MPI) 4.1.2", "--tag-output --bind-to none"),
        ("HYDRA build details: 4.2", "-prepend-rank -f"),
    ],
)  # fmt: skip
def test_the_launcher_of_an_mpi_job_runs_whichever_mpi_is_there(
    tmp_path: Path, version: str, marks: str
) -> None:
    (job,) = dry(
        tmp_path, "/m/slices", "--ranks", 3, "--kind", "mpijob", "--input", "/m/$(x)$$ y.npz",
        "--env", "ranks=mine", "--env", "options=too",
    )  # fmt: skip
    launcher = container({"spec": job["spec"]["mpiReplicaSpecs"]["Launcher"]})
    hosts, bin_ = tmp_path / "hosts", tmp_path / "bin"
    bin_.mkdir()
    hosts.write_text("it-worker-0.it slots=1\nit-worker-1.it slots=1\n")
    (bin_ / "mpirun").write_text(
        f'#!/bin/sh\n[ "$1" = --version ] && echo "{version}" && exit\n'
        'printf "%s|" "$SHARDRUN_JOB" "$MASTER_ADDR" "$MASTER_PORT" "$@"\nshift 2\n'
        'while [ "$1" != sh ]; do [ "$1" != -f ] || cat "$2" >&2; shift; done; "$@"\nexit 5\n'
    )
    (bin_ / "mpirun").chmod(0o755)
    (bin_ / "shardrun").write_text('#!/bin/sh\nprintf "%s|" "$ranks" "$options" "$@"\n')
    (bin_ / "shardrun").chmod(0o755)
    own = {one["name"]: one["value"] for one in launcher["env"]}
    words = [expanded(word, own) for word in (*launcher["command"], *launcher["args"])]
    words = [word.replace("/etc/mpi/hostfile", str(hosts)) for word in words]
    words = [word.replace("/tmp/hosts", str(tmp_path / "slots")) for word in words]
    done = subprocess.run(
        words, env={"PATH": f"{bin_}:/usr/bin:/bin", **own}, capture_output=True, text=True, timeout=30,
        check=False,
    )  # fmt: skip
    before, host, after = done.stdout.partition(f"shardrun: on host {os.uname().nodename}\n")
    name, *said = before.split("|")
    assert re.fullmatch("[0-9a-f]{32}", name)  # which no other job's ranks know
    assert done.returncode == 5 and host
    # MPICH and Intel MPI read another form of the same list.
    assert done.stderr == ("it-worker-0.it:1\nit-worker-1.it:1\n" if "-f" in marks else "")
    assert after.split("|")[:4] == ["mine", "too", "run", "/m/slices"]
    assert "--input=/m/$(x)$$ y.npz" in after.split("|")
    assert said[:4] == ["it-worker-0.it", "29500", "-n", "3"]
    assert marks in " ".join(said)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["/m", "--ranks", "2"], "say in which container image"),
        (["/m", "--image", "i"], "say over how many ranks"),
        (["m.onnx", "--ranks", "2", "--image", "i"], "expected a path from its root"),
        (["/m", "--ranks", "2", "--image", "i", "--input", "x.npz"], "--input x.npz: ranks look"),
        (["/m", "--ranks", "2", "--image", "i", "--name", "A B"], "--name A B: expected at most 52"),
        (["/m", "--ranks", "2", "--image", "i", "--volume", "c"], "expected CLAIM:/PATH"),
        (["/m", "--ranks", "2", "--image", "i", "--constraint", "x"], "expected LABEL=VALUE"),
        (["/m", "--ranks", "2", "--image", "i", "--nodes", "2"], "give --kind mpijob"),
        (["/m", "--ranks", "2", "--image", "i", "--gpus", "a100:1"], "such as nvidia.com/gpu"),
        (["/m", "--ranks", "2", "--image", "i", "--array", "0-1"], "--kubernetes has no such option"),
        (["/m", "--ranks", "2", "--image", "i", "--gpus", "a.b/../c:1"], "such as nvidia.com/gpu"),
        (["/m", "--ranks", "2", "--image", "i", "--volume", "c:/dev/shm/"], "--volume /dev/shm: something"),
        (["/m", "--ranks", "2", "--image", "i", *("--volume", "c:/a") * 2], "--volume /a: something else"),
        (["/m", "--ranks", "2", "--image", "i", "--name", "2x"], "a letter first"),
        (["/m\udcff", "--ranks", "2", "--image", "i"], "Kubernetes takes UTF-8 only"),
    ],
)  # fmt: skip
def test_what_kubernetes_cannot_take_is_said(tmp_path: Path, arguments: list[str], message: str) -> None:
    done = shardrun("submit", "--kubernetes", *arguments, "--dry-run", cwd=tmp_path)
    assert done.returncode == 2 and message in done.stderr, done.stderr
    assert len(done.stderr.splitlines()) == 1 and done.stdout == ""


KUBECTL = r"""#!/bin/sh
printf '%s\n' "$*" >>"$STAND_IN/calls"
case $1 in
  create) cat >"$STAND_IN/created" ;;
  get)
    case $2 in
      pods) cat "$STAND_IN/pods" ;;
      *) [ -e "$STAND_IN/shown" ] && cat "$STAND_IN/end" || echo '{"status": {"active": 2}}' ;;
    esac ;;
  logs)
    [ -e "$STAND_IN/once" ] || { : >"$STAND_IN/once"; echo 'waiting to start' >&2; exit 1; }
    echo 'a line'; : >"$STAND_IN/shown" ;;
esac
"""


def terminated(code: int, when: str) -> dict[str, Any]:
    state = {"terminated": {"exitCode": code, "finishedAt": when}}
    return {"status": {"containerStatuses": [{"state": state}]}}


@pytest.mark.parametrize(
    ("condition", "code", "message"),
    [
        ({"type": "Complete"}, 0, ""),
        ({"type": "Failed", "reason": "BackoffLimitExceeded"}, 3, ""),
        ({"type": "Failed", "reason": "DeadlineExceeded"}, 1, "job it reached its time limit"),
    ],
)  # fmt: skip
def test_a_job_is_followed_to_its_end(
    tmp_path: Path, condition: dict[str, str], code: int, message: str
) -> None:
    state = tmp_path / "state"
    state.mkdir()
    (tmp_path / "kubectl").write_text(KUBECTL)
    (tmp_path / "kubectl").chmod(0o755)
    (state / "end").write_text(json.dumps({"status": {"conditions": [{**condition, "status": "True"}]}}))
    pods = [terminated(1, "2026-01-01T00:00:05Z"), terminated(3, "2026-01-01T00:00:02Z")]
    (state / "pods").write_text(json.dumps({"items": [*pods, terminated(0, "2026-01-01T00:00:01Z")]}))
    done = shardrun(
        *("submit", "--kubernetes", "/m/slices", "--ranks", 2, "--image", "i", "--name", "it"),
        *("--namespace", "us"), cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}", STAND_IN=str(state),
    )  # fmt: skip
    assert done.returncode == code, done.stderr
    assert message in done.stderr and "[1@it-1] a line\n" in done.stdout
    created = list(yaml.safe_load_all((state / "created").read_text()))
    assert [one["kind"] for one in created] == ["Service", "Job"]
    calls = (state / "calls").read_text().splitlines()
    assert calls[0] == "create --namespace=us --filename=-"
    assert calls[-1].startswith("delete service it --namespace=us")


@pytest.mark.parametrize(
    ("ends", "code", "note"),
    [
        ([], None, "failed (Why so it was)"),
        ([("1", 0)], None, "failed (Why so it was)"),
        ([("5", 1), ("2", 9), ("1", 0), ("3", 4)], 9, ""),
    ],
)
def test_the_code_of_a_failed_job_is_that_of_the_first_rank_that_failed(
    monkeypatch: pytest.MonkeyPatch, ends: list[tuple[str, int]], code: int | None, note: str
) -> None:
    """Or there is none, where no pod says it any more; what Kubernetes says is told."""
    pods = json.dumps({"items": [terminated(status, at) for at, status in ends]})
    done = subprocess.CompletedProcess([], 0, pods, "")
    monkeypatch.setattr(Kubernetes, "ask", lambda self, *words: done)
    condition = {"reason": "Why", "message": "so\n  it was"}
    assert Kubernetes()._failed("it", condition) == Status("done", code, note)


def test_nothing_is_left_of_a_job_that_is_refused(tmp_path: Path) -> None:
    """kubectl makes the service, and goes on to the job."""
    (tmp_path / "kubectl").write_text(
        '#!/bin/sh\nprintf "%s\\n" "$*" >>"$STAND_IN"\n[ "$1" = create ] || exit 0\ncat >/dev/null\n'
        'echo "service/it created"\necho "Error: jobs.batch is forbidden" >&2\nexit 1\n'
    )
    (tmp_path / "kubectl").chmod(0o755)
    done = shardrun(
        *("submit", "--kubernetes", "/m/slices", "--ranks", 2, "--image", "i", "--name", "it"),
        cwd=tmp_path, PATH=f"{tmp_path}:{os.environ['PATH']}", STAND_IN=str(tmp_path / "calls"),
    )  # fmt: skip
    assert done.returncode == 1 and "jobs.batch is forbidden" in done.stderr
    assert (tmp_path / "calls").read_text().splitlines()[1:] == [
        "delete service/it --ignore-not-found --wait=false"
    ]


def test_a_log_that_ends_at_once_is_shown_once(tmp_path: Path) -> None:
    tail = ProgramTail(["sh", "-c", f"echo x >>{tmp_path}/starts; sleep 0.2; echo a; echo b"], str)
    try:
        found = tail.lines()
        assert tail._process is not None
        tail._process.wait(30)
        for _ in range(3):
            found += tail.lines()
        assert found + tail.rest() == ["a", "b"]
    finally:
        tail.close()
    assert (tmp_path / "starts").read_text() == "x\n"


@pytest.mark.parametrize(("namespace", "where"), [(None, []), ("mine", ["--namespace=mine"])])
def test_what_was_made_is_removed_where_it_was_made(
    monkeypatch: pytest.MonkeyPatch, namespace: str | None, where: list[str]
) -> None:
    asked: list[tuple[str, ...]] = []

    def ask(self: object, *command: str, given: str | None = None) -> subprocess.CompletedProcess[str]:
        asked.append(command)
        made, why = "service/it created\n", "job.batch it AlreadyExists"
        return subprocess.CompletedProcess(command, 1, made, why)

    monkeypatch.setattr(Kubernetes, "ask", ask)
    submission = Submission(Job(), 2, SubmitOptions(name="it", namespace=namespace))
    with pytest.raises(LaunchError) as caught:
        Kubernetes().submit(submission, "text")
    assert f"(`{' '.join(['kubectl delete job,service it', *where])}`)" in str(caught.value)
    assert asked == [
        ("kubectl", "create", *where, "--filename=-"),
        ("kubectl", "delete", "service/it", *where, "--ignore-not-found", "--wait=false"),
    ]
