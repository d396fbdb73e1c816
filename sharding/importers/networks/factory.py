"""A network from ``package.module:factory``, or from the folder of a ``transformers`` model."""

from __future__ import annotations

import contextlib
import importlib
import importlib.util
import json
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from sharding.common.nearby import hint, is_address
from sharding.common.text import one_line, shortened
from sharding.errors import ModelError, OptionError
from sharding.importers import torch_import
from sharding.importers.networks.inputs import Input, parse_input
from sharding.importers.networks.packages import need

_DOTTED = re.compile(r"[A-Za-z_]\w*(\.[A-Za-z_]\w*)*")
CONFIG = "config.json"
_MOST_CONFIG = 10 << 20
_MOST_SAID = 300


@dataclass
class Network:
    """A network that was built: a ``torch.nn.Module`` (of ``transformers`` or not), or a
    ``mindspore.nn.Cell``. ``inputs`` are those that
    are known of its kind; ``what`` says where it is from."""

    module: Any
    kind: Literal["torch", "transformers", "mindspore"]
    what: str
    inputs: list[Input]


def build(text: str) -> Network:
    """Builds a network. The module's code is run, as any import does.

    Raises `OptionError` where ``text`` names nothing, `ModelError` where what it names fails or gives no
    network.
    """
    folder = Path(text)
    if folder.is_dir():
        return _from_config(folder)
    module, colon, attribute = text.partition(":")
    if module.endswith(".py"):
        name = module.removesuffix(".py").removeprefix("./").replace("/", ".")
        raise OptionError(
            f"--network {text!r}: a module is named without .py, and with dots for folders; give "
            f"{name}:{attribute or 'FACTORY'}."
        )
    if not colon or not _DOTTED.fullmatch(module) or not _DOTTED.fullmatch(attribute):
        raise OptionError(
            f"--network {text!r}: expected package.module:factory, or a folder with the {CONFIG} of a "
            f"transformers model{hint(text) if is_address(text) else ''}."
        )
    with _search_here(), torch_import.alone():
        factory = _import(module, text)
        for name in attribute.split("."):
            if not hasattr(factory, name):
                raise OptionError(f"--network {text}: {module} has no {attribute!r}.")
            factory = getattr(factory, name)
        made = _call(factory, text)
    return Network(made, _kind(made, text), text, _own_inputs(made))


@contextlib.contextmanager
def _search_here() -> Iterator[None]:
    """Modules in the current folder are found, as ``python -m`` does."""
    here = str(Path.cwd())
    sys.path.insert(0, here)
    try:
        yield
    finally:
        with contextlib.suppress(ValueError):
            sys.path.remove(here)


def _import(module: str, text: str) -> Any:
    importlib.invalidate_caches()
    try:
        return importlib.import_module(module)
    except ModuleNotFoundError as error:
        if error.name and (module == error.name or module.startswith(f"{error.name}.")):
            raise OptionError(
                f"--network {text}: there is no module {error.name!r} in the current folder or among the "
                "installed packages."
            ) from None
        raise ModelError(f"--network {text}: {module} needs the package {error.name!r}.") from None
    # The user's own code: it may fail in any way, and even end the process.
    except (Exception, SystemExit) as error:
        raise ModelError(f"--network {text}: {module} cannot be imported: {described(error)}.") from error


def _call(factory: Any, text: str) -> Any:
    if not callable(factory) or _is_network(factory):
        return factory  # a network that the module made itself
    try:
        return factory()
    except (Exception, SystemExit) as error:
        raise ModelError(
            f"--network {text}: it could not be built without arguments: {described(error)} (write a "
            "function that builds it, and name that)."
        ) from error


def _is_network(item: Any) -> bool:
    return not isinstance(item, type) and any(
        name in {"torch.nn.modules.module.Module", "mindspore.nn.cell.Cell"} for name in _bases(item)
    )


def _bases(item: Any) -> list[str]:
    return [f"{base.__module__}.{base.__qualname__}" for base in type(item).__mro__]


def _kind(made: Any, text: str) -> Literal["torch", "mindspore"]:
    names = _bases(made)
    if "torch.nn.modules.module.Module" in names:
        return "torch"
    if "mindspore.nn.cell.Cell" in names:
        return "mindspore"
    raise ModelError(
        f"--network {text} gives {type(made).__name__}; expected a torch.nn.Module or a mindspore.nn.Cell."
    )


