"""``shardrun generate``: prompts through a language model that this process starts, or is one rank of."""

from __future__ import annotations

import contextlib
import functools
import json
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.common.report import human_bytes, human_seconds, progress
from launcher.errors import ConfigError
from launcher.generation.decoder import Decoder, check_room
from launcher.generation.folder import ModelFolder, read_folder
from launcher.generation.generate import Generation, ids_of_text
from launcher.generation.model import LanguageModel, Texts, assemble, chat_text, read_texts
from launcher.generation.options import GenerateOptions
from launcher.generation.sample import Completion, Done, Token
from launcher.generation.stateful import Program, program_of
from launcher.generation.streams import Stream
from launcher.job.model import opened, world_size
from launcher.tasks.loading import alone, lead, start_group
from launcher.tasks.many import Feeder, batch_of, timed
from launcher.tasks.prompts import Prompt, Prompts
from sharding.common.text import counted, printable

if TYPE_CHECKING:
    from launcher.group.led import LedModel
    from launcher.job.job import Job
    from ranks.identity.place import Identity
    from sharding.common.arrays import Array


@dataclass(frozen=True)
class Task:
    """What to generate. ``inputs``: texts as of ``--input``, arrays for an encoder."""

    model: Path
    options: GenerateOptions
    prompts: Prompts
    texts: Path | None = None
    draft: Path | None = None
    inputs: tuple[str, ...] = ()
    batch: int | None = None
    """Texts at once; None: as the model allows."""
    as_json: bool = False
    quiet: bool = False


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


def read(job: Job, task: Task) -> ModelFolder:
    """What is said of the model; all that can be wrong before anything starts is found here."""
    folder = read_folder(task.model, task.texts)
    texts = read_texts(folder)
    task.prompts.check()
    if folder.encoder is None:
        for prompt in task.prompts.said():
            _check_prompt(prompt, folder, texts)
    if task.draft is not None:
        read_folder(task.draft)
    for part in folder.parts.values():
        replace(job, model=part).check()
    return folder


def _check_prompt(prompt: Prompt, folder: ModelFolder, texts: Texts) -> None:
    """Raises `ConfigError` for a prompt that a decoder alone cannot read, as far as its folder says it."""
    ids, text = prompt.ids, prompt.text
    if ids is None:
        if prompt.messages is not None:
            text = chat_text(prompt.messages, texts.template)
        ids = ids_of_text(text or "", texts.tokenizer, special=prompt.messages is None)
    check_room(len(ids), folder.context)


def generate_group(job: Job, task: Task) -> None:
    """Starts the ranks, generates, and prints."""
    folder = read(job, task)
    draft = None if task.draft is None else read_folder(task.draft)
    several = draft is not None or len(folder.parts) > 1

    @contextlib.contextmanager
    def started(path: Path, *, by_one: bool = False) -> Iterator[Program]:
        own = _on_one_rank(job, path) if by_one else replace(job, model=path)
        if several:
            if by_one and draft is not None:
                logs = job.logs.of_one(f"draft-{draft.name_of(path)}", 1)
            else:
                logs = job.logs.of_one(folder.name_of(path))
            own = replace(own, log_dir=logs.log_dir, tee=logs.tee)
        with opened(own, world_size(own) or 1) as model, contextlib.ExitStack() as stack:
            size = human_bytes(sum(rank.weight_bytes for rank in model.manifest.ranks))
            with progress(f"loading {size} of weights: ranks ready", counted=True) as update:
                group = stack.enter_context(start_group(own, model, update))
            yield program_of(group)

    with contextlib.ExitStack() as stack:
        model = stack.enter_context(assemble(folder, started))
        if draft is not None:
            by_one = functools.partial(started, by_one=True)
            model.draft = stack.enter_context(assemble(draft, by_one)).decoder
        answer_all(model, task)


def generate_rank(job: Job, task: Task, identity: Identity) -> None:
    """This process as one rank that something else started: rank 0 reads prompts and prints."""
    folder = read(job, task)
    parts = list(folder.parts.values())
    with contextlib.ExitStack() as stack:
        own = [replace(job, model=part) for part in parts]
        made = [stack.enter_context(opened(one, identity.world_size, identity.rank)) for one in own]
        lead(job, made, identity, functools.partial(_answer_as_rank_0, job, folder, task, parts), "generate")


