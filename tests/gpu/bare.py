"""What scripts/gpu_check.sh checks below ONNX Runtime: `python -m tests.gpu.bare NAME`, NAME a function here.

Needs a device, torch with CUDA for most, any ONNX Runtime, and no pytest.
"""

from __future__ import annotations

import contextlib
import ctypes
import importlib.util
import json
import os
import secrets
import subprocess
import sys
import time
from typing import Any

with contextlib.suppress(ImportError):  # `probe` says so
    import numpy as np

DEVICE = 0
ROWS, COLUMNS = 64, 1000
FOR_TESTS = ("pytest", "hypothesis", "onnx", "onnx_ir", "ml_dtypes")
"""What the tests of this folder import besides."""


def probe() -> None:
    """Prints as JSON what the machine has, or under "impossible" why nothing can be checked."""
    try:
        import numpy  # noqa: F401
        import onnxruntime

        from ranks.devices import devices
        from ranks.devices.cuda_driver import Driver
        from ranks.devices.providers import CUDA
        from ranks.errors import DeviceError
    except ImportError as error:
        print(json.dumps({"impossible": f"{error}: install shardrun's dependencies for {sys.executable}."}))
        return
    try:
        driver = Driver()
    except DeviceError as error:
        print(json.dumps({"impossible": str(error)}))
        return
    problem = ""
    try:
        devices.require(CUDA)
    except DeviceError as error:
        problem = str(error)
    try:
        version, uuids = driver.version, [driver.uuid(index) for index in range(driver.devices)]
    except DeviceError as error:
        print(json.dumps({"impossible": f"{error} Install the driver anew, or restart the machine."}))
        return
    torch, without = _torch()
    built = getattr(onnxruntime, "cuda_version", "") or "none"
    words = (
        f"driver for CUDA {version[0]}.{version[1]}; onnxruntime {onnxruntime.__version__} (CUDA {built}); "
    )
    words += f"torch {torch.__version__} (CUDA {torch.version.cuda})" if torch is not None else "no torch"
    names = [f"GPU {index}: {uuid}" for index, uuid in enumerate(uuids)]
    if torch is not None and not without:
        names = [f"{name}, {torch.cuda.get_device_name(index)}" for index, name in enumerate(names)]
    found = {"gpus": driver.devices, "names": names, "words": words, "problem": problem, "torch": without}
    lacking = [name for name in FOR_TESTS if importlib.util.find_spec(name) is None]
    why = f"{', '.join(lacking)} {'are' if lacking[1:] else 'is'} not installed" if lacking else ""
    print(json.dumps({**found, "tests": why}))


def _torch() -> tuple[Any, str]:
    try:
        import torch
    except ImportError as error:
        return None, f"torch is not installed ({error})"
    if torch.cuda.is_available():
        return torch, ""
    return torch, f"torch {torch.__version__} sees no CUDA device: install its CUDA build"


def driver() -> None:
    """The driver's calls that tell devices apart and count their memory."""
    from ranks.devices.cuda_driver import Driver

    found = Driver()
    uuids = [found.uuid(index) for index in range(found.devices)]
    assert len(set(uuids)) == found.devices and all(len(uuid) == 32 for uuid in uuids), uuids
    assert [found.find(uuid) for uuid in uuids] == list(range(found.devices))
    for index in range(found.devices):
        free = found.free_bytes(index)
        assert 1 << 20 < free < 1 << 42, free
        sharing = "by descriptors" if found.exports_descriptors(index) else "by IPC handles"
        print(f"GPU {index}: {free >> 20} MiB free, memory is shared {sharing}")


def memory() -> None:
    """`ranks.sessions.cuda.CudaMemory`: what it is given comes back, of every type, on the device."""
    import torch

    from ranks.common.tensors import element_dtype
    from ranks.sessions.cuda import CudaMemory

    place = CudaMemory(DEVICE)
    checked, left = [], []
    with place.active():
        for element in sorted(place._types):
            try:
                dtype = element_dtype(element)
            except ImportError:  # bfloat16 and float8 are those of ml_dtypes
                left.append(str(place._types[element]).removeprefix("torch."))
                continue
            array = (np.arange(24) % 2 if element == 9 else np.arange(24)).astype(dtype).reshape(2, 3, 4)
            buffer = place.allocate((2, 3, 4), element)
            assert buffer.is_cuda and buffer.get_device() == DEVICE
            place.load(buffer, array)
            copy = place.view(place.block(array.nbytes + 8, exchanged=True), (2, 3, 4), element)
            place.copy(copy, buffer)
            assert place.fetch(copy).tobytes() == array.tobytes(), dtype
            assert place.address(copy) and place.shape(copy) == (2, 3, 4)
            checked.append(str(dtype))
        assert place.address(place.allocate((0, 2), 1))
        ours = place.allocate((2, 3), 1)
        place.load(ours, np.arange(6, dtype=np.float32).reshape(2, 3))
        for shape, address in (([2, 3], ours.data_ptr()), ([0, 3], 0)):  # as ONNX Runtime gives its own
            taken = place.adopt(_Value(shape, address))
            assert taken.is_cuda and tuple(taken.shape) == tuple(shape) and taken.dtype == torch.float32
            assert not address or (taken.data_ptr() == address and torch.equal(taken, ours))
        assert place.stream.cuda_stream and torch.cuda.current_stream() == place.stream
    if left:
        print(f"not covered: values of {', '.join(left)} (ml_dtypes is not installed)")
    print(f"types {', '.join(checked)}")


