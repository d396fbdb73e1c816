"""ONNX Runtime's own CUDA and TensorRT providers over libraries that stand in for CUDA's (stand_in_cuda.c).

What they are told, which device they use, what takes the nodes, and what a rank of a job for GPUs does first.
"""

from __future__ import annotations

import json
import os
import re
import secrets
import socket
import subprocess
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime as ort
import pytest

from ranks.devices import devices
from ranks.devices.linked import needed
from ranks.devices.providers import CPU, CUDA, TENSORRT
from ranks.errors import DeviceError, ShardrunError
from ranks.lite.options import targets
from ranks.sessions import engines, session
from ranks.sessions.session import SessionConfig, provider_options
from sharding import slice_model
from tests.copies import Copy
from tests.ranks import stand_in
from tests.ranks.rank_models import model, node, value

pytest.importorskip("torch", reason="torch is not installed")
PROGRAM = ["-m", "tests.ranks.stand_in_program"]
Process = Copy | subprocess.Popen[str]


def start(scenario: str, *arguments: str, **more: str) -> Process:
    environ = stand_in.environment(**more)
    return stand_in.copies().popen([*PROGRAM, scenario, *arguments], environ, stand_in.ROOT)


def result(process: Process) -> Any:
    try:
        output, errors = process.communicate(timeout=120)
    finally:
        process.kill()
    assert process.returncode == 0, errors
    assert "[W:onnxruntime" not in errors  # it warns at each session
    return json.loads(output.splitlines()[-1])


def test_a_plain_model_runs_on_the_device_that_was_asked_for(tmp_path: Path) -> None:
    found = result(start("plain", str(tmp_path), FAKE_CUDA_DEVICES="2"))
    told = hasattr(ort.InferenceSession, "get_provider_graph_assignment_info")  # ONNX Runtime 1.23 does not
    taken = [[CUDA, "MatMul"]] if told else []
    assert found == {"near": True, "on device": True, "device": "1", "taken": taken}


@pytest.mark.parametrize("scenario", ["parts", "parts_that_join"])
def test_each_rank_works_on_the_device_that_nccl_holds(scenario: str, tmp_path: Path) -> None:
    for rank, found in enumerate(result(start(scenario, str(tmp_path), FAKE_CUDA_DEVICES="2"))):
        assert found == {
            "near": True,
            "weights": [[2, rank]],  # DLPack's number of CUDA, and the device's
            "devices": [str(rank)] * 2,
            "streams": ["123456"] * 2,
        }


def test_tensorrt_and_the_cuda_provider_behind_it_are_told_alike(tmp_path: Path) -> None:
    folders: list[str] = []
    for rank, found in enumerate(result(start("tensorrt", str(tmp_path), FAKE_CUDA_DEVICES="2"))):
        assert found["near"] and len(found["told"]) == 2
        for told in found["told"]:
            for provider in (CUDA, TENSORRT):
                assert told[provider]["device_id"] == str(rank)
                assert told[provider]["user_compute_stream"] == "123456"
            assert told[CUDA]["do_copy_in_default_stream"] == "1"
            assert told[TENSORRT]["trt_fp16_enable"] == told[TENSORRT]["trt_engine_cache_enable"] == "1"
            folders.append(told[TENSORRT]["trt_engine_cache_path"])
    assert len(set(folders)) == 4  # one for each segment of each rank
    assert all(Path(folder).is_dir() for folder in folders)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"trt_fp16_enable": "1"}, "should be 'True' or 'False'"),
        ({"do_copy_in_default_stream": "1"}, "Invalid TensorRT EP option"),
    ],
)
def test_the_parser_is_tensorrts_own(options: dict[str, str], message: str) -> None:
    program = """
import json, sys
import onnx, onnxruntime
from tests.ranks.rank_models import model, node, value
made = model([node("MatMul", ["x", "x"], ["y"])], [value("x", [2, 2])], [value("y", [2, 2])])
onnxruntime.InferenceSession(made.SerializeToString(), providers=[(sys.argv[1], json.loads(sys.argv[2]))])
"""
    ended = stand_in.run(program, TENSORRT, json.dumps({"device_id": "0", **options}))
    assert message in ended.stdout + ended.stderr


