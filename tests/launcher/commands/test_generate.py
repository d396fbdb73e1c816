# ruff: noqa: E501 - the tables of cases stay one line each
"""``shardrun generate`` as a user runs it."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.generation.options import GenerateOptions
from launcher.job.job import gather
from launcher.tasks.generation import Task, read
from launcher.tasks.prompts import Prompts
from tests.launcher import cli_tools
from tests.launcher.generation import tiny, tiny_encoders
from tests.launcher.processes import Runner, marked, wait_until


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model folder in it, whose slices are kept in a cache."""
    folder = tmp_path_factory.mktemp("generate")
    tiny.save_folder(folder / "model")
    return folder


@pytest.fixture(scope="module")
def plain(place: Path) -> tiny.Plain:
    return tiny.Plain(place / "model" / "model.onnx")


def generate(place: Path, *arguments: Any, **more: Any) -> subprocess.CompletedProcess[str]:
    return cli_tools.copied("generate", *arguments, cwd=place, **more)


def ids_of(done: subprocess.CompletedProcess[str]) -> list[list[int]]:
    assert done.returncode == 0, done.stderr
    return [item["ids"] for line in done.stdout.splitlines() for item in json.loads(line)["completions"]]


def test_prompts_of_all_kinds(place: Path, plain: tiny.Plain) -> None:
    (place / "prompts.txt").write_text(
        'The dog\n\n{"ids": [5, 6, 7]}\n{"messages": [{"role": "user", "content": "fox"}]}\n{ no JSON\n'
    )
    done = generate(
        place, "model", "--ranks", 2, "--prompt", "The fox", "--ids", "5,6", "--prompts", "prompts.txt",
        "--max-new-tokens", 6, "--json", "--logprobs", 1, "--ignore-eos",
    )  # fmt: skip
    found = ids_of(done)
    assert len(found) == 6 and found[1] == plain.greedy([5, 6], 6) and found[3] == plain.greedy([5, 6, 7], 6)
    first = json.loads(done.stdout.splitlines()[0])
    assert first["prompt"] == "The fox" and first["completions"][0]["reason"] == "length"
    assert len(first["completions"][0]["logprobs"]) == len(first["completions"][0]["top"]) == 6
    assert done.stderr.startswith("shardrun: 6 prompts, 36 tokens; prompt: ") and "tokens/s" in done.stderr


def test_standard_input_and_plain_output(place: Path) -> None:
    command = [
        sys.executable, "-m", "launcher.cli", "generate", "model", "--max-new-tokens", "8", "--chat", "--quiet",
    ]  # fmt: skip
    done = subprocess.run(
        command, input="The dog\nThe fox\n", cwd=place, capture_output=True, text=True, timeout=120, check=True,
        env=cli_tools.environment(SHARDRUN_CACHE=str(place / "cache")),
    )  # fmt: skip
    wanted = generate(
        place,
        "model",
        "--max-new-tokens",
        8,
        "--chat",
        "--prompt",
        "The dog",
        "--prompt",
        "The fox",
        "--json",
    )
    texts = [json.loads(line)["completions"][0]["text"] for line in wanted.stdout.splitlines()]
    assert done.stdout == "".join(f"{text}\n" for text in texts) and done.stderr == ""


