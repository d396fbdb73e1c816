"""The same questions put to mindspore_lite 2.0.0 (answers on file) and to `ranks`."""

import builtins
import importlib.util
import json
import warnings
from pathlib import Path

import numpy as np
import pytest

import ranks
from ranks import errors
from ranks.lite.options.errors import runtime_error

DATA = Path(__file__).parents[2] / "data"
_spec = importlib.util.spec_from_file_location("mindspore_lite_answers", DATA / "mindspore_lite_answers.py")
assert _spec is not None and _spec.loader is not None
questions = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(questions)
ANSWERS: dict[str, str] = json.loads((DATA / "mindspore_lite_answers.json").read_text("utf-8"))

TOGETHER = 12
"""Questions of one test."""

# Where later versions of mindspore_lite (2.1 and on, by their source) answer otherwise, `ranks` follows them:
# part of the 2.0.0 answer -> what stands there.
LATER: dict[str, str | dict[str, str]] = {
    "shape must be list,": "shape must be list or tuple,",
    "Tensor._tensor, but": "Tensor._tensor or numpy ndarray, but",
    "inputs must be list, but got": {
        "predict": "inputs must be list or tuple, but got",
        "resize": "inputs must be list or tuple of Lite Tensor, but got",
    },
    "dims must be list,": "dims must be list or tuple of shape,",
    "dims element must be list,": "dims element must be list or tuple of int,",
}
# Where the original gives the name of a code for a reason, `ranks` says the reason.
CODES = ("Common error code.", "Invalid input param by user.")
# Further texts of later versions, by their source and documentation: 2.0.0 does not have these calls.
NEWER: list[tuple[str, type[Exception], str]] = [
    *(
        (f"mslite.ModelGroup({flag})", RuntimeError, _FLAGS)
        for _FLAGS in [
            "Parameter flags should be ModelGroupFlag.SHARE_WORKSPACE or ModelGroupFlag.SHARE_WEIGHT"
        ]
        for flag in ("1", "2", "None", "'SHARE_WEIGHT'", "[]", "mslite.ModelType.MINDIR", "object")
    ),
    *(
        (f"mslite.ModelGroup().add_model({one})", TypeError, f"models must be list/tuple, but got {kind}")
        for one, kind in (
            ("1", "<class 'int'>"),
            ("None", "<class 'NoneType'>"),
            ("'a'", "<class 'str'>"),
            ("{}", "<class 'dict'>"),
            ("mslite.Model()", "<class 'ranks.lite.model.Model'>"),
        )
    ),
    *(
        (
            f"mslite.ModelGroup().add_model({models})",
            TypeError,
            f"models element must be all str or Model, but {got}",
        )
        for models, got in (
            ("[1]", "got <class 'int'> at index 0."),
            ("[None]", "got <class 'NoneType'> at index 0."),
            ("[b'a']", "got <class 'bytes'> at index 0."),
            ("['a', 1]", "got <class 'int'> at index 1."),
            ("('a', 'b', None)", "got <class 'NoneType'> at index 2."),
            ("[mslite.Model(), 'a']", "got <class 'str'> at index 1."),
            ("['a', mslite.Model()]", "got <class 'ranks.lite.model.Model'> at index 1."),
        )
    ),
    ("mslite.ModelGroup().add_model([])", RuntimeError, "models cannot be empty"),
    ("mslite.ModelGroup().add_model(())", RuntimeError, "ModelGroup's add model failed."),
    ("mslite.ModelGroup().add_model([''])", RuntimeError, "ModelGroup's add model failed."),
    ("mslite.ModelGroup().add_model(['/no/such/file'])", RuntimeError, "ModelGroup's add model failed."),
    (
        "m = mslite.Model(); mslite.ModelGroup().add_model([m]); mslite.ModelGroup().add_model([m])",
        RuntimeError,
        "ModelGroup's add model failed.",
    ),
    (
        "built.predict([np.ones((4, 20), np.float32)]); mslite.ModelGroup().add_model([built])",
        RuntimeError,
        "ModelGroup's add model failed.",
    ),
    (
        "mslite.ModelGroup().cal_max_size_of_workspace(1, 2)",
        TypeError,
        "context must be Context, but got <class 'int'>.",
    ),
    (
        "mslite.ModelGroup().cal_max_size_of_workspace(1, mslite.Context())",
        TypeError,
        "model_type must be ModelType, but got <class 'int'>.",
    ),
    (
        "mslite.ModelGroup().cal_max_size_of_workspace(mslite.ModelType.MINDIR, mslite.Context())",
        RuntimeError,
        "ModelGroup's cal max size of workspace failed.",
    ),
    (
        "mslite.ModelGroup(mslite.ModelGroupFlag.SHARE_WEIGHT).cal_max_size_of_workspace("
        "mslite.ModelType.MINDIR, mslite.Context())",
        RuntimeError,
        "ModelGroup's cal max size of workspace failed.",
    ),
    *(
        (f"{model}.update_weights({weights})", TypeError, text)
        for model in ("mslite.Model()", "built")
        for weights, text in (
            ("1", "weights must be list, but got <class 'int'>"),
            ("'a'", "weights must be list, but got <class 'str'>"),
            ("{}", "weights must be list, but got <class 'dict'>"),
            ("mslite.Tensor()", "weights must be list, but got <class 'ranks.lite.tensor.Tensor'>"),
            ("[1]", "weight must be list, but got <class 'int'>"),
            ("[mslite.Tensor()]", "weight must be list, but got <class 'ranks.lite.tensor.Tensor'>"),
            ("[[1]]", "weights element must be Tensor, but got <class 'int'>"),
            ("[[mslite.Tensor(), None]]", "weights element must be Tensor, but got <class 'NoneType'>"),
            ("[[], ['a']]", "weights element must be Tensor, but got <class 'str'> as index 10."),
            (
                "[[np.ones(2)]]",
                "weights element must be Tensor, but got <class 'numpy.ndarray'> as index 00.",
            ),
        )
    ),
    *(
        (f"mslite.Model().update_weights({weights})", RuntimeError, text)
        for weights in ("[]", "[[]]", "[[mslite.Tensor()]]", "[[mslite.Tensor(np.ones(3, np.float32))]]")
        for text in ("update weight failed! Error is ", "Session is null, please build model first!")
    ),
    (
        "built.update_weights([[mslite.Tensor(np.ones(3, np.float32))]])",
        RuntimeError,
        "update weight failed! Error is ",
    ),
    *(
        (f"{model}.get_model_info({key})", TypeError, "get_model_info(): incompatible function arguments.")
        for model in ("mslite.Model()", "built")
        for key in ("None", "1", "b'input_shape'", "['input_shape']", "{}", "1.5")
    ),
    ("built.get_model_info()", TypeError, "get_model_info() missing 1 required positional argument: 'key'"),
    (
        "mslite.Model().get_model_info()",
        TypeError,
        "get_model_info() missing 1 required positional argument: 'key'",
    ),
    *(
        (f"{model}.predict({inputs})", RuntimeError, text)
        for model, expected in (("mslite.Model()", 0), ("built", 1))
        for inputs, given in (
            ("[mslite.Tensor(), mslite.Tensor()]", 2),
            ("(mslite.Tensor(), mslite.Tensor())", 2),
            ("[np.ones((4, 20), np.float32)] * 3", 3),
            ("built.get_inputs() * 2", 2),
        )
        for text in (f"model input len:{expected} not equal input len:{given}!", "predict failed!")
    ),
    *(
        (f"built.predict([{one}])", RuntimeError, "predict failed!")
        for one in (
            "np.ones((4, 20))",
            "np.ones((4, 21), np.float32)",
            "np.ones(80, np.float32)",
            "mslite.Tensor(np.ones((4, 20), np.int32))",
            "mslite.Tensor()",
            "mslite.Tensor(shape=[4, -1], dtype=mslite.DataType.FLOAT32)",
        )
    ),
    ("built.predict(built.get_inputs(), 1)", TypeError, "outputs must be list"),
    (
        "built.predict(built.get_inputs(), [1])",
        TypeError,
        "outputs element must be Tensor, but got <class 'int'> at index 0.",
    ),
    ("built.predict(built.get_inputs(), [])", RuntimeError, "predict failed!"),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, config_dict=1)",
        TypeError,
        "config_dict must be dict, but got <class 'int'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, config_dict={1: {}})",
        TypeError,
        "config_dict_key must be str, but got <class 'int'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, config_dict={'a': 1})",
        TypeError,
        "config_dict_value must be dict, but got <class 'int'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, config_dict={'a': {1: 'b'}})",
        TypeError,
        "config_dict_value_key must be str, but got <class 'int'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, config_dict={'a': {'b': 1}})",
        TypeError,
        "config_dict_value_value must be str, but got <class 'int'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, dec_key='a')",
        TypeError,
        "dec_key must be bytes, but got <class 'str'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, dec_key=b'a', dec_mode=1)",
        TypeError,
        "dec_mode must be str, but got <class 'int'>.",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, dec_key=b'a', dec_mode='')",
        ValueError,
        "dec_mode must not be empty string!",
    ),
    (
        "mslite.Model().build_from_file(a_file, mslite.ModelType.MINDIR, dec_key=b'a', dec_num_parallel='a')",
        TypeError,
        "dec_num_parallel must be int, but got <class 'str'>.",
    ),
    (
        "mslite.Context().group_info_file = 1",
        TypeError,
        "group_info_file must be str, but got <class 'int'>.",
    ),
    (
        "mslite.Context().ascend.provider = 1",
        TypeError,
        "ascend_provider must be str, but got <class 'int'>.",
    ),
    ("mslite.Context().gpu.provider = 1", TypeError, "gpu_provider must be str, but got <class 'int'>."),
    (
        "mslite.Context().ascend.rank_id = 'a'",
        TypeError,
        "ascend_rank_id must be int, but got <class 'str'>.",
    ),
    ("mslite.Context().ascend.rank_id = -1", ValueError, "ascend_rank_id must be a non-negative int."),
    ("mslite.Tensor(shape=3)", TypeError, "shape must be list or tuple, but got <class 'int'>."),
    ("mslite.Tensor(shape=['a'])", TypeError, "shape element must be int, but got <class 'str'> at index 0."),
    ("mslite.Tensor(dtype=3)", TypeError, "dtype must be DataType, but got <class 'int'>."),
    ("mslite.Tensor(device=3)", TypeError, "device must be str, but got <class 'int'>."),
    (
        "mslite.Tensor(np.ones(3, np.float32), shape=[4])",
        TypeError,
        "user set shape is not equal numpy shape, user shape: [4], numpy shape is: (3,).",
    ),
    (
        "mslite.Tensor(np.ones(3, np.float32), dtype=mslite.DataType.INT8)",
        TypeError,
        "user set dtype is not equal numpy dtype, user dtype: DataType.INT8, numpy dtype is: float32.",
    ),
    ("mslite.Tensor(np.array(['a']))", TypeError, "Unsupported numpy dtype value <U1"),
]


