"""The prompts of ``shardrun generate`` one by one or together: answered, printed or written, and timed."""

from __future__ import annotations

import contextlib
import json
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, fields, replace
from typing import TYPE_CHECKING, cast

from launcher.common.report import human_seconds
from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.generation.decoder import Decoder
from launcher.generation.engine import Engine
from launcher.generation.generate import Generation
from launcher.generation.model import LanguageModel
from launcher.generation.options import GenerateOptions
from launcher.generation.sample import Completion, Done, Token
from launcher.generation.streams import Stream
from launcher.group.requests import PredictError
from launcher.tasks.answers import AnswerFile
from launcher.tasks.batched_prompts import Asked, Feeder, batch_of, timed
from launcher.tasks.pace import Pace
from launcher.tasks.prompts import Prompt
from sharding.common.text import counted, one_line, printable

if TYPE_CHECKING:
    from launcher.tasks.generation import Task
    from sharding.common.arrays import Array


@dataclass
class Timing:
    """How long prompts took: seconds to the first token of each, and tokens and seconds after it. A search
    gives its tokens at the end, and has a time as a whole."""

    prompt_tokens: int = 0
    tokens: int = 0
    prompt_seconds: float = 0.0
    later_tokens: int = 0
    later_seconds: float = 0.0
    search_seconds: float = 0.0

    def add(self, other: Timing) -> None:
        """Sums up."""
        for item in fields(self):
            setattr(self, item.name, getattr(self, item.name) + getattr(other, item.name))

    @property
    def rate(self) -> float | None:
        """Tokens a second, after the first."""
        return self.later_tokens / self.later_seconds if self.later_tokens and self.later_seconds else None

    def text(self) -> str:
        """One line."""
        prompt = f"{counted(self.tokens, 'token')}; prompt: {counted(self.prompt_tokens, 'token')}"
        if self.search_seconds:
            return f"{prompt}; {human_seconds(self.search_seconds)} in all"
        rate = "" if self.rate is None else f", {self.rate:.4g} tokens/s"
        return f"{prompt} in {self.prompt_seconds * 1e3:.4g} ms{rate}"


class Answering:
    """Where answers go. ``skipped``: prompts with which something was wrong."""

    def __init__(self, task: Task, file: AnswerFile | None, pace: Pace) -> None:
        self._task, self._file, self._pace = task, file, pace
        self.skipped = 0

    def show(self, generation: Generation | Stream, prompt: Prompt | None) -> Timing:
        """Generates and shows an answer; of what goes wrong with it alone, that."""
        if not self._task.lines:
            return _stream(generation, prompt)
        timing = _timed(generation, lambda _: None)
        self._write(_document(generation, prompt, timing))
        return timing

    def wrong(self, prompt: Prompt | None, error: ShardrunError) -> None:
        """Says what is wrong with a prompt in its place, or raises it."""
        if not self._task.prompts.keep_going or prompt is None:
            raise error
        self.skipped += 1
        where = "" if str(error).startswith(prompt.where) else f"{prompt.where}: "
        print(f"shardrun: skipped: {one_line(f'{where}{error}')}", file=sys.stderr, flush=True)
        if self._task.lines:
            self._write({"prompt": prompt.shown(), "error": str(error)})

    def _write(self, document: Mapping[str, object]) -> None:
        if self._file is None:
            sys.stdout.write(json.dumps(document) + "\n")
            sys.stdout.flush()
            return
        self._file.write(document)
        self._pace.step()

    def say(self, prompts: int, text: str) -> None:
        """Says at the end how long it took."""
        before = 0 if self._file is None else self._file.before
        if not self._task.quiet and (prompts or before):
            many = f"{counted(prompts, 'prompt')}, " if prompts > 1 or self._file is not None else ""
            more = f"; {before} answered before" if before else ""
            more += f"; {self.skipped} skipped" if self.skipped else ""
            more += f"; wrote {self._file.path}" if self._file is not None else ""
            print(f"shardrun: {many}{text}{more}", file=sys.stderr, flush=True)
        if self.skipped:
            raise ConfigError(f"{counted(self.skipped, 'prompt')} of {prompts} skipped, as said above")


