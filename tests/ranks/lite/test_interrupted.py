"""Ctrl-C at any moment of a prediction: the next one is answered as ever, and no worker is lost."""

from __future__ import annotations

import signal
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import ranks
from tests.sharding import graphs

pytestmark = [pytest.mark.timeout(60), pytest.mark.usefixtures("single")]
X = graphs.array(3, 16)
WORKERS = 2


def _model(path: Path) -> ranks.Model:
    model = ranks.Model()
    model.build_from_file(str(path), ranks.ModelType.ONNX)
    return model


def _runner(path: Path) -> ranks.ModelParallelRunner:
    context = ranks.Context()
    context.target = ["cpu"]
    context.cpu.thread_num = 1
    context.parallel.workers_num = WORKERS
    runner = ranks.ModelParallelRunner()
    runner.build_from_file(str(path), context)
    return runner


def _answer(asked: Any) -> np.ndarray[Any, Any]:
    return np.array(asked.predict([X])[0].get_data_to_numpy())


def _interrupted(asked: Any, moment: int) -> bool:
    """Whether a prediction was, at this one of the moments at which Python looks for signals."""
    left = moment

    def at(frame: Any, event: str, argument: Any) -> None:
        nonlocal left
        left -= event in {"call", "c_return"}
        if left < 0:
            sys.setprofile(None)
            signal.raise_signal(signal.SIGINT)

    sys.setprofile(at)
    try:
        asked.predict([X])
    except KeyboardInterrupt:
        return True
    finally:
        sys.setprofile(None)
    return False


@pytest.mark.parametrize("make", [_model, _runner])
def test_every_moment_of_a_prediction(tmp_path: Path, make: Any) -> None:
    asked = make(graphs.mlp(tmp_path / "m.onnx"))
    expected = _answer(asked)
    moment = 2  # the first are of this test
    while _interrupted(asked, moment):
        assert np.array_equal(_answer(asked), expected), moment
        moment += 1
    assert moment > 20
    answers: list[Any] = []
    threads = [threading.Thread(target=lambda: answers.append(_answer(asked))) for _ in range(2 * WORKERS)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)
    assert len(answers) == 2 * WORKERS
    assert all(np.array_equal(answer, expected) for answer in answers)
