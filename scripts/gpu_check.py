"""Checks the GPU path: what scripts/gpu_check.sh runs. Needs nothing but Python itself; the checks need more.

Each check is a process of its own, in a group that is killed when its time is up: what hangs or dies on a
device must not take the rest with it.
"""

from __future__ import annotations

import argparse
import contextlib
import dataclasses
import json
import os
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from xml.etree import ElementTree

ROOT = Path(__file__).resolve().parent.parent
PASSED, FAILED, DIED, LATE, SKIPPED = "passed", "FAILED", "DIED", "TIMED OUT", "not covered"
RIGHT, WRONG, IMPOSSIBLE, PARTLY = 0, 1, 2, 3
NOTE = "not covered: "  # how a line begins that names a part of a check that was left out
_MOST_MINUTES = 1e6
_SHOWN = 3  # lines of each failure
_FAILED = re.compile(r"^\S+::(\S+) (?:FAILED|ERROR)\b", re.MULTILINE)  # as pytest says it at once
_ERROR = re.compile(r"(?:\[rank\d+\]: )?[\w.]+: \S")  # below a traceback, the line that names the error
_LONG = 100  # characters of a reason: a longer one is said once


@dataclasses.dataclass(frozen=True)
class Check:
    """One check: the function of tests/gpu/bare.py or the tests of tests/gpu that it is, and its needs."""

    title: str
    bare: str = ""
    tests: tuple[str, ...] = ()
    gpus: int = 1
    torch: bool = True
    seconds: float = 60.0


@dataclasses.dataclass(frozen=True)
class Found:
    """What the machine has, as tests/gpu/bare.py tells it."""

    gpus: int
    names: tuple[str, ...]
    words: str
    problem: str = ""  # why ONNX Runtime cannot use the first GPU; "": it can
    torch: str = ""  # why torch cannot
    tests: str = ""  # why the tests in tests/gpu cannot be run


@dataclasses.dataclass(frozen=True)
class Result:
    """How a check ended; ``lines`` say why."""

    check: Check
    status: str
    seconds: float = 0.0
    lines: tuple[str, ...] = ()


_SEVERAL = "tests/gpu/test_several.py::"
_CUDA = "tests/gpu/test_cuda.py::"
_SHARED = "tests/gpu/test_shared_weights.py::"
CHECKS: tuple[Check, ...] = (
    Check("the driver: GPUs, their identity, memory", bare="driver", torch=False, seconds=30),
    Check(
        "a plain model: right, and every node of it on CUDA", tests=("tests/gpu/test_plain.py",), torch=False
    ),
    Check("values on the GPU as torch tensors", bare="memory"),
    Check(
        "two ranks on one GPU, collectives by way of the host",
        tests=(f"{_CUDA}test_two_processes[shm]", f"{_SEVERAL}test_ranks_that_share_a_gpu"),
        seconds=90,
    ),
    Check("NCCL between ranks: every collective", tests=(f"{_SEVERAL}test_nccl",), gpus=2, seconds=90),
    Check(
        "NCCL between ranks: a sliced model", tests=(f"{_CUDA}test_two_processes[nccl]",), gpus=2, seconds=90
    ),
    Check(
        "NCCL between ranks: a killed rank is noticed, and the group left within 5 s",
        tests=(f"{_SEVERAL}test_a_killed_rank",),
        gpus=2,
    ),
    Check("variable weights on the GPU of rank 1", tests=(f"{_SEVERAL}test_variable_weights",), gpus=2),
    Check("one visible GPU for each rank", tests=(f"{_SEVERAL}test_one_visible_gpu_each",), gpus=2),
    Check("two ranks that came to one GPU are refused", tests=(f"{_SEVERAL}test_one_gpu_for_two",)),
    Check("NCCL with one rank: joining, every type, aborting, closing", bare="nccl"),
    Check(
        "one copy of the weights on the GPU for several processes",
        tests=(f"{_SHARED}test_processes_have_one_copy_on_the_device",),
        torch=False,
        seconds=120,
    ),
    Check("precision: float32, TF32, float16", tests=("tests/gpu/test_precision.py",), torch=False),
    Check("memory that two processes map", bare="ipc", torch=False),
    Check("values at an address (DLPack)", bare="dlpack"),
    Check("host collectives on the GPU's values, two processes", bare="staged"),
    Check("CUDA graphs: what is replayed reads new values", tests=(f"{_SEVERAL}test_graphs",)),
    Check("a group started by launcher.start", tests=(f"{_CUDA}test_a_group_on_gpus",), seconds=90),
    Check("NCCL between ranks: a mesh", tests=(f"{_CUDA}test_a_mesh_over_nccl",), gpus=2, seconds=90),
    Check(
        "changing shapes, half precision, meshes, memory given back",
        tests=tuple(
            _CUDA + name
            for name in (
                "test_random_graphs_with_shapes_that_change_between_runs",
                "test_shapes_that_depend_on_values",
                "test_shape_arithmetic_between_segments_stays_on_the_host",
                "test_half_precision",
                "test_a_mesh_on_one_gpu",
                "test_all_memory_is_given_back",
            )
        ),
        seconds=120,
    ),
    Check(
        "shared weights: deaths, an encoder, blocks",
        tests=tuple(
            _SHARED + name
            for name in (
                "test_the_memory_is_free_once_all_are_gone",
                "test_an_encoder_over_shared_memory",
                "test_the_session_uses_the_block_in_place",
                "test_a_block_takes_and_gives_back_memory",
                "test_more_memory_than_the_device_has",
            )
        ),
        torch=False,
        seconds=120,
    ),
    Check("TensorRT", tests=("tests/gpu/test_tensorrt.py",), torch=False, seconds=120),
)