def without(tmp_path: Path, *missing: str) -> dict[str, str]:
    """The environment without some of the libraries; skips the test where the machine itself has them."""
    for library in stand_in.folder().glob("*.so*[0-9]"):
        if not library.name.startswith(missing):
            (tmp_path / library.name).symlink_to(library)
        elif not isinstance(devices._load(library.name), OSError):
            pytest.skip(f"this machine has {library.name}")
    return {"LD_LIBRARY_PATH": str(tmp_path)}


def refused(provider: str, **more: str) -> str:
    """What becomes of a provider in such an environment; a process for each: what is loaded stays so."""
    program = """
import sys
from ranks.devices import devices
from ranks.errors import DeviceError
try:
    devices.require(sys.argv[1])
    print("all there")
except DeviceError as error:
    print(error)
"""
    ended = stand_in.run(program, provider, **more)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.strip()


@pytest.mark.parametrize("library", ["libcublas.so", "libcublasLt.so", "libcurand.so", "libcudart.so"])
def test_a_library_of_cuda_is_missing(library: str, tmp_path: Path) -> None:
    found = refused(CUDA, **without(tmp_path, library))
    assert re.fullmatch(
        rf"CUDA device 0 cannot be used: a library is missing \({library}\.\d+: cannot open .*\); install "
        r"the NVIDIA driver and CUDA's libraries \(pip install 'shardrun\[gpu\]' has them\), or .*\.",
        found,
    )


LATER = pytest.mark.skipif(
    "libcudnn.so.9" in needed(stand_in.PROVIDERS[0]), reason="this ONNX Runtime is linked to cuDNN"
)


@pytest.mark.parametrize(
    ("provider", "missing", "message"),
    [
        (CUDA, ("libnvinfer", "libnvonnxparser"), "all there"),
        pytest.param(CUDA, ("libcudnn",), "all there", marks=LATER),
        (TENSORRT, ("libnvinfer",), "TensorRT device 0 cannot be used: a library is missing (libnvinfer.so."),
        (TENSORRT, ("libcurand",), "TensorRT device 0 cannot be used: a library is missing (libcurand.so."),
        (CUDA, ("libcuda.so",), "CUDA device 0 cannot be used: its driver is missing (libcuda.so.1: "),
    ],
)
def test_what_each_provider_needs(
    provider: str, missing: tuple[str, ...], message: str, tmp_path: Path
) -> None:
    found = refused(provider, **without(tmp_path, *missing))
    assert found.startswith(message)


@pytest.mark.parametrize(
    ("setting", "value_", "message"),
    [
        ("FAKE_CUDA_DEVICES", "0", "this process sees 0 CUDA devices: the driver shows none to this process"),
        (
            "FAKE_CUDA_FAIL",
            "cuInit",
            "this process sees 0 CUDA devices: .* cuInit failed: CUDA_ERROR_UNKNOWN;",
        ),
        (
            "FAKE_CUDA_VERSION",
            "11080",
            r"its driver runs CUDA 11\.8, but onnxruntime .* is built for CUDA \d+",
        ),
    ],
)
def test_a_driver_that_does_not_do(setting: str, value_: str, message: str, tmp_path: Path) -> None:
    found = refused(CUDA, **{setting: value_})
    assert re.match(f"CUDA device 0 cannot be used: {message}", found)


