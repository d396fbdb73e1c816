"""Options of `Model.build_from_file` from a configuration file and from a dictionary.

The file is the INI format of mindspore_lite: ``[section]``, then ``key=value`` a line, ``#`` for comments.
A value may stand in quotes.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from ranks.common.notice import warn_user
from ranks.errors import SettingError, ShardrunError
from ranks.lite.options import precision_options, share_options, variable_options
from ranks.lite.options.check import check_sections
from ranks.lite.options.content import exists
from ranks.lite.options.errors import runtime_error
from ranks.lite.options.texts import unquoted
from ranks.weights.shared.request import Attach, Share
from sharding.common.text import parse_whole, shortened

Sections = dict[str, dict[str, str]]

LARGEST_FILE = 1 << 20  # bytes; real files have some hundred
MOST_WAITING = 1_000_000

_COMMON = (*share_options.KEYS, *variable_options.KEYS, precision_options.KEY)

# Sections and keys that mindspore_lite knows (its C++ source, src/common/common.h, and its documentation),
# and [parallel_runner], which is ours.
# True: acted on here. False: known, but of no effect on ONNX Runtime. A section without keys takes any.
KNOWN: Mapping[str, Mapping[str, bool]] = {
    "ascend_context": {
        "rank_table_file": True,
        **dict.fromkeys(_COMMON, True),
        **dict.fromkeys(
            (
                "profiling_config_file",
                "dump_config_file",
                "dump_model_name",
                "profiling_path",
                "dump_path",
                "ge_variable_memory_max_size",
                "ge_graph_memory_max_size",
                "model_cache_dir",
                "mixprecision_list_path",
                "enable_custom_op",
                "plugin_custom_ops",
                "op_attrs",
                "aoe_mode",
                "provider",
                "parameter_as_refdata",
                "model_cache_mode",
                "max_weight_batch",
                "input_shape",
                "dynamic_dims",
            ),
            False,
        ),
    },
    "gpu_context": {
        **dict.fromkeys(_COMMON, True),
        **dict.fromkeys(("input_shape", "dynamic_dims", "opt_dims", "dump_ops", "dump_dir"), False),
    },
    "cpu_context": dict.fromkeys(_COMMON, True),
    "ms_cache": {
        "serialize_path": True,
        **dict.fromkeys(("cache_model_path", "vocab_size", "device_cache_size"), False),
    },
    "model_file": {"mindir_path": False},
    "weight": {"weight_path": False},
    "shared_thread_pool": dict.fromkeys(
        ("enable_shared_thread_pool", "thread_num_limit_per_worker", "thread_num_remaining_per_worker"), False
    ),
    "transformer_context": dict.fromkeys(
        ("encoder_input", "decoder_input", "ffn_fp16", "optimize_transformer"), False
    ),
    "lite_inner_group": {"group_id": False},
    "parallel_runner": {"queue_limit": True},
    "common_context": {},
    "execution_plan": {},
    "acl_option_cfg_param": {},
    "acl_init_options": {},
    "acl_build_options": {},
    "ge_session_options": {},
    "ge_graph_options": {},
    "ge_global_options": {},
    "aoe_global_options": {},
    "aoe_tuning_options": {},
}


@dataclass(frozen=True)
class Options:
    """What of a configuration is acted on here."""

    rank_table_file: str = ""
    engine_cache: str = ""
    queue_limit: int | None = None
    """Of `ModelParallelRunner`: how many predictions may wait for a worker; None for its default."""
    sharing: Share | Attach | None = None
    """Whether the model is the owner of shared weights, or attaches to them."""
    variable_weights: tuple[str, ...] = ()
    """Names of the weights that `Model.update_weights` may replace."""
    precision_modes: precision_options.Modes = ()
    execution_plan: tuple[tuple[str, str], ...] = ()
    """As `ranks.precision.request.Precision` has it."""


def load(config_path: str, config_dict: object = None) -> Options:
    """Options from the file at ``config_path`` ("" for none) and from ``config_dict``, which wins.

    Warns about unknown sections and keys, and about known ones that have no effect here. Raises `TypeError`
    for a dictionary of other types, and a `RuntimeError` for a file that is missing or malformed.
    """
    sections = read_file(config_path) if config_path else {}
    origin = dict.fromkeys(sections, config_path)
    sharing = share_options.in_sections(_all_folded(sections), config_path)
    if config_dict is not None and config_dict != {}:
        here: share_options.Given = []
        if isinstance(config_dict, dict):
            config_dict, here = share_options.take_short(config_dict)
        check_sections("config_dict", config_dict)
        assert isinstance(config_dict, dict)
        config_dict = {section: _unquoted(entries) for section, entries in config_dict.items()}
        sharing = here + share_options.in_sections(_all_folded(config_dict), "config_dict") or sharing
        for section, entries in config_dict.items():
            sections.setdefault(section, {}).update(entries)
            origin.setdefault(section, "config_dict")
    sections = _all_folded(sections)
    _check(sections, origin)
    table = sections.get("ascend_context", {}).get("rank_table_file", "").strip()
    own = _all_folded(config_dict) if isinstance(config_dict, dict) else {}
    try:
        modes = precision_options.modes(sections)
        plan = precision_options.plan(sections, origin.get(precision_options.PLAN, ""))
    except ShardrunError as error:
        raise _malformed(str(error)) from None
    given = "rank_table_file" in own.get("ascend_context", {})
    return Options(
        rank_table_file=table if given else variable_options.beside(table, config_path),
        engine_cache=sections.get("ms_cache", {}).get("serialize_path", "").strip(),
        queue_limit=_queue_limit(sections.get("parallel_runner", {}).get("queue_limit")),
        sharing=share_options.choose(sharing),
        variable_weights=variable_options.named(sections, own, config_path),
        precision_modes=modes,
        execution_plan=plan,
    )


def read_file(config_path: str) -> Sections:
    """The sections of the file, keys in the case they are written in; raises a `RuntimeError`."""
    path = Path(config_path)
    if not exists(config_path):
        raise runtime_error(
            f"build_from_file failed, config_path does not exist! No file {config_path!r}.", SettingError
        )
    try:
        if not path.is_file():
            raise _malformed(f"{config_path} is not a file")
        if path.stat().st_size > LARGEST_FILE:
            raise _malformed(f"{config_path} has {path.stat().st_size} bytes, the limit is {LARGEST_FILE}")
        text = path.read_text("utf-8-sig")
    except OSError as error:
        raise _malformed(f"{config_path} cannot be read: {error.strerror or error}") from error
    except UnicodeDecodeError as error:
        raise _malformed(f"{config_path} is not a text file: byte {error.start} is not UTF-8") from error
    import configparser

    # No interpolation and no default section: a "%" or a section [DEFAULT] means nothing to the original.
    parser = configparser.RawConfigParser(
        delimiters=("=",),
        comment_prefixes=("#", ";"),
        strict=False,
        default_section="\n",
        empty_lines_in_values=False,
    )
    parser.optionxform = str  # type: ignore[assignment,method-assign]  # keeps the case, as documented
    try:
        parser.read_string(text, source=config_path)
        return {section: _unquoted(dict(parser.items(section))) for section in parser.sections()}
    except (configparser.Error, ValueError, AttributeError) as error:
        reason = " ".join(str(error).split())[:300]
        raise _malformed(f"{config_path} is not made of [section] and key=value lines: {reason}") from error


def _unquoted(entries: Mapping[str, str]) -> dict[str, str]:
    return {key: unquoted(value) for key, value in entries.items()}


def _all_folded(sections: Mapping[str, Mapping[str, str]]) -> Sections:
    return {section: _folded(section, entries) for section, entries in sections.items()}


def _folded(section: str, entries: Mapping[str, str]) -> dict[str, str]:
    """The entries with keys in lower case, where a section's are known: documents write `serialize_Path`."""
    return {key.lower(): value for key, value in entries.items()} if KNOWN.get(section) else dict(entries)


def _queue_limit(text: str | None) -> int | None:
    if text is None:
        return None
    number = parse_whole(text.strip(), 0, MOST_WAITING)
    if number is None:
        raise _malformed(
            f"[parallel_runner] queue_limit must be a number from 0 to {MOST_WAITING}, but is {text[:80]!r}"
        )
    return number


def _malformed(reason: str) -> Exception:
    return runtime_error(f"load configuration failed! Error is {reason}.", SettingError)


def _check(sections: Sections, origin: Mapping[str, str]) -> None:
    idle: list[str] = []
    for section, entries in sections.items():
        where = origin[section]
        known = KNOWN.get(section)
        if known is None:
            warn_user(f"unknown section [{shortened(section)}] in {where} is ignored.")
            continue
        if section == precision_options.PLAN:
            continue
        for key in entries:
            if known and key not in known:
                warn_user(f"unknown key {shortened(key)!r} of section [{section}] in {where} is ignored.")
            elif not known.get(key):
                idle.append(f"[{section}] {key}")
    if idle:
        warn_user(f"these options have no effect here: {', '.join(idle)}.")
