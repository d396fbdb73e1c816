"""YAML and JSON that hold other things than plain data: one sentence each, with the line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher import cli
from ranks.errors import IdentityError
from ranks.identity.rank_file import identity_from_table
from sharding.common.documents import MAX_DEPTH, DocumentError, parse, quote, read_document

VALUES = {
    '!!int ""': '"" is no integer', '!!float ""': '"" is no number', '!!bool ""': '"" is no truth value',
    "!!bool perhaps": '"perhaps" is no truth value', '!!int "-"': '"-" is no integer',
    '!!int "_"': '"_" is no integer', '!!int "+"': '"+" is no integer', '!!int "0x"': '"0x" is no integer',
    '!!float "."': '"." is no number', '!!float "1:x"': '"1:x" is no number',
    "!<tag:yaml.org,2002:int> ''": '"" is no integer',
}  # fmt: skip
TAGS = [
    *("!!timestamp x", '!!timestamp "2020-01-01"', "!!binary x", '!!binary "%%"', "!!set {a}", "!!set x"),
    *("!!omap [a: 1]", "!!omap x", "!!pairs x", "!!map x", "!!map [a]", "!!seq x", "!!seq {a: 1}"),
    *("!!str [a]", "!!int {a: 1}", "!!merge x", "!!value x", "!mine x", "!mine [x]", "!mine {x: 1}"),
    *("!!python/object/apply:os.system [id]", "!!python/name:os.system", "!<> x", "!!x x"),
]
GOOD = {"!!str 1": "1", "!!int '3'": 3, "!!float 1": 1.0, "!!bool yes": True, "!!seq [1]": [1],
        "!!map {a: 1}": {"a": 1}, "! 1": 1, "!!null ''": None, "2020-01-01": "2020-01-01"}  # fmt: skip


@pytest.mark.parametrize("place", ["{}", "a: {}", "- {}", "- b:\n    - {}"])
@pytest.mark.parametrize(("text", "said"), [*VALUES.items(), *((tag, "is not allowed here") for tag in TAGS)])
def test_a_tag_that_is_not_of_plain_data(tmp_path: Path, text: str, said: str, place: str) -> None:
    if text == "!<> x":
        said = "expected"  # the scanner's own words
    path = tmp_path / "d.yaml"
    path.write_text(place.format(text))
    with pytest.raises(DocumentError) as error:
        read_document(path, "job file")
    message = str(error.value)
    assert message.startswith(f"{path}: this job file cannot be read: line ") and said in message
    assert f"line {place.count(chr(10)) + 1}" in message and "\n" not in message


@pytest.mark.parametrize(("text", "value"), GOOD.items())
def test_tags_of_plain_data(text: str, value: object) -> None:
    assert parse(text, "yaml") == value and type(parse(text, "yaml")) is type(value)


@pytest.mark.parametrize("text", ['!!int ""', "!!timestamp x", "&a [*a]", "a: 1\na: 2", "{<<: 1}", "\x00"])
def test_the_same_reader_reads_rank_tables_and_job_files(
    tmp_path: Path, text: str, capsys: pytest.CaptureFixture[str]
) -> None:
    path = tmp_path / "t.yaml"
    path.write_text(text)
    with pytest.raises(IdentityError, match=r"this rank table cannot be read: ") as error:
        identity_from_table(path, 0)
    assert "\n" not in str(error.value)
    for arguments in (["table", "check", str(path)], ["run", "--config", str(path)]):
        assert cli.main(arguments) == 2
        said = capsys.readouterr().err
        assert said.count("\n") == 1 and str(path) in said and "internal" not in said


def test_a_few_lines_that_stand_for_gigabytes(tmp_path: Path) -> None:
    lines = ["a0: &a0 [x, x, x, x, x, x, x, x, x]"]
    lines += [f"a{n}: &a{n} [{', '.join([f'*a{n - 1}'] * 9)}]" for n in range(1, 12)]
    path = tmp_path / "t.yaml"
    path.write_text("\n".join(lines))
    with pytest.raises(IdentityError, match="anchors and aliases are not allowed"):
        identity_from_table(path, 0)


PLAIN = {
    "1:30": "1:30", "22:22": "22:22", "1:30.5": "1:30.5", "2020-01-01 10:00:00": "2020-01-01 10:00:00",
    "10": 10, "1_000": 1000, "0x10": 16, "1.5": 1.5, "yes": True, "~": None, "'<<'": "<<",
}  # fmt: skip


@pytest.mark.parametrize(("text", "value"), PLAIN.items())
def test_times_and_dates_are_text(text: str, value: object) -> None:
    found = parse(text, "yaml")
    assert found == value and type(found) is type(value)


@pytest.mark.parametrize(
    ("kind", "opens", "closes"), [("yaml", "[", "]"), ("json", "[", "]"), ("json", '{"a":', "}")]
)
def test_how_deep_data_may_be_nested(kind: Any, opens: str, closes: str) -> None:
    deepest = f"{opens * MAX_DEPTH}1{closes * MAX_DEPTH}"
    assert parse(deepest, kind)
    with pytest.raises(RecursionError):
        parse(f"{opens}{deepest}{closes}", kind)
    beside = ", ".join(["[[1]]"] * (MAX_DEPTH + 1))
    assert parse(f"[{beside}]", kind) == [[[1]]] * (MAX_DEPTH + 1)


def test_a_key_that_would_merge_is_meant_where_it_is_in_quotes() -> None:
    assert parse("'<<': 1", "yaml") == {"<<": 1}
    with pytest.raises(ValueError, match="<< merges what anchors name"):
        parse("<<: {a: 1}", "yaml")


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ('{"a": 1, "a": 2}', 'the key "a" is given twice in one object'),
        ("NaN", r"\$: expected a finite number, found nan"),
        ('{"a": [0, Infinity]}', r"\$\.a\[1\]: expected a finite number, found inf"),
        ('{"a": "\\ud800"}', r"\$\.a: this text holds half of a surrogate pair"),
        ('{"\\ud800": 1}', r"a key at \$: this text holds half"),
        ("[" + "9" * 5000 + "]", "has more digits than a number may have"),
    ],
)
def test_json_that_is_not_plain(text: str, said: str) -> None:
    with pytest.raises(ValueError, match=said) as error:
        parse(text, "json")
    assert "\n" not in str(error.value) and len(str(error.value)) < 200


@pytest.mark.parametrize(
    ("name", "text", "kind"),
    [
        ("a.json", "[1]", "json"), ("a.JSON", "[1]", "json"), ("a.yaml", '{"a": 1}', "yaml"),
        ("a.yml", "[1]", "yaml"), ("a", ' {"a": 1}', "json"), ("a.conf", "[1]", "yaml"), ("a", "", "yaml"),
    ],
)  # fmt: skip
def test_the_name_says_which_it_is_else_the_first_character(
    tmp_path: Path, name: str, text: str, kind: str
) -> None:
    (tmp_path / name).write_bytes(b"\xef\xbb\xbf" + text.encode())
    assert read_document(tmp_path / name, "file")[1] == kind


def test_how_large_a_file_may_be(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_text('"' + "x" * 98 + '"')
    assert read_document(path, "file", max_bytes=100)[0] == "x" * 98
    with pytest.raises(DocumentError, match="a file has at most 99 bytes, found 100"):
        read_document(path, "file", max_bytes=99)
    path.write_bytes(b'"\xff"')
    with pytest.raises(DocumentError, match="UTF-8 text, found another byte at offset 1"):
        read_document(path, "file")


@pytest.mark.parametrize(("length", "shown"), [(8, '"xxxxxxxx"'), (9, '"xxxxxx...')])
def test_what_messages_quote_is_cut(length: int, shown: str) -> None:
    assert quote("x" * length, 10) == shown and len(shown) == 10


def test_values_that_are_no_json_are_told_by_their_kind() -> None:
    circle: list[Any] = []
    circle.append(circle)
    assert quote(circle) == "list"
    assert quote({(1, 2): 3}) == "dict"
    assert quote({1, 2}) == '"{1, 2}"'
    assert quote("x" * 78) == '"' + "x" * 78 + '"'
    assert quote("x" * 79) == '"' + "x" * 76 + "..."
