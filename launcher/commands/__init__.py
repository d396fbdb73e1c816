"""The subcommands of shardrun, one module each."""

from __future__ import annotations

COMMANDS = {
    "demo": "write a small model to try things with",
    "slice": "slice a model into one shard per rank",
    "run": "run a model, or its slices, on several ranks",
    "submit": "hand a job to Slurm, PBS or Kubernetes and follow it",
    "generate": "continue texts with a language model on several ranks",
    "serve": "serve models over HTTP and gRPC: the Open Inference Protocol and OpenAI's",
    "inspect": "show a model, a plan or a slice folder",
    "convert": "turn a MindIR model, a network with a checkpoint, or an exported program into ONNX",
    "scripts": "write one shell script per rank",
    "table": "make, merge or check rank tables",
    "exec": "run a Python script written for mindspore_lite",
    "eval": "measure a model's accuracy or error on labelled data",
    "cache": "list or clear what is kept between runs",
    "doctor": "look whether this machine can do the work",
}
"""What each is for, in the order of ``--help``, which is printed without importing any of them."""
