"""The Open Inference Protocol over HTTP: its routes, with the repository's and the statistics extension."""

from __future__ import annotations

import functools
import logging
from collections.abc import Collection, Mapping
from http import HTTPStatus
from importlib.metadata import version as version_of
from typing import TYPE_CHECKING

from starlette.responses import Response
from starlette.routing import Route

from launcher.errors import LaunchError, RankFailedError
from launcher.serving.access import Role
from launcher.serving.bodies import bad, field_of, said
from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.kserve import texts
from launcher.serving.kserve.heads import question_known
from launcher.serving.kserve.tensors import (
    HEADER,
    Question,
    described,
    read_question,
    size_of,
    to_read,
    to_write,
    write_answer,
)
from launcher.serving.models import Model, State
from launcher.serving.refusals import RefusalError
from launcher.serving.tensor_model import TensorModel
from launcher.serving.text_model import TextModel

if TYPE_CHECKING:
    from ranks.common.tensors import TensorSpec
    from sharding.common.arrays import Array

log = logging.getLogger(__name__)

PROTOCOL = "kserve"
_MOST_PARAMETER = 2**53
EXTENSIONS = ("model_repository", "binary_tensor_data", "statistics")


def _error(refusal: RefusalError) -> Mapping[str, object]:
    return {"error": str(refusal)}


def routes(context: Context) -> list[Route]:
    """All of them."""
    frame = Frame(context, PROTOCOL, _error)
    bases = ("/v2/models/{model}", "/v2/models/{model}/versions/{version}")
    infer = frame(_infer)
    found = [
        *(Route(f"{base}/infer", infer, methods=["POST"]) for base in bases),  # first what is asked most
        Route("/v2", frame(_server)),
        Route("/v2/health/live", frame(_live, Role.FREE)),
        Route("/v2/health/ready", frame(_ready, Role.FREE)),
        Route("/v2/models/stats", frame(_all_statistics)),
        Route("/v2/repository/index", frame(_index), methods=["POST"]),
        Route("/v2/repository/models/{model}/load", frame(_load, Role.LOADS), methods=["POST"]),
        Route("/v2/repository/models/{model}/unload", frame(_unload, Role.LOADS), methods=["POST"]),
    ]
    for base in bases:
        found += [
            Route(base, frame(_metadata)),
            Route(f"{base}/ready", frame(_model_ready)),
            Route(f"{base}/config", frame(_config)),
            Route(f"{base}/stats", frame(_statistics)),
        ]
    return found


def _model(call: Call) -> Model:
    found = call.context.repository.get(
        call.request.path_params["model"], call.request.path_params.get("version")
    )
    call.use(found)
    return found


def server_metadata() -> dict[str, object]:
    """What a server says of itself."""
    return {"name": "shardrun", "version": version_of("shardrun"), "extensions": list(EXTENSIONS)}


async def _server(call: Call) -> Response:
    return json_response(server_metadata())


async def _live(call: Call) -> Response:
    return json_response({"live": True})


def is_ready(context: Context) -> bool:
    """Whether all models may be asked."""
    return not (context.starting or context.draining) and all(
        model.state in {State.READY, State.UNLOADED} for model in context.repository.models.values()
    )


async def _ready(call: Call) -> Response:
    ready = is_ready(call.context)
    return json_response({"ready": ready}, 200 if ready else 503)


async def _model_ready(call: Call) -> Response:
    model = _model(call)
    ready = model.state is State.READY
    return json_response({"name": model.name, "ready": ready}, 200 if ready else 503)


def specs_of(model: Model) -> tuple[list[TensorSpec], list[TensorSpec]]:
    """Inputs, with those that may be left out, and outputs. Raises `RefusalError` for a model that is not
    ready."""
    if isinstance(model, TextModel):
        return texts.specs_of(model)
    assert isinstance(model, TensorModel)
    found = model.ready
    return [*found.inputs, *found.optional_inputs], list(found.outputs)


def model_metadata(model: Model) -> dict[str, object]:
    """What is said of a model."""
    inputs, outputs = specs_of(model)
    return {
        "name": model.name, "versions": [model.version], "platform": "onnxruntime_onnx",
        "inputs": [described(spec) for spec in inputs],
        "outputs": [described(spec) for spec in outputs],
    }  # fmt: skip


async def _metadata(call: Call) -> Response:
    return json_response(model_metadata(_model(call)))


def model_config(model: Model) -> dict[str, object]:
    """The same in the words of Triton's configurations."""
    inputs, outputs = specs_of(model)

    def entry(spec: TensorSpec) -> dict[str, object]:
        own = described(spec)
        return {
            "name": own["name"],
            "data_type": f"TYPE_{_triton(str(own['datatype']))}",
            "dims": own["shape"],
        }

    return {
        "name": model.name, "platform": "onnxruntime_onnx", "max_batch_size": 0,
        "input": [entry(spec) for spec in inputs],
        "output": [entry(spec) for spec in outputs],
    }  # fmt: skip


