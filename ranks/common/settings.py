"""The environment variables that say how a process works: what each may hold, read here alone.

Empty text and blanks stand for a variable that is not set. Reading one raises `SettingError` for other values
than those named. `scripts/environment.py` writes `VARIABLES` into docs/environment.md.
"""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Collection, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Generic, TypeVar

from ranks.errors import SettingError
from sharding.common.bounds import LONGEST_TIMEOUT, MAX_THREADS
from sharding.common.ranges import parse_ranges
from sharding.common.registry import Names
from sharding.common.text import did_you_mean, parse_size, parse_whole, shortened

COLLECTIVES = Names("ranks/collectives/backends", "shardrun.collectives", ("auto",))
"""What joins the ranks; `ranks.collectives.BACKENDS` has what each is."""
DEFAULT_TIMEOUT = 300.0
DEFAULT_HANG = 60.0
SECONDS = f"a number of seconds above 0 and at most {LONGEST_TIMEOUT:.0f}"

T = TypeVar("T")
Value_co = TypeVar("Value_co", covariant=True)


@dataclass(eq=False, repr=False)
class Variable(Generic[Value_co]):
    """One environment variable."""

    name: str
    values: str
    """What it may hold, in words that follow "must be"."""
    parse: Callable[[str], Value_co | None]
    """What a text means; None: it is not one of the values."""
    nothing: Value_co
    """What a variable that is not set means."""
    default: str
    """The same, in words."""
    meaning: str
    known: Callable[[], Collection[str]] = tuple
    """The values, where they are names."""
    of_one_job: bool = False
    """Whether shardrun sets it itself, for the ranks of one job: those of another must not see it."""
    internal: bool = False
    """Whether nobody but shardrun sets it."""

    def text(self, environ: Mapping[str, str] = os.environ) -> str:
        """What it holds; "" where it is not set."""
        return environ.get(self.name, "").strip()

    def get(self, environ: Mapping[str, str] = os.environ) -> Value_co:
        """What it says. Raises `SettingError`."""
        text = self.text(environ)
        if not text:
            return self.nothing
        value = self.parse(text)
        if value is None:
            known = self.known()
            expected = f"one of {', '.join(known)}" if known else self.values
            hint = did_you_mean(text, known)
            raise SettingError(f"{self.name} must be {expected}, but is {shortened(text, 80)!r}{hint}.")
        return value

    def take(self, environ: MutableMapping[str, str] = os.environ) -> str:
        """What it holds, which nobody that is started later sees."""
        return environ.pop(self.name, "")


def parse_seconds(text: str) -> float | None:
    """The `SECONDS` that a text says; None if it says anything else."""
    if not re.fullmatch(r"\+?(\d+\.?\d*|\.\d+)(e[+-]?\d+)?", text, re.ASCII | re.IGNORECASE):
        return None
    value = float(text)
    return value if 0 < value <= LONGEST_TIMEOUT else None


def _bind(text: str) -> str | None:
    if text in {"none", "cores", "numa"}:
        return text
    return text if all(parse_ranges(part) is not None for part in text.split("/")) else None


def _one_of(**meanings: T) -> Callable[[str], T | None]:
    return lambda text: meanings.get(text.lower())


TIMEOUT: Variable[float] = Variable(
    "SHARDRUN_TIMEOUT", SECONDS, parse_seconds, DEFAULT_TIMEOUT, f"{DEFAULT_TIMEOUT:.0f}",
    "how long a collective waits for a peer, and whoever waits for another process",
)  # fmt: skip
THREADS: Variable[int | None] = Variable(
    "SHARDRUN_THREADS", f"a number from 1 to {MAX_THREADS}",
    lambda text: parse_whole(text, 1, MAX_THREADS), None,
    "this process's cores, shared by the ranks of the host", "ONNX Runtime threads per rank",
)  # fmt: skip
CHOSEN: Variable[str] = Variable(
    "SHARDRUN_COLLECTIVES", "the name of collectives", lambda text: text if text in COLLECTIVES else None,
    "auto", "auto", "which collectives join the ranks", lambda: COLLECTIVES,
)  # fmt: skip
BIND: Variable[str] = Variable(
    "SHARDRUN_BIND", "none, cores, numa, or a list of cores such as 0-7 or 0-3/4-7", _bind, "",
    "cores, where each rank of a host can have one", "which cores a rank that shardrun starts runs on",
)  # fmt: skip
WEIGHTS: Variable[str] = Variable(
    "SHARDRUN_WEIGHTS", "on or off", _one_of(on="on", off="off"), "", "where ranks of a host hold the same",
    "whether weights are prepared in the cache for all processes to map: `off` never, `on` for every model",
)  # fmt: skip
CACHE: Variable[str] = Variable(
    "SHARDRUN_CACHE", "a folder", lambda text: text, "",
    "`$XDG_CACHE_HOME/shardrun`, else `~/.cache/shardrun`", "where is kept what can be made again",
)  # fmt: skip
CACHE_LIMIT: Variable[int | None] = Variable(
    "SHARDRUN_CACHE_LIMIT", "a size such as 20GB or 500MB, above 0", parse_size, None,
    "20 GB, or a tenth of the disk if that is less", "the most that the cache may take",
)  # fmt: skip
CUDA_GRAPHS: Variable[bool] = Variable(
    "SHARDRUN_CUDA_GRAPHS", "1, 0 or not set", {"1": True, "0": False}.get, False, "0",
    "whether what a session does on a GPU on fixed buffers is captured as a CUDA graph and replayed",
)  # fmt: skip
TARGET: Variable[str] = Variable(
    "SHARDRUN_TARGET", "'cpu' or not set", _one_of(cpu="cpu"), "", "each script's own",
    "`cpu`: scripts that name `gpu` or `ascend` run on the CPU",
)  # fmt: skip
MINDSPORE_LITE: Variable[bool] = Variable(
    "SHARDRUN_MINDSPORE_LITE", "'ranks' or 'real'", _one_of(ranks=True, real=False), True, "ranks",
    "`real`: under `shardrun exec`, `import mindspore_lite` is left to the package itself",
)  # fmt: skip
JOB: Variable[str] = Variable(
    "SHARDRUN_JOB", "32 hexadecimal digits", lambda text: text, "", "none",
    "secret: names the rendezvous of a job's ranks, and authenticates the control socket", of_one_job=True,
)  # fmt: skip


