"""The inference API, with the names of the mindspore_lite package.

Each name is imported when it is first used: a process that runs a model needs neither the converter nor the
runner, and every process that shares weights would hold them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ranks.lite.converter import Converter
    from ranks.lite.group import ModelGroup, ModelGroupFlag
    from ranks.lite.model import Model
    from ranks.lite.options.context import AscendDeviceInfo, Context, CPUDeviceInfo, DeviceInfo, GPUDeviceInfo
    from ranks.lite.options.types import DataType, FmkType, Format, ModelType
    from ranks.lite.runner import ModelParallelRunner, RunnerConfig
    from ranks.lite.shared import SharedModel, attach, share_weights
    from ranks.lite.tensor import Tensor, TensorMeta

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

_PLACES = {
    **dict.fromkeys(("AscendDeviceInfo", "CPUDeviceInfo", "Context"), "options.context"),
    **dict.fromkeys(("DeviceInfo", "GPUDeviceInfo"), "options.context"),
    **dict.fromkeys(("DataType", "FmkType", "Format", "ModelType"), "options.types"),
    **dict.fromkeys(("ModelGroup", "ModelGroupFlag"), "group"),
    **dict.fromkeys(("ModelParallelRunner", "RunnerConfig"), "runner"),
    **dict.fromkeys(("SharedModel", "attach", "share_weights"), "shared"),
    **dict.fromkeys(("Tensor", "TensorMeta"), "tensor"),
    "Converter": "converter",
    "Model": "model",
}
"""The module in this room that each name comes from."""


def __getattr__(name: str) -> object:
    if name not in _PLACES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    found: object = getattr(importlib.import_module(f"{__name__}.{_PLACES[name]}"), name)
    globals()[name] = found
    return found
