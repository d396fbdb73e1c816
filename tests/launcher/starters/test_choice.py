"""Which starter is chosen, and options that it does not follow."""

from __future__ import annotations

import ast
import shutil
from pathlib import Path

import pytest

from launcher.errors import ConfigError, LaunchError
from launcher.job.options import OPTIONS
from launcher.job.places.placement import Placement
from launcher.job.rank_table import make_rank_table
from launcher.starters import base, mpirun
from tests.launcher.cli_tools import shardrun

FOLDER = Path(base.__file__).parent
OWN = base.REGISTRY.own()
SINGLE = sorted({option for starter in OWN.values() for option in starter.takes})
GIVEN: dict[str, object] = {
    "nodes": 2, "mpi_args": ("-v",), "srun_args": ("-v",), "ray_address": "auto", "gpus": 0,
}  # fmt: skip
"""Of each option of some starters, a value that is not its default."""


def placement(*options: str) -> Placement:
    return Placement(**{option: GIVEN[option] for option in options})  # type: ignore[arg-type]


def test_what_a_starter_reads_it_takes() -> None:
    """What nobody else reads would be ignored with every other starter."""
    common = {"hosts", "hostfile", "bind", "stage"}
    assert common | set(SINGLE) == set(Placement._fields)
    for path in FOLDER.glob("*.py"):
        name = path.stem.removesuffix("_cluster")
        for node in ast.walk(ast.parse(path.read_text())):
            if isinstance(node, ast.Attribute) and ast.unparse(node.value) == "self.placement":
                assert node.attr in OWN[name].takes, f"{path.name} reads {node.attr}"


@pytest.mark.parametrize("option", SINGLE)
@pytest.mark.parametrize("name", OWN)
def test_an_option_of_another_starter_is_refused(name: str, option: str) -> None:
    if option in OWN[name].takes:
        assert base.choose(name, placement=placement(option)).name == name
        return
    owners = " or ".join(other for other, starter in OWN.items() if option in starter.takes)
    flag = OPTIONS[option].flag
    with pytest.raises(
        ConfigError, match=rf"^{flag} is for the launcher {owners}, but {name} is asked for: leave it out, or"
    ):
        base.choose(name, placement=placement(option))


def test_auto_chooses_one_that_follows_the_options() -> None:
    assert base.choose("auto", placement=placement("mpi_args")).name == "mpirun"
    assert base.choose("auto", placement=placement("srun_args")).name == "slurm"
    assert base.choose("auto", placement=Placement(stage=True, bind="none")).name == "local"
    for options in (["gpus"], ["mpi_args", "srun_args"]):
        with pytest.raises(ConfigError, match=r"^--\w+.* is for the launcher .*, but auto chooses none"):
            base.choose("auto", placement=placement(*options))


def test_collectives_of_mpi_need_a_launcher_that_has_it() -> None:
    for name in ("local", "ssh", "ray", "kubernetes"):
        with pytest.raises(
            ConfigError,
            match=f"^The mpi collectives need the launcher mpirun or slurm, but {name} is asked for",
        ):
            base.choose(name, collectives="mpi")
    assert base.choose("mpirun", collectives="mpi").name == "mpirun"
    assert base.choose("local", collectives="shm").name == "local"
    with pytest.raises(
        ConfigError, match=r"no launcher 'x': choose one of auto, kubernetes, local, mpirun, ray,"
    ):
        base.choose("x")


