"""The devices of a `Context`: `context.cpu`, `context.gpu`, `context.ascend`."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import ClassVar

from ranks.common.notice import warn_user
from ranks.common.targets import ASCEND_MODES, CPU_GPU_MODES
from ranks.lite.options.check import Checked, choice, count, integer, list_of_integers, of, of_bits


@dataclass
class Threads:
    """CPU threads of a context; 0 leaves the number to the runtime."""

    thread_num: int = 0
    inter_op_parallel_num: int = 0
    thread_affinity_mode: int = 0
    thread_affinity_core_list: list[int] = field(default_factory=list)


def affinity(name: str, value: object) -> int:
    """A mode of affinity; like the original, takes an unknown one for "no binding", with a warning."""
    mode = of_bits(name, integer(name, value), 32)
    if mode in {0, 1, 2}:
        return mode
    warn_user(f"Invalid thread affinity mode: {mode}, change to NO_BIND mode.")
    return 0


def _provider(name: str, value: object, choices: Sequence[str]) -> str:
    found = of(str)(name, value)
    if found not in choices:
        raise ValueError(f"{name} must be in {list(choices)}, but got {found}.")
    return found


class _Half:
    """A device that may compute in float16; messages say ``_name``."""

    _name: ClassVar[str]

    def __init__(self) -> None:
        self._precision = "enforce_fp32"
        self.precision_chosen = ""  # what the script set; the default leaves the model as it is

    @property
    def precision_mode(self) -> str:
        return self._precision

    @precision_mode.setter
    def precision_mode(self, mode: str) -> None:
        name = f"{self._name}_precision_mode"
        self._precision = self.precision_chosen = choice(name, mode, CPU_GPU_MODES)

    def prefer_fp16(self, preferred: bool) -> None:
        """What `enable_fp16` of the deprecated device infos says; False is the default there, no choice."""
        self._precision = "preferred_fp16" if preferred else "enforce_fp32"
        self.precision_chosen = self._precision if preferred else ""


class CPU(_Half):
    """CPU options.

    - ``precision_mode``: "enforce_fp32" (once set, float16 nodes compute in float32, too) or
      "preferred_fp16", a preference that ONNX Runtime does not follow on the CPU.
    - ``thread_num``: threads per inference, 0 for as many as this rank has cores.
    - ``inter_op_parallel_num``: operators run at once, 0 for the runtime's choice.
    - ``thread_affinity_mode``: 0 no binding, 1 big cores first, 2 middle cores first.
    - ``thread_affinity_core_list``: the cores that the threads may use.
    """

    _name = "cpu"
    thread_num = Checked(count, 0, "cpu_thread_num", "_threads")
    inter_op_parallel_num = Checked(count, 0, "cpu_inter_op_parallel_num", "_threads")
    thread_affinity_mode = Checked(affinity, 0, "cpu_thread_affinity_mode", "_threads")
    thread_affinity_core_list = Checked[list[int]](
        list_of_integers, [], "cpu_thread_affinity_core_list", "_threads"
    )

    def __init__(self, threads: Threads) -> None:
        super().__init__()
        self._threads = threads

    def __str__(self) -> str:
        return (
            f"device_type: DeviceType.kCPU,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"thread_num: {self.thread_num},\n"
            f"inter_op_parallel_num: {self.inter_op_parallel_num},\n"
            f"thread_affinity_mode: {self.thread_affinity_mode},\n"
            f"thread_affinity_core_list: {self.thread_affinity_core_list}."
        )


class GPU(_Half):
    """GPU options; ``rank_id`` and ``group_size`` are this process's, from the launcher's environment.

    ``precision_mode`` is "enforce_fp32" (once set, all nodes compute in float32, and not in TF32) or
    "preferred_fp16" (nodes compute in float16 where they can; inputs and outputs keep their types).

    ``provider`` is "" for CUDA or "tensorrt".
    """

    _name = "gpu"
    provider = Checked(partial(_provider, choices=("", "tensorrt")), "", "gpu_provider")
    device_id = Checked(count, 0, "gpu_device_id")

    def __str__(self) -> str:
        return (
            f"device_type: DeviceType.kGPU,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"device_id: {self.device_id},\n"
            f"rank_id: {self.rank_id},\n"
            f"group_size: {self.group_size}."
        )

    @property
    def rank_id(self) -> int:
        """Rank of this process, from 0. Raises `ranks.errors.IdentityError` for a half-set environment."""
        return environment_rank()

    @property
    def group_size(self) -> int:
        """Number of ranks. Raises `ranks.errors.IdentityError` for a half-set environment."""
        from ranks.identity.identity import identify

        return identify().world_size


class Ascend:
    """Ascend options. ``rank_id`` is the environment's unless set; ``provider`` is "" or "ge"."""

    device_id = Checked(count, 0, "ascend_device_id")
    provider = Checked(partial(_provider, choices=("", "ge")), "", "ascend_provider")
    precision_mode = Checked(partial(choice, choices=ASCEND_MODES), "", "ascend_precision_mode")

    def __init__(self) -> None:
        self.legacy_precision_mode = ""  # CANN's own name for it, from `AscendDeviceInfo`
        self._rank_id: int | None = None

    def __str__(self) -> str:
        return (
            f"device_type: DeviceType.kAscend,\n"
            f"precision_mode: {self.precision_mode},\n"
            f"device_id: {self.device_id}."
            f"provider: {self.provider}."
            f"rank_id: {self.rank_id}."
        )

    @property
    def rank_id(self) -> int:
        return environment_rank() if self._rank_id is None else self._rank_id

    @rank_id.setter
    def rank_id(self, rank: int) -> None:
        self._rank_id = count("ascend_rank_id", rank)

    @property
    def chosen(self) -> tuple[int | None, int | None]:
        """Rank and device that the script set, None where it set none."""
        return self._rank_id, vars(self).get("device_id")


def environment_rank() -> int:
    """This process's rank as its environment says; 0 where nothing started it as one of several."""
    from ranks.identity.identity import identify

    return identify().rank


__all__ = ["CPU", "GPU", "Ascend", "Threads", "affinity", "environment_rank"]
