"""``shardrun generate --output``: answers that stay, prompts that are skipped, ranks that are lost."""

from __future__ import annotations

import json
import os
import resource
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.tasks import prompts as prompts_module
from launcher.tasks.answers import AnswerFile, check_answers
from launcher.tasks.prompts import Prompts
from tests.copies import Copy
from tests.launcher import cli_tools
from tests.launcher.generation import tiny
from tests.launcher.processes import wait_until
from tests.launcher.tasks.test_files import kill_a_rank

pytestmark = pytest.mark.timeout(240)


def answer(prompt: object) -> dict[str, object]:
    return {"prompt": prompt, "completions": []}


def test_answers_are_added_to_those_that_are_there(tmp_path: Path) -> None:
    path = tmp_path / "a.jsonl"
    with AnswerFile(path, resume=False) as file:
        file.begin()
        for prompt in ("one", [2, 3]):
            file.write(answer(prompt))
    with path.open("a") as torn:
        torn.write('{"prompt": "th')  # killed in the middle
    with AnswerFile(path, resume=True) as file:
        assert file.before == 2
        prompts: Iterator[object] = iter(["one", [2, 3], "three"])
        file.check(prompts)
        assert next(prompts) == "three"
        file.begin()
        file.write(answer("three"))
    assert [json.loads(line)["prompt"] for line in path.read_text().splitlines()] == ["one", [2, 3], "three"]
    with pytest.raises(
        ConfigError, match=r"a\.jsonl: line 2 answers another prompt: --resume needs the prompts"
    ):
        AnswerFile(path, resume=True).check(iter(["one", "two", "three"]))
    with pytest.raises(ConfigError, match="line 3 answers another prompt"):
        AnswerFile(path, resume=True).check(iter(["one", [2, 3]]))


@pytest.mark.parametrize(
    "content", ["text\n", "{}\n", '{"prompt": 1}\n', "[1]\n", "\n", "[" * 100_000 + "\n"]
)
def test_what_holds_no_answers_is_left_alone(tmp_path: Path, content: str) -> None:
    path = tmp_path / "a.jsonl"
    path.write_text(content)
    with pytest.raises(ConfigError, match="line 1 is no answer of this command"):
        AnswerFile(path, resume=True)
    with pytest.raises(ConfigError, match="this file is there already: --resume goes on where it ends"):
        check_answers(path, resume=False)
    with pytest.raises(ConfigError, match="this file is there already"):
        AnswerFile(path, resume=False)
    assert path.read_text() == content


def test_a_file_without_an_answer_goes(tmp_path: Path) -> None:
    with AnswerFile(tmp_path / "a.jsonl", resume=False) as file:
        file.begin()
    (tmp_path / "empty.jsonl").touch()
    with AnswerFile(tmp_path / "b.jsonl", resume=True) as file:
        file.begin()
        file.write(answer(1))
    assert sorted(path.name for path in tmp_path.iterdir()) == ["b.jsonl", "empty.jsonl"]


def test_a_full_disk_leaves_whole_answers(tmp_path: Path) -> None:
    """The limit of a file's size stands in for the disk's: the write ends in the middle of an answer."""
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    path = tmp_path / "a.jsonl"
    with AnswerFile(path, resume=False) as file:
        file.begin()
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        try:
            with pytest.raises(ConfigError, match="cannot write an answer: File too large"):
                for number in range(100):
                    file.write(answer(f"{number} {'x' * 100}"))
        finally:
            resource.setrlimit(resource.RLIMIT_FSIZE, before)
    lines = path.read_text().splitlines(keepends=True)
    assert 5 < len(lines) < 9 and all(line.endswith("\n") and json.loads(line) for line in lines)


def test_lines_that_are_wrong_have_their_place(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prompts_module, "MAX_LINE", 100)
    path = tmp_path / "p.jsonl"
    lines = [
        b'\xef\xbb\xbf"first"',
        b"",
        b"{",
        b'"\xff"',
        b'{"ids": "x"}',
        b'"' + b"y" * 500 + b'"',
        b'{"ids": [1]}',
    ]
    path.write_bytes(b"\r\n".join(lines))
    prompts = Prompts(file=str(path), keep_going=True)
    found = list(prompts)
    assert prompts.count() == 6 == len(found)
    assert [found[0].text, found[5].ids] == ["first", [1]]
    said = [str(prompt.fault) for prompt in found[1:5]]
    for number, (text, want) in enumerate(
        zip(said, ("no JSON", "UTF-8", "expected a list of token ids", "at most 100 bytes"), strict=True), 3
    ):
        assert text.startswith(f"{path}, line {number}: ") and want in text
    assert all(len(str(prompt.shown())) <= 200 for prompt in found[1:5])
    with pytest.raises(ConfigError, match="line 3: this line is no JSON"):
        list(Prompts(file=str(path)))
    assert Prompts(file=str(path)).count() is None
    for first in (b"y" * 150, b" " * 150, b"y" * 99):  # what is left of a line is none of its own
        path.write_bytes(b"\xef\xbb\xbf" + first + b'\n"second"\n')
        found = list(Prompts(file=str(path), keep_going=True))
        assert found[-1].text == "second" and found[-1].where == f"{path}, line 2"
        assert len(found) == (1 if first.isspace() else 2)
    with path.open("wb") as file:
        file.truncate(1 << 42)
    assert Prompts(file=str(path)).count() is None
    assert Prompts(file="-").count() is None and Prompts(["a"], ["1"]).count() == 2
    assert Prompts().count() is None and Prompts(["a"], file="-").count() is None
    path.write_text("a\n\nb\n")
    assert Prompts(["a"], file=str(path)).count() == 3
    assert [Prompts(*given).single for given in ((["a"],), ([], ["1"]), (["a"], ["1"]), ([],))] == [
        True, True, False, False
    ]  # fmt: skip
    assert not Prompts(["a"], file="-").single


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("answers")
    tiny.save_folder(folder / "model")
    return folder


