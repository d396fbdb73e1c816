"""What tests on a GPU hold answers against."""

from __future__ import annotations

from typing import Any

import numpy as np
import onnxruntime as ort

from ranks.devices.providers import CUDA
from ranks.sessions.assigned import nodes_of

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


def assert_on_cuda(session: ort.InferenceSession, *types: str) -> None:
    """CUDA's provider has taken every node, or every node of these types, of which there must be one."""
    provider = CUDA
    if not hasattr(session, "get_provider_graph_assignment_info"):  # an older ONNX Runtime
        assert session.get_providers()[0] == provider
        return
    nodes = nodes_of(session)
    assert nodes, (
        "ONNX Runtime says nothing of its nodes: was the session made with ranks.sessions.assigned.RECORD?"
    )
    asked = [node for node in nodes if not types or node[1] in types]
    assert asked and all(node[0] == provider for node in asked), nodes
