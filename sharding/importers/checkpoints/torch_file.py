"""torch's ``.pt`` and ``.pth``: what ``torch.save(module.state_dict(), ...)`` writes.

Such a file is a pickle, which can run any program. It is only ever read with ``weights_only=True``: that
unpickler knows tensors and plain containers and refuses all else.
"""

from __future__ import annotations

import contextlib
import math
import re
import warnings
import zipfile
from collections.abc import Mapping
from pathlib import Path

import numpy as np

from sharding.common.arrays import Array, DType
from sharding.common.text import one_line, shortened
from sharding.errors import ModelError
from sharding.importers import torch_import
from sharding.importers.checkpoints.base import Checkpoint, Entry, bytes_of, check_entry, special_dtype

LEGACY = b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19"
"""How files begin that torch wrote before 1.6: a pickled magic number."""
ARCHIVE = b"PK"
"""How a newer one begins, as any .zip does."""
WRAPPERS = ("state_dict", "model_state_dict", "model", "module")
"""Names under which training scripts keep the weights beside an optimizer's state."""
_COPIED_MOST = 4
"""Tensors that do not lie in order are copied, up to so many times the file's size: a hostile one may
repeat a number without end."""
_WRONG = re.compile(
    r"(?i)(?:WeightsUnpickler error: |(?=trying to load unsupported ))(.{1,200}?)"
    r"(?= whose | was not an allowed |, which is not allowed|\. |\.? Please use| Check the documentation|$)"
)
"""What is wrong, in a message of torch that goes on with how to load the file all the same."""
_PICKLED_MOST = 256 << 20
"""Bytes of the pickle in an archive; it has names and shapes only."""


def looks_like(path: Path, head: bytes) -> bool:
    """Whether a file is of either format. Raises `ModelError` for a damaged archive."""
    if head.startswith(ARCHIVE):
        return archive_kind(path) == "torch"
    return head.startswith(LEGACY) or (head[:1] == b"\x80" and path.suffix in {".pt", ".pth", ".bin"})


def archive_kind(path: Path) -> str:
    """What an archive holds, by its names: a ``program`` of torch.export, TorchScript's ``script``, ``torch``
    for weights, else ``unknown``. Raises `ModelError` for a damaged one."""
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


def read(path: Path) -> Checkpoint:
    """Opens a file; tensors of the newer format stay in it.

    Raises `ModelError`: truncated, damaged, holds other objects than tensors, or no weights.
    """
    state = _state(load(path), path)
    size, copied = path.stat().st_size, 0
    entries = {}
    for name, tensor in state.items():
        what = f"{path}: the tensor {shortened(one_line(name), 100)!r}"
        _check(tensor, size, what)
        if not tensor.is_contiguous():
            copied += tensor.numel() * tensor.element_size()
            if copied > _COPIED_MOST * size:
                raise ModelError(
                    f"{path} describes tensors that are far larger than the file: it is damaged."
                )
        array = as_array(tensor, what)
        part = bytes_of(array)
        entries[name] = check_entry(Entry(name, array.dtype, array.shape, (part,)), what)
    return Checkpoint(path, "torch checkpoint", entries, [path])


def load(path: Path) -> object:
    """What the file holds, by torch's restricted unpickler. Raises `ModelError`."""
    from sharding.importers.networks.packages import need

    torch = need("torch", f"{path} is a file of torch")
    import pickle

    archive = zipfile.is_zipfile(path)
    if archive:
        check_archive(path)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # on old protocols and types that are going to leave torch
            return torch.load(path, map_location="cpu", weights_only=True, mmap=archive)
    except pickle.UnpicklingError as error:
        raise ModelError(
            f"{path} is refused: it holds more than tensors and plain containers, or is damaged, and to "
            f"unpickle it would run what it says ({_reason(error)}). Save the weights alone: "
            "torch.save(module.state_dict(), FILE), or as .safetensors."
        ) from None
    except Exception as error:  # a damaged file fails anywhere in torch, in ways that have no common base
        raise ModelError(f"{path} is not a whole file of torch: {_reason(error)}.") from None


