"""The options of generating, each described once: the flags of the command, the keyword arguments of the
functions, and what a model's own folder may say of them."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Literal

from launcher.common.documents import quote, read_text
from launcher.errors import ConfigError
from launcher.job.option_table import changed, described, table
from launcher.job.values import Choice, Kind, Number, Pairs, Several, Switch, Text, Whole
from ranks.tokens.options import SamplingOptions
from sharding.common.text import did_you_mean

LENGTH, CHOICE, STOPPING, SEARCH, SHOWN, PACE = (
    "how much", "how tokens are chosen", "where it stops", "beam search", "log-probabilities", "how it runs"
)  # fmt: skip
"""Titles of groups in ``--help``."""
GROUPS = (LENGTH, CHOICE, STOPPING, SEARCH, SHOWN, PACE)
MOST_TOKENS = 2**31 - 1
MOST_SCHEMA = 64 << 10
"""Characters of a JSON schema: compiling a larger one takes seconds."""
NEW_TOKENS = 256
"""How many tokens are generated where nobody says it."""
_ID = Whole(0, 2**31 - 1, "a token id")
_NO_STOP = Whole(1, 4096)


def _parse_bias(texts: Iterable[str]) -> dict[int, float]:
    found: dict[int, float] = {}
    each = Number(-1e4, 1e4)
    for text in texts:
        name, equals, value = text.partition("=")
        try:
            if not equals:
                raise ConfigError("expected ID=NUMBER")
            token = _ID.parse(name)
            if token in found:
                raise ConfigError("this id is given twice")
            found[token] = each.parse(value)
        except ConfigError as error:
            raise ConfigError(f"--logit-bias {text[:40]}: {error}") from None
    return found


class _Schema(Kind[str]):
    """The text of a JSON schema: a flag names its file, a job file names it or has the schema itself."""

    def parse(self, text: str) -> str:
        schema = read_text(Path(text), "JSON schema", ConfigError, MOST_SCHEMA)
        try:
            json.loads(schema)
        except ValueError as error:
            raise ConfigError(f"{text}: this JSON schema is no JSON: {error}") from None
        except RecursionError:
            pass  # who follows the schema says how deep it may be
        return schema

    def read(self, value: object, where: str, folder: Path) -> str:
        if isinstance(value, dict):
            return json.dumps(value)
        return self.parse(str(folder / str(self._fitting(value, where))))

    def fits(self, value: object) -> bool:
        return isinstance(value, str) and bool(value)


@dataclass(frozen=True)
class GenerateOptions:
    """How a text is continued; None where an option is not given, and then the model's folder may say it.

    Tokens are chosen greedily (the likeliest) unless something asks for samples: a temperature above 0, one
    of ``top_k``, ``top_p`` and ``min_p``, several ``samples``, or the model's folder.
    """

    max_new_tokens: int | None = described(
        Whole(1, MOST_TOKENS), LENGTH,
        f"tokens to generate at most (default: as the model's folder says, else {NEW_TOKENS})", "N",
    )  # fmt: skip
    min_new_tokens: int | None = described(
        Whole(0, MOST_TOKENS), LENGTH, "tokens before the text may end by itself", "N"
    )
    temperature: float | None = described(
        Number(0, 100), CHOICE, "0: the likeliest token; above: random, the more the higher", "T"
    )
    top_k: int | None = described(
        Whole(0, MOST_TOKENS), CHOICE, "choose among the K likeliest tokens; 0: among all", "K"
    )
    top_p: float | None = described(
        Number(0, 1, above=True), CHOICE,
        "choose among the likeliest tokens that together have probability P", "P",
    )  # fmt: skip
    min_p: float | None = described(
        Number(0, 1), CHOICE, "leave out tokens less likely than P times the likeliest one", "P"
    )
    repetition_penalty: float | None = described(
        Number(0, 100, above=True), CHOICE,
        "above 1: tokens of the prompt and of the text so far become less likely", "R",
    )  # fmt: skip
    presence_penalty: float | None = described(
        Number(-100, 100), CHOICE, "taken from the logit of each token that was generated before", "X"
    )
    frequency_penalty: float | None = described(
        Number(-100, 100), CHOICE, "the same, times how often it was generated", "X"
    )
    no_repeat_ngram: int | None = described(
        Whole(0, 4096), CHOICE, "no N tokens in a row come twice; 0: they may", "N"
    )
    logit_bias: Mapping[int, float] = described(
        Pairs(_parse_bias, Number(-1e4, 1e4), "a mapping of token ids to numbers from -10000 to 10000", _ID),
        CHOICE, "added to the logit of a token; repeatable", "ID=X", make=dict,
    )  # fmt: skip
    seed: int | None = described(
        Whole(0, 2**64 - 1, "a whole number from 0 up"), CHOICE,
        "the same seed gives the same text again, on any number of ranks (default: another one each time)",
        "S",
    )  # fmt: skip
    samples: int = described(_NO_STOP, CHOICE, "texts for each prompt, chosen independently", "N", default=1)
    stop: tuple[str, ...] = described(
        Several(Text("a text that is not empty"), "a list of texts, none of them empty"), STOPPING,
        "end before this text, which is not shown; repeatable", "TEXT", default=(),
    )  # fmt: skip
    stop_ids: tuple[int, ...] = described(
        Several(_ID, "a list of token ids"), STOPPING, "end with this token; repeatable", "ID", "--stop-id",
        default=(),
    )  # fmt: skip
    suppressed: tuple[int, ...] | None = described(
        Several(_ID, "a list of token ids"), CHOICE, "never this token; repeatable", "ID", "--suppress-id"
    )
    suppressed_first: tuple[int, ...] | None = described(
        Several(_ID, "a list of token ids"), CHOICE, "not as the first token; repeatable", "ID",
        "--suppress-first-id",
    )  # fmt: skip
    forced_first: tuple[int, ...] | None = described(
        Several(_ID, "a list of token ids"), CHOICE,
        "the first token that follows a decoder's start is this one (default: as the folder says)", "ID",
        "--forced-first-id",
    )  # fmt: skip
    forced_last: tuple[int, ...] | None = described(
        Several(_ID, "a list of token ids"), CHOICE,
        "the last token that may come is this one (default: as the folder says)", "ID", "--forced-last-id",
    )  # fmt: skip
    json_schema: str | None = described(
        _Schema("a JSON schema, as text"), CHOICE, "the text is JSON that fits the JSON schema in this file",
        "FILE.json",
    )  # fmt: skip
    ignore_eos: bool = described(
        Switch(), STOPPING, "go on where the model would end the text", default=False
    )
    beams: int | None = described(Whole(1, 1024), SEARCH, "search with N beams; 1: no search", "N")
    length_penalty: float | None = described(
        Number(-100, 100), SEARCH,
        "a text's score is its log-probability divided by its length to this power (default: 1)", "L",
    )  # fmt: skip
    early_stopping: Literal["false", "true", "never"] | None = described(
        Choice(("false", "true", "never")), SEARCH,
        "true: stop when there are as many texts as beams; false: when a better one is unlikely; never: when "
        "there can be none (default: false)",
    )  # fmt: skip
    returned: int = described(
        Whole(1, 1024), SEARCH, "how many of the best texts are given (default: 1)", "N", default=1
    )
    logprobs: int | None = described(
        Whole(0, 1 << 20), SHOWN,
        "give each token's log-probability, and those of the N likeliest ones, by the model's own logits",
        "N",
    )  # fmt: skip
    chunk: int | None = described(
        Whole(1, MOST_TOKENS), PACE, "read the prompt N tokens at a time, which bounds memory", "N"
    )
    speculate: int | None = described(
        Whole(0, 256), PACE,
        "check up to N tokens in one step: those that followed the same words earlier, or what --draft "
        "proposes; the text stays the same",
        "N",
    )  # fmt: skip

    def __post_init__(self) -> None:
        if isinstance(self.early_stopping, bool):
            object.__setattr__(self, "early_stopping", str(self.early_stopping).lower())
        if isinstance(self.stop, str):
            object.__setattr__(self, "stop", (self.stop,))
        for name, option in GENERATE.items():
            value = getattr(self, name)
            if value is not None and not option.kind.fits(value):
                raise ConfigError(f"{name}: expected {option.kind.expected}, found {quote(value)}")
        for token in self.logit_bias:
            if not _ID.fits(token):
                raise ConfigError(f"logit_bias: expected token ids as keys, found {quote(token)}")
        self._check_together()

    def _check_together(self) -> None:
        beams = self.beams or 1
        if beams > 1 and self.samples > 1:
            raise ConfigError(
                "samples and beams exclude each other: give `returned` for several beams' texts"
            )
        if beams > 1 and self.speculate:
            raise ConfigError("beams and speculate exclude each other: a search checks all beams in one step")
        if beams > 1 and self.temperature:
            raise ConfigError(
                "beams and a temperature exclude each other: a search takes the likeliest texts"
            )
        if self.json_schema is not None and (beams > 1 or self.speculate):
            raise ConfigError(
                "json_schema and beams or speculate exclude each other: each token says which may come next"
            )
        if self.returned > beams and self.beams is not None:
            raise ConfigError(f"returned: {self.returned} texts are asked of a search of {beams} beams")

    @property
    def samples_asked(self) -> bool:
        """Whether these options alone ask for random choices."""
        if self.temperature is not None:
            return self.temperature > 0
        return self.samples > 1 or any(item is not None for item in (self.top_k, self.top_p, self.min_p))

    def filled(self, defaults: Mapping[str, object]) -> GenerateOptions:
        """The same, where what is not given is what a model's folder says; its ``do_sample``
        decides if nothing else does."""
        known = {item.name for item in fields(self)}
        more = {
            name: value
            for name, value in defaults.items()
            if name in known and value is not None and getattr(self, name) is None
        }
        beams = self.beams or more.get("beams")
        searching = isinstance(beams, int) and beams > 1
        if self.samples_asked or self.json_schema is not None or (searching and self.samples > 1):
            more.pop("beams", None)
            searching = (self.beams or 1) > 1
        if searching or not (self.samples_asked or (self.temperature is None and defaults.get("do_sample"))):
            more["temperature"] = 0.0
        elif self.temperature is None:
            more.setdefault("temperature", 1.0)
            more["temperature"] = more["temperature"] or 1.0
        if searching and self.speculate is None:
            more.pop("speculate", None)
        return changed(self, more)

    @property
    def sampling(self) -> SamplingOptions:
        """Those that decide which token comes next."""
        return SamplingOptions(**{item.name: getattr(self, item.name) for item in fields(SamplingOptions)})

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return not self.temperature

    def with_flags(
        self, flags: Mapping[str, object], said: Mapping[str, object] | None = None
    ) -> GenerateOptions:
        """The same with what a job file has ``said`` and with the flags that were given, which win."""
        settled = dict(said or {})
        for name, value in flags.items():
            if name in GENERATE and value is not None:
                settled[name] = GENERATE[name].merged(settled.get(name, getattr(self, name)), value)
        return changed(self, settled)


GENERATE = table(GenerateOptions)
"""Option by name."""


def options_of(options: GenerateOptions | None, more: Mapping[str, object]) -> GenerateOptions:
    """Options with keyword arguments, which win. Raises `ConfigError` for one that there is not."""
    for name in more:
        if name not in GENERATE:
            raise ConfigError(f"there is no option {name!r} of generating{did_you_mean(name, GENERATE)}")
    return changed(options or GenerateOptions(), more)
