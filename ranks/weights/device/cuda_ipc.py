"""A block of device memory that several processes use: one owner fills it, others map the same memory.

Two ways, by what the device can:

``descriptor``  the block is made and mapped with the driver's virtual memory calls and exported as a file
                descriptor, which travels over a Unix socket. The memory lives until the last process that
                maps it has ended, by whatever death, and others can map it read-only.
``ipc``         a CUDA IPC handle of 64 bytes, for devices without such descriptors. CUDA leaves undefined
                what becomes of it for the others once the owner has freed it or has ended: the owner must
                outlive them. They can write to it.
"""

from __future__ import annotations

import contextlib
import ctypes
import os
import secrets
from ctypes import c_uint64, c_void_p

from ranks.devices.cuda_driver import POSIX_DESCRIPTOR, READ, READ_WRITE, CudaError, Driver, IpcHandle
from ranks.errors import WeightsError

ALIGNMENT = 256
"""Everything in a block is aligned as the CUDA allocator aligns it, because kernels may rely on that."""
LARGEST = 1 << 42


class OwnBlocks:
    """The names of the blocks that this process has made. One per process, whatever drivers it uses: CUDA
    does not map memory a second time in the process that it is from."""

    def __init__(self) -> None:
        self.names: set[str] = set()


OWN = OwnBlocks()


class Block:
    """Mapped device memory: ``size`` bytes from ``address`` on, on ``device`` as this process numbers it."""

    def __init__(self, driver: Driver, device: int, size: int, kind: str, name: str) -> None:
        self.driver, self.device, self.size, self.kind, self.name = driver, device, size, kind, name
        self.address = 0
        self.read_only = False
        self._mapped = 0
        self._descriptor = -1
        self._undo = contextlib.ExitStack()

    def write(self, offset: int, source: int, size: int) -> None:
        """Copies ``size`` bytes from this process's memory at ``source``, and waits until they are there."""
        with self.driver.on(self.device):
            self.driver.call("cuMemcpyHtoD_v2", self.address + offset, source, size)

    def read(self, offset: int, size: int) -> bytes:
        """A copy of a part of the block."""
        found = ctypes.create_string_buffer(size)
        with self.driver.on(self.device):
            self.driver.call("cuMemcpyDtoH_v2", found, self.address + offset, size)
        return found.raw

    def seal(self) -> None:
        """Makes this process's mapping read-only where the device can; `read_only` says whether."""
        if self.kind != "descriptor":
            return
        with self.driver.on(self.device):
            try:
                self.driver.access(self.device, self.address, self._mapped, READ)
            except CudaError:
                self.driver.access(self.device, self.address, self._mapped, READ_WRITE)
            else:
                self.read_only = True

    def export(self) -> tuple[dict[str, object], list[int]]:
        """What another process needs to map the block: a description for JSON, and descriptors.

        The descriptors are the block's own: send them, do not close them.
        """
        description = {
            "block": self.name,
            "kind": self.kind,
            "size": self.size,
            "device": self.driver.uuid(self.device),
        }
        if self.kind == "descriptor":
            return description, [self._descriptor]
        handle = IpcHandle()
        with self.driver.on(self.device):
            self.driver.call("cuIpcGetMemHandle", ctypes.byref(handle), self.address)
        return {**description, "handle": bytes(handle.reserved).hex()}, []

    def close(self) -> None:
        """Unmaps the block, which nothing of this process may use any more. Safe to call twice."""
        with contextlib.ExitStack() as stack:
            stack.enter_context(self.driver.on(self.device))
            self._undo.close()
        OWN.names.discard(self.name)

    def _map(self, handle: int, size: int, flags: int) -> None:
        """Maps the memory of an allocation handle, which is given back: the mapping holds the memory."""
        call, address = self.driver.call, c_uint64(0)
        with contextlib.ExitStack() as undo:
            undo.callback(call, "cuMemRelease", handle)
            keep = contextlib.ExitStack()
            with keep:
                call("cuMemAddressReserve", ctypes.byref(address), size, 0, 0, 0)
                keep.callback(call, "cuMemAddressFree", address.value, size)
                call("cuMemMap", address.value, size, 0, handle, 0)
                keep.callback(call, "cuMemUnmap", address.value, size)
                self.address, self._mapped = address.value, size
                self.driver.access(self.device, self.address, size, flags)
                self._undo = keep.pop_all()

    def _close_descriptor(self) -> None:
        os.close(self._descriptor)


