"""What every test starts from: no rank's environment inherited, a cache of its own, the zoo of models."""

import gc
import logging
import os
import signal
import zlib
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

from tests import models
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


# What `./run.sh test --fast` leaves out: exports, many processes, thousands of cases.
SLOW = (
    "architectures/",
    "end_to_end/test_documents.py",
    "end_to_end/test_gpu_check.py",
    "end_to_end/test_main_job.py",
    "end_to_end/test_mindir.py",
    "end_to_end/test_models.py",
    "end_to_end/test_run_sh.py",
    "end_to_end/test_serving_benchmarks.py",
    "launcher/clusters/",
    "launcher/commands/test_signals.py",
    "launcher/inspection/test_annotated_and_read_only.py",
    "launcher/job/test_cache_limit.py",
    "launcher/tasks/test_convert.py",
    "launcher/tasks/test_convert_hostile.py",
    "launcher/job/test_encrypted.py",
    "launcher/tasks/test_eval.py",
    "launcher/commands/test_exec.py",
    "launcher/commands/test_exec_mindspore.py",
    "launcher/commands/test_generate.py",
    "launcher/generation/test_chat.py",
    "launcher/generation/test_ranks.py",
    "launcher/generation/test_encoders.py",
    "launcher/generation/test_engine.py",
    "launcher/generation/test_resident.py",
    "launcher/generation/test_grammar.py",
    "launcher/serving/test_embeddings.py",
    "launcher/serving/test_grpc.py",
    "launcher/serving/test_grpc_",
    "launcher/serving/test_json_mode.py",
    "launcher/generation/test_optimum.py",
    "launcher/generation/test_parted_meshes.py",
    "launcher/group/test_led.py",
    "launcher/group/test_odd_states.py",
    "launcher/group/test_sparse_attention.py",
    "launcher/group/test_session.py",
    "sharding/planning/test_language_models.py",
    "sharding/planning/test_state_plans.py",
    "launcher/group/test_failure.py",
    "launcher/starters/test_forks.py",
    "launcher/group/test_given_models.py",
    "launcher/group/test_group.py",
    "launcher/group/test_halted.py",
    "launcher/job/test_linked_files.py",
    "launcher/starters/test_listening.py",
    "launcher/starters/test_mpirun.py",
    "launcher/job/test_optional_inputs.py",
    "launcher/tasks/test_answers.py",
    "launcher/tasks/test_files.py",
    "launcher/tasks/test_outputs.py",
    "launcher/job/test_precision.py",
    "launcher/inspection/test_rank_models.py",
    "launcher/tasks/test_run.py",
    "launcher/group/test_same_answers.py",
    "launcher/group/test_serving.py",
    "launcher/group/test_new_weights.py",
    "launcher/serving/test_changing.py",
    "launcher/serving/test_command.py",
    "launcher/serving/test_seeing.py",
    "launcher/serving/test_staying_up.py",
    "launcher/serving/test_upkeep.py",
    "launcher/starters/test_ray.py",
    "launcher/starters/test_scripts.py",
    "launcher/starters/test_slurm.py",
    "launcher/starters/test_ssh.py",
    "launcher/starters/test_shared_ranks.py",
    "launcher/checkup/test_doctor.py",
    "launcher/starters/test_streams.py",
    "launcher/submission/test_kubernetes.py",
    "launcher/submission/test_pbs.py",
    "launcher/submission/test_slurm.py",
    "launcher/group/test_tight_limits.py",
    "launcher/inspection/test_unsplit.py",
    "ranks/lite/test_api_distributed.py",
    "ranks/collectives/test_collectives.py",
    "ranks/collectives/test_collectives_failure.py",
    "ranks/collectives/test_collectives_parts.py",
    "ranks/talk/test_control.py",
    "ranks/lite/test_converter.py",
    "ranks/run/test_control_flow.py",
    "sharding/reading/test_bodies.py",
    "ranks/sessions/test_counted_cuda.py",
    "ranks/weights/test_cuda_ipc.py",
    "ranks/weights/test_weights_bodies.py",
    "ranks/run/test_forked.py",
    "ranks/collectives/test_gloo_meeting.py",
    "ranks/sessions/test_idle.py",
    "ranks/agreement/test_likeness.py",
    "ranks/run/test_mesh_processes.py",
    "ranks/lite/test_model_group.py",
    "ranks/lite/test_odd_models.py",
    "ranks/talk/test_orphan.py",
    "ranks/cache/test_pins.py",
    "ranks/lite/test_runner.py",
    "ranks/collectives/test_torch_group.py",
    "ranks/weights/test_store_places.py",
    "ranks/sessions/test_stand_in.py",
    "ranks/common/test_torch_import.py",
    "ranks/weights/test_update_weights_shared.py",
    "ranks/weights/shared/test_weights_deaths.py",
    "ranks/weights/shared/test_weights_example.py",
    "ranks/weights/test_weights_given.py",
    "ranks/weights/shared/test_weights_groups.py",
    "ranks/weights/shared/test_weights_handle.py",
    "sharding/demands/test_annotations.py",
    "sharding/planning/test_conv_models.py",
    "sharding/planning/test_expected.py",
    "sharding/importers/test_exported_programs.py",
    "sharding/importers/test_exporters.py",
    "sharding/planning/test_fused_models.py",
    "sharding/reading/test_fuzz.py",
    "sharding/importers/test_mindir_",
    "sharding/rules/test_onnx_backend.py",
    "sharding/search/test_random_graphs.py",
    "sharding/search/test_reuse.py",
    "sharding/rules/test_rules_random.py",
    "sharding/demands/test_saved_plan.py",
    "sharding/slices/test_slices.py",
    "sharding/common/test_storage.py",
    "sharding/writing/test_write.py",
    "test_kept.py",
)


