"""`ranks.Tensor`: sharing, shapes, types, and the older names."""

import warnings
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

import ranks
from ranks import DataType, Format, Tensor, TensorMeta
from ranks.common import notice
from ranks.errors import DeviceError
from ranks.lite.tensor import OutputTensor, fill, input_tensor, misfit


def test_shares_the_array_it_is_given() -> None:
    array = np.arange(6, dtype=np.float32).reshape(2, 3)
    tensor = Tensor(array)
    assert tensor.get_data_to_numpy() is array
    assert Tensor(tensor).get_data_to_numpy() is array
    assert (tensor.shape, tensor.dtype, tensor.name) == ([2, 3], DataType.FLOAT32, "")


@pytest.mark.parametrize(
    "array",
    [
        np.arange(6, dtype=np.float32).reshape(2, 3).T,
        np.arange(12, dtype=np.float32)[::2].reshape(3, 2),
        np.arange(6, dtype=">f4").reshape(3, 2),
        np.asfortranarray(np.arange(6, dtype=np.float32).reshape(3, 2)),
        np.frombuffer(b"\0" + np.arange(6, dtype=np.float32).tobytes(), np.float32, offset=1).reshape(3, 2),
    ],
    ids=["transposed", "strided", "big-endian", "fortran", "unaligned"],
)
def test_odd_arrays_keep_their_values(array: np.ndarray[Any, Any]) -> None:
    tensor = Tensor(array)
    stored = tensor.get_data_to_numpy()
    np.testing.assert_array_equal(stored, array)
    assert stored.flags.c_contiguous
    assert stored.flags.aligned
    assert stored.dtype.isnative
    other = Tensor(shape=[3, 2], dtype=DataType.FLOAT32)
    other.set_data_from_numpy(array)
    np.testing.assert_array_equal(other.get_data_to_numpy(), array)


def test_scalar_and_empty_tensors() -> None:
    scalar = Tensor(np.array(3, np.int64))
    assert (scalar.shape, scalar.element_num, scalar.data_size) == ([], 1, 8)
    empty = Tensor(np.empty((0, 4), np.float32))
    assert (empty.shape, empty.element_num, empty.data_size) == ([0, 4], 0, 0)
    assert empty.get_data_to_numpy().shape == (0, 4)


def test_shape_and_type_describe_a_tensor_of_zeros() -> None:
    tensor = Tensor(shape=(2, 2), dtype=DataType.INT8)
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), np.zeros((2, 2), np.int8))
    # As in mindspore_lite, one of the two alone is checked and not used.
    assert (Tensor(shape=[7]).shape, Tensor(dtype=DataType.INT8).dtype) == ([], DataType.FLOAT32)


@pytest.mark.parametrize(
    ("arguments", "kind", "message"),
    [
        (
            {"tensor": [1]},
            TypeError,
            "tensor must be MindSpore Lite's Tensor._tensor or numpy ndarray, but got",
        ),
        ({"tensor": np.zeros(2, "U3")}, TypeError, "Unsupported numpy dtype value <U3"),
        ({"tensor": np.zeros(2, complex)}, TypeError, "Unsupported numpy dtype value complex128"),
        ({"tensor": np.zeros(2), "shape": [3]}, TypeError, "user set shape is not equal numpy shape"),
        (
            {"tensor": np.zeros(2), "dtype": DataType.INT8},
            TypeError,
            "user set dtype is not equal numpy dtype",
        ),
        (
            {"tensor": Tensor(), "shape": [3]},
            TypeError,
            "user set shape is not equal numpy shape, user's shape",
        ),
        ({"tensor": Tensor(), "dtype": DataType.INT8}, TypeError, "user set dtype is not equal tensor dtype"),
        ({"shape": 3}, TypeError, "shape must be list or tuple, but got <class 'int'>."),
        ({"shape": ["3"]}, TypeError, "shape element must be int, but got <class 'str'> at index 0."),
        ({"shape": [1, 2**63], "dtype": DataType.INT8}, TypeError, "shape element must fit in 64 bits"),
        ({"dtype": np.float32}, TypeError, "dtype must be DataType, but got <class 'type'>."),
        ({"device": 0}, TypeError, "device must be str, but got <class 'int'>."),
        ({"device": "gpu"}, TypeError, "now only support ascend device."),
        ({"device": "ascend:0:1"}, TypeError, "device must be 'ascend:index', eg: 'ascend:0'"),
        ({"device": "ascend:-1"}, TypeError, "device id should >= 0."),
        ({"device": "ascend:²"}, TypeError, "device id should >= 0."),
    ],
)
def test_wrong_arguments(arguments: dict[str, Any], kind: type[Exception], message: str) -> None:
    with pytest.raises(kind) as caught:
        Tensor(**arguments)
    assert str(caught.value).startswith(message)


