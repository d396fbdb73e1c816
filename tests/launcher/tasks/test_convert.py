"""``shardrun convert`` with networks, checkpoints, exported programs and ONNX files."""

import importlib.util
import json
import os
import subprocess
import sys
import textwrap
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from launcher.cli import main
from sharding.errors import ModelError, OptionError
from sharding.importers import write
from sharding.importers.networks.arguments import in_order
from sharding.importers.networks.inputs import Input
from sharding.onnx_files import protobuf
from tests.launcher.cli_tools import save_mlp

ROOT = Path(__file__).parents[3]
DATA = Path(__file__).parents[2] / "data" / "checkpoints" / "lenet5"
LENET = "tests.sharding.torch_nets:LeNet5"
NETS = "tests.sharding.torch_nets"
LARGEST = 1e-5
MINDSPORE = os.environ.get("SHARDRUN_MINDSPORE_PYTHON") or (
    sys.executable if importlib.util.find_spec("mindspore") else None
)
"""A Python that has mindspore."""


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def torch() -> Any:
    pytest.importorskip("onnxscript", reason="onnxscript is not installed: torch exports with it")
    return pytest.importorskip("torch", reason="torch is not installed")


def convert(capsys: pytest.CaptureFixture[str], *arguments: object, code: int = 0) -> str:
    found = main(["convert", *map(str, arguments)])
    out, err = capsys.readouterr()
    assert found == code, err
    assert "Traceback" not in err
    return out if code == 0 else err


def answers(path: Path, **feeds: Any) -> dict[str, Any]:
    session = onnxruntime.InferenceSession(str(path), providers=["CPUExecutionProvider"])
    names = [item.name for item in session.get_outputs()]
    return dict(zip(names, session.run(None, feeds), strict=True))


def close(found: Any, wanted: Any) -> bool:
    return bool(np.max(np.abs(found - wanted)) <= LARGEST * np.max(np.abs(wanted)))


def properties(path: Path) -> dict[str, str]:
    model = onnx.load(path, load_external_data=False)
    onnx.checker.check_model(str(path))
    return {item.key: item.value for item in model.metadata_props}


