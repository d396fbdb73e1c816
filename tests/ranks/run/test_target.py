"""What a rank computes on: which group, provider and device `ranks.run.target.load` picks."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from ranks.devices import devices
from ranks.errors import DeviceError
from ranks.identity.place import Identity
from ranks.precision.request import Asked, Precision
from ranks.run import executor, group, target
from ranks.run.placement import ON_CPU


@pytest.fixture
def calls(monkeypatch: pytest.MonkeyPatch) -> list[Any]:
    """The groups that are joined and what is loaded, with nothing really joined or loaded."""
    made: list[Any] = []

    def join(
        identity: Identity, name: str | None = None, device: str = "cpu", timeout: float | None = None
    ) -> Any:
        made.append(("join", name, device))
        return SimpleNamespace(device=device, size=1)

    def load(path: str, **options: Any) -> str:
        made.append(("load", options["communicator"].device, options.get("placement", ON_CPU).device_id))
        return "model"

    monkeypatch.setattr(group, "join", join)
    monkeypatch.setattr(executor, "load", load)
    monkeypatch.setattr(devices, "require", lambda provider, device: None)
    monkeypatch.setattr(devices, "visible", lambda: 2)
    monkeypatch.delenv("SHARDRUN_COLLECTIVES", raising=False)
    return made


def test_the_cpu_needs_one_group(calls: list[Any]) -> None:
    target.load("m.onnx", Identity(1, 2, 1, 2), collectives="mpi")
    assert calls == [("join", "mpi", "cpu"), ("load", "cpu", 0)]


@pytest.mark.parametrize("kind", ["cpu", "gpu", "ascend"])
def test_what_is_asked_of_precision(calls: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """The device is told its mode, and the graph what is left of it."""
    told: list[Any] = []

    def load(path: str, **options: Any) -> str:
        told.append((options.get("placement", ON_CPU).options[0], options["precision"]))
        return "model"

    monkeypatch.setattr(executor, "load", load)
    plan = (("MatMul", "float32"),)
    mode = "enforce_origin" if kind == "ascend" else "enforce_fp32"
    for asked in (Asked(mode, plan), None):
        target.load("m.onnx", Identity(0, 2, 0, 2), kind, collectives="shm", asked=asked)
    left = Precision("" if kind == "ascend" else "float32", plan, rounded=kind == "cpu")
    device = {} if kind == "cpu" else {"device_id": "0"}
    mode_of = {"gpu": {"use_tf32": "0"}, "ascend": {"precision_mode": "must_keep_origin_dtype"}}
    assert told == [({**device, **mode_of.get(kind, {})}, left), (device, None)]


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
    with pytest.raises(DeviceError, match="'tpu': expected one of cpu, gpu, ascend"):
        target.load("m.onnx", Identity(0, 2, 0, 2), "tpu")
    assert calls == []


@pytest.mark.parametrize("kind", ["gpu", "ascend"])
def test_what_a_machine_lacks_is_said_in_words_for_jobs(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str
) -> None:
    def require(provider: str, device: int) -> None:
        raise DeviceError(f"{provider} is missing.")

    monkeypatch.setattr(devices, "require", require)
    found = rf"^The target '{kind}' cannot be served here: C\w+ExecutionProvider is missing. To run on the"
    with pytest.raises(DeviceError, match=found):
        target.load("m.onnx", Identity(0, 2, 0, 2), kind)
    assert calls == []


def test_shardrun_target_sends_a_rank_to_the_cpu(
    calls: list[Any], single: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("SHARDRUN_TARGET", "cpu")
    with pytest.warns(UserWarning, match="target 'gpu' runs on the CPU"):
        target.load("m.onnx", Identity(1, 2, 1, 2), "gpu")
    assert calls == [("join", "auto", "cpu"), ("load", "cpu", 0)]


@pytest.mark.parametrize(("kind", "seen", "number"), [("gpu", 1, 0), ("gpu", 4, 3), ("ascend", 1, 3)])
def test_which_device_a_rank_takes(
    calls: list[Any], monkeypatch: pytest.MonkeyPatch, kind: str, seen: int, number: int
) -> None:
    """A GPU that a scheduler shows it alone is the first one; how many NPUs there are is not asked."""
    monkeypatch.setattr(devices, "visible", lambda: seen)
    target.load("m.onnx", Identity(3, 4, 3, 4), kind, collectives="shm")
    assert calls[-1][2] == number
