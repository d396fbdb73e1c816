"""What every test starts from: no rank's environment inherited, a cache of its own, the zoo of models."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import models

# Set by launchers and schedulers and read by ranks: tests that run inside a job must not join it.
_RANK_PREFIXES = ("SHARDRUN_", "OMPI_", "PMI_", "PMIX_", "SLURM_", "MPI_LOCAL")
_TORCHRUN_NAMES = {"RANK", "WORLD_SIZE", "LOCAL_RANK", "LOCAL_WORLD_SIZE", "MASTER_ADDR", "MASTER_PORT"}
_RANK_NAMES = _TORCHRUN_NAMES | {"RANK_ID", "DEVICE_ID", "RANK_SIZE", "RANK_TABLE_FILE"}
_KEPT = {"SHARDRUN_TEST_CACHE"}


# Before a test module imports ONNX Runtime, which reads it then and would leave a temporary file (.ses).
os.environ.setdefault("ORT_DISABLE_TELEMETRY", "1")

# A shell starts what runs in the background with Ctrl-C ignored; programs under test would inherit that.
if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    signal.signal(signal.SIGINT, signal.default_int_handler)


# What `./run.sh test --fast` leaves out: exports, many processes, thousands of cases.
SLOW = (
    "architectures/",
    "end_to_end/test_documents.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_mindir.py",
    "end_to_end/test_models.py",
)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow, file by file."""
    here = Path(__file__).parent
    for item in items:
        if item.path.relative_to(here).as_posix().startswith(SLOW):
            item.add_marker(pytest.mark.slow)


@pytest.fixture(scope="session", autouse=True)
def _clean_environment(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    saved = dict(os.environ)
    for name in saved:
        if (name.startswith(_RANK_PREFIXES) or name in _RANK_NAMES) and name not in _KEPT:
            del os.environ[name]
    os.environ["SHARDRUN_CACHE"] = str(tmp_path_factory.mktemp("cache"))
    yield
    os.environ.clear()
    os.environ.update(saved)


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder where built models are kept; `tests.models.get(NAME)` builds and finds them."""
    return models.cache_folder()
