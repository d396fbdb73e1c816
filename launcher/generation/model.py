"""A language model that is ready: its decoder on ranks, its tokenizer, and how its texts begin and end."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields, replace
from pathlib import Path

from launcher.errors import ConfigError
from launcher.generation.decoder import Arrays, Decoder, Ids
from launcher.generation.engine import Engine
from launcher.generation.folder import ModelFolder
from launcher.generation.generate import Generation, Manner, generate
from launcher.generation.options import GenerateOptions
from launcher.generation.resident import decoder_of
from launcher.generation.stateful import Program, Ranks, StatefulDecoder, program_of
from launcher.generation.streams import EngineLimits
from launcher.generation.text.chat import ChatTemplate, find_template
from launcher.generation.text.tokenizer import Tokenizer, available

Messages = Sequence[Mapping[str, object]]
LIMITS = tuple(item.name for item in fields(EngineLimits))
_TRANSCRIPT = "<|startoftranscript|>"
"""With which a decoder of Whisper begins; GenAI's configuration does not say it."""
Open = Callable[[Path], Program]
"""Starts what computes a model file."""


@dataclass
class LanguageModel:
    """What generates text. Made by `load`; use it in a ``with``, or call `close`."""

    decoder: Decoder
    manner: Manner = field(default_factory=Manner)
    tokenizer: Tokenizer | None = None
    template: ChatTemplate | None = None
    draft: Decoder | None = None
    groups: Sequence[Ranks] = ()
    """What computes its graphs, where that was started for it."""
    _stack: contextlib.ExitStack = field(default_factory=contextlib.ExitStack, repr=False)

    def generate(
        self,
        prompt: str | Sequence[int] | Ids | None,
        options: GenerateOptions | None = None,
        *,
        inputs: Arrays | None = None,
        special: bool = True,
        **more: object,
    ) -> Generation:
        """Continues a text or token ids: see `launcher.generation.generate.generate`."""
        return generate(
            self.decoder, prompt, options,
            tokenizer=self.tokenizer, manner=self.manner, inputs=inputs, draft=self.draft, special=special,
            **more,
        )  # fmt: skip

    def chat(
        self,
        messages: Messages | str,
        options: GenerateOptions | None = None,
        *,
        inputs: Arrays | None = None,
        **more: object,
    ) -> Generation:
        """Answers messages, or one message of a user, through the model's chat template."""
        # The template writes special tokens itself.
        return self.generate(self.text_of(messages), options, inputs=inputs, special=False, **more)

    def engine(self, limits: EngineLimits | None = None, **more: int | None) -> Engine:
        """What generates for many prompts at once: texts join and leave between steps. Close it before the
        model. ``more``: single limits by name, such as ``sequences=16``.

        Raises `ConfigError` for limits under which nothing could be done."""
        if unknown := [name for name in more if name not in LIMITS]:
            raise ConfigError(f"there is no limit {unknown[0]!r} of an engine: there are {', '.join(LIMITS)}")
        settled = replace(limits or EngineLimits(), **more)  # type: ignore[arg-type]  # it checks itself
        return Engine(self.decoder, tokenizer=self.tokenizer, manner=self.manner, limits=settled)

    def text_of(self, messages: Messages | str, tools: Sequence[object] | None = None) -> str:
        """Messages, or one message of a user, as the model's chat template writes them; ``tools``: functions
        that it shows the model. Raises `ConfigError` where there is none."""
        return chat_text(messages, self.template, tools)

    def close(self) -> None:
        """Ends what was started for it; safe to call twice."""
        self._stack.close()

    def __enter__(self) -> LanguageModel:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


def chat_text(
    messages: Messages | str, template: ChatTemplate | None, tools: Sequence[object] | None = None
) -> str:
    """Messages, or one message of a user, as a chat template writes them, with ``tools``. Raises
    `ConfigError` where there is none."""
    if template is None:
        raise ConfigError(
            "the model's folder has no chat template (chat_template.jinja, or chat_template in "
            "tokenizer_config.json): give the prompt as the model expects it"
        )
    if isinstance(messages, str):
        messages = [{"role": "user", "content": messages}]
    return template.text(messages) if tools is None else template.text(messages, tools=tools)


def of_ranks(ranks: Ranks) -> LanguageModel:
    """What generates token ids by ranks that compute a decoder's graph. Raises `ConfigError`."""
    return LanguageModel(decoder_of(program_of(ranks)))


def assemble(
    folder: ModelFolder, start: Callable[[Path], contextlib.AbstractContextManager[Program]]
) -> LanguageModel:
    """The language model of a folder; ``start`` starts what computes one of its graphs. Raises
    `ConfigError`."""
    texts = read_texts(folder)
    with contextlib.ExitStack() as stack:
        decoder = build(folder, lambda path: stack.enter_context(start(path)))
        if texts.tokenizer is not None:
            texts.tokenizer.check(decoder.vocabulary, folder.decoder)
        manner = _settled(folder, texts.tokenizer)
        return LanguageModel(decoder, manner, texts.tokenizer, texts.template, _stack=stack.pop_all())


def build(folder: ModelFolder, start: Open) -> StatefulDecoder:
    """The decoder of a folder."""
    later = None if folder.later is None else start(folder.later)
    encoder = None if folder.encoder is None else start(folder.encoder)
    return decoder_of(
        start(folder.decoder), later, encoder,
        names=folder.names, encoder_names=folder.encoder_names,
        vocabulary=folder.vocabulary, context=folder.context,
    )  # fmt: skip


@dataclass(frozen=True)
class Texts:
    """How a folder's texts become ids, and messages a text; None where it does not say."""

    tokenizer: Tokenizer | None
    template: ChatTemplate | None


def read_texts(folder: ModelFolder) -> Texts:
    """The tokenizer and chat template of a folder, read before anything is started. Without the package of
    tokenizers there is none: token ids need none."""
    tokenizer = None
    if folder.tokenizer is not None and available():
        tokenizer = Tokenizer(folder.tokenizer)
        if folder.vocabulary is not None:
            tokenizer.check(folder.vocabulary, folder.path)
    return Texts(tokenizer, find_template(folder.path, folder.special))


def _settled(folder: ModelFolder, tokenizer: Tokenizer | None) -> Manner:
    """How texts begin and end, also where only the tokenizer knows."""
    manner = folder.manner
    if tokenizer is None:
        return manner
    end = tokenizer.id_of(folder.special.get("eos_token", ""))
    if not manner.ends and end is not None:
        manner = replace(manner, ends=(end,))
    start = tokenizer.id_of(_TRANSCRIPT)
    if not manner.start and folder.encoder is not None and start is not None:
        manner = replace(manner, start=(start,))
    return manner
