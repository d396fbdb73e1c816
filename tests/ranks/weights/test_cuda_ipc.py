"""Weights in device memory once, over a driver whose memory is the host's (see fake_cuda.c).

ONNX Runtime on the CPU then uses the block in place, as it does on a GPU; tests/gpu/ has the real thing.
"""

from __future__ import annotations

import copy
import json
import os
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, numpy_helper

from ranks.cache import intact as whole_folder
from ranks.devices import cuda_driver, dlpack
from ranks.devices.cuda_driver import CudaError, Driver
from ranks.errors import DeviceError, WeightsError
from ranks.weights.device import copies, cuda_ipc, device_model, on_device
from ranks.weights.device.device_model import DeviceWeights, export_device_weights, open_device_weights
from tests.left_behind import left_open, open_descriptors
from tests.ranks.api_models import linear
from tests.ranks.fake_cuda import CONFIG, FakeDriver, library
from tests.sharding import graphs

ROOT = Path(__file__).parents[3]
X = np.linspace(-1, 1, 24, dtype=np.float32).reshape(3, 8)


@pytest.fixture(params=["descriptor", "ipc"])
def kind(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """How the fake device shares memory."""
    monkeypatch.setenv("FAKE_CUDA_DESCRIPTORS", str(int(request.param == "descriptor")))
    return str(request.param)


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A model with weights of 16 and 8 kB."""
    return linear(tmp_path / "model.onnx", width=512)


def expected(path: Path) -> np.ndarray[Any, Any]:
    """Plain ONNX Runtime's answer on the unchanged model."""
    (y,) = ort.InferenceSession(path, providers=["CPUExecutionProvider"]).run(None, {"x": X})
    return np.asarray(y)


def assert_right(found: Any, path: Path) -> None:
    right = expected(path)
    assert np.abs(np.asarray(found, np.float32) - right).max() <= 1e-4 * np.abs(right).max()


class Guest:
    """A process that attaches over a socket and runs the model on request."""

    def __init__(self, weights: DeviceWeights, folder: Path, feed: Path) -> None:
        ours, theirs = socket.socketpair()
        self.process = subprocess.Popen(
            [
                *(sys.executable, "-m", "tests.ranks.fake_cuda"),
                *(library(), str(folder), str(theirs.fileno()), str(feed)),
            ],
            cwd=ROOT,
            pass_fds=[theirs.fileno()],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        theirs.close()
        socket.send_fds(ours, [json.dumps(weights.description).encode()], weights.descriptors)
        ours.close()

    def told(self) -> Any:
        assert self.process.stdout is not None and self.process.stderr is not None
        line = self.process.stdout.readline()
        assert line, self.process.stderr.read()
        return json.loads(line)

    def run(self) -> Any:
        assert self.process.stdin is not None
        print(file=self.process.stdin, flush=True)
        return self.told()

    def end(self) -> int:
        self.process.communicate(timeout=60)
        return self.process.returncode


@pytest.fixture
def guests() -> Iterator[list[Guest]]:
    made: list[Guest] = []
    yield made
    for guest in made:
        guest.process.kill()
        guest.process.communicate(timeout=60)


def test_processes_use_one_block(kind: str, path: Path, tmp_path: Path, guests: list[Guest]) -> None:
    driver = FakeDriver()
    np.save(tmp_path / "x.npy", X)
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    assert weights.bytes == 16384 + 8192
    assert set(weights.values) == {"w1", "w2"}
    assert weights.outlives_owner == (kind == "descriptor")
    session = weights.session(CONFIG, "the model")
    assert_right(session.run(None, {"x": X})[0], path)
    guests.extend(Guest(weights, tmp_path / "device", tmp_path / "x.npy") for _ in range(2))
    for guest in guests:
        assert guest.told() == {"read_only": kind == "descriptor", "bytes": weights.bytes}
        assert_right(guest.run(), path)
    # The proof that it is one block: what the owner writes, everybody computes with.
    block = weights._block
    if kind == "descriptor":
        with driver.on(0):
            driver.access(0, block.address, block._mapped, cuda_driver.READ_WRITE)
    zeros = np.zeros(512 * 4, np.float32)
    block.write(16384, zeros.ctypes.data, zeros.nbytes)
    for found in (session.run(None, {"x": X})[0], *(guest.run() for guest in guests)):
        np.testing.assert_array_equal(found, np.zeros((3, 4), np.float32))
    assert [guest.end() for guest in guests] == [0, 0]
    del session
    weights.close()
    weights.close()
    assert driver.live == 0


OWNER = """
import json, socket, sys
from pathlib import Path
from ranks.weights.device.device_model import export_device_weights
from tests.ranks.fake_cuda import CONFIG, FakeDriver
path, folder, number = sys.argv[1:]
weights = export_device_weights(Path(path), CONFIG, Path(folder), FakeDriver())
peer = socket.socket(fileno=int(number))
socket.send_fds(peer, [json.dumps(weights.description).encode()], weights.descriptors)
sys.stdin.read()
"""


def test_the_owner_is_killed(kind: str, path: Path, tmp_path: Path) -> None:
    ours, theirs = socket.socketpair()
    owner = subprocess.Popen(
        [sys.executable, "-c", OWNER, str(path), str(tmp_path / "device"), str(theirs.fileno())],
        cwd=ROOT,
        pass_fds=[theirs.fileno()],
        stdin=subprocess.PIPE,
    )
    theirs.close()
    ours.settimeout(60)
    try:
        data, descriptors, _, _ = socket.recv_fds(ours, 1 << 20, 8)
        description = json.loads(data)
        driver = FakeDriver()
        weights = open_device_weights(description, descriptors, tmp_path / "device", driver)
        assert weights.read_only == (kind == "descriptor")
        session = weights.session(CONFIG, "the model")
    finally:
        owner.send_signal(signal.SIGKILL)
        owner.communicate(timeout=60)
        ours.close()
    assert_right(session.run(None, {"x": X})[0], path)
    if kind == "ipc":  # nobody can attach any more, and is told so
        with pytest.raises(DeviceError, match="cuIpcOpenMemHandle_v2 failed: CUDA_ERROR_INVALID_HANDLE"):
            open_device_weights(description, descriptors, tmp_path / "device", driver)
    else:  # the memory lives as long as somebody has the descriptor
        again = open_device_weights(description, descriptors, tmp_path / "device", driver)
        assert_right(again.session(CONFIG, "the model").run(None, {"x": X})[0], path)
        again.close()
    del session
    weights.close()
    for descriptor in descriptors:
        os.close(descriptor)
    assert driver.live == 0


def test_an_attached_process_cannot_write(path: Path, tmp_path: Path) -> None:
    program = f"""
import ctypes, sys
sys.path.insert(0, {str(ROOT)!r})
from pathlib import Path
from ranks.weights.device.device_model import export_device_weights
from tests.ranks.fake_cuda import CONFIG, FakeDriver
weights = export_device_weights(Path({str(path)!r}), CONFIG, Path({str(tmp_path / "device")!r}), FakeDriver())
assert weights.read_only
ctypes.memset(weights._block.address, 0, 1)
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, timeout=60, check=False)
    assert done.returncode == -signal.SIGSEGV, done.stderr


def test_a_device_without_read_only_mappings(
    path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA_READ_ONLY", "0")
    driver = FakeDriver()
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    assert not weights.read_only
    assert_right(weights.session(CONFIG, "the model").run(None, {"x": X})[0], path)
    weights.close()
    assert driver.live == 0


def test_the_folder_is_made_once(path: Path, tmp_path: Path) -> None:
    driver, folder = FakeDriver(), tmp_path / "cache" / "device"
    export_device_weights(path, CONFIG, folder, driver).close()
    before = {file.name: file.stat().st_mtime_ns for file in folder.iterdir()}
    assert set(before) == {device_model.GRAPH, device_model.DATA, device_model.SOURCE, whole_folder.SEAL}
    export_device_weights(path, CONFIG, folder, driver).close()
    assert {file.name: file.stat().st_mtime_ns for file in folder.iterdir()} == before
    left = {file.name for file in folder.parent.iterdir()}
    assert left == {folder.name, f"{folder.name}.lock"}  # nothing temporary


def test_no_weight_is_large(tmp_path: Path) -> None:
    path, driver = linear(tmp_path / "small.onnx", width=16), FakeDriver()
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    assert not weights.values
    assert_right(weights.session(CONFIG, "the model").run(None, {"x": X})[0], path)
    weights.close()


def test_no_driver() -> None:
    with pytest.raises(DeviceError, match=r"^no CUDA device: its driver is missing"):
        Driver("libcuda-of-nobody.so.1")


def test_the_driver_of_this_machine() -> None:
    try:
        driver = Driver()
    except DeviceError as error:
        assert str(error).startswith("no CUDA device: ")
    else:
        assert driver.devices >= 1


@pytest.mark.parametrize(
    ("setting", "value", "message"),
    [
        ("FAKE_CUDA_DEVICES", "0", r"no CUDA device: the driver shows none to this process"),
        ("FAKE_CUDA_DEVICES", "-1", r"no CUDA device: .*cuInit failed: CUDA_ERROR_NO_DEVICE"),
        ("FAKE_CUDA_FAIL", "cuInit", r"no CUDA device: .*cuInit failed: CUDA_ERROR_UNKNOWN"),
        ("FAKE_CUDA_FAIL", "cuDeviceGetCount", r"no CUDA device: .*cuDeviceGetCount failed"),
    ],
)
def test_no_device(setting: str, value: str, message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(setting, value)
    with pytest.raises(DeviceError, match=f"^{message}"):
        FakeDriver()


def test_a_library_that_is_no_driver() -> None:
    with pytest.raises(DeviceError, match="no CUDA device: this CUDA driver has no cuInit: it is too old"):
        Driver("libc.so.6")


def test_no_room_on_the_device(
    kind: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("FAKE_CUDA_BYTES", "1000")
    driver = FakeDriver()
    name = {"descriptor": "cuMemCreate", "ipc": "cuMemAlloc_v2"}[kind]
    with pytest.raises(CudaError, match=f"{name} failed: CUDA_ERROR_OUT_OF_MEMORY, out of memory") as caught:
        export_device_weights(path, CONFIG, tmp_path / "device", driver)
    assert caught.value.code == 2
    assert driver.live == 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        *(
            ("descriptor", name)
            for name in (
                *("cuDeviceGetAttribute", "cuDevicePrimaryCtxRetain", "cuMemGetAllocationGranularity"),
                *("cuMemCreate", "cuMemExportToShareableHandle", "cuMemAddressReserve", "cuMemMap"),
                *("cuMemSetAccess", "cuMemcpyHtoD_v2", "cuDeviceGetUuid_v2"),
            )
        ),
        *(("ipc", name) for name in ("cuMemAlloc_v2", "cuMemcpyHtoD_v2", "cuIpcGetMemHandle")),
    ],
    indirect=["kind"],
)
def test_a_call_fails_while_exporting(
    kind: str, name: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    driver = FakeDriver()
    before = open_descriptors()
    monkeypatch.setenv("FAKE_CUDA_FAIL", name)
    with pytest.raises(CudaError, match=f"the CUDA driver's {name} failed: CUDA_ERROR_UNKNOWN"):
        export_device_weights(path, CONFIG, tmp_path / "device", driver)
    assert driver.live == 0
    assert not left_open(before)


@pytest.fixture
def foreign(
    kind: str, path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> Iterator[tuple[FakeDriver, DeviceWeights, Path]]:
    """Exported weights, as a process sees them that is not their owner."""
    driver = FakeDriver()
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    monkeypatch.setattr(cuda_ipc.OWN, "names", set())
    yield driver, weights, tmp_path / "device"
    monkeypatch.delenv("FAKE_CUDA_FAIL", raising=False)
    weights.close()
    assert driver.live == 0


@pytest.mark.parametrize(
    ("kind", "name"),
    [
        ("descriptor", "cuMemImportFromShareableHandle"),
        ("descriptor", "cuMemMap"),
        ("ipc", "cuIpcOpenMemHandle_v2"),
    ],
    indirect=["kind"],
)
def test_a_call_fails_while_attaching(
    name: str, foreign: tuple[FakeDriver, DeviceWeights, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, weights, folder = foreign
    live = driver.live
    monkeypatch.setenv("FAKE_CUDA_FAIL", name)
    with pytest.raises(CudaError, match=name):
        open_device_weights(weights.description, weights.descriptors, folder, driver)
    assert driver.live == live


def test_ones_own_block(kind: str, path: Path, tmp_path: Path) -> None:
    driver = FakeDriver()
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    with pytest.raises(WeightsError, match="owns that GPU memory itself"):
        open_device_weights(weights.description, weights.descriptors, tmp_path / "device", driver)
    weights.close()


def test_another_gpu(
    foreign: tuple[FakeDriver, DeviceWeights, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, weights, folder = foreign
    monkeypatch.setenv("FAKE_CUDA_FIRST", "5")
    with pytest.raises(
        WeightsError, match=r"lie on the GPU (ab)+00, which this process does not see; it sees"
    ):
        open_device_weights(weights.description, weights.descriptors, folder, driver)


def test_a_gpu_with_another_number(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("FAKE_CUDA_DEVICES", "3")
    driver = FakeDriver()
    weights = export_device_weights(path, CONFIG, tmp_path / "device", driver)
    monkeypatch.setattr(cuda_ipc.OWN, "names", set())
    monkeypatch.setenv("FAKE_CUDA_FIRST", "-1")
    found = open_device_weights(weights.description, weights.descriptors, tmp_path / "device", FakeDriver())
    assert (weights.device, found.device) == (0, 1)
    found.close()
    weights.close()


def test_a_process_that_is_to_run_on_another_gpu(
    foreign: tuple[FakeDriver, DeviceWeights, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is refused, and keeps nothing."""
    driver, weights, folder = foreign
    live, files = driver.live, len(list(Path("/proc/self/fd").iterdir()))
    monkeypatch.setattr(on_device, "driver", lambda: driver)
    sent = weights.description, [os.dup(number) for number in weights.descriptors]
    store = on_device.AttachedOnDevice(folder, {on_device.DEVICE: sent})
    with pytest.raises(
        WeightsError, match=r"on GPU 0 as this process counts, but m is to run on GPU 1: give"
    ):
        store.open(folder / "m.onnx", replace(CONFIG, device_id=1), "m")
    assert driver.live == live
    assert len(list(Path("/proc/self/fd").iterdir())) == files


def damaged(**memory: object) -> Any:
    def change(description: dict[str, Any]) -> None:
        description["memory"].update(memory)

    return change


def tensor(**fields: object) -> Any:
    def change(description: dict[str, Any]) -> None:
        description["tensors"][0].update(fields)

    return change


def whole(**fields: object) -> Any:
    return lambda description: description.update(fields)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        (whole(format=2), "of format 2 for ONNX Runtime"),
        (whole(runtime="0.1"), r"for ONNX Runtime 0\.1, but this process has"),
        (whole(memory=None), "what the owner says of its GPU memory is damaged"),
        (whole(tensors="x"), "what the owner says of its GPU memory is damaged"),
        (whole(tensors=[None]), "is damaged \\(null\\)"),
        (damaged(block=3), "is damaged"),
        (damaged(size=-1), "is damaged"),
        (damaged(size=1 << 60), "is damaged"),
        (damaged(size="24576"), "is damaged"),
        (damaged(device=None), "is damaged"),
        (damaged(kind="magic"), "shares its GPU memory by 'magic' with"),
        (tensor(offset=-256), "is damaged"),
        (tensor(offset=1), "is damaged"),
        (tensor(offset=16384), "is damaged"),
        (tensor(shape=[1 << 40, 1 << 40]), "is damaged"),
        (tensor(shape=[-8, -512]), "is damaged"),
        (tensor(shape=[1] * 65), "is damaged"),
        (tensor(type=8), "is damaged"),
        (tensor(type=True), "is damaged"),
        (tensor(name=None), "is damaged"),
    ],
)
def test_damaged_descriptions(
    change: Any, message: str, foreign: tuple[FakeDriver, DeviceWeights, Path]
) -> None:
    driver, weights, folder = foreign
    description = copy.deepcopy(weights.description)
    change(description)
    live = driver.live
    with pytest.raises(WeightsError, match=message):
        open_device_weights(description, weights.descriptors, folder, driver)
    assert driver.live == live


