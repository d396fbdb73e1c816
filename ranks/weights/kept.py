"""The store as the owner of shared weights uses it: what it opens must be there for others."""

from __future__ import annotations

from pathlib import Path

import onnxruntime as ort

from ranks.errors import WeightsError
from ranks.session import SessionConfig
from ranks.weights.store import Store


class KeptStore(Store):
    """A store whose sessions never have weights of their own."""

    def open(self, model: bytes | Path, config: SessionConfig, what: str) -> ort.InferenceSession:
        """As `Store.open`, but raises `WeightsError` where the weights cannot be kept."""
        session = super().open(model, config, what)
        if self.key(model, config) not in self.opened:
            raise WeightsError(
                f"the weights of {what} cannot be shared, since they cannot be kept in {self.folder}: the "
                "disk may be full, or ONNX Runtime cannot write this graph."
            )
        return session
