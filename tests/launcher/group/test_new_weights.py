"""Weights of a group that are replaced: on all ranks between two requests, and on ranks that come later."""

from __future__ import annotations

import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest

from launcher import Group, start
from launcher.errors import ConfigError, LaunchError
from launcher.group.requests import PredictError
from launcher.group.serving.renewal import checked
from ranks.common.tensors import TensorSpec
from ranks.errors import WeightsError
from ranks.talk import wire
from sharding.demands.options import SliceOptions
from sharding.slices.mesh import parse_mesh
from tests.launcher.processes import wait_until
from tests.sharding import graphs

pytestmark = pytest.mark.timeout(180)
SECONDS = 60.0
ROWS, WIDE = 16, 64


def save(path: Path, first: Any, second: Any, bias: Any) -> Path:
    """``y = relu(x @ first + bias) @ second``."""
    text = f"""layers (float[n, {ROWS}] x) => (float[n, {ROWS}] y) {{
        a = MatMul(x, first)
        b = Add(a, bias)
        c = Relu(b)
        y = MatMul(c, second)
    }}"""
    return graphs.save(path, text, {"first": first, "second": second, "bias": bias})


def some(seed: int) -> dict[str, Any]:
    rng = np.random.default_rng(seed)
    return {
        name: rng.standard_normal(shape).astype(np.float32)
        for name, shape in (("first", (ROWS, WIDE)), ("second", (WIDE, ROWS)), ("bias", (WIDE,)))
    }


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save(tmp_path_factory.mktemp("weights") / "model.onnx", **some(0))


def oracle(folder: Path, weights: dict[str, Any], x: Any) -> Any:
    """Plain ONNX Runtime, on a model that was saved with these weights."""
    path = save(folder / "oracle.onnx", **weights)
    return onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": x})[0]


@pytest.fixture(scope="module", params=[1, 2])
def group(request: pytest.FixtureRequest, model: Path) -> Iterator[Group]:
    with start(
        model, ranks=request.param, launcher="local", threads=1, restart="on-failure",
        variable_weights=["first", "second", "bias"],
    ) as group:  # fmt: skip
        yield group


X = np.random.default_rng(7).standard_normal((5, ROWS)).astype(np.float32)


def test_new_weights_are_those_of_a_model_saved_with_them(group: Group, tmp_path: Path) -> None:
    given, before = some(1), group.weights_version
    assert group.update_weights(given) == before + 1
    assert np.allclose(group.predict({"x": X})["y"], oracle(tmp_path, given, X), rtol=1e-4, atol=1e-4)
    part = {"bias": some(2)["bias"]}
    assert group.update_weights(part) == before + 2
    assert np.allclose(
        group.predict({"x": X})["y"], oracle(tmp_path, {**given, **part}, X), rtol=1e-4, atol=1e-4
    )
    assert [(spec.name, spec.shape) for spec in group.variable_weights] == [
        ("first", (ROWS, WIDE)), ("second", (WIDE, ROWS)), ("bias", (WIDE,))
    ]  # fmt: skip


def test_what_does_not_fit_changes_nothing(group: Group) -> None:
    group.update_weights(some(3))
    before, version = group.predict({"x": X})["y"], group.weights_version
    for wrong, said in (
        ({"first": np.zeros((WIDE, ROWS), np.float32)}, "has the shape"),
        ({"first": np.zeros((ROWS, WIDE))}, "has the type float32"),
        ({"frist": np.zeros((ROWS, WIDE), np.float32)}, "did you mean 'first'"),
        ({"bias": some(1)["bias"], "first": np.zeros(3, np.float32)}, "has the shape"),
        ({}, "at least one"),
        ([], "mapping"),
    ):
        with pytest.raises(WeightsError, match=said):
            group.update_weights(wrong)  # type: ignore[arg-type]  # on purpose
    assert np.array_equal(group.predict({"x": X})["y"], before) and group.weights_version == version


def test_each_request_sees_all_old_or_all_new(group: Group) -> None:
    """Two layers that only together give 1: a mix would give something else."""
    x = np.ones((1, ROWS), np.float32)

    def scaled(factor: float) -> dict[str, Any]:
        first, second = np.zeros((ROWS, WIDE), np.float32), np.zeros((WIDE, ROWS), np.float32)
        first[0, :], second[:, 0] = factor, 1 / factor / WIDE
        return {"first": first, "second": second, "bias": np.zeros(WIDE, np.float32)}

    factors = [2.0**power for power in (-4, 0, 3, 6)]
    group.update_weights(scaled(1.0))
    wrong: list[float] = []
    ended = threading.Event()

    def ask() -> None:
        while not ended.is_set():
            futures = [group.submit({"x": x}) for _ in range(8)]
            wrong.extend(found for one in futures if (found := float(one.result(SECONDS)["y"][0, 0])) != 1.0)

    threads = [threading.Thread(target=ask) for _ in range(2)]
    for thread in threads:
        thread.start()
    for turn in range(24):
        group.update_weights(scaled(factors[turn % 4]))
    ended.set()
    for thread in threads:
        thread.join(SECONDS)
    assert not wrong and not any(thread.is_alive() for thread in threads)


