"""Input arrays of a model: from files, or ones or random numbers where no file is given; output files.

Files: ``.npz`` (arrays by input name), ``.npy`` (one array), ``.bin`` or any other ending (raw little-endian
elements in C order, reshaped to the input). Nothing is ever unpickled.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from pathlib import Path
from typing import IO, BinaryIO, Protocol, TypeVar

import numpy as np

from launcher.common.element_types import numpy_dtype
from launcher.common.files import write_file
from launcher.errors import ConfigError, ShardrunError
from launcher.inspection.signature import check_dims, fed_weight
from ranks.common.tensors import as_text, is_extended, is_text
from sharding.common.arrays import Array, DType
from sharding.common.nearby import reason, shown
from sharding.common.text import did_you_mean
from sharding.onnx_files.placeholders import placeholder

Read = TypeVar("Read")


class Spec(Protocol):
    """What is asked of an input: the entries of a manifest, or a rank model's tensors."""

    @property
    def name(self) -> str: ...
    @property
    def dtype(self) -> object: ...
    @property
    def shape(self) -> Sequence[int | str | None]: ...
    @property
    def open_rank(self) -> bool: ...


def make_inputs(
    specs: Sequence[Spec],
    sources: Iterable[str] = (),
    *,
    dims: Mapping[str, int] | None = None,
    seed: int | None = None,
    optional: Sequence[Spec] = (),
    weights: Collection[str] = (),
) -> tuple[dict[str, Array], list[str]]:
    """The array of every input, and the names of those which no source gave.

    ``sources``: ``FILE.npz``, ``NAME=FILE``, or ``FILE`` for a model of one input. Inputs without a source
    are ones or, with a seed, random: standard normal for floats, 0 or 1 for integers. A symbolic dimension
    has the length in ``dims``, else that of the arrays which were given, else 1. Inputs in ``optional`` have
    a default in the model: there is an array only of those that a source gives. ``weights``: names that are
    refused with what to do instead. Raises `ConfigError`.
    """
    asked = dict(dims or {})
    known = dict(asked)
    by_name = {spec.name: spec for spec in (*specs, *optional)}
    arrays: dict[str, Array] = {}
    for spec, path, member in _placed(specs, optional, sources, known, weights):
        array = (
            _read_raw(spec, path, known)
            if _is_raw(path)
            else _read_numpy(spec, path, member, asked, _read_array)
        )
        arrays[spec.name] = array
        _learn(spec, array.shape, known)
    random = np.random.default_rng(seed) if seed is not None else None
    made = [spec.name for spec in specs if spec.name not in arrays]
    for name in made:
        arrays[name] = _make(by_name[name], known, random)
    return {name: arrays[name] for name in by_name if name in arrays}, made


def check_inputs(
    specs: Sequence[Spec],
    sources: Iterable[str] = (),
    *,
    dims: Mapping[str, int] | None = None,
    optional: Sequence[Spec] = (),
    weights: Collection[str] = (),
) -> None:
    """Raises what `make_inputs` would, as far as that is known without reading the arrays: quick."""
    asked = dict(dims or {})
    known = dict(asked)
    given = set()
    for spec, path, member in _placed(specs, optional, sources, known, weights):
        if _is_raw(path):
            shape = _raw_layout(spec, path, known)[0]
        else:
            shape = list(_read_numpy(spec, path, member, asked, _read_header))
        _learn(spec, shape, known)
        given.add(spec.name)
    for spec in specs:
        text = numpy_dtype(spec.dtype, f"input {spec.name!r}").hasobject
        if spec.name not in given and (text or not spec.open_rank):
            _make(spec, known, None, np.empty)  # no page of it is touched


def _placed(
    specs: Sequence[Spec],
    optional: Sequence[Spec],
    sources: Iterable[str],
    known: Mapping[str, int],
    weights: Collection[str],
) -> list[tuple[Spec, Path, str | None]]:
    """The inputs that a source gives, with its file and the member of it; raw files come last, for the shapes
    of the others say what symbolic dimensions are."""
    everything = [*specs, *optional]
    check_dims(known, sorted({dim for spec in everything for dim in spec.shape if isinstance(dim, str)}))
    by_name = {spec.name: spec for spec in everything}
    files = _assign(by_name, list(sources), [spec.name for spec in specs], weights)
    ordered = sorted(files.items(), key=lambda item: _is_raw(item[1][0]))
    return [(by_name[name], path, member) for name, (path, member) in ordered]