def test_damaged_handles(foreign: tuple[FakeDriver, DeviceWeights, Path], kind: str) -> None:
    driver, weights, folder = foreign
    description = copy.deepcopy(weights.description)
    if kind == "ipc":
        for handle in ("zz", "00", None, 7):
            description["memory"]["handle"] = handle
            with pytest.raises(WeightsError, match="handle of its GPU memory is damaged"):
                open_device_weights(description, [], folder, driver)
        return
    with Path("/dev/null").open("rb") as other:
        with pytest.raises(CudaError, match="cuMemImportFromShareableHandle failed"):
            open_device_weights(description, [other.fileno()], folder, driver)
        for descriptors in ([], [other.fileno()] * 2):
            with pytest.raises(WeightsError, match="by 'descriptor' with"):
                open_device_weights(description, descriptors, folder, driver)
    # A block that is smaller than the owner says: nothing is mapped beyond its end.
    description["memory"]["size"] = 1 << 30
    with pytest.raises(CudaError, match="cuMemMap failed"):
        open_device_weights(description, weights.descriptors, folder, driver)


def test_the_folder_is_gone(foreign: tuple[FakeDriver, DeviceWeights, Path]) -> None:
    driver, weights, folder = foreign
    found = open_device_weights(weights.description, weights.descriptors, folder, driver)
    (folder / device_model.GRAPH).unlink()
    with pytest.raises(WeightsError, match=r"graph\.onnx of the model cannot be read: No such file"):
        found.session(CONFIG, "the model")
    found.close()


