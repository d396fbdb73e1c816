"""What an MPI library prints in a rank's name when another rank, a host or the network is gone.

It comes before anything that this project can say, hides the cause, and is of use only to who looks into
MPI itself: it is kept for the log and for the rank's last lines, and not shown.
"""

from __future__ import annotations

import re

_RULE = "-" * 74
"""Before and after a help text of Open MPI."""
_LONGEST = 40
"""Lines of such a text."""
_ITS_WORDS = ("MPI", "PRTE", "PMIx", "PMIX", "mpirun", "prterun")
_ALONE = (
    r"\s*\[[^\s\[\]:]+:\d+\]\s+(\*\*\*|PMIX ERROR|PRTE ERROR|Signal|Failing at|\[ ?\d+\]"
    r"|[\w./-]+\.[ch]:\d+|Delaying for \d+ seconds before aborting)"  # Open MPI
    r"|\s*\[[^\s\[\]]+\]\[\[\d+,\d+\],\d+\]\[[^\s\[\]]+\.[ch]:\d+:\w+\]"
    r"|Abort\(\d+\)( on node \d+)? \(rank \d+ in comm \d+\): "  # MPICH, Intel MPI
    r"|(internal_\w+|PMPI_\w+|MPI[DR]\w+|MPL_\w+)\(\d*\)?[.(]*:? "
    r"|Fatal error in (internal_|PMPI_)\w+: "
    r"|srun: |slurmstepd: "
)


_LOST = r"\s*\[[^\s\[\]:]+:\d+\]\s+\*\*\* An error occurred in Socket closed"
_CALLED = r"Abort\(\d+\)( on node \d+)? \(rank \d+ in comm \d+\): application called MPI_Abort"


class Noise:
    """One stream of one rank. ``lost``: the library has said that it lost a connection, and ends the rank;
    ``called``: that the rank itself ended the job."""

    def __init__(self) -> None:
        self._is_alone, self._is_lost, self._is_called = (
            re.compile(pattern).match for pattern in (_ALONE, _LOST, _CALLED)
        )
        self._held: list[str] = []
        self.lost = self.called = False

    def sift(self, line: str) -> list[tuple[str, bool]]:
        """Lines that are now known to be the rank's own, or the library's (True): those given so far and
        not given back yet, in order."""
        text = line.rstrip("\r\n").strip("\0")
        self.lost = self.lost or self._is_lost(text) is not None
        self.called = self.called or self._is_called(text) is not None
        if self._held:
            self._held.append(line)
            if text == _RULE:
                return self._given(any(word in held for held in self._held for word in _ITS_WORDS))
            return self._given(False) if len(self._held) > _LONGEST else []
        if text == _RULE:
            self._held.append(line)
            return []
        return [(line, self._is_alone(text) is not None or (not text and "\0" in line))]

    def rest(self) -> list[tuple[str, bool]]:
        """Those that are still held, at the end of the stream."""
        return self._given(any(word in held for held in self._held for word in _ITS_WORDS))

    def _given(self, noise: bool) -> list[tuple[str, bool]]:
        held, self._held = self._held, []
        return [(line, noise) for line in held]
