"""What lies in the cache folder is held as long as something needs it, and no longer."""

from __future__ import annotations

import fcntl
import gc
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
import sharding
from ranks.cache import locks
from ranks.cache.place import prepare
from ranks.errors import ShardrunError
from ranks.models import imported
from ranks.run import executor
from tests.ranks import api_models
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

MINDIR = Path(__file__).parents[2] / "data" / "mindir" / "mlp"
pytestmark = [pytest.mark.timeout(120), pytest.mark.usefixtures("single", "cache")]


def is_held(folder: Path) -> bool:
    """Whether somebody holds a folder, so that it is not thrown out."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        return not locks.lock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB, folder)
    finally:
        os.close(descriptor)


def conversion(cache: Path) -> Path:
    (found,) = (path for path in (cache / "converted").iterdir() if path.is_dir())
    return found


def built(path: Path | str = MINDIR / "model.mindir", **options: Any) -> ranks.Model:
    model = ranks.Model()
    model.build_from_file(str(path), ranks.ModelType.MINDIR, **options)
    return model


def drop(model: ranks.Model, tmp_path: Path) -> None:
    """Nothing but letting go of the model."""


def build_another(model: ranks.Model, tmp_path: Path) -> None:
    model.build_from_file(str(api_models.add_one(tmp_path / "other.onnx")), ranks.ModelType.ONNX)


def resize(model: ranks.Model, tmp_path: Path) -> None:
    model.resize(model.get_inputs(), [[7, 20]])
    gc.collect()
    assert is_held(conversion(tmp_path / "cache"))
    model.resize(model.get_inputs(), [[8, 20]])
    assert model.predict([np.zeros((8, 20), np.float32)])[0].shape == [8, 5]


@pytest.mark.parametrize("end", [drop, build_another, resize])
def test_a_conversion_is_held_by_the_models_that_need_it(
    end: Callable[[ranks.Model, Path], None], cache: Path, tmp_path: Path
) -> None:
    model, other = built(), built()
    place = conversion(cache)
    gc.collect()
    assert is_held(place)
    end(model, tmp_path)
    assert is_held(place)  # the other one
    del other
    if end is build_another:
        assert not is_held(place)
    del model
    gc.collect()
    assert not is_held(place)


def test_a_runner_holds_what_it_serves(cache: Path) -> None:
    runner = ranks.ModelParallelRunner()
    runner.build_from_file(str(MINDIR / "model.mindir"))
    assert is_held(conversion(cache))
    runner.close()
    gc.collect()
    assert not is_held(conversion(cache))


def test_a_build_that_fails_holds_nothing(cache: Path) -> None:
    with pytest.raises(ShardrunError, match="has no weight 'nope' among"):
        built(config_dict={"cpu_context": {"variable_weights_list": "nope"}})
    gc.collect()
    assert not is_held(conversion(cache))


def test_shards_of_the_cache_are_held_by_the_ranks_that_run_them(cache: Path, tmp_path: Path) -> None:
    model = api_models.linear(tmp_path / "m.onnx")
    place = prepare(cache, "slices") / f"m-2-{'0' * 24}"
    sharding.slice_model(model, 2, place)

    def work(communicator: FakeCommunicator) -> list[bool]:
        loaded = executor.load(place, communicator=communicator)
        found = [is_held(place)]
        loaded.close()
        communicator.barrier()
        return [*found, is_held(place)]

    assert on_ranks(2, work) == [[True, False]] * 2


def test_outside_of_models_it_is_held_until_the_process_ends(cache: Path) -> None:
    file = imported.as_onnx(MINDIR / "model.mindir")
    gc.collect()
    assert is_held(file.parent)
    locks.PINS.held.pop(file.parent).close()
    assert not is_held(file.parent)
    shutil.rmtree(file.parent)
    assert not locks.hold(file.parent)
