"""The JSON files of language models' folders: read strictly where they are used, else left alone."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from launcher.common.documents import quote, read_document
from launcher.errors import ConfigError
from launcher.generation.generate import Manner
from launcher.generation.names import STANDARD, Names
from launcher.generation.options import GENERATE
from sharding.common.text import shortened
from sharding.slices.state_names import partners

GENAI, CONFIG, GENERATION = "genai_config.json", "config.json", "generation_config.json"
TOKENIZER, TOKENIZER_CONFIG = "tokenizer.json", "tokenizer_config.json"
_OPTIONS = {
    "temperature": "temperature", "top_k": "top_k", "top_p": "top_p", "min_p": "min_p",
    "repetition_penalty": "repetition_penalty", "no_repeat_ngram_size": "no_repeat_ngram",
    "num_beams": "beams", "length_penalty": "length_penalty", "max_new_tokens": "max_new_tokens",
    "min_new_tokens": "min_new_tokens", "suppress_tokens": "suppressed",
    "begin_suppress_tokens": "suppressed_first", "forced_bos_token_id": "forced_first",
    "forced_eos_token_id": "forced_last",
}  # fmt: skip
"""Key of a file -> the option it is the default of."""
_LENGTHS = ("max_length", "min_length")


def is_there(path: Path) -> bool:
    """Whether a model's folder has this file. Raises `ConfigError` where it has something else of that name:
    without the file, a model would be run in another manner."""
    try:
        path.lstat()
        if path.is_file():
            return True
        why = "expected a file, found a " + ("folder, pipe or device" if path.exists() else "broken link")
    except (FileNotFoundError, NotADirectoryError):
        return False
    except OSError as error:  # such as a name that is too long, or a folder that may not be looked into
        why = f"this configuration cannot be read: {error.strerror}"
    raise ConfigError(f"{shortened(str(path), 200)}: {why}") from None


def read_json(path: Path) -> dict[str, object]:
    """The mapping in a JSON file; nothing where there is no such file."""
    if not is_there(path):
        return {}
    data, _ = read_document(path, "configuration")
    return check_table(data, path, "")


def check_table(value: object, where: Path, key: str) -> dict[str, object]:
    """Raises `ConfigError` for what is no mapping."""
    if not isinstance(value, dict):
        raise ConfigError(f"{where}: {key or 'the file'}: expected a mapping, found {quote(value)}")
    return value


def text_part(config: Mapping[str, object]) -> Mapping[str, object]:
    """What a configuration says of its language model, which may be one part of several."""
    for key in ("text_config", "decoder"):
        part = config.get(key)
        if isinstance(part, dict) and "vocab_size" in part:
            return {**config, **part}
    return config


def ids_of(value: object, where: Path, key: str) -> tuple[int, ...]:
    """Token ids from one number, a list of them, or null."""
    ids = [] if value is None else value if isinstance(value, list) else [value]
    found: list[int] = []
    for item in ids:
        if not isinstance(item, int) or isinstance(item, bool) or not -1 <= item < 2**31:
            raise ConfigError(f"{where}: {key}: expected a token id or a list of them, found {quote(value)}")
        if item >= 0:
            found.append(item)
    return tuple(found)


def defaults_of(said: Mapping[str, object], where: Path) -> dict[str, object]:
    """The options that a file gives defaults of, and ``do_sample``, ``max_length`` and ``min_length``."""
    found: dict[str, object] = {}
    for key, name in _OPTIONS.items():
        value = said.get(key)
        if value is None:
            continue
        if GENERATE[name].kind.repeated:
            value = ids_of(value, where, key)
        if not GENERATE[name].kind.fits(value):
            raise ConfigError(
                f"{where}: {key}: expected {GENERATE[name].kind.expected}, found {quote(value)}"
            )
        found[name] = value
    for key in _LENGTHS:
        value = said.get(key)
        if value is None:
            continue
        if not isinstance(value, int) or isinstance(value, bool) or value < 0:
            raise ConfigError(f"{where}: {key}: expected a whole number from 0 up, found {quote(value)}")
        found[key] = value
    early = said.get("early_stopping")
    if early is not None:
        if early not in (True, False, "never"):
            raise ConfigError(
                f'{where}: early_stopping: expected true, false or "never", found {quote(early)}'
            )
        found["early_stopping"] = str(early).lower()
    found["do_sample"] = said.get("do_sample") is True
    return found


class GenAI:
    """A ``genai_config.json``."""

    def __init__(self, path: Path) -> None:
        self.path = path
        whole = read_json(path)
        self._model = check_table(whole.get("model"), path, "model")
        self._decoder = check_table(self._model.get("decoder"), path, "model.decoder")
        for part in ("embedding", "vision", "speech"):
            if self._model.get(part):
                raise ConfigError(
                    f"{path}: the model reads more than tokens (it has a part {part!r}): only models of "
                    "text, or with one encoder, can be run"
                )
        if self._decoder.get("pipeline"):
            raise ConfigError(f"{path}: the decoder is a pipeline of several models: only one can be run")
        encoder = self._model.get("encoder")
        self._encoder = None if not encoder else check_table(encoder, path, "model.encoder")
        self.decoder = self._file(self._decoder, "model.decoder") or "model.onnx"
        self.encoder = None if self._encoder is None else self._file(self._encoder, "model.encoder")
        self.names = self._names(self._decoder)
        self.encoder_names = Names() if self._encoder is None else self._names(self._encoder)
        self.vocabulary = self._whole(self._model, "vocab_size")
        self.context = self._whole(self._model, "context_length")
        search = check_table(whole.get("search") or {}, path, "search")
        defaults = defaults_of(search, path)
        if defaults.get("max_length") == self.context:
            defaults.pop("max_length", None)  # says nothing of how long a text should be
        self.manner = Manner(
            ends=ids_of(self._model.get("eos_token_id"), path, "model.eos_token_id"),
            start=ids_of(self._model.get("decoder_start_token_id"), path, "model.decoder_start_token_id"),
            defaults=defaults,
        )

    def _file(self, part: Mapping[str, object], key: str) -> str | None:
        name = part.get("filename")
        if name is None:
            return None
        if not isinstance(name, str) or not name or "\0" in name or Path(name).is_absolute() or ".." in name:
            raise ConfigError(
                f"{self.path}: {key}.filename: expected the name of a file in this folder, "
                f"found {quote(name)}"
            )
        return name

    def _whole(self, part: Mapping[str, object], key: str) -> int | None:
        value = part.get(key)
        if value is not None and (
            not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31
        ):
            raise ConfigError(f"{self.path}: {key}: expected a whole number above 0, found {quote(value)}")
        return value

    def _names(self, part: Mapping[str, object]) -> Names:
        inputs = self._texts(part, "inputs")
        outputs = self._texts(part, "outputs")
        tensors = {key: name for key, name in {**outputs, **inputs}.items() if key in STANDARD}
        pairs = dict(partners(inputs, outputs))
        heads, size = self._whole(part, "num_key_value_heads"), self._whole(part, "head_size")
        return Names(tensors, pairs, heads, size)

    def _texts(self, part: Mapping[str, object], key: str) -> dict[str, str]:
        table = check_table(part.get(key) or {}, self.path, key)
        found: dict[str, str] = {}
        for name, value in table.items():
            if not isinstance(value, str):
                raise ConfigError(f"{self.path}: {key}.{name}: expected a name, found {quote(value)}")
            found[name] = value
        return found
