"""Models of other runtimes: files that nothing here reads, each named, with what to give instead."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import NoReturn

from sharding.common.encryption import Key
from sharding.errors import ModelError
from sharding.importers.format import HEAD


@dataclass(frozen=True)
class Kind:
    """One kind of file: what it is, and what to do with it."""

    suffixes: tuple[str, ...]
    name: str
    advice: str
    magic: bytes = b""
    """What its first bytes hold, from ``at`` on; empty where they say nothing and the suffix must."""
    at: int = 0

    def begins(self, head: bytes) -> bool:
        """Whether a file's first bytes say that it is of this kind."""
        return bool(self.magic) and head[self.at : self.at + len(self.magic)] == self.magic

    def fits(self, path: Path, head: bytes) -> bool:
        """Whether a file of no format that is read here is of this kind."""
        return self.begins(head) or path.suffix.lower() in self.suffixes


_EXPORT = "export the network as MindIR or ONNX instead (mindspore.export with file_format='MINDIR')"
_TF2ONNX = "make an ONNX file of it with tf2onnx"
_ORIGINAL = "give the ONNX file that it was made of"

KINDS = (
    Kind((".om",), "an Ascend offline model (.om), compiled for one kind of NPU", _EXPORT, b"IMOD"),
    Kind((".air", ".geir"), "a graph of Ascend's GE (.air, .geir), which CANN alone reads", _EXPORT),
    Kind((".ort",), "a model in ONNX Runtime's own format (.ort)", _ORIGINAL, b"ORTM", 4),
    Kind((".engine", ".plan", ".trt"), "a TensorRT engine, compiled for one kind of GPU", _ORIGINAL),
    Kind((".tflite",), "a TensorFlow Lite model (.tflite)", _TF2ONNX, b"TFL3", 4),
    Kind((".h5", ".hdf5"), "an HDF5 file, as Keras writes them", _TF2ONNX, b"\x89HDF\r\n\x1a\n"),
    Kind((".pb",), "a TensorFlow graph (.pb)", _TF2ONNX),
    Kind((".gguf",), "a model of llama.cpp (.gguf)", "give the network it was made of, as ONNX", b"GGUF"),
    Kind((".caffemodel", ".prototxt"), "a Caffe model", "make an ONNX or MindIR file of it"),
    Kind((".pdmodel", ".pdiparams"), "a PaddlePaddle model", "make an ONNX file of it with paddle2onnx"),
)


def kind_of(path: Path, head: bytes) -> Kind | None:
    """The kind of a file with these first bytes; magic numbers count before names."""
    named = [kind for kind in KINDS if kind.fits(path, head)]
    return min(named, key=lambda kind: not kind.begins(head), default=None)


def import_model(path: str | Path, *, key: Key | None = None, opset: int = 0) -> NoReturn:
    """Raises `ModelError` that says what the file is."""
    path = Path(path)
    with path.open("rb") as file:
        kind = kind_of(path, file.read(HEAD))
    assert kind is not None  # or it would not be of this format
    raise ModelError(f"{path} is {kind.name}, and is not read here: {kind.advice}.")
