"""Handles of weights in device memory, over a driver whose memory is the host's."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import ranks
from ranks.errors import DeviceError
from tests.ranks import api_models
from tests.ranks.fake_cuda import library
from tests.ranks.weights_worker import Refused, Workers, oracle

pytestmark = pytest.mark.timeout(120)


def test_owner_and_others_use_one_block(workers: Workers, shared_model: Path) -> None:
    owner, first, second = (workers.new() for _ in range(3))
    for worker in (owner, first, second):
        worker.do("on_fake_gpu", path=library())
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    expected = oracle(shared_model)
    for worker in (first, second):
        before = worker.do("descriptors")
        assert worker.do("attach", given=number, path=str(shared_model)) == "attached"
        assert worker.predicts(expected)
        worker.do("drop")
        # Connection and folder are closed, and so are the descriptors that came; the driver stays open.
        assert worker.do("descriptors") <= before + 1
        assert worker.do("attach", given=number, path=str(shared_model)) == "attached"
    assert owner.predicts(expected)
    owner.kill()
    assert first.predicts(expected)
    first.kill()
    assert second.predicts(expected)


def test_cut_models_and_other_devices(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    owner, other = workers.new(), workers.new()
    owner.do("on_fake_gpu", path=library())
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    found = other.do("attach", given=number, path=str(shared_model))
    assert isinstance(found, Refused)
    assert "runs it on a GPU with CUDA, but this process on the CPU" in found.text
    other.do("on_fake_gpu", path=library())
    another = api_models.linear(tmp_path / "another.onnx", width=1024)
    found = other.do("attach", given=number, path=str(another))
    assert isinstance(found, Refused) and "has another model" in found.text


def test_machine_without_a_gpu(shared_model: Path) -> None:
    from ranks.devices import devices

    context = ranks.Context()
    context.target = ["gpu"]
    try:
        devices.require("CUDAExecutionProvider", 0)
    except DeviceError:
        with pytest.raises(DeviceError, match="cannot be served here"):
            ranks.share_weights(str(shared_model), context)
    else:
        with (
            ranks.share_weights(str(shared_model), context) as owner,
            ranks.attach(owner.handle, str(shared_model), context) as other,
        ):
            from tests.ranks.weights_worker import INPUT

            found = other.predict([INPUT])[0].get_data_to_numpy()
            expected = oracle(shared_model)
            assert abs(found - expected).max() / abs(expected).max() <= 1e-3


@pytest.mark.parametrize("said", ["no JSON", '{"any": 3}', '{"%s": [["Reshape"], 8, false]}'])
def test_a_model_that_has_a_note_of_that_name_already(
    workers: Workers, shared_model: Path, tmp_path: Path, said: str
) -> None:
    """What a model says of where its weights are read is not believed."""
    import onnx

    model = onnx.load(shared_model)
    weight = max(model.graph.initializer, key=lambda item: len(item.raw_data)).name
    model.metadata_props.add(key="shardrun.read_in_host_memory", value=said.replace("%s", weight))
    path = tmp_path / "noted.onnx"
    onnx.save(model, path)
    owner, other = workers.new(), workers.new()
    for worker in (owner, other):
        worker.do("on_fake_gpu", path=library())
    number = owner.do("share", path=str(path), family=os.getpid())
    assert not isinstance(number, Refused), number.text
    assert other.do("attach", given=number, path=str(path)) == "attached"
    assert other.predicts(oracle(shared_model))
