"""Ranks of several hosts that do not all come: each waits the time-out once, and says for whom."""

from __future__ import annotations

import os
import socket
import subprocess
import sys
import time

import pytest

from tests.ranks.test_collectives import need

PROGRAM = """
import sys, time
import torch.distributed  # its import is no part of the time
from ranks import group
from ranks.errors import CollectiveTimeoutError
began = time.monotonic()
try:
    group.join(collectives="gloo")
except CollectiveTimeoutError as error:
    print(f"{time.monotonic() - began:.2f} {error}")
"""


@pytest.mark.parametrize(
    ("rank", "words"),
    [
        (0, "Ranks 1, 2 of 3 did not join within 3 s (rank 0 waited)"),
        (1, "Rank 1 did not reach rank 0 at 127.0.0.1:{port} (MASTER_ADDR, MASTER_PORT) within 3 s"),
    ],
)
def test_ranks_that_do_not_come(rank: int, words: str) -> None:
    need("gloo")
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    environ = {
        "RANK": str(rank), "WORLD_SIZE": "3", "LOCAL_RANK": "0", "LOCAL_WORLD_SIZE": "1",
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "SHARDRUN_TIMEOUT": "3",
    }  # fmt: skip
    began = time.monotonic()
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM], env={**os.environ, **environ}, capture_output=True, text=True,
        timeout=90, check=False,
    )  # fmt: skip
    waited, _, said = done.stdout.partition(" ")
    assert said.startswith(words.format(port=port)), (done.stderr, time.monotonic() - began)
    assert 3 <= float(waited) < 2 * 3  # twice the time-out is what torch itself would take
    assert "frame #" not in done.stderr and "Exception raised" not in done.stderr