@pytest.fixture(scope="module")
def plain(place: Path) -> tiny.Plain:
    return tiny.Plain(place / "model" / "model.onnx")


COMMON = ("generate", "model", "--ranks", "2", "--launcher", "local", "--ignore-eos")


def write(path: Path, prompts: list[Any]) -> Path:
    path.write_text(
        "".join(json.dumps({"ids": ids} if isinstance(ids, list) else ids) + "\n" for ids in prompts)
    )
    return path


def right(path: Path, prompts: list[list[int]], plain: tiny.Plain, count: int) -> None:
    lines = [json.loads(line) for line in path.read_text().splitlines()]
    assert [line["prompt"] for line in lines] == prompts
    for line in lines[:: max(1, len(lines) // 8)]:
        assert line["completions"][0]["ids"] == plain.greedy(line["prompt"], count)


@pytest.mark.parametrize("batch", [1, 3])
def test_prompts_that_are_wrong_are_skipped(place: Path, plain: tiny.Plain, batch: int) -> None:
    file = write(place / f"wrong{batch}.jsonl", [[5, 6], {"prompt": 7}, [304], [8], {"ids": []}, [9, 10]])
    output = place / f"answers{batch}.jsonl"
    command = (
        *COMMON,
        "--prompts",
        file.name,
        "--max-new-tokens",
        4,
        "--batch",
        batch,
        "--output",
        output.name,
    )
    stopped = cli_tools.copied(*command, cwd=place)
    assert stopped.returncode == 2 and "line 2: prompt: expected a text" in stopped.stderr
    assert "1 of 6 prompts" in stopped.stderr and "--resume goes on" in stopped.stderr
    done = cli_tools.copied(*command, "--resume", "--keep-going", cwd=place)
    lines = [json.loads(line) for line in output.read_text().splitlines()]
    assert done.returncode == 2 and done.stdout == "" and len(lines) == 6
    assert ["error" in line for line in lines] == [False, True, True, False, True, False]
    for place_of in (0, 3, 5):
        assert lines[place_of]["completions"][0]["ids"] == plain.greedy(lines[place_of]["prompt"], 4)
    said = done.stderr.splitlines()
    assert (
        sum("skipped: " in line and f"line {number}: " in line for number in (2, 3, 5) for line in said) == 3
    )
    assert said[-1] == "shardrun: error: 3 prompts of 5 skipped, as said above"
    assert "1 answered before; 3 skipped; wrote answers" in said[-2]
    again = cli_tools.copied(*command, "--resume", cwd=place)
    assert again.returncode == 0 and len(output.read_text().splitlines()) == 6
    refused = cli_tools.copied(*command, cwd=place)
    assert refused.returncode == 2 and "is there already: --resume goes on" in refused.stderr


def begun(place: Path, output: Path, *words: Any) -> Copy | subprocess.Popen[str]:
    process = cli_tools.begun(*COMMON, "--output", output.name, *words, cwd=place)
    assert wait_until(lambda: output.exists() and len(output.read_text().splitlines()) > 2, 90)
    return process


@pytest.mark.parametrize("batch", [1, 4])
def test_a_killed_rank(place: Path, plain: tiny.Plain, batch: int) -> None:
    prompts = [[number % 300, 5, 6] for number in range(60)]
    file = write(place / f"many{batch}.jsonl", prompts)
    output = place / f"killed{batch}.jsonl"
    words = ("--prompts", file.name, "--max-new-tokens", 12, "--batch", batch, "--restart", "on-failure")
    process = begun(place, output, *words)
    kill_a_rank(process.pid)
    _, errors = process.communicate(timeout=120)
    assert process.returncode == 0 and "the ranks are started again (1 of at most 5" in errors, errors
    right(output, prompts, plain, 12)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGKILL])
def test_what_is_answered_stays(place: Path, plain: tiny.Plain, number: signal.Signals) -> None:
    prompts = [[seed % 300, 7, 6] for seed in range(80)]
    file = write(place / f"stop{number}.jsonl", prompts)
    output = place / f"stopped{number}.jsonl"
    words = ("--prompts", file.name, "--max-new-tokens", 12)
    process = begun(place, output, *words)
    process.send_signal(number)
    _, errors = process.communicate(timeout=30)
    lines = output.read_bytes().splitlines(keepends=True)
    assert 2 < len(lines) < 80
    if number == signal.SIGTERM:
        assert process.returncode == 143 and f"{len(lines)} of 80 prompts" in errors, errors
    os.truncate(output, sum(map(len, lines)) - 9)
    done = cli_tools.copied(*COMMON, *words, "--output", output.name, "--resume", cwd=place)
    assert done.returncode == 0 and f"{len(lines) - 1} answered before; wrote" in done.stderr
    right(output, prompts, plain, 12)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["--resume"], "--resume: give --output too"),
        (["--restart", "on-failure"], "--restart: give --output or --json too"),
        (["--output", "nowhere/a.jsonl"], "the folder .*nowhere does not exist"),
        (["--output", "."], "expected the name of a file, found a folder"),
    ],
)
def test_what_is_refused(
    place: Path,
    words: list[str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    import re

    from launcher import cli

    monkeypatch.chdir(place)
    before = sorted(place.iterdir())
    assert cli.main(["generate", "model", "--ids", "1", *words]) == 2
    said = capsys.readouterr().err
    assert re.search(message, said) and said.count("\n") == 1 and sorted(place.iterdir()) == before