def test_the_command_says_it(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("print('run')\n")
    words = ["exec", "--ranks", "2", "--launcher", "local", "--gpus", "1", str(tmp_path / "script.py")]
    done = shardrun(*words, cwd=tmp_path)
    assert done.returncode == 2 and done.stdout == ""
    assert (
        done.stderr.count("\n") == 1
        and "--gpus is for the launcher ray, but local is asked for" in done.stderr
    )


FAR = [("192.0.2.1", 1), ("192.0.2.2", 1)]
SLURM = {"SLURM_JOB_ID": "1", "SLURM_JOB_NODELIST": "a[1-2]"}


@pytest.mark.parametrize(
    ("programs", "hosts", "environ", "chosen"),
    [
        ({"mpirun", "srun"}, FAR, {}, "mpirun"),
        ({"srun"}, FAR, {}, "ssh"),
        (set(), FAR, {}, "ssh"),
        ({"mpirun"}, [("2001:db8::1", 1), ("192.0.2.2", 1)], {}, "ssh"),  # mpirun takes no IPv6 address
        ({"mpirun", "srun"}, [("a1", 1), ("a2", 1)], SLURM, "slurm"),
        ({"mpirun", "srun"}, [("a1", 1), ("b2", 1)], SLURM, "mpirun"),  # Slurm has not given it
        ({"mpirun"}, [("a1", 1), ("a2", 1)], SLURM, "mpirun"),
        (set(), [("localhost", 2)], SLURM, "local"),
    ],
)
def test_auto_chooses_what_there_is(
    monkeypatch: pytest.MonkeyPatch,
    programs: set[str],
    hosts: list[tuple[str, int]],
    environ: dict[str, str],
    chosen: str,
) -> None:
    for name in SLURM:
        monkeypatch.delenv(name, raising=False)
    for name, value in environ.items():
        monkeypatch.setenv(name, value)
    monkeypatch.setattr(shutil, "which", lambda name: name if name in programs else None)
    monkeypatch.setattr(mpirun, "candidates", lambda: iter([Path("mpirun")] if "mpirun" in programs else []))
    assert base.choose("auto", make_rank_table(hosts)).name == chosen


def test_what_cannot_be_chosen() -> None:
    with pytest.raises(ConfigError, match=r"There is no launcher 'x': choose one of .*local.*ssh") as caught:
        base.choose("x")
    assert "external" not in str(caught.value)
    for name in ("local", "ssh"):
        with pytest.raises(
            ConfigError, match=f"The mpi collectives need the launcher .*mpirun.*, but {name} is"
        ):
            base.choose(name, collectives="mpi")
    assert base.choose("auto", collectives="shm").name == base.choose("auto").name == "local"
    assert base.choose("mpirun", collectives="mpi").placement == Placement()


@pytest.mark.parametrize(
    ("starter", "hosts", "mpi", "given", "fits"),
    [
        ("local", False, False, [], True),
        ("local", True, False, [], False),
        ("local", False, True, [], False),
        ("mpirun", True, True, ["mpi_args"], True),
        ("mpirun", True, True, ["mpi_args", "nodes"], False),
        ("ssh", True, False, [], True),
        ("ssh", False, True, [], False),
    ],
)
def test_what_a_starter_can(starter: str, hosts: bool, mpi: bool, given: list[str], fits: bool) -> None:
    assert OWN[starter].fits(hosts=hosts, mpi=mpi, given=given) is fits


def test_an_mpirun_is_one_that_may_be_run_and_ours_comes_last(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own, python = tmp_path / "own" / "bin", tmp_path / "python"
    folders = [tmp_path / name for name in ("none", "first", "second")]
    for folder in (*folders, own, python):
        folder.mkdir(parents=True)
    for path, mode in (
        (folders[0] / "mpirun", 0o644), (folders[1] / "mpiexec", 0o755), (folders[2] / "mpirun", 0o755),
        (folders[2] / "mpiexec", 0o755), (own / "mpirun", 0o755), (python / "mpirun", 0o755),
    ):  # fmt: skip
        path.touch()
        path.chmod(mode)
    (folders[1] / "mpirun").mkdir()
    monkeypatch.setattr(mpirun.sys, "prefix", str(tmp_path / "own"))
    monkeypatch.setattr(mpirun.sys, "executable", str(python / "python"))
    monkeypatch.setenv("PATH", ":".join(["", str(own), *map(str, folders), str(python)]))
    assert list(mpirun.candidates()) == [
        (folders[1] / "mpiexec", True), (folders[2] / "mpirun", True), (folders[2] / "mpiexec", True),
        (own / "mpirun", False), (python / "mpirun", False),
    ]  # fmt: skip
    monkeypatch.setenv("PATH", str(folders[0]))
    (own / "mpirun").unlink()
    (python / "mpirun").unlink()
    with pytest.raises(LaunchError, match="There is no mpirun on PATH or beside this Python"):
        mpirun.find()


@pytest.mark.parametrize(
    ("places", "found"),
    [
        ([], None),
        (["lib/libmpi.so"], "lib/libmpi.so"),
        (["lib/libmpi.so", "lib/libmpi.so.40"], "lib/libmpi.so.40"),
        (["lib64/libmpi.so.40", "lib/libmpich.so.12"], "lib/libmpich.so.12"),
        (["lib/release/libmpi.so.12"], "lib/release/libmpi.so.12"),
        (["lib/x86_64-linux-gnu/libmpich.so.12"], "lib/x86_64-linux-gnu/libmpich.so.12"),
        (["libmpi.so"], None),
    ],
)
def test_the_library_of_an_mpirun(tmp_path: Path, places: list[str], found: str | None) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "mpirun").touch()
    for place in places:
        (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / place).touch()
    (tmp_path / "link").symlink_to(tmp_path / "bin" / "mpirun")
    for path in (tmp_path / "bin" / "mpirun", tmp_path / "link"):
        assert mpirun._library(path) == (None if found is None else tmp_path / found)
