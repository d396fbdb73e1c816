"""Sessions: threads, options, errors in plain words."""

from __future__ import annotations

import os
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import onnxruntime as ort
import pytest

from ranks.devices import devices
from ranks.errors import DeviceError, ModelError, ShardrunError
from ranks.run import executor
from ranks.sessions import session
from ranks.sessions.session import SessionConfig, create, default_threads, reason
from sharding.common.limits import cores as available_cores
from tests.growth import as_lines_do
from tests.sharding import graphs


def relu(kind: str = "float") -> bytes:
    """A model of one node."""
    text = f"g ({kind}[n] x) => ({kind}[n] y) {{ y = Relu(x) }}"
    return graphs.model(text, {}, opset=17).SerializeToString()


def test_threads_are_the_cores_shared_by_the_ranks_of_the_host() -> None:
    cores = available_cores()
    assert 1 <= cores <= len(os.sched_getaffinity(0))
    assert default_threads(1, {}) == cores
    assert default_threads(2, {}) == max(1, cores // 2)
    assert default_threads(10_000, {}) == 1
    assert default_threads(2, {"SHARDRUN_THREADS": "7"}) == 7


def test_threads_follow_what_the_process_is_confined_to() -> None:
    before = os.sched_getaffinity(0)
    try:
        os.sched_setaffinity(0, {min(before)})
        assert default_threads(1, {}) == 1
        assert default_threads(2, {}) == 1
    finally:
        os.sched_setaffinity(0, before)


def test_hardware_threads_of_a_core_count_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: {0, 1, 2, 3})
    siblings = {"cpu0": "0,2\n", "cpu1": "1,3\n", "cpu2": "0,2\n", "cpu3": "1,3\n"}
    read = Path.read_text
    monkeypatch.setattr(
        Path, "read_text", lambda path, **how: siblings.get(path.parts[-3]) or read(path, **how)
    )
    assert available_cores() == 2


@pytest.mark.parametrize("text", ["0", "-1", "two", "1.5", "99999999999", "١"])
def test_bad_numbers_of_threads(text: str) -> None:
    with pytest.raises(ShardrunError) as caught:
        default_threads(1, {"SHARDRUN_THREADS": text})
    assert str(caught.value) == f"SHARDRUN_THREADS must be a number from 1 to 1024, but is {text!r}."


def test_reasons_have_no_status_code_or_source_line() -> None:
    with pytest.raises(ModelError) as caught:
        create(relu("string"), SessionConfig(threads=1), "the test model")
    text = str(caught.value)
    assert text.startswith(f"ONNX Runtime {ort.__version__} refuses the test model: ")
    assert "ONNXRuntimeError" not in text
    assert "tensor(string)" in text
    assert reason(RuntimeError("Non-zero status. Status Message: a.cc:1 f() bad\nthing.")).endswith(
        "bad thing."
    )


def test_options_of_sessions_that_take_turns(capfd: pytest.CaptureFixture[str]) -> None:
    options = session.options_for(SessionConfig(threads=3, many=True, folder=Path("/tmp")))
    assert options.intra_op_num_threads == 3
    assert options.get_session_config_entry("session.force_spinning_stop") == "1"
    assert options.get_session_config_entry("session.use_env_allocators") == "1"
    found = options.get_session_config_entry("session.model_external_initializers_file_folder_path")
    assert found == str(Path("/tmp").resolve())
    for _ in range(2):
        create(relu(), SessionConfig(threads=1, many=True), "it")
    assert capfd.readouterr() == ("", "")


def test_a_program_may_make_sessions_of_its_own_beside_ours() -> None:
    """One pool of threads for the whole process would make ONNX Runtime refuse every other session."""
    create(relu(), SessionConfig(threads=2, many=True), "it")
    options = ort.SessionOptions()
    options.intra_op_num_threads = 2
    assert ort.InferenceSession(relu(), options).get_providers() == ["CPUExecutionProvider"]


def test_a_provider_that_falls_back_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    """Even where the look at the machine before found nothing missing."""
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a CUDA device, so nothing falls back")
    monkeypatch.setattr(devices, "require", lambda *_: None)
    with pytest.raises(DeviceError, match=r"CUDA device 1 cannot be used: .*; install the NVIDIA driver"):
        create(relu(), SessionConfig(providers=("CUDAExecutionProvider",), device_id=1), "it")


