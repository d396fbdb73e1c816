"""Which kind of checkpoint a file is, by its content, and its reader."""

from __future__ import annotations

from pathlib import Path

from sharding.common.encryption import Key, unneeded
from sharding.common.nearby import hint, shown
from sharding.errors import ModelError
from sharding.importers.checkpoints import torch_file
from sharding.importers.checkpoints.base import FORMATS, Checkpoint
from sharding.onnx_files.placeholders import refuse_placeholder

Kind = str
"""The name of one of `FORMATS`; ``program``: torch.export's ``.pt2``; ``script``: TorchScript; or
``unknown``."""

INDEXES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
"""The weights in a folder of ``transformers``, in the order in which they are looked for."""
_NO_WEIGHTS = {"program", "script"}
_HEAD = 70_000


def kind_of(path: Path) -> Kind:
    """Looks at a file's first bytes, or an archive's names. Raises `ModelError` if it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ModelError(f"{path} is not a file; expected a checkpoint.")
        refuse_placeholder(path)
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head.startswith(torch_file.ARCHIVE) and (kind := torch_file.archive_kind(path)) in _NO_WEIGHTS:
            return kind
    except FileNotFoundError:
        raise ModelError(f"{shown(path)} does not exist{hint(path)}; expected a checkpoint.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not head:
        raise ModelError(f"{path} is empty; expected a checkpoint.")
    own = FORMATS.own()
    asked = (*sorted(own, key=lambda name: own[name].order), *FORMATS.names.others)
    return next((name for name in asked if FORMATS[name].is_it(path, head)), "unknown")


def open_checkpoint(path: Path, key: Key | None = None) -> Checkpoint:
    """Opens a checkpoint of any kind, or the one in a folder of ``transformers``.

    ``key`` is that of an encrypted ``.ckpt``. Raises `ModelError`.
    """
    if path.is_dir():
        path = _in_folder(path)
    kind = kind_of(path)
    if kind in FORMATS and FORMATS[kind].keyed:
        return FORMATS[kind].read(path, key)
    if key is not None:
        raise ModelError(f"{unneeded(path)}.")
    return _open(path, kind)


def open_part(path: Path) -> Checkpoint:
    """Opens one of the files that an index names. Raises `ModelError`."""
    kind = kind_of(path)
    return _open(path, "unknown" if kind in FORMATS and not FORMATS[kind].part else kind)


def _open(path: Path, kind: Kind) -> Checkpoint:
    if kind in FORMATS:
        return FORMATS[kind].read(path)
    if kind == "program":
        raise ModelError(f"{path} is an exported program (.pt2), not weights: convert it without --weights.")
    if kind == "script":
        raise ModelError(
            f"{path} is a TorchScript file, which holds code: save the weights, "
            "torch.save(torch.jit.load(FILE).state_dict(), ...)."
        )
    raise ModelError(
        f"{path} is no checkpoint that can be read; expected a MindSpore .ckpt, a torch .pt or .pth, a "
        ".safetensors file, or the .index.json of several."
    )


def _in_folder(folder: Path) -> Path:
    for name in INDEXES:
        if (folder / name).is_file():
            return folder / name
    raise ModelError(f"The folder {folder} has no weights; expected one of {', '.join(INDEXES)} in it.")
