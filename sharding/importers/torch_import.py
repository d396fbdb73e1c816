"""The one place where torch is imported."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from types import ModuleType
from typing import Protocol

from sharding.common.arrays import Array
from sharding.common.variables import set_for_a_while


class Tensor(Protocol):
    """A tensor of torch's, as far as readers of files look at one."""

    dtype: object
    shape: tuple[int, ...]
    layout: object
    is_quantized: bool
    is_meta: bool
    is_nested: bool

    def contiguous(self) -> Tensor:
        """The same, one element after the other."""

    def detach(self) -> Tensor:
        """The same without gradients."""

    def element_size(self) -> int:
        """Bytes of an element."""

    def is_complex(self) -> bool:
        """Whether its elements are complex numbers."""

    def is_contiguous(self) -> bool:
        """Whether its elements lie one after the other."""

    def numel(self) -> int:
        """How many elements it has."""

    def numpy(self) -> Array:
        """The same memory as an array."""

    def reshape(self, *shape: int) -> Tensor:
        """The same in another shape."""

    def resolve_conj(self) -> Tensor:
        """The same with its numbers written, not the conjugate to be taken."""

    def resolve_neg(self) -> Tensor:
        """The same with its numbers written, not the negative to be taken."""

    def view(self, dtype: object, /) -> Tensor:
        """The same memory as another type."""


_WHILE_IMPORTED = {"TORCH_DEVICE_BACKEND_AUTOLOAD": "0"}
_UNLESS_SET = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""torch warns of hosts whose addresses have no names, in every rank, and before anything else is said."""


def load(name: str = "torch") -> ModuleType:
    """The module ``torch``, or one in it by its whole name; raises `ImportError` where it is not installed.

    Ranks that need a device beside the CPU and CUDA load its package themselves, the others must not fail for
    it: see `alone`.
    """
    with alone():
        return importlib.import_module(name)


@contextlib.contextmanager
def alone() -> Iterator[None]:
    """Whoever imports torch here gets it without the packages for other devices.

    torch loads installed ones, such as torch_npu, while it is imported, and fails where one's driver is
    missing. Use it around foreign code that imports torch by itself: ``transformers``, a user's network.
    """
    if "torch" in sys.modules:
        yield
        return
    ours = {**_WHILE_IMPORTED, **{k: v for k, v in _UNLESS_SET.items() if k not in os.environ}}
    with set_for_a_while(ours):
        yield