@pytest.mark.parametrize("weights", ["model.ckpt", "model.safetensors"])
def test_lenet5_gives_mindspores_answers(
    capsys: pytest.CaptureFixture[str], here: Path, torch: Any, weights: str
) -> None:
    text = convert(
        capsys, "--network", LENET, "--weights", DATA / weights, "--input", "x:batch,1,32,32", "out.onnx",
        "--verify", DATA / "io.npz", "--opset", 21,
    )  # fmt: skip
    assert text.startswith(f"8 weights from {DATA / weights}\nwrote out.onnx (249 kB)")
    assert "opset 21\ninputs: x; outputs: output\n" in text
    known = np.load(DATA / "io.npz")
    for begin in ("", "s1_", "s2_"):
        found = answers(here / "out.onnx", x=known[f"{begin}in_0"])["output"]
        assert close(found, known[f"{begin}out_0"])
    # The named axis is open.
    assert answers(here / "out.onnx", x=np.ones((5, 1, 32, 32), np.float32))["output"].shape == (5, 10)
    model = onnx.load(here / "out.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
    assert str(Path.cwd()) not in str(model), "the exporter's notes name folders"
    found = properties(here / "out.onnx")
    assert found["shardrun.source"] == LENET
    assert found["shardrun.source.producer"] == f"torch {torch.__version__}"
    assert len(found["shardrun.source.sha256"]) == 64
    assert set(found) >= {"shardrun.source.format", "shardrun.version"}
    if weights != "model.ckpt":
        return
    wrong = dict(known)
    wrong["out_0"] = wrong["out_0"] + 1
    np.savez(here / "wrong.npz", **wrong)
    text = convert(
        capsys, "--network", LENET, "--weights", DATA / weights, "out.onnx", "--verify", "wrong.npz", code=3
    )
    assert "relative error" in text


def test_inputs_are_given_in_several_ways(capsys: pytest.CaptureFixture[str], here: Path, torch: Any) -> None:
    text = convert(capsys, "--network", f"{NETS}:StatesInputs", "a.onnx", "--output-names", "logits")
    assert "inputs: x; outputs: logits" in text
    np.savez(here / "x.npz", in_0=np.ones((3, 1, 32, 32), np.float32))
    common = ("--network", LENET, "--weights", DATA / "model.ckpt", "--input", "x.npz")
    convert(capsys, *common, "--dynamic", "x:0=n", "--input-names", "image", "b.onnx")
    convert(capsys, *common, "c.onnx")
    shapes = [
        onnxruntime.InferenceSession(str(here / name)).get_inputs()[0].shape
        for name in ("a.onnx", "b.onnx", "c.onnx")
    ]
    assert shapes == [["n", 1, 32, 32], ["n", 1, 32, 32], [3, 1, 32, 32]]
    assert answers(here / "b.onnx", image=np.ones((7, 1, 32, 32), np.float32))["output"].shape == (7, 10)
    refused = convert(capsys, "--network", LENET, "d.onnx", code=2)
    assert "give its inputs with --input NAME:SHAPE[:DTYPE]" in refused
    assert "(its arguments: x)" in refused


@pytest.mark.parametrize(
    ("names", "message"),
    [
        (
            ("imgae", "scale"),
            "TwoInputs has no argument 'imgae' (did you mean image?); its arguments are image, ",
        ),
        (
            ("image", "weights"),
            "has no argument 'weights'; its arguments are image, scale. Name the inputs so",
        ),
        (("a", "b"), "has no argument 'a'; its arguments are image, scale"),
    ],
)
def test_inputs_have_the_names_of_arguments(
    capsys: pytest.CaptureFixture[str], here: Path, torch: Any, names: tuple[str, str], message: str
) -> None:
    inputs = ("--input", f"{names[0]}:n,4", "--input", f"{names[1]}:3", "out.onnx")
    assert message in convert(capsys, "--network", f"{NETS}:TwoInputs", *inputs, code=2)
    assert not (here / "out.onnx").exists()


def test_inputs_in_any_order(capsys: pytest.CaptureFixture[str], here: Path, torch: Any) -> None:
    image, scale = np.ones((5, 4), np.float32), np.arange(3, dtype=np.float32)
    common = ("--network", f"{NETS}:TwoInputs", "--input", "scale:m", "--input", "image:n,4")
    convert(capsys, *common, "out.onnx")
    assert answers(here / "out.onnx", image=image, scale=scale)["output"].tolist() == (image * 3).tolist()
    session = onnxruntime.InferenceSession(str(here / "out.onnx"))
    assert {item.name: item.shape for item in session.get_inputs()} == {"image": ["n", 4], "scale": ["m"]}
    # What a network takes as *args has no names but the user's.
    common = ("--network", f"{NETS}:AnyInputs", "--input", "a:n", "--input", "b:n", "--input", "c:n")
    assert "inputs: a, b, c;" in convert(capsys, *common, "any.onnx")
    assert answers(here / "any.onnx", a=scale, b=scale, c=scale)["output"].tolist() == [6, 8, 10]


def test_a_cells_inputs_are_put_in_order() -> None:
    """MindSpore exports a cell with inputs in order, without names."""

    class Cell:
        def construct(self, image: Any, mask: Any = None, scale: Any = 1) -> None: ...

    def order(*names: str) -> list[str]:
        return [item.name for item in in_order(Cell(), [Input(name, (2,)) for name in names], "it")]

    assert order("scale", "image", "mask") == ["image", "mask", "scale"]
    assert order("mask", "image") == ["image", "mask"]
    with pytest.raises(OptionError, match="its argument 'mask' stands before others"):
        order("scale", "image")
    with pytest.raises(OptionError, match="did you mean mask"):
        order("image", "maks")


def test_tied_weights_and_results_by_name(capsys: pytest.CaptureFixture[str], here: Path, torch: Any) -> None:
    from tests.sharding.torch_nets import Tied

    torch.manual_seed(3)
    module = Tied().eval()
    with torch.no_grad():
        module.norm.running_mean.normal_()
        module.norm.running_var.uniform_(1, 2)
        module.norm.weight.normal_()
    # As MindSpore calls them, in half precision, and without the tied one's second name.
    names = {
        "weight": "gamma",
        "bias": "beta",
        "running_mean": "moving_mean",
        "running_var": "moving_variance",
    }
    state = {f"norm.{new}": getattr(module.norm, old).detach() for old, new in names.items()}
    state["embed.embedding_table"] = module.embed.weight.detach()
    state = {name: tensor.half() for name, tensor in state.items()}
    torch.save(state, here / "w.pt")
    for tensor in (*module.parameters(), module.norm.running_mean, module.norm.running_var):
        tensor.data = tensor.data.half().float()
    common = (
        "--network", f"{NETS}:Tied", "--weights", "w.pt",
        "--input", "ids:batch,length:int64", "--input", "scale:",
    )  # fmt: skip
    refused = convert(capsys, *common, "out.onnx", code=2)
    assert "does not fit the network" in refused
    assert "with --rename 'mindspore' 5 of 5 names would fit" in refused
    assert not (here / "out.onnx").exists()
    text = convert(capsys, *common, "--rename", "mindspore", "out.onnx")
    assert "5 weights converted to another type: " in text
    assert "outputs: logits, hidden" in text
    ids = np.random.default_rng(0).integers(0, 50, (3, 7))
    found = answers(here / "out.onnx", ids=ids, scale=np.array(0.5, np.float32))
    with torch.no_grad():
        wanted = module(torch.tensor(ids), torch.tensor(0.5))
    for name, tensor in wanted.items():
        assert close(found[name], tensor.numpy()), name


def test_missing_and_unexpected_are_allowed_on_request(
    capsys: pytest.CaptureFixture[str], here: Path, torch: Any
) -> None:
    from tests.sharding.torch_nets import LeNet5

    state = LeNet5().state_dict()
    del state["fc3.bias"]
    state["moments.fc1"] = torch.zeros(3)
    torch.save({"state_dict": state}, here / "w.pth")
    common = ("--network", LENET, "--weights", "w.pth", "--input", "x:1,1,32,32", "out.onnx")
    refused = convert(capsys, *common, code=2)
    assert "1 missing: fc3.bias; 1 unexpected: moments.fc1" in refused
    text = convert(capsys, *common, "--allow-missing", "--allow-unexpected")
    assert (
        "1 weight missing in the checkpoint: fc3.bias\n1 weight unexpected in the checkpoint: moments.fc1"
        in text
    )
    state["fc3.bias"] = torch.zeros(11)
    torch.save(state, here / "w.pth")
    refused = convert(capsys, *common, "--allow-missing", "--allow-unexpected", code=2)
    assert "fc3.bias (expected [10], found [11])" in refused


@pytest.mark.parametrize(
    ("network", "message"),
    [
        ("nothing", "expected package.module:factory, or a folder"),
        ("no.such.module:f", "there is no module 'no' in the current folder"),
        (f"{NETS}:nothing", "has no 'nothing'"),
        (f"{NETS}:needs_argument", "could not be built without arguments: TypeError"),
        (f"{NETS}:no_network", "gives int; expected a torch.nn.Module"),
        (f"{NETS}:fails", "ValueError: bad weather"),
        ("empty", "has no config.json"),
        ("broken", "config.json cannot be read: it is no JSON"),
        ("strange", "names the architecture 'os.system'"),
        ("needs_it:f", "needs_it needs the package 'not_installed_here'"),
        ("ends:f", "cannot be imported: SystemExit"),
    ],
)
def test_networks_that_cannot_be_built(
    capsys: pytest.CaptureFixture[str], here: Path, torch: Any, network: str, message: str
) -> None:
    if network in {"empty", "broken", "strange"}:
        (here / network).mkdir()
        (here / "strange" if network == "strange" else here).joinpath("x").touch()
        np.savez(here / "x.npz", a=1)
        torch.save({"w": torch.ones(1)}, here / network / "pytorch_model.bin")
    if network == "broken":
        (here / network / "config.json").write_text("{")
    if network == "strange":
        pytest.importorskip("transformers", reason="transformers is not installed")
        document = {"model_type": "bert", "architectures": ["os.system"]}
        (here / network / "config.json").write_text(json.dumps(document))
    (here / "needs_it.py").write_text("import not_installed_here\n")
    (here / "ends.py").write_text("raise SystemExit(5)\n")
    assert message in convert(capsys, "--network", network, "--input", "x:2,3", "out.onnx", code=2)
    assert not (here / "out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--input", "x"], "expected NAME:SHAPE[:DTYPE]"),
        (["--input", "x:1,-2"], "'-2' is neither a length nor a name"),
        (["--input", "x:1:complex"], "the type 'complex' is none of float32"),
        (["--input", "x:1", "--input", "x:2"], "an input is there twice"),
        (["--input", "x:n,1,32,32", "--dim", "m=3"], "--dim m: no input has an open axis"),
        (["--input", "x:n,1,32,32", "--dim", "n=1"], "give it another with --dim n=2"),
        (["--input", "x:1,1,32,32", "--dynamic", "y:0=n"], "there is no such input (the inputs: x)"),
        (["--input", "x:1,1,32,32", "--dynamic", "x:9=n"], "it has 4 axes"),
        (["--input", "x:1,1,32,32", "--dynamic", "x=n"], "expected NAME:AXIS=SYMBOL"),
        (["--input", "x:1,1,32"], "cannot be exported with the inputs x:1,1,32:float32"),
        (["--input", "x:1,1,32,32", "--output-names", "a,b"], "the model has 1 output (output); found 2"),
        (["--input", "x:1,1,32,32", "--output-names", "x"], "already the name of another input or output"),
        (["--input", "missing.npz"], "missing.npz: No such file"),
        (["--input", "x:1,1,32,32", "more.onnx"], "with --network expected OUTPUT.onnx alone"),
        (["--input", "x:1,1,32,32", "--rename", "a=b"], "--rename is for weights"),
        (
            ["--network", "nets/lenet.py:LeNet5"],
            "without .py, and with dots for folders; give nets.lenet:LeNet5",
        ),
    ],
)
def test_wrong_options(
    capsys: pytest.CaptureFixture[str], here: Path, torch: Any, arguments: list[str], message: str
) -> None:
    assert message in convert(capsys, "--network", LENET, "out.onnx", *arguments, code=2)
    assert not (here / "out.onnx").exists()


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--network", "a:B"], "with --network expected OUTPUT.onnx alone, found nothing"),
        (
            ["--weights", "w.ckpt", "out.onnx"],
            "found out.onnx; weights alone have no graph: give their network",
        ),
        ([], "expected MODEL and OUTPUT.onnx, found nothing"),
        (["net.py", "out.onnx"], "net.py is Python code, no model; give a network of it with --network net:"),
        (["text", "out.onnx"], "text is of no format that can be turned into ONNX"),
    ],
)
def test_files_that_are_left_out_or_no_models(
    capsys: pytest.CaptureFixture[str], here: Path, arguments: list[str], message: str
) -> None:
    for name in ("net.py", "text"):
        (here / name).write_text("\n\nimport torch\n\n\nclass Net(torch.nn.Module):\n    pass\n")
    assert message in convert(capsys, *arguments, code=2)
    assert not (here / "out.onnx").exists()