def answer_all(
    model: LanguageModel, task: Task, again: Callable[[], LanguageModel | None] = lambda: None
) -> None:
    """Generates for every prompt, prints, and says at the end how long it took. ``again``: gives the model
    anew where ranks were lost; None where it cannot."""
    inputs = _inputs(model.decoder, task.inputs)
    prompted: Iterator[Prompt | None] = iter(task.prompts)
    if task.prompts.none and not (task.prompts.texts or task.prompts.ids or task.prompts.file):
        prompted = iter([None])
    if task.output is None:
        pace = Pace("prompts", None, quiet=True)
        _answer_each(model, task, prompted, inputs, Answering(task, None, pace), again)
        return
    if task.prompts.file is not None:
        # A line that is wrong may be answered, with that, already.
        prompted = iter(replace(task.prompts, keep_going=True))
    pace = Pace("prompts", task.prompts.count(), quiet=task.quiet)
    with AnswerFile(task.output, resume=task.resume) as file:
        file.check(None if prompt is None else prompt.shown() for prompt in prompted)
        file.begin()
        pace.done = pace.before = file.before
        answering = Answering(task, file, pace)
        try:
            with pace.shown():
                _answer_each(model, task, prompted, inputs, answering, again)
        except BaseException:
            if not answering.skipped or pace.total is None or pace.done < pace.total:
                print(f"shardrun: {pace.text()}; --resume goes on", file=sys.stderr, flush=True)
            raise


def _answer_each(  # noqa: PLR0917 - what `answer_all` has
    model: LanguageModel,
    task: Task,
    prompted: Iterator[Prompt | None],
    inputs: dict[str, Array] | None,
    answering: Answering,
    again: Callable[[], LanguageModel | None],
) -> None:
    single = inputs is not None or task.prompts.single
    size = 1 if single else batch_of(model, task.options, task.batch)
    if size > 1:
        _answer_together(model, task, cast("Iterator[Prompt]", prompted), size, answering, again)
        return
    total, prompts = Timing(), 0
    for prompt in prompted:
        prompts += 1
        tries = 1
        while True:
            try:
                with _begin(model, prompt, task.options, inputs) as generation:
                    total.add(answering.show(generation, prompt))
                break
            except (RankFailedError, LaunchError):
                found = again() if tries == 1 else None
                if found is None:
                    raise
                model, tries = found, 2
            except ConfigError as error:
                answering.wrong(prompt, error if prompt is None else prompt.wrong(error))
                break
            except PredictError as error:
                answering.wrong(prompt, error)
                break
    answering.say(prompts, total.text())


def _answer_together(  # noqa: PLR0917 - what `answer_all` has
    model: LanguageModel,
    task: Task,
    prompted: Iterator[Prompt],
    size: int,
    answering: Answering,
    again: Callable[[], LanguageModel | None],
) -> None:
    """The same, of several prompts at once."""
    with contextlib.ExitStack() as stack:
        engine = stack.enter_context(model.engine(sequences=size))
        feeder = Feeder(model, engine, prompted, task.options, keep_going=task.prompts.keep_going)

        def show(asked: Asked) -> None:
            if asked.fault is not None:
                answering.wrong(asked.prompt, asked.fault)
                return
            assert asked.stream is not None
            try:
                answering.show(asked.stream, asked.prompt)
            except (LaunchError, RankFailedError):
                raise
            except PredictError as error:
                answering.wrong(asked.prompt, error)

        def another() -> Engine | None:
            found = again()
            return None if found is None else stack.enter_context(found.engine(sequences=size))

        prompts, read, made, seconds = timed(feeder, show, another)
    rate = f", {made / seconds:.4g} tokens/s" if seconds else ""
    text = f"{counted(made, 'token')}; prompt: {counted(read, 'token')}; {human_seconds(seconds)} in all"
    answering.say(prompts, text + rate)


