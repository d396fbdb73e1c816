"""Where ranks of several hosts meet, by their environment."""

from __future__ import annotations

from pathlib import Path

import pytest

from ranks.identity.meeting import meeting_place
from ranks.identity.place import Identity

STEP = {
    "SLURM_JOB_ID": "12077",
    "SLURM_STEP_ID": "3",
    "SLURM_PROCID": "2",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_STEP_NODELIST": "localhost,nowhere[4-6].invalid",
    "SLURM_JOB_NODELIST": "localhost,nowhere[4-7].invalid",
    "SLURM_LAUNCH_NODE_IPADDR": "10.9.8.7",
    "SLURM_DISTRIBUTION": "cyclic",
}
RANK = Identity(2, 4, 0, None, source="SLURM_PROCID and SLURM_NTASKS")
HIDDEN = {"SLURM_STEP_NODELIST": "nowhere[4-6].invalid", "SLURM_JOB_NODELIST": "nowhere[4-7].invalid"}


@pytest.fixture(autouse=True)
def no_slurm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))


def controller(folder: Path, says: str) -> None:
    """A program in the place of ``scontrol``."""
    program = folder / "scontrol"
    program.write_text(f"#!/bin/sh\n{says}\n")
    program.chmod(0o755)


@pytest.mark.parametrize(
    ("more", "place"),
    [
        ({}, ("localhost", "22080")),
        ({"SLURM_STEP_ID": "4"}, ("localhost", "22081")),
        ({"MASTER_PORT": "29500"}, ("localhost", "29500")),
        ({"MASTER_ADDR": "h9"}, ("h9", "22080")),
        ({"MASTER_ADDR": " h9 ", "MASTER_PORT": "1"}, ("h9", "1")),
        (HIDDEN, ("10.9.8.7", "22080")),
        ({**HIDDEN, "SLURM_JOB_NODELIST": "a1,nowhere4.invalid"}, ("", "22080")),  # srun was called elsewhere
        ({"SLURM_STEP_NODELIST": ""}, ("", "22080")),
        ({"SLURM_STEP_NODELIST": "a[1-"}, ("", "22080")),
        ({"SLURM_JOB_ID": "none"}, ("localhost", "")),
        ({"SLURM_DISTRIBUTION": "arbitrary"}, ("", "")),
        ({"SLURM_HET_SIZE": "2"}, ("", "")),
        ({"SLURM_STEP_ID": "4294967291"}, ("", "")),  # the script of a job, which is no task
        ({"SLURM_PROCID": "0"}, ("", "")),  # numbered by somebody else
    ],
    ids=str,
)
def test_places(more: dict[str, str], place: tuple[str, str]) -> None:
    assert meeting_place(RANK, {**STEP, **more}) == place


def test_without_slurm() -> None:
    assert meeting_place(RANK, {}) == ("", "")
    assert meeting_place(RANK, {"MASTER_ADDR": "a", "MASTER_PORT": "5"}) == ("a", "5")


def test_a_node_whose_name_cannot_be_found_has_an_address(tmp_path: Path) -> None:
    controller(tmp_path, 'echo "NodeName=$4 Arch=x NodeAddr=127.0.0.9 NodeHostName=$4"')
    assert meeting_place(RANK, {**STEP, **HIDDEN})[0] == "127.0.0.9"


@pytest.mark.parametrize("says", ["echo NodeAddr=nowhere4.invalid", "exit 1", "echo none", "kill -9 $$"])
def test_a_controller_that_does_not_know(tmp_path: Path, says: str) -> None:
    controller(tmp_path, says)
    assert meeting_place(RANK, {**STEP, **HIDDEN})[0] == "10.9.8.7"