def _own_inputs(made: Any) -> list[Input]:
    """Inputs that the network states: ``example_inputs``, texts as ``--input`` takes them."""
    stated = getattr(made, "example_inputs", None)
    if not isinstance(stated, (list, tuple)) or not all(isinstance(item, str) for item in stated):
        return []
    return [parse_input(item) for item in stated]


def _from_config(folder: Path) -> Network:
    """The class that the folder's configuration names, by ``transformers``; code in the folder is not run."""
    config_file = folder / CONFIG
    try:
        if config_file.exists() and not config_file.is_file():
            raise ModelError(f"{config_file} is not a file; expected a configuration of transformers.")
        if config_file.stat().st_size > _MOST_CONFIG:
            raise ModelError(f"{config_file} is too large for a configuration.")
        document = json.loads(config_file.read_bytes())
    except FileNotFoundError:
        raise OptionError(f"--network {folder}: the folder has no {CONFIG}.") from None
    except (OSError, ValueError, RecursionError) as error:
        reason = getattr(error, "strerror", None) or "it is no JSON"
        raise ModelError(f"{config_file} cannot be read: {reason}.") from None
    if not isinstance(document, dict) or not isinstance(document.get("model_type"), str):
        raise ModelError(f"{config_file} is no configuration of transformers: it has no model_type.")
    transformers = need("transformers", f"{folder} is a model of transformers")
    need("torch", f"{folder} is a model of transformers")
    try:
        config = transformers.AutoConfig.from_pretrained(
            str(folder), local_files_only=True, trust_remote_code=False
        )
        config.use_cache = False
        # Plain products and a softmax: the other implementations are for training and for devices.
        config._attn_implementation = "eager"
        found = _class_of(document, transformers, config_file)
        # `AutoModel`, which finds the class itself, has only the other method.
        module = found.from_config(config) if found is transformers.AutoModel else found._from_config(config)
    except ModelError:
        raise
    except Exception as error:  # whatever a configuration may lead to
        raise ModelError(f"{config_file}: transformers cannot build the model: {described(error)}.") from None
    return Network(
        module, "transformers", f"{type(module).__name__} of {folder.resolve().name}", _usual(module)
    )


def _class_of(document: dict[str, object], transformers: Any, config_file: Path) -> Any:
    names = document.get("architectures")
    if not names:
        return transformers.AutoModel
    name = names[0] if isinstance(names, list) and isinstance(names[0], str) else ""
    found = getattr(transformers, name, None) if _DOTTED.fullmatch(name) else None
    if not (isinstance(found, type) and issubclass(found, transformers.PreTrainedModel)):
        raise ModelError(
            f"{config_file} names the architecture {shortened(one_line(name), 80)!r}, which the installed "
            "transformers does not have."
        )
    return found


def _usual(module: Any) -> list[Input]:
    """The inputs of a text or an image model."""
    config = module.config
    if module.main_input_name == "input_ids":
        shape = ("batch", "sequence")
        names = ["input_ids"]
        if "attention_mask" in _arguments(module):
            names.append("attention_mask")
        if getattr(config, "is_encoder_decoder", False):
            return []
        return [Input(name, shape, "int64") for name in names]
    if module.main_input_name == "pixel_values" and isinstance(getattr(config, "image_size", None), int):
        channels = getattr(config, "num_channels", 3)
        return [Input("pixel_values", ("batch", channels, config.image_size, config.image_size))]
    return []


def _arguments(module: Any) -> list[str]:
    import inspect

    return list(inspect.signature(module.forward).parameters)


def described(error: BaseException) -> str:
    """An error of somebody else's code in one line, of a long one the first sentences."""
    text = " ".join(str(error).split())
    text = one_line(f"{type(error).__name__}: {text}" if text else type(error).__name__)
    if len(text) > _MOST_SAID:
        sentences, end, _ = text[:_MOST_SAID].rpartition(". ")
        text = sentences if end else f"{text[:_MOST_SAID].rpartition(' ')[0] or text[:_MOST_SAID]} …"
    return text.rstrip(".")
