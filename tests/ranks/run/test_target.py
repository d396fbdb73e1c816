"""What a rank computes on: which group, provider and device `ranks.run.target.load` picks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.errors import DeviceError
from ranks.identity.place import Identity
from ranks.lite.options import targets
from ranks.precision.request import Asked, Precision
from ranks.run import executor, group, target


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The groups that are joined and what is loaded, with nothing really joined or loaded."""
    made: list[Any] = []

    def join(identity: Identity, name: str | None = None, device: str = "cpu") -> Any:
        made.append(("join", name, device))
        return SimpleNamespace(device=device)

    def load(path: str, **options: Any) -> str:
        made.append(("load", options["communicator"].device, options.get("device_id")))
        return "model"

    def place(context: Any, modes: Any = ()) -> targets.Placement:
        device = context.gpu.device_id if context.target == ["gpu"] else context.ascend.device_id
        name = "CUDA" if context.target == ["gpu"] else "CANN"
        return targets.Placement((f"{name}ExecutionProvider", "CPUExecutionProvider"), ({}, {}), device)

    monkeypatch.setattr(group, "join", join)
    monkeypatch.setattr(executor, "load", load)
    monkeypatch.setattr(targets, "place", place)
    monkeypatch.delenv("SHARDRUN_COLLECTIVES", raising=False)
    return made


def test_the_cpu_needs_one_group(calls: list[Any]) -> None:
    target.load("m.onnx", Identity(1, 2, 1, 2), collectives="mpi")
    assert calls == [("join", "mpi", "cpu"), ("load", "cpu", None)]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "ascend"])
def test_what_is_asked_of_precision(calls: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The device is told its mode, and the graph what is left of it."""
    told: list[Any] = []
    inner = targets.place

    def place(context: Any, modes: Any = ()) -> targets.Placement:
        told.extend(modes)
        return inner(context, modes)

    def load(path: str, **options: Any) -> str:
        told.append(options["precision"])
        return "model"

    monkeypatch.setattr(targets, "place", place)
    monkeypatch.setattr(executor, "load", load)
    plan = (("MatMul", "float32"),)
    mode = "enforce_origin" if kind == "ascend" else "preferred_fp16"
    for asked in (Asked(mode, plan), None):
        target.load("m.onnx", Identity(0, 2, 0, 2), kind, collectives="shm", asked=asked)
    left = Precision("float16" if kind == "gpu" else "", plan, rounded=kind == "cpu")
    assert told == [*([(kind, mode)] if kind != "cpu" else []), left, None]


@pytest.mark.parametrize("name", [None, "auto", "nccl"])
def test_gpus_exchange_by_nccl_and_take_inputs_by_the_host_group(calls: list[Any], name: str | None) -> None:
    host, _ = target.load("m.onnx", Identity(1, 2, 1, 2), "gpu", collectives=name)
    assert host.device == "cpu"
    assert calls == [("join", "auto", "cpu"), ("join", name or "auto", "cuda"), ("load", "cuda", 1)]


def test_host_collectives_are_staged_where_asked_for(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_COLLECTIVES", "shm")
    target.load("m.onnx", Identity(0, 2, 0, 2), "gpu")
    assert calls == [("join", "shm", "cpu"), ("load", "cpu", 0)]


def test_the_rank_tables_device_wins(calls: list[Any]) -> None:
    target.load("m.onnx", Identity(1, 2, 1, 2, device=6), "gpu")
    assert calls[-1] == ("load", "cuda", 6)


def test_ascend_exchanges_on_the_host(calls: list[Any]) -> None:
    target.load("m.onnx", Identity(1, 2, 1, 2), "ascend")
    assert calls == [("join", "auto", "cpu"), ("load", "cpu", 1)]


def test_unknown_targets_are_named(calls: list[Any]) -> None:
    with pytest.raises(DeviceError, match="'tpu'; the targets are cpu, gpu, ascend"):
        target.load("m.onnx", Identity(0, 2, 0, 2), "tpu")
    assert calls == []
