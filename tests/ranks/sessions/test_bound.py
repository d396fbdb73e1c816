"""Runs of sessions with their bindings, as plans make them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ranks.sessions import bound
from tests.ranks import state_models
from tests.ranks.state_models import FORMS


class Public:
    """A session of which only the public methods are there."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self.run_with_iobinding = session.run_with_iobinding
        self.get_providers = session.get_providers


def test_runs_go_past_the_python_of_onnx_runtime(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """And take its public way where a version of it has another inside."""
    FORMS["buffered"](tmp_path / "model.onnx")
    calls: list[object] = []
    real = ort.InferenceSession.run_with_iobinding

    def counted(*arguments: Any) -> None:
        calls.append(arguments)
        real(*arguments)

    monkeypatch.setattr(ort.InferenceSession, "run_with_iobinding", counted)
    session = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    results = []
    for inside in (True, False):
        binding = session.io_binding()
        (ids,) = state_models.steps("buffered", [3])
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("attention_mask", np.ones((1, 3), np.int64))
        for argument in session.get_inputs()[2:]:
            shape = [1, state_models.GROUPS, 0, state_models.SIZE]
            binding.bind_cpu_input(argument.name, np.zeros(shape, np.float32))
        for argument in session.get_outputs():
            binding.bind_output(argument.name)
        bound.running(session if inside else Public(session), binding, on_host=True)()  # type: ignore[arg-type]
        results.append(binding.copy_outputs_to_cpu()[0])
    assert len(calls) == 1
    np.testing.assert_array_equal(*results)
