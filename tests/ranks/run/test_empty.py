"""Requests without any element, which some of ONNX Runtime's operators end a process over."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from ranks.errors import ShardrunError
from ranks.run import executor
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.ranks.rank_models import model, node, save, value

X = np.ones((2, 3, 4), np.float32)


def test_an_operator_that_would_end_the_process(tmp_path: Path) -> None:
    given, result = [value("x", ["b", 3, 4])], [value("z", ["b", 3, 3])]
    product = node("Einsum", ["x", "x"], ["y"], equation="bqd,bkd->bqk")
    plain, *cut = save(
        [
            model([product, node(op, ["y"], ["z"])], given, result)
            for op in ("Relu", "AllReduce", "AllReduce")
        ],
        tmp_path,
    )
    alone = executor.load(plain)
    with pytest.raises(ShardrunError, match="Einsum would end the process over an empty batch"):
        alone.run({"x": X[:0]})
    assert np.array_equal(alone.run({"x": X})[0], np.full((2, 3, 3), 4, np.float32))

    def work(communicator: FakeCommunicator) -> None:
        loaded = executor.load(cut[communicator.rank], communicator=communicator, threads=1)
        with pytest.raises(ShardrunError, match="Einsum would end"):
            loaded.run({"x": X[:0]})
        assert np.array_equal(loaded.run({"x": X})[0], np.full((2, 3, 3), 8, np.float32))

    on_ranks(2, work)


def test_all_other_operators_may_compute_nothing(tmp_path: Path) -> None:
    [path] = save(
        [model([node("Relu", ["x"], ["y"])], [value("x", ["b", 3])], [value("y", ["b", 3])])], tmp_path
    )
    assert executor.load(path).run({"x": np.ones((0, 3), np.float32)})[0].shape == (0, 3)