def _internal(name: str, values: str, meaning: str, *, of_one_job: bool = False) -> Variable[str]:
    return Variable(
        name, values, lambda text: text, "", "none", meaning, of_one_job=of_one_job, internal=True
    )


CONTROL = _internal(
    "SHARDRUN_CONTROL", "unix:PATH, unix:@ABSTRACT or tcp:HOST:PORT",
    "the launcher's control socket; not set where nobody launched the rank", of_one_job=True,
)  # fmt: skip
SCRATCH = _internal(
    "SHARDRUN_SCRATCH", "a folder",
    "of one job alone, removed with it: for what mpirun and MPI leave behind when killed", of_one_job=True,
)  # fmt: skip
IDENTITY = _internal(
    "SHARDRUN_IDENTITY", "names with commas between them",
    "the variables of the rank, the number of ranks, the local rank and, if there is one, the local size, "
    "where a launcher of another package has its own", of_one_job=True,
)  # fmt: skip
TOLD = _internal(
    "SHARDRUN_TOLD", "1",
    "the launcher tells each rank over the control socket its cores, its network interface, or which copy of "
    "the model it loads", of_one_job=True,
)  # fmt: skip
BOUND = _internal(
    "SHARDRUN_BOUND", "1", "no other rank of the job runs on this rank's cores", of_one_job=True
)
SAFE_PATH = _internal(
    "SHARDRUN_SAFE_PATH", "1", "PYTHONSAFEPATH is set for the rank alone, and not for what it starts"
)
RUN_ALL = _internal(
    "SHARDRUN_RUN_ALL", "PROCESS:DESCRIPTOR",
    "run_all.sh, this process, started the ranks, and ends the others when one has failed: what they would "
    "say of that is no news, and would hide the first cause; a rank that is done writes its number there",
)  # fmt: skip
PYTHON: Variable[str] = Variable(
    "SHARDRUN_PYTHON", "a program", lambda text: text, "", "the one that wrote them",
    "the interpreter that the scripts of `shardrun scripts` start",
)  # fmt: skip

VARIABLES: tuple[Variable[object], ...] = (
    *(TIMEOUT, THREADS, CHOSEN, BIND, WEIGHTS, CACHE, CACHE_LIMIT, CUDA_GRAPHS, TARGET, MINDSPORE_LITE),
    *(JOB, PYTHON, CONTROL, SCRATCH, IDENTITY, TOLD, BOUND, SAFE_PATH, RUN_ALL),
)

FOR_RANKS = tuple(item for item in VARIABLES if not item.of_one_job and not item.internal)
"""What a user's own settings are, which ranks on every host are to have."""

default_timeout = TIMEOUT.get
"""Seconds a collective waits for a peer."""
threads = THREADS.get
"""ONNX Runtime threads per rank; None where it is not set."""
collectives = CHOSEN.get
"""Which collectives join the ranks."""
weights = WEIGHTS.get
"""Whether weights are prepared: ``on``, ``off`` or nothing."""
cache_limit = CACHE_LIMIT.get
"""The most bytes that the cache may take; None where it is not set."""
target = TARGET.get
"""``cpu`` where scripts that name other targets run on the CPU, or nothing."""
stand_in = MINDSPORE_LITE.get
"""Whether `ranks` stands in for mindspore_lite."""


def check(environ: Mapping[str, str] = os.environ) -> None:
    """Raises `SettingError` where one of them is wrong, before any work is done."""
    for variable in VARIABLES:
        variable.get(environ)
