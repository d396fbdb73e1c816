"""Files that stand where a model or its data should be: pointers of Git LFS and git-annex, pages of an error.

A repository that was cloned without its large files has small texts in their places, and a download by the
wrong address gives a page.
"""

from __future__ import annotations

import re
import stat
from pathlib import Path

from sharding.common.text import human_bytes
from sharding.errors import ModelError

_LARGEST_POINTER = 1024  # bytes; Git LFS takes nothing longer for one
_HEAD = 1024
_LFS = b"version https://git-lfs.github.com/"
_OLDER_LFS = b"version https://hawser.github.com/"
_ANNEX = rb"/annex/objects/|\.\.?/(?:\.\./)*\.git/annex/objects/"
_PAGE = rb"(?i)\s*(?:<!doctype html|<html|<\?xml)"


def placeholder(path: Path, *, pages: bool = True) -> str | None:
    """The end of a sentence about a file that stands for another one; None for any other file, and for one
    that cannot be read. ``pages``: whether a web page counts as such a file, too."""
    try:
        if not path.is_file():
            return None
        size = path.stat().st_size
        with path.open("rb") as file:
            head = file.read(_HEAD)
    except (OSError, ValueError):
        return None
    if size <= _LARGEST_POINTER and head.startswith((_LFS, _OLDER_LFS)):
        found = re.search(rb"^size (\d{1,18})$", head, re.MULTILINE)
        whole = f" of {human_bytes(int(found[1]))}" if found else ""
        return (
            f"is a Git LFS pointer of {size} bytes and not the file{whole} that it stands for: fetch that "
            "with `git lfs pull` in the repository, or download it"
        )
    if size <= _LARGEST_POINTER and re.match(_ANNEX, head):
        return (
            "is a git-annex pointer and not the file that it stands for: fetch that with `git annex get` in "
            "the repository"
        )
    if pages and re.match(_PAGE, head):
        return "is a web page (HTML or XML) and not the file itself: download the file again"
    return None


def refuse_devices(path: Path) -> None:
    """Raises `ModelError` for a pipe, which would be waited for, and a device, which might never end; and
    `OSError` for what cannot be looked at."""
    mode = path.stat().st_mode
    if not stat.S_ISREG(mode) and not stat.S_ISDIR(mode):
        raise ModelError(f"{path} is not a file; expected a model.")


def refuse_placeholder(path: Path) -> None:
    """Raises `ModelError` for a file that stands for another one."""
    found = placeholder(path)
    if found is not None:
        raise ModelError(f"{path} {found}.")
