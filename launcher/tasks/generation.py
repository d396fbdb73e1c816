"""``shardrun generate``: prompts through a language model that this process starts, or is one rank of."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from launcher.common.report import human_bytes, progress
from launcher.common.restarts import NEVER
from launcher.generation.decoder import check_room
from launcher.generation.folder import ModelFolder, read_folder
from launcher.generation.generate import ids_of_text
from launcher.generation.model import LanguageModel, Texts, assemble, chat_text, read_texts
from launcher.generation.options import GenerateOptions
from launcher.generation.stateful import Program, program_of
from launcher.job.model import opened, world_size
from launcher.tasks.answering import answer_all
from launcher.tasks.answers import check_answers
from launcher.tasks.loading import alone, lead, start_group
from launcher.tasks.prompts import Prompt, Prompts

if TYPE_CHECKING:
    from launcher.group.group import Group
    from launcher.group.led import LedModel
    from launcher.job.job import Job
    from ranks.identity.place import Identity


class Opens(Protocol):
    """What starts, or finds, the ranks of one of a model's graphs."""

    def __call__(self, path: Path, *, by_one: bool = False) -> contextlib.AbstractContextManager[Program]: ...


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
    output: Path | None = None
    """Where a line of JSON for each prompt goes, instead of standard output."""
    resume: bool = False
    """Whether the answers that are there already are kept, and the next ones added."""

    @property
    def lines(self) -> bool:
        """Whether answers are lines of JSON."""
        return self.as_json or self.output is not None


def read(job: Job, task: Task) -> ModelFolder:
    """What is said of the model; all that can be wrong before anything starts is found here."""
    folder = read_folder(task.model, task.texts)
    texts = read_texts(folder)
    task.prompts.check()
    if folder.encoder is None and not task.prompts.keep_going:
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
    if task.output is not None:
        check_answers(task.output, resume=task.resume)
    draft = None if task.draft is None else read_folder(task.draft)
    several = draft is not None or len(folder.parts) > 1
    groups: dict[tuple[Path, bool], Group] = {}

    @contextlib.contextmanager
    def started(path: Path, *, by_one: bool = False) -> Iterator[Program]:
        own = _on_one_rank(job, path) if by_one else _sliced_for_texts(job, path)
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
            groups[path, by_one] = group
            yield program_of(group)

    @contextlib.contextmanager
    def there(path: Path, *, by_one: bool = False) -> Iterator[Program]:
        yield program_of(groups[path, by_one])

    def assembled(stack: contextlib.ExitStack, opened: Opens) -> LanguageModel:
        model = stack.enter_context(assemble(folder, opened))
        if draft is not None:
            by_one = functools.partial(opened, by_one=True)
            model.draft = stack.enter_context(assemble(draft, by_one)).decoder
        return model

    with contextlib.ExitStack() as stack:

        def again() -> LanguageModel | None:
            """The model on the ranks that are there after others were lost; None where there are none."""
            lost = any(group.state in {"failed", "closed"} for group in groups.values())
            return None if lost or job.restart == NEVER else assembled(stack, there)

        answer_all(assembled(stack, started), task, again)


def generate_rank(job: Job, task: Task, identity: Identity) -> None:
    """This process as one rank that something else started: rank 0 reads prompts and prints."""
    folder = read(job, task)
    parts = list(folder.parts.values())
    with contextlib.ExitStack() as stack:
        own = [_sliced_for_texts(job, part) for part in parts]
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


def _sliced_for_texts(job: Job, model: Path) -> Job:
    """Texts are to be those of one process, which changed last bits of products that round do not give."""
    return replace(job, model=model, sums=job.sums or "auto")


def _on_one_rank(job: Job, model: Path) -> Job:
    return replace(job, model=model, ranks=1, rank_table=None, mesh=None, plan=None, strategy=None)
