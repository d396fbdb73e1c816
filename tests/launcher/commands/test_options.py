"""How options of jobs become options of commands, and words of a command line their values."""

from __future__ import annotations

import argparse

import pytest

from launcher.commands.options import add_option
from launcher.commands.parsing import TakesFlags, joined
from launcher.job.options import OPTIONS


def test_a_command_may_describe_an_option_in_its_own_words() -> None:
    parser = argparse.ArgumentParser()
    add_option(parser, "ranks", "start so many, and try them")
    add_option(parser, "timeout")
    helps = {action.dest: action.help for action in parser._actions}
    assert helps["ranks"] == "start so many, and try them"
    assert OPTIONS["ranks"].help and helps["timeout"] == OPTIONS["timeout"].help
    assert parser.get_default("takes") == {"ranks", "timeout"}


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--pass", "-x"], ["--pass=-x"]),
        (["--pass", "--pass", "--plain"], ["--pass=--pass", "--plain"]),
        (["--pass"], ["--pass"]),
        (["--value", "--pass", "-x"], ["--value", "--pass", "-x"]),
        (["--on", "--pass", "x"], ["--on", "--pass=x"]),
        (["file", "--pass", "-x"], ["file", "--pass=-x"]),
        ([], []),
    ],
)
def test_the_next_word_is_the_value_even_where_it_looks_like_a_flag(
    words: list[str], found: list[str]
) -> None:
    assert joined(_parser(), words) == found


def test_what_follows_another_program_is_left_as_it_is() -> None:
    parser = _parser()
    parser.add_argument("program", nargs=argparse.REMAINDER)
    assert joined(parser, ["--pass", "-x", "true", "--pass", "-x"]) == ["--pass=-x", "true", "--pass", "-x"]
    assert joined(parser, ["--", "--pass", "-x"]) == ["--", "--pass", "-x"]


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser()
    parser.add_argument("--pass", action=TakesFlags)
    parser.add_argument("--value")
    parser.add_argument("--on", action="store_true")
    return parser
