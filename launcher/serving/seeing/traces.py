"""Spans of requests for OpenTelemetry, where its package is installed; nothing of it is imported else.

A request is one span, whose parent is what the header ``traceparent`` names. Below it are spans for the time
in the queue and that at the ranks; they are made when the answer is there, with the times that were noted.
"""

from __future__ import annotations

import contextlib
import os
import time
from collections.abc import Callable, Mapping
from contextvars import ContextVar
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from opentelemetry.trace import Span, Tracer

NAME = "shardrun"
_ENDPOINTS = ("OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@dataclass(frozen=True)
class Trace:
    """The span of a request under way."""

    span: Span
    _tracer: Tracer

    def passed(self, name: str, began: int, ended: int, **attributes: int | str) -> None:
        """Something of the request took place between two readings of `time.monotonic_ns`."""
        if not self.span.get_span_context().trace_flags.sampled:  # a sampler has left it out
            return
        from opentelemetry.trace import set_span_in_context

        shift = time.time_ns() - time.monotonic_ns()
        span = self._tracer.start_span(
            name, set_span_in_context(self.span), attributes=attributes, start_time=began + shift
        )
        span.end(ended + shift)

    def note(self, **attributes: int | str) -> None:
        """Adds attributes, under this server's name."""
        for name, value in attributes.items():
            self.span.set_attribute(f"{NAME}.{name}", value)


CURRENT: ContextVar[Trace | None] = ContextVar("shardrun_trace", default=None)
"""The trace of the request that this task is for."""


class Traces:
    """Makes the spans of a server's requests."""

    def __init__(self, tracer: Tracer | None = None, heard: Callable[[], bool] = lambda: True) -> None:
        """``tracer``: where spans go; None: nothing is noted. ``heard``: whether they go anywhere now."""
        self._tracer, self._heard = tracer, heard

    def request(self, method: str, route_of: Callable[[], str], headers: Mapping[str, str]) -> Trace | None:
        """The trace of a request that has come; `ended` ends it. ``route_of``: gives its path with the names
        of its parts, of which there are few."""
        if self._tracer is None or not self._heard():
            return None
        route = route_of()
        from opentelemetry.trace import SpanKind
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

        carrier = {name: value for name in ("traceparent", "tracestate") if (value := headers.get(name))}
        parent = TraceContextTextMapPropagator().extract(carrier)
        attributes = {"http.request.method": method, "http.route": route}
        span = self._tracer.start_span(f"{method} {route}", parent, SpanKind.SERVER, attributes)
        return Trace(span, self._tracer)

    def ended(self, trace: Trace | None, status: int, model: str, **attributes: int | str) -> None:
        """A request's last byte is on its way."""
        if trace is None:
            return
        from opentelemetry.trace import StatusCode

        trace.span.set_attribute("http.response.status_code", status)
        trace.note(model=model, **attributes)
        if status >= 500:
            trace.span.set_status(StatusCode.ERROR)
        trace.span.end()


def traces_here() -> Traces:
    """Those of the program's tracer provider, where the package is installed. If nobody has set one, and a
    variable names a collector, one that sends spans there is set."""
    try:
        from opentelemetry import trace
    except ImportError:  # also where nothing but an exporter of it is there
        return Traces()

    if any(os.environ.get(name) for name in _ENDPOINTS):
        _export()

    def heard() -> bool:
        # The package may be there for something else; a program may say where spans go at any time.
        return not isinstance(trace.get_tracer_provider(), trace.ProxyTracerProvider)

    return Traces(trace.get_tracer(NAME), heard)


def _export() -> None:
    """Has spans sent to the collector that the environment names, as far as the packages are there."""
    from opentelemetry import trace

    with contextlib.suppress(ImportError):
        from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
        from opentelemetry.sdk.resources import Resource
        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor

        if isinstance(trace.get_tracer_provider(), TracerProvider):
            return
        provider = TracerProvider(resource=Resource.create({"service.name": NAME}))
        provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        trace.set_tracer_provider(provider)
