"""``shardrun convert``: a model of another format, or a network with a checkpoint, as an ONNX file."""

from __future__ import annotations

import argparse
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.commands.options import add_groups, key_of, whole
from launcher.errors import ConfigError
from launcher.job.options import ENCRYPTED
from sharding.common.bounds import MAX_LENGTH
from sharding.common.text import one_line, parse_whole

if TYPE_CHECKING:
    from launcher.tasks.conversion import Converted

DESCRIPTION = """\
Writes an ONNX file; many weights go to a file beside it, OUTPUT.onnx.data. MODEL is a MindIR model (version 1
or 3), a program of torch.export (.pt2), or an ONNX file that gets other weights, names or operators. With
--network it is left out: the network is Python code or a folder with the config.json of a transformers model,
and --weights are those of MindSpore (.ckpt), torch (.pt, .pth) or .safetensors. --verify runs the result in
plain ONNX Runtime and compares it with answers that are given."""
EPILOG = """\
examples:
  shardrun convert model.mindir model.onnx
  shardrun convert --network lenet:LeNet5 --weights lenet.ckpt --input x:batch,1,32,32 lenet.onnx
  shardrun convert --network folder/ model.onnx
  shardrun convert --weights tuned.safetensors model.onnx tuned.onnx
  shardrun convert program.pt2 model.onnx --opset 21 --verify io.npz
  shardrun convert secret.mindir model.onnx --dec-key-file key.bin --dec-mode AES-CBC

exit codes:
  0 done; 2 the model cannot be converted, or wrong usage; 3 --verify found a difference
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from sharding.importers.sniff import OPSETS

    parser.add_argument("model", metavar="MODEL", nargs="?", type=Path, help="left out with --network")
    # `nargs="?"` is taken for absent where an option stands between the two.
    parser.add_argument(
        "output", metavar="OUTPUT.onnx", nargs="*", type=Path, help="an earlier ONNX file is replaced"
    )
    _take_all(parser)
    network = parser.add_argument_group("networks and weights")
    network.add_argument(
        "--network", metavar="MODULE:FACTORY|FOLDER",
        help="builds the network: package.module:factory, whose code is run, or a folder with config.json",
    )  # fmt: skip
    network.add_argument(
        "--weights", metavar="FILE", type=Path,
        help=".ckpt, .pt, .pth, .safetensors, or the .index.json of several files",
    )  # fmt: skip
    network.add_argument(
        "--rename", metavar="PATTERN=REPLACEMENT", action="append", default=[],
        help="other names for the weights, by a regular expression, or by a map: mindspore, ddp, compiled; "
        "repeatable",
    )  # fmt: skip
    network.add_argument(
        "--allow-missing", action="store_true", help="weights that the file lacks stay as they are"
    )
    network.add_argument(
        "--allow-unexpected", action="store_true", help="weights that the network lacks are left out"
    )
    network.add_argument(
        "--input", metavar="NAME:SHAPE[:DTYPE]|FILE.npz", dest="inputs", action="append", default=[],
        help="an input of the network, such as x:batch,3,224,224:float32; an axis with a name stays open; or "
        "arrays like the inputs; repeatable",
    )  # fmt: skip
    network.add_argument(
        "--dynamic", metavar="NAME:AXIS=SYMBOL,...", action="append", default=[],
        help="axes of inputs that stay open, such as x:0=batch; repeatable",
    )  # fmt: skip
    network.add_argument(
        "--dim", metavar="NAME=SIZE", dest="dims", action="append", default=[],
        help="length of an open axis while the network is exported (default: a small one); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--input-names", metavar="A,B,...", type=_names, help="other names for all inputs, in order"
    )
    parser.add_argument(
        "--output-names", metavar="A,B,...", type=_names, help="other names for all outputs, in order"
    )
    parser.add_argument(
        "--opset", metavar="N", type=whole(OPSETS[0], OPSETS[-1]),
        help=f"version of ONNX's operators, {OPSETS[0]} to {OPSETS[-1]} (default: {OPSETS[0]}, or an ONNX "
        "file's own)",
    )  # fmt: skip
    parser.add_argument(
        "--verify", metavar="FILE.npz", type=Path,
        help="inputs and right outputs, by name or as in_0, ..., out_0, ...",
    )  # fmt: skip
    add_groups(parser, ENCRYPTED)


def run(args: argparse.Namespace) -> int:
    """Converts, writes, compares, prints."""
    from launcher.common.files import check_folder
    from launcher.common.report import counted, human_bytes, progress
    from launcher.tasks import conversion, expectations
    from sharding.importers.opset import opset_of
    from sharding.importers.value_names import inputs_of
    from sharding.importers.write import write_onnx
    from sharding.slices.cut_short import WHOLE_FILES

    source, output = _paths(args)
    check_folder("OUTPUT", output)
    conversion.check_output(source, output)
    given = expectations.read_arrays("--verify", args.verify) if args.verify is not None else None
    request = conversion.Request(
        source, args.network, args.weights, args.rename, args.allow_missing, args.allow_unexpected,
        args.inputs, _lengths(args.dims), args.dynamic, args.input_names, args.output_names, args.opset,
        key_of(args), given,
    )  # fmt: skip
    with ExitStack() as stack:
        stack.enter_context(WHOLE_FILES)
        made = conversion.make(request, stack)
        model = made.model
        conversion.check_model(model, str(args.network or source), types=args.network is not None)
        conversion.check_sources(made, output)
        names = inputs_of(model), [value.name for value in model.graph.output]
        known = expectations.expected(model, given, args.verify) if given is not None else None
        with progress(f"writing {output.name}") as update:
            files = write_onnx(model, made.source, output, update, made.weights)
    _report(made, args)
    sizes = ", ".join(f"{one_line(str(file))} ({human_bytes(file.stat().st_size)})" for file in files)
    print(
        f"wrote {sizes}: {counted(len(model.graph.node), 'node')}, "
        f"{counted(len(model.graph.initializer), 'weight')}, opset {opset_of(model)}"
    )
    inputs, outputs = (", ".join(map(one_line, part)) or "none" for part in names)
    print(f"inputs: {inputs}; outputs: {outputs}")
    if known is not None:
        expectations.verify(output, *known, archive=args.verify)
    return 0


def _take_all(parser: argparse.ArgumentParser) -> None:
    """Lets options stand between the two files: before Python 3.13 argparse takes the second for unknown."""
    parse: Any = parser.parse_known_args

    def parse_all(args: Any = None, namespace: Any = None) -> Any:
        found, rest = parse(args, namespace)
        while rest and not rest[0].startswith("-"):
            found.output = [*found.output, Path(rest.pop(0))]
        return found, rest

    parser.parse_known_args = parse_all  # type: ignore[method-assign]


def _paths(args: argparse.Namespace) -> tuple[Path | None, Path]:
    given = [*([] if args.model is None else [args.model]), *args.output]
    found = " ".join(map(str, given)) or "nothing"
    if args.network is not None:
        if len(given) != 1:
            raise ConfigError(f"convert: with --network expected OUTPUT.onnx alone, found {found}")
        return None, given[0]
    if len(given) != 2:
        hint = (
            ""
            if args.weights is None
            else "; weights alone have no graph: give their network with --network package.module:factory"
        )
        raise ConfigError(f"convert: expected MODEL and OUTPUT.onnx, found {found}{hint}")
    return given[0], given[1]


def _report(made: Converted, args: argparse.Namespace) -> None:
    from launcher.common.report import counted, say

    if made.match is None:
        return
    say(f"{counted(len(made.match.found), 'weight')} from {args.weights or args.network}")
    for line in made.match.lines():
        say(line)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",")]


def _lengths(texts: list[str]) -> dict[str, int]:
    found = {}
    for text in texts:
        name, equals, size = text.partition("=")
        length = parse_whole(size, 1, MAX_LENGTH)
        if not (equals and name) or length is None:
            raise ConfigError(f"--dim {text}: expected NAME=SIZE, such as batch=2")
        found[name] = length
    return found
