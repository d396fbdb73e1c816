"""Starts programs in copies of a process that has imported torch, which alone takes a second.

It reads lines of JSON and answers each with a number: `{"argv", "environ", "output"}` with the process id of
a new copy that runs the program in a session of its own, `{"pid", "seconds"}` with how that copy ended as
`subprocess.Popen` says it, or null where it has not. It ends with its input, and never has a second thread.
"""

from __future__ import annotations

import gc
import json
import os
import runpy
import sys
import time
from typing import Any

STEP_SECONDS = 0.01


def ended(pid: int, seconds: float) -> int | None:
    """The exit code, minus the signal's number where one ended the copy; None if it still runs."""
    end = time.monotonic() + seconds
    while True:
        found, status = os.waitpid(pid, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        if time.monotonic() > end:
            return None
        time.sleep(STEP_SECONDS)


def become(request: dict[str, Any]) -> None:
    """Make this copy what a new process would be: its input and output still lead to the server's client."""
    os.setsid()
    output = os.open(request["output"], os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
    null = os.open(os.devnull, os.O_RDONLY)
    for number, target in ((null, 0), (output, 1), (output, 2)):
        os.dup2(number, target)
    os.close(output)
    os.close(null)
    os.environ.clear()
    os.environ.update(request["environ"])
    sys.argv = request["argv"]
    sys.path[0] = os.path.dirname(sys.argv[0])  # noqa: PTH120  # as Python does it


def main() -> None:
    import numpy
    import torch.distributed

    from ranks.common.leaving import leave

    assert numpy and torch.distributed.is_available()
    # A collector that looks at all of torch would have each copy write to all of its pages.
    gc.collect()
    gc.freeze()
    # Not through sys.stdin: what it had read ahead would be in every copy.
    with os.fdopen(os.dup(0), "rb", buffering=0) as requests:
        while line := requests.readline():
            request = json.loads(line)
            if "pid" in request:
                answer = ended(request["pid"], request["seconds"])
            elif (answer := os.fork()) == 0:
                requests.close()
                become(request)
                runpy.run_path(sys.argv[0], run_name="__main__")
                leave()  # to take torch apart takes longer than most programs
            os.write(1, f"{json.dumps(answer)}\n".encode())


if __name__ == "__main__":
    main()
