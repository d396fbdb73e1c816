"""``shardrun inspect``: models, plans, slice folders, predictions, and what it refuses."""

from __future__ import annotations

import json
import re
from pathlib import Path

import numpy as np
import onnx
import pytest

from launcher import cli
from sharding import slice_model
from sharding.demands.options import SliceOptions
from sharding.planning.plan import plan_model
from sharding.slices.mesh import Mesh
from sharding.writing.write import write_slices
from tests.launcher.cli_tools import save_mlp
from tests.launcher.inspection.test_rank_models import save_rank_models
from tests.sharding import graphs

WEIGHTS = (8 * 64 + 64 + 64 * 6) * 4


@pytest.fixture
def model(tmp_path: Path) -> Path:
    return save_mlp(tmp_path / "mlp.onnx")


def inspect(capsys: pytest.CaptureFixture[str], *arguments: str | Path) -> str:
    assert cli.main(["inspect", *map(str, arguments)]) == 0
    return capsys.readouterr().out


def test_a_model_file_that_protobuf_does_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Of 2 GiB, nearly all of them a hole: slicing reads such files, and so does this."""
    path = graphs.vast(tmp_path / "vast.onnx", 1 << 15, 1 << 14)
    out = inspect(capsys, path)
    assert re.search(r"^weights +1 of 2\.15 GB$", out, re.M)
    assert re.search(r"^w +float32 +\[32768, 16384\] +2\.15 GB$", out, re.M)
    assert json.loads(inspect(capsys, path, "--json"))["operators"] == {"MatMul": 1}
    with path.open("r+b") as file:  # the name of a field, which then has another type of contents
        file.write(b"\x0f")
    assert cli.main(["inspect", str(path)]) == 2
    assert "vast.onnx is not an ONNX file, or it is truncated: wire type 7" in capsys.readouterr().err


def test_a_model(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = inspect(capsys, model)
    assert re.search(r"^input +x +float32 +\[batch, 8\]$", out, re.M)
    assert re.search(r"^output +y +float32 +\[batch, 6\]$", out, re.M)
    assert re.search(r"^w0 +float32 +\[8, 64\] +2.05 kB$", out, re.M)
    assert re.search(r"^MatMul +2$", out, re.M)


def test_a_model_as_json(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(inspect(capsys, model, "--json"))
    assert found["weight_bytes"] == WEIGHTS
    assert found["operators"] == {"MatMul": 2, "Add": 1, "Relu": 1}
    assert [weight["name"] for weight in found["weights"]] == ["w0", "w1", "b0"]


def test_a_plan_and_the_slices_of_it_are_shown_alike(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slice_model(model, 2, tmp_path / "slices")
    planned = json.loads(inspect(capsys, model, "--ranks", "2", "--json"))
    sliced = json.loads(inspect(capsys, tmp_path / "slices", "--json"))
    assert {**planned, "title": ""} == {**sliced, "title": ""}
    first, last = planned["layers"]
    assert (first["name"], last["name"]) == ("w0", "w1")  # names without dots
    assert {w["name"]: w["placement"] for layer in (first, last) for w in layer["weights"]} == {
        "w0": "split:1", "b0": "split:0", "w1": "split:0",
    }  # fmt: skip
    assert not first["collectives"]
    assert [(c["op"], c["sent"]) for c in last["collectives"]] == [("AllReduce", 6 * 4)]
    assert planned["stages"] == [{"weight_bytes": WEIGHTS // 2, "sent_bytes": 24}]


def test_stages_are_shown_apart(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    mesh = Mesh.of(pipeline=2, tensor=2)
    slice_model(model, 4, tmp_path / "slices", options=SliceOptions(mesh=mesh, micro_batches=1))
    found = json.loads(inspect(capsys, tmp_path / "slices", "--json"))
    assert [stage["weight_bytes"] > 0 for stage in found["stages"]] == [True, True]
    assert sum(stage["weight_bytes"] for stage in found["stages"]) == WEIGHTS // 2
    assert "Send" in [talk["op"] for layer in found["layers"] for talk in layer["collectives"]]
    assert re.search(r"^ +1 +\S+ k?B ", inspect(capsys, tmp_path / "slices"), re.M)


def test_verbose_lists_every_weights_placement(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert re.search(r"^w0 +split:1 +float32", inspect(capsys, model, "--ranks", "2", "-v"), re.M)


def test_dims_change_what_is_sent(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(inspect(capsys, model, "--ranks", "2", "--json", "--dim", "batch=10"))
    assert found["stages"][0]["sent_bytes"] == 240


def test_names_cannot_break_a_table(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    path = save_mlp(tmp_path / "m.onnx")
    proto = onnx.load(path)
    name = "part\x1b[2J\n" + "long_" * 100 + ".weight"
    for node in proto.graph.node:
        node.input[:] = [name if read == "w0" else read for read in node.input]
    next(tensor for tensor in proto.graph.initializer if tensor.name == "w0").name = name
    onnx.save(proto, path)
    for more in ([], ["--ranks", "2"]):
        assert cli.main(["inspect", str(path), *more]) == 0
        out = capsys.readouterr().out
        assert "part\\x1b[2J\\n" in out and "\x1b" not in out
    # A layer's name is shortened; the first line names the file, wherever that is.
    assert max(map(len, out.splitlines()[1:])) < 150


def test_a_page_is_written(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    out = inspect(capsys, model, "--ranks", "2", "--html", tmp_path / "plan.html")
    assert out.endswith(f"wrote {tmp_path / 'plan.html'}\n")
    assert "1 AllReduce: 24 B sent" in (tmp_path / "plan.html").read_text(encoding="utf-8")


def test_worlds_are_predicted_without_slicing(model: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = json.loads(inspect(capsys, model, "--world", "1,2,8,1024", "--json"))
    assert [item["ranks"] for item in found] == [1, 2, 8, 1024]
    assert [item["weight_bytes"] for item in found[:3]] == [WEIGHTS, WEIGHTS // 2, WEIGHTS // 8]
    assert [item["collectives"] for item in found[:3]] == [0, 1, 1]
    # The input and the output of Add live at once: 64 elements each, on 2 ranks 32.
    assert [item["activation_bytes"] for item in found[:2]] == [2 * 64 * 4, 2 * 32 * 4]
    assert found[3]["weight_bytes"] == WEIGHTS
    assert "nothing splits" in found[3]["note"]


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["mlp.onnx", "--html", "x.html"], "say for how many ranks"),
        (["mlp.onnx", "--ranks", "2", "--html", "."], "expected the name of a file"),
        (["mlp.onnx", "--ranks", "2", "--html", "no/x.html"], "does not exist"),
        (["mlp.onnx", "--ranks", "2", "--world", "4"], "--world is for a model"),
        (["mlp.onnx", "--world", "4,x"], "expected a whole number"),
        (["mlp.onnx", "--world", ""], "expected a whole number"),
        (["mlp.onnx", "--ranks", "2", "--dim", "batch"], "expected NAME=SIZE"),
        (["nothing.onnx"], "does not exist"),
        (["bad.onnx"], "is not an ONNX file, or it is truncated"),
        (["bad.onnx", "--ranks", "2"], "is not an ONNX file"),
        (["."], "is not a slice folder"),
    ],
)
def test_what_cannot_be_shown_is_one_sentence(
    arguments: list[str],
    said: str,
    model: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.chdir(model.parent)
    Path("bad.onnx").write_bytes(b"not a model")
    try:
        code = cli.main(["inspect", *arguments])
    except SystemExit as left:
        code = int(str(left.code))
    err = capsys.readouterr().err
    assert code == 2
    assert said in err and len(err.splitlines()) == 1


def test_a_folder_of_some_ranks(model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    options = SliceOptions(mesh=Mesh.of(pipeline=2, tensor=2), allow_replicated=True)
    plan = plan_model(model, 4, options=options)
    write_slices(plan, tmp_path / "part", rank=1)
    assert cli.main(["inspect", str(tmp_path / "part")]) == 1
    assert re.fullmatch(".* holds no rank of pipeline stage 1, .* --rank 2, .*\n", capsys.readouterr().err)
    write_slices(plan, tmp_path / "part", rank=2)
    write_slices(plan, tmp_path / "all")
    part = inspect(capsys, tmp_path / "part").splitlines()
    assert part[1:] == inspect(capsys, tmp_path / "all").splitlines()[1:]


def test_a_rank_model_that_is_gone_is_one_sentence(
    model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    slice_model(model, 2, tmp_path / "slices")
    (tmp_path / "slices" / "rank_0.onnx").write_bytes(b"\x08")
    assert cli.main(["inspect", str(tmp_path / "slices")]) == 2
    assert len(capsys.readouterr().err.splitlines()) == 1


@pytest.mark.parametrize("field", ["node", "input", "length"])
@pytest.mark.parametrize("what", ["model", "slices", "rank models"])
def test_a_name_that_is_no_text_is_one_sentence(
    what: str, field: str, model: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path, shown = model, model
    if what == "slices":
        slice_model(model, 2, shown := tmp_path / "slices")
        path = shown / "rank_0.onnx"
    elif what == "rank models":
        shown = save_rank_models(tmp_path)
        path = Path(str(shown).replace("{}", "0"))
    proto = onnx.load(path, load_external_data=False)
    if field == "node":
        proto.graph.node[0].name = "/abc/d"
    elif field == "input":
        proto.graph.input[0].name = "/abc/d"
    else:
        proto.graph.input[0].type.tensor_type.shape.dim[0].dim_param = "/abc/d"
    path.write_bytes(proto.SerializeToString().replace(b"/abc/d", b"/a\xf8c/d"))
    name = "dim_param" if field == "length" else "name"
    for more in ([], ["--json"]):
        assert cli.main(["inspect", str(shown), *more]) == 2
        err = capsys.readouterr().err
        assert err.endswith(f"{path} is damaged: a text in it ({name}) is not UTF-8.\n")
        assert err.count("\n") == 1


def test_rank_models_made_elsewhere(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    pattern = save_rank_models(tmp_path)
    found = json.loads(inspect(capsys, pattern, "--json"))
    bytes_ = 4 * (8 * 32 + 32 + 32 * 6)
    assert found["ranks"] == [
        {
            "rank": rank,
            "file": f"rank_{rank}_model.onnx",
            "weights": 3,
            "bytes": bytes_,
            "collectives": ["AllReduce"],
        }
        for rank in range(2)
    ]
    assert [(layer["name"], layer["weights"], layer["collectives"]) for layer in found["layers"]] == [
        ("w0", ["w0", "b0"], []),
        ("w1", ["w1"], ["AllReduce"]),
    ]
    assert (found["inputs"], found["outputs"]) == (
        [["x", "float32", ["batch", 8]]],
        [["y", "float32", ["batch", 6]]],
    )
    out = inspect(capsys, pattern, "-v")
    assert f"{pattern}: 2 rank models made elsewhere" in out
    assert re.search(r"^ +1 +rank_1_model.onnx +3 +1.92 kB +1 AllReduce$", out, re.M)
    assert re.search(r"^w1 +float32 +\[32, 6\] +768 B$", out, re.M)
    for flags, words in (
        (["--ranks", "3"], "has the files of 2 ranks, but 3 are asked for"),
        (["--html", str(tmp_path / "x.html")], "--html: "),
        (["--world", "2", "--strategy", "data"], "--strategy, --world: "),
    ):
        assert cli.main(["inspect", str(pattern), *flags]) == 2
        assert words in capsys.readouterr().err
    (tmp_path / "rank_1_model.onnx").write_bytes(b"?")
    assert cli.main(["inspect", str(pattern)]) == 2
    assert "rank_1_model.onnx is not an ONNX file, or it is truncated" in capsys.readouterr().err


@pytest.mark.parametrize("command", ["run", "slice --output x", "inspect", "scripts --output x"])
@pytest.mark.parametrize("name", ["model.ckpt", "model.safetensors"])
def test_weights_alone_are_no_model(
    tmp_path: Path, command: str, name: str, capsys: pytest.CaptureFixture[str]
) -> None:
    data = Path(__file__).parents[2] / "data" / "checkpoints" / "lenet5"
    file = tmp_path / name
    file.write_bytes((data / name).read_bytes())
    assert cli.main([*command.split(), str(file), "--ranks", "2"]) == 2
    err = capsys.readouterr().err
    assert f"{file} holds weights and no graph" in err
    assert f"`shardrun convert --network package.module:FACTORY --weights {file} {file.stem}.onnx`" in err


def test_an_open_number_of_axes_is_shown(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """As `[...]`, and null in JSON: of a model, its plan, its slices, and rank models; `[]` is a scalar."""
    text = "open (float[] x, float s) => (float[] y) { m = MatMul(x, w) y = Mul(m, s) }"
    path = tmp_path / "open.onnx"
    onnx.save(graphs.model(text, {"w": np.ones((8, 64), np.float32)}), path)
    slice_model(path, 2, tmp_path / "slices", allow_replicated=True)
    for rank in range(2):
        (tmp_path / f"part_{rank}.onnx").write_bytes(path.read_bytes())
    ways: list[list[str | Path]] = [
        [path], [path, "--ranks", "2", "--allow-replicated"], [tmp_path / "slices"],
        [tmp_path / "part_{}.onnx"],
    ]  # fmt: skip
    for way in ways:
        out = inspect(capsys, *way)
        for row in (
            r"input +x +float32 +\[\.\.\.\]",
            r"input +s +float32 +\[\]",
            r"output +y +float32 +\[\.\.\.\]",
        ):
            assert re.search(f"^{row}$", out, re.M), (way, row)
        found = json.loads(inspect(capsys, *way, "--json"))
        assert found["inputs"] == [["x", "float32", None], ["s", "float32", []]]
        assert found["outputs"] == [["y", "float32", None]]
    inspect(capsys, path, "--ranks", "2", "--allow-replicated", "--html", tmp_path / "page.html")
    assert "<td>[...]</td>" in (tmp_path / "page.html").read_text()
