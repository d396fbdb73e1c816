"""``shardrun generate``: text from a language model."""

from __future__ import annotations

import argparse
from pathlib import Path

from launcher.commands.options import ABSENT, PLANNED, add_described, add_groups, add_option, whole
from launcher.common.restarts import NEVER
from launcher.errors import ConfigError
from launcher.job.options import RANKS, SLICING, TYPES

ANSWERS = {
    "resume": "leave out the prompts that are answered in --output already, and add the rest",
    "keep_going": "say what is wrong with a prompt, and go on with the next",
}
DESCRIPTION = """\
Continues prompts with a language model, and prints the text as it comes. A model is a folder as ONNX Runtime
GenAI's builder, optimum or transformers make it (model, tokenizer.json, genai_config.json or config.json),
or a plain model file or slice folder, which takes token ids. Runs on one rank unless told otherwise; a model
is sliced first, into a cache. Prompts come from --prompt, --ids or --prompts, else from standard input."""
EPILOG = """\
examples:
  shardrun generate llama --ranks 2 --prompt "Once upon a time" --max-new-tokens 100
  shardrun generate llama --ranks 2 --chat --prompt "What is ONNX?" --temperature 0.7 --top-p 0.9 --seed 1
  shardrun generate llama --ranks 2 --prompts questions.jsonl --json > answers.jsonl
  shardrun generate llama --prompts questions.jsonl --output answers.jsonl --resume --keep-going
  shardrun generate decoder.onnx --ids 1,15043,29892 --max-new-tokens 20
  shardrun generate t5 --prompt "translate English to German: good morning" --beams 4

a job file (YAML or JSON) has the options of ranks and slicing as keys, and those of generating in a section:
  ranks: 2
  generate: {max_new_tokens: 100, temperature: 0.7, stop: ["\\n\\n"]}

a line of --prompts is a text, or JSON: {"prompt": "..."}, {"ids": [...]} or {"messages": [...]}

exit codes:
  0 done; 1 a rank failed; 2 wrong usage, configuration or input
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from launcher.generation.options import GENERATE, GROUPS

    parser.add_argument(
        "model", metavar="FOLDER|MODEL.onnx|SLICES", type=Path, nargs="?", help="a language model, see above"
    )
    prompts = parser.add_argument_group("prompts")
    prompts.add_argument(
        "--prompt", metavar="TEXT", dest="prompt", action="append", default=[],
        help="a text to continue; repeatable",
    )  # fmt: skip
    prompts.add_argument(
        "--ids", metavar="ID,ID,...", action="append", default=[],
        help="token ids to continue, which need no tokenizer; repeatable",
    )  # fmt: skip
    prompts.add_argument("--prompts", metavar="FILE", help="a file of prompts, one a line; -: standard input")
    prompts.add_argument(
        "--chat", action="store_true",
        help="each prompt is a user's message: the model's chat template makes the text",
    )  # fmt: skip
    prompts.add_argument(
        "--input", metavar="NAME=FILE", dest="arrays", action="append", default=[],
        help="an array for the model's encoder, such as audio_features=sound.npy; repeatable",
    )  # fmt: skip
    prompts.add_argument(
        "--texts", metavar="FOLDER", type=Path,
        help="where tokenizer and configuration lie (default: in the model's folder)",
    )  # fmt: skip
    prompts.add_argument(
        "--draft", metavar="FOLDER|MODEL.onnx", type=Path,
        help="a smaller model with the same vocabulary, on one rank, whose guesses --speculate checks",
    )  # fmt: skip
    for title in GROUPS:
        group = parser.add_argument_group(title)
        for option in GENERATE.values():
            if option.group == title:
                add_described(group, option)
    add_groups(parser, RANKS, TYPES, SLICING)
    add_option(parser, "dims", f"a likely length of a symbolic dimension: the plan is {PLANNED}")
    parser.add_argument(
        "--batch", metavar="N", type=whole(1, 4096),
        help="texts to generate at once (default: 8 where the model can read them in one batch, else 1); "
        "searches, guesses and models with an encoder go one after another",
    )  # fmt: skip
    parser.add_argument("--json", action="store_true", help="print a line of JSON for each prompt")
    answers = parser.add_argument_group("many prompts")
    answers.add_argument(
        "--output", metavar="FILE.jsonl", dest="answers", type=Path,
        help="write a line of JSON for each prompt to this file, as soon as it is answered",
    )  # fmt: skip
    for name in ("resume", "keep_going"):
        add_option(answers, name, ANSWERS[name])
    parser.add_argument("--quiet", action="store_true", help="say nothing of times on standard error")
    parser.add_argument(
        "--config", metavar="JOB.yaml", type=Path, default=ABSENT,
        help="options from a job file, of generating in its section `generate`; flags win over it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Generates as this process's place in the job demands."""
    from launcher.tasks.loading import awaited

    with awaited(vars(args)):
        return _run(args)


def _run(args: argparse.Namespace) -> int:
    from dataclasses import replace

    from launcher.generation.options import GENERATE, GenerateOptions
    from launcher.job.job import gather
    from launcher.job.job_file import read_section
    from launcher.tasks.generation import Task, generate_group, generate_rank
    from launcher.tasks.prompts import Prompts
    from launcher.tasks.run import group_or_rank

    flags = vars(args)
    config = flags.get("config")
    said = {} if config is None else read_section(config, "generate", GENERATE)
    options = GenerateOptions().with_flags(flags, said)
    if args.draft is not None and not options.speculate:
        raise ConfigError("--draft: give --speculate N too, how many tokens it shall guess in one step")
    job = gather({name: value for name, value in flags.items() if name not in GENERATE}, config)
    if job.model is None:
        raise ConfigError("no model: expected a language model's folder, or `model:` in a job file")
    model = job.model
    resume, keep_going = job.resume, job.keep_going
    job = replace(job, resume=False, keep_going=False, files=(), outputs=None)  # of `run`
    if resume and args.answers is None:
        raise ConfigError("--resume: give --output too, the file of answers to go on with")
    if job.restart != NEVER and args.answers is None and not args.json:
        raise ConfigError(
            "--restart: give --output or --json too: a text that is printed as it comes cannot be begun again"
        )
    prompts = Prompts(
        args.prompt, args.ids, args.prompts, args.chat, none=bool(args.arrays), keep_going=keep_going
    )
    task = Task(
        model,
        options,
        prompts,
        args.texts,
        args.draft,
        tuple(args.arrays),
        args.batch,
        args.json,
        args.quiet,
        output=args.answers,
        resume=resume,
    )
    return group_or_rank(
        job, lambda: generate_group(job, task), lambda identity: generate_rank(job, task, identity)
    )