def check_archive(path: Path) -> None:
    """Raises `ModelError` for a torch archive with compressed or repeated members, which torch never writes:
    they may be much larger than the file, or differ by who reads it."""
    try:
        with zipfile.ZipFile(path) as archive:
            members = archive.infolist()
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as error:
        raise ModelError(f"{path} is truncated or damaged: {_reason(error)}.") from None
    names = [member.filename for member in members]
    if len(set(names)) != len(names):
        raise ModelError(f"{path} is damaged: its archive holds a name twice.")
    for member in members:
        if member.compress_type != zipfile.ZIP_STORED or member.file_size != member.compress_size:
            raise ModelError(f"{path} is no file of torch: its archive is compressed.")
        if member.filename.endswith("data.pkl") and member.file_size > _PICKLED_MOST:
            raise ModelError(
                f"{path} has a pickle of {member.file_size} bytes; at most {_PICKLED_MOST} are read."
            )


def dtype_of(tensor: torch_import.Tensor, what: str, wanted: str) -> DType:
    """A tensor's element type. Raises `ModelError` for one that no array has: it cannot be ``wanted``."""
    name = str(tensor.dtype).removeprefix("torch.")
    for find in (np.dtype, special_dtype):
        with contextlib.suppress(TypeError, AttributeError):
            return find(name)
    raise ModelError(f"{what} has the type {name}, which cannot be {wanted}.")


def as_array(tensor: torch_import.Tensor, what: str) -> Array:
    """A tensor's elements as an array in C order, without a copy where it lies so."""
    torch = torch_import.load()
    tensor = tensor.detach().resolve_conj().resolve_neg().contiguous()
    dtype = dtype_of(tensor, what, "converted")
    flat: torch_import.Tensor = torch.view_as_real(tensor) if tensor.is_complex() else tensor
    array: Array = flat.reshape(-1).view(torch.uint8).numpy().view(dtype).reshape(tuple(tensor.shape))
    return array


def _state(loaded: object, path: Path) -> dict[str, torch_import.Tensor]:
    """The tensors by name; from within a training checkpoint, too."""
    torch = torch_import.load()
    for key in WRAPPERS:
        inner = loaded.get(key) if isinstance(loaded, Mapping) else None
        if isinstance(inner, Mapping) and any(torch.is_tensor(item) for item in inner.values()):
            loaded = inner
            break
    if not isinstance(loaded, Mapping):
        raise ModelError(
            f"{path} holds {type(loaded).__name__}; expected weights by name (module.state_dict())."
        )
    found: dict[str, torch_import.Tensor] = {
        name: item for name, item in loaded.items() if isinstance(name, str) and torch.is_tensor(item)
    }
    if not found:
        keys = ", ".join(shortened(one_line(str(key)), 40) for key in list(loaded)[:5]) or "nothing"
        raise ModelError(f"{path} holds no weights by name (module.state_dict()); found {keys}.")
    return found


def _check(tensor: torch_import.Tensor, size: int, what: str) -> None:
    torch = torch_import.load()
    if tensor.layout != torch.strided or tensor.is_quantized or tensor.is_meta or tensor.is_nested:
        raise ModelError(f"{what} is sparse, quantized, nested or without data: save it as a plain tensor.")
    needed = math.prod(tensor.shape) * tensor.element_size()
    if needed > size:
        raise ModelError(f"{what} needs {needed} bytes, but the file has {size}: it is damaged.")


def _reason(error: Exception) -> str:
    """The part of torch's message that says what is wrong; the rest is advice that does not fit here."""
    text = " ".join(str(error).split())
    found = _WRONG.search(text)
    text = found.group(1) if found else text
    return shortened(one_line(text), 200).rstrip(".") or type(error).__name__
