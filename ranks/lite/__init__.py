"""The inference API, with the names of the mindspore_lite package."""

from __future__ import annotations

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
