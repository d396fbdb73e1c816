"""Inputs with a default in steps of a session, in one process: ONNX Runtime binds no default by itself."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest

from ranks.errors import ShardrunError
from ranks.run import executor
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks

MODEL = """<ir_version: 8, opset_import: ["" : 17]>
g (float[1, n, 2] x, float[1, p, 2] past, float[2] scale) => (float[1, m, 2] y, float[1, m, 2] present)
<float[2] scale = {1.0, 2.0}, float[2] shift = {0.5, 0.25}> {
  present = Concat <axis = 1> (past, x)
  shifted = Add (present, shift)
  y = Mul (shifted, scale)
}"""
ALL_LISTED = MODEL.replace("float[2] scale)", "float[2] scale, float[2] shift)")
GIVEN: list[np.ndarray | None] = [None, np.array([3, 4], np.float32), None, np.array([0, 1], np.float32)]


def save(folder: Path, text: str = MODEL) -> Path:
    path = folder / "model.onnx"
    onnx.save(onnx.parser.parse_model(text), path)
    return path


def test_a_step_takes_what_it_is_given(tmp_path: Path) -> None:
    path = save(tmp_path)
    plain = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    past = np.zeros((1, 0, 2), np.float32)
    model = executor.load(path, threads=1)
    assert [spec.name for spec in model.optional_inputs] == ["scale"]
    with model.session() as session:
        for step, scale in enumerate(GIVEN):
            x = np.full((1, 1 + step % 2, 2), step + 1, np.float32)
            feeds = {"x": x} if scale is None else {"x": x, "scale": scale}
            want, past = plain.run(None, {**feeds, "past": past})
            np.testing.assert_array_equal(session.predict(feeds)["y"], want)


def test_so_do_steps_that_are_made_with_the_same_feeds(tmp_path: Path) -> None:
    model = executor.load(save(tmp_path), threads=1)
    x, scale = np.ones((1, 1, 2), np.float32), np.array([3, 4], np.float32)
    with model.session() as session, model.stepping(session.number, {"x": x, "scale": scale}) as step:
        assert [step()["y"].tolist() for _ in range(2)] == [[[[4.5, 5.0]] * n] for n in (1, 2)]
    with model.session() as session, model.stepping(session.number, {"x": x}) as step:
        assert step()["y"].tolist() == [[[1.5, 2.5]]]


def test_weights_that_are_all_listed_are_not_fed_to_a_session(tmp_path: Path) -> None:
    model = executor.load(save(tmp_path, ALL_LISTED), threads=1)
    x = np.ones((1, 1, 2), np.float32)
    with model.session() as session:
        with pytest.raises(ShardrunError, match="no input 'scale'"):
            session.predict({"x": x, "scale": x[0, 0]})
        assert session.predict({"x": x})["y"].tolist() == [[[1.5, 2.5]]]


def test_ranks_take_them_too(tmp_path: Path) -> None:
    from sharding import slice_model

    slice_model(save(tmp_path), 2, tmp_path / "slices", allow_replicated=True)
    x, scale = np.ones((1, 1, 2), np.float32), np.array([3, 4], np.float32)

    def steps(communicator: FakeCommunicator) -> list[object]:
        model = executor.load(tmp_path / "slices", communicator=communicator, threads=1)
        with model.session() as session:
            return [session.predict(feeds)["y"].tolist() for feeds in ({"x": x}, {"x": x, "scale": scale})]

    first, second = on_ranks(2, steps)
    assert first == second == [[[[1.5, 2.5]]], [[[4.5, 5.0]] * 2]]
