"""The device classes that contexts were made of before they had targets (mindspore_lite 1.8 to 2.0 alpha)."""

from __future__ import annotations

from ranks.common.notice import deprecated
from ranks.lite.options.check import check_isinstance, count, integer, integers, list_of_integers
from ranks.lite.options.content import exists
from ranks.lite.options.device import environment_rank

__all__ = ["AscendDeviceInfo", "CPUDeviceInfo", "DeviceInfo", "GPUDeviceInfo"]


class DeviceInfo:
    """Base of the device classes; deprecated with them."""

    target = ""
    number = -1  # as contexts print it


class CPUDeviceInfo(DeviceInfo):
    """Deprecated: `context.target = ["cpu"]` and `context.cpu`."""

    target = "cpu"
    number = 0

    def __init__(self, enable_fp16: bool = False) -> None:
        deprecated("CPUDeviceInfo", 'context.target = ["cpu"]')
        check_isinstance("enable_fp16", enable_fp16, bool)
        self.enable_fp16 = enable_fp16

    def __str__(self) -> str:
        return f"device_type: DeviceType.kCPU,\nenable_fp16: {self.enable_fp16}."


class GPUDeviceInfo(DeviceInfo):
    """Deprecated: `context.target = ["gpu"]` and `context.gpu`."""

    target = "gpu"
    number = 1

    def __init__(self, device_id: int = 0, enable_fp16: bool = False) -> None:
        deprecated("GPUDeviceInfo", 'context.target = ["gpu"]')
        number = count("device_id", device_id, "GPUDeviceInfo's init failed, ")
        check_isinstance("enable_fp16", enable_fp16, bool)
        self.device_id = number
        self.enable_fp16 = enable_fp16

    def __str__(self) -> str:
        return (
            f"device_type: DeviceType.kGPU,\ndevice_id: {self.device_id},\nenable_fp16: {self.enable_fp16}."
        )

    def get_rank_id(self) -> int:
        """Rank of this process, from 0, from the launcher's environment."""
        return environment_rank()

    def get_group_size(self) -> int:
        """Number of ranks, from the launcher's environment."""
        from ranks.identity.identity import identify

        return identify().world_size


class AscendDeviceInfo(DeviceInfo):
    """Deprecated: `context.target = ["ascend"]` and `context.ascend`.

    The arguments after ``device_id`` are those of 1.8. ``precision_mode`` is CANN's name for it; the others
    configured a conversion that is not needed for ONNX, and are checked and kept only.
    """

    target = "ascend"
    number = 3

    def __init__(  # noqa: PLR0917 - the signature is the contract
        self,
        device_id: int = 0,
        input_format: str | None = None,
        input_shape: dict[str, list[int]] | None = None,
        precision_mode: str = "force_fp16",
        op_select_impl_mode: str = "high_performance",
        dynamic_batch_size: list[int] | None = None,
        dynamic_image_size: str = "",
        fusion_switch_config_path: str = "",
        insert_op_cfg_path: str = "",
    ) -> None:
        deprecated("AscendDeviceInfo", 'context.target = ["ascend"]')
        integer("device_id", device_id)  # of two wrong arguments the first is named
        check_isinstance("input_format", input_format, str, none_allowed=True)
        _check_input_shape(input_shape)
        check_isinstance("precision_mode", precision_mode, str)
        check_isinstance("op_select_impl_mode", op_select_impl_mode, str)
        if dynamic_batch_size is not None:
            list_of_integers("dynamic_batch_size", dynamic_batch_size)
        check_isinstance("dynamic_image_size", dynamic_image_size, str)
        check_isinstance("fusion_switch_config_path", fusion_switch_config_path, str)
        check_isinstance("insert_op_cfg_path", insert_op_cfg_path, str)
        number = count("device_id", device_id, "AscendDeviceInfo's init failed, ")
        for name, path in (
            ("fusion_switch_config_path", fusion_switch_config_path),
            ("insert_op_cfg_path", insert_op_cfg_path),
        ):
            if path and not exists(path):
                raise RuntimeError(f"AscendDeviceInfo's init failed, {name} does not exist!")
        self.device_id = number
        self.precision_mode = precision_mode

    def __str__(self) -> str:
        return f"device_type: DeviceType.kAscend,\ndevice_id: {self.device_id}."


def _check_input_shape(shapes: object) -> None:
    if shapes is None:
        return
    check_isinstance("input_shape", shapes, dict)
    assert isinstance(shapes, dict)
    for key, shape in shapes.items():
        if not isinstance(shape, list):
            raise TypeError(f"input_shape value must be list, but got {type(shape)} at key {key}.")
        integers("input_shape value's", shape)