def test_every_case_has_an_answer() -> None:
    assert set(questions.CASES) == set(ANSWERS)
    assert len(ANSWERS) > 700


@pytest.mark.parametrize("first", range(0, len(questions.CASES), TOGETHER))
def test_same_answer(first: int, tmp_path: Path) -> None:
    """Some of the questions: for one alone, pytest would take longer than the answer."""
    wrong = {}
    for case in list(questions.CASES)[first : first + TOGETHER]:
        try:
            check_answer(case, tmp_path / "file")
        except AssertionError as error:
            wrong[case] = str(error)
    assert not wrong


def check_answer(case: str, file: Path) -> None:
    file.write_bytes(b"no model\n")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        found = questions.answer(case, ranks, np, str(file))
    expected = ANSWERS[case]
    if expected == "AttributeError: can't set attribute":
        assert found.startswith("AttributeError: ")  # the words are Python's, which differ by version
        return
    if expected.startswith("name: "):
        expected += "\ndevice: None:-1."  # later versions of Tensor print their device too
    for earlier, later in LATER.items():
        text = later if isinstance(later, str) else later["resize" if ".resize(" in case else "predict"]
        expected = expected.replace(earlier, text)
    kind, _, words = expected.partition(": ")
    if kind not in {"TypeError", "ValueError", "RuntimeError"}:
        assert found == expected
        return
    own, _, message = found.partition(": ")
    assert issubclass(getattr(builtins, own, None) or _as_runtime_error(own), getattr(builtins, kind)), found
    if "() " in words:  # Python's own words, which begin with the class in later versions
        assert words in message
        return
    for code in CODES:
        words = words.removesuffix(code)
    # `ranks` may say more than the original.
    assert message.startswith(words) or (words == "predict failed!" and words in message)
    if kind == "RuntimeError" and (expected.endswith(CODES) or words.endswith("!")):
        assert len(message) > len(words) + 10


