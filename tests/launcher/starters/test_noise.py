"""Which lines of a rank's stream are an MPI library's, and which its own."""

from __future__ import annotations

import pytest

from launcher.starters.noise import Noise

RULE = "-" * 74 + "\n"


def sifted(*lines: str) -> tuple[list[str], list[str]]:
    """The rank's own lines, and the library's; none is lost, and the order is kept."""
    one = Noise()
    found = [item for line in lines for item in one.sift(line)] + one.rest()
    assert [line for line, _ in found] == list(lines) and one.rest() == []
    return [line for line, noise in found if not noise], [line for line, noise in found if noise]


@pytest.mark.parametrize(
    "line",
    [
        "[host:123] *** Process received signal ***\n", "[host:123] PMIX ERROR: x\n", "[h:12] [ 3] /lib/x\n",
        "Abort(15) on node 1 (rank 1 in comm 0): y\n", "Abort(15) (rank 1 in comm 0): y\n",
        "internal_Allreduce(7)....: x\n", "Fatal error in PMPI_Wait: x\n", "srun: error\n", "slurmstepd: x\n",
        "\0\n",
    ],
)  # fmt: skip
def test_lines_of_a_library(line: str) -> None:
    assert sifted("mine\n", line, "mine too\n") == (["mine\n", "mine too\n"], [line])


@pytest.mark.parametrize(
    "line", ["[host:123] mine\n", "\n", "Abort(15)\n", "srun\n", "[a b:12] *** x\n", "-" * 73 + "\n"]
)
def test_lines_that_only_look_like_one(line: str) -> None:
    assert sifted(line) == ([line], [])


def test_a_text_between_rules() -> None:
    text = [RULE, "Primary job ended\n", "mpirun has exited\n", RULE]
    assert sifted("a\n", *text, "b\n") == (["a\n", "b\n"], text)
    table = [RULE, "x  y\n", RULE]
    assert sifted(*table) == (table, [])
    assert sifted(*text[:3]) == ([], text[:3])  # it has no end
    assert sifted(RULE, "x\n") == ([RULE, "x\n"], [])
    assert sifted(*text, *table) == (table, text)


def test_a_long_text_is_the_ranks_own() -> None:
    for more, own in ((38, False), (39, False), (40, True)):
        lines = [RULE, *["MPI\n"] * more]
        one = Noise()
        found = [item for line in lines for item in one.sift(line)]
        assert found == ([(line, False) for line in lines] if own else [])


def test_what_a_library_has_said() -> None:
    one = Noise()
    one.sift("[h:1] *** An error occurred in MPI_Wait\n")
    assert not one.lost and not one.called
    one.sift("[h:1] *** An error occurred in Socket closed\n")
    assert one.lost and not one.called
    one.sift("Abort(3) on node 0 (rank 0 in comm 0): application called MPI_Abort(x)\n")
    one.sift("more\n")
    assert one.lost and one.called
