"""Whether this machine can run an execution provider, said before ONNX Runtime falls back or logs."""

from __future__ import annotations

import contextlib
import ctypes
import functools
import re
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from types import FunctionType

import onnxruntime as ort

from ranks.devices.linked import needed
from ranks.devices.providers import CANN, CPU, CUDA, TENSORRT
from ranks.errors import DeviceError
from ranks.identity.place import Identity
from sharding.common.limits import HOLD_LESS
from sharding.common.text import human_bytes

_CUDA_DRIVER = "libcuda.so.1"
_CUDNN = "libcudnn.so.9"
"""What ONNX Runtime opens by its name alone when a node first needs it."""


@dataclass(frozen=True)
class Device:
    """What a provider needs.

    ``buffers`` is where values that cross a cut lie ("cuda" or "cpu"), ``parts`` are ONNX Runtime's libraries
    that hold the provider and what runs behind it, and ``told`` is what of a memory's options it knows (None:
    all of them).
    """

    title: str
    driver: str
    buffers: str
    advice: str
    parts: tuple[str, ...] = ()
    told: frozenset[str] | None = None


DEVICES: Mapping[str, Device] = {
    CUDA: Device(
        "CUDA",
        _CUDA_DRIVER,
        "cuda",
        "install the NVIDIA driver and CUDA's libraries (pip install 'shardrun[gpu]' has them), or use the "
        "target cpu",
        ("cuda",),
    ),
    TENSORRT: Device(
        "TensorRT",
        _CUDA_DRIVER,
        "cuda",
        "install the NVIDIA driver, CUDA's libraries and cuDNN (pip install 'shardrun[gpu]' has them) and "
        "TensorRT, or use another provider",
        # What TensorRT leaves over is CUDA's.
        ("cuda", "tensorrt"),
        frozenset({"user_compute_stream"}),
    ),
    CANN: Device(
        "Ascend (CANN)",
        "libascendcl.so",
        "cpu",
        "install the Ascend driver, CANN and the package onnxruntime-cann, or use the target cpu",
    ),
}
_SHOWN = 8
_SOURCE_LINE = re.compile(
    r"(?<!\S)/\S+\.(?:cc|cu|h|cuh):\d+ [^()]*\([^()]*\)(?: const)?(?: \[with [^\]]*\])? (?=\S)"
    r"(?!.* was false\.)"
)
"""Where in a provider's source an error was made; a check's condition goes with its place elsewhere."""
OLDEST_DRIVERS = {12: 525, 13: 580}
"""NVIDIA's drivers by the CUDA version whose libraries they run: NVIDIA's table of compatible releases."""


def require(provider: str, device_id: int = 0) -> None:
    """Raises `DeviceError` with what is missing unless this machine can run ``provider`` on ``device_id``."""
    if provider == CPU:
        return
    if provider not in ort.get_available_providers():
        available = ", ".join(ort.get_available_providers())
        advice = DEVICES[provider].advice if provider in DEVICES else "install a build that has it"
        raise DeviceError(
            f"{provider} is not in this build of ONNX Runtime {ort.__version__}, which has {available}: "
            f"{advice}."
        )
    if provider not in DEVICES:
        return
    device = DEVICES[provider]
    driver = _load(device.driver)
    if isinstance(driver, OSError):
        raise failure(provider, device_id, f"its driver is missing ({driver})")
    if device.driver == _CUDA_DRIVER:
        count = _cuda_devices(driver)
        if device_id >= count:
            seen = f"this process sees {count} CUDA device{'s' * (count != 1)}"
            raise failure(provider, device_id, seen if count else f"{seen}: {_why_none()}")
        if old := _too_old(driver):
            raise failure(provider, device_id, old)
        if missing := preload(device.parts):
            raise failure(provider, device_id, f"a library is missing ({missing})")


def failure(provider: str, device_id: int, why: str) -> DeviceError:
    """The error for a provider that cannot run here."""
    device = DEVICES.get(provider)
    title = device.title if device else provider
    advice = device.advice if device else "use another provider"
    return DeviceError(f"{title} device {device_id} cannot be used: {why.rstrip('.')}; {advice}.")


def is_device_failure(error: Exception) -> bool:
    """Whether ONNX Runtime's error is about the device rather than about the model."""
    text = str(error)
    return any(mark in text for mark in ("CUDA", "cuda", "CUDNN", "TensorRT", "CANN", "ACL"))


def said(text: str) -> str:
    """What a provider's error says, without the templates and source lines around it."""
    if found := re.search(r"\bC[A-Z]+ failure -?\d+: [^;]+", text):  # CUDA, CUDNN, CUBLAS, CURAND, CUFFT
        return found[0].strip()
    if found := re.search(r"Invalid device ID: [^.]+", text):
        return found[0].strip()
    if found := re.search(r"(cuDNN is unavailable) or disabled[^:]*: *(.*)", text):
        return f"{found[1]} ({found[2]}), which nodes like Conv need: pip install 'shardrun[gpu]' brings it"
    return _SOURCE_LINE.sub("", text)