def test_texts_that_follow_a_schema(place: Path) -> None:
    (place / "schema.json").write_text(
        '{"type": "array", "items": {"enum": [1, 22]}, "minItems": 2, "maxItems": 3}'
    )
    common = ("model", "--prompt", "The dog", "--prompt", "The fox", "--max-new-tokens", 40)
    done = generate(place, *common, "--ranks", 2, "--json-schema", "schema.json", "--json")
    assert done.returncode == 0, done.stderr
    for line in done.stdout.splitlines():
        found = json.loads(json.loads(line)["completions"][0]["text"])
        assert 2 <= len(found) <= 3 and set(found) <= {1, 22}
    (place / "wrong.json").write_text('{"type": "nonsense"}')
    for name, said in (("wrong.json", "the JSON schema cannot be followed"), ("none.json", "none.json")):
        done = generate(place, *common, "--json-schema", name)
        assert done.returncode == 2 and said in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    "options", [["--batch", 3], ["--batch", 1], ["--speculate", 2], ["--samples", 2, "--top-k", 1]], ids=str
)
def test_several_prompts_at_once(place: Path, plain: tiny.Plain, options: list[Any]) -> None:
    """In the order that they were given in, the texts of each alone, and a wrong one after those before it."""
    prompts = [[5, 6], [7] * 30, [9], [10, 11, 12], [13] * 20]
    (place / "many.txt").write_text("".join(json.dumps({"ids": ids}) + "\n" for ids in prompts))
    common = ("model", "--ranks", 2, "--prompts", "many.txt", "--max-new-tokens", 7, "--ignore-eos", *options)
    done = generate(place, *common, "--json")
    lines = [json.loads(line) for line in done.stdout.splitlines()]
    assert done.returncode == 0 and [line["prompt"] for line in lines] == prompts
    for line in lines:
        want = plain.greedy(line["prompt"], 7)
        assert all(item["ids"] == want for item in line["completions"])
        assert line["prompt_seconds"] > 0 and line["tokens_per_second"] > 0
    count = 70 if "--samples" in options else 35
    assert done.stderr.startswith(f"shardrun: 5 prompts, {count} tokens; prompt: 56 tokens")
    if "--batch" not in options:
        return
    with (place / "many.txt").open("a") as file:
        file.write('{"ids": [304]}\n{"ids": [1]}\n')
    wrong = generate(place, *common, "--json")
    assert [line["prompt"] for line in map(json.loads, wrong.stdout.splitlines())] == prompts
    assert wrong.returncode == 2 and "many.txt, line 6: the prompt holds the token 304" in wrong.stderr
    assert wrong.stderr.count("\n") == 1


def test_an_answer_waits_for_no_other_prompt(place: Path) -> None:
    """A program that asks, reads the answer, and asks again; and one that is interrupted meanwhile."""
    command = [sys.executable, "-m", "launcher.cli", "generate", "model", "--max-new-tokens", "3", "--json"]
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, cwd=place, text=True,
        env=cli_tools.environment(SHARDRUN_CACHE=str(place / "cache")), start_new_session=True,
    ) as process:  # fmt: skip
        assert process.stdin is not None and process.stdout is not None and process.stderr is not None
        hang = threading.Timer(60, process.kill)
        hang.start()
        for prompt in ([5, 6], [7]):
            process.stdin.write(json.dumps({"ids": prompt}) + "\n")
            process.stdin.flush()
            assert json.loads(process.stdout.readline())["prompt"] == prompt
        process.send_signal(signal.SIGINT)
        assert process.wait(60) == 130 and process.stderr.read() == "shardrun: interrupted\n"
        hang.cancel()


@pytest.mark.parametrize(
    ("ranks", "options"),
    [
        (1, ["--speculate", 2]),
        (2, ["--speculate", 2, "--draft", "model"]),
        (2, ["--batch", 3]),
    ],
    ids=str,
)
def test_ranks_that_something_else_started(
    place: Path, plain: tiny.Plain, ranks: int, options: list[Any]
) -> None:
    """State stays where it is; several prompts are one batch, and a draft runs on rank 0 alone."""
    prompts = [[5, 6, 7], [9] * 20, [11]]
    given = [word for ids in prompts for word in ("--ids", ",".join(map(str, ids)))]
    arguments = ("model", *given, "--max-new-tokens", 6, "--ignore-eos", "--json", *options)
    done = generate(place, *arguments, before=cli_tools.mpirun(ranks))
    assert ids_of(done) == [plain.greedy(ids, 6) for ids in prompts]
    assert done.stderr.startswith("shardrun: 3 prompts, 18 tokens") and done.stderr.count("\n") == 1


def test_encoder_and_decoder_on_ranks_that_something_else_started(place: Path) -> None:
    tiny_encoders.save_optimum(place / "two", merged=False)
    arguments = ("two", "--ids", "5,30,12,7", "--max-new-tokens", 8, "--json", "--allow-replicated")
    here = ids_of(generate(place, *arguments, "--ranks", 2, "--launcher", "local"))
    assert len(here[0]) == 8 and ids_of(generate(place, *arguments, before=cli_tools.mpirun(2))) == here


def test_a_wrong_prompt_ends_all_ranks(place: Path) -> None:
    done = generate(place, "model", "--ids", "5,999", before=cli_tools.mpirun(2))
    assert done.returncode == 2 and "the prompt holds the token 999" in done.stderr
    assert "Traceback" not in done.stderr


