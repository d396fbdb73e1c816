"""The application of a server: the routes of all protocols."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import logging
from collections.abc import AsyncIterator, Callable
from typing import TYPE_CHECKING

from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Match, Route
from starlette.types import ASGIApp, Receive, Scope, Send

from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.kserve.routes import routes as kserve_routes
from launcher.serving.metrics import TYPE
from launcher.serving.openai.routes import routes as openai_routes
from launcher.serving.page import routes as page_routes
from launcher.serving.seeing.numbers import ask_ranks
from launcher.serving.upkeep.routes import routes as upkeep_routes
from launcher.serving.upkeep.weights import Updates

if TYPE_CHECKING:
    from contextlib import AbstractAsyncContextManager

log = logging.getLogger(__name__)
_PATHS, _LONGEST = 256, 200
"""How many paths are known with their routes, and how long those are at most."""


def application(
    context: Context, lifespan: Callable[[], AbstractAsyncContextManager[None]] | None = None
) -> ASGIApp:
    """What answers requests. ``lifespan``: what is there while it does."""

    @contextlib.asynccontextmanager
    async def life(app: Starlette) -> AsyncIterator[None]:
        async with contextlib.AsyncExitStack() as stack:
            if lifespan is not None:
                await stack.enter_async_context(lifespan())
            yield

    context.metrics.watch(lambda: context.repository.all)
    frame = Frame(context, "metrics", lambda refusal: {"error": str(refusal)})
    routes = [
        *kserve_routes(context),
        *openai_routes(context),
        *page_routes(context),
        *upkeep_routes(context, Updates(context.folders)),
        Route("/metrics", frame(_metrics)),
    ]

    @functools.lru_cache(_PATHS)
    def route_of(method: str, path: str) -> Scope | None:
        for route in routes:
            match, found = route.matches({"type": "http", "method": method, "path": path})
            if match is Match.FULL:
                return found
        return None

    others = Starlette(routes=routes, lifespan=life, exception_handlers={HTTPException: _refused})

    async def routed(scope: Scope, receive: Receive, send: Send) -> None:
        # Frames catch all errors. So what has a route needs none of the layers that Starlette puts around it.
        if scope["type"] == "http" and not scope.get("root_path"):  # which a path may begin with
            # Clients ask for a few paths again and again, each of which some twenty patterns may not match.
            known = route_of if len(scope["path"]) <= _LONGEST else route_of.__wrapped__
            if (found := known(scope["method"], scope["path"])) is not None:
                scope["path_params"] = dict(found["path_params"])
                await (await found["endpoint"](Request(scope, receive)))(scope, receive, send)
                return
        await others(scope, receive, send)

    async def answer(scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await routed(scope, receive, send)
        except asyncio.CancelledError:
            if not context.draining:
                raise
            log.warning("a request was cut off: the server is ending")

    return answer


async def _metrics(call: Call) -> Response:
    models = call.context.repository.all
    for model in models:
        model.look()
    await ask_ranks(models)
    return Response(call.context.metrics.text(), media_type=TYPE)


async def _refused(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    what = {404: "there is nothing at this path", 405: f"{request.method} is not possible at this path"}
    message = what.get(error.status_code, str(error.detail))
    return json_response({"error": message}, error.status_code, error.headers or {})
