"""`mindspore_lite.context`: a module of that name, for programs that import it by its own name."""

from __future__ import annotations

from ranks.lite.options.context import AscendDeviceInfo, Context, CPUDeviceInfo, DeviceInfo, GPUDeviceInfo

__all__ = ["AscendDeviceInfo", "CPUDeviceInfo", "Context", "DeviceInfo", "GPUDeviceInfo"]
