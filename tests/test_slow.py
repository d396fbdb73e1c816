"""What `./run.sh test --fast` leaves out, and what begins first: tests/order.py names what exists."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.conftest import WORKERS
from tests.order import LONGEST, NEW_RANKS, PARTLY, SLOW, WAITING

TESTS = Path(__file__).parent
FILES = sorted(path.relative_to(TESTS).as_posix() for path in TESTS.rglob("test_*.py"))


def faults(slow: tuple[str, ...]) -> list[str]:
    """What is wrong with such a list: each entry is a file, a folder with its slash, or the beginning that
    several files share and nothing else does, as `test_mindir_` of its folder."""
    found = []
    for entry in slow:
        matched = [name for name in FILES if name.startswith(entry)]
        if not matched:
            found.append(f"{entry} is no file of tests/")
        elif not entry.endswith(("/", "_", ".py")):
            found.append(f"{entry} is neither a file nor a folder with its slash")
        elif entry.endswith("_") and len(matched) < 2:
            found.append(f"{entry} is the beginning of {matched[0]} alone: name that")
        found += [
            f"{entry} is in the list with {other}"
            for other in slow
            if other != entry and entry.startswith(other)
        ]
    return found + [f"{entry} is in the list twice" for entry in sorted(set(slow)) if slow.count(entry) > 1]


def test_slow_files_exist() -> None:
    assert not faults((*SLOW, *PARTLY)) and not faults(NEW_RANKS)
    assert not {*LONGEST, *WAITING} - set(FILES)


def test_what_waits_and_the_longest_begin_first(request: pytest.FixtureRequest) -> None:
    """Each list stands together: one at the front, the other where the second worker begins."""
    files = [item.path.relative_to(TESTS).as_posix() for item in request.session.items]
    waiting = [index for index, file in enumerate(files) if file in WAITING]
    longest = [index for index, file in enumerate(files) if file in LONGEST]
    assert waiting == list(range(len(waiting)))
    first = max(len(waiting), min(len(files) // WORKERS, len(files) - len(longest)))
    assert longest == list(range(first, first + len(longest)))


@pytest.mark.parametrize(
    ("entry", "fault"),
    [
        ("test_rooms_of_others.py", "is no file of tests/"),
        ("test_names_in_text.pyc", "is no file of tests/"),
        ("test_rooms", "is neither a file nor a folder"),
        ("test_ro_", "is no file of tests/"),
        ("test_rooms.p_", "is no file of tests/"),
        ("test_names_", "is the beginning of test_names_in_text.py alone"),
        ("architectures", "is neither a file nor a folder"),
        ("architectures/test_architectures.py", "is in the list with architectures/"),
        ("end_to_end/test_mindir.py", "is in the list twice"),
    ],
)
def test_a_wrong_entry_is_found(entry: str, fault: str) -> None:
    found = faults((*SLOW, entry))
    assert any(item.startswith(entry) and fault in item for item in found), found