def test_ranks_that_come_later_have_them_too(group: Group, tmp_path: Path) -> None:
    """Also where they died beside the update, and before any other request."""
    given, ages = some(5), group.age
    group.update_weights(given)
    want = oracle(tmp_path, given, X)
    rank = len(group.stats) - 1
    os.kill(group.stats[rank].pid, signal.SIGKILL)
    assert wait_until(lambda: group.state == "restarting" or group.age > ages, SECONDS)
    assert np.allclose(group.predict({"x": X})["y"], want, rtol=1e-4, atol=1e-4)
    assert group.age == ages + 1
    # An update during a restart waits for the ranks that come, as a request does.
    os.kill(group.stats[rank].pid, signal.SIGKILL)
    assert wait_until(lambda: group.state == "restarting" or group.age > ages + 1, SECONDS)
    part = {"bias": some(6)["bias"]}
    group.update_weights(part)
    assert group.age == ages + 2
    found = group.predict({"x": X})["y"]
    assert np.allclose(found, oracle(tmp_path, {**given, **part}, X), rtol=1e-4, atol=1e-4)


def test_ranks_that_cannot_be_given_them_again_are_of_no_use(
    model: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Nobody is answered by the weights of the file."""
    monkeypatch.setattr("launcher.group.serving.crew.pause", lambda number: 0.01)
    with start(
        model, ranks=2, launcher="local", threads=1, restart="on-failure:1", variable_weights=["bias"]
    ) as group:
        group.update_weights({"bias": some(1)["bias"]})
        group._requests.renewal._given["bias"] = np.zeros(3, np.float32)  # as if there were no memory
        os.kill(group.stats[1].pid, signal.SIGKILL)
        assert wait_until(lambda: group.state == "failed", SECONDS)
        with pytest.raises(LaunchError, match="could not be given the newest weights again"):
            group.predict({"x": X})


def test_what_may_not_be_replaced(model: Path) -> None:
    with start(model, ranks=1, launcher="local", threads=1) as group:
        with pytest.raises(WeightsError, match="name those that may be in variable_weights"):
            group.update_weights(some(1))
        assert group.variable_weights == []
    for wrong, said in (
        ("first", "expected a list"),
        ([""], "expected a list"),
        (["w" * 200_000], "expected at most"),
    ):
        with pytest.raises(ConfigError, match=f"variable_weights: {said}"):
            start(model, ranks=1, launcher="local", variable_weights=wrong)
    with pytest.raises(Exception, match="'frist'"):
        start(model, ranks=2, launcher="local", threads=1, variable_weights=["frist"])


def test_what_each_rank_has_spent(group: Group) -> None:
    group.predict({"x": X})
    group.work()
    ranks = {stats.rank for stats in group.stats}
    assert wait_until(lambda: set(group.said) == ranks, SECONDS)
    before = group.said
    for _ in range(20):
        group.predict({"x": X})
    group.work()
    assert wait_until(lambda: all(group.said[rank] != before[rank] for rank in ranks), SECONDS)
    for rank in ranks:
        one, other = before[rank], group.said[rank]
        assert other["computing"] > one["computing"] > 0 and other["waiting"] > one["waiting"] > 0
        assert other["communicating"] >= one["communicating"] >= 0 and other["memory_bytes"] > 1e7


def test_what_ranks_refuse_leaves_them_in_step(group: Group) -> None:
    """As where one of them has no memory for it: none has new weights then, and all go on."""
    group.update_weights(some(4))
    before, age = group.predict({"x": X})["y"], group.age
    for wrong in ({"first": np.zeros(3, np.float32)}, {"none": np.zeros(3, np.float32)}, {}):
        with pytest.raises(PredictError, match=r"first|none|No weights"):
            group._requests.ask(wire.Kind.WEIGHTS, {}, wrong)
        assert np.array_equal(group.predict({"x": X})["y"], before)
    assert group.age == age and group.state == "ready"


@pytest.mark.parametrize("mesh", ["data=2", "pipeline=2", "data=2,tensor=2"])
def test_on_any_mesh(model: Path, tmp_path: Path, mesh: str) -> None:
    options = SliceOptions(mesh=parse_mesh(mesh))
    with start(
        model, options, launcher="local", threads=1, variable_weights=["first", "second", "bias"]
    ) as group:
        group.predict({"x": X})
        group.update_weights(some(1))
        want = oracle(tmp_path, some(1), X)
        assert np.allclose(group.predict({"x": X})["y"], want, rtol=1e-4, atol=1e-4)


def test_later_ranks_get_what_was_given_and_not_what_became_of_it() -> None:
    given = np.arange(4, dtype=np.float32)
    taken = checked({"w": given}, [TensorSpec("w", np.dtype(np.float32), (4,))])
    given[:] = -1
    assert taken["w"].tolist() == [0, 1, 2, 3]
