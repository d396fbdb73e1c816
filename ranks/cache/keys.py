"""Keys of what is made of a model: hashes of all that decides what is made."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Mapping
from pathlib import Path

from ranks.cache.folder import fingerprint
from sharding.common.registry import code_of


def key_of(model: Path, parts: Mapping[str, object], *, about: str = "") -> str:
    """The key of what is made of a model and ``parts``, plain JSON values. It starts readably, for a person
    who looks into the folder: with the model's name, and what there is to say ``about`` it."""
    whole = json.dumps({"model": fingerprint(model), **parts}, sort_keys=True)
    return f"{beginning(model, about)}{hashlib.sha256(whole.encode()).hexdigest()[:24]}"


def beginning(model: Path, about: str = "") -> str:
    """What a model's keys start with, which takes no hash."""
    stem = "".join(c if c.isascii() and c.isalnum() else "_" for c in model.stem)[:40]
    return f"{stem}{about}-"


def hash_of_code(root: Path, others: Mapping[str, str]) -> str:
    """A hash of the code below a folder, and of the entry points ``others``: another version of it, or one
    that somebody works on, may make something else."""
    return _hash_of_code(root, tuple(others.items()))


@functools.cache
def _hash_of_code(root: Path, others: tuple[tuple[str, str], ...]) -> str:
    digest = hashlib.sha256()
    for path in sorted(root.rglob("*.py")):
        status = path.stat()
        digest.update(f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode())
    for name, where in others:
        digest.update(f"{name} {where} {code_of(where)}\n".encode())
    return digest.hexdigest()
