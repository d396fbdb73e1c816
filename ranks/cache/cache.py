"""Folders in the cache that hold one thing each: found under their key, or made once for all processes.

What is made is built beside its place (`KEY.tmp*`) while `KEY.lock` is held, sealed (`ranks.cache.intact`),
and renamed whole, so a folder under its key is complete, whoever else was making it or crashed. What is
damaged is made again. What is used is held (`ranks.cache.locks`), so that nobody throws it out
(`ranks.cache.limit`).

The store of prepared weights (`ranks.cache.weight_entries`) has entries of another form: files of many
entries, each of them once.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Callable
from pathlib import Path

from ranks.cache.folder import locked
from ranks.cache.intact import Files, is_sealed, note, say_damaged, seal
from ranks.cache.limit import bound, limit_of
from ranks.cache.locks import hold
from ranks.cache.place import FORMS, discard, make_private, place_of, prepare

_RESUMED = ".tmpresumed"
Make = Callable[[Path], Files | None]
"""Makes a thing: a folder at the path given, where there is none yet. Returns what it knows of the sizes and
hashes of its files, which then are not read again."""


class Cache:
    """The things of one kind (`ranks.cache.place.FORMS`)."""

    def __init__(self, kind: str, root: Path | None, folder: Path | None = None) -> None:
        """``root``: the cache folder; without it things lie in ``folder``, which has no limit."""
        self._kind, self._root = kind, root
        if root is not None:
            folder = place_of(root, kind)
        assert folder is not None
        self.folder = folder
        """Where the things lie, each under its key."""

    def get_or_make(
        self,
        key: str,
        make: Make,
        *,
        fits: Callable[[Path], bool] = Path.is_dir,
        before: Callable[[], object] | None = None,
        timeout: float | None = None,
        resume: bool = False,
    ) -> Path:
        """The folder of a key, whole; it stays there as long as `ranks.cache.locks.hold` says.

        ``fits``: whether a whole folder is what is asked for; ``before`` is called before anything is made;
        ``timeout``: seconds to wait, aloud, for another process that makes the same (default:
        ``SHARDRUN_TIMEOUT``). ``resume``: what ``make`` leaves where it fails stays, and the next ``make`` of
        the key finds it, unless it is thrown out. Raises what ``make`` raises, `SettingError` for a malformed
        limit, and `OSError`: `HeldError` if that process takes longer, else where the cache cannot be used.
        """
        if self._root is not None:
            prepare(self._root, self._kind)
        else:
            make_private(self.folder, shared=True)
        place = self.folder / key
        if self._is_there(place, fits, timeout):
            return place
        limit = limit_of(self.folder)
        with locked(place.with_name(f"{key}.lock"), timeout) as alone:
            # Whoever held the lock before may have made it.
            if self._is_there(place, fits, timeout):
                return place
            if before is not None:
                before()
            if alone:
                _clear_crashed(place, _RESUMED if resume else "")
            self._make(place, make, lambda: self._is_there(place, fits, timeout), resume and alone)
            hold(place, timeout)
        if self._root is not None:
            bound(self._root, limit)
        return place

    @staticmethod
    def _is_there(place: Path, fits: Callable[[Path], bool], timeout: float | None) -> bool:
        # Held before its bytes are read, so that nobody removes it meanwhile.
        return hold(place, timeout) and is_sealed(place) and fits(place)

    def _make(self, place: Path, make: Make, is_there: Callable[[], bool], resume: bool) -> None:
        if resume:
            work = place.with_name(f"{place.name}{_RESUMED}")
            make_private(work)
        else:
            work = Path(tempfile.mkdtemp(prefix=f"{place.name}.tmp", dir=place.parent))
        made = work / "made"
        whole = False
        try:
            files = seal(made, make(made))
            whole = True
            made.chmod(0o700)
            _close_to_others(made)
            if os.path.lexists(place):
                if is_there():  # on file systems without locks another process may have been faster
                    return
                if not is_sealed(place):
                    say_damaged(place)
                discard(place, FORMS[self._kind])
            try:
                made.rename(place)
                note(place, files)
            except OSError:
                if not is_there():  # as above
                    raise
        finally:
            if whole or not resume:
                shutil.rmtree(work, ignore_errors=True)


def _close_to_others(folder: Path) -> None:
    """Takes from others what rights the umask has left them to files. No maker links to a file elsewhere."""
    for path in folder.iterdir():
        if path.is_file() and not path.is_symlink():
            path.chmod(0o600)


def _clear_crashed(place: Path, but: str) -> None:
    """Removes whatever a crash left of earlier tries, ``but`` what has this ending, now that nobody else is
    at work there."""
    for stale in place.parent.glob(f"{place.name}.tmp*"):
        # What is no folder is not ours; and to open a pipe, as rmtree does, waits for a writer.
        if stale.is_dir() and stale.name != place.name + but:
            shutil.rmtree(stale, ignore_errors=True)
