"""What job systems have in common: ranks on nodes, programs that are asked, what they say."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError, LaunchError
from launcher.job.job import Job
from launcher.submission import base, manifests
from launcher.submission.base import Status, Submission
from launcher.submission.command import arguments, contained, paths_of, quoted, setup
from launcher.submission.manifests import indexed_job
from launcher.submission.options import Gpus, SubmitOptions
from launcher.submission.systems import slurm
from launcher.submission.systems.slurm import Slurm, _directives, _run


def asked(ranks: int = 4, job: Job | None = None, **options: Any) -> Submission:
    return Submission(job or Job(model=Path("/m.onnx")), ranks, SubmitOptions(**options))


@pytest.mark.parametrize(
    ("ranks", "options", "nodes", "per_node"),
    [
        (4, {}, None, None),
        (4, {"nodes": 2}, 2, 2),
        (5, {"nodes": 2}, 2, None),
        (5, {"tasks_per_node": 2}, 3, 2),
        (4, {"tasks_per_node": 4}, 1, 4),
        (5, {"nodes": 3, "tasks_per_node": 2}, 3, 2),
        (4, {"nodes": 4}, 4, 1),
    ],
)
def test_nodes_and_ranks_on_each(
    ranks: int, options: dict[str, int], nodes: int | None, per_node: int | None
) -> None:
    found = asked(ranks, **options)
    assert (found.nodes, found.per_node) == (nodes, per_node)


@pytest.mark.parametrize(
    ("ranks", "options", "message"),
    [
        (4, {"nodes": 5}, "--nodes 5: expected at most one node for each of the 4 ranks"),
        (5, {"nodes": 2, "tasks_per_node": 2}, "--tasks-per-node 2: 5 ranks on 2 nodes do not come to 2"),
        (4, {"nodes": 3, "tasks_per_node": 2}, "--tasks-per-node 2: 4 ranks on 3 nodes"),  # one has none
    ],
)
def test_nodes_that_do_not_fit(ranks: int, options: dict[str, int], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        asked(ranks, **options)


def said(monkeypatch: pytest.MonkeyPatch, program: str) -> Slurm:
    monkeypatch.setattr(base, "SECONDS", 20.0)
    system = Slurm()
    ask = system.ask
    monkeypatch.setattr(system, "ask", lambda *command, **more: ask("sh", "-c", program, **more))
    return system


def test_what_a_program_says(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "3")  # no program is one of the ranks around us
    assert said(monkeypatch, 'cat; echo "$RANK"').must("x", given="in ") == "in \n"
    assert said(monkeypatch, "echo out").said_of("unknown", "x") == "out\n"
    for program, told in {
        "echo out; echo 'two\n  lines' >&2; exit 1": r"refused \(two lines\)",
        "echo out; exit 1": r"refused \(out\)",
        "exit 7": r"refused \(exit code 7, and not a word\)",
    }.items():
        with pytest.raises(LaunchError, match=told):
            said(monkeypatch, program).must("x")
    assert said(monkeypatch, "echo 'job unknown' >&2; exit 1").said_of("unknown", "x") is None
    assert said(monkeypatch, "echo 'job unknown'; exit 1").said_of("unknown", "x") is None
    with pytest.raises(LaunchError, match=r"`x y` failed \(no answer\)"):
        said(monkeypatch, "echo no answer >&2; exit 1").said_of("unknown", "x", "y")


def test_programs_that_are_not_there_or_hang() -> None:
    with pytest.raises(LaunchError, match="/none/such"):
        Slurm().ask("/none/such")
    with pytest.raises(LaunchError):
        Slurm().ask("sleep", "60", seconds=0.05)


def test_options_that_a_system_has_not() -> None:
    with pytest.raises(ConfigError, match=r"--kind: --slurm has no such option; leave it out"):
        Slurm().check(asked(kind="job"))
    Slurm().check(asked(name="x", nodes=1))


def test_what_slurm_is_told() -> None:
    found = _directives(
        asked(
            nodes=2, gpus=Gpus(2, "a100"), cpus=3, mem=1025, time=61, requeue=True, array="0-3",
            name="a/b %j", partition='p "q"', directives=("--qos=h i", "--exclusive"), log=Path("/l"),
        )
    )  # fmt: skip
    assert found == [
        '--job-name="a/b %j"', '--partition="p \\"q\\""', "--time=00:01:01", "--nodes=2", "--ntasks=4",
        "--ntasks-per-node=2", "--cpus-per-task=3", "--mem=2K", "--array=0-3",
        '--output="/l/a-b %%j-%A_%a.log"', "--gpus-per-node=a100:4", "--requeue", '--qos="h i"',
        "--exclusive",
    ]  # fmt: skip
    plain = _directives(asked(5, nodes=2, gpus=Gpus(1), log=Path("/l")))
    assert plain == [
        "--job-name=m", "--nodes=2", "--ntasks=5", "--output=/l/m-%j.log", "--gpus=5", "--no-requeue"
    ]  # fmt: skip


def test_how_slurm_starts_ranks(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "kind_of_mpi", lambda submission: "pmix")
    text = _run(asked(cpus=3, image="i m", container="pyxis"))
    own = "--mpi=pmix --cpus-per-task=3 --container-image='i m' sh -c"
    assert (
        text.startswith(f"srun --label --kill-on-bad-exit=1 --export=ALL {own}") and "apptainer" not in text
    )
    assert "apptainer exec 'i m' shardrun run /m.onnx" in _run(asked(image="i m"))
    assert "singularity exec --nv i " in _run(asked(image="i", container="singularity", gpus=Gpus(1)))


@pytest.mark.parametrize(
    ("ended", "worst"),
    [
        ({}, Status("unknown")),
        ({"0": Status("done", 0), "1": Status("done", 0)}, Status("done", 0)),
        ({"0": Status("done", 0), "1": Status("done", 3)}, Status("done", 3)),
        ({"1": Status("done", 9), "0": Status("done", 0, "was killed")}, Status("done", 0, "was killed")),
        ({"10": Status("done", 0, "ten"), "9": Status("done", 0, "nine")}, Status("done", 0, "nine")),
        ({"0": Status("done", None), "1": Status("done", 1)}, Status("done", 1)),
    ],
)
def test_of_an_array_the_worst_counts(ended: dict[str, Status], worst: Status) -> None:
    system = Slurm()
    system._ended = ended
    assert system._worst() == worst


@pytest.mark.parametrize(
    ("text", "index", "word"),
    [
        ("a b", "", "'a b'"),
        ("a%a", "", "a%a"),
        ("a%a", "I", 'a"${I}"'),
        ("x y%a/%a", "I", '\'x y\'"${I}"/"${I}"'),
        ("%a", "I", '"${I}"'),
    ],
)
def test_words_with_the_index_of_an_array(text: str, index: str, word: str) -> None:
    assert quoted(text, index) == word


def test_the_command_of_a_rank() -> None:
    job = Job(model=Path("/m.onnx"), dims={"b": 2}, inputs=("x=-a.npy",), mpi_args=("-v",))
    found = arguments(asked(job=job, cpus=3))
    assert found[:3] == ["run", "/m.onnx", "--launcher=external"] and found[-1] == "--threads=3"
    assert "--dim=b=2" in found and not any("-v" in word for word in found)
    assert arguments(asked(job=Job(model=Path("/m.onnx"), threads=2), cpus=3))[-1] == "--threads=2"
    assert "--threads" not in " ".join(arguments(asked()))


def test_what_a_script_sets_up(tmp_path: Path) -> None:
    job = Job(model=Path("/m.onnx"), env={"A": "b c", "D": ""})
    lines = setup(asked(job=job, modules=("gcc/12", "a b"), venv=tmp_path)).splitlines()
    assert lines[-2:] == ["export A='b c'", "export D=''"]
    assert "module load gcc/12" in lines and "module load 'a b'" in lines
    assert f". {tmp_path}/bin/activate" in lines
    assert setup(asked(image="i")) == ""
    assert contained(asked(), "run") == contained(asked(image="i", container="pyxis"), "run") == "run"


def test_paths_that_ranks_are_told() -> None:
    job = Job(model=Path("m"), against=Path("a"), inputs=("x=y=in.npy", "all.npz"))
    assert paths_of(job) == [
        ("the model", Path("m")), ("--against", Path("a")), ("--input", Path("in.npy")),
        ("--input", Path("all.npz")),
    ]  # fmt: skip


def test_a_pod_is_started_again_where_that_is_asked_for() -> None:
    def spec(**options: Any) -> Any:
        made = indexed_job(asked(3, image="i", **options))
        return next(one["spec"] for one in made if one["kind"] == "Job")

    once, again = spec(), spec(requeue=True, time=90)
    assert (once["completions"], once["parallelism"], once["completionMode"]) == (3, 3, "Indexed")
    assert once["backoffLimit"] == 0 and again["backoffLimit"] == 3 * manifests._RETRIES > 0
    assert again["activeDeadlineSeconds"] == 90 and "activeDeadlineSeconds" not in once