class _Value:
    """What `CudaMemory.adopt` asks of a value of ONNX Runtime's: float32 at an address."""

    def __init__(self, shape: list[int], address: int) -> None:
        self._shape, self._address = shape, address

    def shape(self) -> list[int]:
        return self._shape

    def data_type(self) -> str:
        return "tensor(float)"

    def data_ptr(self) -> int:
        return self._address


def ipc() -> None:
    """A block of device memory that a second process maps, reads, and cannot write where it is read-only."""
    from ranks.devices.cuda_driver import Driver
    from ranks.weights.device import cuda_ipc

    found = Driver()
    with found.on(DEVICE):
        before = found.free_bytes(DEVICE)
    data = np.random.default_rng(1).integers(0, 256, 1 << 20).astype(np.uint8)
    block = cuda_ipc.allocate(found, DEVICE, 256 << 20)
    block.write(4096, data.ctypes.data, data.nbytes)
    block.seal()
    description, descriptors = block.export()
    other = subprocess.run(
        [sys.executable, "-m", "tests.gpu.bare", "_attached", json.dumps([description, descriptors])],
        pass_fds=descriptors,
        capture_output=True,
        text=True,
        timeout=50,
        check=False,
    )
    lines = other.stdout.splitlines()
    assert lines, other.stderr
    told = json.loads(lines[0])
    assert bytes.fromhex(told["read"]) == data[:4096].tobytes()
    if told["read_only"]:
        assert lines[1:] != ["written"], "a read-only mapping was written to"
    assert block.read(4096, data.nbytes) == data.tobytes()
    block.close()
    deadline = time.monotonic() + 20  # the driver cleans up behind a process
    while found.free_bytes(DEVICE) < before - (8 << 20) and time.monotonic() < deadline:
        time.sleep(0.1)
    assert found.free_bytes(DEVICE) >= before - (8 << 20), "the memory was not given back"
    print(f"kind {description['kind']}, read-only {told['read_only']}")


def _attached() -> None:
    """The second process of `ipc`."""
    from ranks.devices.cuda_driver import CudaError, Driver
    from ranks.weights.device import cuda_ipc

    description, descriptors = json.loads(sys.argv[2])
    block = cuda_ipc.attach(Driver(), description, descriptors)
    found = {"read": block.read(4096, 4096).hex(), "read_only": block.read_only}
    print(json.dumps(found), flush=True)
    if block.read_only:  # what tries may be told so, or be ended
        source = (ctypes.c_char * 16)()
        with contextlib.suppress(CudaError):
            block.write(4096, ctypes.addressof(source), 16)
            print("written", flush=True)
    os._exit(0)  # after a refused write the context may be of no use


def dlpack() -> None:
    """Our DLPack structures over device memory, as torch reads them."""
    import torch

    from ranks.devices import dlpack as ours
    from ranks.devices.cuda_driver import Driver
    from ranks.weights.device import cuda_ipc

    found = Driver()
    data = np.arange(ROWS * COLUMNS, dtype=np.float32).reshape(ROWS, COLUMNS)
    block = cuda_ipc.allocate(found, DEVICE, data.nbytes)
    block.write(0, data.ctypes.data, data.nbytes)
    capsule, _ = ours.capsule_at(block.address, 1, data.shape, (found.dlpack_device, DEVICE))
    tensor = torch.utils.dlpack.from_dlpack(capsule)
    assert tensor.is_cuda and tensor.data_ptr() == block.address and tensor.dtype == torch.float32
    assert torch.equal(tensor.cpu(), torch.from_numpy(data))
    assert float(tensor.double().sum()) == float(data.astype(np.float64).sum())
    del tensor, capsule
    torch.cuda.synchronize()
    block.close()
    print(f"float32 [{ROWS}, {COLUMNS}] in place")


