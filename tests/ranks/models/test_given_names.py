"""Errors name the model that the user gave, not the ONNX file that was made of it."""

from __future__ import annotations

import importlib.util
import pickle
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from launcher.job.verify import run_reference
from ranks.errors import ShardrunError
from ranks.models import imported
from ranks.run import executor
from sharding.common.encryption import Key
from tests.ranks.models.test_mindir import built

DATA = Path(__file__).parents[2] / "data" / "mindir"
KEY = b"0123456789ABCDEF"


def test_errors_name_the_model_that_was_given(
    cache: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """And not the ONNX file that is made of it, in the cache or in a temporary folder."""
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path / "tmp"))
    (tmp_path / "tmp").mkdir()
    path = tmp_path / "net.mindir"
    path.write_bytes((DATA / "mlp" / "model.mindir").read_bytes())
    said = []

    def fails(call: Callable[[], object]) -> None:
        with pytest.raises((RuntimeError, ShardrunError)) as caught:
            call()
        said.append(str(caught.value))

    model = built(path)
    fails(lambda: model.resize(model.get_inputs(), [[4, 21]]))
    fails(lambda: built(path, config_dict={"ascend_context": {"variable_weights_list": "nope"}}))
    loaded = executor.load(path)
    loaded.close()
    fails(lambda: loaded.run({"x": np.zeros((4, 20), np.float32)}))
    fails(lambda: executor.load(path, dims={"z": [1]}))
    fails(lambda: executor.load(path, dims={"x": [1]}))
    # ONNX Runtime's own sentences hold the path too.
    monkeypatch.setattr("sharding.importers.mindir.convert.IR_VERSION", 10_000)
    path.write_bytes((DATA / "mlp" / "model_v1.mindir").read_bytes())
    fails(lambda: built(path))
    fails(lambda: executor.load(path))
    fails(lambda: run_reference(path, {}))
    if importlib.util.find_spec("cryptography") is not None:
        path.write_bytes((DATA / "mlp_encrypted" / "model_aes_gcm.mindir").read_bytes())
        fails(lambda: built(path, dec_key=KEY))
        fails(lambda: run_reference(path, {}, key=Key(KEY)))
    for text in said:
        assert str(cache) not in text and str(tmp_path / "tmp") not in text and ".onnx" not in text, text
    assert all(str(path) in text for text in said)


def test_only_the_models_own_name_is_replaced(tmp_path: Path) -> None:
    file = tmp_path / "K.onnx"
    with pytest.raises(ShardrunError) as caught, imported.naming(file, "a\\1.mindir"):
        raise ShardrunError(f"{file}: no {file}.data, {file}")
    assert str(caught.value) == f"a\\1.mindir: no {file}.data, a\\1.mindir"
    assert caught.value.sources == ((str(file), "a\\1.mindir"),)
    assert str(pickle.loads(pickle.dumps(caught.value))) == str(caught.value)


def test_a_source_of_a_source(tmp_path: Path) -> None:
    (tmp_path / "link.onnx").symlink_to("file.onnx")
    link, made = tmp_path / "link.onnx", tmp_path / "made"
    with (
        pytest.raises(ShardrunError) as caught,
        imported.naming(made, "given"),
        imported.naming(link, made),
    ):
        raise ShardrunError(f"{link} is {tmp_path}/file.onnx")
    assert str(caught.value) == "given is given"
