"""The cache's folders, one for each kind of thing: which are ours, and who else could write to them.

    $SHARDRUN_CACHE/KIND           ours if it was made here, or found empty: then it has the mark
    $SHARDRUN_CACHE/.shardrun/...  the marks, an empty folder for each: KIND-INODE
    $SHARDRUN_CACHE/KIND-shardrun  used instead where KIND is a folder of the user's own

Nothing is removed that was not written here: a folder without the mark is left alone, and in one with it only
what has a name that we give is ours (`FORMS`). What another user can write to or put in place is not used: it
could hold another model, and be a link to a folder that is then emptied.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
import secrets
import stat
from dataclasses import dataclass
from pathlib import Path

from sharding.slices.manifest import FILE_NAME, SLICE_FILE

MARKS = ".shardrun"
_KEPT = ".kept"


@dataclass(frozen=True)
class Form:
    """The names that we give. ``entry``: of things; ``files``: of the files in one that is a folder;
    ``sign``: the one that each whole thing has."""

    entry: str
    files: str = ""
    sign: str = ""

    def key(self, name: str) -> str | None:
        """The thing that ``name`` is, was to be or is the lock of; None for a name that we do not give."""
        found = re.fullmatch(rf"({self.entry})(\.lock|\.tmp\w*)?", name, re.ASCII)
        return found[1] if found else None

    def is_file(self, name: str) -> bool:
        """Whether files of a thing have this name."""
        return re.fullmatch(self.files, name) is not None


_DIGEST = "[0-9a-f]{24}"
SEAL = "complete.json"
"""What `ranks.cache.intact` writes into a folder."""
_SEAL = re.escape(SEAL)
FORMS = {
    "slices": Form(rf"\w{{0,40}}-\d+-{_DIGEST}", rf"{re.escape(FILE_NAME)}|{SLICE_FILE}|{_SEAL}", FILE_NAME),
    "converted": Form(rf"\w{{0,40}}-{_DIGEST}", rf".+\.onnx(\.data)?|{_SEAL}", SEAL),
    "staged": Form(rf"\w{{0,40}}-{_DIGEST}", r".+", SEAL),
    "hashes": Form(rf"{_DIGEST}\.json"),
    "weights": Form(r"[0-9a-f]{32}\.(?:json|onnx|boot)|blobs|locks|work"),
    "device": Form("[0-9a-f]{32}", rf"graph\.onnx|weights\.data|model\.txt|{_SEAL}", "graph.onnx"),
    "minilm": Form("[0-9a-f]{12}", r"minilm\.onnx(\.data)?|lock", "minilm.onnx"),
    "benchmarks": Form("bert_base|slices", r"bert_base\.onnx(\.data)?", "bert_base.onnx"),
}
"""What each kind of thing in the cache looks like."""


def place_of(root: Path, kind: str) -> Path:
    """The folder in the cache ``root`` where things of a kind lie, or would."""
    other = root / f"{kind}-shardrun"
    return other if _is_marked(other) or _is_the_users(root / kind, kind) else root / kind


def ours(root: Path, kind: str) -> Path | None:
    """As `place_of`, to look into; None where there is none of ours.

    Raises `OSError` where another user could have written to it.
    """
    folder = place_of(root, kind)
    if not os.path.lexists(folder):
        return None
    demand_root(root)
    demand_private(folder)
    return folder if _is_marked(folder) or _has_our_forms(folder, kind) else None


def prepare(root: Path, kind: str) -> Path:
    """As `place_of`, and the folder is there afterwards, for this user alone.

    Raises `OSError` where it cannot be made, or another user could write to it.
    """
    make_private(root, shared=True)
    demand_root(root)
    folder = place_of(root, kind)
    make(folder, kind)
    return folder


def make(folder: Path, kind: str) -> None:
    """Makes a folder for things of a kind, for this user alone, and marks it as ours.

    Raises `OSError`, also where another user could write to it or it holds files that are not ours.
    """
    make_private(folder)
    if not (_is_marked(folder) or _has_our_forms(folder, kind) or _is_marked(folder)):
        raise OSError(errno.ENOTEMPTY, "it holds files that shardrun did not write", str(folder))
    make_private(folder.parent / MARKS)
    with contextlib.suppress(FileExistsError):
        _mark(folder).mkdir(mode=0o700)


def make_private(folder: Path, *, shared: bool = False) -> None:
    """Makes a folder and those above it that are missing, each for this user alone whatever the umask.

    Raises `OSError`, also where the folder is there already and another user could write to it (but for
    ``shared`` ones).
    """
    if not folder.parent.exists():
        make_private(folder.parent, shared=True)
    try:
        folder.mkdir(mode=0o700)
        folder.chmod(0o700)
    except FileExistsError:
        pass
    if not shared:
        demand_private(folder)


def demand_private(folder: Path) -> None:
    """Raises `OSError` unless this is a folder, no link, of this user, to which no other may write."""
    status = folder.lstat()
    if stat.S_ISLNK(status.st_mode):
        raise _refused(folder, "it is a link")
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(folder))
    if status.st_uid != os.geteuid():
        raise _refused(folder, f"it belongs to another user ({status.st_uid})")
    if status.st_mode & 0o022:
        raise _refused(folder, "others may write to it")


def demand_root(root: Path) -> None:
    """Raises `OSError` where another user could put a folder into the cache folder, or another one in the
    place of one that is there. Folders such as /tmp, where only the owner may rename (the sticky bit), are
    safe."""
    if root.is_symlink() and root.lstat().st_uid not in {os.geteuid(), 0}:
        raise _refused(root, "it is a link of another user")
    status = root.stat()
    if not stat.S_ISDIR(status.st_mode):
        raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(root))
    if status.st_uid not in {os.geteuid(), 0}:
        raise _refused(root, f"it belongs to another user ({status.st_uid})")
    shared = status.st_mode & stat.S_IWOTH or (
        status.st_mode & stat.S_IWGRP and not _is_own_group(status.st_gid)
    )
    if shared and not status.st_mode & stat.S_ISVTX:
        raise _refused(root, "others may write to it")


def discard(folder: Path, form: Form) -> None:
    """Removes a thing that is a folder. What we did not write into it stays, in a folder beside it, as
    `free_name` gives. Raises `OSError`."""
    # We make only folders, which are this user's: anything else is not ours.
    if folder.is_symlink() or not folder.is_dir() or folder.stat().st_uid != os.geteuid():
        folder.rename(free_name(folder))
        return
    going = folder
    if form.key(folder.name) == folder.name:
        others = [path for path in folder.iterdir() if path.is_dir() or not form.is_file(path.name)]
        if others:
            kept = free_name(folder)
            kept.mkdir(mode=0o700)
            for path in others:
                path.rename(kept / path.name)
        # Under its name it is whole, or not there.
        going = folder.with_name(f"{folder.name}.tmp{secrets.token_hex(4)}")
        folder.rename(going)
    import shutil

    shutil.rmtree(going)


def free_name(path: Path) -> Path:
    """A name beside ``path`` that we give to nothing, for what is not ours and is in the way."""
    return path.with_name(f"{path.name[:200]}{_KEPT}{secrets.token_hex(4)}")


def _refused(folder: Path, why: str) -> PermissionError:
    return PermissionError(errno.EPERM, f"{why}, and what it holds cannot be trusted", str(folder))


def _mark(folder: Path) -> Path:
    """The number is for a folder of the user's own in the place of one that was ours."""
    return folder.parent / MARKS / f"{folder.name}-{folder.lstat().st_ino}"


