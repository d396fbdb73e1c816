"""What a folder says of an encoder of texts: as the package sentence-transformers writes it, or only a
tokenizer beside a model."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from launcher.common.documents import quote, read_document
from launcher.errors import ConfigError
from launcher.generation.folder import BELOW
from launcher.generation.text.configs import CONFIG, TOKENIZER, TOKENIZER_CONFIG, check_table, read_json
from launcher.serving.embedding.dense import read_dense
from launcher.serving.embedding.pooling import POOLINGS, Vectors, normalised

MODULES, POOLING = "modules.json", "1_Pooling"
_OWN, _OF_ALL = "sentence_bert_config.json", "config_sentence_transformers.json"
_LONGEST = 1 << 20
"""Configurations say "none" by numbers beyond this one."""
_FLAGS = {
    "pooling_mode_cls_token": "cls", "pooling_mode_max_tokens": "max", "pooling_mode_mean_tokens": "mean",
    "pooling_mode_mean_sqrt_len_tokens": "mean_sqrt_len",
    "pooling_mode_weightedmean_tokens": "weightedmean", "pooling_mode_lasttoken": "lasttoken",
}  # fmt: skip
"""Key of a pooling's configuration -> the pooling."""
_BEFORE = ("Transformer", "Pooling", "Dropout")
AFTER: Mapping[str, Callable[[Path], Callable[[Vectors], Vectors]]] = {
    "Normalize": lambda place: normalised, "Dense": read_dense,
}  # fmt: skip
"""Kinds of modules: those that the graph and the pooling are, or that do nothing; and those after them."""


@dataclass(frozen=True)
class EncoderFolder:
    """How texts become tokens, and tokens' vectors those of texts."""

    path: Path
    tokenizer: Path
    modes: Sequence[str] = ("mean",)
    after: Sequence[tuple[str, Path]] = ()
    """Kind and folder of the modules after the pooling, in their order."""
    longest: int | None = None
    """Tokens of a text at most; None if nothing says it."""
    lower: bool = False
    prompt: str = ""
    """What each text begins with."""
    pad: int = 0
    told: bool = False
    """Whether the folder says of itself that its model is an encoder."""
    unknown: str = ""
    """A module that is not known here; the model has to compute all of them by itself then."""


def texts_beside(model: Path, texts: Path | None) -> Path | None:
    """The folder with the tokenizer of a model: ``texts`` if that is given, the model's own, or that around
    it; None where there is none."""
    if texts is None:
        texts = model if model.is_dir() else model.parent
        if texts.name == BELOW[1] and not (texts / TOKENIZER).is_file():
            texts = texts.parent
    return texts if (texts / TOKENIZER).is_file() else None


def read_encoder_folder(path: Path) -> EncoderFolder:
    """What a folder with a tokenizer says. Raises `ConfigError`."""
    modules = _modules(path)
    kinds = [kind for kind, _ in modules]
    pooling = next((place for kind, place in modules if kind == "Pooling"), path / POOLING)
    said, config, of_tokens = (read_json(path / name) for name in (_OWN, CONFIG, TOKENIZER_CONFIG))
    lengths = [
        _whole(said.get("max_seq_length"), path / _OWN, "max_seq_length"),
        _whole(of_tokens.get("model_max_length"), path / TOKENIZER_CONFIG, "model_max_length"),
        _whole(config.get("max_position_embeddings"), path / CONFIG, "max_position_embeddings"),
    ]
    pad = config.get("pad_token_id")
    modes, whole = _pooling(pooling)
    prompt = _prompt(path)
    unknown = next((kind for kind in kinds if kind not in {*_BEFORE, *AFTER}), "") or _early(kinds)
    return EncoderFolder(
        path,
        path / TOKENIZER,
        modes,
        [module for module in modules if module[0] in AFTER],
        min((length for length in lengths if length is not None and length < _LONGEST), default=None),
        said.get("do_lower_case") is True,
        prompt,
        pad if isinstance(pad, int) and not isinstance(pad, bool) and pad >= 0 else 0,
        told=bool(modules) or pooling.is_dir(),
        unknown=unknown or ("" if whole or not prompt else "Pooling without the prompt"),
    )


def _early(kinds: Sequence[str]) -> str:
    """A module that changes tokens' vectors before they are pooled, such as a layer; "" where there is
    none."""
    before = kinds[: kinds.index("Pooling")] if "Pooling" in kinds else ()
    return next((f"{kind} before Pooling" for kind in before if kind in AFTER), "")


def _modules(path: Path) -> list[tuple[str, Path]]:
    """Kind and folder of each module, in their order."""
    file = path / MODULES
    if not file.exists():
        return []
    data, _ = read_document(file, "list of modules")
    found = []
    for item in data if isinstance(data, list) else [data]:
        table = check_table(item, file, "a module")
        kind, place = table.get("type"), table.get("path", "")
        if not isinstance(kind, str) or not isinstance(place, str) or not _is_inside(place):
            raise ConfigError(
                f"{file}: expected modules with a type and a folder in this one, found {quote(item)}"
            )
        found.append((kind.rpartition(".")[2], path / place))
    return found


def _is_inside(place: str) -> bool:
    return "\0" not in place and not Path(place).is_absolute() and ".." not in Path(place).parts


def _pooling(folder: Path) -> tuple[Sequence[str], bool]:
    """The poolings of a module, and whether a prompt is a part of what they pool."""
    file = folder / CONFIG
    said = read_json(file)
    named = said.get("pooling_mode")
    modes = [named] if isinstance(named, str) else named
    if modes is None:
        modes = [mode for key, mode in _FLAGS.items() if said.get(key) is True]
    if not isinstance(modes, list) or not all(isinstance(mode, str) and mode in POOLINGS for mode in modes):
        raise ConfigError(
            f"{file}: pooling_mode: expected some of {', '.join(POOLINGS)}, found {quote(named)}"
        )
    if said and not modes:
        raise ConfigError(f"{file}: expected a pooling, such as pooling_mode_mean_tokens, found none")
    return sorted(modes, key=list(POOLINGS).index) or ["mean"], said.get("include_prompt") is not False


def _prompt(path: Path) -> str:
    """What texts begin with where nobody says anything else."""
    file = path / _OF_ALL
    said = read_json(file)
    name, prompts = said.get("default_prompt_name"), said.get("prompts") or {}
    if name is None:
        return ""
    found = prompts.get(name) if isinstance(prompts, Mapping) and isinstance(name, str) else None
    if not isinstance(found, str):
        raise ConfigError(f"{file}: default_prompt_name: expected one of the prompts, found {quote(name)}")
    return found


def _whole(value: object, where: Path, key: str) -> int | None:
    if value is None:
        return None
    if isinstance(value, bool) or not isinstance(value, int | float) or not value >= 1:
        raise ConfigError(f"{where}: {key}: expected a whole number above 0, found {quote(value)}")
    return int(min(value, _LONGEST))
