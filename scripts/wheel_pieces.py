"""Takes a large file, a wheel say, in pieces to a machine that files reach only so, and joins them there.

    python scripts/wheel_pieces.py split WHEEL pieces           # here: pieces/NAME.000, NAME.001, ...
    python scripts/wheel_pieces.py join pieces .                # there, once all pieces are there
    python scripts/wheel_pieces.py join pieces . --unpack gpu   # and unpacked, for PYTHONPATH=gpu without pip

Needs nothing but Python. Pieces may arrive in any order and one after another: `join` names those that are
missing or damaged. No file that is there is written over.
"""

from __future__ import annotations

import argparse
import contextlib
import hashlib
import json
import os
import sys
import zipfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any, BinaryIO

MIB = 1 << 20
LARGEST = 64
"""MiB of a piece."""
LIST = ".pieces.json"
_CHUNK = 4 * MIB
_SHOWN = 8


class PiecesError(Exception):
    """What is wrong, in one sentence."""


def main(arguments: Sequence[str] | None = None) -> int:
    """The command line; 1 and a sentence where it cannot be done."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    commands = parser.add_subparsers(dest="command", required=True)
    one = commands.add_parser("split", help="cut a file into pieces")
    one.add_argument("file", type=Path)
    one.add_argument("folder", type=Path, help="where the pieces and their list go")
    one.add_argument("--mib", type=int, default=60, help=f"of a piece, 1 to {LARGEST} (default: 60)")
    other = commands.add_parser("join", help="make the file of its pieces again")
    other.add_argument("folder", type=Path, help="with the pieces and their list")
    other.add_argument("output", type=Path, help="the folder for the file")
    other.add_argument(
        "--unpack", type=Path, metavar="FOLDER", help="unpack the wheel, too, into this new folder"
    )
    given = parser.parse_args(arguments)
    try:
        if given.command == "split":
            split(given.file, given.folder, given.mib)
        else:
            join(given.folder, given.output, given.unpack)
    except PiecesError as error:
        print(error, file=sys.stderr)
        return 1
    except OSError as error:
        print(f"{error.filename}: {error.strerror}.", file=sys.stderr)
        return 1
    return 0


def split(file: Path, folder: Path, mib: int = 60) -> None:
    """Writes a file's pieces and their list into a folder."""
    if not 1 <= mib <= LARGEST:
        raise PiecesError(f"--mib must be from 1 to {LARGEST}, but is {mib}.")
    whole, pieces = hashlib.sha256(), []
    with file.open("rb") as source:
        folder.mkdir(parents=True, exist_ok=True)
        while (name := f"{file.name}.{len(pieces):03}") and (first := source.read(min(_CHUNK, mib * MIB))):
            size, digest = 0, hashlib.sha256()
            with _new(folder / name) as target:
                chunk = first
                while chunk:
                    target.write(chunk)
                    whole.update(chunk)
                    digest.update(chunk)
                    size += len(chunk)
                    chunk = source.read(min(_CHUNK, mib * MIB - size))
            pieces.append({"name": name, "size": size, "sha256": digest.hexdigest()})
    told = {"name": file.name, "size": sum(piece["size"] for piece in pieces), "sha256": whole.hexdigest()}
    with _new(folder / (file.name + LIST)) as target:
        target.write(json.dumps({**told, "pieces": pieces}, indent=1).encode())
    print(f"{file.name}: {len(pieces)} pieces in {folder}, sha256 {told['sha256']}")


def join(folder: Path, output: Path, unpack: Path | None = None) -> None:
    """Makes the file whose pieces lie in a folder. Raises `PiecesError` unless all are there, unchanged."""
    told = _list(folder)
    wrong = [problem for piece in told["pieces"] if (problem := _problem(folder, piece))]
    if wrong:
        more = f" and {len(wrong) - _SHOWN} more" if len(wrong) > _SHOWN else ""
        raise PiecesError(
            f"Of the {len(told['pieces'])} pieces of {told['name']} in {folder}, "
            f"{'; '.join(wrong[:_SHOWN])}{more}: take these over again."
        )
    output.mkdir(parents=True, exist_ok=True)
    target = output / told["name"]
    part = target.with_name(f"{target.name}.part{os.getpid()}")
    digest = hashlib.sha256()
    if target.exists():
        if _hash(target) != told["sha256"]:
            raise PiecesError(f"{target} exists already, and is another file: move it away.")
    else:
        try:
            with _new(part) as joined:
                for piece in told["pieces"]:
                    for chunk in _chunks(folder / piece["name"]):
                        joined.write(chunk)
                        digest.update(chunk)
            if digest.hexdigest() != told["sha256"]:
                raise PiecesError(
                    f"The pieces of {told['name']} do not make the file that was split: split it again."
                )
            part.rename(target)
        finally:
            with contextlib.suppress(FileNotFoundError):
                part.unlink()
    print(f"{target}: {told['size']} bytes, sha256 {told['sha256']}")
    if unpack is not None:
        _unpack(target, unpack)
        print(f"unpacked; use it with PYTHONPATH={unpack}")


def _new(path: Path) -> BinaryIO:
    try:
        return path.open("xb")
    except FileExistsError:
        raise PiecesError(f"{path} exists already: give another folder, or move it away.") from None


def _list(folder: Path) -> dict[str, Any]:
    lists = sorted(folder.glob(f"*{LIST}"))
    if len(lists) != 1:
        raise PiecesError(
            f"{folder} holds {len(lists)} lists of pieces (*{LIST}) instead of one: take that over, too."
        )
    try:
        told = json.loads(lists[0].read_bytes())
        names = [told["name"], *(piece["name"] for piece in told["pieces"])]
        right = all(isinstance(name, str) and name and Path(name).name == name for name in names)
        right = right and all(isinstance(piece["sha256"], str) for piece in (told, *told["pieces"]))
        right = right and sum(int(piece["size"]) for piece in told["pieces"]) == told["size"]
    except (ValueError, TypeError, KeyError):
        right = False
    if not right:
        raise PiecesError(f"{lists[0]} is damaged: take it over again.")
    return told


def _problem(folder: Path, piece: dict[str, Any]) -> str:
    path = folder / piece["name"]
    if not path.is_file():
        return f"{piece['name']} is missing"
    if path.stat().st_size != piece["size"]:
        return f"{piece['name']} has {path.stat().st_size} bytes instead of {piece['size']}"
    return "" if _hash(path) == piece["sha256"] else f"{piece['name']} is damaged"


def _chunks(path: Path) -> Any:
    with path.open("rb") as file:
        while chunk := file.read(_CHUNK):
            yield chunk


def _hash(path: Path) -> str:
    digest = hashlib.sha256()
    for chunk in _chunks(path):
        digest.update(chunk)
    return digest.hexdigest()


def _unpack(wheel: Path, folder: Path) -> None:
    if folder.exists():
        raise PiecesError(f"{folder} exists already: give a new folder to unpack into.")
    try:
        with zipfile.ZipFile(wheel) as archive:
            for name in archive.namelist():
                if name.startswith("/") or ".." in Path(name).parts:
                    raise PiecesError(f"{wheel} has a file outside its folder ({name}): it is not unpacked.")
            archive.extractall(folder)
    except zipfile.BadZipFile:
        raise PiecesError(f"{wheel} is no wheel, and cannot be unpacked.") from None


if __name__ == "__main__":
    sys.exit(main())
