"""What job systems are told, as flags say it: times, GPUs, indices, claims."""

from __future__ import annotations

from pathlib import Path

import pytest
import yaml

from launcher.errors import ConfigError
from launcher.job.job import Job
from launcher.submission.base import Submission
from launcher.submission.manifests import as_yaml
from launcher.submission.options import SUBMIT, Gpus, SubmitOptions, parse_gpus, parse_time, written_time

HOUR, DAY = 3600, 86400


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("1", 60), ("90", 90 * 60), ("0:01", 1), ("1:2", 62), ("30:30", 1830), ("90:00", 90 * 60),
        ("1:00:00", HOUR), ("0:0:1", 1), ("0:59:59", HOUR - 1), ("100:00:00", 100 * HOUR),
        ("1-0", DAY), ("2-3", 2 * DAY + 3 * HOUR), ("1-24", 2 * DAY), ("0-1:30", HOUR + 1800),
        ("1-2:3:4", DAY + 2 * HOUR + 184),
    ],
)  # fmt: skip
def test_times(text: str, seconds: int) -> None:
    assert parse_time(text) == seconds
    assert parse_time(written_time(seconds)) == seconds


@pytest.mark.parametrize(
    "text", ["", "0", "0:00", "1:60", "1:60:00", "1:00:60", "1-0:60", "1-", "-1", "1:2:3:4", "x", "1.5", "٣"]
)
def test_times_that_are_none(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected a time .*as minutes, HOURS:MINUTES:SECONDS or DAYS-"):
        parse_time(text)


def test_times_as_job_systems_read_them() -> None:
    assert [written_time(one) for one in (1, 61, HOUR, 30 * HOUR + 5)] == [
        "00:00:01", "00:01:01", "01:00:00", "30:00:05"
    ]  # fmt: skip


def test_gpus() -> None:
    assert parse_gpus("2") == Gpus(2) and parse_gpus("a100:1") == Gpus(1, "a100")
    assert parse_gpus("999").count == 999
    for text in ("0", "a100:0", "1000", "a100:", ":1", "a b:1", "", "-1"):
        with pytest.raises(ConfigError, match=f"expected N or TYPE:N, the GPUs of one rank, found '{text}'"):
            parse_gpus(text)


@pytest.mark.parametrize(
    ("name", "right", "wrong"),
    [
        ("array", ["0", "0-3", "1,4,8-10%2", "0-30:10"], ["", "a", "0-", "1,", "%2", "0-3:", "1--2"]),
        ("partition", ["gpu"], ["", "-gpu", "a\nb"]),
        ("constraint", ["-x", "a&b"], ["", "a\tb"]),
        ("mpi", ["none", "pmi2", "pmix"], ["x", ""]),
        ("kind", ["job", "mpijob"], ["pod"]),
    ],
)
def test_texts(name: str, right: list[str], wrong: list[str]) -> None:
    kind = SUBMIT[name].kind
    for text in right:
        assert kind.fits(text) and getattr(SubmitOptions(**{name: text}), name) == text  # type: ignore[arg-type]
    for text in wrong:
        if name == "array":
            with pytest.raises(ConfigError, match="expected indices such as 0-3"):
                kind.parse(text)
        else:
            assert not kind.fits(text), text


def test_claims() -> None:
    kind = SUBMIT["volumes"].kind
    for text in ("data:/mnt", "a.b-c:/", "0:/x y"):
        assert kind.fits([text]), text
    for text in ("data", "data:mnt", "Data:/mnt", "-a:/mnt", "a-:/mnt", "a:/mnt:ro", ":/mnt"):
        assert not kind.fits([text]), text


def test_what_is_given() -> None:
    assert SubmitOptions().given == []
    options = SubmitOptions(time=60, directives=("--a",)).with_flags(
        {"nodes": 2, "directives": ["--b"], "x": 1}
    )
    assert options.given == ["time", "nodes", "directives"] and options.directives == ("--b",)


def test_the_name_of_a_job() -> None:
    def name(model: str | None, given: str | None = None) -> str:
        job = Job(model=None if model is None else Path(model))
        return Submission(job, 2, SubmitOptions(name=given)).name

    assert name("/a/My Model_v2.onnx") == "my-model-v2" and name("m.onnx", "other") == "other"
    assert name(None) == name("__.onnx") == "shardrun"
    assert name("a" * 39 + "-b.onnx") == "a" * 39


def test_manifests_hold_no_references_and_no_words_that_are_more_than_texts() -> None:
    """Which kubectl's YAML would take for truth values and numbers, and many tools do not follow."""
    shared = {"a": ["y", "1e3", "no", "plain", "", "0x1f", "null", "ä: b"]}
    objects = [{"one": shared, "two": shared, "number": 3, "truth": True}, {"three": shared["a"]}]
    text = as_yaml(objects)
    assert "&" not in text and "*" not in text
    assert list(yaml.safe_load_all(text)) == objects
    for word in ("y", "1e3", "no", "0x1f", "null"):
        assert f'- "{word}"\n' in text
    assert "- plain\n" in text