async def _config(call: Call) -> Response:
    return json_response(model_config(_model(call)))


def _triton(datatype: str) -> str:
    return "STRING" if datatype == "BYTES" else datatype


async def _infer(call: Call) -> Response:
    model = _model(call)
    inputs, _ = specs_of(model)
    data, head = await call.body(), call.headers.get(HEADER)
    size = to_read(data, head, inputs)
    question = await call.apart(size, lambda: question_known(data, head) or read_question(data, head, inputs))
    call.grow(size_of(question.feeds))  # what JSON says in two bytes may take eight
    outputs = await call.unless_gone(predicted(model, question, call.client))
    call.grow(size_of(outputs))
    write = functools.partial(write_answer, model.name, model.version, question, outputs)
    body, json_bytes = await call.apart(to_write(question, outputs), write)
    if json_bytes is None:
        return Response(body, media_type="application/json")
    return Response(body, headers={HEADER: str(json_bytes)}, media_type="application/octet-stream")


async def predicted(
    model: Model, question: Question, client: str, left: float | None = None
) -> Mapping[str, Array]:
    """The outputs of a request. ``left``: seconds that its client waits, where that is known. Raises
    `RefusalError`, and what the ranks raise."""
    priority, seconds = priority_of(question), seconds_of(question, left)
    if isinstance(model, TextModel):
        return await texts.answered(model, question.feeds, client, priority, seconds)
    assert isinstance(model, TensorModel)
    return await model.predict(question.feeds, client=client, priority=priority, seconds=seconds)


def priority_of(question: Question) -> int:
    """How urgent a request is: 0 goes before 1. Raises `RefusalError`."""
    return _whole(question.parameters, "priority")


def seconds_of(question: Question, left: float | None = None) -> float | None:
    """How long a request may take; ``left``: as `predicted`. Raises `RefusalError`."""
    timeout = _whole(question.parameters, "timeout")  # microseconds, as Triton has it
    return min((limit for limit in (timeout / 1e6, left) if limit), default=None)


def _whole(parameters: Mapping[str, object], name: str) -> int:
    found = field_of(parameters, name, int, "parameters.") or 0
    if not 0 <= found <= _MOST_PARAMETER:  # a negative one would go before everybody's
        raise bad(f"parameters.{name}: expected 0 to {_MOST_PARAMETER}, found {said(found)}")
    return found


def model_numbers(model: Model) -> dict[str, object]:
    """What a model has done so far."""
    own = model.numbers
    count = own.succeeded

    def spent(times: int, nanoseconds: int) -> dict[str, int]:
        return {"count": times, "ns": nanoseconds}

    return {
        "name": model.name, "version": model.version, "last_inference": int(own.last * 1000),
        "inference_count": count, "execution_count": own.runs,
        "inference_stats": {
            "success": spent(count, own.waiting_ns + own.computing_ns), "fail": spent(own.failed, 0),
            "queue": spent(count, own.waiting_ns), "compute_infer": spent(count, own.computing_ns),
            "compute_input": spent(count, 0), "compute_output": spent(count, 0),
        },
    }  # fmt: skip


async def _statistics(call: Call) -> Response:
    return json_response({"model_stats": [model_numbers(_model(call))]})


async def _all_statistics(call: Call) -> Response:
    return json_response(
        {"model_stats": [model_numbers(model) for model in call.context.repository.models.values()]}
    )


def models_listed(context: Context, ready: bool | None) -> list[object]:
    """The models of a server. ``ready``: those alone that are."""
    return [
        {"name": model.name, "version": model.version, "state": model.state.value, "reason": ""}
        for model in context.repository.models.values()
        if not ready or model.state is State.READY
    ]


async def _index(call: Call) -> Response:
    asked = field_of(await call.fields(), "ready", bool)
    return json_response(models_listed(call.context, asked))


async def load(model: Model, parameters: Collection[str]) -> None:
    """Loads a model. Raises `RefusalError`."""
    if parameters:
        raise bad(
            f"parameters: this server loads what it was started with; leave out {said(sorted(parameters))}"
        )
    try:
        await model.load()
    except (LaunchError, RankFailedError) as error:
        log.error("model %s: it could not be loaded: %s", model.name, error)
        raise RefusalError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"the model {model.name!r} could not be loaded; the server's log says why",
        ) from None


async def _load(call: Call) -> Response:
    parameters = field_of(await call.fields(), "parameters", dict)
    await load(_model(call), parameters or {})
    return json_response({})


async def _unload(call: Call) -> Response:
    name = call.request.path_params["model"]
    await call.context.repository.unload(name)
    call.model = name
    return json_response({})
