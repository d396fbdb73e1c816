"""`ranks.Context`: options, printed forms, the launcher's environment, the older generation, and targets."""

import warnings
from pathlib import Path
from typing import Any

import onnxruntime
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ranks
from ranks import AscendDeviceInfo, Context, CPUDeviceInfo, DeviceInfo, GPUDeviceInfo
from ranks.errors import DeviceError, IdentityError, ShardrunError
from ranks.lite.options import precision_options, targets

pytestmark = pytest.mark.usefixtures("single")


def test_ascend_prints_provider_and_rank() -> None:
    context = Context()
    assert str(context.ascend) == (
        "device_type: DeviceType.kAscend,\nprecision_mode: ,\ndevice_id: 0.provider: .rank_id: 0."
    )
    context.ascend.precision_mode = "enforce_fp32"
    context.ascend.device_id = 2
    context.ascend.provider = "ge"
    context.ascend.rank_id = 1
    assert str(context.ascend) == (
        "device_type: DeviceType.kAscend,\nprecision_mode: enforce_fp32,\n"
        "device_id: 2.provider: ge.rank_id: 1."
    )


def test_rank_and_group_size_come_from_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    context = Context()
    assert (context.gpu.rank_id, context.gpu.group_size, context.ascend.rank_id) == (0, 1, 0)
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    monkeypatch.setenv("OMPI_COMM_WORLD_SIZE", "4")
    monkeypatch.setenv("OMPI_COMM_WORLD_LOCAL_RANK", "2")
    assert (context.gpu.rank_id, context.gpu.group_size, context.ascend.rank_id) == (2, 4, 2)
    assert str(context.gpu).endswith("rank_id: 2,\ngroup_size: 4.")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        old = GPUDeviceInfo()
    assert (old.get_rank_id(), old.get_group_size()) == (2, 4)
    context.ascend.rank_id = 1
    assert context.ascend.rank_id == 1
    with pytest.raises(AttributeError):
        context.gpu.rank_id = 1  # type: ignore[misc]  # what is tested


def test_half_set_environment_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OMPI_COMM_WORLD_RANK", "2")
    with pytest.raises(IdentityError, match="OMPI_COMM_WORLD_SIZE"):
        _ = Context().gpu.rank_id


@pytest.mark.parametrize(
    ("device", "name", "value", "kind", "message"),
    [
        ("gpu", "provider", 1, TypeError, "gpu_provider must be str, but got <class 'int'>."),
        ("gpu", "provider", "ge", ValueError, "gpu_provider must be in ['', 'tensorrt'], but got ge."),
        ("ascend", "provider", None, TypeError, "ascend_provider must be str, but got <class 'NoneType'>."),
        ("ascend", "provider", "acl", ValueError, "ascend_provider must be in ['', 'ge'], but got acl."),
        ("ascend", "rank_id", "0", TypeError, "ascend_rank_id must be int, but got <class 'str'>."),
        ("ascend", "rank_id", -1, ValueError, "ascend_rank_id must be a non-negative int."),
        (
            "cpu",
            "thread_num",
            2**31,
            TypeError,
            "cpu_thread_num must fit in 32 bits, but got 2147483648: incompatible function arguments.",
        ),
        (
            "cpu",
            "thread_affinity_mode",
            2**31,
            TypeError,
            "cpu_thread_affinity_mode must fit in 32 bits, but got 2147483648: incompatible function "
            "arguments.",
        ),
        (
            "cpu",
            "thread_affinity_core_list",
            [0, 2**70],
            TypeError,
            f"cpu_thread_affinity_core_list element must fit in 32 bits, but got {2**70} at index 1: "
            "incompatible function arguments.",
        ),
        ("parallel", "device_ids", (0,), TypeError, "device_ids must be list, but got <class 'tuple'>."),
        (
            "parallel",
            "device_ids",
            [0, -1],
            ValueError,
            "Set parallel failed, device_ids contain a negative number.",
        ),
    ],
)
def test_options_beyond_2_0(
    device: str, name: str, value: object, kind: type[Exception], message: str
) -> None:
    with pytest.raises(kind) as caught:
        setattr(getattr(Context(), device), name, value)
    assert str(caught.value) == message


def test_group_info_file() -> None:
    context = Context()
    assert context.group_info_file == ""
    context.group_info_file = "group_0.pb"
    assert context.group_info_file == "group_0.pb"
    with pytest.raises(TypeError, match=r"group_info_file must be str, but got <class 'int'>."):
        context.group_info_file = 3  # type: ignore[assignment]  # what is tested


def test_unknown_affinity_mode_means_none() -> None:
    context = Context()
    with pytest.warns(UserWarning, match="Invalid thread affinity mode: 7, change to NO_BIND mode.") as seen:
        context.cpu.thread_affinity_mode = 7
    assert context.cpu.thread_affinity_mode == 0
    assert seen[0].filename == __file__


