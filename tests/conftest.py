"""What every test starts from: no rank's environment inherited, a cache of its own, the zoo of models."""

import gc
import logging
import os
import signal
import sys
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import models
from tests.order import LONGEST, NEW_RANKS, PARTLY, SLOW, WAITING
from tests.rank_copies import RANKS

# Set by launchers and schedulers and read by ranks: tests that run inside a job must not join it.
_RANK_PREFIXES = ("SHARDRUN_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL")
_TORCHRUN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_RANK_NAMES = _TORCHRUN_NAMES | {"RANK_ID", "DEVICE_ID", "RANK_SIZE", "RANK_TABLE_FILE"}
_KEPT = {"SHARDRUN_TEST_CACHE"}


# How long an example takes, and to make one, says more of what else runs than of the code.
settings.register_profile("unhurried", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("unhurried")

# Before a test module imports ONNX Runtime, which reads it then and would leave a temporary file (.ses).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# Its thread would spin beside the tests and in each process that they start.
os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")

# Unbuffered, Python itself drops the rest of a write that a pipe took in part; and a program that is to be
# unbuffered, as the tests may be, cannot be a copy of one that is not.
os.environ.pop("PYTHONUNBUFFERED", None)

# A shell starts what runs in the background with Ctrl-C ignored; programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)
# And nohup has SIGHUP ignored.
if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN:
    signal.signal(signal.SIGHUP, signal.SIG_DFL)


HERE = Path(__file__).parent
_KEPT_UP_TO = pytest.StashKey[tuple[Path, int]]()
"""The file whose tests run, and how many modules were imported when what there is was kept last."""
_MANY_MODULES = 100
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Each is first given as many tests, in order."""


def pytest_collection() -> None:
    """What is imported and found stays to the end: to look among it for cycles finds next to none."""
    gc.disable()


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """What is left out is not imported: some of it imports torch and transformers."""
    file = collection_path.relative_to(HERE).as_posix() if collection_path.is_relative_to(HERE) else ""
    return True if config.option.markexpr == "not slow" and file.startswith(SLOW) else None


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow, file by file. One worker begins with what waits, another with the longest tests."""
    places = {path: path.relative_to(HERE).as_posix() for path in {item.path for item in items}}
    files = {item: places[item.path] for item in items}
    for number, (item, file) in enumerate(files.items()):
        if file.startswith(SLOW) or (file in PARTLY and number % 8):
            item.add_marker(pytest.mark.slow)
    waiting = [item for item in items if files[item] in WAITING]
    longest = [item for item in items if files[item] in LONGEST]
    others = [item for item in items if files[item] not in (*WAITING, *LONGEST)]
    first = max(0, len(items) // WORKERS - len(waiting))
    items[:] = [*waiting, *others[:first], *longest, *others[first:]]


def pytest_collection_finish() -> None:
    """All tests stay to the end: the collector of cycles need not go through them again and again. Graphs are
    made by the thousand, and most are gone with their test: it need not come for each 700 objects either. Six
    times a test, pytest would go to each logger that keeps its messages, of which torch has forty: they pass
    them on to where pytest is."""
    for logger in logging.root.manager.loggerDict.values():
        if isinstance(logger, logging.Logger):
            logger.propagate = True
    gc.freeze()
    gc.set_threshold(100_000)
    gc.enable()


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    saved = dict(os.environ)
    for name in saved:
        if (name.startswith(_RANK_PREFIXES) or name in _RANK_NAMES) and name not in _KEPT:
            del os.environ[name]
    os.environ["SHARDRUN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    RANKS.install()
    yield
    os.environ.clear()
    os.environ.update(saved)


def _keep_imported(item: pytest.Item) -> None:
    """What tests have imported since, such as transformers, stays too: a test that collects cycles would look
    through all of it, for up to a second. Between two files, when no fixture of a module holds anything."""
    file, count = item.config.stash.get(_KEPT_UP_TO, (item.path, len(sys.modules)))
    if file != item.path and len(sys.modules) > count + _MANY_MODULES:
        gc.collect()
        gc.freeze()
        count = len(sys.modules)
    item.config.stash[_KEPT_UP_TO] = item.path, count


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures of modules start ranks."""
    _keep_imported(item)
    file = item.path.relative_to(HERE).as_posix()
    new = file.startswith(NEW_RANKS) or item.get_closest_marker("new_ranks") or is_drawn(item.nodeid)
    RANKS.wanted = not new


def is_drawn(test: str) -> bool:
    """Whether a test is one of the tenth in which ranks are new processes only because they then hash text
    each in its own way: ranks that take an order from a set part there, and copies would not."""
    return zlib.crc32(test.encode()) % 10 == 0


@pytest.fixture(scope="session")
def shared_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder of this run, which all its workers have."""
    own = tmp_path_factory.getbasetemp()
    folder = (own.parent if "PYTEST_XDIST_WORKER" in os.environ else own) / "shared"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder where built models are kept; `tests.models.get(NAME)` builds and finds them."""
    return models.cache_folder()
