"""scripts/gpu_check.sh itself: what it makes of tests that pass, fail, hang, die and are skipped.

A Python that pretends stands in for the checks. The real ones run over the stand-in for CUDA, whose kernels
do nothing, so that answers are wrong and must be called so.
"""

from __future__ import annotations

import dataclasses
import errno
import importlib.util
import json
import os
import re
import select
import signal
import subprocess
import sys
import tempfile
import time
import venv
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest

from ranks.devices import devices
from tests.gpu import near
from tests.ranks import stand_in

ROOT = Path(__file__).resolve().parents[2]
FOUND = {
    "gpus": 1,
    "names": ["GPU 0: abc, A Card"],
    "words": "driver for CUDA 13.0; onnxruntime 9",
    "problem": "",
}
FOUND |= {"torch": "", "tests": ""}
# Takes the command line of a check and does what PRETEND says of it, by a word that stands in it.
PRETENDER = """#!{python}
import json, os, signal, sys, time
line = " ".join(sys.argv[1:])
found, plan = json.loads({plan!r})
if "bare probe" in line:
    print("a warning of a library")
    if isinstance(found, str):
        exec(found)
    print(json.dumps(found))
    sys.exit()
for word, action in plan.items():
    if word in line:
        break
else:
    sys.exit("no plan for " + line)
report = line.partition("--junitxml=")[2]
def write(*cases):
    with open(report, "w") as file:
        file.write("<testsuites><testsuite>" + "".join(cases) + "</testsuite></testsuites>")
good = '<testcase name="test_good"/>'
exec(action)
"""


@pytest.fixture(scope="module")
def gpu_check() -> Any:
    spec = importlib.util.spec_from_file_location("gpu_check", ROOT / "scripts" / "gpu_check.py")
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["gpu_check"] = module
    spec.loader.exec_module(module)
    return module


