"""JSON and YAML files written by people: read strictly, with errors that name the file and the place.

Only plain data comes back (dict, list, str, int, float, bool, None). Refused, each with one sentence: a key
given twice, YAML anchors (a few lines of which can stand for gigabytes), YAML tags but for those of plain
data, nesting beyond `MAX_DEPTH`, files beyond the size allowed, text that is not UTF-8, and numbers that JSON
does not have.
"""

from __future__ import annotations

import json
import math
import re
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Literal, NamedTuple

from sharding.errors import ShardrunError, SliceError

if TYPE_CHECKING:
    import yaml

MAX_BYTES = 4 * 2**20
MAX_DEPTH = 32
_YAML = "tag:yaml.org,2002:"
_TAGS = {"str": "text", "int": "integer", "float": "number", "bool": "truth value", "null": "null"}
"""Tags of plain values, and what they are called."""
_QUOTES = "put text that begins with * or & in quotes"


class DocumentError(SliceError):
    """A file that steers slicing, or a saved plan, does not say what it should."""


def read_document(
    path: str | Path, what: str, error: type[ShardrunError] = DocumentError, *, max_bytes: int = MAX_BYTES
) -> tuple[object, Literal["json", "yaml"]]:
    """The data of a JSON or YAML file and which it is; ``what`` names its kind in messages. Raises ``error``.

    The name's ending says which it is, else the first character.
    """
    text = read_text(Path(path), what, error, max_bytes)
    suffix = Path(path).suffix.lower()
    json_text = suffix == ".json" or (suffix not in {".yaml", ".yml"} and text.lstrip()[:1] == "{")
    kind: Literal["json", "yaml"] = "json" if json_text else "yaml"
    try:
        return parse(text, kind), kind
    except RecursionError:
        raise error(f"{path}: this {what} is nested deeper than {MAX_DEPTH} levels") from None
    except ValueError as problem:
        raise error(f"{path}: this {what} cannot be read: {problem}") from None


def parse(text: str, kind: Literal["json", "yaml"]) -> object:
    """The data of a text. Raises `ValueError` with one line that says what is wrong, and `RecursionError` for
    nesting beyond `MAX_DEPTH`."""
    try:
        data = _parse_json(text) if kind == "json" else _parse_yaml(text)
        _check_plain(data, "$", 0)
    except (ValueError, OverflowError, TypeError) as problem:
        raise ValueError(" ".join(str(problem).split()) or type(problem).__name__) from None
    return data


def quote(value: object, limit: int = 80) -> str:
    """A value as JSON, shortened, for an error message."""
    try:
        text = json.dumps(value, ensure_ascii=False, default=repr)
    except (TypeError, ValueError, RecursionError):
        text = type(value).__name__
    return text if len(text) <= limit else text[: limit - 3] + "..."


def read_text(path: Path, what: str, error: type[ShardrunError], max_bytes: int = MAX_BYTES) -> str:
    """The text of a regular UTF-8 file of at most so many bytes. Raises ``error``."""
    try:
        status = path.stat()
        if not stat.S_ISREG(status.st_mode):
            raise error(f"{path}: expected a {what} in a regular file, found a folder or device")
        if status.st_size > max_bytes:
            raise error(f"{path}: a {what} has at most {max_bytes} bytes, found {status.st_size}")
        with path.open("rb") as file:
            return file.read(max_bytes + 1).decode("utf-8-sig")
    except OSError as problem:
        from sharding.common.nearby import reason, shown

        raise error(f"{shown(path)}: cannot read this {what}: {reason(path, problem)}") from None
    except UnicodeDecodeError as problem:
        raise error(f"{path}: a {what} is UTF-8 text, found another byte at offset {problem.start}") from None
    except ValueError:  # a NUL in the name
        raise error(f"{str(path)!r} is not a file name; expected a {what}") from None


def _parse_json(text: str) -> object:
    def pairs(items: list[tuple[str, object]]) -> dict[str, object]:
        result: dict[str, object] = {}
        for key, value in items:
            if key in result:
                raise ValueError(f"the key {quote(key)} is given twice in one object")
            result[key] = value
        return result

    data: object = json.loads(text, object_pairs_hook=pairs, parse_int=_whole)
    return data


def _whole(digits: str) -> int:
    try:
        return int(digits)
    except ValueError:  # Python's limit, in its own words
        raise ValueError(f"{quote(digits, 40)} has more digits than a number may have") from None


class _NotOfSixties(NamedTuple):
    """A pattern of plain text that is a number (or truth value, or null), but for numbers of base 60."""

    pattern: re.Pattern[str]

    def match(self, text: str) -> re.Match[str] | None:
        return None if ":" in text else self.pattern.match(text)


