"""The command itself: help, version, exit codes, errors without tracebacks, closed pipes, signals."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from launcher import cli
from launcher.commands import COMMANDS
from launcher.common import exits
from launcher.errors import ConfigError, LaunchError, RankTableError, VerifyError
from tests.launcher.cli_tools import ROOT, environment, save_mlp, shardrun


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize("command", [(), *((name,) for name in COMMANDS), ("table", "make")])
def test_help(command: tuple[str, ...], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main([*command, "--help"])
    assert caught.value.code == 0
    out = capsys.readouterr().out
    assert "usage: shardrun" in out
    if len(command) < 2:
        assert "examples:\n  shardrun " in out
        assert all(len(line) < 120 for line in out.splitlines())


@pytest.mark.parametrize("bare", [False, True])
def test_the_help_names_all_commands(bare: bool) -> None:
    """Also that of the parser which knows nothing else of them."""
    text = cli.build_parser(bare=bare).format_help()
    assert re.findall(r"^    (\w+)  ", text, re.MULTILINE) == list(COMMANDS)


def test_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(["--version"])
    assert caught.value.code == 0
    assert capsys.readouterr().out == "shardrun 0.1.0\n"


def test_no_command(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main([]) == 2
    assert "usage: shardrun" in capsys.readouterr().err


@pytest.mark.parametrize(
    "arguments",
    [
        ["unknown"],
        ["slice"],
        ["slice", "m.onnx", "--ranks", "0"],
        ["slice", "m.onnx", "--mesh", "tensor"],
        ["slice", "m.onnx", "--mesh", "rows=2"],
        ["slice", "m.onnx", "--memory", "24 XB"],
        ["slice", "m.onnx", "--memory", "0"],
        ["run", "m.onnx", "--strategy", "fastest"],
        ["run", "m.onnx", "--micro-batches", "0"],
        ["slice", "m.onnx", "--ranks", "two"],
        ["slice", "m.onnx", "--ranks", "9" * 30],
        ["run", "m.onnx", "--ranks", "2", "--rank-table", "t.json"],
        ["run", "m.onnx", "--timeout", "nan"],
        ["run", "m.onnx", "--timeout", "-1"],
        ["run", "m.onnx", "--repeat", "0"],
        ["run", "m.onnx", "--launcher", "slurmd"],
        ["exec", "--target", "gpu", "s.py"],
        ["exec"],
        ["slice", "", "--plan-only"],
        ["slice", "m.onnx", "--output", ""],
        ["run", ""],
        ["inspect", ""],
        ["convert", ""],
        ["scripts", "", "--output", "j"],
        ["scripts", "m.onnx", "--output="],
        ["table", "check", ""],
        ["demo", ""],
    ],
)
def test_wrong_usage_is_exit_code_2(arguments: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as caught:
        cli.main(arguments)
    assert caught.value.code == 2
    err = capsys.readouterr().err
    assert err.startswith("shardrun: error: ") and len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("arguments", "code", "message"),
    [
        (["slice", "absent.onnx", "--ranks", "2", "--plan-only"], 2, "absent.onnx does not exist"),
        (["slice", "m.onnx", "--ranks", "2"], 2, "expected --output DIR, or --plan-only"),
        (["slice", "m.onnx", "--ranks", "2", "--plan-only", "--output", "d"], 2, "exclude each other"),
        (["slice", "m.onnx", "--plan-only"], 2, "say over how many ranks"),
        (["slice", "m.onnx", "--ranks", "2", "--rank", "0", "--plan-only"], 2, "so it needs --output"),
        (["slice", "m.onnx", "--ranks", "2", "--rank", "2", "--output", "d"], 2, "none of the ranks 0..1"),
        (["slice", "m.onnx", "--ranks", "2", "--save-plan", "no/p.json"], 2, "does not exist"),
        (["slice", "m.onnx", "--ranks", "2", "--annotate", "away"], 2, "found a folder"),
        (["slice", "m.onnx", "--ranks", "2", "--annotate", "m.onnx"], 2, "is the model itself"),
        (["slice", "m.onnx", "--ranks", "2", "--save-plan", "m.onnx"], 2, "is no plan that could be"),
        (["slice", "x.onnx", "--ranks", "2", "--annotate", "x.onnx.data"], 2, "holds weights of x.onnx"),
        (
            ["slice", "m.onnx", "--ranks", "2", "--save-plan", "p", "--annotate", "p"],
            2,
            "each other's file p",
        ),
        (["inspect", "m.onnx", "--ranks", "2", "--html", "m.onnx"], 2, "is no page that could be replaced"),
        (["run", "m.onnx", "--ranks", "2", "--output", "m.onnx"], 2, "is no archive that could be replaced"),
        (["slice", "m.onnx", "--ranks", "2", "--memory", "9", "--plan-only"], 1, "more than the 9 B allowed"),
        (["slice", "m.onnx", "--ranks", "2", "--micro-batches", "2", "--plan-only"], 2, "pipeline stages"),
        (["slice", "m.onnx", "--ranks", "2", "--profile", "m.onnx", "--plan-only"], 2, "is not JSON"),
        (["slice", "m.onnx", "--ranks", "3", "--mesh", "tensor=2", "--plan-only"], 2, "--ranks says 3"),
        (["slice", "m.onnx", "--plan", "p.json", "--plan-only"], 2, "no such file; expected a saved plan"),
        (["slice", "m.onnx", "--plan", "three.json", "--plan-only"], 2, "$.format: expected"),
        (["slice", "m.onnx", "--ranks", "2", "--steer", "three.json", "--plan-only"], 2, "expected column, "),
        (["run", "m.onnx", "--mesh", "tensor=2", "--strategy", "auto"], 2, "exclude each other"),
        (["run", "slices", "--strategy", "auto"], 2, "--strategy: slices is sliced already"),
        (["run", "r{}.onnx"], 2, "no file fits r{}.onnx: expected one for each rank, as r0.onnx"),
        (["run", "{}r{}.onnx"], 2, "must have one field"),
        (["scripts", "r{}.onnx", "--output", "j"], 2, "no file fits r{}.onnx"),
        (["slice", "m.onnx", "--ranks", "5", "--plan-only"], 1, "--allow-replicated"),
        (["slice", "m.onnx", "--ranks", "2", "--output", "m.onnx"], 2, "is a file"),
        (["run"], 2, "no model: expected MODEL.onnx or a slice folder"),
        (["run", "absent.onnx", "--ranks", "2"], 2, "absent.onnx: no such file or folder"),
        (["run", "m.onnx"], 2, "m.onnx is not sliced yet: say over how many ranks"),
        (["run", "."], 2, "manifest.json does not exist"),
        (["run", "slices", "--ranks", "3"], 2, "slices was sliced for 2 ranks, but 3 are asked for"),
        (["run", "slices", "--dim", "bacth=2"], 2, "no such symbolic dimension (it has: batch)"),
        (["run", "slices", "--input", "z=x.bin"], 2, "the model has no input 'z' (it has: x)"),
        (["run", "slices", "--verify"], 2, "has changed since slices was sliced from it"),
        (["run", "slices", "--output", "no/where.npz"], 2, "does not exist"),
        (
            ["run", "slices", "--rank-table", "three.json"],
            2,
            "but 3 are asked for by the rank table three.json",
        ),
        (
            ["run", "slices", "--output", "away"],
            2,
            "--output away: expected the name of a file, found a folder",
        ),
        (["run", "slices", "--launcher", "external"], 2, "says which rank this process is"),
        (["run", "slices", "--launcher", "local", "--collectives", "mpi"], 2, "need the launcher mpirun"),
        (["run", "--config", "absent.yaml"], 2, "absent.yaml: cannot read this job file"),
        (["scripts", "slices", "--ranks", "3", "--output", "j"], 2, "sliced for 2 ranks"),
        (["scripts", "m.onnx", "--output", "j"], 2, "say over how many ranks"),
        (["scripts", "slices", "--output", "slices"], 2, "expected a new or empty folder"),
        (["table", "check", "absent.json"], 2, "absent.json: cannot read this rank table"),
        (["table", "make", "--hosts", "h:0"], 2, "expected a number of ranks from 1 to 4096, found '0'"),
        (["table", "make", "--hosts", "h,h"], 2, "expected each host once, found h twice"),
        (["table", "make", "--hosts", ":2"], 2, "expected HOST:N"),
        (["table", "make", "--local", "2", "--output", "no/where.json"], 2, "cannot write the rank table"),
        (["exec", "absent.py"], 2, "There is no script 'absent.py'"),
    ],
)
def test_errors_are_one_sentence_and_a_code(
    folder: Path, arguments: list[str], code: int, message: str, capsys: pytest.CaptureFixture[str]
) -> None:
    save_mlp(folder / "m.onnx")
    (folder / "away").mkdir()
    save_mlp(folder / "x.onnx", external=True)
    model = save_mlp(folder / "away" / "m.onnx", seed=1)
    assert cli.main(["slice", str(model), "--ranks", "2", "--output", "slices"]) == 0
    assert cli.main(["table", "make", "--local", "3", "--output", "three.json"]) == 0
    capsys.readouterr()
    before = {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")}
    assert cli.main(arguments) == code
    captured = capsys.readouterr()
    assert captured.err.startswith("shardrun: error: ") and message in captured.err
    assert len(captured.err.splitlines()) == 1 and captured.out == ""
    assert {path: path.is_file() and path.read_bytes() for path in folder.rglob("*")} == before


@pytest.mark.parametrize(
    "arguments", [["inspect", "n" * 9000], ["demo", "n" * 9000], ["run", "m", "--" + "n" * 9000]]
)
def test_errors_show_the_ends_of_endless_names(
    arguments: list[str], folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    try:
        code: object = cli.main(arguments)
    except SystemExit as ended:
        code = ended.code
    told = capsys.readouterr().err
    assert code == 2 and len(told) < 500 and "nnn…nnn" in told


def test_exit_codes_of_errors() -> None:
    assert exits.exit_code(LaunchError("x")) == 1
    assert exits.exit_code(ConfigError("x")) == exits.exit_code(RankTableError("x")) == 2
    assert exits.exit_code(VerifyError("x")) == 3


@pytest.mark.parametrize("debug", [False, True])
def test_unexpected_errors(debug: bool, folder: Path, monkeypatch: pytest.MonkeyPatch,
                           capsys: pytest.CaptureFixture[str]) -> None:  # fmt: skip
    from launcher.commands import table

    def broken(_: object) -> int:
        raise ZeroDivisionError("of\nall things")

    monkeypatch.setattr(table, "run", broken)
    assert cli.main(["table", *(["--debug"] if debug else []), "make", "--local", "2"]) == 1
    err = capsys.readouterr().err
    line = "shardrun: internal error: ZeroDivisionError: of all things (run with --debug for the traceback)\n"
    assert err.endswith(line)
    assert ("Traceback" in err) is debug


def test_debug_and_verbose_go_before_or_after_the_command(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for arguments in (["--debug", "table", "check", "x.json"], ["table", "--debug", "check", "x.json"]):
        assert cli.main(arguments) == 2
    parser = cli.build_parser()
    assert parser.parse_args(["-v", "table", "check", "x"]).verbose == 1
    assert parser.parse_args(["table", "-vv", "check", "x"]).verbose == 2
    assert parser.parse_args(["--debug", "table", "check", "x"]).debug is True


def test_errors_of_the_command_show_their_traceback_with_debug(
    folder: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert cli.main(["--debug", "run", "absent.onnx"]) == 2
    err = capsys.readouterr().err
    assert "Traceback" in err and err.endswith("expected a model or a slice folder\n")


def test_a_reader_that_leaves(folder: Path) -> None:
    command = [sys.executable, "-m", "launcher.cli", "table", "make", "--local", "4096"]
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment())
    assert process.stdout is not None and process.stderr is not None
    process.stdout.read(10)
    process.stdout.close()
    err = process.stderr.read()
    assert (process.wait(30), err) == (1, b"")


@pytest.mark.parametrize(
    ("number", "code", "said"),
    # A script is terminated as Python has it; the command itself is tested in test_streams.py.
    [(signal.SIGINT, 130, "shardrun: interrupted\n"), (signal.SIGTERM, -signal.SIGTERM, "")],
)
def test_signals_to_a_script(folder: Path, number: int, code: int, said: str) -> None:
    # A pipe that nobody writes into: the command waits while it reads its "script".
    (folder / "wait.py").write_text("print('waiting', flush=True)\nimport time\ntime.sleep(60)\n")
    command = [sys.executable, "-m", "launcher.cli", "exec", "wait.py"]
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment(), text=True
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "waiting\n"
    os.kill(process.pid, number)
    _, err = process.communicate(timeout=30)
    assert (process.returncode, err) == (code, said)


def test_plan_as_json_and_table(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_mlp(folder / "m.onnx")
    assert cli.main(["slice", "m.onnx", "--ranks", "2", "--plan-only", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert plan["world_size"] == 2 and [c["op"] for c in plan["collectives"]] == ["AllReduce"]
    assert cli.main(["-v", "slice", "m.onnx", "--ranks", "2", "--output", "slices"]) == 0
    out = capsys.readouterr().out
    assert "m.onnx on 2 ranks\n" in out and "1 AllReduce" in out
    assert "w0      split:1" in out and "w1      split:0" in out
    assert out.endswith("wrote slices: 2 rank models; `shardrun run slices` runs them\n")
    assert sorted(p.name for p in (folder / "slices").iterdir()) == [
        "manifest.json", "rank_0.onnx", "rank_1.onnx",
    ]  # fmt: skip


def test_tables(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.main(["table", "make", "--hosts", "h1:2, [::1]:1,10.0.0.2", "--output", "t.yaml"]) == 0
    assert cli.main(["table", "check", "t.yaml"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[:2] == ["wrote t.yaml: 4 ranks on 3 hosts", "t.yaml: 4 ranks on 3 hosts"]
    assert [line.split() for line in lines[4:]] == [
        ["0", "h1", "0", "0", "-"], ["1", "h1", "1", "1", "-"], ["2", "::1", "0", "0", "-"],
        ["3", "10.0.0.2", "0", "0", "-"],
    ]  # fmt: skip
    (folder / "bad.json").write_text('{"version": "2.0", "server_list": []}')
    assert cli.main(["table", "check", "bad.json"]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 4


def test_starting_imports_nothing_heavy() -> None:
    code = (
        "import sys; from launcher import cli; cli.build_parser(); "
        "heavy = {'numpy', 'onnx', 'onnxruntime', 'onnx_ir', 'torch', 'mpi4py', 'pydantic', 'rich', 'yaml'}; "
        "print(sorted(heavy & set(sys.modules)))"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"


@pytest.mark.parametrize(
    ("words", "absent"),
    [
        (["--help"], ["dataclasses", "json", "logging", "launcher.job", "ranks.common.settings"]),
        (
            ["run", "--help"],
            ["json", "socket", "subprocess", "launcher.job.places.allocation",
             "sharding.common.rank_table", "sharding.demands.options", "sharding.slices.mesh"],
        ),
    ],
)  # fmt: skip
def test_help_imports_only_what_it_prints(words: list[str], absent: list[str]) -> None:
    code = (
        "import atexit, sys; from launcher import cli; "
        f"atexit.register(lambda: print([one for one in {absent} if one in sys.modules], file=sys.stderr)); "
        f"cli.main({words})"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert "usage: shardrun" in done.stdout and done.stderr == "[]\n"


def test_start_is_imported_quickly() -> None:
    """Without what few starts need, and without the methods that `dataclass` compiles: it takes longer over
    them than all of a module's other code takes."""
    code = (
        "import dataclasses, sys; from launcher import start; "
        "kinds = {one for name, module in sorted(sys.modules.items()) "
        "if name.startswith(('launcher', 'ranks', 'sharding')) for one in vars(module).values() "
        "if isinstance(one, type) and '__dataclass_params__' in vars(one)}; "
        "slow = [one.__name__ for one in kinds if one.__dataclass_params__.frozen "
        "or one.__dataclass_params__.eq or one.__dataclass_params__.repr]; "
        f"print(slow, [one for one in {OF_FEW_STARTS} if one in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, check=True)
    assert done.stdout == "[] []\n"


OF_FEW_STARTS = [
    *("asyncio", "email", "onnx", "onnx_ir", "onnxruntime", "shutil", "ssl", "subprocess", "tempfile"),
    *("launcher.group.led", "launcher.group.session", "launcher.job.options", "launcher.job.slicing"),
    *("launcher.starters.local", "ranks.models", "sharding.demands", "sharding.importers"),
    "sharding.slices.manifest",
]


def test_running_a_model_imports_nothing_that_it_does_not_need(folder: Path) -> None:
    """The command with its ranks: neither what serves and chooses tokens, nor what checks models."""
    save_mlp(folder / "m.onnx")
    assert cli.main(["slice", "m.onnx", "--ranks", "2", "--output", "slices"]) == 0
    (folder / "sitecustomize.py").write_text(WRITES_MODULES)
    command = [sys.executable, "-m", "launcher.cli", "run", "slices"]
    done = subprocess.run(
        command, env=environment(PYTHONPATH=f"{folder}:{ROOT}"), capture_output=True, text=True, timeout=120,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    loaded = [set(path.read_text().split()) for path in folder.glob("modules.*")]
    ranks = [names for names in loaded if "ranks.run.program" in names]
    (launcher,) = [names for names in loaded if "launcher.tasks.run" in names]
    assert ranks and all("onnxruntime" in names for names in ranks)
    ours = {"asyncio", "email", "importlib.metadata", "onnx", "onnx_ir", "ssl", "torch", "zipfile"}
    assert [sorted(ours & names) for names in (launcher, *ranks)] == [[]] * (1 + len(ranks))
    assert not {"onnxruntime", "sharding.slices.state_search", "sharding.slices.state_use"} & launcher
    assert not [name for names in ranks for name in names if name.startswith("ranks.tokens")]


WRITES_MODULES = """
import atexit, os, sys
place = os.path.join(os.path.dirname(__file__), f"modules.{os.getpid()}")
atexit.register(lambda: open(place, "w").write(" ".join(sys.modules)))
"""


def test_on_a_terminal_tables_are_drawn(folder: Path) -> None:
    import pty

    save_mlp(folder / "m.onnx")
    ours, theirs = pty.openpty()
    command = [sys.executable, "-m", "launcher.cli", "slice", "m.onnx", "--ranks", "2", "--plan-only"]
    process = subprocess.Popen(
        command, stdout=theirs, stderr=theirs, env=environment(TERM="xterm", COLUMNS="100")
    )
    os.close(theirs)
    shown = b""
    try:
        while chunk := os.read(ours, 65536):
            shown += chunk
    except OSError:  # the end of a pseudo-terminal
        pass
    os.close(ours)
    assert process.wait(30) == 0
    assert "────" in shown.decode() and "1 AllReduce" in shown.decode()


def test_installed_or_not_the_command_is_the_same(folder: Path) -> None:
    done = shardrun("--version", cwd=folder)
    assert (done.returncode, done.stdout, done.stderr) == (0, "shardrun 0.1.0\n", "")


def test_exit_codes_of_inputs(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_mlp(folder / "m.onnx")
    (folder / "text.onnx").write_text("no model")
    (folder / "occupied").mkdir()
    (folder / "occupied" / "file").touch()
    for model, output in (
        ("nofile.onnx", "s"),
        ("text.onnx", "s"),
        ("m.onnx", "occupied"),
        ("m.onnx", "text.onnx"),
    ):
        assert cli.main(["slice", model, "--ranks", "2", "--output", output]) == exits.EXIT_USAGE, (
            model,
            output,
        )
        assert capsys.readouterr().err.startswith("shardrun: error: ")
    assert cli.main(["run", "occupied"]) == exits.EXIT_USAGE
    assert not (folder / "s").exists()


def test_one_of_a_thing_is_no_plural(folder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    save_mlp(folder / "m.onnx")
    assert cli.main(["slice", "m.onnx", "--ranks", "1", "--output", "s"]) == 0
    out = capsys.readouterr().out
    assert "m.onnx on 1 rank\n" in out and "1 rank model; `shardrun run s` runs it" in out
    assert "share of split weights" not in out
    assert cli.main(["table", "make", "--local", "2", "--output", "t.json"]) == 0
    assert capsys.readouterr().out == "wrote t.json: 2 ranks on 1 host\n"


def test_usage_of_exec(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        cli.main(["exec", "--help"])
    assert "usage: shardrun exec [OPTION ...] SCRIPT.py [ARGUMENT ...]" in capsys.readouterr().out


def test_targets_that_cannot_be_served_say_what_run_understands(folder: Path) -> None:
    if onnxruntime_can_use_ascend():
        pytest.skip("this ONNX Runtime has CANN, so the target ascend may be served")
    save_mlp(folder / "m.onnx")
    done = shardrun("run", "m.onnx", "--ranks", 1, "--target", "ascend", cwd=folder)
    assert done.returncode == 1
    assert "give --target cpu" in done.stderr and "script" not in done.stderr
    done = shardrun("run", "m.onnx", "--ranks", 2, "--collectives", "nccl", cwd=folder)
    assert done.returncode == 2 and "give --target gpu" in done.stderr


def onnxruntime_can_use_ascend() -> bool:
    import onnxruntime

    return "CANNExecutionProvider" in onnxruntime.get_available_providers()


def test_warnings_name_no_modules(folder: Path) -> None:
    save_mlp(folder / "m.onnx", width=3)
    done = shardrun("slice", "m.onnx", "--ranks", 7, "--plan-only", "--allow-replicated", cwd=folder)
    assert "shardrun: warning: nothing is split: every rank holds the whole model\n" in done.stderr


@pytest.mark.parametrize("mesh", ["data=2", "pipeline=2", "data=2,pipeline=2"])
def test_strategies_that_split_no_weight_are_no_reason_to_warn(mesh: str, folder: Path) -> None:
    save_mlp(folder / "m.onnx")
    done = shardrun("slice", "m.onnx", "--mesh", mesh, "--plan-only", cwd=folder)
    assert (done.returncode, done.stderr) == (0, "")


def test_help_groups_options(capsys: pytest.CaptureFixture[str]) -> None:
    from launcher import cli

    with pytest.raises(SystemExit):
        cli.main(["run", "--help"])
    out = capsys.readouterr().out
    titles = [line[:-1] for line in out.splitlines() if line.endswith(":") and not line.startswith(" ")]
    for title in ("ranks", "target and types", "slicing", "encrypted models", "data"):
        assert titles.count(title) == 1
    order = [out.rindex(text) for text in ("\nranks:", "--launcher {auto", "\nslicing:", "--strategy {")]
    assert order == sorted(order)