def main(arguments: Sequence[str] | None = None) -> int:
    """Runs what can be run here, prints each result as it comes, and gives gpu_check.sh's status."""
    parser = argparse.ArgumentParser(prog="scripts/gpu_check.sh [PYTHON]", description="Checks the GPU path.")
    parser.add_argument("--bare", action="store_true", help="only what is below ONNX Runtime")
    parser.add_argument("--minutes", type=_minutes, default=5.0, help="for all checks together (default: 5)")
    parser.add_argument("--list", action="store_true", help="only list the checks")
    options = parser.parse_args(arguments)
    try:
        if options.list:
            for check in CHECKS:
                say(f"{'' if check.gpus == 1 else f'({check.gpus} GPUs) '}{check.title}")
            return RIGHT
        found = probe()
    except (KeyboardInterrupt, OSError) as error:
        found = f"The GPU checks cannot run: {_ended_by(error)}."
    if isinstance(found, str):
        print(found, file=sys.stderr)
        return IMPOSSIBLE
    results: list[Result] = []
    try:
        say(found.words)
        for name in found.names:
            say(f"  {name}")
        deadline = time.monotonic() + options.minutes * 60
        for check in CHECKS:
            up = f"the {options.minutes:g} minutes were up"
            left = deadline - time.monotonic()
            why = missing(check, found, options.bare)
            if not why and left <= 0:
                why = f"{up}: give more with --minutes"
            result = Result(check, SKIPPED, 0.0, (why,)) if why else run(check, left)
            if result.status == LATE and left < check.seconds:  # it did not have its time: that is no failure
                late = f"{up} after {left:.0f} of its {check.seconds:.0f} s: give more with --minutes"
                result = dataclasses.replace(result, status=SKIPPED, lines=(late, *result.lines[1:]))
            results.append(result)
            if not why:
                show(result)
    except (KeyboardInterrupt, OSError) as error:
        why = _ended_by(error)
        results += [Result(check, SKIPPED, 0.0, (why,)) for check in CHECKS[len(results) :]]
    try:
        return conclude(results)
    except OSError as error:
        print(f"The GPU checks cannot say what they found: {_ended_by(error)}.", file=sys.stderr)
        return status_of(results)


def _ended_by(error: BaseException) -> str:
    """What ended the checks, in words: nobody reads what they say, or no file can be written."""
    return (error.strerror or str(error)) if isinstance(error, OSError) else "interrupted"


def _minutes(text: str) -> float:
    """How long all checks may take; argparse says what is wrong with another text."""
    with contextlib.suppress(ValueError):
        if 0 < (minutes := float(text)) < _MOST_MINUTES:
            return minutes
    raise argparse.ArgumentTypeError(f"must be a number of minutes above 0, but is {text!r}")


