"""``shardrun convert``: a model of another format as an ONNX file."""

from __future__ import annotations

import argparse
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.commands.options import whole
from launcher.errors import ConfigError

if TYPE_CHECKING:
    import onnx

    from sharding.importers.mindir.encryption import Key

HELP = "turn a MindIR model into ONNX"
DESCRIPTION = """\
Writes a MindIR model (version 1 or 3) as an ONNX file; many weights go to a file beside it, OUTPUT.onnx.data.
Other commands read MindIR as it is: conversion is for other programs. --verify runs the result in plain ONNX
Runtime and compares it with answers that are given."""
EPILOG = """\
examples:
  shardrun convert model.mindir model.onnx
  shardrun convert model.mindir model.onnx --verify io.npz
  shardrun convert secret.mindir model.onnx --dec-key-file key.bin --dec-mode AES-CBC

exit codes:
  0 done; 2 the model cannot be converted, or wrong usage; 3 --verify found a difference
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from sharding.importers.sniff import OPSETS

    parser.add_argument("model", metavar="MODEL.mindir", type=Path)
    parser.add_argument("output", metavar="OUTPUT.onnx", type=Path, help="an earlier ONNX file is replaced")
    parser.add_argument(
        "--opset", metavar="N", type=whole(OPSETS[0], OPSETS[-1]), default=OPSETS[0],
        help=f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[-1]} (default: {OPSETS[0]})",
    )  # fmt: skip
    parser.add_argument(
        "--verify", metavar="FILE.npz", type=Path,
        help="inputs and right outputs, by name or as in_0, ..., out_0, ...",
    )  # fmt: skip
    parser.add_argument(
        "--dec-key-file", metavar="FILE", type=Path, help="the key of an encrypted model: the file's bytes"
    )
    parser.add_argument(
        "--dec-mode", choices=("AES-GCM", "AES-CBC"), default="AES-GCM", help="default: AES-GCM"
    )


def run(args: argparse.Namespace) -> int:
    """Converts, writes, compares, prints."""
    from launcher.files import check_folder
    from launcher.report import counted, human_bytes, progress
    from sharding.importers import import_model
    from sharding.importers.write import write_onnx
    from sharding.manifest import sha256_of

    check_folder("OUTPUT", args.output)
    _check_output(args.model, args.output)
    answers = _answers(args.verify) if args.verify is not None else None
    model = import_model(args.model, key=_key(args), opset=args.opset)
    model.metadata_props.add(key="shardrun.source.sha256", value=sha256_of(args.model))
    _check_model(model, args.model)
    names = [value.name for value in model.graph.input], [value.name for value in model.graph.output]
    with progress(f"writing {args.output.name}") as update:
        files = write_onnx(model, args.model, args.output, update)
    sizes = ", ".join(f"{file} ({human_bytes(file.stat().st_size)})" for file in files)
    print(
        f"wrote {sizes}: {counted(len(model.graph.node), 'node')}, "
        f"{counted(len(model.graph.initializer), 'weight')}, opset {args.opset}"
    )
    print(f"inputs: {', '.join(names[0]) or 'none'}; outputs: {', '.join(names[1])}")
    if answers is not None:
        _verify(args.output, answers, *names)
    return 0


def _check_output(model: Path, output: Path) -> None:
    """Raises `ConfigError` where the output would replace anything but an ONNX model."""
    from sharding.importers.sniff import format_of

    if not output.exists():
        return
    if model.exists() and output.samefile(model):
        raise ConfigError(f"convert: {output} is the model itself; choose another name")
    if output.stat().st_size and format_of(output) != "onnx":
        raise ConfigError(
            f"convert: {output} is there already, and it is no ONNX model that could be replaced; choose "
            "another name, or remove it"
        )


def _check_model(model: onnx.ModelProto, path: Path) -> None:
    """ONNX's own checks of what was made, without its weights."""
    import onnx

    from sharding.errors import ModelError

    if any(node.domain == "com.microsoft" for node in model.graph.node):
        return  # a rank's part of a model
    if any(
        not value.type.tensor_type.HasField("shape") for value in (*model.graph.input, *model.graph.output)
    ):
        return  # ONNX allows an unknown number of axes, its checker does not
    try:
        onnx.checker.check_model(_small(model))
    except onnx.checker.ValidationError as error:
        reason = " ".join(str(error).split())[:300]
        raise ModelError(f"{path}: the ONNX model that was made of it is not valid: {reason}.") from None


def _small(model: onnx.ModelProto) -> onnx.ModelProto:
    """The model with external weights declared only: the checker would look for their files."""
    import onnx

    copy = onnx.ModelProto()
    copy.CopyFrom(model)
    outside = [item for item in copy.graph.initializer if item.data_location == item.EXTERNAL]
    for item in outside:
        copy.graph.input.append(
            onnx.helper.make_tensor_value_info(item.name, item.data_type, list(item.dims))
        )
        copy.graph.initializer.remove(item)
    return copy


def _key(args: argparse.Namespace) -> Key | None:
    if args.dec_key_file is None:
        return None
    from sharding.importers.mindir.encryption import Key

    try:
        secret = args.dec_key_file.read_bytes()[:4096]
    except OSError as error:
        raise ConfigError(f"--dec-key-file {args.dec_key_file}: {error.strerror or error}") from None
    return Key(secret.rstrip(b"\r\n") if len(secret) % 8 else secret, args.dec_mode)


def _answers(path: Path) -> dict[str, Any]:
    import zipfile

    import numpy as np

    try:
        with np.load(path, allow_pickle=False) as archive:
            return {name: archive[name] for name in archive.files}
    except (OSError, ValueError, AttributeError, zipfile.BadZipFile) as error:
        reason = getattr(error, "strerror", None) or "it is no NumPy archive (.npz)"
        raise ConfigError(f"--verify {path}: {reason}") from None


def _verify(model: Path, answers: dict[str, Any], inputs: list[str], outputs: list[str]) -> None:
    """Raises `VerifyError` where the model's answers are not those given."""
    from launcher.report import print_table
    from launcher.verify import check, compare_outputs, run_reference

    feeds = _named(answers, inputs, "in")
    wanted = _named(answers, outputs, "out")
    comparisons = compare_outputs(run_reference(model, feeds), wanted)
    rows = [
        [c.name, f"{c.error:.2e}", f"{c.tolerance:g}", "ok" if c.good else "DIFFERS"] for c in comparisons
    ]
    print_table(["output", "relative error", "tolerance", ""], rows, "lrrl")
    check(comparisons, model)


def _named(answers: dict[str, Any], names: list[str], prefix: str) -> dict[str, Any]:
    found = {}
    for index, name in enumerate(names):
        key = name if name in answers else f"{prefix}_{index}"
        if key not in answers:
            raise ConfigError(f"--verify: there is neither {name!r} nor {key!r} in the file")
        found[name] = answers[key]
    return found