def test_device_must_be_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(notice.NOTICES, "_given", {"target"})
    monkeypatch.delenv("SHARDRUN_TARGET", raising=False)
    import onnxruntime

    if "CANNExecutionProvider" in onnxruntime.get_available_providers():
        pytest.skip("this machine has Ascend devices, so the error cannot be seen")
    with pytest.raises(DeviceError, match=r"CANNExecutionProvider.*SHARDRUN_TARGET=cpu"):
        Tensor(device="ascend:0")
    monkeypatch.setenv("SHARDRUN_TARGET", "cpu")
    assert Tensor(device="ascend:3").device == "ascend:3"
    assert Tensor(device="ascend").device == "ascend:-1"


def test_data_survives_a_shape_of_as_many_elements_only() -> None:
    array = np.arange(6, dtype=np.float32)
    tensor = Tensor(array)
    tensor.shape = [2, 3]
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), array.reshape(2, 3))
    tensor.shape = [2, 2]
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), np.zeros((2, 2), np.float32))
    tensor.dtype = DataType.INT16
    assert tensor.get_data_to_numpy().dtype == np.int16


def test_set_data_refuses_other_types_and_sizes() -> None:
    tensor = Tensor(shape=[2, 2], dtype=DataType.FLOAT32)
    with pytest.raises(RuntimeError, match=r"data type not equal! Numpy type: <class 'numpy.int64'>"):
        tensor.set_data_from_numpy(np.zeros((2, 2), np.int64))
    with pytest.raises(RuntimeError, match="data size not equal! Numpy size: 12, Tensor size: 16"):
        tensor.set_data_from_numpy(np.zeros(3, np.float32))
    with pytest.raises(RuntimeError, match=r"data type not equal! .*Unsupported numpy dtype value complex64"):
        tensor.set_data_from_numpy(np.zeros(2, np.complex64))


def test_inputs_take_any_shape_that_the_model_allows() -> None:
    tensor = input_tensor("x", DataType.FLOAT32, (-1, 3), (None, 3))
    assert (tensor.shape, tensor.element_num, tensor.data_size) == ([-1, 3], 0, 0)
    tensor.set_data_from_numpy(np.ones((4, 3), np.float32))
    assert tensor.shape == [4, 3]
    tensor.set_data_from_numpy(np.ones((2, 3), np.float32))
    assert tensor.shape == [2, 3]
    tensor.set_data_from_numpy(np.arange(6, dtype=np.float32))  # a file's content, without a shape
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), np.arange(6).reshape(2, 3))
    with pytest.raises(RuntimeError, match="data size not equal! Numpy size: 16, Tensor size: 24"):
        tensor.set_data_from_numpy(np.ones((1, 4), np.float32))


