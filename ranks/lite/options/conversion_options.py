"""The options of `Converter`: attributes that are checked when they are set, in mindspore_lite's words."""

from __future__ import annotations

import copy
import functools
from typing import TYPE_CHECKING, Any, cast

from ranks.errors import ModelError
from ranks.lite.options.check import check_choice, check_isinstance
from ranks.lite.options.types import DataType, Format, ModelType
from sharding.common.encryption import MODES

if TYPE_CHECKING:
    from collections.abc import Callable

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


def _check_input_shape(name: str, value: object) -> None:
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


def _lengths(shapes: dict[str, list[int]]) -> dict[str, list[int]]:
    """The same, true and false as numbers."""
    return {name: [int(length) for length in lengths] for name, lengths in shapes.items()}


def _check_format(name: str, value: object) -> None:
    check_isinstance(name, value, Format)
    if value not in {Format.NCHW, Format.NHWC}:
        raise ValueError("input_format must be in [Format.NCHW, Format.NHWC].")


def _check_data_type(name: str, value: object) -> None:
    check_isinstance(name, value, DataType)
    if value not in _DATA_TYPES:
        listed = ", ".join(f"DataType.{item.name}" for item in _DATA_TYPES)
        raise ValueError(f"{name} must be in [{listed}].")


def _check_device(name: str, value: object) -> None:
    check_isinstance(name, value, str)
    if value != "Ascend":
        raise ValueError(f"{name} must be in [Ascend], but got {value}.")


def _check_optimize(name: str, value: object) -> None:
    check_isinstance(name, value, str)
    if value not in {"none", "general", "ascend_oriented"}:
        raise ValueError("optimize must be 'none', 'general' or 'ascend_oriented'.")


class _Option:
    """An attribute with a default, and a kind or a check for what is set."""

    def __init__(self, default: object, check: type | Callable[[str, object], object]) -> None:
        self.default = default
        self.check = check

    def __set_name__(self, owner: type, name: str) -> None:
        self.name = name

    def __get__(self, instance: Any, owner: type) -> Any:
        if instance is None:
            return self
        return copy.deepcopy(instance._options.get(self.name, self.default))

    def __set__(self, instance: Any, value: object) -> None:
        if isinstance(self.check, type):
            check_isinstance(self.name, value, self.check)
        else:
            self.check(self.name, value)
        instance._options[self.name] = (
            value if self.name != "input_shape" else _lengths(cast("dict[str, list[int]]", value))
        )


class ConverterOptions:
    """What a conversion is asked for.

    ``input_format``, ``optimize`` and ``device`` change nothing: inputs stay in the model's own order, and
    a model is optimised for its device when it is loaded.
    """

    decrypt_key = _Option("", str)
    decrypt_mode = _Option(MODES[0], functools.partial(check_choice, choices=MODES))
    device = _Option("", _check_device)
    enable_encryption = _Option(False, bool)
    encrypt_key = _Option("", str)
    infer = _Option(False, bool)
    input_data_type = _Option(DataType.FLOAT32, _check_data_type)
    input_format = _Option(Format.NHWC, _check_format)
    input_shape = _Option({}, _check_input_shape)
    optimize = _Option("general", _check_optimize)
    output_data_type = _Option(DataType.FLOAT32, _check_data_type)
    save_type = _Option(ModelType.MINDIR, ModelType)
    weight_fp16 = _Option(False, bool)

    def __init__(self) -> None:
        self._options: dict[str, object] = {}
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