@pytest.fixture
def pretend(gpu_check: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Any:
    """Runs the check with these checks by title, each one's action, and what the machine has."""

    def run(
        actions: dict[str, str], found: Any = None, arguments: tuple[str, ...] = (), **settings: Any
    ) -> tuple[int, list[str]]:
        checks = tuple(
            gpu_check.Check(
                title, tests=(f"tests/{number}.py",), **{"seconds": 30.0, **settings.get(title, {})}
            )
            for number, title in enumerate(actions)
        )
        plan = {f"tests/{number}.py": action for number, action in enumerate(actions.values())}
        python = tmp_path / "python"
        text = json.dumps([found if isinstance(found, str) else {**FOUND, **(found or {})}, plan])
        python.write_text(PRETENDER.format(python=sys.executable, plan=text))
        python.chmod(0o755)
        monkeypatch.setattr(gpu_check, "CHECKS", checks)
        monkeypatch.setattr(sys, "executable", str(python))
        status = gpu_check.main(list(arguments))
        captured = capsys.readouterr()
        return status, (captured.out + captured.err).splitlines()

    return run


GOOD = "write(good)"
SKIPPED = """write('<testcase name="test_it"><skipped message="no transformers"/></testcase>')"""
FAILURE = """'<testcase name="test_sum"><failure message="assert 1 == 2&#10;more"/></testcase>'"""
FAILING = f"write(good, {FAILURE}); sys.exit(1)"


def test_all_is_right(pretend: Any) -> None:
    status, lines = pretend({"one": GOOD, "two": GOOD})
    assert status == 0
    assert lines[:2] == ["driver for CUDA 13.0; onnxruntime 9", "  GPU 0: abc, A Card"]
    assert [line.split()[0] for line in lines[2:4]] == ["passed", "passed"]
    assert lines[4:] == ["2 passed, 0 failed, 0 not covered"]


def test_what_was_not_covered_has_a_status_of_its_own(pretend: Any) -> None:
    status, lines = pretend(
        {
            "one": GOOD,
            "NCCL between ranks": GOOD,
            "an encoder": SKIPPED,
            "half": "write(good, " + SKIPPED[6:],
        },
        **{"NCCL between ranks": {"gpus": 2}},
    )
    assert status == 3
    assert lines[-4:] == [
        "NOT COVERED: NCCL between ranks (needs 2 GPUs, and this machine shows 1)",
        "NOT COVERED: an encoder (test_it: no transformers)",
        "NOT COVERED: half (test_it: no transformers)",
        "2 passed, 0 failed, 3 not covered",
    ]


def test_with_more_gpus_more_is_covered(pretend: Any) -> None:
    status, lines = pretend({"NCCL between ranks": GOOD}, {"gpus": 2}, **{"NCCL between ranks": {"gpus": 2}})
    assert status == 0 and not any("NOT COVERED" in line for line in lines)


@pytest.mark.parametrize(
    ("action", "word", "why"),
    [
        (FAILING, "FAILED", "test_sum: assert 1 == 2"),
        ("os.kill(os.getpid(), signal.SIGSEGV)", "DIED", "pytest was ended by SIGSEGV and left no report"),
        ("os.kill(os.getpid(), signal.SIGKILL)", "DIED", "pytest was ended by SIGKILL and left no report"),
        ("print('usage: bad'); sys.exit(4)", "DIED", "pytest ended with status 4 and left no report"),
        ("sys.exit(0)", "DIED", "pytest ended with status 0 and left no report"),
        (
            "open(report, 'w').write('<testsuites><te'); sys.exit(1)",
            "DIED",
            "pytest ended with status 1 and left no",
        ),
        ("write(); sys.exit(5)", "DIED", "no test ran"),
        ("write(); sys.exit(0)", "DIED", "no test ran"),
        ("write(good); sys.exit(1)", "DIED", "pytest ended with status 1"),
        (
            'write(\'<testcase name="x"><error message="fixture"/></testcase>\'); sys.exit(1)',
            "FAILED",
            "x: fixture",
        ),
    ],
)
def test_a_check_that_does_not_pass(pretend: Any, action: str, word: str, why: str) -> None:
    status, lines = pretend({"one": action, "two": GOOD})
    assert status == 1
    at = next(index for index, line in enumerate(lines) if line.endswith("one"))
    assert lines[at].strip().startswith(word) and lines[at + 1].strip().startswith(why)
    assert lines[-1] == "1 passed, 1 failed, 0 not covered"


def test_a_check_that_hangs_is_ended_with_what_it_started(pretend: Any, tmp_path: Path) -> None:
    child = (
        "import subprocess; "
        "p = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(600)']); "
        f"open({str(tmp_path / 'pid')!r}, 'w').write(str(p.pid)); "
        "print('it began', flush=True); time.sleep(600)"
    )
    begun = time.monotonic()
    status, lines = pretend({"one": child, "two": GOOD}, one={"seconds": 3.0})
    assert time.monotonic() - begun < 60
    assert status == 1 and lines[-1] == "1 passed, 1 failed, 0 not covered"
    at = next(index for index, line in enumerate(lines) if line.endswith("one"))
    assert lines[at].strip().startswith("TIMED OUT")
    assert lines[at + 1].strip() == "it was killed after 3 s" and lines[at + 2].strip() == "it began"
    stat = Path("/proc") / (tmp_path / "pid").read_text() / "stat"
    deadline = time.monotonic() + 20
    while (
        stat.exists()
        and stat.read_text().rpartition(")")[2].split()[0] != "Z"
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    assert not stat.exists() or stat.read_text().rpartition(")")[2].split()[0] == "Z"


def test_the_time_for_all_is_up(pretend: Any) -> None:
    """A check that had less than its own time has not failed."""
    status, lines = pretend(
        {"zero": GOOD, "one": "time.sleep(600)", "two": GOOD}, arguments=("--minutes", "0.05")
    )
    assert status == 3
    late = r"NOT COVERED: one \(the 0.05 minutes were up after [1-3] of its 30 s: give more with --minutes\)"
    assert re.fullmatch(late, lines[-3])
    assert lines[-2:] == [
        "NOT COVERED: two (the 0.05 minutes were up: give more with --minutes)",
        "1 passed, 0 failed, 2 not covered",
    ]


LATE_TESTS = """
import time
import onnxruntime as ort
import pytest
def test_wrong(): assert 1 == 2
@pytest.mark.timeout(0)
def test_late(): time.sleep(600)
"""


def test_what_had_failed_when_the_time_was_up_has_failed(pretend: Any, tmp_path: Path) -> None:
    """Of tests that pytest itself runs, of which the second hangs."""
    (tmp_path / "test_it.py").write_text(LATE_TESTS)
    own = [sys.executable, "-m", "pytest", str(tmp_path / "test_it.py")]
    program = f"os.execv({sys.executable!r}, {own!r} + sys.argv[4:])"
    status, lines = pretend({"one": program, "two": GOOD}, arguments=("--minutes", "0.3"))
    assert status == 1 and lines[-1] == "0 passed, 1 failed, 1 not covered"
    at = next(index for index, line in enumerate(lines) if line.endswith("one"))
    assert lines[at].strip().startswith("FAILED")
    assert re.fullmatch(r"it was killed after 1\d s", lines[at + 1].strip())
    assert lines[at + 2].strip() == "test_wrong had failed before"


@pytest.mark.parametrize("text", ["nan", "inf", "0", "-1", "soon"])
def test_minutes_that_are_none(gpu_check: Any, text: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        gpu_check.main([f"--minutes={text}"])
    assert ended.value.code == 2
    assert (
        f"argument --minutes: must be a number of minutes above 0, but is '{text}'" in capsys.readouterr().err
    )


def test_what_a_program_left_out_is_not_covered(gpu_check: Any, capsys: pytest.CaptureFixture[str]) -> None:
    said = "a warning\nnot covered: values of bfloat16 (ml_dtypes is not installed)\ntypes float32\n"
    check = gpu_check.Check("values", bare="memory")
    result = gpu_check._of_program(check, gpu_check.Ended(0, said, 1.0))
    assert gpu_check.conclude([result]) == 3
    assert capsys.readouterr().out.splitlines() == [
        "NOT COVERED: values (values of bfloat16 (ml_dtypes is not installed))",
        "1 passed, 0 failed, 1 not covered",
    ]


def test_a_long_reason_is_said_once(pretend: Any) -> None:
    """Else the same sentence, a dozen times, hides what was not covered."""
    problem = f"CUDA is not in this build: {'install ' * 20}it."
    status, lines = pretend({"one": GOOD, "two": GOOD}, {"problem": problem})
    assert status == 2
    assert lines[-3:-1] == [
        f"NOT COVERED: one ({problem})",
        "NOT COVERED: two (CUDA is not in this build: see above)",
    ]


TRACE = ["Traceback (most recent call last):", '  File "a.py", line 3, in <module>', "    raise it: now"]


@pytest.mark.parametrize(
    ("said", "right"),
    [
        (["AssertionError: assert 1 == 2", " +  where 1 = f()"], "AssertionError: assert 1 == 2"),
        ([f"AssertionError: {TRACE[0]}", *TRACE[1:], "a.b.PeerLostError: Rank 1 ended", "", "assert 1 == 0"],
         "a.b.PeerLostError: Rank 1 ended"),
        (["AssertionError: a warning", *TRACE, "[rank0]: ValueError: it: is", "assert x: y"],
         "[rank0]: ValueError: it: is"),
        (["AssertionError: a warning", *TRACE, "KeyError: 1", "During it:", *TRACE, "OSError: 2", "assert 1"],
         "OSError: 2"),
        (["AssertionError: a warning", *TRACE], "AssertionError: a warning"),
        (["", " "], "no message"),
    ],
)  # fmt: skip
def test_of_a_process_that_failed_its_error_is_shown(gpu_check: Any, said: list[str], right: str) -> None:
    assert gpu_check._main_line("\n".join(said)) == right


# A machine on which every check hangs.
HANGING = """
import os, sys, time
if "probe" in sys.argv and {found!r}:
    print({found!r})
elif "-c" in sys.argv:
    print("python 3.11")
elif sys.argv[1:2] == ["-u"]:
    os.execv({python!r}, [{python!r}, "-u", "-c", {main!r}, *sys.argv[2:]])
else:
    open({pid!r}, "w").write(str(os.getpid()))
    time.sleep(600)
"""


@dataclasses.dataclass
class Hanging:
    """Checks under way, of which the process with number ``pid`` hangs."""

    process: subprocess.Popen[str]
    pid: str

    def ended(self, *numbers: signal.Signals) -> tuple[int, list[str], str]:
        """Status, output and errors after these signals; what hung is gone by then."""
        child = Path("/proc", self.pid, "stat")
        for number in numbers:
            self.process.send_signal(number)
        output, errors = self.process.communicate(timeout=60)
        assert not child.exists() or child.read_text().rpartition(")")[2].split()[0] == "Z"
        return self.process.returncode, output.splitlines(), errors


@pytest.fixture
def hanging(tmp_path: Path) -> Iterator[Callable[..., Hanging]]:
    started: list[subprocess.Popen[str]] = []

    def start(found: str = json.dumps(FOUND), ignored: Sequence[signal.Signals] = ()) -> Hanging:
        """``found``: what the machine has; "": looking at it hangs, too."""
        made = hang(tmp_path, found, ignored)
        started.append(made)
        pid, deadline = tmp_path / "pid", time.monotonic() + 60
        while not (pid.exists() and pid.read_text()) and time.monotonic() < deadline:
            time.sleep(0.02)
        return Hanging(made, pid.read_text())

    yield start
    for process in started:
        process.kill()


def hang(tmp_path: Path, found: str, ignored: Sequence[signal.Signals]) -> subprocess.Popen[str]:
    python, pid = tmp_path / "python", tmp_path / "pid"
    main = "import sys, runpy; sys.executable = {!r}; sys.argv = sys.argv[1:]; {}".format(
        str(python), "runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    text = HANGING.format(found=found, python=sys.executable, main=main, pid=str(pid))
    python.write_text(f"#!{sys.executable}\n{text}")
    python.chmod(0o755)
    traps = "".join(f"trap '' {number.name.removeprefix('SIG')};" for number in ignored)
    return subprocess.Popen(
        ["sh", "-c", f'{traps} exec "$@"', "sh", ROOT / "scripts" / "gpu_check.sh", python],
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
    )


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGHUP, signal.SIGINT])
def test_an_ended_check_leaves_nothing_behind(number: signal.Signals, hanging: Any) -> None:
    """A scheduler whose time is up, a terminal that is closed, Ctrl-C. What was known was said before."""
    made = hanging()
    said = bool(select.select([made.process.stdout], [], [], 20)[0])
    status, lines, errors = made.ended(number)
    assert said, "nothing was said while a check ran"
    assert status == 2 and not errors  # nothing was checked
    assert "NOT COVERED: the driver: GPUs, their identity, memory (interrupted)" in lines
    assert re.fullmatch(r"0 passed, 0 failed, \d+ not covered", lines[-1])


def test_a_second_signal_does_not_hinder_the_end(gpu_check: Any) -> None:
    """Some say it more than once, while a check is ended and the rest is named."""
    before = {number: signal.getsignal(number) for number in gpu_check._ENDING}
    try:
        with pytest.raises(KeyboardInterrupt):
            gpu_check._interrupt(signal.SIGTERM, None)
        assert {signal.getsignal(number) for number in before} == {signal.SIG_IGN}
        os.kill(os.getpid(), signal.SIGTERM)
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_while_the_machine_is_looked_at(number: signal.Signals, hanging: Any) -> None:
    assert hanging("").ended(number) == (2, [], "The GPU checks cannot run: interrupted.\n")


def test_a_signal_that_is_to_be_ignored_ends_nothing(hanging: Any) -> None:
    """As nohup has it."""
    made = hanging(ignored=[signal.SIGHUP])
    made.process.send_signal(signal.SIGHUP)
    with pytest.raises(subprocess.TimeoutExpired):
        made.process.wait(0.5)
    assert made.ended(signal.SIGTERM)[0] == 2


@pytest.mark.parametrize(
    ("found", "why"),
    [
        ({"problem": "CUDA device 0 cannot be used: no cublas."}, "CUDA device 0 cannot be used: no cublas."),
        ({"torch": "torch is not installed"}, "torch is not installed"),
        ({"tests": "pytest is not installed"}, "pytest is not installed"),
    ],
)
def test_what_is_missing_is_said(pretend: Any, found: dict[str, Any], why: str) -> None:
    status, lines = pretend({"one": GOOD}, found)
    assert status == 2  # nothing was checked
    assert lines[-2:] == [f"NOT COVERED: one ({why})", "0 passed, 0 failed, 1 not covered"]


def test_bare_leaves_out_what_needs_onnx_runtime(pretend: Any) -> None:
    status, lines = pretend({"one": GOOD}, arguments=("--bare",))
    assert status == 2 and lines[-2] == "NOT COVERED: one (--bare: only what is below ONNX Runtime)"


@pytest.mark.parametrize(
    ("found", "message"),
    [
        (
            'found = {"impossible": "no CUDA device: no driver."}',
            "The GPU checks cannot run: no CUDA device: no driver.",
        ),
        (
            "os.kill(os.getpid(), 11)",
            "The GPU checks cannot run: looking at this machine was ended by SIGSEGV",
        ),
        ("sys.exit('no numpy')", "The GPU checks cannot run: looking at this machine ended with status 1"),
        ("print('{'); sys.exit()", "The GPU checks cannot run: looking at this machine ended with status 0"),
    ],
)
def test_nothing_can_be_checked(pretend: Any, found: str, message: str) -> None:
    status, lines = pretend({"one": GOOD}, found)
    assert status == 2 and lines[0] == message


def test_each_check_names_what_there_is(gpu_check: Any) -> None:
    """A test that was renamed would be reported as dead on a machine with a GPU, and nowhere else."""
    from tests.gpu import bare

    for check in gpu_check.CHECKS:
        assert bool(check.bare) != bool(check.tests)
        assert not check.bare or callable(getattr(bare, check.bare))
    named = [test for check in gpu_check.CHECKS for test in check.tests]
    listed = subprocess.run(
        [sys.executable, "-m", "pytest", "tests/gpu", "--collect-only", "-q", "-p", "no:cacheprovider"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=True,
    ).stdout.splitlines()
    there = {line for line in listed if "::" in line}
    covered = {
        test for test in there for name in named if test == name or test.startswith((f"{name}::", f"{name}["))
    }
    assert all(any(test.startswith(name) for test in there) for name in named), named
    assert covered == there, there - covered


def run_door(*arguments: str, **more: Any) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [str(ROOT / "scripts" / "gpu_check.sh"), *arguments],
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
        **more,
    )


def test_the_door() -> None:
    ended = run_door(sys.executable, "--list")
    assert ended.returncode == 0
    assert "(2 GPUs) NCCL between ranks: every collective" in ended.stdout.splitlines()
    relative = os.path.relpath(sys.executable, ROOT / "docs")
    assert run_door(relative, "--list", cwd=ROOT / "docs").returncode == 0
    ended = run_door("/nowhere/python")
    assert ended.returncode == 2
    assert ended.stderr.startswith("The GPU checks cannot run: there is no /nowhere/python;")
    for last in (("--list", sys.executable), ("--minutes", "5", sys.executable, "--list")):
        assert run_door(*last).returncode == 0
    assert run_door(sys.executable, sys.executable).returncode == 2


class Broken:
    """Says some lines, and then nobody reads any more."""

    def __init__(self, lines: int) -> None:
        self.said: list[str] = []
        self._lines = lines

    def __call__(self, line: str) -> None:
        if len(self.said) == self._lines:
            raise BrokenPipeError(errno.EPIPE, "Broken pipe")
        self.said.append(line)


@pytest.mark.parametrize(
    ("lines", "actions", "status"),
    [(0, [GOOD], 2), (1, [GOOD], 2), (2, [GOOD] * 2, 3), (3, [GOOD, FAILING], 1), (3, [GOOD] * 2, 0)],
)
def test_what_nobody_reads_is_not_called_right(
    lines: int, actions: list[str], status: int, pretend: Any, gpu_check: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As with `| head -1`: the status tells what is known, and a sentence that not all was said."""
    monkeypatch.setattr(gpu_check, "say", Broken(lines))
    found, said = pretend({str(index): action for index, action in enumerate(actions)})
    assert said[-1] == "The GPU checks cannot say what they found: Broken pipe."
    assert found == status


@pytest.mark.parametrize("unbuffered", ["", "1"])
@pytest.mark.parametrize("place", ["/dev/full", "a closed pipe"])
def test_no_room_for_the_output(place: str, unbuffered: str) -> None:
    reading, writing = os.pipe()
    os.close(reading)
    with os.fdopen(writing, "w") as pipe, Path("/dev/full").open("w") as full:
        ended = subprocess.run(
            [ROOT / "scripts" / "gpu_check.sh", sys.executable, "--list"],
            stdout=full if place == "/dev/full" else pipe,
            stderr=subprocess.PIPE,
            env={**os.environ, "PYTHONUNBUFFERED": unbuffered},
            text=True,
            timeout=100,
            check=False,
        )
    why = "No space left on device" if place == "/dev/full" else "Broken pipe"
    assert (ended.returncode, ended.stderr) == (2, f"The GPU checks cannot run: {why}.\n")


def test_no_folder_for_temporary_files(pretend: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> None:
        raise FileNotFoundError(errno.ENOENT, "No usable temporary directory found in ['/tmp']")

    monkeypatch.setattr(tempfile, "TemporaryFile", refused)
    status, lines = pretend({"one": GOOD})
    assert (status, lines) == (
        2,
        ["The GPU checks cannot run: No usable temporary directory found in ['/tmp']."],
    )


def test_packages_that_were_brought_over_are_found(tmp_path: Path) -> None:
    """Beside the caller, where a wheel was unpacked."""
    package = tmp_path / "gpu" / "onnxruntime"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("raise ImportError('the one that was unpacked')")
    environment = {**os.environ, "PYTHONPATH": "gpu"}
    ended = run_door(sys.executable, cwd=tmp_path, env=environment)
    assert ended.returncode == 2
    assert ended.stderr.startswith("The GPU checks cannot run: the one that was unpacked: ")


def pretended(folder: Path, text: str, name: str = "python") -> Path:
    path = folder / name
    path.write_text(f"#!/bin/sh\n{text}\n")
    path.chmod(0o755)
    return path


@pytest.mark.parametrize(("version", "old"), [("2.7", True), ("3.9", True), ("3.10", False), ("3.14", False)])
def test_a_python_that_is_too_old(version: str, old: bool, tmp_path: Path) -> None:
    project = (ROOT / "pyproject.toml").read_text()
    assert 'requires-python = ">=3.10"' in project
    ended = run_door(str(pretended(tmp_path, f'[ "$1" != -c ] || echo python {version}')))
    words = (
        f"The GPU checks cannot run: {tmp_path}/python is python {version}, but shardrun needs Python 3.10 "
    )
    assert (ended.returncode, ended.stderr) == ((2, f"{words}or newer\n") if old else (0, ""))


def test_what_is_no_python_and_never_ends(tmp_path: Path) -> None:
    limit = pretended(tmp_path, 'shift\nexec /usr/bin/timeout 1 "$@"', "timeout")
    assert limit.exists()
    path = os.pathsep.join([str(tmp_path), os.environ["PATH"]])
    environment = {**os.environ, "PATH": path}
    ended = run_door(str(pretended(tmp_path, "exec sleep 600")), env=environment)
    assert ended.returncode == 2 and "does not run as Python" in ended.stderr
    ended = run_door(str(pretended(tmp_path, "cat")), input="python 3.11\n", env=environment)
    assert ended.returncode == 2 and "does not run as Python" in ended.stderr


@pytest.mark.parametrize("python", ["/bin/true", "/", "test"])
def test_what_is_no_python_checks_nothing(python: str) -> None:
    """Some of these would end with 0, as if all were right."""
    ended = run_door(python)
    assert ended.returncode == 2
    assert ended.stderr.startswith(f"The GPU checks cannot run: {python} does not run as Python; name one: ")


@pytest.mark.parametrize("function", ["cuInit", "cuDeviceGetUuid_v2"])
def test_a_broken_driver_is_said_in_one_line(function: str) -> None:
    ended = run_door(sys.executable, env=stand_in.environment(FAKE_CUDA_FAIL=function))
    assert ended.returncode == 2 and not ended.stdout
    assert re.fullmatch(
        rf"The GPU checks cannot run: .*the CUDA driver's {function} failed: CUDA_ERROR_UNKNOWN\..*\n",
        ended.stderr,
    )


def test_a_driver_that_refuses_memory_fails() -> None:
    ended = run_door(sys.executable, "--bare", env=stand_in.environment(FAKE_CUDA_FAIL="cuMemGetInfo_v2"))
    assert ended.returncode == 1
    failed = [line for line in ended.stdout.splitlines() if line.strip().startswith("FAILED")]
    assert [line.partition(" s  ")[2] for line in failed] == [
        "the driver: GPUs, their identity, memory",
        "memory that two processes map",
    ]


def test_a_python_without_packages(tmp_path: Path) -> None:
    venv.create(tmp_path / "venv", with_pip=False)
    ended = run_door(str(tmp_path / "venv" / "bin" / "python"))
    assert ended.returncode == 2
    message = "The GPU checks cannot run: No module named 'numpy': install shardrun's dependencies for "
    assert ended.stderr == f"{message}{tmp_path}/venv/bin/python.\n"


@pytest.mark.skipif(devices.visible() > 0, reason="this machine has a CUDA device")
def test_a_machine_without_a_device() -> None:
    ended = run_door(sys.executable)
    assert ended.returncode == 2
    assert ended.stderr.startswith(
        "The GPU checks cannot run: no CUDA device: its driver is missing (libcuda.so.1: "
    )


def test_the_real_checks_below_onnx_runtime() -> None:
    """Over the stand-in the driver's checks pass, and nothing that was not run is called right."""
    ended = run_door(sys.executable, "--bare", env=stand_in.environment())
    lines = ended.stdout.splitlines()
    passed = [line.partition(" s  ")[2] for line in lines if line.strip().startswith("passed")]
    assert ended.returncode == 3, ended.stdout
    assert passed[:2] == ["the driver: GPUs, their identity, memory", "memory that two processes map"]
    assert any(line.startswith("NOT COVERED: a plain model") for line in lines)
    assert any(
        line.startswith("NOT COVERED: NCCL between ranks: every collective (needs 2 GPUs") for line in lines
    )


# As if nothing were installed but these, and what they import.
LITTLE = {"numpy", "onnxruntime", "torch", "torchgen", "functorch", "typing_extensions", "filelock", "sympy"}
LITTLE |= {"mpmath", "networkx", "jinja2", "markupsafe", "fsspec", "google", "flatbuffers", "packaging"}
OTHER_MACHINE = """
import sys

def little(torch):
    from tests.ranks import host_torch
    host_torch.replace(torch)

def on_the_cpu(onnxruntime):
    onnxruntime.get_available_providers = lambda: ["CPUExecutionProvider"]

def on_the_host(cuda_driver):
    cuda_driver.Driver.dlpack_device = 1

CHANGED = {{"torch": little, "onnxruntime": on_the_cpu, "ranks.devices.cuda_driver": on_the_host}}

class Finder:
    def __init__(self, finder):
        self._finder = finder

    def __getattr__(self, name):
        return getattr(self._finder, name)

    def find_spec(self, name, path=None, target=None):
        spec = None if name in {hidden!r} else self._finder.find_spec(name, path, target)
        if spec is not None and name in CHANGED:
            load = spec.loader.exec_module
            spec.loader.exec_module = lambda module: (load(module), CHANGED[name](module))
        return spec

sys.meta_path[:] = [Finder(finder) for finder in sys.meta_path]
"""


@pytest.fixture
def little(tmp_path: Path) -> dict[str, str]:
    """The environment of a machine with torch for CUDA and an ONNX Runtime without it; the device is the
    stand-in, and NCCL is Gloo."""
    pytest.importorskip("torch", reason="torch is not installed")
    packages = Path(ort.__file__).resolve().parents[1]
    hidden = {path.name.partition(".")[0] for path in packages.iterdir()} - LITTLE
    (tmp_path / "sitecustomize.py").write_text(OTHER_MACHINE.format(hidden=hidden))
    return stand_in.environment(PYTHONPATH=str(tmp_path))


def test_a_machine_with_a_device_and_little_else(little: dict[str, str]) -> None:
    ended = run_door(sys.executable, env=little)
    lines = ended.stdout.splitlines()
    passed = [line.partition(" s  ")[2] for line in lines if line.strip().startswith("passed")]
    assert (ended.returncode, ended.stderr) == (3, ""), ended.stdout
    assert passed == [
        "the driver: GPUs, their identity, memory",
        "values on the GPU as torch tensors",
        "NCCL with one rank: joining, every type, aborting, closing",
        "memory that two processes map",
        "values at an address (DLPack)",
        "host collectives on the GPU's values, two processes",
    ]
    assert lines[0].endswith("(CUDA 13.0)") and lines[1].endswith(", A Card")
    lacking = "values of bfloat16, float8_e4m3fn, float8_e4m3fnuz, float8_e5m2, float8_e5m2fnuz"
    assert f"NOT COVERED: {passed[1]} ({lacking} (ml_dtypes is not installed))" in lines
    why = "CUDAExecutionProvider is not in this build of ONNX Runtime "
    about = "NOT COVERED: a plain model: right, and every node of it on CUDA ("
    assert any(line.startswith(about + why) for line in lines)


def test_what_the_tests_need_is_named(little: dict[str, str]) -> None:
    """Without it each would be reported as dead."""
    ended = subprocess.run(
        [sys.executable, "-m", "tests.gpu.bare", "probe"],
        env=little | {"PYTHONPATH": os.pathsep.join([str(ROOT), little["PYTHONPATH"]])},
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=100,
        check=True,
    )
    found = json.loads(ended.stdout.splitlines()[-1])["tests"]
    assert found == "pytest, hypothesis, onnx, onnx_ir, ml_dtypes are not installed"


def test_wrong_answers_fail(gpu_check: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """ONNX Runtime's CUDA provider over the stand-in, whose kernels do nothing: its answers are wrong."""
    for name, value in stand_in.environment().items():
        monkeypatch.setenv(name, value)
    check = next(one for one in gpu_check.CHECKS if "tests/gpu/test_plain.py" in one.tests)
    result = gpu_check.run(check, 120.0)
    assert result.status == gpu_check.FAILED
    assert result.lines[0].startswith("test_a_plain_model: ") and len(result.lines) == 1


def test_answers_of_tf32_are_near_and_those_that_lack_a_part_are_not() -> None:
    random = np.random.default_rng(3)
    x, w = (random.standard_normal(shape).astype(np.float32) for shape in ((8, 256), (256, 64)))
    right = x @ w
    rounded = [((array.view(np.uint32) + 0x1000) & 0xFFFFE000).view(np.float32) for array in (x, w)]
    near.assert_near(rounded[0] @ rounded[1], right)
    near.assert_near([right, np.arange(3)], [right, np.arange(3)])
    for wrong in (x[:, :-8] @ w[:-8], right * np.float32(1.01), right.astype(np.float64), right[:-1]):
        with pytest.raises(AssertionError):
            near.assert_near(wrong, right)
    with pytest.raises(AssertionError):
        near.assert_near([right, np.arange(3)], [right, np.arange(3) + 1])


@pytest.mark.skipif(
    not hasattr(ort.InferenceSession, "get_provider_graph_assignment_info"),
    reason="this ONNX Runtime says only of nodes that have run where they are",
)
def test_nodes_that_are_not_on_cuda_fail() -> None:
    program = """
import numpy as np
from ranks.devices.providers import CPU, CUDA
from ranks.sessions import session
from tests.gpu.assigned import RECORD
from tests.gpu.near import assert_on_cuda
from tests.ranks.body_models import far, model, near, value
made = model([near("y"), far("z")], [value("x", [3, 128]), value("w", [16, 128])], ["y", "z"])
config = session.SessionConfig(threads=1, providers=(CUDA, CPU), entries=RECORD)
one = session.create(made.SerializeToString(), config, "the model")
for types in ((), ("Gemm",), ("CDist",), ("Conv",)):
    try:
        assert_on_cuda(one, *types)
        print("on CUDA")
    except AssertionError:
        print("not")
"""
    ended = stand_in.run(program)
    assert ended.stdout.splitlines() == ["not", "on CUDA", "not", "not"], ended.stderr


def test_nodes_that_did_not_run_on_cuda_fail() -> None:
    """As every release of ONNX Runtime tells it, while a session runs."""
    program = """
import pathlib, tempfile
import onnxruntime as ort
import pytest
from ranks.devices.providers import CPU, CUDA
from ranks.sessions import session
from tests.gpu.near import assert_ran_on_cuda, profiled
from tests.ranks.body_models import W, X, far, model, near, value
for nodes in ([near("y")], [near("y"), far("z")], [far("z")], None):
    outs = [] if nodes is None else [node.output[0] for node in nodes]
    made = model(nodes or [near("y")], [value("x", [3, 128]), value("w", [16, 128])], outs or ["y"])
    with pytest.MonkeyPatch.context() as patch, tempfile.TemporaryDirectory() as folder:
        profiled(patch, pathlib.Path(folder))
        config = session.SessionConfig(threads=1, providers=(CUDA, CPU))
        one = session.create(made.SerializeToString(), config, "the model")
        if nodes:
            one.run(None, {"x": X, "w": W})
        try:
            assert_ran_on_cuda(one)
            print("on CUDA")
        except AssertionError:
            print("not")
"""
    ended = stand_in.run(program)
    assert ended.stdout.splitlines() == ["on CUDA", "not", "not", "not"], ended.stderr


@pytest.fixture
def over_stand_in(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Processes that the test starts see the stand-in for CUDA."""
    for name, value in stand_in.environment(SHARDRUN_CACHE=str(tmp_path / "cache")).items():
        monkeypatch.setenv(name, value)


# The tests in tests/gpu run nowhere but on a GPU. Their processes do here, on values in host memory.
OVER_TENSORS = """
from tests.ranks.stand_in_program import use_tensors
use_tensors()
from tests.gpu import several_program
several_program.main()
"""
OVER_GLOO = """
import torch
from ranks.run import group
from ranks.collectives.torch import device as torch_device
from ranks.identity.identity import identify
def join(device):
    members = torch_device.Membership(identify(), 30.0, "gloo")
    world = torch_device.DeviceCommunicator(members, 30.0, "gloo", torch.device("cpu"))
    group.GROUPS.joined["cuda"] = identify(), "gloo", world
    return world
group.join = join
from tests.gpu import several_program
several_program.main()
"""


@pytest.mark.usefixtures("over_stand_in")
def test_the_processes_of_the_tests_for_gpus(tmp_path: Path) -> None:
    from tests.gpu import test_several as several

    def start(command: list[str], environ: dict[str, str]) -> Any:
        return stand_in.copies().popen(command, environ, ROOT)

    folder = several.make(tmp_path)
    ended = several.job(folder, "sliced", ["0", "0"], "shm", ("-c", OVER_TENSORS), start)
    several.assert_right(ended, folder, {"cpu": "shm"}, ["0", "0"])
    assert "ranks 0 and 1 share the GPU GPU-" in ended[1].errors
    for one in several.job(folder, "variable", None, "shm", ("-c", OVER_TENSORS), start):
        assert one.status == 0, one.errors
        assert one.told["places"] == [[2, 0]]
        near.assert_near(np.array(one.told["before"], np.float32), several.right(folder))
        near.assert_near(np.array(one.told["after"], np.float32), several.right(folder, "updated"))
    left, dead = several.job(folder, "killed", program=("-c", OVER_GLOO), start=start)
    assert (left.status, dead.status) == (0, -signal.SIGKILL), left.errors
    assert left.told["caught"] and left.told["left"] < several.LEAVING


@pytest.mark.usefixtures("over_stand_in")
def test_graphs_that_compute_nothing_are_not_called_right(tmp_path: Path) -> None:
    """Those of the stand-in, which leave what was there, while what is captured with it is right."""
    from tests.gpu import test_several as several

    folder = several.make(tmp_path)
    loaded = {"LD_PRELOAD": stand_in.counter()}
    copies = stand_in.copies(**loaded)

    def start(command: list[str], environ: dict[str, str]) -> Any:
        return copies.popen(command, environ, ROOT)

    settings = {"SHARDRUN_CUDA_GRAPHS": "1", **loaded}
    ended = several.job(folder, "graphs", ["0", "0"], "shm", ("-c", OVER_TENSORS), start, settings)
    for one in ended:
        assert one.status == 0 and set(one.told["captured"]) == {"1"}, one.errors
        for found in one.told["found"][:2]:
            near.assert_near(np.array(found, np.float32), several.right(folder))
    with pytest.raises(AssertionError):
        several.assert_captured(ended, folder)


def test_the_ranks_in_threads_of_the_tests_for_gpus() -> None:
    program = """
import pathlib, sys
from tests.ranks.stand_in_program import RIGHT, X, rank_models, use_tensors
use_tensors()
from tests.gpu.test_cuda import assert_near, run_on_one_gpu
feeds = [X, X, X[:0], X[:0], X]
found = run_on_one_gpu(rank_models(pathlib.Path(sys.argv[1])), [{"x": feed} for feed in feeds])
for feed, by_rank in zip(feeds, found, strict=True):
    assert_near(by_rank, [[RIGHT[: len(feed)]]] * 2)
print("right")
"""
    with tempfile.TemporaryDirectory() as folder:
        ended = stand_in.run(program, folder)
    assert ended.stdout == "right\n", ended.stderr


@pytest.mark.usefixtures("over_stand_in")
def test_the_processes_that_share_weights(tmp_path: Path) -> None:
    from tests.gpu import test_several as several
    from tests.gpu.test_shared_weights import Worker

    several.save_model(tmp_path / "whole.onnx", several.WEIGHTS)
    np.save(tmp_path / "x.npy", several.RANDOM.standard_normal((5, 64)).astype(np.float32))
    workers: list[Worker] = []
    try:
        for mode in ("alone", "owner", "attached"):
            given = workers[1].handle if mode == "attached" else mode
            workers.append(Worker(given, tmp_path / "whole.onnx", tmp_path / "x.npy"))
            told = workers[-1].told()
            workers[-1].handle = told["handle"]
            near.assert_near(np.array(told["result"], np.float32), several.right(tmp_path))
        near.assert_near(workers[2].run(), several.right(tmp_path))
    finally:
        for worker in workers:
            worker.process.kill()
            worker.process.communicate(timeout=60)