def _parse_yaml(text: str) -> object:
    import yaml

    base: type[yaml.SafeLoader] = getattr(yaml, "CSafeLoader", yaml.SafeLoader)

    class Loader(base):  # type: ignore[valid-type,misc]  # the base is chosen at run time: C where PyYAML has it
        # Dates stay text: JSON has none, and a host or version may look like one. So
        # does 1:30, which is 90 to YAML 1.1 and to nobody else.
        yaml_implicit_resolvers = {  # noqa: RUF012  # PyYAML's own class attribute
            first: [
                (tag, _NotOfSixties(pattern))
                for tag, pattern in entries
                if not tag.endswith((":timestamp", ":merge"))
            ]
            for first, entries in yaml.SafeLoader.yaml_implicit_resolvers.items()
        }

        def construct_object(self, node: yaml.Node, deep: bool = False) -> object:
            try:
                return super().construct_object(node, deep)
            except (LookupError, AttributeError, ValueError, OverflowError) as problem:
                if not isinstance(node, yaml.ScalarNode):
                    raise
                # PyYAML looks at the characters of what the tag says is a number, be there any or not.
                tag = str(node.tag).rpartition(":")[2]
                raise _at(node, f"{quote(node.value)} is no {_TAGS.get(tag, tag)}") from problem

        def construct_mapping(self, node: yaml.MappingNode, deep: bool = False) -> object:
            seen = set()
            for key_node, _ in node.value:
                key = self.construct_object(key_node, deep=True)
                if not isinstance(key, str):
                    raise _at(key_node, f"keys are text, found {quote(key)}")
                if key == "<<" and not key_node.style:
                    merging = "<< merges what anchors name, which are not allowed; write the keys out"
                    raise _at(key_node, merging)
                if key in seen:
                    raise _at(key_node, f"the key {quote(key)} is given twice")
                seen.add(key)
            return super().construct_mapping(node, deep)

    try:
        depth = 0
        for event in yaml.parse(text, Loader=Loader):
            if isinstance(event, yaml.AliasEvent):
                raise _at(event, f"anchors and aliases are not allowed; {_QUOTES}")
            _check_tag(event)
            if isinstance(event, (yaml.MappingStartEvent, yaml.SequenceStartEvent)):
                depth += 1
                if depth > MAX_DEPTH:
                    raise RecursionError
            elif isinstance(event, (yaml.MappingEndEvent, yaml.SequenceEndEvent)):
                depth -= 1
        data: object = yaml.load(text, Loader=Loader)  # derived from SafeLoader
        return data
    except yaml.YAMLError as problem:
        raise ValueError(_yaml_problem(problem)) from None


def _at(place: yaml.Event | yaml.Node, problem: str) -> ValueError:
    return ValueError(f"line {place.start_mark.line + 1 if place.start_mark else '?'}: {problem}")


def _check_tag(event: yaml.Event) -> None:
    """Raises `ValueError` for a tag of a YAML event that is not of plain data, or of another kind of it."""
    import yaml

    tag = getattr(event, "tag", None)
    if tag in {None, "!"}:
        return
    others: dict[type[yaml.Event], str] = {yaml.MappingStartEvent: "map", yaml.SequenceStartEvent: "seq"}
    allowed = {others[type(event)]} if type(event) in others else set(_TAGS)
    if tag.removeprefix(_YAML) not in allowed or not tag.startswith(_YAML):
        shown = f"!!{tag.removeprefix(_YAML)}" if tag.startswith(_YAML) else tag
        raise _at(event, f"the tag {quote(shown)} is not allowed here; leave it out")


def _yaml_problem(problem: Exception) -> str:
    mark = getattr(problem, "problem_mark", None)
    text = getattr(problem, "problem", None) or getattr(problem, "reason", None) or "it is not YAML"
    if re.search("alias|anchor", getattr(problem, "context", None) or ""):
        text = f"{text}; {_QUOTES}"
    return f"line {mark.line + 1}, column {mark.column + 1}: {text}" if mark else str(text)


def _check_plain(value: object, path: str, depth: int) -> None:
    if depth > MAX_DEPTH:
        raise RecursionError
    if isinstance(value, dict):
        for key, item in value.items():
            _check_plain(key, f"a key at {path}", depth + 1)
            _check_plain(item, f"{path}.{key}", depth + 1)
    elif isinstance(value, list):
        for index, item in enumerate(value):
            _check_plain(item, f"{path}[{index}]", depth + 1)
    elif isinstance(value, float) and not math.isfinite(value):
        raise ValueError(f"{path}: expected a finite number, found {value}")
    elif isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ValueError(f"{path}: this text holds half of a surrogate pair") from None
    elif not isinstance(value, (int, float, bool, type(None))):
        raise ValueError(
            f"{path}: expected text, a number, a list or a mapping, found {type(value).__name__}"
        )