def test_a_job_file(place: Path, plain: tiny.Plain) -> None:
    """Says model and ranks, and how tokens are chosen; flags win."""
    job = {"model": "model", "ranks": 2, "generate": {"max_new_tokens": 6, "temperature": 100, "seed": 1}}
    (place / "job.json").write_text(json.dumps(job))
    arguments = ("--config", "job.json", "--ids", "5,6,7", "--ignore-eos", "--json")
    assert ids_of(generate(place, *arguments, "--temperature", 0)) == [plain.greedy([5, 6, 7], 6)]
    hot = generate(place, *arguments)
    assert json.loads(hot.stdout)["seed"] == 1 and ids_of(hot) != [plain.greedy([5, 6, 7], 6)]
    for wrong, message in (
        ({**job, "generate": {"top_p": 2}}, "job.json: $.generate.top_p: expected a number above 0 up to 1, found 2"),
        ({"ranks": 2}, "no model: expected a language model's folder, or `model:` in a job file"),
    ):  # fmt: skip
        (place / "job.json").write_text(json.dumps(wrong))
        done = generate(place, *arguments)
        assert done.returncode == 2 and done.stderr.startswith("shardrun: error: ") and message in done.stderr
        assert done.stderr.count("\n") == 1


def test_a_plain_file_and_slices(place: Path, plain: tiny.Plain) -> None:
    path = tiny.save_decoder(place / "alone.onnx", cache=True)
    assert cli_tools.copied("slice", path, "--ranks", 2, "--output", "slices", cwd=place).returncode == 0
    common = ("--ids", "5,6,7", "--max-new-tokens", 6, "--json")
    for arguments in (
        ("alone.onnx",),
        ("slices", "--ranks", 2),
        ("slices", "--ranks", 2, "--texts", "model"),
    ):
        assert ids_of(generate(place, *arguments, *common)) == [plain.greedy([5, 6, 7], 6)]
    text = generate(place, "slices", "--ranks", 2, "--ids", "5,6,7", "--max-new-tokens", 6)
    assert text.stdout.split() == [str(token) for token in plain.greedy([5, 6, 7], 6)]