def nccl() -> None:
    """A communicator of one rank over NCCL: joining, sums and gathers of every type, closing, joining again,
    and torch's abort, which leaving a broken group needs."""
    import torch
    import torch.distributed as dist

    from ranks.collectives.torch import distributed as torch_dist
    from ranks.errors import CollectiveError
    from ranks.identity.place import Identity

    for _ in range(2):
        identity = Identity(0, 1, 0, 1, source="the check", key=f"check:{secrets.token_hex(8)}")
        world = torch_dist.connect(identity, 30.0, "nccl", "cuda")
        done, unsummed = [], []
        for name in _TYPES:
            dtype = getattr(torch, name)
            tensor = torch.arange(12).to(dtype).reshape(3, 4).to(world.device)
            right = _bytes(tensor)
            out = torch.zeros(right.nbytes, dtype=torch.uint8, device=world.device).view(dtype).reshape(3, 4)
            try:
                world.all_reduce(tensor)
                done.append(name)
            except CollectiveError:  # a sentence, before anything is sent: the group can still be used
                unsummed.append(name)
            assert np.array_equal(_bytes(tensor), right), name
            world.all_gather(tensor, out, 1)
            assert np.array_equal(_bytes(out), right), name
            world.broadcast(tensor, 0)
            out.view(torch.uint8).zero_()
            world.all_to_all(tensor, out)
            assert np.array_equal(_bytes(tensor), right) and np.array_equal(_bytes(out), right), name
        assert unsummed == ["bool"], unsummed
        world.barrier()
        world.close()
    abort = getattr(dist.distributed_c10d, "_abort_process_group", None)
    if abort is not None:
        store = dist.HashStore()
        dist.init_process_group(
            "nccl", store=store, rank=0, world_size=1, device_id=torch.device("cuda", DEVICE)
        )
        dist.all_reduce(torch.ones(4, device=torch.device("cuda", DEVICE)))
        begun = time.monotonic()
        abort()
        assert time.monotonic() - begun < 20 and not dist.is_initialized()
    else:
        print(f"not covered: aborting (torch {torch.__version__} has no _abort_process_group)")
    version = ".".join(map(str, torch.cuda.nccl.version()))
    print(f"NCCL {version}: sums of {', '.join(done)}; moved only: {', '.join(unsummed)}")


_TYPES = (
    *("bfloat16", "float16", "float32", "float64", "int8", "int16", "int32", "int64"),
    *("uint8", "uint16", "uint32", "uint64", "bool"),
)


def _bytes(tensor: Any) -> Any:
    import torch

    return tensor.contiguous().view(torch.uint8).cpu().numpy().reshape(-1).copy()


def staged() -> None:
    """Two processes on one device, whose values cross by way of host memory."""
    base = {**os.environ, "SHARDRUN_JOB": secrets.token_hex(16), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    base |= {"SHARDRUN_TIMEOUT": "30", "SHARDRUN_COLLECTIVES": "shm"}
    command = [sys.executable, "-m", "tests.gpu.bare", "_rank"]
    ranks = [
        subprocess.Popen(command, env={**base, "RANK": str(rank), "LOCAL_RANK": str(rank)})
        for rank in range(2)
    ]
    try:
        assert [rank.wait(50) for rank in ranks] == [0, 0]
    finally:
        for rank in ranks:
            with contextlib.suppress(ProcessLookupError):
                rank.kill()
    print("all_reduce, all_gather, broadcast, send and recv")


def _rank() -> None:
    """One rank of `staged`."""
    import torch

    from ranks.collectives.torch.staged import on_device
    from ranks.run import group
    from ranks.sessions.cuda import CudaMemory

    place = CudaMemory(DEVICE)
    world = on_device(group.join(), place)
    with place.active():
        mine = torch.full((3, 4), float(world.rank + 1), device="cuda")
        out = torch.zeros((6, 4), device="cuda")
        world.all_gather(mine, out)
        assert torch.equal(out, torch.cat([torch.full((3, 4), value, device="cuda") for value in (1.0, 2.0)]))
        world.all_reduce(mine)
        assert bool((mine == 3).all())
        world.broadcast(out, 1)
        if world.rank == 0:
            world.send(mine * 2, 1)
        else:
            world.recv(mine, 0)
            assert bool((mine == 6).all())
    world.barrier()
    group.leave()


def main() -> None:
    """Runs the function that is named."""
    try:
        globals()[sys.argv[1]]()
    except AssertionError as error:
        import traceback

        traceback.print_exc()
        sys.exit(f"{sys.argv[1]}: {error}")


if __name__ == "__main__":
    main()
