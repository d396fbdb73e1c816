"""Options that several commands share. None has a default: what a flag leaves out, a job file may say."""

from __future__ import annotations

import argparse
import math
from collections.abc import Callable
from pathlib import Path

from launcher.job import COLLECTIVES, LAUNCHERS, MAX_RANKS, MAX_THREADS, TARGETS

ABSENT = argparse.SUPPRESS


def whole(low: int, high: int) -> Callable[[str], int]:
    """An argparse type: a whole number from ``low`` to ``high``."""

    def parse(text: str) -> int:
        if not (text.isascii() and text.isdigit() and len(text) < 20 and low <= int(text) <= high):
            raise argparse.ArgumentTypeError(f"expected a whole number from {low} to {high}, found {text!r}")
        return int(text)

    return parse


def seconds(text: str) -> float:
    """An argparse type: a number of seconds above zero."""
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not 0 < value <= 1e6:
        raise argparse.ArgumentTypeError(f"expected a number of seconds above 0, found {text!r}")
    return value


def add_ranks(parser: argparse.ArgumentParser) -> None:
    """``--ranks`` and ``--rank-table``."""
    group = parser.add_mutually_exclusive_group()
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
    parser.add_argument(
        "--launcher", choices=LAUNCHERS, default=ABSENT,
        help="local: processes of this machine; mpirun; external: this process is one rank that something "
        "else started (default: auto)",
    )  # fmt: skip
    add_runtime(parser)


def add_runtime(parser: argparse.ArgumentParser) -> None:
    """How ranks compute and talk."""
    parser.add_argument("--collectives", choices=COLLECTIVES, default=ABSENT, help="default: auto")
    parser.add_argument(
        "--threads", metavar="N", type=whole(1, MAX_THREADS), default=ABSENT,
        help="ONNX Runtime threads per rank (default: cores / ranks on the host)",
    )  # fmt: skip
    parser.add_argument(
        "--timeout", metavar="SECONDS", type=seconds, default=ABSENT,
        help="how long a rank waits for another one (default: 300)",
    )  # fmt: skip


def add_target(parser: argparse.ArgumentParser) -> None:
    """What ranks compute on."""
    parser.add_argument(
        "--target", choices=TARGETS, default=ABSENT,
        help="what the ranks compute on (default: cpu); each takes its device of the rank table, or that "
        "with its local rank's number",
    )  # fmt: skip


def add_slicing(parser: argparse.ArgumentParser) -> None:
    """How a model is sliced."""
    parser.add_argument(
        "--allow-replicated", action="store_true", default=ABSENT,
        help="go on where nothing of the model can be split, with the whole model on every rank",
    )  # fmt: skip


def add_data(parser: argparse.ArgumentParser, output: str) -> None:
    """What goes in, what is kept and checked; ``output`` is the option that names the outputs' file."""
    parser.add_argument(
        "--input", metavar="FILE.npz|NAME=FILE", dest="inputs", action="append", default=ABSENT,
        help="arrays by name in an .npz, or one input from .npy or raw little-endian data; repeatable "
        "(default: ones)",
    )  # fmt: skip
    parser.add_argument(
        "--dim", metavar="NAME=SIZE", dest="dims", action="append", default=ABSENT,
        help="length of a symbolic dimension of inputs without a file (default: 1); repeatable",
    )  # fmt: skip
    parser.add_argument(
        "--seed", metavar="S", type=whole(0, 2**63 - 1), default=ABSENT, help="random inputs instead of ones"
    )
    parser.add_argument(
        output,
        metavar="FILE.npz",
        dest="output",
        type=Path,
        default=ABSENT,
        help="write the outputs to this file",
    )
    parser.add_argument(
        "--repeat",
        metavar="K",
        type=whole(1, 10**9),
        default=ABSENT,
        help="run K times; the latency is the median",
    )
    parser.add_argument(
        "--verify", action="store_true", default=ABSENT,
        help="compare with the unsliced model in plain ONNX Runtime; exit code 3 beyond the tolerance",
    )  # fmt: skip
    parser.add_argument(
        "--against", metavar="MODEL.onnx", type=Path, default=ABSENT, help="the unsliced model for --verify"
    )
