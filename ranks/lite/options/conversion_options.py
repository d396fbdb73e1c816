"""The options of `Converter`: attributes that are checked when they are set, in mindspore_lite's words."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING

from ranks.errors import ModelError
from ranks.lite.options.check import Checked, check_isinstance, choice, of, sized
from ranks.lite.options.types import DataType, Format, ModelType
from sharding.common.encryption import MODES

if TYPE_CHECKING:
    from sharding.common.encryption import Key

_DATA_TYPES = (DataType.FLOAT32, DataType.INT8, DataType.UINT8, DataType.UNKNOWN)
_SHOWN = (
    "weight_fp16", "input_shape", "input_format", "input_data_type", "output_data_type", "save_type",
    "decrypt_key", "decrypt_mode", "enable_encryption", "encrypt_key", "infer", "optimize", "device",
)  # fmt: skip


def check_config_info(value: object) -> None:
    """Raises `TypeError` for anything but a dictionary of texts."""
    check_isinstance("config_info", value, dict)
    assert isinstance(value, dict)
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"config_info key must be str, but got {type(key)} at key {key}.")
        if not isinstance(item, str):
            raise TypeError(f"config_info val must be str, but got {type(item)} at key {key}.")


def _input_shape(name: str, value: object) -> dict[str, list[int]]:
    """Lengths by name, true and false as numbers."""
    check_isinstance(name, value, dict)
    assert isinstance(value, dict)
    for key, item in value.items():
        if not isinstance(key, str):
            raise TypeError(f"{name} key must be str, but got {type(value)}.")
        if not isinstance(item, list):
            raise TypeError(f"{name} value must be list, but got {type(item)} at key {key}.")
        for index, element in enumerate(item):
            if not isinstance(element, int):
                raise TypeError(
                    f"{name} value's element must be int, but got {type(element)} at index {index}."
                )
    return {
        key: sized(f"{name} value's", [int(length) for length in lengths], 64)
        for key, lengths in value.items()
    }


def _format(name: str, value: object) -> Format:
    found = of(Format)(name, value)
    if found not in {Format.NCHW, Format.NHWC}:
        raise ValueError("input_format must be in [Format.NCHW, Format.NHWC].")
    return found


def _data_type(name: str, value: object) -> DataType:
    found = of(DataType)(name, value)
    if found not in _DATA_TYPES:
        listed = ", ".join(f"DataType.{item.name}" for item in _DATA_TYPES)
        raise ValueError(f"{name} must be in [{listed}].")
    return found


def _optimize(name: str, value: object) -> str:
    found = of(str)(name, value)
    if found not in {"none", "general", "ascend_oriented"}:
        raise ValueError("optimize must be 'none', 'general' or 'ascend_oriented'.")
    return found


class ConverterOptions:
    """What a conversion is asked for.

    ``input_format``, ``optimize`` and ``device`` change nothing: inputs stay in the model's own order, and
    a model is optimised for its device when it is loaded.
    """

    decrypt_key = Checked(of(str), "")
    decrypt_mode = Checked(partial(choice, choices=MODES), MODES[0])
    device = Checked(partial(choice, choices=("Ascend",)), "")
    enable_encryption = Checked(of(bool), False)
    encrypt_key = Checked(of(str), "")
    infer = Checked(of(bool), False)
    input_data_type = Checked(_data_type, DataType.FLOAT32)
    input_format = Checked(_format, Format.NHWC)
    input_shape = Checked[dict[str, list[int]]](_input_shape, {})
    optimize = Checked(_optimize, "general")
    output_data_type = Checked(_data_type, DataType.FLOAT32)
    save_type = Checked(of(ModelType), ModelType.MINDIR)
    weight_fp16 = Checked(of(bool), False)

    def __init__(self) -> None:
        self._config: dict[str, dict[str, str]] = {}

    def __setattr__(self, name: str, value: object) -> None:
        super().__setattr__(name, value)
        if name == "optimize" and value == "ascend_oriented":
            self.device = "Ascend"

    def __str__(self) -> str:
        shown = {"config_info": self._config, **{name: getattr(self, name) for name in _SHOWN}}
        return ",\n".join(f"{name}: {value}" for name, value in shown.items()) + "."


def key_of(options: ConverterOptions) -> Key | None:
    """The key of an encrypted MindIR file. Raises `ModelError` where it is no hexadecimal number."""
    from sharding.common.encryption import Key

    if not options.decrypt_key:
        return None
    try:
        secret = bytes.fromhex(options.decrypt_key)
    except ValueError:
        raise ModelError(
            "decrypt_key must be the key's bytes in hexadecimal digits, two for each byte, and is not."
        ) from None
    return Key(secret, options.decrypt_mode)
