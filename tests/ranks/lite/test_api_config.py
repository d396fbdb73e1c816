"""Configuration files and dictionaries of `Model.build_from_file`."""

import os
import warnings
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from ranks import Context
from ranks.errors import ShardrunError
from ranks.lite.options import config
from ranks.weights.shared.request import Attach, Share


def write(folder: Path, text: str | bytes) -> str:
    path = folder / "config_file.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    return str(path)


def test_names_that_are_too_long(tmp_path: Path) -> None:
    name = "a" * 5000
    with pytest.raises(ShardrunError, match="config_path does not exist! No file"):
        config.load(name)
    with pytest.raises(ValueError, match="config_path does not exist!"):
        Context().parallel.config_path = name
    file = write(tmp_path, f"[cpu_context]\nvariable_weights_file = {name}\n")
    with pytest.raises(ShardrunError, match=r"variable_weights_file 'aaa.* (is no file|cannot be read)"):
        config.load(file)


def test_nothing_given() -> None:
    assert config.load("") == config.Options("", "")
    assert config.load("", {}) == config.Options("", "")


def test_file_as_the_tutorials_write_it(tmp_path: Path) -> None:
    text = "# networking\n[ascend_context]\nrank_table_file=/tables/table.json\n\n"
    text += "[ms_cache]\nserialize_path = /cache\n"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        options = config.load(write(tmp_path, text))
    assert options == config.Options("/tables/table.json", "/cache")


def test_byte_order_mark_crlf_and_percent_signs(tmp_path: Path) -> None:
    text = b"\xef\xbb\xbf[ascend_context]\r\nrank_table_file=/a%b/100%.json\r\n"
    assert config.load(write(tmp_path, text)).rank_table_file == "/a%b/100%.json"


def test_keys_in_the_case_of_the_documents(tmp_path: Path) -> None:
    path = write(tmp_path, "[ms_cache]\nserialize_Path=/a\n[ascend_context]\nRANK_TABLE_FILE=/b\n")
    assert config.load(path, {"ms_cache": {"Serialize_Path": "/c"}}) == config.Options("/b", "/c")


@pytest.mark.parametrize(
    ("written", "read"),
    [
        ('"a b.json"', "a b.json"),
        ("'a.json'", "a.json"),
        (' "a.json" ', "a.json"),
        ('" a.json "', "a.json"),
        ('""', ""),
        ('"', '"'),
        ("\"a.json'", "\"a.json'"),
        ('a".json', 'a".json'),
        ('"a.json', '"a.json'),
        ('"it\'s.json"', "it's.json"),
        ("'\"a.json\"'", '"a.json"'),
    ],
)
def test_quotes_are_taken_off_once(written: str, read: str, tmp_path: Path) -> None:
    path = write(
        tmp_path, f"[ascend_context]\nrank_table_file={written}\n[ms_cache]\nserialize_path={written}\n"
    )
    assert config.load(path) == config.Options(read, read)
    assert config.load("", {"ms_cache": {"serialize_path": written}}) == config.Options("", read)


def test_quoted_values_of_every_kind(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "update_weight_name_list.txt").write_text('w3\n"w4"\n')
    path = write(
        tmp_path,
        f"""
        [cpu_context]
        variable_weights_list="w1, w2"
        precision_mode="enforce_fp32"
        shareable_weight_pid_list="0, {os.getpid()}"
        [gpu_context]
        variable_weights_list="w5","w,6"
        precision_mode='preferred_fp16'
        [ascend_context]
        variable_weights_file="update_weight_name_list.txt"
        [parallel_runner]
        queue_limit="7"
        [execution_plan]
        op="data_type:float16"
        """.replace("        ", ""),
    )
    options = config.load(path)
    assert options.variable_weights == ("w3", "w4", "w1", "w2", "w5", '"w', '6"')
    assert options.precision_modes == (("cpu", "enforce_fp32"), ("gpu", "preferred_fp16"))
    assert options.sharing == Share((os.getpid(),), "[cpu_context] shareable_weight_pid_list in " + path)
    assert options.queue_limit == 7
    assert options.execution_plan == (("op", "float16"),)
    handle = write(tmp_path, '[gpu_context]\nshareable_weight_mem_handle="-5"\n')
    assert config.load(handle).sharing == Attach(2**64 - 5)


@pytest.mark.parametrize(
    "text", ["a, b", '"a", "b"', "'a','b'", '"a, b"', "['a', 'b']", '["a","b"]', "\"['a', 'b']\"", "a,'b',"]
)
def test_lists_of_names(text: str, tmp_path: Path) -> None:
    path = write(tmp_path, f"[cpu_context]\nvariable_weights_list={text}\n")
    assert config.load(path).variable_weights == ("a", "b")
    given = {"cpu_context": {"variable_weights_list": text}}
    assert config.load("", given).variable_weights == ("a", "b")


def test_dictionary_wins(tmp_path: Path) -> None:
    path = write(tmp_path, "[ascend_context]\nrank_table_file=/a.json\n[ms_cache]\nserialize_path=/cache\n")
    options = config.load(path, {"ascend_context": {"rank_table_file": "/b.json"}})
    assert options == config.Options("/b.json", "/cache")


def test_rank_table_beside_the_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    (tmp_path / "table.json").touch()
    path = write(tmp_path, "[ascend_context]\nrank_table_file=table.json\n")
    assert config.load(path).rank_table_file == str(tmp_path / "table.json")
    (tmp_path / "here" / "table.json").touch()
    assert config.load(path).rank_table_file == "table.json"


