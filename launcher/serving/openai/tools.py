"""Calls of functions in chats: a text that follows the schema of a function's parameters is its arguments."""

from __future__ import annotations

import json
import re
import uuid
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, cast

from launcher.generation.text.grammar import ANY_OBJECT
from launcher.serving.bodies import bad, field_of, needed, said

if TYPE_CHECKING:
    from launcher.serving.openai.calls import CallForm

Json = dict[str, object]
_MOST_TOOLS = 128
_NAME = re.compile(r"[A-Za-z0-9_-]{1,64}")
_NAMED, _ANY, _AUTO = "function", "required", "auto"


@dataclass(frozen=True)
class Tools:
    """The functions that a chat may call, and the one that is called; None: the text says which one."""

    given: list[Json]
    """As the body has them, for the chat template."""
    schema: str | None
    """Of the text; None where the model itself says whether it calls any."""
    name: str | None
    form: CallForm | None = None
    """How it says so."""
    most: int = _MOST_TOOLS
    """Calls in a text."""
    _ids: dict[tuple[int, int], str] = field(default_factory=dict)

    def calls(self, index: int, text: str, *, begun: bool = False) -> tuple[str | None, list[Json]]:
        """What a text says, and the calls in it; none where it cannot be said which: it was cut off, or is
        too deep. ``begun``: this is the rest of a text of which something was told."""
        if self.form is not None:
            names = {_name_of(tool) for tool in self.given}
            said, found = self.form.calls(text, names, begun=begun)
            calls = [self._call(index, *one, number=number) for number, one in enumerate(found[: self.most])]
            return said or (None if calls else ""), calls
        if self.name is not None:
            return None, [self._call(index, self.name, text)]
        try:
            whole = json.loads(text)
            arguments = json.dumps(whole["arguments"], ensure_ascii=False)
        except (ValueError, RecursionError):
            return text, []
        return None, [self._call(index, whole["name"], arguments)]

    def _call(self, index: int, name: str, arguments: str, number: int = 0) -> Json:
        own = self._ids.setdefault((index, number), f"call_{uuid.uuid4().hex}")
        return {"id": own, "type": _NAMED, "function": {"name": name, "arguments": arguments}}

    def reason(self, ended: str, *, called: bool) -> str:
        """Why a text of these ended, as the protocol has it: a call that was asked for by name stops, and so
        does what is no call, such as a text that a stop text has cut off."""
        return "tool_calls" if ended == "stop" and called and self.name is None else ended


def tools_of(body: Mapping[str, object]) -> Tools | None:
    """What a body says of functions; None where none can be called. Raises `RefusalError`."""
    tools, choice = field_of(body, "tools", list), body.get("tool_choice")
    if not tools:
        if isinstance(choice, dict | list) or choice not in {None, "none", "auto"}:
            raise bad("tool_choice: there are no tools; give some, or leave it out")
        return None
    if len(tools) > _MOST_TOOLS:
        raise bad(f"tools: expected at most {_MOST_TOOLS}, found {len(tools)}")
    schemas: dict[str, Json] = {}
    for number, tool in enumerate(tools):
        name, schema = _function(tool, f"tools[{number}].")
        if name in schemas:
            raise bad(f"tools[{number}].function.name: {said(name)} is there twice")
        schemas[name] = schema
    if choice == "none":
        return None
    if choice == _ANY:
        return Tools(tools, _text(lambda: _any_of(schemas)), None)
    if isinstance(choice, dict) and choice.get("type") == _NAMED:
        wanted = needed(needed(choice, _NAMED, dict, "tool_choice."), "name", str, "tool_choice.function.")
        if wanted not in schemas:
            raise bad(f"tool_choice.function.name: there is no tool {said(wanted)}")
        return Tools(tools, _text(lambda: schemas[wanted]), wanted)
    if choice not in {None, _AUTO}:
        raise bad(f"tool_choice: expected auto, required, none or a function, found {said(choice)}")
    return Tools(tools, None, None, most=1 if body.get("parallel_tool_calls") is False else _MOST_TOOLS)


def shaped(tools: Tools, form: CallForm | None) -> Tools:
    """The same where the model itself says whether it calls any, in a form that is known. Raises
    `RefusalError` where none is."""
    if form is None:
        raise bad(
            "tool_choice: expected required, none or a function, found auto: the model's chat template does "
            "not show in JSON how a call is written"
        )
    return replace(tools, form=form)


def _name_of(tool: Json) -> str:
    return str(cast("Json", tool[_NAMED])["name"])


def _text(schema: Callable[[], Json]) -> str:
    try:
        return json.dumps(schema())
    except RecursionError:
        raise bad("tools: the schema of a function's parameters is too deep; simplify it") from None


def _function(tool: object, where: str) -> tuple[str, Json]:
    """Name, and schema of the parameters, of a tool."""
    if not isinstance(tool, dict) or tool.get("type") != _NAMED:
        raise bad(f"{where}type: expected a function, found {said(tool)}")
    function, where = needed(tool, _NAMED, dict, where), f"{where}function."
    name = needed(function, "name", str, where)
    if not _NAME.fullmatch(name):
        raise bad(f"{where}name: expected 1 to 64 letters, digits, _ and -, found {said(name)}")
    field_of(function, "description", str, where)
    field_of(function, "strict", bool, where)
    schema = field_of(function, "parameters", dict, where)
    return name, json.loads(ANY_OBJECT) if schema is None else schema


def _any_of(schemas: Mapping[str, Json]) -> Json:
    """The schema of a call of any of these."""
    calls = [
        {
            "type": "object",
            "properties": {"name": {"const": name}, "arguments": {"$ref": f"#/$defs/{name}"}},
            "required": ["name", "arguments"],
            "additionalProperties": False,
        }
        for name in schemas
    ]
    return {
        "$defs": {name: _moved(schema, f"#/$defs/{name}") for name, schema in schemas.items()},
        "anyOf": calls,
    }


def _moved(schema: object, place: str) -> object:
    """The same, where it stands at a place of another schema."""
    if isinstance(schema, list):
        return [_moved(item, place) for item in schema]
    if not isinstance(schema, dict):
        return schema
    found = {}
    for key, value in schema.items():
        inner = key == "$ref" and isinstance(value, str) and (value == "#" or value.startswith("#/"))
        found[key] = f"{place}{value[1:]}" if inner else _moved(value, place)
    return found
