"""Every test here needs a CUDA device; without one each is skipped with what is missing."""

from __future__ import annotations

import importlib.util

import pytest

from ranks import devices
from ranks.errors import DeviceError


def _missing() -> str | None:
    if importlib.util.find_spec("torch") is None:
        return "torch is not installed"
    try:
        devices.require("CUDAExecutionProvider")
    except DeviceError as error:
        return str(error)
    import torch

    return None if torch.cuda.is_available() else "this torch sees no CUDA device"


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips this folder's tests where there is no CUDA device."""
    here = [item for item in items if "/gpu/" in str(item.path)]
    reason = _missing() if here else None
    for item in here:
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {reason}"))