def _inputs(decoder: Decoder, texts: tuple[str, ...]) -> dict[str, Array] | None:
    if not texts:
        return None
    if not decoder.encoder_inputs:
        raise ConfigError(f"--input {texts[0]}: the model has no encoder, which could take an array")
    from launcher.job.inputs import make_inputs

    arrays, made = make_inputs(decoder.encoder_inputs, texts)
    return {name: array for name, array in arrays.items() if name not in made}


def _begin(
    model: LanguageModel, prompt: Prompt | None, options: GenerateOptions, inputs: dict[str, Array] | None
) -> Generation:
    if prompt is not None and prompt.fault is not None:
        raise prompt.fault
    if prompt is not None and prompt.messages is not None:
        return model.chat(prompt.messages, options, inputs=inputs)
    given = None if prompt is None else prompt.ids if prompt.ids is not None else prompt.text
    return model.generate(given, options, inputs=inputs)


def _timed(generation: Generation | Stream, show: Callable[[Token | Done], None]) -> Timing:
    """Generates to the end; what is shown takes no part in the times."""
    timing = Timing(prompt_tokens=len(generation.prompt))
    searched = (generation.options.beams or 1) > 1
    began = time.perf_counter()
    for event in generation:
        took = time.perf_counter() - began
        if searched:
            timing.search_seconds += took
        elif isinstance(event, Token) and not timing.tokens:
            timing.prompt_seconds = took
        else:
            timing.later_tokens += isinstance(event, Token)
            timing.later_seconds += took
        timing.tokens = generation.tokens
        show(event)
        began = time.perf_counter()
    if isinstance(generation, Stream):  # which goes on while nobody reads it
        pace = generation.pace
        timing.prompt_seconds, timing.later_seconds = pace.first - pace.began, pace.last - pace.first
    return timing


def _stream(generation: Generation | Stream, prompt: Prompt | None) -> Timing:
    """Prints texts as they come; of several at once, each when it has ended."""
    alone = generation.options.samples == 1 and (generation.options.beams or 1) == 1
    ended: dict[int, str] = {}
    printed = 0

    def show(event: Token | Done) -> None:
        nonlocal printed
        if not alone:
            if isinstance(event, Done):
                ended[event.sample] = _plain(event.completion)
                while printed in ended:
                    _write(ended.pop(printed) + "\n")
                    printed += 1
            return
        if isinstance(event, Done):
            _write(event.text + "\n")
        elif has_text:
            _write(event.text)
        else:
            _write(f"{event.id} ")

    has_text = generation.has_text
    timing = _timed(generation, show)
    for number in sorted(ended):
        _write(ended[number] + "\n")
    return timing


def _plain(completion: Completion) -> str:
    return " ".join(map(str, completion.ids)) if completion.text is None else completion.text


def _write(text: str) -> None:
    if not text:
        return
    # A model can write a terminal's commands; a file gets what it wrote.
    sys.stdout.write(_harmless(text) if sys.stdout.isatty() else text)
    sys.stdout.flush()


def _harmless(text: str) -> str:
    return "\t".join(printable(part) for part in text.split("\t"))


def _document(generation: Generation | Stream, prompt: Prompt | None, timing: Timing) -> dict[str, object]:
    """What a line of JSON says of a prompt that is answered."""
    return {
        "prompt": None if prompt is None else prompt.shown(),
        "prompt_tokens": timing.prompt_tokens,
        "completions": [_described(item) for item in generation.finish()],
        "seed": generation.options.seed,
        "tokens": generation.tokens,
        "prompt_seconds": timing.prompt_seconds,
        "tokens_per_second": timing.rate,
    }


def _described(completion: Completion) -> dict[str, object]:
    found: dict[str, object] = {"text": completion.text, "ids": completion.ids, "reason": completion.reason}
    if completion.logprobs is not None and completion.top is not None:
        found["logprobs"] = completion.logprobs
        found["top"] = [[[token, value] for token, value in best] for best in completion.top]
    if completion.score is not None:
        found["score"] = completion.score
    return found