def test_a_draft_and_a_search(place: Path, plain: tiny.Plain) -> None:
    found = generate(
        place,
        "model",
        "--ids",
        "5,6,7",
        "--max-new-tokens",
        9,
        "--draft",
        "model",
        "--speculate",
        3,
        "--json",
        "--ranks",
        2,
        "--tee",
        1,
        "--log-dir",
        "logs",
    )
    assert ids_of(found) == [plain.greedy([5, 6, 7], 9)]
    jobs = {path.name: json.loads((path / "job.json").read_text()) for path in (place / "logs").iterdir()}
    assert {name: len(job["hosts"]) for name, job in jobs.items()} == {"decoder": 2, "draft-decoder": 1}
    searched = generate(
        place, "model", "--ids", "5,6,7", "--max-new-tokens", 9, "--beams", 3, "--returned", 3, "--json"
    )
    scores = [item["score"] for item in json.loads(searched.stdout)["completions"]]
    assert len(scores) == 3 and scores == sorted(scores, reverse=True)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["absent", "--ids", "1"], "absent: there is no such folder or file"),
        (["empty", "--ids", "1"], "empty has no language model"),
        (["model", "--ids", "1,x"], "--ids: expected token ids such as 1,15043,29892, found '1,x'"),
        (["model", "--ids", "1", "--stop", ""], "--stop: expected a text that is not empty, found ''"),
        (["model", "--ids", "999"], "the prompt holds the token 999, but the model's vocabulary has the ids 0 to 303"),
        (["model", "--prompt", "fox " * 200], "tokens, but the model's context holds 96"),
        (["model", "--prompts", "absent.txt"], "--prompts absent.txt: expected a file of prompts"),
        (["model", "--prompts", "wrong.jsonl"], "wrong.jsonl, line 2: this line is no JSON"),
        (["model", "--prompt", "x", "--temperature", "hot"], "--temperature: expected a number from 0 to 100"),
        (["model", "--prompt", "x", "--beams", "2", "--samples", "2"], "samples and beams exclude each other"),
        (["model", "--prompt", "x", "--draft", "model"], "--draft: give --speculate N too"),
        (["model", "--prompt", "x", "--logit-bias", "5"], "--logit-bias 5: expected ID=NUMBER"),
        (["model", "--prompt", "x", "--input", "a=b.npy"], "the model has no encoder"),
        (["model", "--prompt", "x", "--strategy", "tensor", "--mesh", "tensor=2"], "exclude each other"),
        (["looping", "--chat", "--prompt", "x"], "the chat template cannot be followed"),
    ],
)  # fmt: skip
def test_wrong_usage(place: Path, arguments: Sequence[str], message: str) -> None:
    (place / "empty").mkdir(exist_ok=True)
    (place / "wrong.jsonl").write_text('{"ids": [1]}\n{"ids": \n')
    if not (place / "looping").exists():
        tiny.save_folder(place / "looping")
        (place / "looping" / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    done = generate(place, *arguments, "--max-new-tokens", 2)
    assert done.returncode == 2 and message in done.stderr
    assert done.stderr.count("\n") == 1 and done.stderr.startswith("shardrun: error: ")


@pytest.mark.parametrize(
    ("model", "prompts", "message"),
    [
        ("model", Prompts(ids=["5", "5," * tiny.CONTEXT]), "the prompt has 96 tokens, but the model's context holds 96"),
        ("model", Prompts(["fox", "fox " * 200]), "tokens, but the model's context holds 96"),
        ("looping", Prompts(["x"], chat=True), "the chat template cannot be followed: it may not read the attribute"),
        ("plain", Prompts(["x"], chat=True), "the model's folder has no chat template"),
        ("plain", Prompts(["x"]), "the prompt is text, but there is no tokenizer"),
    ],
)  # fmt: skip
def test_prompts_of_flags_are_checked_before_anything_starts(
    place: Path, tmp_path: Path, model: str, prompts: Prompts, message: str
) -> None:
    folder = place / "model"
    if model != "model":
        folder = shutil.copytree(folder, tmp_path / "model")
        (folder / "chat_template.jinja").write_text("{{ messages.__class__.__mro__ }}")
    if model == "plain":
        for file in folder.glob("[!m]*"):
            file.unlink()
    with pytest.raises(ConfigError, match=message):
        read(gather({"model": folder, "ranks": 2}, None), Task(folder, GenerateOptions(), prompts))


def test_a_reader_that_leaves(place: Path) -> None:
    """Nothing is left, and nothing is said."""
    command = f"{sys.executable} -m launcher.cli generate model --ids 5,6 --max-new-tokens 90 --ignore-eos --samples 3"
    done = cli_tools.run(["bash", "-c", f"set -o pipefail; {command} | head -c 3"], place)
    assert len(done.stdout) >= 1 and "Traceback" not in done.stderr and "error" not in done.stderr


STREAM = """
import sys
from launcher.cli import main
sys.exit(main(["generate", sys.argv[1], "--ranks", "2", "--launcher", "local", "--prompts", sys.argv[2],
               "--max-new-tokens", "20", "--ignore-eos"]))
"""


@pytest.mark.parametrize("cause", ["interrupted", "killed"])
def test_an_end_in_the_middle(place: Path, tmp_path: Path, run_script: Runner, cause: str) -> None:
    """Ctrl-C, or a rank that is lost, while a text comes: the first cause, an exit code, and nothing left."""
    prompts = tmp_path / "prompts"
    prompts.write_text('{"ids": [7]}\n' * 2000)
    arguments = (str(place / "model" / "model.onnx"), str(prompts))
    script = run_script(STREAM, *arguments, SHARDRUN_CACHE=str(place / "cache"))
    assert wait_until(lambda: len(script.lines()) >= 2, 120), script.errors()
    if cause == "interrupted":
        script.signal_group(signal.SIGINT)
    else:
        ranks = [pid for pid, line in marked(script.mark).items() if line.startswith("shardrun rank ")]
        os.kill(max(ranks), signal.SIGKILL)
    code, _, errors = script.end(30)
    if cause == "interrupted":
        assert code == 130 and errors.strip().endswith("shardrun: interrupted")
    else:
        assert code == 1 and re.search(r"shardrun: error: rank \d on host .* was killed by SIGKILL", errors)
    assert "Traceback" not in errors
