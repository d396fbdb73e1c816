"""What ONNX Runtime's own CUDA provider asks of CUDA for our runs: waits, copies, memory and graphs, counted
in a library that stands in for CUDA's."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.ranks import stand_in

pytest.importorskip("torch", reason="torch is not installed")


@pytest.fixture(scope="module")
def counter() -> str:
    """The library that counts."""
    return stand_in.counter()


def run(scenario: str, folder: Path, counter: str, **more: str) -> Any:
    """What the scenario finds; the counter, which alone knows graphs, is loaded unless ``more`` says not."""
    command = ["-m", "tests.ranks.counted_program", scenario, folder, counter]
    environ = stand_in.environment(**{"LD_PRELOAD": counter, **more})
    done = stand_in.copies(LD_PRELOAD=counter).run(command, environ, stand_in.ROOT, 120)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_values_on_the_host_are_copied_when_they_are_bound(tmp_path: Path, counter: str) -> None:
    """Later changes go unseen until such a value is bound again."""
    assert run("bound", tmp_path, counter) == [True, True]


def test_they_are_bound_in_each_run(tmp_path: Path, counter: str) -> None:
    first, *planned = run("host", tmp_path, counter)
    assert first >= 1 and planned[0] >= 2 and planned[1:] == [1, 1], (first, planned)


def test_only_the_last_session_is_waited_for(tmp_path: Path, counter: str) -> None:
    """And what sessions compute in is one arena, which grows no more once shapes are known."""
    runs, strategies, shares = run("cut", tmp_path, counter)
    assert all(near for near, _ in runs)
    assert runs[0][1]["wait for stream"] == 2
    assert [calls for _, calls in runs[1:]] == [{"wait for stream": 1}] * 3
    assert strategies == ["kSameAsRequested"] * 2
    assert shares == [True, True]


def test_ranks_that_share_a_device_share_its_memory(tmp_path: Path, counter: str) -> None:
    assert run("shared", tmp_path, counter) == [[str(8 << 30)] * 2] * 2


def test_graphs_are_captured_once_and_launched_from_then_on(tmp_path: Path, counter: str) -> None:
    runs, _, shares = run("cut", tmp_path, counter, SHARDRUN_CUDA_GRAPHS="1")
    first, second, *later = [calls for _, calls in runs]
    assert "launch graph" not in first and second["make graph"] == 2
    for calls in later:
        assert calls["launch graph"] == 2 and "make graph" not in calls and "allocate" not in calls
    assert shares == [False, False], "a graph's memory stays its own"


def test_what_cannot_be_captured_is_said_with_the_way_out(tmp_path: Path, counter: str) -> None:
    """In the words of CUDA's provider, whose device here keeps no graph."""
    said = run("cut_fails", tmp_path, counter, SHARDRUN_CUDA_GRAPHS="1", LD_PRELOAD="")
    assert said == (
        "ONNX Runtime could not run the model: Error in execution: CUDAGraph::CaptureEnd: graph_ is NULL; "
        "without SHARDRUN_CUDA_GRAPHS=1 (enable_cuda_graph) nothing is captured."
    )