def test_unknown_section_and_key_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[ascend_contxt]\nrank_table_file=a\n[ascend_context]\nrank_table=b\n")
    with pytest.warns(UserWarning) as seen:
        assert config.load(path) == config.Options()
    assert sorted(str(one.message) for one in seen) == [
        f"unknown key 'rank_table' of section [ascend_context] in {path} is ignored.",
        f"unknown section [ascend_contxt] in {path} is ignored.",
    ]
    with pytest.warns(
        UserWarning, match=r"unknown key 'a' of section \[ms_cache\] in config_dict is ignored."
    ):
        config.load("", {"ms_cache": {"a": "b"}})


def test_what_a_warning_quotes_is_on_one_line(tmp_path: Path) -> None:
    """A name in a file may hold a terminal's commands."""
    with pytest.warns(UserWarning, match=r"^unknown section \[a\\x1b\[2J\] in .* is ignored\.$"):
        config.load(write(tmp_path, "[a\x1b[2J]\n"))


def test_known_options_without_effect_are_named(tmp_path: Path) -> None:
    path = write(tmp_path, "[gpu_context]\nopt_dims=[2]\ndump_ops=a\n")
    words = r"no effect here: \[gpu_context\] opt_dims, \[gpu_context\] dump_ops."
    with pytest.warns(UserWarning, match=words):
        config.load(path)


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("rank_table_file=a\n", "no section headers"),
        ("[ascend_context]\nrank_table_file\n", "rank_table_file"),
        ("[ascend_context\nrank_table_file=a\n", "no section headers"),
        ("[execution_plan]\nop=data_type:float64\n", "must be data_type:float16 or data_type:float32"),
        (b"\xff\xfe[\0", "is not a text file: byte 0 is not UTF-8"),
        (b"[a]\nb=" + b"c" * config.LARGEST_FILE, "the limit is 1048576"),
    ],
)
def test_malformed_file(text: str | bytes, reason: str, tmp_path: Path) -> None:
    path = write(tmp_path, text)
    with pytest.raises(RuntimeError) as caught:
        config.load(path)
    message = str(caught.value)
    assert message.startswith(f"load configuration failed! Error is {path}")
    assert reason in message
    assert "\n" not in message
    assert isinstance(caught.value, ShardrunError)


def test_missing_file(tmp_path: Path) -> None:
    with pytest.raises(
        RuntimeError, match=r"^build_from_file failed, config_path does not exist! No file '/no'"
    ):
        config.load("/no")
    with pytest.raises(RuntimeError, match=r"config_path does not exist! No file 'a\\x00b'"):
        config.load("a\0b")
    with pytest.raises(RuntimeError, match=r"load configuration failed! Error is .* is not a file"):
        config.load(str(tmp_path))


def test_unreadable_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path, *_: object) -> str:
        raise PermissionError(13, "Permission denied", str(path))

    path = write(tmp_path, "[a]\n")
    monkeypatch.setattr(Path, "read_text", refuse)  # root may read every file
    with pytest.raises(RuntimeError, match="cannot be read: Permission denied"):
        config.load(path)


@pytest.mark.parametrize(
    ("value", "message"),
    [
        (3, "config_dict must be dict, but got <class 'int'>."),
        ([], "config_dict must be dict, but got <class 'list'>."),
        ({1: {}}, "config_dict_key must be str, but got <class 'int'>."),
        ({"a": "b"}, "config_dict_value must be dict, but got <class 'str'>."),
        ({"a": {1: "b"}}, "config_dict_value_key must be str, but got <class 'int'>."),
        ({"a": {"b": 1}}, "config_dict_value_value must be str, but got <class 'int'>."),
    ],
)
def test_dictionary_of_other_types(value: Any, message: str) -> None:
    with pytest.raises(TypeError) as caught:
        config.load("", value)
    assert str(caught.value) == message


LINES = st.one_of(
    st.text(max_size=20),
    st.sampled_from(
        [
            "[ascend_context]",
            "[execution_plan]",
            "[DEFAULT]",
            "[]",
            "[a",
            "a=b",
            "=b",
            "a=",
            " a=b",
            "#c",
            "rank_table_file=x",
        ]
    ),
)


@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
@given(text=st.one_of(st.binary(max_size=60), st.lists(LINES, max_size=6).map("\n".join)))
def test_any_file(text: str | bytes, tmp_path: Path) -> None:
    path = tmp_path / "any.ini"
    path.write_bytes(text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert isinstance(config.load(str(path)), config.Options)
        except RuntimeError as error:
            assert isinstance(error, ShardrunError)
            assert str(error).startswith("load configuration failed! Error is ")


ANYTHING = st.recursive(
    st.one_of(st.none(), st.integers(), st.text(max_size=4), st.binary(max_size=3)),
    lambda inner: st.one_of(
        st.lists(inner, max_size=2),
        st.dictionaries(
            st.one_of(st.text(max_size=4), st.sampled_from(["ascend_context", "ms_cache"])), inner, max_size=3
        ),
        st.dictionaries(st.integers(), inner, max_size=2),
    ),
    max_leaves=6,
)


@given(value=ANYTHING)
def test_any_dictionary(value: Any) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        try:
            assert isinstance(config.load("", value), config.Options)
        except TypeError as error:
            assert str(error).startswith("config_dict")


@given(path=st.text(max_size=12))
def test_any_path(path: str) -> None:
    try:
        config.load(path)
    except RuntimeError as error:
        assert isinstance(error, ShardrunError)
