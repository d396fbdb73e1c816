"""The inference API, with the names of the mindspore_lite package.

Each name is imported when it is first used: a process that runs a model needs neither the converter nor the
runner, and every process that shares weights would hold them.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ranks.lite.converter import Converter as Converter
    from ranks.lite.group import ModelGroup as ModelGroup
    from ranks.lite.group import ModelGroupFlag as ModelGroupFlag
    from ranks.lite.model import Model as Model
    from ranks.lite.options.context import AscendDeviceInfo as AscendDeviceInfo
    from ranks.lite.options.context import Context as Context
    from ranks.lite.options.context import CPUDeviceInfo as CPUDeviceInfo
    from ranks.lite.options.context import DeviceInfo as DeviceInfo
    from ranks.lite.options.context import GPUDeviceInfo as GPUDeviceInfo
    from ranks.lite.options.types import DataType as DataType
    from ranks.lite.options.types import FmkType as FmkType
    from ranks.lite.options.types import Format as Format
    from ranks.lite.options.types import ModelType as ModelType
    from ranks.lite.runner import ModelParallelRunner as ModelParallelRunner
    from ranks.lite.runner import RunnerConfig as RunnerConfig
    from ranks.lite.shared import SharedModel as SharedModel
    from ranks.lite.shared import attach as attach
    from ranks.lite.shared import share_weights as share_weights
    from ranks.lite.tensor import Tensor as Tensor
    from ranks.lite.tensor import TensorMeta as TensorMeta

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
