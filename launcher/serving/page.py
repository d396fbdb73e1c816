"""One page that shows the server: its models, load and latest requests, and a form to try them."""

from __future__ import annotations

import time
from collections.abc import Iterator
from importlib.metadata import version as version_of
from pathlib import Path

from starlette.responses import Response
from starlette.routing import Route

from launcher.serving.access import Role
from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.kserve.tensors import described
from launcher.serving.models import Model, State
from launcher.serving.seeing.numbers import ask_ranks
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel

_POLICY = (
    "default-src 'self'; style-src 'self' 'unsafe-inline'; script-src 'self' 'unsafe-inline'; "
    "frame-ancestors 'none'"
)


def routes(context: Context) -> list[Route]:
    """The page and what it asks for."""
    frame = Frame(context, "page", lambda refusal: {"error": str(refusal)})
    return [Route("/", frame(_page, Role.FREE)), Route("/status", frame(_status))]


async def _page(call: Call) -> Response:
    text = (Path(__file__).parent / "page.html").read_bytes()
    headers = {
        "Content-Security-Policy": _POLICY,
        "X-Content-Type-Options": "nosniff",
        "Cache-Control": "no-cache",
    }
    return Response(text, media_type="text/html", headers=headers)


async def _status(call: Call) -> Response:
    context = call.context
    await ask_ranks(context.repository.models.values())
    models = [
        _shown(model, context.metrics.speed(model.name)) for model in context.repository.models.values()
    ]
    return json_response(
        {
            "models": models, "draining": context.draining, "latest": list(context.latest),
            "version": version_of("shardrun"), "up_seconds": time.monotonic() - context.since,
        }
    )  # fmt: skip


def _shown(model: Model, speed: float) -> dict[str, object]:
    model.look()
    numbers = model.numbers
    found: dict[str, object] = {
        "name": model.name, "version": model.version, "state": model.state.value,
        "waiting": model.waiting, "updates": sum(group.weights_version for group in model.groups),
        "ranks": list(_ranks(model)),
        "answered": numbers.succeeded, "failed": numbers.failed,
        "restarts": numbers.restarts, "kind": "texts" if isinstance(model, TextModel) else "tensors",
    }  # fmt: skip
    if numbers.succeeded and isinstance(model, TensorModel):
        found["computing_ms"] = numbers.computing_ns / numbers.succeeded / 1e6
        found["waiting_ms"] = numbers.waiting_ns / numbers.succeeded / 1e6
    if isinstance(model, TextModel):
        found["tokens_per_second"] = speed
    if isinstance(model, TensorModel) and model.state is State.READY:
        group = model.ready
        found["inputs"] = [described(spec) for spec in (*group.inputs, *group.optional_inputs)]
    elif isinstance(model, TextModel) and model.state is State.READY:
        found["chat"] = model.ready.model.template is not None
    return found


def _ranks(model: Model) -> Iterator[dict[str, object]]:
    """What is known of each rank; what it has done, as it said last."""
    for group in model.groups:
        said = group.said
        for one in group.stats:
            yield {
                "rank": one.rank, "host": one.host, "state": group.state, "weights": one.weight_bytes,
                "segments": one.segments, "collectives": one.collectives, "work": said.get(one.rank),
            }  # fmt: skip
