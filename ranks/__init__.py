# ruff: noqa: F403, F405 - the names that are said below are those of ranks.lite
"""What runs inside one rank: identity, the public inference API, sessions, collectives.

`Context`, `Model`, `Tensor` and the other names of the inference API are imported when first used, so that a
process that needs only a part of this package starts without the rest.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

# ONNX Runtime reports its use to its makers, and keeps an id for that (.ses) in the folder for temporary
# files. It reads this when it is imported, which modules of this package do.
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

if TYPE_CHECKING:
    from ranks.lite import *

__all__ = [
    "AscendDeviceInfo",
    "CPUDeviceInfo",
    "Context",
    "Converter",
    "DataType",
    "DeviceInfo",
    "FmkType",
    "Format",
    "GPUDeviceInfo",
    "Model",
    "ModelGroup",
    "ModelGroupFlag",
    "ModelParallelRunner",
    "ModelType",
    "RunnerConfig",
    "SharedModel",
    "Tensor",
    "TensorMeta",
    "attach",
    "share_weights",
]


MODULES = ("context", "converter", "model", "tensor", "version")
"""Modules that `import mindspore_lite` makes attributes of it."""


def __getattr__(name: str) -> object:
    if name in MODULES:
        import importlib

        return importlib.import_module(f"ranks.{name}")
    if name not in __all__:
        raise AttributeError(f"module 'ranks' has no attribute {name!r}")
    from ranks import lite

    found = getattr(lite, name)
    globals()[name] = found
    return found


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__, *MODULES})
