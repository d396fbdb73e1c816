"""The examples in README.md and docs/ run, in the order they stand, and print what the text says they print.

In a fenced block marked `console`, lines that begin with `$ ` are commands and the rest is their output; a
line of only `...` stands for any lines. Numbers are compared by place, not by value. `python` blocks are run
as programs; one with a file name behind the word is written to that file instead. Blocks of any other kind
are not run. The folder holds `model.onnx`, two of the six layers of the sentence encoder, which
`test_main_job` and `test_models` run whole, and `llama`, a small language model.
"""

import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

import onnx_ir as ir
import pytest
from onnx_ir.passes.common import RemoveUnusedNodesPass

from tests import models
from tests.end_to_end.processes import run_clean
from tests.launcher.cli_tools import copies
from tests.launcher.generation import tiny

ROOT = Path(__file__).parents[2]
DOCUMENTS = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FENCE = re.compile(r"^```(\w*) ?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
QUOTED = re.compile(r"""'[^']*'|"[^"$`\\]*\"""")
"""What a shell takes as it stands."""
SHELL = re.compile(r"[^\w\s.,:=/^-]")
"""What a shell may take elsewhere for more than a letter of a word."""
TORCH = ("torch.onnx", "onnxscript")
"""What takes longer to import than a small network to export."""
WORDS = 3000
"""Of the sentence encoder's 30,522; no page uses a later one."""


def blocks(document: Path, *kinds: str) -> list[tuple[str, str, str]]:
    """The fenced blocks of these kinds, in order: (kind, file name or nothing, text)."""
    return [block for block in FENCE.findall(document.read_text("utf-8")) if block[0] in kinds]


def shape_of(text: str) -> list[str]:
    """Lines of output without what may differ from machine to machine: numbers, widths, rules of tables,
    and the host of a rank."""
    lines = []
    for raw in text.splitlines():
        line = re.sub(r"^(\[\d+@)[^\]]+", r"\1host", raw)
        line = re.sub(r"-?\d[\d.,]*(e[-+]?\d+)?", "#", line)
        line = re.sub(r"# (ms|µs|s|B|kB|MB|GB)\b", "# unit", line)
        line = re.sub(r"[-─━]{2,}", "--", line)
        if line := " ".join(line.split()):
            lines.append(line)
    return lines


def matches(expected: str, found: str) -> bool:
    parts = [
        "".join(re.escape(line) + "\n" for line in shape_of(part))
        for part in re.split(r"(?m)^\.\.\.$", expected)
    ]
    return re.fullmatch("(?:.*\n)*".join(parts), "".join(line + "\n" for line in shape_of(found))) is not None


def save_two_layers(encoder: Path, path: Path) -> None:
    """The encoder without its other layers: its second one's output takes the place of the last one's. And
    without most of its words, which are three quarters of the rest."""
    model = ir.load(encoder)
    words = model.graph.initializers["bert.embeddings.word_embeddings.weight"]
    assert words.const_value is not None
    words.const_value = ir.tensor(words.const_value.numpy()[:WORDS], name=words.name)
    words.shape = words.const_value.shape
    norms = [node for node in model.graph if node.op_type == "LayerNormalization"]
    # One of the embeddings, then two of each layer.
    kept, last = norms[4].outputs[0], norms[-1].outputs[0]
    kept.shape, kept.type, name = last.shape, last.type, last.name
    for node, index in list(last.uses()):
        node.replace_input_with(index, kept)
    model.graph.outputs[:] = [kept if value is last else value for value in model.graph.outputs]
    last.name, kept.name = None, name
    RemoveUnusedNodesPass()(model)
    assert sum(node.op_type == "LayerNormalization" for node in model.graph) == 5
    ir.save(model, path)


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a model and a language model's folder, and the environment's commands on PATH."""
    folder = tmp_path_factory.mktemp("documents")
    save_two_layers(models.get("minilm").path, folder / "model.onnx")
    tiny.save_folder(folder / "llama")
    commands = folder / "bin"
    commands.mkdir()
    # The command as pip would make it, also where the project is not installed.
    (commands / "shardrun").write_text(
        f"#!{sys.executable}\nimport sys\nfrom launcher.cli import main\nsys.exit(main())\n"
    )
    (commands / "shardrun").chmod(0o755)
    # Not a link: before Python 3.11 one that leads into a virtual environment does not find its packages.
    (commands / "python").write_text(f'#!/bin/sh\nexec "{sys.executable}" "$@"\n')
    (commands / "python").chmod(0o755)
    return folder


def run(command: str, place: Path, environment: dict[str, str]) -> subprocess.CompletedProcess[str]:
    """By a shell; `shardrun` or `python` and words alone in a copy of a process that has imported it."""
    words = [] if SHELL.search(QUOTED.sub("", command)) else shlex.split(command)
    match words:
        case ["shardrun", "convert", *rest] if "--weights" in rest:
            words = ["-m", "launcher.cli", "convert", *rest]
            return run_clean(words, cwd=place, environment=environment, copies=copies(*TORCH))
        case ["python", "-c", text] if "import torch" in text:
            return run_clean(words[1:], cwd=place, environment=environment, copies=copies(*TORCH))
        case ["shardrun", *rest] if rest[:1] != ["exec"]:
            return run_clean(
                ["-m", "launcher.cli", *rest], cwd=place, environment=environment, copies=copies()
            )
        case ["python", "-c", *_]:
            return run_clean(words[1:], cwd=place, environment=environment, copies=copies())
    return run_clean(["bash", "-c", command], cwd=place, environment=environment)


@pytest.mark.parametrize("document", [pytest.param(path, id=path.name) for path in DOCUMENTS])
def test_examples_do_what_the_document_says(document: Path, place: Path) -> None:
    environment = {
        "PATH": f"{place / 'bin'}:{Path(sys.executable).parent}:{os.environ['PATH']}",
        "PYTHONPATH": str(ROOT),
        "COLUMNS": "120",
    }
    for kind, name, text in blocks(document, "console", "python"):
        if name:
            (place / name).write_text(text)
            continue
        if kind == "python":
            more = TORCH if "import torch" in text else ()
            done = run_clean(["-c", text], cwd=place, environment=environment, copies=copies(*more))
            assert done.returncode == 0, f"{text}\n{done.stderr}"
            continue
        for command, expected in re.findall(r"^\$ ((?:.*\\\n)*.*)\n((?:(?!\$ ).*\n)*)", text, re.MULTILINE):
            done = run(command, place, environment)
            assert done.returncode == 0, f"{command}\n{done.stderr}"
            assert matches(expected, done.stdout), f"{command}\nsays:\n{done.stdout}\n{done.stderr}"


@pytest.mark.parametrize("document", [pytest.param(path, id=path.name) for path in DOCUMENTS])
def test_links_lead_somewhere(document: Path) -> None:
    for target in re.findall(r"\]\(([^)#\s]+)[^)]*\)", document.read_text("utf-8")):
        if "://" not in target:
            assert (document.parent / target).exists(), (
                f"{document.name} links to {target}, which is not there"
            )


def test_comparison_of_outputs_can_fail() -> None:
    assert matches("a 1.5 ms\n...\nb\n", "a 230 µs\nx\ny\nb\n")
    assert matches("weights  3\n----  --\n", "weights 12\n------  ---\n")
    assert not matches("a\nb\n", "a\nc\n")
    assert not matches("a\n", "a\nb\n")
