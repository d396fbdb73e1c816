"""Layers after an encoder's pooling, which the package sentence-transformers keeps beside the model."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from launcher.common.documents import quote
from launcher.errors import ConfigError
from launcher.generation.text.configs import CONFIG, read_json
from launcher.serving.embedding.pooling import Vectors
from sharding.errors import ModelError
from sharding.importers.checkpoints.files import open_checkpoint

ACTIVATIONS: Mapping[str, Callable[[Vectors], Vectors]] = {
    "Identity": lambda x: x,
    "Tanh": np.tanh,
    "ReLU": lambda x: np.maximum(x, np.float32(0)),
    "Sigmoid": lambda x: np.reciprocal(1 + np.exp(-x)),
    "SiLU": lambda x: np.multiply(x, np.reciprocal(1 + np.exp(-x))),
}
"""By the name that torch has for each."""
_WEIGHT, _BIAS = "linear.weight", "linear.bias"
_OF_TEXTS = "sentence_embedding"


@dataclass(frozen=True)
class Dense:
    """``activation(x @ weight.T + bias)``; ``weight`` (out, in)."""

    weight: NDArray[np.float32]
    bias: NDArray[np.float32] | None
    activation: str

    def __call__(self, vectors: Vectors) -> Vectors:
        """Vectors (texts, in) as vectors (texts, out). Raises `ConfigError` for others."""
        if vectors.shape[1] != self.weight.shape[1]:
            raise ConfigError(
                f"a layer after the pooling takes vectors of {self.weight.shape[1]} numbers, but the model "
                f"gives {vectors.shape[1]}"
            )
        found = vectors @ self.weight.T
        return ACTIVATIONS[self.activation](found if self.bias is None else found + self.bias)


def read_dense(folder: Path) -> Dense:
    """The layer of a module's folder. Raises `ConfigError`."""
    config = read_json(folder / CONFIG)
    taken = config.get("module_input_name", _OF_TEXTS)
    if taken != _OF_TEXTS:
        raise ConfigError(
            f"{folder / CONFIG}: module_input_name: expected {_OF_TEXTS!r}, for the layer comes after the "
            f"pooling, found {quote(taken)}"
        )
    said = str(config.get("activation_function", "Tanh"))
    name = said.rpartition(".")[2]
    if name not in ACTIVATIONS:
        raise ConfigError(
            f"{folder / CONFIG}: activation_function: expected one of {', '.join(ACTIVATIONS)}, found "
            f"{quote(said)}"
        )
    try:
        entries = open_checkpoint(folder).entries
    except ModelError as error:
        raise ConfigError(str(error)) from None
    weight = entries.get(_WEIGHT)
    bias = entries.get(_BIAS)
    if weight is None or len(weight.shape) != 2 or (bias is not None and bias.shape != weight.shape[:1]):
        raise ConfigError(
            f"{folder}: expected the weights {_WEIGHT!r} (out, in) and {_BIAS!r} (out), found others"
        )
    return Dense(
        np.array(weight.array(), np.float32),
        None if bias is None else np.array(bias.array(), np.float32),
        name,
    )