def test_what_a_provider_says_comes_without_its_source_lines(tmp_path: Path) -> None:
    refused, _ = result(start("failing", str(tmp_path)))
    assert refused.startswith("CUDA device 5 cannot be used: Invalid device ID: 5, must be between 0 (incl")
    text = (
        "x.cc:154 onnxruntime::CudaCall(ERRTYPE) CUDA failure 2: out of memory ; GPU=0 ; hostname=a ; expr=b;"
    )
    assert devices.said(text) == "CUDA failure 2: out of memory"
    signature = "std::shared_ptr<onnxruntime::F> onnxruntime::Make(const S&, const std::string&) "
    assert devices.said(f"1 : FAIL : /src/a.cc:12 {signature}Invalid TensorRT EP option: a") == (
        "1 : FAIL : Invalid TensorRT EP option: a"
    )
    assert devices.said("a model's own words (b) c") == "a model's own words (b) c"


@LATER
def test_a_node_that_needs_cudnn_says_so(tmp_path: Path) -> None:
    _, lacking = result(start("failing", str(tmp_path), **without(tmp_path, "libcudnn")))
    assert lacking.startswith("cuDNN is unavailable (") and lacking.endswith("'shardrun[gpu]' brings it.")


def test_the_gpu_has_no_room(tmp_path: Path) -> None:
    said = result(start("short", str(tmp_path), FAKE_CUDA_BYTES="1000"))
    assert "Failed to allocate memory for requested buffer of size" in said and "onnxruntime_src" not in said
    assert re.search(
        r"; memory of the GPU or of the host is short \(.* are free on GPU 0\): use more ranks", said
    )


