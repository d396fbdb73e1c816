"""What tests on a GPU hold answers against."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ranks.devices.providers import CUDA
from ranks.sessions import session
from tests.gpu.assigned import nodes_of

TOLERANCE = 5e-3
"""Of the largest value: a GPU may multiply in TF32, which rounds factors to 11 bits. A sum that lacks a part
is off by far more."""


def assert_near(ours: Any, theirs: Any) -> None:
    """Equal in shape and type, and within `TOLERANCE`."""
    if isinstance(ours, list):
        assert len(ours) == len(theirs)
        for a, b in zip(ours, theirs, strict=True):
            assert_near(a, b)
        return
    assert (ours.shape, ours.dtype) == (theirs.shape, theirs.dtype)
    if ours.dtype.kind != "f":
        np.testing.assert_array_equal(ours, theirs)
    elif ours.size:
        assert np.abs(ours - theirs).max() <= TOLERANCE * max(np.abs(theirs).max(), TOLERANCE)


def assert_on_cuda(made: ort.InferenceSession, *types: str) -> None:
    """CUDA's provider has taken every node, or every node of these types, of which there must be one."""
    provider = CUDA
    if not hasattr(made, "get_provider_graph_assignment_info"):  # an older ONNX Runtime
        assert made.get_providers()[0] == provider
        return
    nodes = nodes_of(made)
    assert nodes, (
        "ONNX Runtime says nothing of its nodes: was the session made with tests.gpu.assigned.RECORD?"
    )
    asked = [node for node in nodes if not types or node[1] in types]
    assert asked and all(node[0] == provider for node in asked), nodes


def profiled(monkeypatch: pytest.MonkeyPatch, folder: Path) -> None:
    """Sessions note what they run, for `assert_ran_on_cuda`."""
    options_for = session.options_for

    def noting(config: session.SessionConfig) -> ort.SessionOptions:
        options = options_for(config)
        options.enable_profiling = True
        options.profile_file_prefix = str(folder / "ran")
        return options

    monkeypatch.setattr(session, "options_for", noting)


def assert_ran_on_cuda(made: ort.InferenceSession) -> None:
    """CUDA's provider has run every node that a session which was `profiled` has run, of which there must be
    one. Every release of ONNX Runtime says so."""
    events = json.loads(Path(made.end_profiling()).read_text(encoding="utf-8"))
    told = [event["args"] for event in events if event.get("cat") == "Node" and "provider" in event["args"]]
    ran = {(args["provider"], args["op_name"]) for args in told}
    assert ran and all(provider == CUDA for provider, _ in ran), ran
