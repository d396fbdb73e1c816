"""``shardrun serve``: models for clients that speak KServe's or OpenAI's protocol."""

from __future__ import annotations

import argparse
import contextlib
import sys
from pathlib import Path

from launcher.commands.options import ABSENT, add_described, add_groups, whole
from launcher.errors import ConfigError
from launcher.job.options import ENCRYPTED, RANKS, SLICING, TYPES

DESCRIPTION = """\
Starts the ranks of one or several models and answers requests: of every model by the Open Inference Protocol
(KServe v2) under /v2/ and, with --grpc-port, over gRPC; of language models by OpenAI's under /v1/, too.
http://HOST:PORT/ shows what it does and /metrics its numbers for Prometheus. Listens on this machine alone
unless --host says otherwise. Ends in order with SIGTERM or Ctrl-C."""
EPILOG = """\
examples:
  shardrun serve model.onnx --ranks 2
  shardrun serve llama --ranks 2 --port 8080 --restart on-failure
  shardrun serve model.onnx --ranks 2 --grpc-port 8001
  shardrun serve models.yaml --host 0.0.0.0 --token-file tokens --tls-certificate c.pem --tls-key k.pem

a list of models (YAML or JSON) has for each the keys of a job file, and of how it is served:
  models:
    bert: {model: bert.onnx, ranks: 2, max_batch_size: 16, max_delay: 0.002}
    llama: {model: llama-folder, ranks: 2, restart: on-failure}

exit codes:
  0 ended by a signal; 1 ranks could not be started; 2 wrong usage or configuration
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the command's arguments."""
    from launcher.serving.limits import LIMIT_OPTIONS, LIMITS
    from launcher.serving.options import MODELS, SERVED

    parser.add_argument(
        "model", metavar="MODEL.onnx|FOLDER|FILE.yaml", type=Path, nargs="?",
        help="a model, a folder of slices, a language model's folder, a job file, or a list of models",
    )  # fmt: skip
    parser.add_argument("--name", metavar="NAME", help="the model's name for clients (default: its file's)")
    net = parser.add_argument_group("where it listens")
    net.add_argument(
        "--host", metavar="ADDRESS", default="127.0.0.1", help="default: 127.0.0.1, this machine alone"
    )
    net.add_argument(
        "--port",
        metavar="N",
        type=whole(0, 65535),
        default=8000,
        help="default: 8000; 0: a free one, which is said",
    )
    net.add_argument(
        "--grpc-port", metavar="N", type=whole(0, 65535),
        help="answer the Open Inference Protocol over gRPC at this port, too (default: none)",
    )  # fmt: skip
    net.add_argument(
        "--token-file",
        metavar="FILE",
        type=Path,
        help="tokens, one a line, of which clients must send one; `TOKEN admin` may change models",
    )
    net.add_argument(
        "--tls-certificate", metavar="FILE.pem", type=Path, help="serve https with this certificate"
    )
    net.add_argument("--tls-key", metavar="FILE.pem", type=Path, help="its key")
    net.add_argument(
        "--tls-clients", metavar="FILE.pem", type=Path,
        help="take only clients whose certificates these authorities have signed",
    )  # fmt: skip
    for title, options in ((MODELS, SERVED), (LIMITS, LIMIT_OPTIONS)):
        group = parser.add_argument_group(title)
        for option in options.values():
            add_described(group, option)
    add_groups(parser, RANKS, TYPES, SLICING, ENCRYPTED)
    parser.add_argument(
        "--access-log", action="store_true", help="a line of JSON for each request, on standard error"
    )
    parser.add_argument(
        "--config", metavar="JOB.yaml", type=Path, default=ABSENT,
        help="options from a job file or a list of models; flags win over it",
    )  # fmt: skip


def run(args: argparse.Namespace) -> int:
    """Serves until a signal comes."""
    try:
        from launcher.serving import server

        if args.grpc_port is not None:
            import launcher.serving.grpc.door  # noqa: F401 - what it needs is missed now
    except ImportError as error:
        raise ConfigError(
            f"serving needs the package {error.name}, which is not installed: `pip install 'shardrun[serve]'`"
        ) from None
    from launcher.common.report import say
    from launcher.job.option_table import changed
    from launcher.serving.access import Tokens, client_log, read_tokens
    from launcher.serving.context import Context
    from launcher.serving.limits import LIMIT_OPTIONS, ServeLimits
    from launcher.serving.metrics import Metrics
    from launcher.serving.opening import offers, repository_of, weight_folders
    from launcher.serving.seeing.traces import traces_here

    flags = vars(args)
    limits = changed(ServeLimits(), {name: flags[name] for name in LIMIT_OPTIONS if name in flags})
    metrics = Metrics()
    own = {name: value for name, value in flags.items() if name not in LIMIT_OPTIONS}
    offered = offers(own, flags.get("config"), args.name)
    repository, folders = repository_of(offered, limits, metrics), weight_folders(offered)
    tokens = Tokens() if args.token_file is None else read_tokens(args.token_file)
    if args.access_log:
        client_log()
    listening = server.Listening(
        args.host, args.port, args.tls_certificate, args.tls_key, args.tls_clients, args.grpc_port
    )
    names = ", ".join(repository.models)

    def ready(url: str) -> None:
        with contextlib.suppress(OSError):  # nobody reads it: clients are served all the same
            say(f"serving {names} at {url}")
            sys.stdout.flush()  # whoever waits for it may read a pipe

    server.serve(Context(repository, limits, metrics, tokens, folders, traces_here()), listening, ready)
    return 0
