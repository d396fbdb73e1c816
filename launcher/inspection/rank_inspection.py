"""What rank models made elsewhere hold, as plain values to print: each rank's bytes, and rank 0 by layer."""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.inspection.inspection import tensors_json, used, weights_json
from launcher.inspection.layers import by_layer
from launcher.inspection.model_summary import listed_weights, signature
from launcher.inspection.rank_models import count_files, open_rank_models, read_rank_model
from sharding.onnx_files.walk import nodes_in_turn
from sharding.slices.state import Tensor

if TYPE_CHECKING:
    from sharding.common.encryption import Key


class _Talker:
    """What has collectives."""

    collectives: tuple[str, ...]

    @property
    def talks(self) -> str:
        """The collectives, counted."""
        counts = Counter(self.collectives).items()
        return ", ".join(f"{count} {name}" for name, count in counts) or "none"


@dataclass(frozen=True)
class RankModel(_Talker):
    """One rank's file; ``collectives`` in order of execution."""

    rank: int
    file: str
    weights: int
    bytes: int
    collectives: tuple[str, ...]


@dataclass(frozen=True)
class RankLayer(_Talker):
    """A layer of rank 0: what it holds of its weights, and its collectives."""

    name: str
    weights: tuple[str, ...]
    bytes: int
    collectives: tuple[str, ...]


@dataclass(frozen=True)
class RankModels:
    """All ranks; inputs, outputs, layers and weights (name, element type, shape, bytes) are rank 0's."""

    inputs: tuple[Tensor, ...]
    outputs: tuple[Tensor, ...]
    ranks: tuple[RankModel, ...]
    layers: tuple[RankLayer, ...]
    weights: tuple[tuple[str, str, tuple[int, ...], int], ...]

    def to_json(self) -> dict[str, object]:
        """All of it as plain JSON values."""
        return {
            "inputs": tensors_json(self.inputs),
            "outputs": tensors_json(self.outputs),
            "ranks": [asdict(item) for item in self.ranks],
            "layers": [asdict(item) for item in self.layers],
            "weights": weights_json(self.weights),
        }


def look(pattern: Path, ranks: int | None, key: Key | None = None) -> RankModels:
    """Reads the rank models of a pattern without their weights; ``key`` is that of encrypted ones.

    Raises `ConfigError` if they are not one for each rank (or not ``ranks``), and `ModelError`.
    """
    from ranks.models import pattern as patterns

    open_rank_models(pattern, ranks, key)
    found = []
    layers: tuple[RankLayer, ...] = ()
    first = None
    for rank in range(count_files(pattern)):
        path = patterns.expand(pattern, rank)
        model = read_rank_model(path, key)
        nodes = [used(node) for node in nodes_in_turn(model.graph)]
        weights = listed_weights(model)
        talks = tuple(node.op_type for node in nodes if node.talks)
        size = sum(weight[3] for weight in weights)
        found.append(RankModel(rank, _shown(path, pattern), len(weights), size, talks))
        if first is None:
            first = (*signature(model), weights)
            sizes = {name: size for name, _, _, size in weights}
            layers = tuple(
                RankLayer(
                    layer.name,
                    tuple(layer.weights),
                    sum(sizes[name] for name in layer.weights),
                    tuple(talks[number] for number in layer.collectives),
                )
                for layer in by_layer(nodes, sizes)
            )
    assert first is not None
    return RankModels(first[0], first[1], tuple(found), layers, first[2])


def _shown(path: Path, pattern: Path) -> str:
    """The part of a rank's path in which the ranks differ."""
    differ = [one != other for one, other in zip(path.parts, pattern.parts, strict=True)]
    return str(Path(*path.parts[differ.index(True) :]))