@pytest.mark.filterwarnings("ignore::DeprecationWarning")
class TestOlderGeneration:
    """Contexts made of device classes."""

    def test_context_prints_as_it_did(self) -> None:
        context = Context(thread_num=2, inter_op_parallel_num=1, thread_affinity_mode=1)
        assert str(context) == (
            "thread_num: 2,\ninter_op_parallel_num: 1,\nthread_affinity_mode: 1,\n"
            "thread_affinity_core_list: [],\nenable_parallel: False,\ndevice_list: ."
        )
        context.append_device_info(GPUDeviceInfo(device_id=1, enable_fp16=True))
        context.append_device_info(CPUDeviceInfo())
        assert str(context).endswith("device_list: 1, 0, .")
        assert context.target == ["gpu", "cpu"]
        assert (context.gpu.device_id, context.gpu.precision_mode) == (1, "preferred_fp16")
        assert (context.cpu.thread_num, context.cpu.precision_mode) == (2, "enforce_fp32")

    def test_present_context_prints_as_it_does_now(self) -> None:
        assert str(Context()) == "target: ['cpu']."
        assert str(Context(thread_affinity_core_list=[1, 0])).count("thread_affinity_core_list: [1, 0]") == 1
        assert "enable_parallel: True" in str(Context(enable_parallel=True))

    def test_devices_print_as_they_did(self) -> None:
        assert str(CPUDeviceInfo(enable_fp16=True)) == "device_type: DeviceType.kCPU,\nenable_fp16: True."
        assert str(GPUDeviceInfo(device_id=1)) == (
            "device_type: DeviceType.kGPU,\ndevice_id: 1,\nenable_fp16: False."
        )
        assert str(AscendDeviceInfo(device_id=3)) == "device_type: DeviceType.kAscend,\ndevice_id: 3."

    def test_ascend_with_the_arguments_of_1_8(self, tmp_path: Path) -> None:
        context = Context()
        path = tmp_path / "aipp.cfg"
        path.touch()
        context.append_device_info(
            AscendDeviceInfo(
                2, "NCHW", {1: [1, 3, 28, 28]}, "force_fp32", "high_precision", [2, 4], "66,88", "", str(path)
            )
        )
        assert (context.target, context.ascend.device_id) == (["ascend"], 2)
        assert context.ascend.legacy_precision_mode == "force_fp32"

    @pytest.mark.parametrize(
        ("make", "kind", "message"),
        [
            (lambda: Context(thread_num="1"), TypeError, "thread_num must be int, but got <class 'str'>."),
            (
                lambda: Context(thread_num=-1),
                ValueError,
                "Context's init failed, thread_num must be a non-negative int.",
            ),
            (
                lambda: Context(inter_op_parallel_num=-1),
                ValueError,
                "Context's init failed, inter_op_parallel_num must be a non-negative int.",
            ),
            (
                lambda: Context(thread_affinity_mode=1.0),
                TypeError,
                "thread_affinity_mode must be int, but got <class 'float'>.",
            ),
            (
                lambda: Context(thread_affinity_core_list=["1"]),
                TypeError,
                "thread_affinity_core_list element must be int, but got <class 'str'> at index 0.",
            ),
            (
                lambda: Context(enable_parallel=1),
                TypeError,
                "enable_parallel must be bool, but got <class 'int'>.",
            ),
            (
                lambda: Context().append_device_info("cpu"),
                TypeError,
                "device_info must be DeviceInfo, but got <class 'str'>.",
            ),
            (lambda: CPUDeviceInfo(1), TypeError, "enable_fp16 must be bool, but got <class 'int'>."),
            (lambda: GPUDeviceInfo("0"), TypeError, "device_id must be int, but got <class 'str'>."),
            (
                lambda: GPUDeviceInfo(-1),
                ValueError,
                "GPUDeviceInfo's init failed, device_id must be a non-negative int.",
            ),
            (
                lambda: AscendDeviceInfo(-1),
                ValueError,
                "AscendDeviceInfo's init failed, device_id must be a non-negative int.",
            ),
            (
                lambda: AscendDeviceInfo(input_shape={1: [1.0]}),
                TypeError,
                "input_shape value's element must be int, but got <class 'float'> at index 0.",
            ),
            (
                lambda: AscendDeviceInfo(insert_op_cfg_path="/no/such/file"),
                RuntimeError,
                "AscendDeviceInfo's init failed, insert_op_cfg_path does not exist!",
            ),
        ],
    )
    def test_checks(self, make: Any, kind: type[Exception], message: str) -> None:
        with pytest.raises(kind) as caught:
            make()
        assert str(caught.value) == message


@pytest.mark.parametrize(
    ("make", "name"),
    [
        (lambda: Context(thread_num=1), "Context with arguments"),
        (CPUDeviceInfo, "CPUDeviceInfo"),
        (GPUDeviceInfo, "GPUDeviceInfo"),
        (AscendDeviceInfo, "AscendDeviceInfo"),
        (lambda: Context().append_device_info(DeviceInfo()), "append_device_info()"),
    ],
)
def test_older_generation_warns(make: Any, name: str) -> None:
    with pytest.warns(DeprecationWarning) as seen:
        make()
    assert str(seen[0].message).startswith(f"{name} is deprecated, use ")