def _learn(spec: Spec, shape: Sequence[int], known: dict[str, int]) -> None:
    """Takes the lengths of symbolic dimensions from a given array."""
    for dim, length in zip(spec.shape, shape, strict=not spec.open_rank):
        if isinstance(dim, str):
            known.setdefault(dim, length)


def save_outputs(path: str | Path, outputs: Mapping[str, Array], mark: bytes = b"") -> None:
    """Writes arrays by name into an ``.npz`` file, whole or not at all; numpy reads it without pickle.

    ``mark``: an extra field of a ZIP file, which the first array gets; who reads arrays passes it over.
    Types that ``.npy`` cannot name (bfloat16, 8-bit floats) are written as float32, which holds them exactly.
    """
    import zipfile

    def write(file: BinaryIO) -> None:
        with zipfile.ZipFile(file, "w", zipfile.ZIP_STORED) as archive:
            for place, (name, array) in enumerate(outputs.items()):
                plain = _storable(array)
                info = zipfile.ZipInfo(f"{name}.npy")
                info.extra = b"" if place else mark
                with archive.open(info, "w", force_zip64=True) as member:
                    np.lib.format.write_array(member, np.asarray(plain), allow_pickle=False)

    write_file(path, write, "outputs")


def _storable(array: Array) -> Array:
    if array.dtype.hasobject:
        return array.astype(str)
    return array.astype(np.float32) if is_extended(array.dtype) else array


def _assign(
    by_name: Mapping[str, Spec], sources: list[str], required: Sequence[str], weights: Collection[str]
) -> dict[str, tuple[Path, str | None]]:
    """For each input that has one: its file and, in an ``.npz``, the member's name."""
    files: dict[str, tuple[Path, str | None]] = {}
    names = ", ".join(by_name)
    for source in sources:
        name, equals, file = source.partition("=")
        if not file and (equals or not source):
            raise ConfigError(f"--input {source!r}: expected NAME=FILE or FILE.npz, found no file in it")
        if equals and (name in by_name or not Path(source).exists()):
            if name not in by_name:
                raise _no_input(source, name, by_name, weights)
            found: list[tuple[str, Path, str | None]] = [(name, Path(file), None)]
            if Path(file).suffix.lower() == ".npz":
                raise ConfigError(
                    f"--input {source}: an .npz file names its arrays; give it as --input {file}"
                )
        elif Path(source).suffix.lower() == ".npz":
            found = [(member, Path(source), member) for member in _members(Path(source))]
        elif len(required) == 1:
            found = [(required[0], Path(source), None)]
        else:
            raise ConfigError(f"--input {source}: expected NAME=FILE, for the model has the inputs {names}")
        for name, path, member in found:
            if name not in by_name:
                raise _no_input(source, name, by_name, weights)
            if name in files:
                raise ConfigError(
                    f"--input {source}: the input {name!r} is already given by {files[name][0]}"
                )
            files[name] = (path, member)
    return files


def _no_input(source: str, name: str, known: Iterable[str], weights: Collection[str]) -> ConfigError:
    hint = fed_weight(name) if name in weights else did_you_mean(name, known)
    return ConfigError(
        f"--input {source}: the model has no input {name!r} (it has: {', '.join(known)}){hint}"
    )


def _is_raw(path: Path) -> bool:
    return path.suffix.lower() not in {".npy", ".npz"}


def _refuse_others(path: Path, what: str) -> None:
    """A named pipe that nobody writes into would be waited for without end; a file may stand for another."""
    if path.exists() and not path.is_file():
        raise ConfigError(f"{what}: {path} is a folder, a pipe or a device; expected a regular file")
    instead = placeholder(path, pages=not _is_raw(path))
    if instead is not None:
        raise ConfigError(f"{what}: {path} {instead}")


