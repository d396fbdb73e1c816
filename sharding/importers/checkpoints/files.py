"""Which kind of checkpoint a file is, by its content, and its reader."""

from __future__ import annotations

import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from sharding.common.ciphers import encryption_of
from sharding.common.nearby import hint, shown
from sharding.common.placeholders import refuse_placeholder
from sharding.errors import ModelError
from sharding.importers.checkpoints import ckpt, safetensors, sharded, torch_file
from sharding.importers.checkpoints.base import FORMATS, Checkpoint

if TYPE_CHECKING:
    from sharding.importers.mindir.encryption import Key

Kind = str
"""``ckpt``, ``safetensors``, ``torch``; ``program``: torch.export's ``.pt2``; ``script``: TorchScript;
``index``: that of several files; ``unknown``; or the name of one of `FORMATS`."""

INDEXES = (
    "model.safetensors.index.json",
    "model.safetensors",
    "pytorch_model.bin.index.json",
    "pytorch_model.bin",
)
"""The weights in a folder of ``transformers``, in the order in which they are looked for."""
_HEAD = 70_000


def kind_of(path: Path) -> Kind:
    """Looks at a file's first bytes, or an archive's names. Raises `ModelError` if it cannot be read."""
    try:
        if path.exists() and not path.is_file():  # to open a pipe would wait for its writer
            raise ModelError(f"{path} is not a file; expected a checkpoint.")
        refuse_placeholder(path)
        with path.open("rb") as file:
            head = file.read(_HEAD)
        if head.startswith(b"PK"):
            return _archive_kind(path)
    except FileNotFoundError:
        raise ModelError(f"{shown(path)} does not exist{hint(path)}; expected a checkpoint.") from None
    except OSError as error:
        raise ModelError(f"{path} cannot be read: {error.strerror or error}.") from None
    if not head:
        raise ModelError(f"{path} is empty; expected a checkpoint.")
    if safetensors.looks_like(head):
        return "safetensors"
    if head.startswith(torch_file.LEGACY) or (head[:1] == b"\x80" and path.suffix in {".pt", ".pth", ".bin"}):
        return "torch"
    if path.name.endswith(".json"):
        return "index"
    encrypted = encryption_of(head[:4]) is not None and path.suffix == ".ckpt"
    if encrypted or ckpt.looks_like(head):
        return "ckpt"
    return next((name for name, item in FORMATS.all().items() if item.is_it(path, head)), "unknown")


def _archive_kind(path: Path) -> Kind:
    try:
        with zipfile.ZipFile(path) as archive:
            names = [name.partition("/")[2] for name in archive.namelist()]
    except (zipfile.BadZipFile, ValueError, NotImplementedError):
        raise ModelError(f"{path} is truncated or damaged: its archive has no list of contents.") from None
    if "archive_format" in names or any(name.startswith("serialized_exported_program") for name in names):
        return "program"
    if "constants.pkl" in names or any(name.startswith("code/") for name in names):
        return "script"
    return "torch" if any(name.endswith("data.pkl") for name in names) else "unknown"


def open_checkpoint(path: Path, key: Key | None = None) -> Checkpoint:
    """Opens a checkpoint of any kind, or the one in a folder of ``transformers``.

    ``key`` is that of an encrypted ``.ckpt``. Raises `ModelError`.
    """
    if path.is_dir():
        path = _in_folder(path)
    kind = kind_of(path)
    if kind == "ckpt":
        return ckpt.read(path, key)
    if key is not None:
        raise ModelError(f"{path} is not encrypted, but a key was given: leave --dec-key-file out.")
    if kind == "index":
        return sharded.read(path, _open_one)
    return _open_one(path)


def _open_one(path: Path) -> Checkpoint:
    kind = kind_of(path)
    if kind == "safetensors":
        return safetensors.read(path)
    if kind == "torch":
        return torch_file.read(path)
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
