"""Which execution provider has taken each node of a session: the one asked for may have left some over."""

from __future__ import annotations

from collections.abc import Collection
from typing import TYPE_CHECKING

from ranks.devices.providers import CPU
from sharding.onnx_files.walk import nodes_in

if TYPE_CHECKING:
    import onnx
    import onnxruntime as ort

RECORD = {"session.record_ep_graph_assignment_info": "1"}
"""The entry of a session's options without which ONNX Runtime does not say; older releases ignore it."""


def nodes_of(session: ort.InferenceSession) -> list[tuple[str, str, str]]:
    """Provider, type and name (which may be empty) of each node of a session that was made with `RECORD`;
    none where this ONNX Runtime cannot say."""
    read = getattr(session, "get_provider_graph_assignment_info", None)
    parts = [] if read is None else read()
    return [(part.ep_name, node.op_type, node.name) for part in parts for node in part.get_nodes()]


def on_cpu(session: ort.InferenceSession) -> set[str]:
    """The names of the nodes that the CPU's provider has taken; see `nodes_of`."""
    return {name for who, _, name in nodes_of(session) if who == CPU and name}


def read_on_cpu(
    graph: onnx.GraphProto, session: ort.InferenceSession, names: Collection[str]
) -> dict[str, str]:
    """The values among ``names`` that nodes read which the CPU's provider has taken, each with the type of
    such a node. ``graph`` is what the session was made of, with its optimisations off and names
    by `name_all`.
    """
    there = on_cpu(session)
    read: dict[str, str] = {}
    for node in nodes_in(graph):
        if node.name in there:
            read.update(dict.fromkeys(node.input, node.op_type))
    return {name: kind for name, kind in read.items() if name in names}


def name_all(graph: onnx.GraphProto) -> None:
    """Gives each node a name of its own, those in the bodies of others too."""
    seen: set[str] = set()
    for index, node in enumerate(nodes_in(graph)):
        name = node.name or f"{node.op_type}_{index}"
        while name in seen:
            name += "_"
        node.name = name
        seen.add(name)
