"""How a model writes calls of functions by itself: as its chat template shows it those that it has made."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Collection, Mapping
from dataclasses import dataclass

from launcher.errors import ConfigError

Json = dict[str, object]
_NAME, _ARGUMENTS, _TEXT = "look_up_a_word", {"word": "zebra"}, "A zebra runs."
_TOOL = {
    "type": "function",
    "function": {
        "name": _NAME,
        "description": "Looks up a word.",
        "parameters": {"type": "object", "properties": {"word": {"type": "string"}}, "required": ["word"]},
    },
}
_DECODER = json.JSONDecoder()


@dataclass(frozen=True)
class CallForm:
    """Calls are objects in JSON, with name and arguments under these keys, one after the other or in a list.
    ``marker`` and ``after`` stand around each; they may be special tokens, which texts do not show."""

    marker: str
    after: str
    name: str
    arguments: str

    def calls(
        self, text: str, known: Collection[str], *, begun: bool = False
    ) -> tuple[str, list[tuple[str, str]]]:
        """What a text says beside its calls, and name and arguments of each; where it holds none, all of it.
        ``known``: the names of functions; ``begun``: as for `certain`."""
        at = text.find(self.marker) if self.marker else -1
        if at < 0 and begun:
            return text, []
        at = max(0, at)
        rest, found = text[at:], list[tuple[str, str]]()
        while True:
            bare = rest.lstrip().removeprefix(self.marker).lstrip(" \n\t[,;")
            if not bare.startswith("{"):
                break
            try:
                value, end = _DECODER.raw_decode(bare)
            except (ValueError, RecursionError):
                break
            if (call := self._call(value, known)) is None:
                break
            found.append(call)
            rest = bare[end:].lstrip(" \n\t]")
            rest = rest[_common(rest, self.after) :]
        if not found:
            return text, []
        return "\n".join(part for part in (text[:at].strip(), rest.strip(" \n\t]")) if part), found

    def _call(self, value: Json, known: Collection[str]) -> tuple[str, str] | None:
        name, arguments = value.get(self.name), value.get(self.arguments)
        if not isinstance(name, str) or name not in known:
            return None
        if isinstance(arguments, str):
            with contextlib.suppress(ValueError, RecursionError):
                arguments = json.loads(arguments)
        if not isinstance(arguments, dict):
            return None
        try:
            return name, json.dumps(arguments, ensure_ascii=False)
        except RecursionError:  # writing them takes more room than reading them did
            return None

    def certain(self, text: str, *, begun: bool) -> int:
        """How many of a growing text's characters belong to no call. ``begun``: some did before these."""
        bare = text.lstrip()
        if not begun and (not bare or bare[0] in "{["):
            return 0
        if not self.marker:
            return len(text)
        at = text.find(self.marker)
        if at < 0:
            longest = min(len(self.marker) - 1, len(text))
            at = len(text) - next((n for n in range(longest, 0, -1) if self.marker.startswith(text[-n:])), 0)
        return at if begun or text[:at].strip() else 0


def _common(text: str, other: str) -> int:
    """How many characters two texts begin alike."""
    return next(
        (at for at, pair in enumerate(zip(text, other, strict=False)) if pair[0] != pair[1]),
        min(len(text), len(other)),
    )


Render = Callable[..., str]


def form_of(render: Render) -> CallForm | None:
    """The form that a chat template shows; None where it shows none, or one that is no JSON. ``render``:
    `launcher.generation.text.chat.ChatTemplate.text`."""
    asked: Json = {"role": "user", "content": "Look it up."}

    def written(*messages: Json) -> str:
        return render([asked, *messages], continued=False, tools=[_TOOL])

    try:
        said, head = written({"role": "assistant", "content": _TEXT}), written()
    except ConfigError:  # the template refuses it
        return None
    if not said.startswith(head) or _TEXT not in said[len(head) :]:
        return None
    head += said[len(head) :].partition(_TEXT)[0]  # who speaks
    for arguments in (_ARGUMENTS, json.dumps(_ARGUMENTS)):
        call = {"id": "abcdef123", "type": "function", "function": {"name": _NAME, "arguments": arguments}}
        try:
            called = written({"role": "assistant", "content": "", "tool_calls": [call]})
        except ConfigError:
            continue
        if called.startswith(head) and (form := _form_in(called[len(head) :])) is not None:
            return form
    return None


def _form_in(text: str) -> CallForm | None:
    before, brace, _ = text.partition("{")
    if not brace:
        return None
    try:
        value, end = _DECODER.raw_decode(text, len(before))
    except (ValueError, RecursionError):
        return None
    name = next((key for key, item in value.items() if item == _NAME), None)
    arguments = next((key for key, item in value.items() if _are_arguments(item)), None)
    if name is None or arguments is None:
        return None
    marker, after = before.strip().removesuffix("[").strip(), text[end:].lstrip(" \n\t]").rstrip()
    return CallForm(marker, after, name, arguments)


def _are_arguments(item: object) -> bool:
    if isinstance(item, str):
        try:
            item = json.loads(item)
        except ValueError:
            return False
    return isinstance(item, Mapping) and item == _ARGUMENTS