def test_open_dimension_wants_a_shape() -> None:
    tensor = input_tensor("x", DataType.FLOAT32, (-1, 3), (None, 3))
    assert tensor.get_data_to_numpy().size == 0
    with pytest.raises(RuntimeError, match="data size not equal! Numpy size: 24, Tensor size: 0"):
        tensor.set_data_from_numpy(np.arange(6, dtype=np.float32))
    with pytest.raises(RuntimeError, match="data size not equal! Numpy size: 0, Tensor size: 0"):
        tensor.set_data_from_numpy(np.empty(0, np.float32))


@pytest.mark.parametrize(
    ("declared", "shape", "words"),
    [
        (
            (None, 3),
            (6,),
            "of shape [-1, 3], where -1 is any length, but this one has [6]: give one of that shape.",
        ),
        (
            (None, 3),
            (2, 4),
            "of shape [-1, 3], where -1 is any length, but this one has [2, 4]: give one of that shape, or "
            "call resize for another one first.",
        ),
        (
            (2, 3),
            (3, 3),
            "of shape [2, 3], but this one has [3, 3]: give one of that shape, or call resize for another "
            "one first.",
        ),
    ],
)
def test_what_an_input_takes_is_said(declared: Any, shape: Any, words: str) -> None:
    tensor = input_tensor("x", DataType.FLOAT32, tuple(-1 if n is None else n for n in declared), declared)
    with pytest.raises(RuntimeError) as caught:
        tensor.set_data_from_numpy(np.ones(shape, np.float32))
    assert str(caught.value).startswith("data size not equal! Numpy size: ")  # mindspore_lite's words
    assert str(caught.value).endswith(f". The input 'x' takes arrays {words}")


def test_a_tensor_of_open_shape_wants_a_shape() -> None:
    tensor = Tensor()
    tensor.shape = [-1, 3]
    with pytest.raises(RuntimeError, match=r"The tensor's shape \[-1, 3\] is open: set its shape first"):
        tensor.set_data_from_numpy(np.ones((2, 3), np.float32))
    tensor.shape = [2, 3]
    tensor.set_data_from_numpy(np.ones((2, 3), np.float32))


def test_huge_tensor_is_an_error_when_its_data_are_wanted() -> None:
    tensor = Tensor()
    tensor.shape = [2**40, 2**40]
    assert tensor.element_num == 2**80
    with pytest.raises(MemoryError, match="tensor '' of shape"):
        tensor.get_data_to_numpy()


def test_fill_writes_into_the_users_own_array() -> None:
    own = np.zeros((2, 2), np.float32)
    tensor = Tensor(own)
    fill(tensor, np.ones((2, 2), np.float32))
    np.testing.assert_array_equal(own, np.ones((2, 2)))
    assert tensor.get_data_to_numpy() is own


def test_what_does_not_fit_the_users_own_array() -> None:
    own = np.zeros((2, 2), np.float32)
    assert misfit(Tensor(own), np.ones((2, 2), np.float32)) is None
    assert "shape [4], but" in str(misfit(Tensor(own), np.ones(4, np.float32)))
    assert "dtype float64 and" in str(misfit(Tensor(own), np.ones((2, 2))))
    own.flags.writeable = False
    assert "read-only" in str(misfit(Tensor(own), np.ones((2, 2), np.float32)))
    empty = Tensor(shape=[2, 2], dtype=DataType.FLOAT32)
    assert misfit(empty, np.ones(3, np.int64)) is None
    empty.get_data_to_numpy()  # zeros, which are not the user's
    assert misfit(empty, np.ones(3, np.int64)) is None


def test_fill_never_touches_an_earlier_result() -> None:
    tensor = OutputTensor("y", DataType.FLOAT32, (2,))
    fill(tensor, np.zeros(2, np.float32))
    first = tensor.get_data_to_numpy()
    fill(tensor, np.ones(2, np.float32))
    np.testing.assert_array_equal(first, [0, 0])
    np.testing.assert_array_equal(tensor.get_data_to_numpy(), [1, 1])