def test_the_exporters_own_remarks_are_for_debugging(here: Path, torch: Any) -> None:
    code = """
        import torch
        class Branch(torch.nn.Module):
            def forward(self, x):
                return x if x.sum() > 0 else -x
    """
    (here / "branch.py").write_text(textwrap.dedent(code))
    # Both in one new process, which takes long to begin; what it is silent of first is not yet said.
    twice = """
        import sys
        from launcher.cli import main
        command = ["convert", "--network", "branch:Branch", "out.onnx", "--input", "x:4"]
        first = main(command)
        print("---", file=sys.stderr)
        print(first, main([*command, "--debug"]))
    """
    done = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(twice)], capture_output=True, text=True, timeout=120,
        env={**os.environ, "PYTHONPATH": f"{here}{os.pathsep}{ROOT}"}, check=False,
    )  # fmt: skip
    assert done.stdout.split() == ["2", "2"], done.stderr
    for said, debugging in zip(done.stderr.split("---\n"), (False, True), strict=True):
        last = said.splitlines()[-1]
        assert last.startswith(
            "shardrun: error: branch:Branch cannot be exported with the inputs x:4:float32"
        )
        assert "…" not in last
        assert (said.count("\n") == 1) is (not debugging), said
        assert ("Traceback" in said) is debugging
    assert not (here / "out.onnx").exists()


