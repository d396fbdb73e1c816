"""Environment variables that say how a process works: read strictly, and before anything is started."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from launcher.cli import main
from launcher.group.starting import run_program
from ranks.cache.folder import cache_folder
from ranks.common import settings, sources
from ranks.errors import SettingError
from scripts import environment

NONSENSE = ["-1", "nan", "1\n2", "٣", "0x10", "../rel", "9" * 400, "x" * 5000, "two", "1_0"]
VARIABLES = {
    "SHARDRUN_TIMEOUT": ["0", "-3", "inf", "1e300", "1e-400", "5 s", *NONSENSE],
    "SHARDRUN_THREADS": ["0", "1.5", "+5", "1025", "1e1", *NONSENSE],
    "SHARDRUN_CACHE_LIMIT": ["0", "0 GB", "inf", "1e9", "1 XB", "GB", *NONSENSE],
    "SHARDRUN_COLLECTIVES": ["glo", "shm,mpi", *NONSENSE],
    "SHARDRUN_WEIGHTS": ["yes", "0", *NONSENSE],
    "SHARDRUN_TARGET": ["gpu", "cpu2", *NONSENSE],
    "SHARDRUN_MINDSPORE_LITE": ["fake", *NONSENSE],
    "SHARDRUN_CUDA_GRAPHS": ["yes", "2", *NONSENSE],
}
WRONG = [(name, text) for name, texts in VARIABLES.items() for text in texts]


@pytest.mark.parametrize(("name", "text"), WRONG, ids=lambda value: ascii(value)[:30])
def test_each_is_refused_by_name_before_any_work(
    name: str, text: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv(name, text)
    with pytest.raises(SettingError) as caught:
        settings.check()
    assert str(caught.value).startswith(f"{name} must be ")
    # The model is not there: the command does not come to that.
    assert main(["run", "no such model", "--ranks", "2"]) == 2
    told = capsys.readouterr().err
    assert told.startswith(f"shardrun: error: {name} must be ") and told.count("\n") == 1 and len(told) < 300


@pytest.mark.parametrize("name", VARIABLES)
def test_nothing_and_blanks_are_no_setting(name: str) -> None:
    nothing = {key: text for key, text in os.environ.items() if key not in VARIABLES}
    for text in ("", "  "):
        environ = {**nothing, name: text}
        settings.check(environ)
        assert settings.default_timeout(environ) == settings.DEFAULT_TIMEOUT
        assert settings.threads(environ) is settings.cache_limit(environ) is None
        assert settings.collectives(environ) == "auto" and settings.stand_in(environ)
        assert not settings.weights(environ) and not settings.target(environ)


def test_what_each_may_say() -> None:
    assert settings.default_timeout({"SHARDRUN_TIMEOUT": " 2.5e1 "}) == 25.0
    assert settings.default_timeout({"SHARDRUN_TIMEOUT": "1e+07"}) == settings.LONGEST_TIMEOUT
    assert settings.threads({"SHARDRUN_THREADS": " 7 "}) == 7
    assert settings.collectives({"SHARDRUN_COLLECTIVES": "gloo"}) == "gloo"
    assert settings.weights({"SHARDRUN_WEIGHTS": "ON"}) == "on"
    assert settings.cache_limit({"SHARDRUN_CACHE_LIMIT": "1.5 gb"}) == 15 * 10**8
    assert settings.target({"SHARDRUN_TARGET": "CPU"}) == "cpu"
    assert not settings.stand_in({"SHARDRUN_MINDSPORE_LITE": "Real"})


def test_a_start_refuses_them_before_ranks_are_there(tmp_path: Path) -> None:
    """Those given to it, too: no rank reports it, from wherever it runs."""
    script = tmp_path / "script.py"
    script.write_text("raise SystemExit('it ran')")
    with pytest.raises(SettingError, match=r"^SHARDRUN_WEIGHTS must be on or off, but is 'maybe'\.$"):
        run_program(["exec", str(script)], ranks=2, environment={"SHARDRUN_WEIGHTS": "maybe"})


def test_what_is_of_one_job_reaches_no_other() -> None:
    environ = {item.name: "1" for item in settings.VARIABLES}
    gone = {name.removeprefix("SHARDRUN_") for name in set(environ) - set(sources.clean(environ))}
    assert gone == {"JOB", "CONTROL", "SCRATCH", "IDENTITY", "TOLD", "BOUND"}


def test_a_tilde_is_the_home_folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path / "home"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "xdg"))
    for text, folder in {
        "~/a/b": "home/a/b",
        "~": "home",
        " ": "xdg/shardrun",
        "": "xdg/shardrun",
        "rel/c": "rel/c",
        "~x": "~x",
    }.items():
        monkeypatch.setenv("SHARDRUN_CACHE", text)
        assert cache_folder() == tmp_path / folder


def test_the_page_has_the_table_of_the_code() -> None:
    text = environment.PAGE.read_text()
    assert environment.written(text) == text, "run scripts/environment.py"
    assert all(f"`{item.name}`" in text for item in settings.VARIABLES)
