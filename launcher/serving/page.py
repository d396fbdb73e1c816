"""One page that shows the server: its models, load and latest requests, and a form to try them."""

from __future__ import annotations

import time
from importlib.metadata import version as version_of
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.kserve.tensors import described
from launcher.serving.models import Model, State
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel

_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'"
)


def routes(context: Context) -> list[Route]:
    """The page and what it asks for."""
    frame = Frame(context, "page", lambda refusal: {"error": str(refusal)})
    return [Route("/", frame(_page, free=True)), Route("/status", frame(_status))]


async def _page(call: Call) -> Response:
    text = (Path(__file__).parent / "page.html").read_bytes()
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(text, media_type="text/html", headers=headers)


async def _status(call: Call) -> Response:
    models = [_shown(model) for model in call.context.repository.models.values()]
    context = call.context
    return json_response(
        {
            "models": models, "draining": context.draining, "latest": list(context.latest),
            "version": version_of("shardrun"), "up_seconds": time.monotonic() - context.since,
        }
    )  # fmt: skip


def _shown(model: Model) -> dict[str, object]:
    numbers = model.numbers
    found: dict[str, object] = {
        "name": model.name, "state": model.state.value,
        "answered": numbers.succeeded, "failed": numbers.failed,
        "restarts": numbers.restarts, "kind": "texts" if isinstance(model, TextModel) else "tensors",
    }  # fmt: skip
    if numbers.succeeded and isinstance(model, TensorModel):
        found["computing_ms"] = numbers.computing_ns / numbers.succeeded / 1e6
        found["waiting_ms"] = numbers.waiting_ns / numbers.succeeded / 1e6
    if isinstance(model, TensorModel):
        found["waiting"] = model.waiting
        if model.state is State.READY:
            group = model.ready
            found["inputs"] = [described(spec) for spec in (*group.inputs, *group.optional_inputs)]
            found["ranks"] = [
                {
                    "rank": one.rank,
                    "host": one.host,
                    "weights": one.weight_bytes,
                    "segments": one.segments,
                    "collectives": one.collectives,
                }
                for one in group.stats
            ]
    elif isinstance(model, TextModel) and model.state is State.READY:
        found["chat"] = model.ready.model.template is not None
    return found