def _is_marked(folder: Path) -> bool:
    try:
        demand_private(folder.parent / MARKS)
        return _mark(folder).is_dir()
    except OSError:
        return False


def _is_the_users(folder: Path, kind: str) -> bool:
    """Whether this is a folder of this user's that holds what we did not write."""
    try:
        status = folder.lstat()
    except OSError:
        return False
    if not stat.S_ISDIR(status.st_mode) or status.st_uid != os.geteuid():
        return False
    return not (_is_marked(folder) or _has_our_forms(folder, kind) or _is_marked(folder))


def _has_our_forms(folder: Path, kind: str) -> bool:
    """Whether a folder without the mark is empty, or an earlier version's: then all in it has our forms."""
    form = FORMS[kind]
    names = set(os.listdir(folder))  # noqa: PTH208 - only the names
    if any(form.key(name) is None for name in names):
        return False
    if kind == "weights":
        return _has_forms_of_weights(folder, names)
    whole = [name for name in names if form.key(name) == name]
    return all((folder / name / form.sign).is_file() for name in whole)


def _has_forms_of_weights(folder: Path, names: set[str]) -> bool:
    blobs = list((folder / "blobs").iterdir()) if "blobs" in names else []
    listed = any(name.endswith(".json") for name in names)
    return (listed or not blobs) and all(re.fullmatch("[0-9a-f]{64}", path.name) for path in blobs)


def _is_own_group(gid: int) -> bool:
    """Whether a group is this user's alone: many systems give each user one, and let it write by default."""
    import grp
    import pwd

    try:
        group, user = grp.getgrgid(gid), pwd.getpwuid(os.geteuid())
    except (KeyError, OSError):
        return False
    return group.gr_name == user.pw_name and not set(group.gr_mem) - {user.pw_name}
