"""The same questions put to mindspore_lite 2.0.0 (answers on file) and to `ranks`."""

import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import ranks
from ranks import errors

DATA = Path(__file__).parents[1] / "data"
_spec = importlib.util.spec_from_file_location("mindspore_lite_answers", DATA / "mindspore_lite_answers.py")
assert _spec is not None and _spec.loader is not None
questions = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(questions)
ANSWERS: dict[str, str] = json.loads((DATA / "mindspore_lite_answers.json").read_text("utf-8"))

# Where later versions of mindspore_lite (2.1 and on, by their source) answer otherwise, `ranks` follows them:
# part of the 2.0.0 answer -> what stands there.
LATER: dict[str, str | dict[str, str]] = {
    "shape must be list,": "shape must be list or tuple,",
    "Tensor._tensor, but": "Tensor._tensor or numpy ndarray, but",
    "inputs must be list, but got": {
        "predict": "inputs must be list or tuple, but got",
        "resize": "inputs must be list or tuple of Lite Tensor, but got",
    },
    "dims must be list,": "dims must be list or tuple of shape,",
    "dims element must be list,": "dims element must be list or tuple of int,",
}
# Where the original only says that something failed, `ranks` says the same and why.
REASONS = {
    "RuntimeError: predict failed!": "predict failed! Error is ",
    "RuntimeError: resize failed! Error is Common error code.": "resize failed! Error is ",
    "RuntimeError: build_from_file failed! Error is Common error code.": "build_from_file failed! Error is ",
    "RuntimeError: ModelParallelRunner's build from file failed! Error is Common error code.": (
        "ModelParallelRunner's build from file failed! Error is "
    ),
    "RuntimeError: ModelParallelRunner's build from file failed, model_path does not exist!": (
        "ModelParallelRunner's build from file failed, model_path does not exist! "
    ),
    "RuntimeError: build_from_file failed, model_path does not exist!": (
        "build_from_file failed, model_path does not exist! "
    ),
    "RuntimeError: build_from_file failed, config_path does not exist!": (
        "build_from_file failed, config_path does not exist! "
    ),
}


def test_every_case_has_an_answer() -> None:
    assert set(questions.CASES) == set(ANSWERS)
    assert len(ANSWERS) > 100


@pytest.mark.parametrize("case", questions.CASES)
def test_same_answer(case: str, tmp_path: Path) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"no model\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = questions.answer(case, ranks, np, str(file))
    expected = ANSWERS[case]
    if expected in REASONS:
        kind, _, message = found.partition(": ")
        assert issubclass(getattr(errors, kind), errors.ShardrunError)
        assert message.startswith(REASONS[expected])
        assert len(message) > len(REASONS[expected])
        return
    if expected == "AttributeError: can't set attribute":
        assert found.startswith("AttributeError: ")  # the words are Python's, which differ by version
        return
    if expected.startswith("name: "):
        expected += "\ndevice: None:-1."  # later versions of Tensor print their device too
    for earlier, later in LATER.items():
        text = later if isinstance(later, str) else later["resize" if ".resize(" in case else "predict"]
        expected = expected.replace(earlier, text)
    assert found == expected


@pytest.mark.parametrize("case", ["mslite.Model().predict([])", "mslite.Model().resize([], [])"])
def test_runtime_errors_are_runtime_errors(case: str) -> None:
    with pytest.raises(RuntimeError):
        eval(case, {"mslite": ranks})


def test_model_type_has_onnx_beside_the_originals() -> None:
    assert [one.name for one in ranks.ModelType] == ["MINDIR", "MINDIR_LITE", "ONNX"]
