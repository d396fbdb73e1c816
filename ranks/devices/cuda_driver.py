"""The calls of the CUDA driver (libcuda) that sharing device memory takes, and their errors.

The driver alone is needed: its interface is the same for every release of the CUDA toolkit. Calls work in the
device's primary context, which is the one that ONNX Runtime and torch use. Signatures and numbers are those
of NVIDIA's cuda.h.
"""

from __future__ import annotations

import contextlib
import ctypes
import threading
from collections.abc import Iterator
from ctypes import POINTER, c_char_p, c_int, c_size_t, c_ubyte, c_uint, c_uint64, c_ushort, c_void_p

from ranks.errors import DeviceError

LIBRARY = "libcuda.so.1"
POSIX_DESCRIPTOR = 1  # CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR
READ, READ_WRITE = 1, 3  # CU_MEM_ACCESS_FLAGS_PROT_*
_PINNED = 1  # CU_MEM_ALLOCATION_TYPE_PINNED
_ON_DEVICE = 1  # CU_MEM_LOCATION_TYPE_DEVICE
_MINIMUM = 0  # CU_MEM_ALLOC_GRANULARITY_MINIMUM
_MAPPING_SUPPORTED, _DESCRIPTORS_SUPPORTED = (
    102,
    103,
)  # CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_..., HANDLE_TYPE_...
_LAZY_PEER_ACCESS = 1  # CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS


class CudaError(DeviceError):
    """A call of the driver failed; ``code`` is its ``CUresult``."""

    def __init__(self, message: str, code: int) -> None:
        super().__init__(message)
        self.code = code


class _Location(ctypes.Structure):
    _fields_ = [("type", c_int), ("id", c_int)]


class _Flags(ctypes.Structure):
    _fields_ = [
        ("compression", c_ubyte),
        ("gpu_direct_rdma", c_ubyte),
        ("usage", c_ushort),
        ("reserved", c_ubyte * 4),
    ]


class _Properties(ctypes.Structure):
    """``CUmemAllocationProp``."""

    _fields_ = [
        ("type", c_int),
        ("handle_types", c_int),
        ("location", _Location),
        ("win32", c_void_p),
        ("flags", _Flags),
    ]


class _Access(ctypes.Structure):
    """``CUmemAccessDesc``."""

    _fields_ = [("location", _Location), ("flags", c_int)]


class IpcHandle(ctypes.Structure):
    """``CUipcMemHandle``: 64 bytes, passed by value."""

    _fields_ = [("reserved", c_ubyte * 64)]


