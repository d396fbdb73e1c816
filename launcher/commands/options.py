"""Options that several commands share. None has a default: what a flag leaves out, a job file may say."""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any

from launcher.errors import ConfigError
from launcher.job.job import LAUNCHERS, TARGETS
from launcher.job.slicing import parse_bytes, parse_mesh_text
from ranks.common.settings import COLLECTIVES, SECONDS, parse_seconds
from ranks.precision.request import MODES
from sharding.common.bounds import MAX_MICRO_BATCHES, MAX_RANKS, MAX_THREADS
from sharding.demands.options import STRATEGIES

if TYPE_CHECKING:
    from sharding.importers.mindir.encryption import Key

ABSENT = argparse.SUPPRESS
PLANNED = "best for this one (default: 1 for a batch and for new tokens beside a cache, 64 for others)"
PRECISION_MODES = tuple(dict.fromkeys(mode for modes in MODES.values() for mode in modes))


def whole(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, found {text!r}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """An argparse type: a number of seconds above zero."""
    value = parse_seconds(text)
    if value is None:
        raise argparse.ArgumentTypeError(f"expected {SECONDS}, found {text!r}")
    return value


def _group(parser: argparse.ArgumentParser, title: str) -> argparse._ArgumentGroup:
    """The group of options of this title in a parser's help, made if need be."""
    found = (group for group in parser._action_groups if group.title == title)
    return next(found, None) or parser.add_argument_group(title)


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """``--ranks`` and ``--rank-table``."""
    group = _group(parser, "ranks").add_mutually_exclusive_group()
    group.add_argument(
        "--ranks", metavar="N", type=whole(1, MAX_RANKS), default=ABSENT, help="number of ranks"
    )
    group.add_argument(
        "--rank-table",
        metavar="FILE",
        type=Path,
        default=ABSENT,
        help="which ranks run on which hosts and devices",
    )


def add_launching(parser: argparse.ArgumentParser) -> None:
    """How ranks are started."""
    group = _group(parser, "ranks")
    group.add_argument(
        "--launcher", choices=LAUNCHERS, default=ABSENT,
        help="local: processes of this machine; mpirun; external: this process is one rank that something "
        "else started (default: auto)",
    )  # fmt: skip
    add_runtime(parser)


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """How ranks compute and talk."""
    group = _group(parser, "ranks")
    group.add_argument("--collectives", choices=COLLECTIVES, default=ABSENT, help="default: auto")
    group.add_argument(
        "--threads", metavar="N", type=whole(1, MAX_THREADS), default=ABSENT,
        help="ONNX Runtime threads per rank (default: cores / ranks on the host)",
    )  # fmt: skip
    group.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=ABSENT,
        help="how long a rank waits for another one (default: 300)",
    )  # fmt: skip


def add_target(parser: argparse.ArgumentParser) -> None:
    """What ranks compute on."""
    group = _group(parser, "target and types")
    group.add_argument(
        "--target", choices=TARGETS, default=ABSENT,
        help="what the ranks compute on (default: cpu); each takes its device of the rank table, or that "
        "with its local rank's number",
    )  # fmt: skip


def add_precision(parser: argparse.ArgumentParser) -> None:
    """In which types nodes compute."""
    group = _group(parser, "target and types")
    group.add_argument(
        "--precision-mode", metavar="MODE", choices=PRECISION_MODES, default=ABSENT,
        help="enforce_fp32 or preferred_fp16 (cpu, gpu); enforce_fp32, preferred_fp32, enforce_fp16, "
        "enforce_origin or preferred_optimal (ascend); default: the model's own types",
    )  # fmt: skip
    group.add_argument(
        "--execution-plan", metavar="NAME=TYPE", action="append", default=ABSENT,
        help="float16 or float32 for a node, or for all of a type of operators, such as MatMul=float16; "
        "repeatable",
    )  # fmt: skip


