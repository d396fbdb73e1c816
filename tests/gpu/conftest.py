"""Every test here needs a CUDA device; without one each is skipped with what is missing."""

from __future__ import annotations

import functools

import pytest

from ranks.devices import devices
from ranks.devices.providers import CUDA
from ranks.errors import DeviceError

pytest.register_assert_rewrite("tests.gpu.near")

# A session of one process, and weights in device memory, need no torch.
WITHOUT_TORCH = ("test_plain.py", "test_precision.py", "test_shared_weights.py", "test_tensorrt.py")


@functools.cache
def _missing_torch() -> str | None:
    try:
        import torch
    except ImportError as error:
        return f"torch is not installed ({error})"
    return None if torch.cuda.is_available() else f"torch {torch.__version__} sees no CUDA device"


def _missing() -> str | None:
    try:
        devices.require(CUDA)
    except DeviceError as error:
        return str(error)
    return None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Skips this folder's tests where there is no CUDA device."""
    here = [item for item in items if "/gpu/" in str(item.path)]
    reason = _missing() if here else None
    for item in here:
        why = reason or (_missing_torch() if item.path.name not in WITHOUT_TORCH else None)
        if why is not None:
            item.add_marker(pytest.mark.skip(reason=f"no CUDA device: {why}"))
