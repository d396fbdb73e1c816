"""Whether this machine can run an execution provider, said before ONNX Runtime falls back or logs."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping
from dataclasses import dataclass

import onnxruntime as ort

from ranks.errors import DeviceError


@dataclass(frozen=True)
class Device:
    """What a provider needs: ``buffers`` is where values that cross a cut lie ("cuda" or "cpu")."""

    title: str
    driver: str
    buffers: str
    advice: str


DEVICES: Mapping[str, Device] = {
    "CUDAExecutionProvider": Device(
        "CUDA",
        "libcuda.so.1",
        "cuda",
        "install the NVIDIA driver, CUDA and cuDNN, or use the target cpu",
    ),
    "TensorrtExecutionProvider": Device(
        "TensorRT",
        "libcuda.so.1",
        "cuda",
        "install the NVIDIA driver, CUDA, cuDNN and TensorRT, or use another provider",
    ),
    "CANNExecutionProvider": Device(
        "Ascend (CANN)",
        "libascendcl.so",
        "cpu",
        "install the Ascend driver, CANN and the package onnxruntime-cann, or use the target cpu",
    ),
}


def require(provider: str, device_id: int = 0) -> None:
    """Raises `DeviceError` with what is missing unless this machine can run ``provider`` on ``device_id``."""
    if provider == "CPUExecutionProvider":
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
    if device.driver == "libcuda.so.1":
        count = _cuda_devices(driver)
        if device_id >= count:
            raise failure(provider, device_id, f"this process sees {count} CUDA device{'s' * (count != 1)}")
        for library in _cuda_libraries():
            if isinstance(missing := _load(library), OSError):
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


def _cuda_libraries() -> list[str]:
    """The libraries that ONNX Runtime's CUDA provider links to, by the CUDA version it was built for.

    They are looked up here because ONNX Runtime, which tries later, only logs that one is missing. (The
    provider's own library cannot be tried: it must be loaded by ONNX Runtime first.)
    """
    if hasattr(ort, "preload_dlls"):
        with contextlib.redirect_stdout(None):  # it prints what it does not find
            ort.preload_dlls()  # finds CUDA where pip put it
    major = str(getattr(ort, "cuda_version", "") or "").split(".")[0]
    return [f"libcudart.so.{major}", f"libcublasLt.so.{major}", "libcudnn.so.9"] if major.isdigit() else []


def _load(name: str) -> ctypes.CDLL | OSError:
    try:
        return ctypes.CDLL(name)
    except OSError as error:
        return error


def _cuda_devices(driver: ctypes.CDLL) -> int:
    """The devices that the driver lets this process see (``CUDA_VISIBLE_DEVICES`` applied)."""
    count = ctypes.c_int(0)
    if driver.cuInit(0) != 0 or driver.cuDeviceGetCount(ctypes.byref(count)) != 0:
        return 0
    return count.value