def test_tensor_meta_prints_and_starts_empty() -> None:
    meta = TensorMeta()
    assert (meta.name, meta.dtype, meta.shape, meta.format) == ("", DataType.UNKNOWN, [], Format.DEFAULT)
    assert str(meta) == (
        "name: ,\ndtype: DataType.UNKNOWN,\nshape: [],\nformat: Format.DEFAULT,\n"
        "element_num: 0,\ndata_size: 0."
    )
    output = OutputTensor("y", DataType.INT8, (2, -1))
    assert isinstance(output, TensorMeta)
    assert isinstance(output, Tensor)
    assert str(output) == (
        "name: y,\ndtype: DataType.INT8,\nshape: [2, -1],\nformat: Format.NCHW,\n"
        "element_num: 0,\ndata_size: 0."
    )


def test_older_names_work_and_warn() -> None:
    tensor = Tensor()
    calls: list[tuple[str, tuple[Any, ...], Any]] = [
        ("set_tensor_name", ("a",), None),
        ("get_tensor_name", (), "a"),
        ("set_data_type", (DataType.INT16,), None),
        ("get_data_type", (), DataType.INT16),
        ("set_shape", ([2, 3],), None),
        ("get_shape", (), [2, 3]),
        ("set_format", (Format.NHWC,), None),
        ("get_format", (), Format.NHWC),
        ("get_element_num", (), 6),
        ("get_data_size", (), 12),
    ]
    for name, arguments, result in calls:
        with pytest.warns(
            DeprecationWarning, match=f"^{name}\\(\\) is deprecated, use [a-z_]+ instead.$"
        ) as seen:
            assert getattr(tensor, name)(*arguments) == result
        assert seen[0].filename == __file__


@pytest.mark.parametrize(
    ("name", "value", "message"),
    [
        ("set_tensor_name", 1, "tensor_name must be str, but got <class 'int'>."),
        ("set_data_type", 43, "data_type must be DataType, but got <class 'int'>."),
        ("set_shape", (1,), "shape must be list, but got <class 'tuple'>."),
        ("set_shape", ["1"], "shape element must be int, but got <class 'str'> at index 0."),
        ("set_format", "NCHW", "tensor_format must be Format, but got <class 'str'>."),
    ],
)
def test_older_names_check_too(name: str, value: object, message: str) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        with pytest.raises(TypeError) as caught:
            getattr(Tensor(), name)(value)
    assert str(caught.value) == message


ANYTHING = st.one_of(
    st.none(),
    st.booleans(),
    st.integers(),
    st.floats(),
    st.text(max_size=5),
    st.binary(max_size=5),
    st.lists(st.one_of(st.integers(-3, 4), st.text(max_size=2), st.none()), max_size=4),
    st.tuples(st.integers(-3, 4)),
    st.dictionaries(st.text(max_size=2), st.integers(), max_size=2),
    st.sampled_from(
        [DataType.INT8, Format.NCHW, np.float32, np.zeros(2), np.zeros(2, object), Tensor(), ranks]
    ),
)


@given(value=ANYTHING, name=st.sampled_from(["name", "dtype", "shape", "format", "device", "data_size"]))
def test_any_value_for_any_attribute(value: Any, name: str) -> None:
    try:
        setattr(Tensor(), name, value)
    except (TypeError, ValueError, AttributeError) as error:
        assert str(error)


@given(tensor=ANYTHING, shape=ANYTHING, dtype=ANYTHING, device=ANYTHING)
def test_any_arguments(tensor: Any, shape: Any, dtype: Any, device: Any) -> None:
    try:
        made = Tensor(tensor, shape, dtype, device)
    except (TypeError, ValueError, DeviceError) as error:
        assert str(error)
    else:
        assert str(made).startswith("name: ,\ndtype: DataType.")
        assert made.data_size >= 0


@given(value=ANYTHING)
def test_any_data(value: Any) -> None:
    try:
        Tensor().set_data_from_numpy(value)
    except (TypeError, RuntimeError) as error:
        assert str(error)
