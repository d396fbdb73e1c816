"""What a folder with a language model says: which file is what, names, lengths, ends, and search defaults.

Folders of ONNX Runtime GenAI (``genai_config.json``), and of transformers and optimum (``config.json``,
``generation_config.json``), and a plain model file beside which such files may lie.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TypedDict

from launcher.common.documents import quote
from launcher.errors import ConfigError
from launcher.generation.generate import Manner
from launcher.generation.names import Names
from launcher.generation.text.configs import (
    CONFIG,
    GENAI,
    GENERATION,
    TOKENIZER,
    TOKENIZER_CONFIG,
    GenAI,
    defaults_of,
    ids_of,
    is_there,
    read_json,
    text_part,
)
from sharding.common.nearby import hint, shown
from sharding.slices.manifest import FILE_NAME as MANIFEST

MERGED, FIRST, LATER = "decoder_model_merged.onnx", "decoder_model.onnx", "decoder_with_past_model.onnx"
ENCODER = "encoder_model.onnx"
BELOW = ("", "onnx")
"""Folders in which the models of a folder may lie."""
_LIMITED = ("max_position_embeddings", "n_positions", "n_ctx", "max_sequence_length", "max_target_positions")
_RELATIVE = {"t5", "mt5", "umt5", "longt5", "bloom", "mpt"}
"""Types of models whose positions have no end, though their configuration has a number."""


@dataclass(frozen=True)
class ModelFolder:
    """Where a language model's parts lie, and what is said of it."""

    path: Path
    decoder: Path
    later: Path | None = None
    """The graph of all steps but the first, where there are two."""
    encoder: Path | None = None
    names: Names = field(default_factory=Names)
    encoder_names: Names = field(default_factory=Names)
    vocabulary: int | None = None
    context: int | None = None
    manner: Manner = field(default_factory=Manner)
    tokenizer: Path | None = None
    special: Mapping[str, str] = field(default_factory=dict)
    """The texts of special tokens by what they are for, such as ``eos_token``."""

    @property
    def parts(self) -> dict[str, Path]:
        """Its graphs by what they are."""
        found = {"later": self.later, "encoder": self.encoder, "decoder": self.decoder}
        return {name: path for name, path in found.items() if path is not None}

    def name_of(self, path: Path) -> str:
        """What one of its graphs is."""
        return next(name for name, part in self.parts.items() if part == path)


def read_folder(path: Path, texts: Path | None = None) -> ModelFolder:
    """What a model folder, or a decoder's file or slice folder and the folder around it, says. ``texts``: the
    folder with the tokenizer and all configuration, if it is another one. Raises `ConfigError`."""
    if not path.exists():
        raise ConfigError(
            f"{shown(path)}: there is no such folder or file{hint(path)}; expected a language model's folder"
        )
    if texts is not None and not texts.is_dir():
        raise ConfigError(f"{shown(texts)}: expected a folder with a tokenizer and configuration")
    if path.is_file() or (path / MANIFEST).is_file():
        return _read(texts or path.parent, path, told=texts is not None)
    if texts is None:
        return _read(path, None)
    return _read(texts, _read(path, None).decoder, told=True)


def _read(folder: Path, model: Path | None, *, told: bool = False) -> ModelFolder:
    """``model``: the decoder's file or slice folder, if that is given; ``told``: what the folder says is of
    that model, whatever file it names."""
    said = folder
    if (
        model is not None
        and folder.name == BELOW[1]
        and not _configured(folder)
        and _configured(folder.parent)
    ):
        said = folder.parent
    tokenizer = said / TOKENIZER
    found = ModelFolder(
        said,
        model or said,
        tokenizer=tokenizer if is_there(tokenizer) else None,
        special=_special(said),
    )
    if is_there(said / GENAI):
        genai = GenAI(said / GENAI)
        decoder = said / genai.decoder
        if told and model is not None:
            decoder = model
        if model is None or model.resolve() == decoder.resolve():
            encoder = None if genai.encoder is None else said / genai.encoder
            for part in (decoder, encoder):
                if part not in {None, model} and not part.is_file():
                    raise ConfigError(
                        f"{said / GENAI} names the model {part.name!r}, which {said} does not have"
                    )
            return replace(
                found,
                decoder=decoder,
                encoder=encoder,
                names=genai.names,
                encoder_names=genai.encoder_names,
                vocabulary=genai.vocabulary,
                context=genai.context,
                manner=genai.manner,
            )
    graphs = _graphs(said, model)
    config = read_json(said / CONFIG)
    inner = text_part(config)
    generation = read_json(said / GENERATION)
    where = said / CONFIG
    heads = _first(inner, ("num_key_value_heads", "num_attention_heads", "n_head", "num_heads"), where)
    return replace(
        found,
        **graphs,
        names=Names(heads=heads, head_size=_head_size(inner, where)),
        vocabulary=_first(inner, ("vocab_size",), where),
        context=None if config.get("model_type") in _RELATIVE else _first(inner, _LIMITED, where),
        manner=_manner(said, inner, generation),
    )


