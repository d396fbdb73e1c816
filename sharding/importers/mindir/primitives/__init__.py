"""The primitives of MindSpore that have a conversion, by families: one module each."""

from __future__ import annotations

import importlib
import pkgutil
from functools import lru_cache


@lru_cache(maxsize=1)
def load() -> None:
    """Imports the families, which fills `base.PRIMITIVES`. A small model takes less than to look for them."""
    for module in pkgutil.iter_modules(__path__, f"{__name__}."):
        importlib.import_module(module.name)
