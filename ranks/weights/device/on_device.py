"""Weights on a GPU as the owner of shared weights puts them there, and as a process that attaches uses them.

In place of the store of prepared weights, whose files serve sessions on the CPU.
"""

from __future__ import annotations

import contextlib
import os
import weakref
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import onnxruntime as ort

from ranks.cache.cache import Cache
from ranks.cache.folder import ELSEWHERE
from ranks.common.descriptors import Part, close_all
from ranks.devices.cuda_driver import Driver
from ranks.devices.providers import CUDA
from ranks.errors import WeightsError
from ranks.sessions.session import SessionConfig
from ranks.weights.device.device_model import (
    DEVICE_KIND,
    DeviceWeights,
    export_device_weights,
    open_device_weights,
)
from ranks.weights.prepared.store import Store
from sharding.common.storage import why_unwritable

DEVICE = "device"
"""The part with the device memory."""


class OwnedOnDevice(Store):
    """The owner's: a model's weights in one block of device memory."""

    providers = (CUDA,)

    def __init__(self, base: Path, cache: Path | None = None) -> None:
        """``base``: where folders with optimised models lie; ``cache``: the cache folder that it is in."""
        super().__init__(base, cache=cache)
        self._weights: DeviceWeights | None = None

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """A session over weights that others can use. Raises `WeightsError`, `DeviceError`, `ModelError`."""
        if isinstance(model, bytes) or self._weights is not None:
            raise _not_whole(what)
        cache = Cache(DEVICE_KIND, self.cache, self.folder)
        self.folder = cache.folder / self.key(model, config)
        try:
            weights = export_device_weights(model, config, self.folder, driver(), cache)
        except OSError as error:
            raise WeightsError(
                f"the weights of {what} cannot be shared: {error.filename or self.folder} cannot be written: "
                f"{why_unwritable(error, ELSEWHERE)}."
            ) from None
        made = _session(weights, config, what)
        self._weights = weights
        return made

    def keep(self) -> AbstractContextManager[None]:
        """The memory, and with it the folder, is kept by the session."""
        return contextlib.nullcontext()

    def parts(self) -> dict[str, Callable[[], Part]]:
        """What a process that attaches needs besides the folder."""
        weights = self._weights
        if weights is None:
            return {}
        return {DEVICE: lambda: (weights.description, [os.dup(one) for one in weights.descriptors])}


class AttachedOnDevice(Store):
    """The owner's device memory in a process that attaches."""

    providers = (CUDA,)

    def __init__(self, folder: Path, parts: dict[str, Part]) -> None:
        """``folder``: with the owner's optimised model; ``parts``: what it sent; `open` takes ours."""
        super().__init__(folder, read_only=True)
        self._parts = parts

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """A session over the owner's memory. Raises `WeightsError`, `DeviceError`, `ModelError`."""
        if isinstance(model, bytes) or DEVICE not in self._parts:
            raise _not_whole(what)
        description, descriptors = self._parts.pop(DEVICE)
        try:
            weights = open_device_weights(description, descriptors, self.folder, driver())
        finally:
            close_all(descriptors)
        if weights.device != config.device_id:
            weights.close()
            raise WeightsError(
                f"the owner's weights are on GPU {weights.device} as this process counts, but {what} is to "
                f"run on GPU {config.device_id}: give both the same device."
            )
        return _session(weights, config, what)


def driver() -> Driver:
    """The driver of the machine's GPUs. Raises `DeviceError` where there is none."""
    return Driver()


def _session(weights: DeviceWeights, config: SessionConfig, what: str) -> ort.InferenceSession:
    try:
        made = weights.session(config, what)
    except BaseException:
        weights.close()
        raise
    # A run in another thread keeps the session, and so the memory, until it has ended.
    weakref.finalize(made, weights.close)
    return made


def _not_whole(what: str) -> WeightsError:
    return WeightsError(
        f"{what} is cut or changed before it runs, and on a GPU only whole models from a file share weights."
    )
