"""`Context`: on which device a model runs, and how."""

from __future__ import annotations

from ranks.common.notice import deprecated
from ranks.common.targets import TARGETS
from ranks.lite.options.check import (
    Checked,
    check_isinstance,
    check_list_of,
    count,
    list_of_integers,
    of,
)
from ranks.lite.options.device import CPU, GPU, Ascend, Threads, affinity
from ranks.lite.options.legacy_device import AscendDeviceInfo, CPUDeviceInfo, DeviceInfo, GPUDeviceInfo
from ranks.lite.options.parallel import Parallel

__all__ = ["AscendDeviceInfo", "CPUDeviceInfo", "Context", "DeviceInfo", "GPUDeviceInfo"]


class Context:
    """Where and how a model runs: ``target`` with ``cpu``, ``gpu`` and ``ascend``, and ``parallel``.

    The arguments are deprecated: they are those of the generation of `append_device_info`, and a context made
    with them prints as it did then.
    """

    group_info_file = Checked(of(str), "")
    """Path of a communication group file. Groups come from the launcher here: kept, not read."""

    def __init__(
        self,
        thread_num: int | None = None,
        inter_op_parallel_num: int | None = None,
        thread_affinity_mode: int | None = None,
        thread_affinity_core_list: list[int] | None = None,
        enable_parallel: bool = False,
    ) -> None:
        self._threads = Threads()
        self._legacy = False
        self._enable_parallel = False
        self._devices: list[DeviceInfo] = []
        self.cpu = CPU(self._threads)
        self.gpu = GPU()
        self.ascend = Ascend()
        self.parallel = Parallel()
        self._target = ["cpu"]
        given = (thread_num, inter_op_parallel_num, thread_affinity_mode, thread_affinity_core_list)
        if any(argument is not None for argument in given) or enable_parallel is not False:
            deprecated("Context with arguments", "context.cpu")
            self._set_threads(*given)
            check_isinstance("enable_parallel", enable_parallel, bool)
            self._enable_parallel = enable_parallel
            self._legacy = True

    def _set_threads(
        self, thread_num: int | None, parallel_num: int | None, mode: int | None, cores: list[int] | None
    ) -> None:
        if thread_num is not None:
            self._threads.thread_num = count("thread_num", thread_num, "Context's init failed, ")
        if parallel_num is not None:
            self._threads.inter_op_parallel_num = count(
                "inter_op_parallel_num", parallel_num, "Context's init failed, "
            )
        if mode is not None:
            self._threads.thread_affinity_mode = affinity("thread_affinity_mode", mode)
        if cores is not None:
            self._threads.thread_affinity_core_list = list_of_integers("thread_affinity_core_list", cores)

    def __str__(self) -> str:
        if not self._legacy:
            return f"target: {self._target}."
        return (
            f"thread_num: {self._threads.thread_num},\n"
            f"inter_op_parallel_num: {self._threads.inter_op_parallel_num},\n"
            f"thread_affinity_mode: {self._threads.thread_affinity_mode},\n"
            f"thread_affinity_core_list: {self._threads.thread_affinity_core_list},\n"
            f"enable_parallel: {self._enable_parallel},\n"
            f"device_list: {''.join(f'{device.number}, ' for device in self._devices)}."
        )

    @property
    def target(self) -> list[str]:
        """The devices to use, best first: "cpu", "gpu", "ascend" in any case. Operators that the device does
        not know run on the CPU.

        Setting it raises `TypeError` unless it is a list of str, `ValueError` for another name; an empty list
        and None mean ["cpu"].
        """
        return self._target

    @target.setter
    def target(self, target: list[str]) -> None:
        target = target or ["cpu"]
        check_list_of("target", target, str)
        for name in target:
            if name.lower() not in TARGETS:
                raise ValueError(f"target elements must be in {list(TARGETS)}, but got {name.lower()}.")
        self._target = target

    def append_device_info(self, device_info: DeviceInfo) -> None:
        """Deprecated: the property ``target``. Raises `TypeError` unless it is a `DeviceInfo`."""
        deprecated("append_device_info()", "target")
        check_isinstance("device_info", device_info, DeviceInfo)
        self._devices.append(device_info)
        self._legacy = True
        self._target = [device.target for device in self._devices]
        if isinstance(device_info, CPUDeviceInfo):
            self.cpu.prefer_fp16(device_info.enable_fp16)
        elif isinstance(device_info, GPUDeviceInfo):
            self.gpu.device_id = device_info.device_id
            self.gpu.prefer_fp16(device_info.enable_fp16)
        elif isinstance(device_info, AscendDeviceInfo):
            self.ascend.device_id = device_info.device_id
            self.ascend.legacy_precision_mode = device_info.precision_mode