@pytest.mark.parametrize("beside", ["onnxruntime", "torch"])
def test_libraries_where_pip_puts_them(beside: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also where ONNX Runtime itself lies elsewhere, unpacked or in the user's own folder."""
    library = next(stand_in.folder().glob("libcurand.so.*[0-9]"))
    place = tmp_path / beside / "nvidia" / "cu99" / "lib"
    place.mkdir(parents=True)
    name = f"libshardrun_{beside}.so"
    (place / f"{name}.1").write_bytes(library.read_bytes())
    monkeypatch.setattr(devices, "_capi", lambda: tmp_path / "onnxruntime" / "onnxruntime" / "capi")
    assert isinstance(devices._load(f"{name}.1"), OSError) is (beside == "torch")
    monkeypatch.syspath_prepend(tmp_path / "torch")
    assert not isinstance(devices._load(f"{name}.1"), OSError)
    assert isinstance(devices._load(f"{name}.2"), OSError)


def test_what_onnxruntime_opens_by_name_is_there(monkeypatch: pytest.MonkeyPatch) -> None:
    """It looks for cuDNN where the system does, and not where pip puts it; many models do without."""
    loaded: list[str] = []

    def load(name: str) -> OSError | None:
        loaded.append(name)
        return OSError("no such file") if "cudnn" in name else None

    monkeypatch.setattr(devices, "_load", load)
    monkeypatch.setattr(devices, "needed", lambda path: ("libcublas.so.13",))
    assert devices.preload.__wrapped__(("cuda",)) == ""
    assert loaded == ["libcublas.so.13", "libcudnn.so.9"]


@pytest.mark.parametrize(
    ("providers", "parts"), [((CUDA,), [("cuda",)]), ((TENSORRT, CUDA), [("cuda", "tensorrt")]), ((CPU,), [])]
)
def test_each_process_loads_the_libraries_before_its_sessions(
    providers: tuple[str, ...], parts: list[tuple[str, ...]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Not only the one that has asked whether there is a device."""
    loaded: list[tuple[str, ...]] = []

    def make(*_: Any, **__: Any) -> None:
        raise RuntimeError(f"made after {loaded}")

    monkeypatch.setattr(devices, "preload", loaded.append)
    monkeypatch.setattr(ort, "InferenceSession", make)
    with pytest.raises(ShardrunError, match=re.escape(f"made after {parts}")):
        session.create_plain(b"", SessionConfig(threads=1, providers=providers), "a model")


def test_threads_that_load_at_once_keep_the_output(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """ONNX Runtime prints which libraries it does not find."""
    turns, order = [threading.Event() for _ in range(3)], iter(range(2))

    def preload_dlls() -> None:
        print("a library is not there")
        number = next(order)
        turns[number].set()
        assert turns[number + 1].wait(30)  # the first goes on when the second has come, which ends last

    def load() -> None:
        devices.preload.__wrapped__(())
        turns[2].set()

    monkeypatch.setattr(ort, "preload_dlls", preload_dlls)
    before = sys.stdout
    threads = [threading.Thread(target=load) for _ in range(2)]
    for thread, inside in zip(threads, turns, strict=False):
        thread.start()
        assert inside.wait(30)
    for thread in threads:
        thread.join(30)
    assert sys.stdout is before and next(order, None) is None
    assert capsys.readouterr().out == ""


def test_what_a_library_is_linked_to(tmp_path: Path) -> None:
    readelf = subprocess.run(
        ["readelf", "-d", stand_in.PROVIDERS[0]], capture_output=True, text=True, check=True
    )
    found = needed(stand_in.PROVIDERS[0])
    assert list(found) == re.findall(r"NEEDED.*\[(.*)\]", readelf.stdout) and len(found) > 3
    damaged = tmp_path / "damaged.so"
    whole = stand_in.PROVIDERS[0].read_bytes()[:4096]
    for size in (0, 3, 40, 64, 100, 4096):
        damaged.write_bytes(whole[:size])
        assert needed(damaged) == ()
    assert needed(tmp_path) == needed(tmp_path / "absent") == needed(Path(__file__)) == ()


@pytest.fixture(scope="module")
def slices(tmp_path_factory: pytest.TempPathFactory) -> Path:
    from tests.ranks.stand_in_program import W

    folder = tmp_path_factory.mktemp("slices")
    nodes = [node("MatMul", ["x", "w1"], ["a"]), node("MatMul", ["a", "w2"], ["y"])]
    made = model(nodes, [value("x", [3, 16])], [value("y", [3, 16])], {"w1": W[0], "w2": W[1]})
    onnx.save(made, folder / "whole.onnx")
    slice_model(folder / "whole.onnx", 2, folder / "two")
    return folder / "two"


def job(
    slices: Path,
    firsts: list[int],
    collectives: str = "",
    scenario: str = "rank",
    slurm: bool = False,
    **more: str,
) -> list[Any]:
    """What two ranks of a job say whose first visible device is the machine's with this number."""
    base = {"SHARDRUN_TIMEOUT": "60", "SHARDRUN_COLLECTIVES": collectives, **more}
    if slurm:
        base |= {"SLURM_JOB_ID": str(os.getpid()), "SLURM_STEP_ID": "0", "SLURM_NODEID": "0"}
        base |= {"SLURM_STEP_NUM_TASKS": "2", "SLURM_STEP_TASKS_PER_NODE": "2"}
    else:
        base |= {"SHARDRUN_JOB": secrets.token_hex(16), "WORLD_SIZE": "2", "LOCAL_WORLD_SIZE": "2"}
    names = ("SLURM_PROCID", "SLURM_LOCALID") if slurm else ("RANK", "LOCAL_RANK")
    ranks = [
        start(scenario, str(slices), **base, **dict.fromkeys(names, str(rank)), FAKE_CUDA_FIRST=str(first))
        for rank, first in enumerate(firsts)
    ]
    try:
        return [result(process) for process in ranks]
    finally:
        for process in ranks:
            process.kill()


def test_one_visible_gpu_per_rank(slices: Path) -> None:
    """Both come to index 0 of what they see, and go on to NCCL, which this torch has not."""
    for told in job(slices, [3, 5]):
        assert re.match(r"This torch was built without NCCL|The nccl collectives need", told["error"])


@pytest.mark.parametrize(
    ("firsts", "visible", "number"),
    [([3, 3], "1", "device 0 of each"), ([3, 2], "2", "device 0 and 1 of theirs")],
)
def test_two_ranks_came_to_one_gpu(slices: Path, firsts: list[int], visible: str, number: str) -> None:
    for told in job(slices, firsts, FAKE_CUDA_DEVICES=visible):
        assert told["error"].startswith(
            "Ranks 0 and 1 both use the GPU GPU-abababab-abab-abab-abab-ababababab03 "
            f"({number}), but NCCL needs a GPU for each rank: "
        )


@pytest.mark.parametrize(("firsts", "kind"), [([3, 3], "DeviceError"), ([3, 5], "CollectiveError")])
def test_ranks_of_several_hosts_without_a_group_of_the_host(
    firsts: list[int], kind: str, tmp_path: Path
) -> None:
    """Each is told of a GPU that two have come to, before NCCL, which would tell these two alone. With a GPU
    each they come to NCCL, which this torch has not."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = str(probe.getsockname()[1])
    base = {"WORLD_SIZE": "2", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1", "SHARDRUN_TIMEOUT": "60"}
    base |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    ranks = [
        start("hosts", str(tmp_path), **base, RANK=str(rank), FAKE_CUDA_FIRST=str(first))
        for rank, first in enumerate(firsts)
    ]
    try:
        told = [result(process) for process in ranks]
    finally:
        for process in ranks:
            process.kill()
    if kind == "DeviceError":
        words = (
            "Ranks 0 and 1 both use the GPU GPU-abababab-abab-abab-abab-ababababab03 (device 0 of each), but"
        )
        assert all(found == kind and said.startswith(words) for found, said in told), told
    else:  # one may have failed, and ended, while the other still asked it
        lost = "Another rank ended while rank 1 waited in joining the nccl group"
        failed = [said for found, said in told if found == kind]
        assert failed and all(said.startswith("joining the nccl group failed on rank") for said in failed)
        others = [(found, said) for found, said in told if found != kind]
        assert all(found == "PeerLostError" and said.startswith(lost) for found, said in others), told


def test_ranks_share_a_gpu_where_that_is_asked_for(slices: Path) -> None:
    first, second = job(slices, [4, 4], "shm")
    assert first["near"] and second["near"]
    assert first["devices"] == second["devices"] == ["0"] * len(first["devices"])
    assert first["warned"] == []
    assert len(second["warned"]) == 1
    assert second["warned"][0].startswith("ranks 0 and 1 share the GPU GPU-abababab-")


@pytest.mark.parametrize("slurm", [False, True])
def test_ranks_with_a_gpu_each_and_collectives_on_the_host(slices: Path, slurm: bool) -> None:
    """As under Slurm, which shows each of its tasks one GPU."""
    for told in job(slices, [4, 5], "shm", slurm=slurm):
        assert told["near"] and told["warned"] == []


def test_a_script_that_numbers_gpus_by_rank_where_each_rank_sees_one(slices: Path) -> None:
    assert job(slices, [4, 5], "shm", "script") == [{"near": True, "number": rank} for rank in range(2)]


def test_a_script_whose_ranks_came_to_one_gpu(slices: Path) -> None:
    for told in job(slices, [4, 4], scenario="script"):
        assert "Ranks 0 and 1 both use the GPU GPU-abababab-" in told["error"]


def test_a_number_that_is_not_the_ranks_is_taken_at_its_word(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, text in {"RANK": "1", "WORLD_SIZE": "2", "LOCAL_RANK": "1"}.items():
        monkeypatch.setenv(name, text)
    for visible, number, right in ((1, 1, 0), (1, 2, 2), (2, 1, 1), (0, 1, 1), (1, 0, 0)):
        monkeypatch.setattr(devices, "visible", lambda visible=visible: visible)
        assert targets._gpu_of(number) == right
    monkeypatch.setenv("RANK", "5")
    monkeypatch.setenv("WORLD_SIZE", "8")
    monkeypatch.setattr(devices, "visible", lambda: 4)  # of the second host
    assert targets._gpu_of(5) == 1


@pytest.mark.parametrize(
    ("scenario", "said"),
    [
        ("shared", ("1 of the 2", "16384 of 24576", "QLinearMatMul", "")),
        (
            "shared_in_bodies",
            (
                "2 of the 2",
                "24576 of 24576",
                "CDist, QLinearMatMul",
                "The copies on the GPU of 1 of them are shared. ",
            ),
        ),
    ],
)
def test_weights_that_cannot_be_used_on_the_gpu_are_told_of(
    scenario: str, said: tuple[str, str, str, str], tmp_path: Path
) -> None:
    found = result(start(scenario, str(tmp_path), SHARDRUN_CACHE=str(tmp_path / "cache")))
    assert found["near"] == [True, True]
    assert found["blocks"] == [8192], "what the CPU reads takes no room on the GPU"
    for warned in found["warned"]:
        assert len(warned) == 1
        assert re.fullmatch(
            rf"{said[0]} weights of .*/shared\.onnx on the GPU, {said[1]} bytes, are not shared, but loaded "
            rf"by each process: ONNX Runtime reads them in host memory \({said[2]}\)\. {said[3]}"
            r"To share all, share the model on the CPU\.",
            warned[0],
        )


def test_weights_on_another_gpu_than_the_process_is_to_run_on(tmp_path: Path) -> None:
    """They are refused, whatever number the owner's GPU has in either process: else it would run on another
    GPU than its script says."""
    cache = str(tmp_path / "cache")
    refused, *good = result(start("numbered", str(tmp_path), FAKE_CUDA_DEVICES="2", SHARDRUN_CACHE=cache))
    assert re.fullmatch(
        r".*the owner's weights are on GPU 1 as this process counts, but .*/numbered\.onnx is to run on "
        r"GPU 0: give both the same device\.",
        str(refused),
    )
    assert good == [True, True]


def saved(folder: Path, weight: float) -> Path:
    path = folder / f"{weight}.onnx"
    weights = {"w": np.full((2, 2), weight, np.float32)}
    onnx.save(model([node("MatMul", ["x", "w"], ["y"])], [value("x", [2, 2])], ["y"], weights), path)
    return path


def test_engines_are_kept_apart(tmp_path: Path) -> None:
    options = {engines.PATH: str(tmp_path / "engines"), "trt_engine_cache_enable": "True"}
    one, two = saved(tmp_path, 1), saved(tmp_path, 2)
    path: Callable[..., str] = lambda *given: engines.apart(options, *given)[engines.PATH]  # noqa: E731
    alone, first, second = (SessionConfig(rank=rank) for rank in (None, 0, 1))
    found = [path(one, alone), path(two, alone), path(one, first), path(one, second), path(two, second)]
    assert len(set(found)) == 5
    names = [Path(folder).name for folder in found]
    assert re.fullmatch("[0-9a-f]{16}", names[0]) and names[2:4] == [f"{names[0]}-rank0", f"{names[0]}-rank1"]
    assert all(Path(folder).parent == tmp_path / "engines" for folder in found)
    assert path(one, first) == found[2] and path(one.read_bytes(), first) == path(one.read_bytes(), first)
    assert engines.apart({"device_id": "1"}, one, first) == {"device_id": "1"}
    (tmp_path / "file").touch()
    with pytest.raises(
        DeviceError, match=r"folder .*/file/.* for TensorRT's engines .* cannot be made: Not a dir"
    ):
        engines.apart({engines.PATH: str(tmp_path / "file")}, one, first)


def test_what_providers_are_told_of_a_memory() -> None:
    memory = {"device_id": "2", "user_compute_stream": "77", "do_copy_in_default_stream": "1"}
    config = SessionConfig(
        providers=(TENSORRT, CUDA, "CPUExecutionProvider"),
        provider_options=(
            {"device_id": "0", "trt_fp16_enable": "True"},
            {"device_id": "0", "use_tf32": "0"},
            {},
        ),
        device_id=2,
        memory_options=memory,
    )
    assert provider_options(config) == [
        (TENSORRT, {"device_id": "2", "trt_fp16_enable": "True", "user_compute_stream": "77"}),
        (CUDA, {**memory, "use_tf32": "0"}),
        ("CPUExecutionProvider", {}),
    ]