@pytest.mark.parametrize("module", ["ranks.sessions.session", "launcher.job.verify"])
def test_onnxruntime_leaves_no_id_of_this_user(module: str, tmp_path: Path) -> None:
    code = f"import {module}; import onnxruntime"
    if module == "launcher.job.verify":
        code = "from launcher.job.verify import run_reference; run_reference('absent.onnx', {})"
    environ = {name: value for name, value in os.environ.items() if name != "ORT_DISABLE_TELEMETRY"}
    subprocess.run(
        [sys.executable, "-c", code],
        cwd=Path(__file__).parents[3],
        env={**environ, "TMPDIR": str(tmp_path)},
        capture_output=True,
        timeout=60,
        check=False,
    )
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("prepared", [False, True])
def test_zeros_before_a_max_pool_stay_zeros(
    tmp_path: Path, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's Pad_Fusion makes them minus infinity, whatever the largest of a window is then."""
    text = """g (float[n, 2, h, w] x) => (float[n, 4, a, b] y) {
      c = Conv(x, w) p = Pad(c, pads) y = MaxPool<kernel_shape = [3, 3], strides = [2, 2]>(p)
    }"""
    weights = {"w": -np.ones((4, 2, 3, 3), np.float32), "pads": np.array([0, 0, 1, 1, 0, 0, 1, 1])}
    path = graphs.save(tmp_path / "model.onnx", text, weights)
    feeds = {"x": np.abs(graphs.array(1, 2, 9, 9)) + 1}
    (right,) = graphs.session(path, optimized=False).run(None, feeds)
    assert (right == 0).any() and (right < 0).any()
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "on" if prepared else "off")
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # made, then opened
        (found,) = executor.load(path).run(feeds)
        np.testing.assert_allclose(found, right, atol=1e-5)


@pytest.mark.parametrize("prepared", [False, True])
def test_what_is_rounded_twice_is_rounded_twice(
    tmp_path: Path, prepared: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """ONNX Runtime's DoubleQDQPairsRemover makes one pair of two that have other scales."""
    text = """g (float[n] x) => (float[n] y) {
      a = QuantizeLinear(x, s, z) b = DequantizeLinear(a, s, z)
      c = QuantizeLinear(b, t, u) y = DequantizeLinear(c, t, u)
    }"""
    weights = {"s": np.float32(0.05), "z": np.uint8(100), "t": np.float32(0.11), "u": np.uint8(10)}
    path = graphs.save(tmp_path / "model.onnx", text, {name: np.array(v) for name, v in weights.items()})
    feeds = {"x": np.linspace(-1, 7, 200, dtype=np.float32)}
    (right,) = graphs.session(path, optimized=False).run(None, feeds)
    monkeypatch.setenv("SHARDRUN_WEIGHTS", "on" if prepared else "off")
    monkeypatch.setenv("SHARDRUN_CACHE", str(tmp_path / "cache"))
    for _ in range(2):  # made, then opened
        (found,) = executor.load(path).run(feeds)
        np.testing.assert_allclose(found, right, atol=1e-5)


def test_reasons_do_not_name_places_in_a_source() -> None:
    place = "/onnxruntime_src/onnxruntime/core/providers/cpu/math/element_wise_ops.h:563 void onnxruntime::"
    for text, said in {
        f"{place}BroadcastIterator::Init(ptrdiff_t, ptrdiff_t) axis == 1 || axis == largest was false. "
        "Attempting to broadcast 5 by 12\n": "Attempting to broadcast 5 by 12.",
        f"{place}Init() left was false.": "void onnxruntime::Init() left was false.",
        f"{place}Save({'const onnxruntime::Node&, ' * 50}int) !there(node) was false. \n": (
            "void onnxruntime::Save() !there(node) was false."
        ),
        "indices element out of data bounds, idx=9": "indices element out of data bounds, idx=9.",
    }.items():
        wrapped = f"[ONNXRuntimeError] : 1 : FAIL : Non-zero status code. Status Message: {text}"
        assert reason(RuntimeError(wrapped)) == said


def test_too_few_threads(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where ONNX Runtime gets some of its threads and no more, it never returns: it is not asked."""
    alive, original = set(threading.enumerate()), threading.Thread.start
    left = [2]

    def start(self: threading.Thread) -> None:
        left[0] -= 1
        if left[0] < 0:
            raise RuntimeError("can't start new thread")
        original(self)

    monkeypatch.setattr(threading.Thread, "start", start)
    config = SessionConfig(threads=4)
    with pytest.raises(
        ShardrunError, match=r"^it cannot be loaded with 4 threads \(can't start new thread\): "
    ):
        session.create_plain(relu(), config, "it")
    assert set(threading.enumerate()) <= alive


@pytest.mark.parametrize("part", ["a", " a(" + "b" * 20 + ")"])
def test_of_a_long_reason_only_the_beginning_is_looked_at(part: str) -> None:
    """Names of nodes, which are a model file's, stand in it."""
    assert as_lines_do(lambda text: reason(RuntimeError(text)), part)


@pytest.mark.parametrize("part", ["/a", "/onnxruntime/"])
def test_a_long_place_takes_no_more_than_its_length(part: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """As long as what is looked at it took a second and more."""
    monkeypatch.setattr(session, "_LOOKED_AT", 1 << 20)
    assert as_lines_do(lambda text: reason(RuntimeError(text)), part)
