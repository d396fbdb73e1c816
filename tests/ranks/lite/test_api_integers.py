"""Whole numbers of numpy, and of whatever else has ``__index__``, are taken wherever ints are."""

from __future__ import annotations

import os
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from ranks.lite.options import config
from ranks.weights.shared.request import Attach, Share
from tests.ranks.weights_worker import INPUT, oracle

pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("single")]


class Odd:
    """A whole number of some other library."""

    def __init__(self, number: int) -> None:
        self.number = number

    def __index__(self) -> int:
        return self.number


KINDS = [np.uint64, np.int32, np.asarray, Odd]


@pytest.mark.parametrize("kind", KINDS)
def test_handles_and_process_ids(kind: Any, shared_model: Path) -> None:
    me = kind(os.getpid())
    with ranks.share_weights(str(shared_model), pids=[me], family=me) as owner:
        handle = np.uint64(owner.handle) if kind is np.int32 else kind(owner.handle)
        with ranks.attach(handle, str(shared_model), timeout=np.float32(30)) as model:
            found = model.predict([INPUT])[0].get_data_to_numpy()
    np.testing.assert_allclose(found, oracle(shared_model), rtol=1e-4)
    assert config.load("", {"pids": [me, kind(7)]}).sharing == Share((os.getpid(), 7), "config_dict['pids']")
    assert config.load("", {"pids": me}).sharing == Share((os.getpid(),), "config_dict['pids']")
    assert config.load("", {"shared_mem_handle": np.uint64(2**64 - 1)}).sharing == Attach(2**64 - 1)


@pytest.mark.parametrize("wrong", [True, np.True_, 1.0, np.float64(1), np.array([1, 2]), b"1"])
def test_what_is_no_whole_number(wrong: Any, shared_model: Path) -> None:
    path = str(shared_model)
    with pytest.raises(TypeError, match="handle must be int or str, but got <class"):
        ranks.attach(wrong, path)
    with pytest.raises(TypeError, match=r"pids element must be int, but got <class .* at index 1"):
        ranks.share_weights(path, pids=[os.getpid(), wrong])
    with pytest.raises(TypeError, match="pids must be a list of int, but got <class 'numpy"):
        ranks.share_weights(path, pids=np.array(os.getpid()))  # type: ignore[arg-type]
    with pytest.raises(TypeError, match="family must be int, but got <class"):
        ranks.share_weights(path, family=wrong)
    with pytest.raises(TypeError, match=r"config_dict\['pids'\] element must be int"):
        config.load("", {"pids": [wrong]})
    with pytest.raises(TypeError, match=r"config_dict\['shared_mem_handle'\] must be str, but got <class"):
        config.load("", {"shared_mem_handle": wrong})


@pytest.mark.parametrize("kind", KINDS)
def test_options_of_a_context(kind: Any) -> None:
    context = ranks.Context()
    context.cpu.thread_num = context.cpu.inter_op_parallel_num = kind(2)
    context.cpu.thread_affinity_mode = kind(1)
    context.cpu.thread_affinity_core_list = [kind(0), 1]
    context.gpu.device_id = context.ascend.device_id = context.ascend.rank_id = kind(3)
    context.parallel.workers_num, context.parallel.device_ids = kind(4), [kind(5)]
    found = [context.cpu.thread_num, *context.cpu.thread_affinity_core_list, context.gpu.device_id]
    found += [context.ascend.rank_id, context.parallel.workers_num, *context.parallel.device_ids]
    assert found == [2, 0, 1, 3, 3, 4, 5]
    assert {type(number) for number in found} == {int}
    with pytest.raises(ValueError, match="cpu_thread_num must be a non-negative int"):
        context.cpu.thread_num = np.int8(-1)  # type: ignore[assignment]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)
        old = ranks.Context(thread_num=kind(2), thread_affinity_core_list=[kind(1)])
        assert (old.cpu.thread_num, old.cpu.thread_affinity_core_list) == (2, [1])
        assert ranks.GPUDeviceInfo(kind(3)).device_id == ranks.AscendDeviceInfo(kind(3)).device_id == 3


@pytest.mark.parametrize("kind", KINDS)
def test_shapes(kind: Any, shared_model: Path) -> None:
    tensor = ranks.Tensor(shape=[kind(2), 3], dtype=ranks.DataType.FLOAT32)
    tensor.shape = [kind(3), kind(2)]
    assert tensor.shape == [3, 2]
    assert {type(length) for length in tensor.shape} == {int}
    model = ranks.Model()
    model.build_from_file(str(shared_model), ranks.ModelType.ONNX)
    (given,) = model.get_inputs()
    model.resize([given], [[kind(5), 8]])
    assert given.shape == [5, 8]
    assert model.get_inputs()[0].shape == [5, 8]
    with pytest.raises(TypeError, match="dims element's element must be int, but got <class 'float'>"):
        model.resize([given], [[5.0, 8]])  # type: ignore[list-item]
