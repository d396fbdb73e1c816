"""YAML and JSON that hold other things than plain data: one sentence each, with the line."""

from __future__ import annotations

from pathlib import Path

import pytest

from launcher import cli
from ranks.errors import IdentityError
from ranks.identity.rank_file import identity_from_table
from sharding.common.documents import DocumentError, parse, read_document

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
