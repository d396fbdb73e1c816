"""Slice folders that were written before their format said more are run as they were."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from ranks.run import executor
from sharding.slices.manifest import read_manifest
from tests.ranks.fake_communicator import FakeCommunicator, on_ranks
from tests.sharding import graphs

FOLDER = Path(__file__).parent / "sliced_before_names"
"""On 2 ranks, by rows: row i of ``z`` is row i * k of ``x``, all of it one after the other, where ``m`` is
called ``p + 1`` long and k is one less. Ranks looked at such names by themselves then."""


@pytest.mark.parametrize("length", [6, 3])
def test_what_an_old_folder_calls_a_sum_is_one_where_rows_are_cut(length: int) -> None:
    x = graphs.array(4, 5, 4)
    rows = x.reshape(-1, 4)[np.arange(4) * (length - 1)]

    def work(world: FakeCommunicator) -> Any:
        return executor.load(FOLDER, communicator=world, threads=1).run(
            {"x": x, "m": graphs.array(4, length)}
        )

    for results in on_ranks(2, work):
        assert np.array_equal(results[0], rows)
    assert read_manifest(FOLDER).batch.lengths == {"p + 1": "p + 1"}
