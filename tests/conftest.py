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
    "end_to_end/test_gpu_check.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_mindir.py",
    "end_to_end/test_models.py",
    "end_to_end/test_run_sh.py",
    "launcher/test_annotated_and_read_only.py",
    "launcher/test_cache_limit.py",
    "launcher/test_convert.py",
    "launcher/test_convert_hostile.py",
    "launcher/test_encrypted.py",
    "launcher/test_eval.py",
    "launcher/test_exec.py",
    "launcher/test_exec_mindspore.py",
    "launcher/test_failure.py",
    "launcher/test_forks.py",
    "launcher/test_given_models.py",
    "launcher/test_group.py",
    "launcher/test_halted.py",
    "launcher/test_linked_files.py",
    "launcher/test_listening.py",
    "launcher/test_mpirun.py",
    "launcher/test_optional_inputs.py",
    "launcher/test_outputs.py",
    "launcher/test_precision.py",
    "launcher/test_rank_models.py",
    "launcher/test_run.py",
    "launcher/test_same_answers.py",
    "launcher/test_scripts.py",
    "launcher/test_shared_ranks.py",
    "launcher/test_streams.py",
    "launcher/test_tight_limits.py",
    "launcher/test_unsplit.py",
    "ranks/test_api_distributed.py",
    "ranks/test_collectives.py",
    "ranks/test_collectives_failure.py",
    "ranks/test_collectives_parts.py",
    "ranks/test_control.py",
    "ranks/test_converter.py",
    "ranks/test_cuda_ipc.py",
    "ranks/test_forked.py",
    "ranks/test_gloo_meeting.py",
    "ranks/test_likeness.py",
    "ranks/test_mesh_processes.py",
    "ranks/test_model_group.py",
    "ranks/test_odd_models.py",
    "ranks/test_orphan.py",
    "ranks/test_pins.py",
    "ranks/test_runner.py",
    "ranks/test_torch_group.py",
    "ranks/test_store_places.py",
    "ranks/test_stand_in.py",
    "ranks/test_torch_import.py",
    "ranks/test_update_weights_shared.py",
    "ranks/test_weights_deaths.py",
    "ranks/test_weights_example.py",
    "ranks/test_weights_given.py",
    "ranks/test_weights_groups.py",
    "ranks/test_weights_handle.py",
    "sharding/test_annotations.py",
    "sharding/test_conv_models.py",
    "sharding/test_expected.py",
    "sharding/test_exported_programs.py",
    "sharding/test_exporters.py",
    "sharding/test_fused_models.py",
    "sharding/test_fuzz.py",
    "sharding/test_mindir_",
    "sharding/test_onnx_backend.py",
    "sharding/test_random_graphs.py",
    "sharding/test_reuse.py",
    "sharding/test_rules_random.py",
    "sharding/test_saved_plan.py",
    "sharding/test_slices.py",
    "sharding/test_storage.py",
    "sharding/test_write.py",
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
