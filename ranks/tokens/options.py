"""What decides which token comes next, as the options of generating say it; as JSON it travels to a rank."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field


@dataclass(frozen=True)
class SamplingOptions:
    """Settled options of one request: `launcher.generation.options.GenerateOptions` says what each does, and
    has them under the same names."""

    max_new_tokens: int | None = None
    min_new_tokens: int | None = None
    temperature: float | None = None
    top_k: int | None = None
    top_p: float | None = None
    min_p: float | None = None
    repetition_penalty: float | None = None
    presence_penalty: float | None = None
    frequency_penalty: float | None = None
    no_repeat_ngram: int | None = None
    logit_bias: Mapping[int, float] = field(default_factory=dict)
    seed: int | None = None
    suppressed: tuple[int, ...] | None = None
    suppressed_first: tuple[int, ...] | None = None
    forced_first: tuple[int, ...] | None = None
    forced_last: tuple[int, ...] | None = None

    @property
    def greedy(self) -> bool:
        """Whether the likeliest token is taken."""
        return not self.temperature

    def to_json(self) -> dict[str, object]:
        """Plain values: what is not given is left out."""
        given = {name: value for name, value in asdict(self).items() if value not in (None, {}, ())}
        if self.logit_bias:
            given["logit_bias"] = [list(pair) for pair in self.logit_bias.items()]
        return given

    @classmethod
    def from_json(cls, values: Mapping[str, object]) -> SamplingOptions:
        """What `to_json` gave."""
        given = {name: tuple(value) if isinstance(value, list) else value for name, value in values.items()}
        bias: tuple[tuple[int, float], ...] = given.pop("logit_bias", ())  # type: ignore[assignment]
        return cls(**given, logit_bias=dict(bias))  # type: ignore[arg-type]