def _members(path: Path) -> list[str]:
    import zipfile

    _refuse_others(path, "--input")
    try:
        with zipfile.ZipFile(path) as archive:
            return [name.removesuffix(".npy") for name in archive.namelist()]
    except (OSError, zipfile.BadZipFile, ValueError, NotImplementedError) as problem:
        raise ConfigError(f"{shown(path)}: cannot read this .npz file: {reason(path, problem)}") from None


def _read_numpy(
    spec: Spec,
    path: Path,
    member: str | None,
    known: Mapping[str, int],
    read: Callable[[Spec, IO[bytes], int, str, Mapping[str, int]], Read],
) -> Read:
    """What `_read_array` or `_read_header` reads of an array."""
    import zipfile

    from ranks.evaluation.compressed import check_member
    from ranks.evaluation.errors import EvaluationError

    what = f"{shown(path)}: input {spec.name!r}"
    _refuse_others(path, what)
    try:
        if member is None:
            with path.open("rb") as file:
                return read(spec, file, path.stat().st_size, what, known)
        with zipfile.ZipFile(path) as archive:
            inside = f"{member}.npy" if f"{member}.npy" in archive.namelist() else member
            check_member(archive.getinfo(inside), what)
            with archive.open(inside) as file:
                return read(spec, file, archive.getinfo(inside).file_size, what, known)
    except ConfigError:
        raise
    except EvaluationError as problem:
        raise ConfigError(str(problem)) from None
    except MemoryError:
        raise ConfigError(f"{what}: the array does not fit into memory") from None
    # Damaged archives raise anything from zlib.error to NotImplementedError; they have no common base.
    except Exception as problem:
        why = " ".join(reason(path, problem).split()) or type(problem).__name__
        if "<ast." in why:  # numpy's words about what is no constant in Python
            why = "its header is damaged"
        raise ConfigError(f"{what}: cannot read the array: {why}") from None


def _read_header(
    spec: Spec, file: IO[bytes], size: int, what: str, known: Mapping[str, int]
) -> tuple[int, ...]:
    """The shape of the array in a file, if it fits the input. ``size``: bytes that there are."""
    from ranks.evaluation.compressed import check_length, check_memory
    from ranks.evaluation.npy import read_header

    shape, _, dtype = read_header(file)
    start = file.tell()
    expected = numpy_dtype(spec.dtype, what)
    native = dtype.newbyteorder("=")
    accepted = is_text(native) if expected.hasobject else native == expected
    # .npy cannot name bfloat16 and the 8-bit floats, so they come as float32.
    accepted |= is_extended(expected) and native == np.float32
    if not accepted:
        raise ConfigError(f"{what}: expected {_type_name(expected)}, found {dtype}")
    if not spec.open_rank and not _fits(spec.shape, shape, known):
        raise ConfigError(
            f"{what}: expected shape {show_shape(spec.shape, known)}, found {show_shape(shape)}"
        )
    nbytes = math.prod(shape) * dtype.itemsize
    check_length(start + nbytes, size, what)
    check_memory(nbytes, what)
    return tuple(shape)


def _read_array(spec: Spec, file: IO[bytes], size: int, what: str, known: Mapping[str, int]) -> Array:
    """Checks the header first, so that a wrong array is not read at all. ``size``: bytes that there are."""
    from ranks.evaluation.npy import MAX_HEADER

    shape, expected = _read_header(spec, file, size, what, known), numpy_dtype(spec.dtype, what)
    file.seek(0)
    array = np.lib.format.read_array(file, allow_pickle=False, max_header_size=MAX_HEADER)
    if expected.hasobject:
        try:
            return as_text(array, what)
        except ShardrunError as problem:
            raise ConfigError(str(problem)) from None
    return np.ascontiguousarray(array, expected).reshape(shape)  # ascontiguousarray makes scalars 1-D


def _fits(expected: Sequence[int | str | None], shape: Sequence[int], known: Mapping[str, int]) -> bool:
    lengths = [known.get(dim) if isinstance(dim, str) else dim for dim in expected]
    return len(lengths) == len(shape) and all(
        want is None or want == have for want, have in zip(lengths, shape, strict=True)
    )


def _type_name(dtype: DType) -> str:
    return "text" if dtype.hasobject else str(dtype)