@pytest.mark.parametrize("element", sorted(dlpack.TYPES))
@pytest.mark.parametrize("shape", [(), (3,), (2, 0, 4), (2, 3, 4)])
def test_values_at_an_address(element: int, shape: tuple[int, ...]) -> None:
    count = int(np.prod(shape, dtype=int))
    raw = np.arange(max(count, 1) * dlpack.width(element), dtype=np.uint8) % 2
    value = dlpack.value_at(raw.ctypes.data, element, shape, (1, 0))
    assert value.element_type() == element
    assert tuple(value.shape()) == shape
    assert not count or value.data_ptr() == raw.ctypes.data
    if count and element != TensorProto.BFLOAT16:  # which numpy does not know
        kind = helper.tensor_dtype_to_np_dtype(element)
        np.testing.assert_array_equal(value.numpy(), raw.view(kind)[:count].reshape(shape))


def test_values_on_a_device_that_onnxruntime_does_not_know() -> None:
    raw = np.zeros(4, np.float32)
    with pytest.raises(DeviceError, match=r"ONNX Runtime .* takes no weights in place on this device"):
        dlpack.value_at(raw.ctypes.data, 1, (4,), (99, 0))


def test_copies_between_host_and_device_are_removed() -> None:
    text = """g (float[3, 8] x) => (float[3, 8] a, float[3, 8] c, float[3, 8] same) {
      x_CUDA = MemcpyFromHost(x)
      a_CUDA = Add(x_CUDA, w)
      a = MemcpyToHost(a_CUDA)
      b_CUDA = Mul(a_CUDA, a)
      b = MemcpyToHost(b_CUDA)
      same = MemcpyToHost(x)
      yes = Constant<value = bool {1}>()
      c = If (yes) <
        then_branch = branch () => (float[3, 8] n) { b_host = MemcpyToHost(b) n = Neg(b_host) },
        else_branch = other () => (float[3, 8] i) { i = Identity(b) }
      >
    }"""
    model = graphs.model(text, {"w": np.ones(8, np.float32)}, opset=17)
    graph = model.graph
    copies.without_copy_nodes(graph)
    assert [node.op_type for node in graph.node] == ["Add", "Mul", "Identity", "Constant", "If"]
    onnx.checker.check_model(model)
    a, c, same = graphs.session(model).run(None, {"x": X})
    np.testing.assert_array_equal(a, X + 1)
    np.testing.assert_allclose(c, -((X + 1) ** 2), rtol=1e-6)
    np.testing.assert_array_equal(same, X)


