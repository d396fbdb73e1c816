"""A rank model's weights and collectives by layer, for people to look at.

Layers are found by name: exporters name weights after the module that holds them, as in
``encoder.layer.3.attention.query.weight``, and the first number in a name numbers the layers. Where a weight
has no such name (exporters transpose weights and number them), the node that reads it tells: its scope, which
exporters write into its name or its metadata. What says nothing, and every collective, belongs to the layer
last met in order of execution. Where no layer was met yet, or names say nothing at all (``w1``,
``fc1_weight``), each weight begins a layer of its own name, except what is only added or multiplied.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from sharding.search.reshard import COLLECTIVES
from sharding.slices.domains import MICROSOFT, OWN_DOMAIN

FIRST = "(before the first layer)"
_POINT_TO_POINT = frozenset({"Send", "Recv", "Broadcast"})
SCOPES = "pkg.torch.onnx.name_scopes"
MAX_SCOPES = 10_000
_QUOTED = re.compile(r"'([^']*)'")
_SEPARATOR = re.compile(r"[./]")
_PARAMETER = re.compile(
    r"(.+?)[_.:](?:weights?|bias|kernel|gamma|beta|scale|w|b|(?:running|moving)_\w{1,64})", re.I
)  # bounded, for a name may have megabytes and say "running_" all the way
_ELEMENTWISE = frozenset({"Add", "Sub", "Mul", "Div"})


@dataclass(frozen=True)
class Used:
    """One node as it is run: operator and the names of what it reads and makes."""

    domain: str
    op_type: str
    inputs: Sequence[str]
    outputs: Sequence[str]
    scope: str = ""
    """The module that the node comes from, with dots; empty if nothing says."""

    @property
    def talks(self) -> bool:
        """Whether ranks meet here."""
        if self.domain == OWN_DOMAIN:
            return self.op_type in _POINT_TO_POINT
        return self.domain == MICROSOFT and self.op_type in COLLECTIVES


@dataclass
class Layer:
    """The names of a layer's weights, each where it is first read, and its collectives by number."""

    name: str
    weights: list[str] = field(default_factory=list)
    collectives: list[int] = field(default_factory=list)


def layer_of(weight: str) -> str | None:
    """The layer that a weight's name names: all up to its first number, or else what holds its module; None
    without one.

    ``encoder.layer.3.mlp.up.weight`` is in ``encoder.layer.3``, ``bert.embeddings.word.weight`` in
    ``bert.embeddings``, ``head.weight`` in ``head``.
    """
    parts = [part for part in _SEPARATOR.split(weight) if part]
    for place, part in enumerate(parts[:-1]):
        if part.isascii() and part.isdigit():
            return ".".join(parts[: place + 1])
    return ".".join(parts[:-2]) or parts[0] if len(parts) > 1 else None


def _own_layer(weight: str) -> str:
    """A layer's name from one of its weights, whose name names no module: ``fc1`` of ``fc1_weight``."""
    found = _PARAMETER.fullmatch(weight)
    return found[1] if found else weight


def scope_of(name: str, metadata: Mapping[str, str]) -> str:
    """The module that a node comes from, as torch's exporters tell it.

    The newer one writes a list of enclosing scopes into the metadata, the operation last; the older one names
    a node ``/encoder/layer.3/attention/MatMul``.
    """
    scopes = metadata.get(SCOPES, "")
    if len(scopes) < MAX_SCOPES and (parts := _QUOTED.findall(scopes)):
        return parts[-2] if len(parts) > 1 else ""
    return name.strip("/").rpartition("/")[0].replace("/", ".") if name.startswith("/") else ""


def by_layer(nodes: Iterable[Used], weights: Iterable[str]) -> list[Layer]:
    """Layers in order of execution; ``weights`` are the names that count as weights."""
    waiting = set(weights)
    found: dict[str, Layer] = {}
    current, number, named = FIRST, 0, False

    def layer(name: str) -> Layer:
        return found.setdefault(name, Layer(name))

    for node in nodes:
        read = [name for name in dict.fromkeys(node.inputs) if name in waiting]
        scope = layer_of(f"{node.scope}.node") if node.scope and read else None
        told = next((key for name in read if (key := layer_of(name))), None) or scope
        named = named or told is not None
        if read and not named and (current == FIRST or node.op_type not in _ELEMENTWISE):
            told = _own_layer(read[0])
        current = told or current
        for name in read:
            waiting.discard(name)
            layer(layer_of(name) or current).weights.append(name)
        if node.talks:
            layer(current).collectives.append(number)
            number += 1
    return list(found.values())
