"""``shardrun demo``: a model to try shardrun with."""

from __future__ import annotations

import argparse
from pathlib import Path

DESCRIPTION = """\
Writes a text encoder of BERT's architecture (17 MB) and inputs for it into a folder. Its weights are drawn
from a fixed seed: what it answers means nothing, but it is cut and runs as a trained one of its size does."""
EPILOG = """\
examples:
  shardrun demo demo
  shardrun run demo/model.onnx --ranks 2 --input demo/inputs.npz --verify
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's argument."""
    parser.add_argument("folder", metavar="FOLDER", type=Path, help="where to write it; made if need be")


def run(args: argparse.Namespace) -> int:
    """Writes the two files."""
    from launcher.common.report import human_bytes, say
    from launcher.tasks.demo import write_demo

    model, arrays = write_demo(args.folder)
    say(f"wrote {model} ({human_bytes(model.stat().st_size)}) and {arrays}")
    say(f"`shardrun run {model} --ranks 2 --input {arrays} --verify` runs it")
    return 0
