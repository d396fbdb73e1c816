"""Language models from Python: started with their ranks, and generating in one call."""

from __future__ import annotations

import contextlib
import functools
import os
from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from launcher.generation.decoder import Arrays, Decoder, Ids
from launcher.generation.folder import read_folder
from launcher.generation.generate import Generation
from launcher.generation.model import LanguageModel, assemble
from launcher.generation.options import GENERATE, GenerateOptions
from launcher.generation.sample import Event
from launcher.generation.stateful import Program, program_of
from launcher.group.group import Group
from launcher.group.group import start as start_group
from launcher.group.model import ReadyModel
from ranks.common.elsewhere import ELSEWHERE
from sharding.demands.options import SliceOptions

if TYPE_CHECKING:
    from typing_extensions import Unpack

    from launcher.job.start_arguments import StartArguments


PathLike = str | os.PathLike[str]


def load_language_model(
    model: PathLike,
    *,
    texts: PathLike | None = None,
    draft: PathLike | None = None,
    options: SliceOptions | None = None,
    **start: Unpack[StartArguments],
) -> LanguageModel:
    """Starts the ranks of a language model and returns when it is ready.

    ``model``: a folder of ONNX Runtime GenAI, optimum or transformers, a decoder's file, or a slice folder.
    ``texts``: the folder with the tokenizer and configuration, if it is another one. ``draft``: a smaller
    model of the same kinds, on one rank, that guesses tokens (see the option ``speculate``). ``options`` and
    ``start``: what `launcher.start` takes, such as ``ranks=2``; ``options.sums`` is ``auto`` where it says
    nothing.

    Raises `ConfigError` for folders that do not say enough, and what `launcher.start` raises.
    """
    start.setdefault("ranks", 1)

    folder = read_folder(Path(model), None if texts is None else Path(texts))
    guesser = None if draft is None else read_folder(Path(draft))
    several = guesser is not None or len(folder.parts) > 1
    options = options or SliceOptions()
    asked = replace(options, sums=options.sums or "auto")
    groups: list[Group] = []

    @contextlib.contextmanager
    def started(path: Path, *, by_one: bool = False) -> Iterator[Program]:
        own = start.copy()
        if by_one:
            own["ranks"] = 1
        if several and (logs := own.get("logs")) is not None:
            if by_one and guesser is not None:
                own["logs"] = logs.of_one(f"draft-{guesser.name_of(path)}", 1)
            else:
                own["logs"] = logs.of_one(folder.name_of(path))
        with start_group(path, options=asked, **own) as group:
            groups.append(group)
            yield program_of(group)

    with contextlib.ExitStack() as stack:
        loaded = stack.enter_context(assemble(folder, started))
        if guesser is not None:
            by_one = functools.partial(started, by_one=True)
            loaded.draft = stack.enter_context(assemble(guesser, by_one)).decoder
        kept = stack.pop_all()
    made = LanguageModel(
        loaded.decoder, loaded.manner, loaded.tokenizer, loaded.template, loaded.draft, groups, kept
    )
    # Whoever collects it may hold what the end of its ranks waits for.
    ELSEWHERE.when_gone(made, kept.close)
    return made


def generate(
    model: PathLike | LanguageModel | ReadyModel | Decoder,
    prompt: str | Sequence[int] | Ids | None,
    options: GenerateOptions | None = None,
    *,
    inputs: Arrays | None = None,
    special: bool = True,
    **more: object,
) -> Generation:
    """Continues a text or token ids: an iterator over events, whose ``text`` and `finish` go on to the end.

    ``model``: a path, whose ranks are started for this call and end with it; a model that
    `load_language_model` made; or a group of ranks or another decoder, for token ids alone. ``inputs``:
    arrays for an encoder. ``special``: whether the tokenizer adds its special tokens. ``more``: options of
    generating by name, and with a path also what `load_language_model` takes.
    """
    if isinstance(model, LanguageModel):
        return model.generate(prompt, options, inputs=inputs, special=special, **more)
    if isinstance(model, ReadyModel):
        if isinstance(prompt, str):
            raise ConfigError("the prompt is text, but a group has no tokenizer: give token ids")
        return model.generate(prompt, options, inputs=inputs, **more)
    if not isinstance(model, str | os.PathLike):
        return LanguageModel(model).generate(prompt, options, inputs=inputs, special=special, **more)
    own = {name: more.pop(name) for name in list(more) if name in GENERATE}
    load: Callable[..., LanguageModel] = load_language_model  # which checks what it is given
    with contextlib.ExitStack() as stack:
        loaded = stack.enter_context(load(model, **more))
        made = loaded.generate(prompt, options, inputs=inputs, special=special, **own)
        events = _UntilClosed(made, stack.pop_all())
        return Generation(events, made.options, made.prompt, has_text=made.has_text)


class _UntilClosed:
    """The events of a generation, at whose end, or when it is closed, what was started for it ends."""

    def __init__(self, events: Generation, stack: contextlib.ExitStack) -> None:
        self._events, self._stack = events, stack

    def __iter__(self) -> Iterator[Event]:
        return self

    def __next__(self) -> Event:
        try:
            return next(self._events)
        except BaseException:  # the end, too
            self.close()
            raise

    def close(self) -> None:
        """Ends all of it; safe to call twice."""
        self._events.close()
        self._stack.close()
