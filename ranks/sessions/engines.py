"""Where TensorRT keeps its engines: in a folder for each model and rank.

An engine holds weights, but ONNX Runtime names its file after the graph alone: ranks whose shards have one
graph, and a model whose weights were trained on, would load the engine of another.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.errors import DeviceError, ModelError

if TYPE_CHECKING:
    from ranks.sessions.session import SessionConfig

PATH = "trt_engine_cache_path"
_DIGITS = 16


def apart(options: Mapping[str, str], model: bytes | Path, config: SessionConfig) -> dict[str, str]:
    """A provider's options with a folder of its own for the engines of this model, which is made.

    Raises `DeviceError` where it cannot be made.
    """
    if not options.get(PATH):
        return dict(options)
    from ranks.models.content import content_hash

    try:
        name = content_hash(model, config.folder, config.hashes)[:_DIGITS]
    except ModelError:  # making the session says what is wrong with the model
        return dict(options)
    # Ranks of equal content would write one file at once.
    name += "" if config.rank is None else f"-rank{config.rank}"
    folder = Path(options[PATH]) / name
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise DeviceError(
            f"The folder {folder} for TensorRT's engines (serialize_path of [ms_cache]) cannot be made: "
            f"{error.strerror}: name another one."
        ) from None
    return {**options, PATH: str(folder)}
