"""Writes an imported model as an ONNX file; its weights stream from where they lie."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import TYPE_CHECKING, BinaryIO, Protocol

from sharding.common.storage import PAGE, why_unwritable
from sharding.errors import ModelError, OutputError
from sharding.onnx_files.external import file_of, place_of, put_place
from sharding.slices.cut_short import WHOLE_FILES
from sharding.slices.folder import Fill, replace_files

if TYPE_CHECKING:
    import onnx

INLINE_MOST = 64 << 20
"""Weights up to this many bytes in all are in the ONNX file itself, more in a file beside it."""
CHUNK = 8 << 20

Progress = Callable[[int, int], None]


class Weight(Protocol):
    """A weight that lies elsewhere than in the model's files."""

    @property
    def nbytes(self) -> int: ...
    def chunks(self) -> Iterator[bytes]: ...


@WHOLE_FILES
def write_onnx(
    model: onnx.ModelProto,
    source: Path,
    output: Path,
    progress: Progress | None = None,
    weights: Mapping[str, Weight] | None = None,
) -> list[Path]:
    """Writes a model that `importers.import_model` read from ``source``; returns the files written.

    Initializers that ``weights`` has by name (external in the message) get their bytes from there. Many
    weights go to ``output`` with ``.data`` appended to its name. A file appears whole or not at all. The
    model is changed: it then says where its weights are now. Raises `OutputError` where nothing can be
    written, `ModelError` where the source changed meanwhile.
    """
    external = [item for item in model.graph.initializer if item.data_location == item.EXTERNAL]
    held = weights or {}
    total = sum(_length(item, held) for item in external)
    data = output.with_name(output.name + ".data")
    for item in external:
        if item.name in held:
            continue
        place = file_of(source, place_of(item).location, str(source)).resolve()
        if place in {output.resolve(), data.resolve()}:
            raise OutputError(
                f"{place} holds weights of the model itself: choose another name for the result."
            )
    if output.is_dir():
        raise OutputError(f"{output} is a folder: give the name of an ONNX file.")
    if total > INLINE_MOST and data.exists() and not output.exists():
        raise OutputError(
            f"{data} is there already, and no {output.name} that it would belong to: choose another name for "
            "the result, or remove it."
        )
    files: list[tuple[Path, Fill]] = []
    try:
        output.parent.mkdir(parents=True, exist_ok=True)
        with ExitStack() as stack:
            read = _Reader(stack, source, held)
            if total > INLINE_MOST:
                files = [(data, lambda file: _write_data(file, external, read, data.name, progress))]
            else:
                for item in external:
                    item.raw_data = b"".join(read.chunks(item))
                    del item.external_data[:]
                    item.ClearField("data_location")
            # The message says where the weights are once these are written.
            replace_files([*files, (output, lambda file: _write_message(file, model))])
    except OSError as error:
        raise OutputError(f"{output} cannot be written: {why_unwritable(error)}.") from None
    return [output, *(path for path, _ in files)]


def _write_message(file: BinaryIO, model: onnx.ModelProto) -> None:
    file.write(model.SerializeToString(deterministic=True))


def _write_data(
    file: BinaryIO, external: list[onnx.TensorProto], read: _Reader, name: str, progress: Progress | None
) -> None:
    done, total = 0, sum(_length(item, read.held) for item in external)
    for item in external:
        start = -(-file.tell() // PAGE) * PAGE
        file.seek(start)
        for chunk in read.chunks(item):
            file.write(chunk)
            done += len(chunk)
            if progress is not None:
                progress(done, total)
        length = file.tell() - start
        put_place(item, name, start, length)


def _length(item: onnx.TensorProto, held: Mapping[str, Weight]) -> int:
    return held[item.name].nbytes if item.name in held else place_of(item).length or 0


class _Reader:
    """The bytes of weights, from files that stay open while the stack is."""

    def __init__(self, stack: ExitStack, source: Path, held: Mapping[str, Weight]) -> None:
        self._stack = stack
        self._source = source
        self.held = held
        self._files: dict[str, BinaryIO] = {}

    def chunks(self, item: onnx.TensorProto) -> Iterator[bytes]:
        """A weight's bytes in pieces. Raises `ModelError` where the file is shorter than it was."""
        if item.name in self.held:
            yield from self.held[item.name].chunks()
            return
        location, offset, told = place_of(item)
        file = self._files.get(location)
        if file is None:
            path = file_of(self._source, location, str(self._source))
            file = self._files[location] = self._stack.enter_context(path.open("rb"))
        file.seek(offset)
        length = told or 0
        while length:
            chunk = file.read(min(CHUNK, length))
            if not chunk:
                raise ModelError(f"{file.name} changed while it was read.")
            length -= len(chunk)
            yield chunk
