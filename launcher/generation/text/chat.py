"""Chat templates: messages as the text that a model expects."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.common.documents import quote, read_text
from launcher.errors import ConfigError
from launcher.generation.text import render
from launcher.generation.text.configs import TOKENIZER_CONFIG, is_there, read_json
from sharding.common.text import one_line, shortened

JINJA, JSON = "chat_template.jinja", "chat_template.json"
MORE = "additional_chat_templates"
"""The folder beside `JINJA` with templates for other uses, each under its name."""
_DEFAULT, _TOOLS = "default", "tool_use"
_WALL_SECONDS = 30.0
"""Of waiting: longer than the processor time that it may take, for a machine that is busy."""
_BOOT = (
    "import json,sys; from importlib.util import module_from_spec, spec_from_file_location as at; "
    "spec = at('render', sys.argv[1]); module = module_from_spec(spec); spec.loader.exec_module(module); "
    "module.main()"
)


@dataclass(frozen=True)
class ChatTemplate:
    """A template, and the file it came from. ``special``: special tokens by what they are for;
    ``with_tools``: the model's other template, where it has one for messages with tools."""

    source: str
    path: Path
    special: Mapping[str, str]
    with_tools: str | None = None

    def text(
        self, messages: Sequence[Mapping[str, object]], *, continued: bool = True, **more: object
    ) -> str:
        """Messages (each with ``role`` and ``content``) as one text, with the beginning of an answer if it is
        to be ``continued``. ``more``: other variables of the template, such as ``tools``.

        Raises `ConfigError` for messages that are none, and for templates that refuse them, loop for ever, or
        reach for what is not theirs.
        """
        check_messages(messages)
        variables = {
            **self.special,
            "tools": None,
            "documents": None,
            "messages": [dict(item) for item in messages],
            "add_generation_prompt": continued,
            **more,
        }
        source = self.with_tools if self.with_tools is not None and variables["tools"] else self.source
        answer = _ask({"path": sys.path, "template": source, "variables": variables}, self.path)
        if "absent" in answer:
            raise ConfigError(
                f"{self.path} is read by the package jinja2, which is not installed: `pip install "
                "'shardrun[text]'`, or give the prompt as the model expects it"
            )
        if "error" in answer:
            why = shortened(one_line(str(answer["error"])), 300)
            raise ConfigError(f"{self.path}: the chat template cannot be followed: {why}")
        return str(answer["text"])


def check_messages(messages: object) -> None:
    """Raises `ConfigError` unless these are messages."""
    if not isinstance(messages, list | tuple) or not messages:
        raise ConfigError(f"expected a list of messages, found {quote(messages)}")
    for item in messages:
        if not isinstance(item, Mapping) or not isinstance(item.get("role"), str):
            raise ConfigError(
                f'expected messages such as {{"role": "user", "content": "..."}}, found {quote(item)}'
            )


def _ask(request: Mapping[str, object], path: Path) -> dict[str, object]:
    """What a process of its own makes of a template."""
    try:
        text = json.dumps(request)
    except (TypeError, ValueError, RecursionError) as error:
        raise ConfigError(f"the messages are no plain data: {error}") from None
    command = [sys.executable, "-I", "-c", _BOOT, render.__file__]
    try:
        done = subprocess.run(
            command, input=text, capture_output=True, text=True, encoding="utf-8",
            timeout=_WALL_SECONDS, check=False,
        )  # fmt: skip
    except subprocess.TimeoutExpired:
        done = None
    if done is None or done.returncode < 0:
        raise ConfigError(
            f"{path}: the chat template cannot be followed: it did not end within {render.SECONDS} s of "
            "processor time"
        )
    try:
        answer = json.loads(done.stdout)
    except ValueError:
        why = shortened(one_line(done.stderr[-300:]), 200) or f"exit code {done.returncode}"
        raise ConfigError(f"{path}: the chat template cannot be followed: {why}") from None
    return answer if isinstance(answer, dict) else {"error": "no answer"}


def find_template(folder: Path, special: Mapping[str, str]) -> ChatTemplate | None:
    """The chat template of a model folder, if it has one."""
    path = folder / JINJA
    if is_there(path):
        other = folder / MORE / f"{_TOOLS}.jinja"
        with_tools = _read(other) if is_there(other) else None
        return ChatTemplate(_read(path), path, special, with_tools)
    for path in (folder / JSON, folder / TOKENIZER_CONFIG):
        source, with_tools = read_json(path).get("chat_template"), None
        if isinstance(source, list):  # several, by name
            named = {item.get("name"): item.get("template") for item in source if isinstance(item, dict)}
            source, with_tools = named.get(_DEFAULT), named.get(_TOOLS)
        if source is None:
            continue
        tools = None if with_tools is None else _checked(with_tools, path)
        return ChatTemplate(_checked(source, path), path, special, tools)
    return None


def _checked(source: object, path: Path) -> str:
    if not isinstance(source, str):
        raise ConfigError(f"{path}: chat_template: expected a template's text, found {quote(source)}")
    return source


def _read(path: Path) -> str:
    return read_text(path, "chat template", ConfigError)
