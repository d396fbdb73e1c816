"""What `launcher.start` and `launcher.lead` take by name: one table, and its defaults."""

from __future__ import annotations

import socket
from collections.abc import Callable
from dataclasses import fields
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

import launcher
from launcher.errors import ConfigError, LaunchError, RankTableError
from launcher.group.starting import run_program
from launcher.job.places.placement import Placement
from launcher.job.rank_table import load_rank_table, make_rank_table
from launcher.job.start_arguments import (
    RankArguments,
    Start,
    StartArguments,
    check_count,
    check_numbers,
    count_ranks,
    rank_environment,
)
from sharding.common.bounds import LONGEST_TIMEOUT, MAX_RANKS, MAX_THREADS
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import Mesh


def test_each_argument_has_a_default_of_its_type() -> None:
    table = {name: getattr(kind, "__forward_arg__", kind) for name, kind in _types(StartArguments).items()}
    typed = {item.name: item.type for item in fields(Start)}
    assert typed.pop("options") == "SliceOptions | None"
    assert typed == table and _types(RankArguments).keys() < table.keys()


def _types(table: type[object]) -> dict[str, object]:
    return dict(table.__annotations__)


def _nothing(model: object) -> None:
    return None


@pytest.mark.parametrize(
    ("call", "said"),
    [
        (lambda: launcher.start("m.onnx", rank=2), "start() got an unexpected keyword argument 'rank'"),
        (lambda: launcher.start("m.onnx", tread=2), "'tread'; did you mean 'threads'?"),
        (lambda: launcher.lead("m", _nothing, ranks=2), "lead() got an unexpected keyword argument 'ranks'"),
        (lambda: run_program([], time=2), "run_program() got an unexpected keyword argument 'time'"),
    ],
)  # fmt: skip
def test_an_argument_that_is_none_is_refused(call: Callable[[], object], said: str) -> None:
    with pytest.raises(TypeError) as caught:
        call()
    assert said in str(caught.value)


def test_none_stands_for_the_default() -> None:
    named = dict.fromkeys(StartArguments.__annotations__)
    assert vars(Start.asked("start", StartArguments, None, named)) == vars(Start())
    how = Start.asked("start", StartArguments, None, {"ranks": 3, "placement": Placement(bind="none")})
    assert vars(how) == vars(Start(ranks=3, placement=Placement(bind="none")))


@pytest.mark.parametrize(
    "function", [launcher.start, lambda model, **more: launcher.lead(model, _nothing, **more)]
)
def test_a_target_is_checked_before_the_model(function: Callable[..., object]) -> None:
    with pytest.raises(ConfigError, match=r"There is no target 'tpu': expected one of cpu, gpu, ascend\."):
        function("nowhere.onnx", target="tpu")
    with pytest.raises(ConfigError, match="The nccl collectives do not join ranks on the target cpu"):
        function("nowhere.onnx", collectives="nccl")


TABLE = make_rank_table([("a", 2), ("b", 1)])


def model(there: tuple[str, int] | None = None) -> Any:
    """A reference to a model that is, or is not, sliced."""
    return SimpleNamespace(path=Path("m.onnx"), rank_count=lambda: there)


@pytest.mark.parametrize(
    ("how", "there", "size"),
    [
        (Start(ranks=4), None, 4),
        (Start(rank_table=TABLE), ("the slices", 3), 3),
        (Start(), ("the slices", 2), 2),
        (Start(options=SliceOptions(mesh=Mesh.of(data=2, tensor=3))), None, 6),
        (Start(placement=Placement(hosts=(("a", 2), ("b", 3)))), None, 5),
        (Start(ranks=2, placement=Placement(hosts=(("a", 2), ("b", 3)))), None, 2),
    ],
)
def test_who_says_how_many_ranks(how: Start, there: tuple[str, int] | None, size: int) -> None:
    assert count_ranks(model(there), how) == size


