"""What types operators take, of ONNX's own and of ONNX Runtime's."""

from __future__ import annotations

import pytest

from ranks.precision.schemas import signature

FLOATS = {"tensor(float)", "tensor(float16)", "tensor(double)"}


def test_inputs_and_outputs_in_their_places() -> None:
    found = signature("", "Clip", 13)
    assert found is not None
    assert [found.input(index) for index in range(4)] == ["T", "T", "T", ""]
    assert [found.output(index) for index in range(2)] == ["T", ""]
    assert found.allowed["T"] >= FLOATS


@pytest.mark.parametrize(
    ("operator", "inputs", "outputs"),
    [
        ("Concat", ["T", "T", "T"], ["T", "", ""]),
        ("Split", ["T", "tensor(int64)", ""], ["T", "T", "T"]),
        ("Loop", ["I", "B", "V"], ["V", "V", "V"]),
        ("Shape", ["T", "", ""], ["T1", "", ""]),
    ],
)
def test_operators_of_any_number_of_values(operator: str, inputs: list[str], outputs: list[str]) -> None:
    found = signature("", operator, 18)
    assert found is not None
    assert [found.input(index) for index in range(3)] == inputs
    assert [found.output(index) for index in range(3)] == outputs
    assert found == signature("ai.onnx", operator, 18)


@pytest.mark.parametrize(("version", "whole"), [(6, False), (12, True)])
def test_a_version_has_its_own_types(version: int, whole: bool) -> None:
    found = signature("", "Clip", version)
    assert found is not None and ("tensor(int64)" in found.allowed["T"]) == whole


def test_operators_of_onnx_runtime() -> None:
    found = signature("com.microsoft", "FusedMatMul", 1)
    if found is None:
        pytest.skip("this build of ONNX Runtime does not say what its operators take")
    assert [found.input(index) for index in range(3)] == ["T", "T", ""] and found.output(1) == ""
    assert found.allowed["T"] >= FLOATS
    assert signature("com.microsoft", "FusedMatMul", 0) is None


NONE = [("", "Nothing"), ("mine", "Add"), ("com.microsoft", "Nothing"), ("ai.onnx.ml", "Add")]


@pytest.mark.parametrize(("domain", "operator"), NONE)
def test_operators_that_nobody_knows(domain: str, operator: str) -> None:
    assert signature(domain, operator, 13) is None
