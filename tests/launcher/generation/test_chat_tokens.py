"""What is asked of a model for a chat."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

from launcher.generation.model import LanguageModel


def test_a_chat_adds_no_special_tokens_to_those_of_its_template() -> None:
    asked: list[tuple[tuple[object, ...], dict[str, object]]] = []
    model: Any = SimpleNamespace(
        text_of=lambda messages: f"<s>{messages}", generate=lambda *given, **more: asked.append((given, more))
    )
    LanguageModel.chat(model, "Hello", more=1)
    assert asked == [(("<s>Hello", None), {"inputs": None, "special": False, "more": 1})]