@pytest.mark.parametrize("kind", ["bert", "llama", "vit"])
def test_folders_of_transformers(
    capsys: pytest.CaptureFixture[str], here: Path, torch: Any, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    transformers = pytest.importorskip("transformers", reason="transformers is not installed")
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    small = {"hidden_size": 32, "num_attention_heads": 4, "intermediate_size": 64}
    small["num_hidden_layers"] = 2 if kind == "llama" else 1  # in several files
    text = {"vocab_size": 100, "max_position_embeddings": 64}
    if kind == "bert":
        module = transformers.BertForSequenceClassification(transformers.BertConfig(**small, **text))
    elif kind == "llama":
        config = transformers.LlamaConfig(**small, **text, num_key_value_heads=2, tie_word_embeddings=True)
        module = transformers.LlamaForCausalLM(config)
    else:
        config = transformers.ViTConfig(**small, image_size=32, patch_size=8)
        module = transformers.ViTForImageClassification(config)
    module.eval().save_pretrained(here / "folder", max_shard_size="20KB" if kind == "llama" else "1GB")
    assert (here / "folder" / "model.safetensors.index.json").exists() == (kind == "llama")
    printed = convert(capsys, "--network", "folder", "out.onnx")
    assert "missing" not in printed
    assert "unexpected" not in printed
    random = np.random.default_rng(1)
    if kind == "vit":
        feeds = {"pixel_values": random.standard_normal((3, 3, 32, 32), np.float32)}
    else:
        mask = np.ones((3, 9), np.int64)
        mask[0, 6:] = 0
        feeds = {"input_ids": random.integers(0, 100, (3, 9)), "attention_mask": mask}
    with torch.no_grad():
        wanted = module(**{name: torch.tensor(array) for name, array in feeds.items()}).logits.numpy()
    assert close(answers(here / "out.onnx", **feeds)["logits"], wanted)
    torch.save({"other": torch.ones(2)}, here / "w.pt")
    refused = convert(capsys, "--network", "folder", "--weights", "w.pt", "out.onnx", code=2)
    assert "1 unexpected: other" in refused


def test_exported_programs(capsys: pytest.CaptureFixture[str], here: Path, torch: Any) -> None:
    from tests.sharding.torch_nets import LeNet5

    module = LeNet5().eval()
    batch = {0: torch.export.Dim("batch")}
    program = torch.export.export(module, (torch.randn(2, 1, 32, 32),), dynamic_shapes=(batch,))
    torch.export.save(program, here / "p.pt2")
    text = convert(capsys, "p.pt2", "--opset", 20, "out.onnx", "--input-names", "image")
    assert "opset 20\ninputs: image; outputs: output" in text
    image = np.random.default_rng(0).standard_normal((4, 1, 32, 32), np.float32)
    with torch.no_grad():
        wanted = module(torch.tensor(image)).numpy()
    assert close(answers(here / "out.onnx", image=image)["output"], wanted)
    assert properties(here / "out.onnx")["shardrun.source.format"] == "torch.export program"
    trap = here / "trap"

    class Evil:
        def __reduce__(self) -> Any:
            return os.mkdir, (str(trap),)

    def changed(edit: Any) -> str:
        with zipfile.ZipFile("p.pt2") as old, zipfile.ZipFile("evil.pt2", "w") as new:
            for name in old.namelist():
                new.writestr(name, edit(name, old.read(name)))
        return convert(capsys, "evil.pt2", "evil.onnx", code=2)

    def in_json(old: str, new: str) -> Any:
        return lambda _, data: data.replace(old.encode(), new.encode())

    torch.save((Evil(),), here / "evil.pt")
    evil = (here / "evil.pt").read_bytes()
    pickled = changed(lambda name, data: evil if name.endswith(".pt") else data)
    assert "is a pickle of more than tensors" in pickled
    assert "that a weight in it is a pickle" in changed(in_json('"use_pickle": false', '"use_pickle": true'))
    assert "is no operator" in changed(in_json("torch.ops.aten.relu.default", "torch.hub.load"))
    expression = "__import__('os').mkdir('trap')"
    with zipfile.ZipFile("p.pt2") as archive:
        model = next(name for name in archive.namelist() if name.endswith("model.json"))
        document = archive.read(model).decode()
    symbol = document.split('"expr_str": "')[1].split('"')[0]
    assert "is no arithmetic" in changed(in_json(f'"expr_str": "{symbol}"', f'"expr_str": "{expression}"'))
    content = (here / "p.pt2").read_bytes()
    (here / "evil.pt2").write_bytes(content[: len(content) // 2])
    assert "is truncated" in convert(capsys, "evil.pt2", "evil.onnx", code=2)
    assert not trap.exists()
    assert not (here / "evil.onnx").exists()


@pytest.mark.parametrize("external", [False, True])
def test_weights_into_an_onnx_file(capsys: pytest.CaptureFixture[str], here: Path, external: bool) -> None:
    safetensors = pytest.importorskip("safetensors.numpy", reason="safetensors is not installed")
    model = save_mlp(here / "model.onnx", width=512, external=external)
    before = model.read_bytes()
    random = np.random.default_rng(9)
    shapes = {"w0": (8, 512), "b0": (512,), "w1": (512, 6)}
    new = {name: random.standard_normal(shape).astype(np.float16) for name, shape in shapes.items()}
    safetensors.save_file({f"net.{name}": array for name, array in new.items()}, here / "w.safetensors")
    arguments = ("--weights", "w.safetensors", "model.onnx", "--opset", 21, "out.onnx")
    refused = convert(capsys, *arguments, code=2)
    assert "3 missing: w0, b0, w1; 3 unexpected" in refused
    assert r"with --rename '^net\.=' 3 of 3 names would fit" in refused
    text = convert(capsys, *arguments, "--rename", r"^net\.=")
    assert "3 weights converted to another type: b0 from float16 to float32, w0" in text
    assert "opset 21\ninputs: x; outputs: y" in text
    x = random.standard_normal((5, 8)).astype(np.float32)
    w0, b0, w1 = (new[name].astype(np.float32) for name in shapes)
    assert close(answers(here / "out.onnx", x=x)["y"], np.maximum(x @ w0 + b0, 0) @ w1)
    assert model.read_bytes() == before
    found = properties(here / "out.onnx")
    assert found["shardrun.source.format"] == "ONNX with weights of a safetensors"
    assert set(found) >= {"shardrun.source.sha256.model.onnx", "shardrun.source.sha256.w.safetensors"}


def test_a_file_too_long_for_protobuf_gets_its_weights_beside_it(
    capsys: pytest.CaptureFixture[str], here: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As nothing else can be made of it by ONNX's own tools, this is a conversion; here with lower limits."""
    monkeypatch.setattr(protobuf, "MESSAGE_BYTES", 1 << 17)
    monkeypatch.setattr(write, "INLINE_MOST", 1 << 16)
    model = save_mlp(here / "model.onnx", width=4096)
    with pytest.raises(
        ModelError, match=r"`shardrun convert MODEL OUTPUT.onnx` puts the weights into a file"
    ):
        raise protobuf.not_a_model(model)
    assert "out.onnx.data (" in convert(capsys, "model.onnx", "out.onnx")
    assert (here / "out.onnx").stat().st_size < 2048
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    np.testing.assert_array_equal(answers(here / "out.onnx", x=x)["y"], answers(model, x=x)["y"])


def test_onnx_files_get_other_names_and_operators(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    save_mlp(here / "model.onnx", external=True)
    x = np.random.default_rng(0).standard_normal((3, 8)).astype(np.float32)
    wanted = answers(here / "model.onnx", x=x)["y"]
    assert "is an ONNX file already; give it other weights" in convert(capsys, "model.onnx", "o.onnx", code=2)
    # A value inside has the new name already.
    convert(capsys, "model.onnx", "out.onnx", "--input-names", "h0", "--output-names", "x", "--opset", "19")
    np.testing.assert_array_equal(answers(here / "out.onnx", h0=x)["x"], wanted)
    refused = convert(capsys, "model.onnx", "model.onnx.data", "--opset", "18", code=2)
    assert "no ONNX model that could be replaced" in refused
    (here / "model.onnx").rename(here / "other.onnx")
    refused = convert(capsys, "other.onnx", "model.onnx", "--opset", "18", code=2)
    assert "model.onnx.data holds weights of the model itself" in refused
    (here / "other.onnx").rename(here / "model.onnx")
    data = (here / "model.onnx.data").read_bytes()
    (here / "model.onnx.data").write_bytes(data[:100])
    refused = convert(capsys, "model.onnx", "b.onnx", "--opset", "18", code=2)
    assert "it is truncated" in refused
    (here / "cut.onnx").write_bytes((here / "model.onnx").read_bytes()[:-30])
    assert "cut.onnx" in convert(capsys, "cut.onnx", "b.onnx", "--opset", "18", code=2)
    assert not (here / "b.onnx").exists()


def test_files_of_weights_alone_say_what_is_needed(capsys: pytest.CaptureFixture[str], here: Path) -> None:
    for name in ("model.ckpt", "model.safetensors"):
        refused = convert(capsys, DATA / name, "out.onnx", code=2)
        assert (
            "holds weights and no graph; give them with --weights, and their network with --network"
            in refused
        )
    mindir = DATA.parents[1] / "mindir" / "mlp" / "model.mindir"
    refused = convert(capsys, "--weights", DATA / "model.ckpt", mindir, "out.onnx", code=2)
    assert "convert this model first" in refused
    assert "--input is for --network" in convert(capsys, mindir, "out.onnx", "--input", "x:1", code=2)
    assert "expected MODEL and OUTPUT.onnx" in convert(capsys, mindir, code=2)
    assert "does not exist; expected a model" in convert(capsys, "none.mindir", "out.onnx", code=2)


@pytest.mark.skipif(
    MINDSPORE is None,
    reason="mindspore is not installed; SHARDRUN_MINDSPORE_PYTHON may name a Python that has it",
)
def test_a_network_in_mindspore(here: Path) -> None:
    assert MINDSPORE is not None
    root = Path(__file__).parents[3]
    nets = "tests.sharding.importers.mindspore_nets:LeNet5"
    done = subprocess.run(
        [MINDSPORE, "-m", "launcher.cli", "convert", "--network", nets, "--weights", DATA / "model.ckpt",
         "--input", "x:batch,1,32,32", "out.onnx"],
        cwd=here, env={**os.environ, "PYTHONPATH": str(root)}, capture_output=True, text=True, timeout=200,
        check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    assert "8 weights from" in done.stdout
    known = np.load(DATA / "io.npz")
    assert close(answers(here / "out.onnx", x=known["in_0"])["output"], known["out_0"])
    model = onnx.load(here / "out.onnx")
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param == "batch"
