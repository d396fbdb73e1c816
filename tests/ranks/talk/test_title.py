"""What a rank's process is called."""

from __future__ import annotations

import os
import subprocess
import sys

PROGRAM = """
import os
from pathlib import Path
from ranks.talk.title import name_process
name_process(3, 12, "secret", "run it")
print(Path("/proc/self/stat").read_text().strip())
print(Path("/proc/self/cmdline").read_bytes().rstrip(b"\\0").decode())
"""


def test_who_reads_word_by_word_finds_its_parent() -> None:
    """As Slurm's proctrack/linuxproc does, which would never end a rank that it does not find."""
    done = subprocess.run(
        [sys.executable, "-c", PROGRAM, *["room"] * 20],
        capture_output=True,
        text=True,
        check=True,
        timeout=60,
    )
    stat, title = done.stdout.splitlines()
    _, name, state, parent, *_ = stat.split()
    assert name.startswith("(rank-3-") and name.endswith(")") and state.isalpha()
    assert int(parent) == os.getpid()
    assert title.startswith("shardrun rank 3 of 12, job ") and title.endswith(": run it")
    assert "secret" not in title