def probe() -> Found | str:
    """What the machine has, or a sentence that says why nothing can be checked."""
    ended = execute([sys.executable, "-m", "tests.gpu.bare", "probe"], 120)
    if ended.status == 0:
        with contextlib.suppress(ValueError, TypeError, IndexError, KeyError):
            told = json.loads(ended.output.splitlines()[-1])
            if "impossible" in told:
                return f"The GPU checks cannot run: {told['impossible']}"
            return Found(**{**told, "names": tuple(told["names"])})
    return f"The GPU checks cannot run: looking at this machine {how(ended)}\n" + "\n".join(ended.last())


def missing(check: Check, found: Found, bare: bool = False) -> str:
    """Why a check is not run here; "": it is."""
    if check.gpus > found.gpus:
        return f"needs {check.gpus} GPUs, and this machine shows {found.gpus}"
    if check.torch and found.torch:
        return found.torch
    if check.bare:
        return ""
    if bare:
        return "--bare: only what is below ONNX Runtime"
    return found.problem or found.tests


@dataclasses.dataclass(frozen=True)
class Ended:
    """A process's end; ``status`` None: its time was up."""

    status: int | None
    output: str
    seconds: float

    def last(self) -> list[str]:
        """What it said last; of a crash, where it came."""
        lines = [line[:200] for line in self.output.splitlines() if line.strip()]
        for index, line in enumerate(lines):
            if line.startswith("Fatal Python error"):
                where = [place for place in lines[index:] if place.lstrip().startswith("File ")]
                return [line, *where[: _SHOWN - 1]]
        return lines[-_SHOWN:]


def execute(command: Sequence[str], seconds: float) -> Ended:
    """Runs a command in a process group of its own, which does not outlive the call."""
    begun = time.monotonic()
    # What the caller has put on the path (an unpacked wheel, say) is meant as seen from where it was called.
    given = [str(Path(one).absolute()) for one in os.environ.get("PYTHONPATH", "").split(os.pathsep) if one]
    path = os.pathsep.join([str(ROOT), *given])
    environment = {**os.environ, "PYTHONPATH": path, "PYTHONFAULTHANDLER": "1"}
    with tempfile.TemporaryFile("w+", errors="replace") as output:
        try:
            process = subprocess.Popen(
                command, cwd=ROOT, env=environment, stdout=output, stderr=output, stdin=subprocess.DEVNULL,
                start_new_session=True,
            )  # fmt: skip
        except OSError as error:
            return Ended(127, str(error), 0.0)
        status: int | None = None
        try:
            with contextlib.suppress(subprocess.TimeoutExpired):
                status = process.wait(max(seconds, 0.1))
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        output.seek(0)
        return Ended(status, output.read(), time.monotonic() - begun)


def how(ended: Ended) -> str:
    """How a process came to its end, if not well."""
    if ended.status is None:
        return f"was killed after {ended.seconds:.0f} s"
    if ended.status < 0:
        with contextlib.suppress(ValueError):
            return f"was ended by {signal.Signals(-ended.status).name}"
    return f"ended with status {ended.status}"


def run(check: Check, left: float) -> Result:
    """Runs one check in at most ``left`` seconds."""
    seconds = min(check.seconds, left)
    if check.bare:
        return _of_program(check, execute([sys.executable, "-m", "tests.gpu.bare", check.bare], seconds))
    with tempfile.TemporaryDirectory() as folder:
        report = Path(folder) / "report.xml"
        command = [sys.executable, "-m", "pytest", *check.tests, "-v", "-p", "no:cacheprovider"]
        ended = execute([*command, f"--junitxml={report}"], seconds)
        return _of_tests(check, ended, report)


def _of_program(check: Check, ended: Ended) -> Result:
    if ended.status is None:
        return Result(check, LATE, ended.seconds, (f"it {how(ended)}", *ended.last()))
    if ended.status == 0:
        left_out = [line for line in ended.output.splitlines() if line.startswith(NOTE)]
        return Result(check, PASSED, ended.seconds, (*ended.last()[-1:], *left_out))
    status = FAILED if ended.status == 1 else DIED
    return Result(check, status, ended.seconds, (f"it {how(ended)}", *ended.last()))