@pytest.mark.parametrize(
    ("how", "message"),
    [
        (Start(ranks=0), r"ranks=0 contradicts the slices \(2 ranks\)"),
        (Start(ranks=3, rank_table=TABLE), r"ranks=3 contradicts the slices \(2 ranks\)"),
        (Start(rank_table=TABLE), r"the rank table .*\(3 ranks\) contradicts the slices \(2 ranks\)"),
        (
            Start(options=SliceOptions(mesh=Mesh.of(tensor=4))),
            r"the slices \(2 ranks\) contradicts the mesh .*tensor=4 \(4 ranks\)",
        ),
    ],
)
def test_two_that_contradict_each_other(how: Start, message: str) -> None:
    with pytest.raises(ConfigError, match=f"^{message}"):
        count_ranks(model(("the slices", 2)), how)


def test_numbers_at_their_edges() -> None:
    for size in (1, MAX_RANKS):
        check_count(size, None)
    for size in (0, MAX_RANKS + 1, True, 2.0, -1):
        with pytest.raises(ConfigError, match=f"an integer from 1 to 4096, but is {size!r}"):
            check_count(size, None)  # type: ignore[arg-type]
    with pytest.raises(RankTableError, match="The rank table has 3 ranks, but 2 were asked for"):
        check_count(2, TABLE)
    for threads in (1, MAX_THREADS):
        check_numbers(Start(threads=threads))
    for threads in (0, MAX_THREADS + 1, True, 1.0):
        with pytest.raises(ConfigError, match=f"an integer from 1 to 1024, but is {threads!r}"):
            check_numbers(Start(threads=threads))  # type: ignore[arg-type]
    for seconds in (0.001, LONGEST_TIMEOUT):
        check_numbers(Start(timeout=seconds))
    for seconds in (0, -1, LONGEST_TIMEOUT * 1.01, "5"):
        with pytest.raises(ConfigError, match=f"The time-out must be .*, but is {seconds!r}"):
            check_numbers(Start(timeout=seconds))  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="There are no collectives 'x': choose one of auto"):
        check_numbers(Start(collectives="x"))


def test_weights_that_may_be_replaced() -> None:
    assert Start().weights_text == "" and Start(variable_weights=["a", "b", "a"]).weights_text == '["a", "b"]'
    for names in ("a", [""], [3]):
        with pytest.raises(ConfigError, match="variable_weights: expected a list of names of weights"):
            _ = Start(variable_weights=names).weights_text  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match=r"at most 100000 characters of names, found 1000004"):
        _ = Start(variable_weights=["x" * 10**6]).weights_text


def test_what_ranks_are_told_of_their_meeting(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("MASTER_ADDR", "127.0.0.1")
    told = rank_environment(Start(timeout=2.5, threads=3))
    assert told["MASTER_ADDR"] == "127.0.0.1" and 0 < int(told["MASTER_PORT"]) < 1 << 16
    assert (told["SHARDRUN_TIMEOUT"], told["SHARDRUN_THREADS"]) == ("2.5", "3")
    monkeypatch.delenv("MASTER_ADDR")
    assert rank_environment(Start(rank_table=TABLE))["MASTER_ADDR"] == "a"
    for port in ("0", "65536", "x"):
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(ConfigError, match=f"MASTER_PORT must be a port from 1 to 65535, but is '{port}'"):
            rank_environment(Start())
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        monkeypatch.setenv("MASTER_PORT", port)
        with pytest.raises(LaunchError, match=f"Port {port} of 127.0.0.1 .* is taken by another program"):
            rank_environment(Start())
    monkeypatch.setenv("MASTER_PORT", port)
    assert rank_environment(Start())["MASTER_PORT"] == port


def test_a_rank_table_that_is_wrong(tmp_path: Path) -> None:
    """Its error is a table's, whoever reads it: the command ends with the code of a wrong argument."""
    path = tmp_path / "t.json"
    path.write_text("{}")
    for read in (lambda: load_rank_table(path), lambda: Start(rank_table=str(path)).size()):
        with pytest.raises(RankTableError, match=r"t\.json"):
            read()
    path.write_text(TABLE.to_json())
    assert Start(rank_table=str(path)).size() == 3
