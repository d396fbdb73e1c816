"""Seconds of nodes, read from ONNX Runtime's profiles."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from sharding.errors import OptionError
from sharding.pipeline import profile


def run(name: str, duration: Any, cat: str = "Node") -> dict[str, Any]:
    return {"cat": cat, "name": name, "dur": duration}


def write(folder: Path, events: Any) -> Path:
    path = folder / "profile.json"
    path.write_text(events if isinstance(events, str) else json.dumps(events))
    return path


def test_a_node_takes_the_mean_of_its_runs_but_for_the_first(tmp_path: Path) -> None:
    events = [
        run("a_kernel_time", 9_000_000), run("b_kernel_time", 5), run("a_kernel_time", 1_000_000),
        run("a_kernel_time", 2_000_000.0), run("a_fence_before", 7), run("a_kernel_time", 8, "Session"),
        {"cat": "Node", "dur": 4}, {"name": "a_kernel_time"}, {}, run("b_kernel_time_x", -1),
        run("c_kernel_time", 0),
    ]  # fmt: skip
    assert profile.read_profile(write(tmp_path, events)) == {"a": 1.5, "b": 5e-6, "c": 0.0}


@pytest.mark.parametrize(
    ("events", "message"),
    [
        ([run("a_kernel_time", -1)], r"\$\[0\]\.dur must be a number of microseconds, but is -1\."),
        ([run("a_kernel_time", True)], r"\$\[0\]\.dur must be a number of microseconds, but is true\."),
        ([{}, run("a_kernel_time", "1")], r"\$\[1\]\.dur must be"),
        ([run("a_kernel_time", None)], r"\$\[0\]\.dur must be"),
        ([run("a_kernel_time", 1e15)], r"\$\[0\]\.dur must be"),
        ("[" + '{"cat": "Node", "name": "a_kernel_time", "dur": NaN}]', r"\$\[0\]\.dur must be"),
        ([3], r"\$\[0\] must be an object, but is 3\."),
        ({"a": 1}, r"\$ must be a list of events, but is"),
        ([], "has no kernel times of nodes"),
        ([run("a_kernel_time", 1, "Session")], "has no kernel times of nodes"),
        ("[", "is not JSON .* a session writes it whole only when it ends"),
        ("[" * 100_000, "is not JSON"),
    ],
)
def test_files_that_are_no_profile(tmp_path: Path, events: Any, message: str) -> None:
    path = write(tmp_path, events)
    with pytest.raises(OptionError, match=message) as caught:
        profile.read_profile(path)
    assert str(path) in str(caught.value) and len(str(caught.value)) < len(str(path)) + 200


def test_files_that_cannot_be_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(OptionError, match=r"gone\.json does not exist"):
        profile.read_profile(tmp_path / "gone.json")
    with pytest.raises(OptionError, match="is not a file"):
        profile.read_profile(str(tmp_path))
    path = write(tmp_path, [run("a_kernel_time", 1)])
    monkeypatch.setattr(profile, "MAX_BYTES", path.stat().st_size)
    assert profile.read_profile(path) == {"a": 1e-6}
    monkeypatch.setattr(profile, "MAX_BYTES", path.stat().st_size - 1)
    with pytest.raises(OptionError, match=f"has {path.stat().st_size} bytes; at most"):
        profile.read_profile(path)


@pytest.mark.parametrize(
    ("measured", "seconds"),
    [
        ({}, [1.0, 2.0, 4.0]),
        ({"a": 10.0}, [10.0, 20.0, 40.0]),
        ({"a": 1.0, "b": 5.0}, [1.0, 5.0, 8.0]),
        ({"elsewhere": 3.0}, [1.0, 2.0, 4.0]),
        ({"": 3.0}, [1.5 * 0.5, 1.5, 3.0]),
    ],
)
def test_what_was_not_measured_is_estimated_in_proportion(
    monkeypatch: pytest.MonkeyPatch, measured: dict[str, float], seconds: list[float]
) -> None:
    """Of a node without a name, too."""
    graph: Any = [
        SimpleNamespace(node=SimpleNamespace(name=name), estimate=estimate)
        for name, estimate in (("a", 1.0), ("b", 2.0), (None, 4.0))
    ]
    monkeypatch.setattr(profile, "node_seconds", lambda step, sizes: step.estimate)
    sizes: Any = None
    assert profile.step_seconds(graph, measured, sizes) == seconds
