"""Element types in torch, and what NCCL and HCCL make of them.

They move bytes of any type. They add some: not 16-bit integers, and unsigned ones of 8 bits only.
"""

from __future__ import annotations

from collections.abc import Callable

from ranks.collectives.arrays import CODES, NOT_SUMMED
from ranks.collectives.torch.protocols import Tensor
from ranks.common.tensors import ELEMENT_TYPES
from ranks.errors import CollectiveError
from sharding.importers import torch_import

_CARRIERS = {1: "uint8", 2: "int16", 4: "int32", 8: "int64", 16: "complex128"}
"""By its bytes, a type of torch for which every device has all that moves elements."""
# The bits of a sum that wraps around are the same with and without a sign.
_SAME_SUM = {"uint32": "int32", "uint64": "int64", "complex64": "float32", "complex128": "float64"}
_WIDENED = frozenset({"int16", "uint16"})


def torch_type(name: str) -> object:
    """torch's type for one of numpy or ml_dtypes, by its name; None where there is none that collectives
    move."""
    torch = torch_import.load()
    found = getattr(torch, name, None) if name in CODES and not name.endswith("int4") else None
    return found if isinstance(found, torch.dtype) and found.itemsize in _CARRIERS else None


def by_element() -> dict[int, object]:
    """torch's types by the numbers of ONNX's, as far as both have them."""
    known = ((number, torch_type(name)) for number, name in ELEMENT_TYPES.values())
    return {number: kind for number, kind in known if kind is not None}


def raw(tensor: Tensor) -> Tensor:
    """The tensor's bytes: moved the same way whatever their type."""
    torch = torch_import.load()
    return tensor.reshape(-1).view(torch.uint8) if tensor.numel() else tensor.reshape(-1)


def moved(tensor: Tensor) -> Tensor:
    """The tensor as one of the same shape whose elements can be copied in any order, whatever their type."""
    torch = torch_import.load()
    return tensor.view(getattr(torch, _CARRIERS[tensor.element_size()]))


def summed(tensor: Tensor) -> tuple[Tensor, Callable[[], object]]:
    """What to add up over ranks for the sum of ``tensor``, and what puts the sum there afterwards.

    Raises `CollectiveError` for types that have no sum here, as on the host.
    """
    torch = torch_import.load()
    name = str(tensor.dtype).removeprefix("torch.")
    if name in NOT_SUMMED:
        raise CollectiveError(
            f"all_reduce: tensors of {name} cannot be summed; convert them to another type."
        )
    if name in _WIDENED:
        narrow = tensor.view(torch.int16)
        wide = narrow.to(torch.int32)
        return wide, lambda: narrow.copy_(wide)  # keeps the lower half, which wraps around
    if name in _SAME_SUM:
        return tensor.reshape(-1).view(getattr(torch, _SAME_SUM[name])), _nothing
    return tensor, _nothing


def _nothing() -> None:
    """The sum is there already."""