def _answer_as_rank_0(
    job: Job, folder: ModelFolder, task: Task, parts: Sequence[Path], models: Sequence[LedModel]
) -> None:
    """With the models of these files, which all ranks run; a draft runs here alone."""
    programs = dict(zip(parts, map(program_of, models), strict=True))

    @contextlib.contextmanager
    def drafted(path: Path) -> Iterator[Program]:
        with opened(_on_one_rank(job, path), 1) as made, alone(job, made) as model:
            yield program_of(model)

    with contextlib.ExitStack() as stack:
        language = stack.enter_context(assemble(folder, lambda part: contextlib.nullcontext(programs[part])))
        if task.draft is not None:
            language.draft = stack.enter_context(assemble(read_folder(task.draft), drafted)).decoder
        answer_all(language, task)


def _on_one_rank(job: Job, model: Path) -> Job:
    return replace(job, model=model, ranks=1, rank_table=None, mesh=None, plan=None, strategy=None)


def answer_all(model: LanguageModel, task: Task) -> None:
    """Generates for every prompt, prints, and says at the end how long it took."""
    inputs = _inputs(model.decoder, task.inputs)
    single = inputs is not None or task.prompts.single
    size = 1 if single else batch_of(model, task.options, task.batch)
    if size > 1:
        _answer_together(model, task, size)
        return
    total, prompts = Timing(), 0
    prompted: Iterator[Prompt | None] = iter(task.prompts)
    if task.prompts.none and not (task.prompts.texts or task.prompts.ids or task.prompts.file):
        prompted = iter([None])
    for prompt in prompted:
        try:
            generation = _begin(model, prompt, task.options, inputs)
        except ConfigError as error:
            raise (error if prompt is None else prompt.wrong(error)) from None
        with generation:
            timing = (_print_json if task.as_json else _stream)(generation, prompt)
        total.add(timing)
        prompts += 1
    if not task.quiet and prompts:
        many = f"{counted(prompts, 'prompt')}, " if prompts > 1 else ""
        print(f"shardrun: {many}{total.text()}", file=sys.stderr, flush=True)


def _answer_together(model: LanguageModel, task: Task, size: int) -> None:
    """The same, of several prompts at once."""
    with model.engine(sequences=size) as engine:
        feeder = Feeder(model, engine, task.prompts, task.options)
        show = _print_json if task.as_json else _stream
        prompts, read, made, seconds = timed(feeder, lambda asked: show(asked.stream, asked.prompt))
    if not task.quiet and prompts:
        many = f"{counted(prompts, 'prompt')}, " if prompts > 1 else ""
        rate = f", {made / seconds:.4g} tokens/s" if seconds else ""
        text = f"{counted(made, 'token')}; prompt: {counted(read, 'token')}; {human_seconds(seconds)} in all"
        print(f"shardrun: {many}{text}{rate}", file=sys.stderr, flush=True)


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


def _print_json(generation: Generation | Stream, prompt: Prompt | None) -> Timing:
    """One line of JSON for a prompt."""
    timing = _timed(generation, lambda _: None)
    document = {
        "prompt": None if prompt is None else prompt.shown(),
        "prompt_tokens": timing.prompt_tokens,
        "completions": [_described(item) for item in generation.finish()],
        "seed": generation.options.seed,
        "tokens": generation.tokens,
        "prompt_seconds": timing.prompt_seconds,
        "tokens_per_second": timing.rate,
    }
    sys.stdout.write(json.dumps(document) + "\n")
    sys.stdout.flush()
    return timing


def _described(completion: Completion) -> dict[str, object]:
    found: dict[str, object] = {"text": completion.text, "ids": completion.ids, "reason": completion.reason}
    if completion.logprobs is not None and completion.top is not None:
        found["logprobs"] = completion.logprobs
        found["top"] = [[[token, value] for token, value in best] for best in completion.top]
    if completion.score is not None:
        found["score"] = completion.score
    return found