def _of_tests(check: Check, ended: Ended, report: Path) -> Result:
    """What pytest's report says; where it left none, how pytest ended."""
    if ended.status is None:
        # What has failed by then has failed, however little time the rest had.
        bad = [f"{name} had failed before" for name in _FAILED.findall(ended.output)]
        status = FAILED if bad else LATE
        return Result(check, status, ended.seconds, (f"it {how(ended)}", *bad, *ended.last()))
    try:
        cases = list(ElementTree.parse(report).iter("testcase"))
    except (OSError, ElementTree.ParseError):
        return Result(check, DIED, ended.seconds, (f"pytest {how(ended)} and left no report", *ended.last()))
    bad, skipped, good = [], [], 0
    for case in cases:
        kinds = {child.tag: child for child in case}
        if (wrong := kinds.get("failure", kinds.get("error"))) is not None:
            bad.append(f"{case.get('name')}: {_main_line(wrong.get('message') or '')[:300]}")
        elif "skipped" in kinds:
            skipped.append(f"{case.get('name')}: {kinds['skipped'].get('message')}")
        else:
            good += 1
    if bad:
        return Result(check, FAILED, ended.seconds, tuple(bad))
    if ended.status != 0 or not cases:
        words = "no test ran" if ended.status in {0, 5} else f"pytest {how(ended)}"
        return Result(check, DIED, ended.seconds, (words, *ended.last()))
    if skipped and not good:
        return Result(check, SKIPPED, ended.seconds, tuple(skipped))
    return Result(check, PASSED, ended.seconds, tuple(f"{NOTE}{line}" for line in skipped))


def _main_line(message: str) -> str:
    """The line of a failure's message that says most: of what a process said that ended by an error, the
    error; else the first."""
    lines = [line for line in message.splitlines() if line.strip()] or ["no message"]
    _, traced, last = message.rpartition("Traceback (most recent call last):\n")
    named = [line for line in last.splitlines() if traced and _ERROR.match(line)]
    return (named or lines)[0].strip()


def show(result: Result) -> None:
    """One line, and why below it."""
    say(f"{result.status:>11}  {result.seconds:6.1f} s  {result.check.title}")
    for line in result.lines:
        say(f"{'':23}{line}")


def conclude(results: Sequence[Result]) -> int:
    """What was not covered, the numbers, and the status to end with."""
    open_ = [(one.check.title, one.lines[0]) for one in results if one.status == SKIPPED]
    open_ += [(one.check.title, line) for one in results if one.status == PASSED for line in _left_out(one)]
    before: set[str] = set()
    for title, why in open_:
        short = f"{why.partition(':')[0]}: see above" if len(why) > _LONG and why in before else why
        say(f"NOT COVERED: {title} ({short})")
        before.add(why)
    good = sum(one.status == PASSED for one in results)
    bad = sum(one.status in {FAILED, DIED, LATE} for one in results)
    say(f"{good} passed, {bad} failed, {len(open_)} not covered")
    return status_of(results)


def status_of(results: Sequence[Result]) -> int:
    """The status to end with."""
    if any(one.status in {FAILED, DIED, LATE} for one in results):
        return WRONG
    good = [one for one in results if one.status == PASSED]
    if not good:
        return IMPOSSIBLE
    return PARTLY if len(good) < len(results) or any(_left_out(one) for one in good) else RIGHT


def _left_out(result: Result) -> list[str]:
    """What a check that passed did not cover."""
    return [line.removeprefix(NOTE) for line in result.lines if line.startswith(NOTE)]


def say(line: str) -> None:
    """At once, also into a file: a check that comes may hang."""
    print(line, flush=True)


_ENDING = (signal.SIGTERM, signal.SIGHUP, signal.SIGINT)


def _interrupt(*_: object) -> None:
    """The check that runs is ended, and what was not run is named; a second signal does not hinder that."""
    for number in _ENDING:
        signal.signal(number, signal.SIG_IGN)
    raise KeyboardInterrupt


if __name__ == "__main__":
    for one in _ENDING:
        if signal.getsignal(one) is not signal.SIG_IGN:  # as nohup has it
            signal.signal(one, _interrupt)
    sys.exit(main())
