"""Variables that say who a process is: which tell it another rank's name, and which are a user's settings."""

from __future__ import annotations

import pytest

from ranks.common import sources
from ranks.common.settings import VARIABLES

OF_RANKS = (
    *("RANK", "WORLD_SIZE", "LOCAL_RANK", "GROUP_RANK", "TORCHELASTIC_RUN_ID", "RANK_ID", "DEVICE_ID"),
    *("OMPI_COMM_WORLD_RANK", "OMPI_COMM_WORLD_NODE_RANK", "PMIX_RANK", "PMIX_SERVER_URI41", "PMI_FD"),
    *("MPI_LOCALRANKID", "PMI_RANK"),
)
OF_USERS = (
    *("PATH", "RANKS", "MASTER_ADDR", "OMPI_MCA_btl", "PMIX_MCA_gds", "PRTE_MCA_x", "I_MPI_FABRICS", "PMI_X"),
    *("SLURM_PROCID", "SLURM_JOB_ID", "MY_OMPI_COMM_WORLD_RANK", ""),
)


@pytest.mark.parametrize("name", OF_RANKS)
def test_what_says_who_a_rank_is(name: str) -> None:
    assert sources.identifies(name)
    assert sources.clean({name: "1", "HOME": "/"}) == {"HOME": "/"}


def test_what_is_of_one_job_goes_and_a_user_s_settings_stay() -> None:
    environ = {item.name: "1" for item in VARIABLES}
    kept = {item.name for item in VARIABLES if not item.of_one_job}
    assert {"SHARDRUN_THREADS", "SHARDRUN_TIMEOUT"} <= kept < environ.keys()
    assert sources.clean(environ).keys() == sources.alone(environ).keys() == kept


@pytest.mark.parametrize("name", OF_USERS)
def test_what_stays(name: str) -> None:
    assert not sources.identifies(name)
    assert sources.clean({name: "1"}) == sources.alone({name: "1"}) == {name: "1"}


@pytest.mark.parametrize("name", ["SLURM_STEP_ID", "SLURM_STEPID", "RANK_TABLE_FILE"])
def test_what_makes_a_process_of_none_a_rank(name: str) -> None:
    """Ranks of this job still see it."""
    environ = {name: "1", "HOME": "/", "RANK": "3"}
    assert sources.clean(environ) == {name: "1", "HOME": "/"}
    assert sources.alone(environ) == {"HOME": "/"}


@pytest.mark.parametrize(
    ("source", "environ", "joined"),
    [
        ("OMPI_COMM_WORLD_RANK", {}, True),
        ("PMI_RANK", {}, True),
        ("SLURM_PROCID", {"PMIX_RANK": "0"}, True),
        ("SLURM_PROCID", {"PMI_RANK": "0"}, False),  # Slurm sets it without an MPI library's knowledge
        ("SLURM_PROCID", {}, False),
        ("RANK", {"PMIX_RANK": "0", "PMI_RANK": "0"}, False),
        ("RANK_TABLE_FILE", {}, False),
    ],
)
def test_whether_mpi_can_join_the_ranks(source: str, environ: dict[str, str], joined: bool) -> None:
    assert sources.by_mpi(source, environ) == joined


@pytest.mark.parametrize(("in_memory", "used"), [(False, True), (True, False)])
def test_where_open_mpi_puts_what_ranks_share(
    monkeypatch: pytest.MonkeyPatch, in_memory: bool, used: bool
) -> None:
    """The folder that is cleared when they are killed, if it is there and the user has named no other."""
    name = "OMPI_MCA_btl_sm_backing_directory"
    for variable in (name, "PMIX_SERVER_TMPDIR"):
        monkeypatch.delenv(variable, raising=False)
    monkeypatch.setattr("os.path.isdir", lambda path: path.endswith("/there"))
    assert sources.segments(in_memory=in_memory) == {}
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", "/dev/shm/gone")
    assert sources.segments(in_memory=in_memory) == {}
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", "/var/there")
    assert sources.segments(in_memory=in_memory) == ({name: "/var/there"} if used else {})
    monkeypatch.setenv("PMIX_SERVER_TMPDIR", "/dev/shm/there")
    assert sources.segments(in_memory=in_memory) == {name: "/dev/shm/there"}
    monkeypatch.setenv(name, "/elsewhere")
    assert sources.segments(in_memory=in_memory) == {}
