"""`Converter`: models of other kinds as files that `Model.build_from_file` loads.

What is written is ONNX, whatever its name ends with: files are recognised by content.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from ranks.common.notice import warn_user
from ranks.errors import ModelError, ShardrunError
from ranks.lite.options.check import check_isinstance
from ranks.lite.options.content import exists
from ranks.lite.options.conversion_options import ConverterOptions, check_config_info, key_of
from ranks.lite.options.errors import runtime_error
from ranks.lite.options.types import DataType, FmkType, ModelType
from sharding.importers.padded_pooling import keep_zeros
from sharding.slices.cut_short import WHOLE_FILES

if TYPE_CHECKING:
    import onnx

    from sharding.common.encryption import Key
    from sharding.importers.write import Weight

_SUFFIX = ".mindir"
_DONE = "CONVERT RESULT SUCCESS:0"
_ELSEWHERE: dict[FmkType, str] = {
    FmkType.TF: "TensorFlow", FmkType.CAFFE: "Caffe", FmkType.TFLITE: "TensorFlow Lite",
}  # fmt: skip


@dataclass
class _Read:
    """A model that was read; ``weights`` lie in memory, all others in files."""

    model: onnx.ModelProto
    weights: Mapping[str, Weight] = field(default_factory=dict)


class Converter(ConverterOptions):
    """Converts models; its attributes are options, as in mindspore_lite."""

    def convert(
        self,
        fmk_type: FmkType,
        model_file: str,
        output_file: str,
        weight_file: str = "",
        config_file: str = "",
    ) -> None:
        """Writes ``output_file`` with ``.mindir`` appended, which `Model.build_from_file` loads.

        ONNX and MindIR files are read by their content, whichever of the two is named; of PyTorch, programs
        of torch.export. Raises `TypeError` for arguments of another type, and a `RuntimeError` (that is a
        `ShardrunError` too) where a file is missing or the model cannot be converted or written.
        """
        check_isinstance("fmk_type", fmk_type, FmkType)
        given = {"model_file": model_file, "output_file": output_file}
        given |= {"weight_file": weight_file, "config_file": config_file}
        for name, value in given.items():
            check_isinstance(name, value, str)
        for name in ("model_file", "weight_file", "config_file"):
            if (given[name] or name == "model_file") and not exists(given[name]):
                text = f"Perform convert method failed, {name} does not exist!"
                raise runtime_error(f"{text} There is no {given[name]!r}.", ModelError)
        self._warn(weight_file, config_file)
        output = Path(output_file + _SUFFIX)
        try:
            self._refuse(fmk_type)
            with WHOLE_FILES:
                _write(self._read(fmk_type, Path(model_file)), Path(model_file), output, self)
            if self.infer:
                _try(output)
        except ShardrunError as error:
            text = f"Converter model failed! model_file is {model_file}, error is {error}"
            raise runtime_error(text, type(error)) from None
        print(_DONE)

    def get_config_info(self) -> dict[str, dict[str, str]]:
        """The sections that `set_config_info` has set."""
        return {section: dict(entries) for section, entries in self._config.items()}

    def set_config_info(self, section: str = "", config_info: dict[str, str] | None = None) -> None:
        """Sets a section of the configuration; it has no effect on what is written."""
        check_isinstance("section", section, str)
        if config_info is not None:
            check_config_info(config_info)
            if section:
                self._config[section] = dict(config_info)

    def _refuse(self, kind: FmkType) -> None:
        """Raises `ModelError` for what cannot be done here."""
        if kind in _ELSEWHERE:
            raise ModelError(
                f"{_ELSEWHERE[kind]} models are not converted: export the model as ONNX with its own tools."
            )
        if self.save_type is ModelType.MINDIR_LITE:
            raise ModelError(
                "no .ms files of MindSpore Lite are written: leave save_type at ModelType.MINDIR, which "
                "Model and ModelParallelRunner load."
            )
        if self.enable_encryption:
            raise ModelError(
                "models are not encrypted when they are written: leave enable_encryption False, and keep the "
                "file where only its users can read it."
            )

    def _warn(self, weight_file: str, config_file: str) -> None:
        """Names what was asked for and has no effect."""
        for name, value in (
            ("input_data_type", self.input_data_type),
            ("output_data_type", self.output_data_type),
        ):
            if value not in {DataType.FLOAT32, DataType.UNKNOWN}:
                warn_user(f"{name} {value.name} has no effect: element types stay as they are in the model.")
        if self._config or config_file:
            what = f"{config_file}" if config_file else ", ".join(self._config)
            warn_user(
                f"The configuration ({what}) has no effect: nothing is quantized, and no pass is chosen."
            )
        if weight_file:
            warn_user(
                f"weight_file {weight_file} has no effect: it is for Caffe models, which have two files."
            )

    def _read(self, kind: FmkType, path: Path) -> _Read:
        from sharding.importers import OPSETS, format_of, import_model
        from sharding.importers.checkpoints import kind_of

        if not path.is_file():
            raise ModelError(f"{path} is a folder: give a model's file.")
        key: Key | None = key_of(self)
        if kind is FmkType.PYTORCH:
            if kind_of(path) != "program":
                raise ModelError(
                    f"{path} is no exported program: save the network with torch.export.save(torch.export."
                    "export(network, inputs), FILE), or convert code and weights by `shardrun convert "
                    "--network package.module:FACTORY --weights FILE model.onnx`."
                )
            from sharding.importers.networks.program import import_program

            return _Read(*import_program(path, OPSETS[0]))
        if format_of(path) == "onnx":
            from sharding.importers import onnx_file

            model = onnx_file.read(path)
            keep_zeros(model)
            return _Read(model)
        return _Read(import_model(path, key=key))


def _write(read: _Read, source: Path, output: Path, options: ConverterOptions) -> None:
    """Writes the model with the options that change it."""
    from ranks.models.model_file import resize
    from sharding.importers.write import write_onnx

    _check_output(source, output)
    if options.input_shape:
        resize(read.model, options.input_shape, source)
    weights = dict(read.weights)
    if options.weight_fp16:
        from ranks.lite.options.halved import halve

        weights = halve(read.model, source, weights)
    write_onnx(read.model, source, output, weights=weights)


def _check_output(source: Path, output: Path) -> None:
    """Raises `ModelError` where anything but a converted model would be replaced."""
    from sharding.importers.sniff import format_of

    if not output.parent.is_dir():
        raise ModelError(f"there is no folder {output.parent} to write {output.name} into: make it first.")
    if not output.exists():
        return
    if output.is_file() and output.samefile(source):
        raise ModelError(f"{output} is the model itself: choose another output_file.")
    if not output.is_file() or (output.stat().st_size and format_of(output) != "onnx"):
        raise ModelError(
            f"{output} is there already, and it is nothing that a conversion wrote: choose another "
            "output_file, or remove it."
        )


def _try(output: Path) -> None:
    """One inference with zeros; open lengths are 1."""
    from ranks.lite.model import Model
    from ranks.lite.tensor import Tensor

    model = Model()
    model.build_from_file(str(output), ModelType.MINDIR)
    inputs = model.get_inputs()
    shapes = [[max(length, 1) for length in item.shape] for item in inputs]
    model.resize(inputs, shapes)
    model.predict([Tensor(shape=shape, dtype=item.dtype) for shape, item in zip(shapes, inputs, strict=True)])
