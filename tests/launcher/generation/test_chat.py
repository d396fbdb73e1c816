# ruff: noqa: E501 - the tables of cases stay one line each
"""Chat templates that loop, grow, or reach for what is not theirs end soon, with one sentence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.generation.model import chat_text
from launcher.generation.text import render
from launcher.generation.text.chat import ChatTemplate, find_template

MESSAGES = [{"role": "user", "content": "hello"}]
HARMFUL = {
    "a loop": "{% for a in range(99999) %}{% for b in range(99999) %}{% endfor %}{% endfor %}",
    "a long text": "{% for a in range(99999) %}{{ 'x' * 10000 }}{% endfor %}",
    "a large text": "{{ 'x' * 10000000000 }}",
    "a text that doubles": "{% set ns = namespace(x='x') %}{% for a in range(99) %}{% set ns.x = ns.x + ns.x %}"
    "{% endfor %}{{ ns.x | length }}",
    "a wide format": "{{ '%99999999999d' | format(1) }}",
    "a long range": "{% for a in range(99999999) %}{% endfor %}",
    "a macro of itself": "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
}
REACHING = {
    "a class": "{{ messages.__class__.__mro__ }}",
    "globals": "{{ raise_exception.__globals__ }}",
    "code": "{{ cycler.__init__.__globals__.os.environ }}",
    "a file": "{% include '/etc/passwd' %}",
    "a format": "{{ '{0.__class__.__mro__}'.format(messages) }}",
    "a change": "{{ messages.append(1) }}",
}


def template(source: str, folder: Path = Path("folder")) -> ChatTemplate:
    return ChatTemplate(source, folder / "chat_template.jinja", {"eos_token": "</s>"})


@pytest.mark.parametrize("source", HARMFUL.values(), ids=list(HARMFUL))
def test_templates_without_end(source: str) -> None:
    with pytest.raises(
        ConfigError, match=r"^folder/chat_template.jinja: the chat template cannot be followed: "
    ) as e:
        template(source).text(MESSAGES)
    assert "\n" not in str(e.value) and len(str(e.value)) < 500


@pytest.mark.parametrize("source", REACHING.values(), ids=list(REACHING))
def test_templates_that_reach_for_more(source: str) -> None:
    with pytest.raises(ConfigError, match=r"the chat template cannot be followed: "):
        template(source).text(MESSAGES)


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ("{% if %}", "line 1: Expected an expression"),
        ("a\n{{ raise_exception('no system message') }}", "no system message"),
        ("{{ absent.name }}", "'absent' is undefined"),
    ],
)
def test_templates_that_refuse(source: str, message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        template(source).text(MESSAGES)


@pytest.mark.parametrize("messages", [[], {}, None, ["x"], [{"content": "x"}], [{"role": 1}]])
def test_messages_that_are_none(messages: Any) -> None:
    with pytest.raises(ConfigError, match="expected"):
        template("{{ messages }}").text(messages)


def test_messages_that_are_nested_too_deep() -> None:
    content: Any = "x"
    for _ in range(5000):
        content = [content]
    with pytest.raises(ConfigError, match="the messages are no plain data: maximum recursion depth"):
        template("{{ messages }}").text([{"role": "user", "content": content}])


def test_what_templates_may_do() -> None:
    """As they are written: filters, namespaces, macros, dates, tools."""
    source = (
        "{%- set ns = namespace(n=0) -%}{%- macro f(x) -%}[{{ x }}]{%- endmacro -%}"
        "{%- for m in messages -%}{%- set ns.n = ns.n + 1 -%}{{ f(m['content'].strip() | upper) }}{%- endfor -%}"
        "{{ ns.n }}{{ strftime_now('%Y') | length }}{{ tools[0] | tojson(indent=1) }}{{ eos_token }}"
    )
    assert template(source).text(MESSAGES, tools=[{"a": "é"}]) == '[HELLO]14{\n "a": "é"\n}</s>'


def test_what_every_template_is_given() -> None:
    """Templates compare with none, where nothing was given, and undefined is not none."""
    given = "{{ tools is none }} {{ documents is none }} {{ add_generation_prompt }} {{ eos_token }}"
    assert template(given).text(MESSAGES) == "True True True </s>"
    assert template(given).text(MESSAGES, continued=False, documents=[]) == "True False False </s>"


def test_limits_leave_room_for_long_talks() -> None:
    long = [{"role": "user", "content": "x" * 1000}] * 1000
    assert len(template("{% for m in messages %}{{ m.content }}{% endfor %}").text(long)) == 10**6
    assert render.MAX_CHARACTERS > 10**6


def test_where_templates_lie(tmp_path: Path) -> None:
    assert find_template(tmp_path, {}) is None
    config = tmp_path / "tokenizer_config.json"
    config.write_text(
        json.dumps(
            {"chat_template": [{"name": "rag", "template": "r"}, {"name": "default", "template": "d"}]}
        )
    )
    found = find_template(tmp_path, {})
    assert found is not None and (found.source, found.path) == ("d", config)
    config.write_text(json.dumps({"chat_template": "text"}))
    found = find_template(tmp_path, {})
    assert found is not None and found.source == "text"
    (tmp_path / "chat_template.jinja").write_text("file")
    found = find_template(tmp_path, {})
    assert found is not None and found.source == "file"
    (tmp_path / "chat_template.jinja").write_bytes(b"\xff")
    with pytest.raises(ConfigError, match="a chat template is UTF-8 text"):
        find_template(tmp_path, {})
    (tmp_path / "chat_template.jinja").unlink()
    config.write_text('{"chat_template": 5}')
    with pytest.raises(ConfigError, match="chat_template: expected a template's text, found 5"):
        find_template(tmp_path, {})


@pytest.mark.parametrize("kept", ["list", "files"])
def test_messages_with_tools_may_have_a_template_of_their_own(tmp_path: Path, kept: str) -> None:
    """As older tokenizers name several, and newer ones write them beside."""
    plain, tools = "plain", "{{ tools | length }} tools"
    if kept == "list":
        named = [{"name": "tool_use", "template": tools}, {"name": "default", "template": plain}]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
    else:
        (tmp_path / "chat_template.jinja").write_text(plain)
        (tmp_path / "additional_chat_templates").mkdir()
        (tmp_path / "additional_chat_templates" / "tool_use.jinja").write_text(tools)
    found = find_template(tmp_path, {})
    assert found is not None
    messages = [{"role": "user", "content": "x"}]
    assert chat_text(messages, found, [{"type": "function"}]) == "1 tools"
    assert chat_text(messages, found) == chat_text(messages, found, []) == "plain"
    if kept == "list":
        named[0]["template"] = 5  # type: ignore[assignment]
        (tmp_path / "tokenizer_config.json").write_text(json.dumps({"chat_template": named}))
        with pytest.raises(ConfigError, match="expected a template's text, found 5"):
            find_template(tmp_path, {})