def allocate(driver: Driver, device: int, size: int) -> Block:
    """A new block, for this process to fill. Raises `CudaError` where the device has not the room."""
    if not 0 < size <= LARGEST:
        raise WeightsError(f"a block on a GPU has 1 to {LARGEST} bytes, but {size} are asked for.")
    kind = "descriptor" if driver.exports_descriptors(device) else "ipc"
    block = Block(driver, device, size, kind, secrets.token_hex(8))
    with driver.on(device):
        if kind == "ipc":
            address = c_uint64(0)
            driver.call("cuMemAlloc_v2", ctypes.byref(address), size)
            block.address = address.value
            block._undo.callback(driver.call, "cuMemFree_v2", block.address)
        else:
            unit = driver.granularity(device)
            mapped = -(-size // unit) * unit
            handle, descriptor = c_uint64(0), ctypes.c_int(-1)
            wanted = driver.properties(device)
            driver.call("cuMemCreate", ctypes.byref(handle), mapped, ctypes.byref(wanted), 0)
            try:
                driver.call(
                    "cuMemExportToShareableHandle", ctypes.byref(descriptor), handle, POSIX_DESCRIPTOR, 0
                )
            except CudaError:
                driver.call("cuMemRelease", handle)
                raise
            os.set_inheritable(descriptor.value, False)
            block._descriptor = descriptor.value
            try:
                block._map(handle.value, mapped, READ_WRITE)
            except CudaError:
                block._close_descriptor()
                raise
            block._undo.callback(block._close_descriptor)
    OWN.names.add(block.name)
    return block


def attach(driver: Driver, description: dict[str, object], descriptors: list[int]) -> Block:
    """Maps a block that another process exported. The descriptors stay the caller's.

    Raises `WeightsError` for a description that is none, for a device that this process does not see and for
    a block of this process's own; `CudaError` where the driver refuses, as it does once the owner is gone.
    """
    name, kind, size, uuid = (description.get(key) for key in ("block", "kind", "size", "device"))
    if not (isinstance(name, str) and isinstance(uuid, str) and type(size) is int and 0 < size <= LARGEST):
        raise WeightsError("what the owner says of its GPU memory is damaged: build the model again.")
    if name in OWN.names:
        raise WeightsError("this process owns that GPU memory itself: use it as it is.")
    device = driver.find(uuid)
    if device is None:
        seen = ", ".join(driver.uuid(index) for index in range(driver.devices))
        raise WeightsError(
            f"the weights lie on the GPU {uuid}, which this process does not see; it sees {seen}: give both "
            "processes the same CUDA_VISIBLE_DEVICES, or this one another GPU's owner."
        )
    block = Block(driver, device, size, str(kind), name)
    with driver.on(device):
        if kind == "descriptor" and len(descriptors) == 1:
            handle, unit = c_uint64(0), driver.granularity(device)
            driver.call(
                "cuMemImportFromShareableHandle",
                ctypes.byref(handle),
                c_void_p(descriptors[0]),
                POSIX_DESCRIPTOR,
            )
            block._map(handle.value, -(-size // unit) * unit, READ_WRITE)
        elif kind == "ipc" and not descriptors:
            block.address = driver.open_ipc(_bytes(description.get("handle")))
            block._undo.callback(driver.call, "cuIpcCloseMemHandle", block.address)
        else:
            raise WeightsError(
                f"the owner shares its GPU memory by {kind!r} with {len(descriptors)} descriptors, which "
                "this release does not know: use the same release in both processes."
            )
    block.seal()
    return block


def _bytes(text: object) -> bytes:
    try:
        found = bytes.fromhex(text) if isinstance(text, str) else b""
    except ValueError:
        found = b""
    if len(found) != ctypes.sizeof(IpcHandle):
        raise WeightsError("the owner's handle of its GPU memory is damaged: build the model again.")
    return found
