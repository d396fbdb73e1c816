"""Packages that conversion alone needs."""

from __future__ import annotations

import importlib
from typing import Any

from sharding.errors import ModelError

ADVICE = {
    "torch": "pip install 'shardrun[convert]'",
    "onnxscript": "pip install 'shardrun[convert]'",
    "transformers": "pip install transformers",
    "mindspore": "pip install mindspore",
}


def need(name: str, why: str) -> Any:
    """Imports a package. Raises `ModelError` that says why it is needed and how to install it."""
    try:
        return importlib.import_module(name)
    except ImportError as error:
        if getattr(error, "name", None) in {name, None}:
            raise ModelError(f"{why}, but the package {name} is not installed: {ADVICE[name]}.") from None
        raise ModelError(f"{why}, but the package {name} cannot be imported: {error}.") from None
