"""The one place where torch is imported."""

from __future__ import annotations

import contextlib
import importlib
import os
import sys
from collections.abc import Iterator
from typing import Any

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def load(name: str = "torch") -> Any:
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
    before = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        yield
    finally:
        if before is None:
            os.environ.pop(_AUTOLOAD, None)
        else:
            os.environ[_AUTOLOAD] = before
