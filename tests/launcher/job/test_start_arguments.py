"""What `launcher.start` and `launcher.lead` take by name: one table, and its defaults."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import fields

import pytest

import launcher
from launcher.errors import ConfigError
from launcher.group.starting import run_program
from launcher.job.places.placement import Placement
from launcher.job.start_arguments import RankArguments, Start, StartArguments


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
