"""The primitives of MindSpore that have a conversion, by families: one module each."""

from __future__ import annotations

import importlib
import pkgutil


def load() -> None:
    """Imports the families, which fills `base.PRIMITIVES`."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
