"""A server in a thread of this process, for its real clients."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from launcher.serving.context import Context
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.models import Model, Repository
from launcher.serving.server import Listening, serving

WAIT = 60.0


@dataclass
class Running:
    """A server that answers."""

    url: str
    context: Context
    stop: Callable[[], None] = lambda: None
    """Ends it in order, and returns when it has ended."""
    grpc: str = ""
    """Host and port of gRPC, if it has it."""

    @property
    def address(self) -> str:
        """Host and port."""
        return self.url.partition("://")[2]


@contextlib.contextmanager
def running(
    *models: Model,
    limits: ServeLimits | None = None,
    metrics: Metrics | None = None,
    listening: Listening | None = None,
    **more: object,
) -> Iterator[Running]:
    """A server of these models."""
    repository = more.pop("repository", None) or Repository({model.name: model for model in models})
    context = Context(repository, limits or ServeLimits(), metrics or Metrics(), **more)  # type: ignore[arg-type]
    ready, urls = threading.Event(), []
    with contextlib.ExitStack() as stack:

        def told(url: str) -> None:
            urls.append(url)
            if url.startswith("http"):  # the last one
                ready.set()

        server, run = serving(context, listening or Listening(port=0), told)

        def work() -> None:
            try:
                run()
            finally:
                ready.set()

        thread = threading.Thread(target=work)
        thread.start()
        stack.callback(thread.join, WAIT)
        stack.callback(setattr, server, "should_exit", True)
        assert ready.wait(WAIT) and urls

        def stop() -> None:
            server.should_exit = True
            thread.join(WAIT)
            assert not thread.is_alive(), "it has not ended"

        yield Running(urls[-1], context, stop, urls[0].partition("://")[2] if len(urls) > 1 else "")
    assert not thread.is_alive()
