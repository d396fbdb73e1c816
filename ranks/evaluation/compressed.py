"""Members of archives that become much larger than the file: how large is known before they are read."""

from __future__ import annotations

from zipfile import ZipInfo

from ranks.evaluation.errors import EvaluationError
from sharding.common.limits import free_memory
from sharding.common.text import human_bytes

LARGE = 256 << 20
"""Up to this many bytes, it is not asked whether memory is free."""
MOST_BLOWN_UP = 64 << 20
"""Up to this many bytes, a member may shrink as much as it likes: masks and padding are mostly zeros."""
MOST_RATIO = 100
"""A larger member may be this many times as large as in the archive; real data shrink less."""


def check_member(member: ZipInfo, where: str) -> None:
    """Raises `EvaluationError` for a member that would become suspiciously large, or does not fit into
    memory."""
    if member.file_size > max(MOST_BLOWN_UP, MOST_RATIO * member.compress_size):
        raise EvaluationError(
            f"{where}: {human_bytes(member.compress_size)} in the archive would become "
            f"{human_bytes(member.file_size)}, more than {MOST_RATIO} times as much, as data that fill the "
            "memory on purpose do; if they are right, save them without compression (numpy.savez)."
        )
    check_memory(member.file_size, where)


def check_length(length: int, stated: int, where: str) -> None:
    """Raises `EvaluationError` where an array's header says more bytes than there are.

    ``length``: of header and array as the header says it; ``stated``: what the archive or file has, in bytes.
    """
    if length > stated:
        raise EvaluationError(
            f"{where}: cannot read the array: its header says {length} bytes, but there are {stated}: the "
            "file is damaged."
        )


def check_memory(nbytes: int, where: str) -> None:
    """Raises `EvaluationError` where so many bytes are not free: the system would end this process, or
    another."""
    free = free_memory() if nbytes >= LARGE else None
    if free is not None and nbytes > free:
        raise EvaluationError(
            f"{where}: {human_bytes(nbytes)} are to be read into memory, "
            f"of which {human_bytes(free)} are free."
        )