def _raw_layout(spec: Spec, path: Path, known: Mapping[str, int]) -> tuple[list[int], int]:
    """The shape of what raw data hold, if they fit the input, and their bytes."""
    what = f"{shown(path)}: input {spec.name!r}"
    _refuse_others(path, what)
    dtype = numpy_dtype(spec.dtype, what)
    if dtype.hasobject:
        raise ConfigError(f"{what}: a text tensor cannot come from raw data; give an .npy or .npz file")
    if spec.open_rank:
        raise ConfigError(
            f"{what} may have any number of axes, which raw data does not say; give an .npy or .npz file"
        )
    lengths = [known.get(dim) if isinstance(dim, str) else dim for dim in spec.shape]
    try:
        size = path.stat().st_size
        unknown = [i for i, length in enumerate(lengths) if length is None]
        shape = show_shape(spec.shape, known)
        if len(unknown) > 1:
            symbols = ", ".join(str(spec.shape[i] or "?") for i in unknown)
            raise ConfigError(
                f"{what}: raw data leaves the dimensions {symbols} of shape {shape} open; "
                "give them with --dim NAME=SIZE"
            )
        row = math.prod(length for length in lengths if length is not None) * dtype.itemsize
        if unknown:
            if row == 0 or size % row or size == 0:
                raise ConfigError(
                    f"{what}: expected a multiple of {row} bytes ({dtype} {shape}), found {size} bytes"
                )
            lengths[unknown[0]] = size // row
        elif size != row:
            raise ConfigError(f"{what}: expected {row} bytes ({dtype} {shape}), found {size} bytes")
    except OSError as problem:
        raise ConfigError(f"{what}: cannot read: {reason(path, problem)}") from None
    return [length or 0 for length in lengths], size


def _read_raw(spec: Spec, path: Path, known: Mapping[str, int]) -> Array:
    what = f"{shown(path)}: input {spec.name!r}"
    shape, size = _raw_layout(spec, path, known)
    dtype = numpy_dtype(spec.dtype, what)
    try:
        little = dtype if is_extended(dtype) else dtype.newbyteorder("<")
        array = np.fromfile(path, np.uint8)
        if array.nbytes != size:
            raise ConfigError(f"{what}: expected {size} bytes, found {array.nbytes}: the file changed")
    except OSError as problem:
        raise ConfigError(f"{what}: cannot read: {reason(path, problem)}") from None
    except (MemoryError, ValueError) as problem:
        raise ConfigError(f"{what}: cannot read: {problem}") from None
    shaped = array.view(little).reshape(shape)
    return shaped.astype(dtype, copy=False)


def _make(
    spec: Spec,
    known: Mapping[str, int],
    random: np.random.Generator | None,
    filled: Callable[[Sequence[int], DType], Array] = np.ones,
) -> Array:
    what = f"input {spec.name!r}"
    dtype = numpy_dtype(spec.dtype, what)
    shape = [known.get(dim, 1) if isinstance(dim, str) else 1 if dim is None else dim for dim in spec.shape]
    if spec.open_rank:
        raise ConfigError(
            f"{what} may have any number of axes, so it cannot be made up; give it with --input "
            f"{spec.name}=FILE.npy"
        )
    if dtype.hasobject:
        raise ConfigError(
            f"{what} holds text, which cannot be made up; give it with --input {spec.name}=FILE.npy"
        )
    try:
        if random is None:
            return filled(shape, dtype)
        if dtype.kind in "iub":
            return random.integers(0, 2, shape).astype(dtype)
        return random.standard_normal(shape, np.float32).astype(dtype)
    except (MemoryError, ValueError):
        raise ConfigError(
            f"{what}: an array of {dtype} {show_shape(shape)} does not fit into memory"
        ) from None


def show_shape(shape: Sequence[int | str | None], known: Mapping[str, int] | None = None) -> str:
    """A shape as text: ``[batch=2, 128, ?]``."""
    known = known or {}
    parts = [
        f"{d}={known[d]}" if isinstance(d, str) and d in known else "?" if d is None else str(d)
        for d in shape
    ]
    return f"[{', '.join(parts)}]"
