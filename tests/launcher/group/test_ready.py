"""Where ranks run, as a summary says it."""

from __future__ import annotations

import pytest

from launcher.group.ready import RankStats, places


def rank(number: int, host: str, cpus: str) -> RankStats:
    return RankStats(number, host, 1, 1, 0, 0, 0.0, "shm", cpus)


@pytest.mark.parametrize(
    ("ranks", "rows"),
    [
        ([rank(0, "a", "0-3")], {"cores": "0-3 (rank 0)"}),
        ([rank(0, "a", "0-3"), rank(1, "a", "0-3")], {"cores": "0-3 (of all ranks)"}),
        ([rank(0, "a", "0-1"), rank(1, "a", "2-3")], {"cores": "0-1 (rank 0), 2-3 (rank 1)"}),
        (
            [rank(0, "a", "0"), rank(1, "b", "1"), rank(2, "a", "0"), rank(3, "a", "0")],
            {"hosts": "a (ranks 0,2-3); b (rank 1)", "cores": "a 0 (of all ranks); b 1 (rank 1)"},
        ),
        (
            [rank(one, "a", str(one)) for one in range(9)],
            {"cores": ", ".join(f"{one} (rank {one})" for one in range(8)) + ", ..."},
        ),
        (
            [rank(one, f"h{one}", "0") for one in range(8)],
            {
                "hosts": "; ".join(f"h{one} (rank {one})" for one in range(8)),
                "cores": "; ".join(f"h{one} 0 (rank {one})" for one in range(8)),
            },
        ),
    ],
)
def test_places(ranks: list[RankStats], rows: dict[str, str]) -> None:
    assert places(ranks) == rows
