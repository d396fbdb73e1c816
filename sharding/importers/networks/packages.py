"""Packages that conversion alone needs."""

from __future__ import annotations

import importlib
import sys
from typing import Any

from sharding.common.text import one_line, shortened
from sharding.errors import ModelError
from sharding.importers import torch_import

ADVICE = {
    "torch": "pip install torch onnxscript",
    "onnxscript": "pip install onnxscript",
    "transformers": "pip install transformers",
    "mindspore": "pip install mindspore",
}


def need(name: str, why: str) -> Any:
    """Imports a package. Raises `ModelError` that says why it is needed and how to install it."""
    if name == "transformers":
        # It would load torch_npu where that is installed, and fail without a driver. We convert on the CPU.
        sys.modules.setdefault("torch_npu", None)  # type: ignore[arg-type]  # "do not import"
    try:
        with torch_import.alone():
            return importlib.import_module(name)
    except Exception as error:  # what a package raises while it is imported
        if isinstance(error, ModuleNotFoundError) and error.name in {name, None}:
            raise ModelError(f"{why}, but the package {name} is not installed: {ADVICE[name]}.") from None
        reason = shortened(one_line(" ".join(str(error).split())), 200).rstrip(".") or type(error).__name__
        raise ModelError(f"{why}, but the package {name} cannot be imported: {reason}.") from None
