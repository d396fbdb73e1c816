"""What ``shardrun convert`` does: finds out what is given, makes an ONNX model of it, and checks that."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ConfigError
from sharding.common.nearby import hint, shown
from sharding.errors import ModelError
from sharding.slices.domains import MICROSOFT

if TYPE_CHECKING:
    import onnx

    from sharding.common.arrays import Array
    from sharding.common.encryption import Key
    from sharding.importers.checkpoints import Checkpoint
    from sharding.importers.checkpoints.match import Match
    from sharding.importers.networks.factory import Network
    from sharding.importers.networks.inputs import Input
    from sharding.importers.write import Weight


@dataclass
class Request:
    """What the user asks for. ``opset`` None: that of the source, or else the lowest that is written."""

    model: Path | None
    network: str | None = None
    weights: Path | None = None
    rename: list[str] = field(default_factory=list)
    allow_missing: bool = False
    allow_unexpected: bool = False
    inputs: list[str] = field(default_factory=list)
    lengths: dict[str, int] = field(default_factory=dict)
    dynamic: list[str] = field(default_factory=list)
    input_names: list[str] | None = None
    output_names: list[str] | None = None
    opset: int | None = None
    key: Key | None = None
    examples: Mapping[str, Array] | None = None
    """Arrays of ``--verify``. They also say what the inputs are, where nothing else does."""


@dataclass
class Converted:
    """A model to be written: ``source`` is the file that its weights lie in or beside, ``weights`` are those
    that lie elsewhere."""

    model: onnx.ModelProto
    source: Path
    weights: Mapping[str, Weight] = field(default_factory=dict)
    origin: dict[str, str] = field(default_factory=dict)
    files: list[Path] = field(default_factory=list)
    match: Match | None = None


def make(request: Request, stack: ExitStack) -> Converted:
    """Makes the model; temporary files are there until the stack ends. Raises `ShardrunError`."""
    from sharding.importers.padded_pooling import keep_zeros
    from sharding.importers.value_names import rename_inputs, rename_outputs

    _check(request)
    made = _network(request, stack) if request.network is not None else _file(request)
    if request.input_names is not None:
        rename_inputs(made.model, request.input_names)
    if request.output_names is not None:
        rename_outputs(made.model, request.output_names)
    keep_zeros(made.model)
    _describe(made)
    return made


def _check(request: Request) -> None:
    """Options that do not go together."""
    if request.network is None:
        flags = (("--input", request.inputs), ("--dim", request.lengths), ("--dynamic", request.dynamic))
        for flag, given in flags:
            if given:
                raise ConfigError(
                    f"convert: {flag} is for --network; the axes of a file are as they are in it"
                )
    if request.weights is None:
        for flag, wanted in (
            ("--rename", request.rename),
            ("--allow-missing", request.allow_missing),
            ("--allow-unexpected", request.allow_unexpected),
        ):
            if wanted and not (request.network and Path(request.network).is_dir()):
                raise ConfigError(f"convert: {flag} is for weights; give them with --weights FILE")


def _weights(request: Request, default: Path | None = None) -> Checkpoint | None:
    from sharding.importers.checkpoints import open_checkpoint

    place = request.weights or default
    return open_checkpoint(place, request.key) if place is not None else None


def _allowed(request: Request) -> dict[str, bool]:
    return {"allow_missing": request.allow_missing, "allow_unexpected": request.allow_unexpected}


def _network(request: Request, stack: ExitStack) -> Converted:
    from sharding.importers import OPSETS
    from sharding.importers.checkpoints.rename import parse_rules
    from sharding.importers.networks import cells, export, factory, pretrained, weights
    from sharding.importers.networks.packages import need

    rules = parse_rules(request.rename)
    assert request.network is not None
    folder = Path(request.network) if Path(request.network).is_dir() else None
    checkpoint = _weights(request, folder)  # before the network is built: a wrong file is soon told
    network = factory.build(request.network)
    found = None
    if checkpoint is not None:
        loaders = {"torch": weights.load, "transformers": pretrained.load, "mindspore": cells.load}
        found = loaders[network.kind](network, checkpoint, rules, **_allowed(request))
    inputs = _inputs(request, network)
    opset = request.opset or OPSETS[0]
    if network.kind != "mindspore":
        model, held = export.export_module(network.module, inputs, request.lengths, opset, network.what)
        made = Converted(model, checkpoint.path if checkpoint else Path(), held)
    else:
        import tempfile

        work = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="shardrun-")))
        model, path = cells.export_cell(network.module, inputs, work, opset, network.what)
        made = Converted(model, path)
    made.match = found
    made.files = checkpoint.files if checkpoint else []
    made.origin = {
        "source": network.what,
        "source.format": checkpoint.format if checkpoint else "network without a checkpoint",
        "source.producer": f"{network.kind} {need(network.kind, network.what).__version__}",
    }
    return made


def _inputs(request: Request, network: Network) -> list[Input]:
    """The inputs that the user gives, or the network states, or those of the arrays to verify with."""
    from launcher.tasks.expectations import read_arrays
    from sharding.importers.networks.arguments import arguments_of
    from sharding.importers.networks.inputs import from_arrays, parse_dynamic, parse_input, with_dynamic

    found: list[Input] = []
    arguments = arguments_of(network.module)
    for text in request.inputs:
        if Path(text).suffix.lower() == ".npz":
            given = from_arrays(read_arrays("--input", Path(text)), arguments)
            if not given:
                raise ConfigError(
                    f"--input {text}: it has no array named like an argument of the network, nor in_0 (the "
                    f"arguments: {', '.join(arguments)})"
                )
            found.extend(given)
        else:
            found.append(parse_input(text))
    names = [item.name for item in found]
    if len(set(names)) != len(names):
        raise ConfigError(f"--input: an input is there twice: {', '.join(names)}")
    if not found:
        found = network.inputs or from_arrays(request.examples or {}, arguments)
    return with_dynamic(found, parse_dynamic(request.dynamic)) if found else []


def _file(request: Request) -> Converted:
    from sharding.importers import OPSETS, format_of, import_model
    from sharding.importers.checkpoints import kind_of

    path = request.model
    assert path is not None
    if not path.is_file():
        state = "is not a file" if path.exists() else f"does not exist{hint(path)}"
        raise ConfigError(f"convert: {shown(path)} {state}; expected a model")
    if path.suffix == ".py":
        raise ConfigError(
            f"convert: {path} is Python code, no model; give a network of it with --network "
            f"{path.stem}:FACTORY, its class or a function that builds it"
        )
    kind = kind_of(path)
    if kind == "program":
        if request.weights is not None:
            raise ConfigError(
                f"convert: {path} is an exported program, which has its weights: leave --weights out"
            )
        from sharding.importers.networks.program import import_program

        model, held = import_program(path, request.opset or OPSETS[0])
        made = Converted(model, path, held, files=[path])
        made.origin = {"source.format": "torch.export program", "source.producer": _torch()}
    elif kind != "unknown":
        raise ConfigError(
            f"convert: {path} holds weights and no graph; give them with --weights, and their network with "
            "--network package.module:factory, or a model.onnx that has the graph"
        )
    elif format_of(path) == "onnx":
        made = _onnx(request, path)
    else:
        if request.weights is not None:
            raise ConfigError(
                "convert: --weights goes with --network or an ONNX file; convert this model first, then give "
                "the result other weights"
            )
        made = Converted(import_model(path, key=request.key, opset=request.opset or OPSETS[0]), path)
        made.files = [path]
    made.origin.setdefault("source", path.name)
    return made


def _torch() -> str:
    from sharding.importers import torch_import

    return f"torch {torch_import.load().__version__}"


def _onnx(request: Request, path: Path) -> Converted:
    from sharding.importers import onnx_file
    from sharding.importers.checkpoints.rename import parse_rules
    from sharding.importers.opset import convert_opset
    from sharding.onnx_files.protobuf import MESSAGE_BYTES

    changes = (request.weights, request.opset, request.input_names, request.output_names)
    if all(change is None for change in changes) and path.stat().st_size < MESSAGE_BYTES:
        raise ConfigError(
            f"convert: {path} is an ONNX file already; give it other weights (--weights), names "
            "(--input-names, --output-names) or another --opset"
        )
    model = onnx_file.read(path)
    origin = {
        "source.format": "ONNX",
        "source.producer": f"{model.producer_name} {model.producer_version}".strip(),
    }
    made = Converted(model, path, files=[path], origin=origin)
    checkpoint = _weights(request)
    if checkpoint is not None:
        made.match, made.weights = onnx_file.put_weights(
            model, checkpoint, parse_rules(request.rename), **_allowed(request)
        )
        made.files = [path, *checkpoint.files]
        made.origin["source.format"] = f"ONNX with weights of a {checkpoint.format}"
    if request.opset is not None:
        made.model = convert_opset(model, request.opset, str(path))
    return made


def _describe(made: Converted) -> None:
    """Writes where the model is from into its metadata."""
    from sharding.common.version import version
    from sharding.slices.manifest import sha256_of

    hashes = [(file.name, sha256_of(file)) for file in made.files]
    values = {f"shardrun.{key}": value for key, value in made.origin.items()}
    if len(hashes) == 1:
        values["shardrun.source.sha256"] = hashes[0][1]
    else:
        values |= {f"shardrun.source.sha256.{name}": digest for name, digest in hashes}
    values["shardrun.version"] = version()
    kept = {item.key: item.value for item in made.model.metadata_props}
    del made.model.metadata_props[:]
    # What the importer said itself is more exact than the name of the file.
    for key, value in {**values, **kept, "shardrun.version": values["shardrun.version"]}.items():
        text = value.encode(errors="replace").decode()
        made.model.metadata_props.add(key=key.encode(errors="replace").decode(), value=text)


def check_model(model: onnx.ModelProto, what: str, *, types: bool = False) -> None:
    """ONNX's own checks of what was made, without its weights; with ``types`` also whether its operators take
    the elements that they get: exporters do not look at those of a network's inputs. Raises `ModelError`."""
    import onnx

    from sharding.importers.opset import without_external

    if any(node.domain == MICROSOFT for node in model.graph.node):
        return  # a rank's part of a model
    if any(
        not value.type.tensor_type.HasField("shape") for value in (*model.graph.input, *model.graph.output)
    ):
        return  # ONNX allows an unknown number of axes, its checker does not
    plain = without_external(model)
    try:
        onnx.checker.check_model(plain)
        if types:
            onnx.shape_inference.infer_shapes(plain, check_type=True)
    except (onnx.checker.ValidationError, onnx.shape_inference.InferenceError) as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{what}: the ONNX model that was made of it is not valid: {reason}.") from None


def check_output(model: Path | None, output: Path) -> None:
    """Raises `ConfigError` where the output would replace anything but an ONNX model."""
    from sharding.importers.sniff import format_of

    if not output.exists():
        return
    if not output.is_file():
        raise ConfigError(f"convert: {output} is a device or pipe; an ONNX model needs the name of a file")
    if model is not None and model.exists() and output.samefile(model):
        raise ConfigError(f"convert: {output} is the model itself; choose another name")
    if output.stat().st_size and format_of(output) != "onnx":
        raise ConfigError(
            f"convert: {output} is there already, and it is no ONNX model that could be replaced; choose "
            "another name, or remove it"
        )


def check_sources(made: Converted, output: Path) -> None:
    """Raises `ConfigError` where the output, or the file of its weights, is one that the model is made of."""
    for path in (output, output.with_name(f"{output.name}.data")):
        for source in made.files:
            if path.exists() and source.exists() and path.samefile(source):
                raise ConfigError(
                    f"convert: the result would replace {source}, which it is made of; choose another name"
                )