def offered(monkeypatch: pytest.MonkeyPatch, *, present: bool) -> list[tuple[str, int]]:
    """Makes every device present, or none; returns what was asked for."""
    asked: list[tuple[str, int]] = []

    def require(provider: str, device_id: int = 0) -> None:
        asked.append((provider, device_id))
        if not present:
            raise DeviceError(f"{provider} is missing.")

    monkeypatch.setattr("ranks.devices.devices.require", require)
    return asked


def test_targets_become_providers(monkeypatch: pytest.MonkeyPatch) -> None:
    required = offered(monkeypatch, present=True)
    context = Context()
    assert targets.place(context).providers == ("CPUExecutionProvider",)
    assert required == []
    context.target = ["CPU", "GPU"]
    context.gpu.device_id = 3
    gpu = targets.place(context)
    assert gpu.providers == ("CUDAExecutionProvider", "CPUExecutionProvider")
    assert (gpu.options[0], gpu.device_id) == ({"device_id": "3"}, 3)
    context.gpu.provider = "tensorrt"
    context.gpu.precision_mode = "preferred_fp16"
    asked = precision_options.asked(context, "gpu", (), ())
    trt = targets.place(context, asked, "/cache")
    assert trt.providers[:2] == ("TensorrtExecutionProvider", "CUDAExecutionProvider")
    assert trt.options[0] == {
        "device_id": "3",
        "trt_fp16_enable": "True",
        "trt_engine_cache_enable": "True",
        "trt_engine_cache_path": "/cache",
    }
    context.target = ["Ascend"]
    context.ascend.device_id = 1
    context.ascend.precision_mode = "preferred_optimal"
    cann = targets.place(context, precision_options.asked(context, "ascend", (), ()))
    assert cann.providers == ("CANNExecutionProvider", "CPUExecutionProvider")
    assert cann.options[0] == {"device_id": "1", "precision_mode": "allow_mix_precision"}
    assert required == [
        ("CUDAExecutionProvider", 3),
        ("TensorrtExecutionProvider", 3),
        ("CANNExecutionProvider", 1),
    ]


@pytest.mark.parametrize("target", ["gpu", "ascend"])
def test_missing_device_says_what_is_missing_and_what_to_do(
    target: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    offered(monkeypatch, present=False)
    context = Context()
    context.target = [target]
    with pytest.raises(DeviceError, match=rf"target '{target}' .*Provider is missing. .*SHARDRUN_TARGET=cpu"):
        targets.place(context)


def test_shardrun_target_sends_scripts_to_the_cpu_with_one_warning(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TARGET", "CPU")
    context = Context()
    context.target = ["ascend"]
    with pytest.warns(
        UserWarning, match="target 'ascend' runs on the CPU, because SHARDRUN_TARGET is 'cpu'."
    ):
        assert targets.place(context).providers == ("CPUExecutionProvider",)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        context.target = ["gpu"]
        assert targets.place(context).providers == ("CPUExecutionProvider",)


def test_other_shardrun_target_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SHARDRUN_TARGET", "tpu")
    context = Context()
    context.target = ["gpu"]
    with pytest.raises(ShardrunError, match=r"SHARDRUN_TARGET must be 'cpu' or not set, but is 'tpu'."):
        targets.place(context)


def test_real_gpu_or_the_reason() -> None:
    context = Context()
    context.target = ["gpu"]
    try:
        placed = targets.place(context)
    except DeviceError as error:
        assert "CUDA" in str(error)
    else:
        assert placed.providers[0] in onnxruntime.get_available_providers()


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=8),
    st.lists(
        st.one_of(st.integers(), st.text(max_size=5), st.sampled_from(["cpu", "GPU", "Ascend"])), max_size=3
    ),
    st.dictionaries(
        st.text(max_size=3), st.dictionaries(st.text(max_size=3), st.text(max_size=3), max_size=2)
    ),
)
OPTIONS = {
    "": ["target", "group_info_file"],
    "cpu": [
        "precision_mode",
        "thread_num",
        "inter_op_parallel_num",
        "thread_affinity_mode",
        "thread_affinity_core_list",
    ],
    "gpu": ["precision_mode", "device_id", "provider", "rank_id", "group_size"],
    "ascend": ["precision_mode", "device_id", "provider", "rank_id"],
    "parallel": ["workers_num", "config_info", "config_path", "device_ids"],
}


@pytest.mark.filterwarnings("ignore:Invalid thread affinity mode")
@given(
    value=ANYTHING,
    option=st.sampled_from([(part, name) for part, names in OPTIONS.items() for name in names]),
)
def test_any_value_for_any_option(value: Any, option: tuple[str, str]) -> None:
    part, name = option
    context = ranks.Context()
    owner = getattr(context, part) if part else context
    before = str(owner)
    try:
        setattr(owner, name, value)
    except (TypeError, ValueError, AttributeError) as error:
        assert str(error)
        assert str(owner) == before
    else:
        assert str(owner)
