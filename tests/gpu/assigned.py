"""Which execution provider has taken each node of a session: the one asked for may have left some over."""

from __future__ import annotations

import onnxruntime as ort

RECORD = {"session.record_ep_graph_assignment_info": "1"}
"""The entry of a session's options without which ONNX Runtime does not say; older releases ignore it."""


def nodes_of(session: ort.InferenceSession) -> list[tuple[str, str, str]]:
    """Provider, type and name (which may be empty) of each node of a session that was made with `RECORD`;
    none where this ONNX Runtime cannot say."""
    read = getattr(session, "get_provider_graph_assignment_info", None)
    parts = [] if read is None else read()
    return [(part.ep_name, node.op_type, node.name) for part in parts for node in part.get_nodes()]
