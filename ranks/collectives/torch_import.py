"""Importing torch."""

from __future__ import annotations

import os
import sys
from typing import Any

_AUTOLOAD = "TORCH_DEVICE_BACKEND_AUTOLOAD"


def load() -> Any:
    """The module ``torch``; raises `ImportError` where it is not installed.

    torch loads installed packages for other devices, such as torch_npu, while it is imported, and fails where
    one's driver is missing. Ranks that need such a device load its package themselves, the others must not
    fail for it.
    """
    if "torch" in sys.modules:
        return sys.modules["torch"]
    before = os.environ.get(_AUTOLOAD)
    os.environ[_AUTOLOAD] = "0"
    try:
        import torch

        return torch
    finally:
        if before is None:
            del os.environ[_AUTOLOAD]
        else:
            os.environ[_AUTOLOAD] = before