def add_slicing(parser: argparse.ArgumentParser) -> None:
    """How a model is sliced."""
    group = _group(parser, "slicing")
    group.add_argument(
        "--allow-replicated", action="store_true", default=ABSENT,
        help="go on where nothing of the model can be split, with the whole model on every rank",
    )  # fmt: skip
    group.add_argument(
        "--strategy", choices=STRATEGIES, default=ABSENT,
        help="what the ranks share: the weights (tensor), the layers (pipeline), the batch (data); auto: the "
        "quickest that fits (default: tensor)",
    )  # fmt: skip
    group.add_argument(
        "--mesh", metavar="AXIS=SIZE,...", type=_typed(parse_mesh_text), default=ABSENT,
        help="a mix of strategies, such as data=2,tensor=4; says the number of ranks too",
    )  # fmt: skip
    group.add_argument(
        "--micro-batches", metavar="M", type=whole(1, MAX_MICRO_BATCHES), default=ABSENT,
        help="pieces of the batch that pipeline stages work on at the same time (default: as many as stages)",
    )  # fmt: skip
    group.add_argument(
        "--memory", metavar="SIZE", type=_typed(parse_bytes), default=ABSENT,
        help="bytes of weights that a rank may hold, such as 24GB; --strategy auto keeps to it",
    )  # fmt: skip
    group.add_argument(
        "--profile", metavar="FILE.json", type=Path, default=ABSENT,
        help="a profile that ONNX Runtime wrote of the model: stages are balanced by its times",
    )  # fmt: skip
    group.add_argument(
        "--steer", metavar="FILE.yaml", type=Path, default=ABSENT,
        help="how weights are cut, by name patterns (`layers.*.mlp.up: column`)",
    )  # fmt: skip
    group.add_argument(
        "--plan", metavar="FILE.json", type=Path, default=ABSENT,
        help="follow a plan that `shardrun slice --save-plan` wrote",
    )  # fmt: skip
    group.add_argument(
        "--ignore-annotations", action="store_true", default=ABSENT,
        help="do not follow the multi-device annotations (ONNX IR 11) that the model carries",
    )  # fmt: skip


def add_dims(parser: argparse._ActionsContainer, what: str) -> None:
    """Lengths of symbolic dimensions, which every command that slices plans for; ``what`` else they do."""
    parser.add_argument(
        "--dim", metavar="NAME=SIZE", dest="dims", action="append", default=ABSENT,
        help=f"{what}; repeatable",
    )  # fmt: skip


def add_decryption(parser: argparse.ArgumentParser) -> None:
    """The key of an encrypted model."""
    group = _group(parser, "encrypted models")
    group.add_argument(
        "--dec-key-file", metavar="FILE", type=Path, default=ABSENT,
        help="the key of an encrypted model: the file's bytes",
    )  # fmt: skip
    group.add_argument("--dec-mode", choices=("AES-GCM", "AES-CBC"), default=ABSENT, help="default: AES-GCM")


def key_of(args: argparse.Namespace) -> Key | None:
    """The key that `add_decryption`'s options name; raises `ConfigError`."""
    from launcher.job.decryption import read_key

    return read_key(vars(args).get("dec_key_file"), vars(args).get("dec_mode"))


def _typed(parse: Callable[[str], Any]) -> Callable[[str], Any]:
    """An argparse type of a parser that raises `ConfigError`."""

    def typed(text: str) -> Any:
        try:
            return parse(text)
        except ConfigError as error:
            raise argparse.ArgumentTypeError(str(error)) from None

    return typed


def add_data(parser: argparse.ArgumentParser, output: str) -> None:
    """What goes in, what is kept and checked; ``output`` is the option that names the outputs' file."""
    group = _group(parser, "data")
    group.add_argument(
        "--input", metavar="FILE.npz|NAME=FILE", dest="inputs", action="append", default=ABSENT,
        help="arrays by name in an .npz, or one input from .npy or raw little-endian data; repeatable "
        "(default: ones)",
    )  # fmt: skip
    add_dims(group, "length of a symbolic dimension, for which is planned and inputs are made (default: 1)")
    group.add_argument(
        "--seed", metavar="S", type=whole(0, 2**63 - 1), default=ABSENT, help="random inputs instead of ones"
    )
    group.add_argument(
        output,
        metavar="FILE.npz",
        dest="output",
        type=Path,
        default=ABSENT,
        help="write the outputs to this file",
    )
    group.add_argument(
        "--repeat",
        metavar="K",
        type=whole(1, 10**9),
        default=ABSENT,
        help="run K times; the latency is the median",
    )
    group.add_argument(
        "--verify", action="store_true", default=ABSENT,
        help="compare with the unsliced model in plain ONNX Runtime; exit code 3 beyond the tolerance",
    )  # fmt: skip
    group.add_argument(
        "--against", metavar="MODEL.onnx", type=Path, default=ABSENT, help="the unsliced model for --verify"
    )
