"""Numbers of a server for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, generate_latest
from prometheus_client.exposition import CONTENT_TYPE_LATEST

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0)
_TOKEN_SECONDS = (0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0, 2.0, 5.0)
TYPE = CONTENT_TYPE_LATEST


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
        self.open = Gauge("shardrun_requests_open", "Requests under way", registry=own)
        self.queued = Gauge(
            "shardrun_queue_length", "Requests that wait for a model", ["model"], registry=own
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
        self.restarts = Counter("shardrun_restarts", "Starts after a rank's death", ["model"], registry=own)
        self.prompt_tokens = Counter("shardrun_prompt_tokens", "Tokens of prompts", ["model"], registry=own)
        self.tokens = Counter("shardrun_generated_tokens", "Tokens generated", ["model"], registry=own)
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
        self.busy = Gauge(
            "shardrun_rank_seconds", "What rank 0 has spent so far", ["model", "in"], registry=own
        )

    def text(self) -> bytes:
        """All of it, in Prometheus' form."""
        return bytes(generate_latest(self._registry))
