"""Files that are taken for a model and are none yet: weights alone, programs, one rank's part of a model."""

from __future__ import annotations

import contextlib
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from sharding.errors import ModelError
from sharding.onnx_files.placeholders import refuse_placeholder

if TYPE_CHECKING:
    from sharding.common.encryption import Key


def check_sliceable(model: Path) -> None:
    """Raises `ConfigError`, with the command to use, for a file that `shardrun convert` must first make a
    model of.

    Every other file passes: whoever reads it says what is wrong.
    """
    from sharding.importers.checkpoints import kind_of

    if not model.is_file():
        return
    refuse_placeholder(model)
    _refuse_ours(model)
    try:
        kind = kind_of(model)
    except ModelError:
        return
    output = f"{model.stem or 'model'}.onnx"
    if kind not in {"index", "program", "script", "unknown"} or (kind == "index" and ".index." in model.name):
        raise ConfigError(
            f"{model} holds weights and no graph: make a model of it with its network, `shardrun convert "
            f"--network package.module:FACTORY --weights {model} {output}` (or, of a transformers model, "
            f"`--network FOLDER` with its config.json), and give {output}"
        )
    if kind == "program":
        raise ConfigError(
            f"{model} is an exported program: make a model of it with `shardrun convert {model} {output}`, "
            f"and give {output}"
        )
    if kind == "script":
        raise ConfigError(
            f"{model} is a TorchScript file, which holds code: save its weights, torch.save(torch.jit.load("
            "FILE).state_dict(), 'weights.pt'), make a model of them with `shardrun convert --network "
            f"package.module:FACTORY --weights weights.pt {output}`, and give {output}"
        )


_STEERS = "steers a job and is no model: give a job file with --config, a rank table with --rank-table"
_OURS = {
    ".npy": "holds an array and no model: give it with --input",
    ".npz": "holds arrays and no model: give it with --input",
    ".yaml": _STEERS,
    ".yml": _STEERS,
    ".json": _STEERS,
    ".py": "is a script and no model: `shardrun exec` runs it",
}


def _refuse_ours(model: Path) -> None:
    """Raises `ConfigError` for other files that a job is made of, given in place of its model."""
    what = _OURS.get(model.suffix.lower())
    if what is None or ".index." in model.name:
        return
    with contextlib.suppress(OSError), model.open("rb") as file:
        # A model may have any name, but begins with the number of a field.
        if file.read(1) < b"\t":
            return
    if model.name == "manifest.json":
        raise ConfigError(f"{model} is the manifest of a slice folder: give the folder, `{model.parent}`")
    raise ConfigError(f"{model} {what}")


def check_whole(model: Path, key: Key | None = None) -> None:
    """Raises `ConfigError` for a file that is one rank's part of a model, which is not to be sliced again."""
    from launcher.inspection.signature import message_of
    from ranks.errors import ShardrunError
    from ranks.models import model_file
    from ranks.models.part import is_part
    from ranks.sessions.nodes import has_collectives

    try:
        shard = model_file.find(model)
        if shard.manifest is not None and shard.ranks:
            whose = " and ".join(map(str, shard.ranks))
            folder = model.parent
            raise ConfigError(
                f"{model} is what rank {whose} of the slice folder {folder} runs, and not a whole model: "
                f"give the folder, `{folder}`"
            )
        message = message_of(model, key)
        part = message is not None and (has_collectives(message) or is_part(message))
    except ConfigError:
        raise
    except ShardrunError:
        return  # the reader says what is wrong
    if part:
        raise ConfigError(
            f"{model} has collectives: it is one rank's part of a model, and is run together with those of "
            f"the other ranks{_pattern_of(model)}"
        )


def _pattern_of(model: Path) -> str:
    """How the files of all ranks are named together, as far as the names of those beside this one tell."""
    from ranks.models import pattern

    found = pattern.like(model)
    if found is not None:
        return f": give them all, as `{found}`"
    return ", which a pattern names: {} stands for the rank, as in rank_{}.onnx"


def demand_ranks(model: Path, ranks: int | None, key: Key | None = None) -> int:
    """The number of ranks to slice a model file for; raises `ConfigError` if nothing says it, or it is one
    rank's part of a model."""
    if ranks is None:
        from launcher.inspection.signature import declared_by
        from sharding.reading.read import read_model

        if not model.is_file():
            read_model(model, key)  # says so; a pipe would be waited for
        check_whole(model, key)
        if declared_by(model, key, runs=False) is None:
            read_model(model, key)  # says what kind of file it is instead
        raise ConfigError(
            f"{model} is not sliced yet: say over how many ranks, with --ranks N, --rank-table FILE or "
            "--mesh AXIS=SIZE,..."
        )
    return ranks
