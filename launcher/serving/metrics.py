"""Numbers of a server for Prometheus."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

if TYPE_CHECKING:
    from launcher.serving.models import Model
    from launcher.serving.seeing.numbers import Rate

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
TYPE = CONTENT_TYPE_LATEST
_TOGETHER = 256


class Late:
    """A histogram that is told of many values at once, before anybody looks: one by one, between other work,
    each takes several times as long. For the server's event loop alone."""

    def __init__(self, histogram: Histogram) -> None:
        self._histogram = histogram
        self._came: list[float] = []

    def observe(self, value: float) -> None:
        """A value has come."""
        self._came.append(value)
        if len(self._came) >= _TOGETHER:
            self.tell()

    def tell(self) -> None:
        """Tells the histogram of all that have come."""
        came, self._came = self._came, []
        for value in came:
            self._histogram.observe(value)


class Counted:
    """The same of a counter."""

    def __init__(self, counter: Counter) -> None:
        self._counter = counter
        self._came = 0

    def inc(self) -> None:
        """One more."""
        self._came += 1

    def tell(self) -> None:
        """Tells the counter of all that have come."""
        came, self._came = self._came, 0
        self._counter.inc(came)


class Metrics:
    """What one server counts; each server has a registry of its own."""

    def __init__(self) -> None:
        own = self._registry = CollectorRegistry(auto_describe=True)
        self.requests = Counter(
            "shardrun_requests", "Requests answered", ["model", "protocol", "status"], registry=own
        )
        self.seconds = Histogram(
            "shardrun_request_seconds", "From a request's first byte to the last of its answer",
            ["model", "protocol"], buckets=_SECONDS, registry=own,
        )  # fmt: skip
        self.under_way = 0
        """Requests."""
        Gauge("shardrun_requests_open", "Requests under way", registry=own).set_function(
            lambda: self.under_way
        )
        self.refused = Counter(
            "shardrun_refused", "Requests for which there was no room", ["model"], registry=own
        )
        self.batches = Histogram(
            "shardrun_batch_rows",
            "Rows of a run",
            ["model"],
            buckets=(1, 2, 4, 8, 16, 32, 64, 128),
            registry=own,
        )
        self.waited = Histogram(
            "shardrun_queue_seconds", "From a request to when its run began", ["model"], buckets=_SECONDS,
            registry=own,
        )  # fmt: skip
        self.restarts = Counter("shardrun_restarts", "Starts after a rank's death", ["model"], registry=own)
        self.prompt_tokens = Counter("shardrun_prompt_tokens", "Tokens of prompts", ["model"], registry=own)
        self.tokens = Counter("shardrun_generated_tokens", "Tokens generated", ["model"], registry=own)
        self._late: dict[tuple[Histogram, tuple[str, ...]], Late] = {}
        self._counted: dict[tuple[Counter, tuple[str, ...]], Counted] = {}
        self._rates: dict[str, Rate] = {}
        self._speed = Gauge(
            "shardrun_generated_tokens_per_second", "Tokens generated in a second, over the last ten",
            ["model"], registry=own,
        )  # fmt: skip
        self.first = Histogram(
            "shardrun_first_token_seconds", "From a request to its first token", ["model"], buckets=_SECONDS,
            registry=own,
        )  # fmt: skip
        self.between = Histogram(
            "shardrun_token_seconds",
            "Between two tokens of a text",
            ["model"],
            buckets=_TOKEN_SECONDS,
            registry=own,
        )

    def watch(self, models: Callable[[], Iterable[Model]]) -> None:
        """Shows, from now on, what the ranks of these models say, and how fast texts grow."""
        from launcher.serving.seeing.numbers import RankCollector

        self._registry.register(RankCollector(models))

    def late(self, histogram: Histogram, *labels: str) -> Late:
        """One of these, with its labels, for values that come with each request."""
        return self._late.setdefault((histogram, labels), Late(histogram.labels(*labels)))

    def counted(self, counter: Counter, *labels: str) -> Counted:
        """The same of a counter."""
        return self._counted.setdefault((counter, labels), Counted(counter.labels(*labels)))

    def token(self, model: str) -> None:
        """A token was generated."""
        self.tokens.labels(model).inc()
        if (rate := self._rates.get(model)) is None:
            from launcher.serving.seeing.numbers import Rate

            rate = self._rates[model] = Rate()
            self._speed.labels(model).set_function(rate.value)
        rate.add()

    def speed(self, model: str) -> float:
        """Tokens generated in a second, lately."""
        rate = self._rates.get(model)
        return 0.0 if rate is None else rate.value()

    def text(self) -> bytes:
        """All of it, in Prometheus' form."""
        for one in self._late.values():
            one.tell()
        for count in self._counted.values():
            count.tell()
        return bytes(generate_latest(self._registry))
