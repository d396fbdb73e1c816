"""The inference API, with the names of the mindspore_lite package."""

from __future__ import annotations

from ranks.api.context import AscendDeviceInfo, Context, CPUDeviceInfo, DeviceInfo, GPUDeviceInfo
from ranks.api.converter import Converter
from ranks.api.group import ModelGroup, ModelGroupFlag
from ranks.api.model import Model
from ranks.api.runner import ModelParallelRunner, RunnerConfig
from ranks.api.shared import SharedModel, attach, share_weights
from ranks.api.tensor import Tensor, TensorMeta
from ranks.api.types import DataType, FmkType, Format, ModelType

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
