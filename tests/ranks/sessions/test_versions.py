"""Models of versions that ONNX Runtime does not run: one sentence, by its own words."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import onnx
import onnxruntime
import pytest
from onnx import helper

from ranks.errors import ModelError
from ranks.sessions import versions

OPSET = (
    "[ONNXRuntimeError] : 1 : FAIL : ONNX Runtime only *guarantees* support for models stamped with official "
    "released onnx opset versions. Opset 99 is under development and support for this is limited. The "
    "operator schemas and or other functionality may change before next ONNX release and in this case ONNX "
    "Runtime will not guarantee backward compatibility. Current official support for domain ai.onnx is till "
    "opset 23."
)
IR = "[ONNXRuntimeError] : 1 : FAIL : Unsupported model IR version: 99, max supported IR version: 11"


def test_what_onnx_runtime_said_is_told_in_other_words() -> None:
    runtime = f"ONNX Runtime {onnxruntime.__version__}"
    assert versions.too_new(OPSET) == (
        f"is written with opset 99 of ai.onnx, but {runtime} runs opsets up to 23: export it with opset 23 "
        "or lower, or install a newer ONNX Runtime."
    )
    assert versions.too_new(IR) == (
        f"has the IR version 99, but {runtime} reads versions up to 11: save it with an older release of "
        "onnx (or set the model's ir_version to 11), or install a newer ONNX Runtime."
    )
    assert versions.too_new("no such file") is None


def model(ir_version: int = 10, **opsets: int) -> onnx.ModelProto:
    imports = [
        helper.make_opsetid(name.replace("_", ".").removeprefix("onnx"), version)
        for name, version in opsets.items()
    ]
    made = helper.make_model(helper.make_graph([], "g", [], []), opset_imports=imports)
    made.ir_version = ir_version
    return made


@pytest.mark.parametrize(
    ("given", "asked"),
    [
        (model(ai_onnx=23), False),
        (model(ai_onnx=24), True),
        (model(onnx=23), False),
        (model(onnx=24), True),
        (model(11, ai_onnx=18), False),
        (model(12, ai_onnx=18), True),
        (model(ai_onnx=18, ai_onnx_ml=5), False),
        (model(ai_onnx=18, ai_onnx_ml=6), True),
        (model(ai_onnx=18, com_microsoft=1), False),
        (model(ai_onnx=18, com_microsoft=2), True),
        (model(ai_onnx=18, mine=999), False),
    ],
)
def test_onnx_runtime_is_asked_of_new_versions_only(
    monkeypatch: pytest.MonkeyPatch, given: onnx.ModelProto, asked: bool
) -> None:
    found: list[Any] = []

    def session(content: bytes, *_: object, **__: object) -> None:
        found.append(onnx.ModelProto.FromString(content))

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    versions.check_versions(given, Path("m.onnx"))
    assert len(found) == asked
    for small in found:
        assert small.ir_version == given.ir_version and small.opset_import == given.opset_import


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (
            model(99, ai_onnx=18),
            r"^m\.onnx has the IR version 99, but ONNX Runtime .* reads versions up to \d+",
        ),
        (
            model(onnx=999),
            r"^m\.onnx is written with opset 999 of ai\.onnx, but ONNX Runtime .* up to \d+",
        ),
    ],
)
def test_versions_that_it_does_not_run(given: onnx.ModelProto, message: str) -> None:
    with pytest.raises(ModelError, match=message):
        versions.check_versions(given, Path("m.onnx"))


def test_what_it_refuses_for_other_reasons_is_not_the_versions(monkeypatch: pytest.MonkeyPatch) -> None:
    def session(*_: object, **__: object) -> None:
        raise RuntimeError("no memory")

    monkeypatch.setattr(onnxruntime, "InferenceSession", session)
    versions.check_versions(model(99), Path("m.onnx"))