_SIGNATURES: dict[str, tuple[object, ...]] = {
    "cuInit": (c_uint,),
    "cuGetErrorName": (c_int, POINTER(c_char_p)),
    "cuGetErrorString": (c_int, POINTER(c_char_p)),
    "cuDriverGetVersion": (POINTER(c_int),),
    "cuDeviceGetCount": (POINTER(c_int),),
    "cuDeviceGet": (POINTER(c_int), c_int),
    "cuDeviceGetUuid": (POINTER(c_ubyte * 16), c_int),
    "cuDeviceGetUuid_v2": (POINTER(c_ubyte * 16), c_int),
    "cuDeviceGetAttribute": (POINTER(c_int), c_int, c_int),
    "cuDevicePrimaryCtxRetain": (POINTER(c_void_p), c_int),
    "cuCtxPushCurrent_v2": (c_void_p,),
    "cuCtxPopCurrent_v2": (POINTER(c_void_p),),
    "cuMemGetInfo_v2": (POINTER(c_size_t), POINTER(c_size_t)),
    "cuMemAlloc_v2": (POINTER(c_uint64), c_size_t),
    "cuMemFree_v2": (c_uint64,),
    "cuMemcpyHtoD_v2": (c_uint64, c_void_p, c_size_t),
    "cuMemcpyDtoH_v2": (c_void_p, c_uint64, c_size_t),
    "cuIpcGetMemHandle": (POINTER(IpcHandle), c_uint64),
    "cuIpcOpenMemHandle_v2": (POINTER(c_uint64), IpcHandle, c_uint),
    "cuIpcCloseMemHandle": (c_uint64,),
    "cuMemGetAllocationGranularity": (POINTER(c_size_t), POINTER(_Properties), c_int),
    "cuMemCreate": (POINTER(c_uint64), c_size_t, POINTER(_Properties), c_uint64),
    "cuMemRelease": (c_uint64,),
    "cuMemAddressReserve": (POINTER(c_uint64), c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemAddressFree": (c_uint64, c_size_t),
    "cuMemMap": (c_uint64, c_size_t, c_size_t, c_uint64, c_uint64),
    "cuMemUnmap": (c_uint64, c_size_t),
    "cuMemSetAccess": (c_uint64, c_size_t, POINTER(_Access), c_size_t),
    "cuMemExportToShareableHandle": (c_void_p, c_uint64, c_int, c_uint64),
    "cuMemImportFromShareableHandle": (POINTER(c_uint64), c_void_p, c_int),
}


class Driver:
    """The CUDA driver in this process; ``library`` is its file.

    Raises `DeviceError` that begins with "no CUDA device" where there is no driver or no device. Its calls
    raise `CudaError`.
    """

    dlpack_device = 2
    """kDLCUDA: where DLPack says that this driver's memory lies."""

    def __init__(self, library: str = LIBRARY) -> None:
        try:
            self._library = ctypes.CDLL(library)
        except OSError as error:
            raise DeviceError(f"no CUDA device: its driver is missing ({error}).") from None
        for name, arguments in _SIGNATURES.items():
            function = getattr(self._library, name, None)
            if function is not None:
                function.argtypes, function.restype = arguments, c_int
        self._contexts: dict[int, c_void_p] = {}
        self._lock = threading.RLock()  # a finalizer may come in while this thread holds it
        count = c_int(0)
        try:
            self.call("cuInit", 0)
            self.call("cuDeviceGetCount", ctypes.byref(count))
        except CudaError as error:
            raise DeviceError(f"no CUDA device: {error}") from None
        if count.value < 1:
            raise DeviceError(
                "no CUDA device: the driver shows none to this process (CUDA_VISIBLE_DEVICES?)."
            )
        self.devices = count.value

    def call(self, name: str, *arguments: object) -> None:
        """Calls a function of the driver. Raises `CudaError` where it fails or the driver lacks it."""
        function = getattr(self._library, name, None)
        if function is None:
            raise CudaError(f"this CUDA driver has no {name}: it is too old.", -1)
        code = function(*arguments)
        if code != 0:
            raise CudaError(f"the CUDA driver's {name} failed: {self._text(code)}.", code)

    def has(self, name: str) -> bool:
        """Whether the driver has a function."""
        return hasattr(self._library, name)

    @property
    def version(self) -> tuple[int, int]:
        """The CUDA release, as (13, 0), up to which the driver runs programs."""
        found = c_int(0)
        self.call("cuDriverGetVersion", ctypes.byref(found))
        return found.value // 1000, found.value % 1000 // 10

    def uuid(self, device: int) -> str:
        """The device's identity, the same in every process, in hexadecimal; of a MIG instance its own."""
        found = (c_ubyte * 16)()
        name = "cuDeviceGetUuid_v2" if self.has("cuDeviceGetUuid_v2") else "cuDeviceGetUuid"
        self.call(name, ctypes.byref(found), self._handle(device))
        return bytes(found).hex()

    def find(self, uuid: str) -> int | None:
        """The number that the device has in this process; None where this process does not see it."""
        return next((device for device in range(self.devices) if self.uuid(device) == uuid), None)

    def exports_descriptors(self, device: int) -> bool:
        """Whether the device's memory can be shared by file descriptors."""
        return self.has("cuMemImportFromShareableHandle") and all(
            self._attribute(device, number) for number in (_MAPPING_SUPPORTED, _DESCRIPTORS_SUPPORTED)
        )

    @contextlib.contextmanager
    def on(self, device: int) -> Iterator[None]:
        """Within it, this thread's calls are for the device."""
        self.call("cuCtxPushCurrent_v2", self._context(device))
        try:
            yield
        finally:
            self.call("cuCtxPopCurrent_v2", ctypes.byref(c_void_p()))

    def free_bytes(self, device: int) -> int:
        """The device's free memory, as all processes leave it."""
        free, total = c_size_t(0), c_size_t(0)
        with self.on(device):
            self.call("cuMemGetInfo_v2", ctypes.byref(free), ctypes.byref(total))
        return free.value

    def properties(self, device: int) -> _Properties:
        """What allocations that can be shared by descriptors are."""
        return _Properties(
            type=_PINNED, handle_types=POSIX_DESCRIPTOR, location=_Location(_ON_DEVICE, device)
        )

    def granularity(self, device: int) -> int:
        """Such allocations are a multiple of this many bytes."""
        found = c_size_t(0)
        with self.on(device):
            wanted = self.properties(device)
            self.call("cuMemGetAllocationGranularity", ctypes.byref(found), ctypes.byref(wanted), _MINIMUM)
        return found.value

    def access(self, device: int, address: int, size: int, flags: int) -> None:
        """Sets what the device may do with mapped memory."""
        wanted = _Access(_Location(_ON_DEVICE, device), flags)
        self.call("cuMemSetAccess", address, size, ctypes.byref(wanted), 1)

    def open_ipc(self, handle: bytes) -> int:
        """The address of another process's allocation."""
        address = c_uint64(0)
        wanted = IpcHandle.from_buffer_copy(handle)
        self.call("cuIpcOpenMemHandle_v2", ctypes.byref(address), wanted, _LAZY_PEER_ACCESS)
        return address.value

    def _handle(self, device: int) -> int:
        found = c_int(0)
        self.call("cuDeviceGet", ctypes.byref(found), device)
        return found.value

    def _attribute(self, device: int, number: int) -> int:
        found = c_int(0)
        self.call("cuDeviceGetAttribute", ctypes.byref(found), number, self._handle(device))
        return found.value

    def _context(self, device: int) -> c_void_p:
        """The primary context, kept until the process ends: ONNX Runtime does not give it back either."""
        with self._lock:
            if device not in self._contexts:
                context = c_void_p()
                self.call("cuDevicePrimaryCtxRetain", ctypes.byref(context), self._handle(device))
                self._contexts[device] = context
            return self._contexts[device]

    def _text(self, code: int) -> str:
        parts = []
        for name in ("cuGetErrorName", "cuGetErrorString"):
            text = c_char_p()
            if self.has(name) and getattr(self._library, name)(code, ctypes.byref(text)) == 0 and text.value:
                parts.append(text.value.decode(errors="replace"))
        return ", ".join(parts) or f"error {code}"