def _as_runtime_error(name: str) -> type[Exception]:
    """What the API makes of an error of ours."""
    return type(runtime_error("", getattr(errors, name)))


@pytest.fixture(scope="module")
def built() -> ranks.Model:
    model = ranks.Model()
    model.build_from_file(questions.A_MODEL, ranks.ModelType.MINDIR)
    return model


@pytest.mark.parametrize(("case", "kind", "text"), NEWER)
def test_texts_of_later_versions(
    case: str, kind: type[Exception], text: str, built: ranks.Model, tmp_path: Path
) -> None:
    file = tmp_path / "file"
    file.write_bytes(b"no model\n")
    names = {"mslite": ranks, "np": np, "a_file": str(file), "built": built}
    with pytest.raises(kind) as caught, warnings.catch_warnings():
        warnings.simplefilter("ignore")
        exec(case, names)
    assert text in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize("case", ["mslite.Model().predict([])", "mslite.Model().resize([], [])"])
def test_runtime_errors_are_runtime_errors(case: str) -> None:
    with pytest.raises(RuntimeError):
        eval(case, {"mslite": ranks})


def test_model_type_has_onnx_beside_the_originals() -> None:
    assert [one.name for one in ranks.ModelType] == ["MINDIR", "MINDIR_LITE", "ONNX"]