def test_weights_of_a_type_that_sessions_take_from_nobody_are_told_of() -> None:
    model = graphs.model("g (float[3, 8] x) => (float[3, 8] x) { }", {})
    for index, kind in enumerate((TensorProto.INT4, TensorProto.FLOAT8E4M3FN, TensorProto.FLOAT)):
        tensor = TensorProto(
            name=f"w{index}", data_type=kind, dims=[4096], data_location=TensorProto.EXTERNAL
        )
        length = {TensorProto.INT4: 2048, TensorProto.FLOAT: 16384}.get(kind, 4096)
        for key, given in (("location", "weights.data"), ("offset", "0"), ("length", str(length))):
            tensor.external_data.add(key=key, value=given)
        model.graph.initializer.append(tensor)
    with pytest.warns(UserWarning, match="weights of the odd model") as caught:
        device_model._say_copies(model.SerializeToString(), "the odd model")
    assert [str(one.message) for one in caught] == [
        "2 of the 3 weights of the odd model on the GPU, 6144 of 22528 bytes, are not shared, but loaded by "
        "each process: ONNX Runtime takes no FLOAT8E4M3FN or INT4 from others. To share all, share the model "
        "on the CPU."
    ]


def test_a_weight_of_a_subgraph_is_not_taken_for_one_of_the_graph(tmp_path: Path) -> None:
    big = np.arange(2048, dtype=np.float32)
    text = """g (bool x, float[2048] v) => (float[2048] y) {
      y = If (x) <
        then_branch = then () => (float[2048] then_out) { a = Add(v, then_w) then_out = Add(a, w) },
        else_branch = else () => (float[2048] else_out) { b = Add(v, else_w) else_out = Add(b, w) }
      >
    }"""
    model = graphs.model(text, {"w": big}, opset=17)
    for attribute, factor in zip(model.graph.node[0].attribute, (2, 3), strict=True):
        own = numpy_helper.from_array(big * factor, f"{attribute.g.name}_w")
        attribute.g.initializer.append(own)
    path = tmp_path / "branches.onnx"
    onnx.save(model, path)
    weights = export_device_weights(path, CONFIG, tmp_path / "device", FakeDriver())
    assert len(weights.values) == 3, "those of the branches, too"
    session = weights.session(CONFIG, "the model")
    for taken, factor in ((True, 3), (False, 4)):
        (y,) = session.run(None, {"x": np.array(taken), "v": np.zeros(2048, np.float32)})
        np.testing.assert_array_equal(y, big * factor)
    del session
    weights.close()


def test_an_owner_that_sent_no_memory(foreign: tuple[FakeDriver, DeviceWeights, Path]) -> None:
    """And a model of bytes, which nothing on a device is of."""
    _, weights, folder = foreign
    for model, parts in (
        (folder / "m.onnx", {}),
        (b"a model", {on_device.DEVICE: (weights.description, weights.descriptors)}),
    ):
        store = on_device.AttachedOnDevice(folder, parts)  # type: ignore[arg-type]
        with pytest.raises(WeightsError, match="m"):
            store.open(model, CONFIG, "m")


def test_the_driver_is_this_process_s_where_none_is_given(
    foreign: tuple[FakeDriver, DeviceWeights, Path], monkeypatch: pytest.MonkeyPatch
) -> None:
    driver, weights, folder = foreign
    monkeypatch.setattr(device_model, "Driver", lambda: driver)
    found = open_device_weights(weights.description, weights.descriptors, folder)
    assert found.device == 0
    found.close()