def _configured(folder: Path) -> bool:
    return any((folder / name).is_file() for name in (GENAI, CONFIG, TOKENIZER))


class _Graphs(TypedDict):
    """The model files of a folder, as `ModelFolder` names them."""

    decoder: Path
    later: Path | None
    encoder: Path | None


def _graphs(folder: Path, model: Path | None) -> _Graphs:
    """Those of a folder that no ``genai_config.json`` names."""
    if model is not None:
        beside = model.parent
        later = beside / LATER
        two = model.name == FIRST and later.is_file()
        encoder = beside / ENCODER
        pair = encoder.is_file() and model.name in {FIRST, MERGED}
        return _Graphs(decoder=model, later=later if two else None, encoder=encoder if pair else None)
    for place in (folder / name for name in BELOW):
        for name in (MERGED, FIRST, "model.onnx"):
            if (place / name).is_file():
                return _graphs(folder, place / name)
    found = sorted(item for name in BELOW for item in (folder / name).glob("*.onnx"))
    if len(found) == 1:
        return _graphs(folder, found[0])
    if found:
        names = ", ".join(item.name for item in found[:6])
        raise ConfigError(f"{shown(folder)} has several models ({names}): give the file of the decoder")
    raise ConfigError(
        f"{shown(folder)} has no language model: expected {GENAI}, model.onnx or {MERGED} in it; "
        "`shardrun convert` and ONNX Runtime GenAI's builder make one"
    )


def _first(config: Mapping[str, object], keys: Iterable[str], where: Path) -> int | None:
    """The number that the first of these keys has."""
    for key in keys:
        value = config.get(key)
        if value is not None:
            if not isinstance(value, int) or isinstance(value, bool) or not 0 < value < 2**31:
                raise ConfigError(f"{where}: {key}: expected a whole number above 0, found {quote(value)}")
            return value
    return None


def _head_size(config: Mapping[str, object], where: Path) -> int | None:
    size = _first(config, ("head_dim", "d_kv"), where)
    width = _first(config, ("hidden_size", "n_embd", "d_model"), where)
    heads = _first(config, ("num_attention_heads", "n_head", "num_heads"), where)
    return size if size is not None else width // heads if width and heads else None


def _manner(folder: Path, config: Mapping[str, object], generation: Mapping[str, object]) -> Manner:
    where = folder / (GENERATION if generation else CONFIG)

    def ids(key: str) -> tuple[int, ...]:
        return ids_of(generation.get(key, config.get(key)), where, key)

    start = ids("decoder_start_token_id")
    if start and (forced := generation.get("forced_decoder_ids") or config.get("forced_decoder_ids")):
        start += _forced(forced, where)
    return Manner(ends=ids("eos_token_id"), start=start, defaults=defaults_of(generation, where))


def _forced(pairs: object, where: Path) -> tuple[int, ...]:
    """The ids of [place, id] pairs that stand for places 1, 2, ..."""
    found: list[int] = []
    for pair in pairs if isinstance(pairs, list) else []:
        if not (isinstance(pair, list) and len(pair) == 2 and pair[0] == len(found) + 1):
            break
        if not isinstance(pair[1], int):
            break
        found.append(pair[1])
    return tuple(found)


def _special(folder: Path) -> dict[str, str]:
    """The special tokens that the tokenizer's configuration names."""
    path = folder / TOKENIZER_CONFIG
    found = {}
    for key, value in read_json(path).items():
        if key.endswith("_token"):
            text = value.get("content") if isinstance(value, dict) else value
            if isinstance(text, str):
                found[key] = text
    return found
