"""The store of prepared weights as owners of shared weights and those that attach use it."""

from __future__ import annotations

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path

import onnxruntime as ort

from ranks.common.descriptors import Part
from ranks.errors import WeightsError
from ranks.sessions.session import SessionConfig
from ranks.weights.prepared.store import Store


class OwnedStore(Store):
    """The owner's: no session has weights of its own."""

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """As `Store.open`, but raises `WeightsError` where the weights cannot be kept."""
        self.check_size(model, what)
        session = super().open(model, config, what)
        key = self.key(model, config)
        if key not in self.opened:
            raise self._not_kept(what, self.reason(key))
        return session

    def check_size(self, model: bytes | Path, what: str) -> None:
        """Raises `WeightsError` for a model whose weights cannot be kept, before anything of them is read."""
        if why := self.too_large(model, what):
            raise self._not_kept(what, why)

    def _not_kept(self, what: str, why: str) -> WeightsError:
        return WeightsError(
            f"the weights of {what} cannot be shared, since they cannot be kept in {self.folder} "
            f"({why.rstrip('.')}): correct that, or set SHARDRUN_CACHE to another folder."
        )

    def keep(self) -> AbstractContextManager[None]:
        """Holds what was opened, so that nobody throws it out."""
        return self.pin(self.opened)

    def parts(self) -> dict[str, Callable[[], Part]]:
        """What a process that attaches needs besides the folder: nothing."""
        return {}


class NoStore(Store):
    """For a model whose weights must not be kept on the disk, whatever ``SHARDRUN_WEIGHTS`` says."""

    providers = ()

    def __init__(self) -> None:
        super().__init__(Path(os.devnull), read_only=True)


class AttachedStore(Store):
    """The owner's store in a process that attaches: only what the owner has prepared is there."""

    def __init__(self, folder: int, owner: int) -> None:
        """``folder``: a descriptor, which must stay open. ``owner``: the owner's process id."""
        super().__init__(Path(f"/proc/self/fd/{folder}"), None, read_only=True)
        self._owner = owner

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """As `Store.open`. Raises `WeightsError` where the owner has no such weights."""
        try:
            return super().open(model, config, what)
        except WeightsError:
            raise WeightsError(
                f"process {self._owner}, which shares the weights, no longer has those of {what}: they were "
                "deleted or damaged since, or it runs another version of shardrun. Build its model anew."
            ) from None