# They begin first: a worker that came to one last would work on alone.
LONGEST = (
    "test_kept.py",
    "end_to_end/test_documents.py",
    "end_to_end/test_gpu_check.py",
    "sharding/rules/test_onnx_backend.py",
    "ranks/common/test_torch_import.py",
)


# These leave the processors free for most of their time, because they wait: for time-outs, schedulers, hosts.
WAITING = (
    "launcher/clusters/test_failures.py",
    "launcher/clusters/test_page.py",
    "launcher/clusters/test_staging.py",
    "launcher/clusters/test_started_by_others.py",
    "launcher/clusters/test_cut_cables.py",
    "launcher/clusters/test_two_hosts.py",
    "launcher/group/test_failure.py",
    "launcher/group/test_halted.py",
    "launcher/group/test_led.py",
    "launcher/submission/test_slurm.py",
    "ranks/collectives/test_collectives_failure.py",
    "ranks/collectives/test_collectives_parts.py",
    "ranks/collectives/test_gloo_meeting.py",
    "ranks/collectives/test_hierarchical.py",
    "ranks/run/test_mesh_processes.py",
)


# Ranks of the local launcher are new processes in these, which are about how ranks start and end, what they
# are given and import, and what they take of the machine. They are too in tests marked new_ranks, as where a
# copy would be ready too soon. Elsewhere they are copies: tests/rank_copies.py.
NEW_RANKS = (
    "launcher/commands/test_cli.py",
    "launcher/commands/test_exec.py",
    "launcher/commands/test_exits.py",
    "launcher/commands/test_signals.py",
    "launcher/group/test_failure.py",
    "launcher/group/test_first_cause.py",
    "launcher/group/test_halted.py",
    "launcher/group/test_logs.py",
    "launcher/group/test_output.py",
    "launcher/group/test_tight_limits.py",
    "launcher/starters/",
    "ranks/common/",
    "ranks/run/test_forked.py",
    "ranks/sessions/test_idle.py",
    "ranks/talk/",
    "ranks/weights/test_store.py",
    "test_plugins.py",
)
WORKERS = int(os.environ.get("PYTEST_XDIST_WORKER_COUNT", "1"))
"""Each is first given as many tests, in order."""


def pytest_collection() -> None:
    """What is imported and found stays to the end: to look among it for cycles finds next to none."""
    gc.disable()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Marks what is slow, file by file. One worker begins with what waits, another with the longest tests."""
    here = Path(__file__).parent
    places = {path: path.relative_to(here).as_posix() for path in {item.path for item in items}}
    files = {item: places[item.path] for item in items}
    for item, file in files.items():
        if file.startswith(SLOW):
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


@pytest.hookimpl(tryfirst=True)
def pytest_runtest_setup(item: pytest.Item) -> None:
    """Before fixtures of modules start ranks."""
    file = item.path.relative_to(Path(__file__).parent).as_posix()
    new = file.startswith(NEW_RANKS) or item.get_closest_marker("new_ranks") or is_drawn(item.nodeid)
    RANKS.wanted = not new


def is_drawn(test: str) -> bool:
    """Whether a test is one of the tenth in which ranks are new processes only because they then hash text
    each in its own way: ranks that take an order from a set part there, and copies would not."""
    return zlib.crc32(test.encode()) % 10 == 0


@pytest.fixture(scope="session")
def zoo() -> Path:
    """The folder where built models are kept; `tests.models.get(NAME)` builds and finds them."""
    return models.cache_folder()