def memory_advice() -> str:
    """What is free on the GPUs of a process that has loaded their libraries, and what helps where memory is
    short, as the end of a sentence; "" for other processes."""
    if not preload.cache_info().currsize:
        return ""
    from ranks.devices.cuda_driver import Driver

    free = []
    with contextlib.suppress(DeviceError):
        driver = Driver()
        for index in range(min(driver.devices, _SHOWN)):
            free.append(f"{human_bytes(driver.free_bytes(index))} are free on GPU {index}")
    known = f" ({', '.join(free)})" if free else ""
    return (
        f"memory of the GPU or of the host is short{known}: {HOLD_LESS}, or give smaller inputs, or end what "
        "else uses the GPU"
    )


def visible() -> int:
    """How many CUDA devices this process sees; 0 where there is no driver."""
    driver = _load(_CUDA_DRIVER)
    return 0 if isinstance(driver, OSError) else _cuda_devices(driver)


def number_of(identity: Identity, count: int | None = None) -> int:
    """Which of the ``count`` devices that a rank sees (None: of as many as there are ranks) is its own.

    The one that its launcher or a rank table names, else the one with its local rank's number. A rank that
    sees fewer, one alone above all, was given its own by a scheduler: they are counted from 0, whatever the
    local rank. (That two ranks have come to the same one, `ranks.run.gpus` finds.)
    """
    if identity.device is not None:
        return identity.device
    return identity.local_rank % count if count else identity.local_rank


@functools.cache
def preload(parts: tuple[str, ...]) -> str:
    """Loads what ONNX Runtime's libraries of these ``parts`` link to; what is missing, in words, or "".

    They are loaded here because ONNX Runtime, which tries later, only logs that one is missing, and does not
    look where pip puts them. (The part itself cannot be tried: it must be loaded by ONNX Runtime first.) Each
    process that makes a session must do it.
    """
    # It warns at each session, of what it does by itself as well; what fails is raised.
    ort.set_default_logger_severity(3)
    _without_prints(getattr(ort, "preload_dlls", None))
    for part in parts:
        for library in needed(_capi() / f"libonnxruntime_providers_{part}.so"):
            if isinstance(missing := _load(library), OSError):
                return str(missing)
    if parts:
        _load(_CUDNN)  # where it is: most nodes do without
    return ""


def _without_prints(call: object) -> None:
    """Calls a function that prints what it does not find, if there is one, without that.

    Not by way of `sys.stdout`, which all threads share: of two that put it aside at once, the later one puts
    back that there is none, and the process says nothing any more.
    """
    if isinstance(call, FunctionType):
        own = {**call.__globals__, "print": lambda *_, **__: None}
        FunctionType(call.__code__, own, call.__name__, call.__defaults__, call.__closure__)()


def _capi() -> Path:
    return Path(ort.__file__).resolve().parent / "capi"


def _load(name: str) -> ctypes.CDLL | OSError:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        # Beside ONNX Runtime, or where else packages are: an unpacked wheel, say, has them beside torch.
        for packages in dict.fromkeys([_capi().parents[1], *(Path(place) for place in sys.path)]):
            for folder in (*packages.glob("nvidia/*/lib"), packages / "tensorrt_libs"):
                if (folder / name).is_file():
                    with contextlib.suppress(OSError):
                        return ctypes.CDLL(str(folder / name))
        return error


def _cuda_devices(driver: ctypes.CDLL) -> int:
    """The devices that the driver lets this process see (``CUDA_VISIBLE_DEVICES`` applied)."""
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value


def _why_none() -> str:
    from ranks.devices.cuda_driver import Driver

    try:
        Driver()
    except DeviceError as error:
        return str(error).removeprefix("no CUDA device: ")
    return "they were not there a moment ago"


def _too_old(driver: ctypes.CDLL) -> str:
    """Why the driver does not run the CUDA release that ONNX Runtime is built for; "" where it does."""
    built = str(getattr(ort, "cuda_version", "") or "")
    major = built.partition(".")[0]
    found = ctypes.c_int(0)
    if not major.isdigit() or driver.cuDriverGetVersion(ctypes.byref(found)) != 0:
        return ""
    runs = found.value // 1000, found.value % 1000 // 10
    if runs[0] >= int(major):
        return ""
    wanted = OLDEST_DRIVERS.get(int(major))
    newer = f", which takes driver {wanted} or a newer one" if wanted else ""
    return (
        f"its driver runs CUDA {runs[0]}.{runs[1]}, but onnxruntime {ort.__version__} is built for CUDA "
        f"{built}{newer}"
    )
