"""Weights shared of a model that is no file but bytes or an object, and attached to in any of these forms.

The right answer is ONNX Runtime's on the file."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

import ranks
from ranks.errors import ShardrunError
from tests.launcher.cli_tools import copies, environment, save_mlp
from tests.ranks.given_forms import FORMS, X, given

CHILD = """
import json, sys
import ranks
from tests.ranks.given_forms import X, given
path, handle, kinds = sys.argv[1:]
found = {}
for kind in json.loads(kinds):
    try:
        with ranks.attach(handle, given(kind, path)) as attached:
            found[kind] = attached.predict([X])[0].get_data_to_numpy().tolist()
    except RuntimeError as error:
        found[kind] = str(error)
print(json.dumps(found))
"""


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> str:
    return str(save_mlp(tmp_path_factory.mktemp("given") / "m.onnx", width=2048))


@pytest.fixture(scope="module")
def answer(path: str) -> Any:
    return ort.InferenceSession(path).run(None, {"x": X})[0]


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    monkeypatch.setenv("TMPDIR", str(tmp_path))
    yield
    left = [item.name for item in tmp_path.iterdir() if item.name != "cache"]
    assert left == []


def _attached(path: str, handle: Any, kinds: list[str], tmp_path: Path) -> dict[str, Any]:
    environ = environment(SHARDRUN_CACHE=str(tmp_path / "cache"), TMPDIR=str(tmp_path))
    done = copies().run(["-c", CHILD, path, str(handle), json.dumps(kinds)], environ, Path.cwd(), 120)
    assert done.returncode == 0, done.stderr
    found: dict[str, Any] = json.loads(done.stdout)
    return found


@pytest.mark.parametrize("kind", FORMS)
def test_every_form_of_a_file_is_the_same_model(kind: str, path: str, answer: Any, tmp_path: Path) -> None:
    with ranks.share_weights(FORMS[kind](path)) as owner:
        np.testing.assert_allclose(owner.predict([X])[0].get_data_to_numpy(), answer, rtol=1e-4, atol=1e-4)
        found = _attached(path, owner.handle, list(FORMS), tmp_path)
    for values in found.values():
        np.testing.assert_allclose(values, answer, rtol=1e-4, atol=1e-4)


def test_a_model_of_onnx_ir_is_shared_with_its_like(path: str, answer: Any, tmp_path: Path) -> None:
    """It is written anew, so that its content differs from the file's: others say so and what to do."""
    with ranks.share_weights(given("onnx_ir.Model", path)) as owner:
        np.testing.assert_allclose(owner.predict([X])[0].get_data_to_numpy(), answer, rtol=1e-4, atol=1e-4)
        found = _attached(path, owner.handle, ["onnx_ir.Model", "path"], tmp_path)
    np.testing.assert_allclose(found["onnx_ir.Model"], answer, rtol=1e-4, atol=1e-4)
    assert "has another model" in found["path"] and found["path"].endswith("Build the same file in both.")


@pytest.mark.parametrize(
    ("model", "kind", "text"),
    [
        (b"", ShardrunError, "the given model is empty: it has 0 bytes"),
        (b"abc", ShardrunError, "its 3 bytes are neither those of an ONNX file nor MindIR's"),
        (onnx.ModelProto(), ShardrunError, "the given model is an empty file"),
        (3, TypeError, "model_path must be str, but got <class 'int'>"),
        (None, TypeError, "model_path must be str, but got <class 'NoneType'>"),
    ],
)
def test_what_is_no_model(model: Any, kind: type[Exception], text: str) -> None:
    with pytest.raises(kind, match=text):
        ranks.share_weights(model)
    with pytest.raises(kind, match=text):
        ranks.attach("nobody", model, timeout=0)
