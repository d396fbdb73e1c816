"""The methods of the Open Inference Protocol over gRPC, and of gRPC's health protocol."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from typing import TYPE_CHECKING, TypeAlias, cast

from google.protobuf.json_format import ParseDict

from launcher.serving.access import Role
from launcher.serving.grpc.schema import HEALTH, METHODS, SERVICE, classes
from launcher.serving.grpc.stream import Streams
from launcher.serving.grpc.tensors import asked_question, written_answer
from launcher.serving.kserve import routes
from launcher.serving.models import Model, State
from launcher.serving.refusals import RefusalError

if TYPE_CHECKING:
    import asyncio

    import grpc
    from google.protobuf.message import Message

    from launcher.serving.grpc.calls import Calls, Conversation
    from launcher.serving.grpc.messages import (
        HealthCheckRequest,
        ModelInferRequest,
        Named,
        RepositoryIndexRequest,
        RepositoryModelRequest,
    )

Simple: TypeAlias = "Callable[[Conversation, Message], Awaitable[Mapping[str, object]]]"
_DATA_TYPES = (
    "BOOL", "UINT8", "UINT16", "UINT32", "UINT64", "INT8", "INT16", "INT32", "INT64", "FP16", "FP32", "FP64",
    "STRING", "BF16",
)  # fmt: skip
"""Triton's element types, of which the first is 1."""
_SERVING, _NOT_SERVING = 1, 2


def methods(calls: Calls, ending: asyncio.Event) -> dict[str, dict[str, grpc.RpcMethodHandler]]:
    """The handlers of all methods, by service and name. ``ending``: is set when no more is asked."""

    def one(name: str, work: Simple, role: Role = Role.USER) -> grpc.RpcMethodHandler:
        request, answer = METHODS[name]
        return calls.handler(f"/{SERVICE}/{name}", _told(request, answer, work), role)

    simple: Mapping[str, Simple] = {
        "ModelReady": _model_ready, "ServerMetadata": _server, "ModelMetadata": _metadata,
        "ModelConfig": _config, "ModelStatistics": _statistics, "RepositoryIndex": _index,
    }  # fmt: skip
    found = {name: one(name, work) for name, work in simple.items()}
    for name, work in {"ServerLive": _live, "ServerReady": _ready}.items():
        found[name] = one(name, work, Role.FREE)
    for name, work in {"RepositoryModelLoad": _load, "RepositoryModelUnload": _unload}.items():
        found[name] = one(name, work, Role.LOADS)
    found["ModelInfer"] = calls.handler(f"/{SERVICE}/ModelInfer", _infer)
    streams = Streams(calls, ending)
    found["ModelStreamInfer"] = calls.handler(f"/{SERVICE}/ModelStreamInfer", streams.answer)
    check = calls.handler(
        f"/{HEALTH}/Check", _told("HealthCheckRequest", "HealthCheckResponse", _health), Role.FREE
    )
    return {SERVICE: found, HEALTH: {"Check": check}}


def _told(request: str, answer: str, work: Simple) -> Callable[[Conversation], Awaitable[None]]:
    async def told(conversation: Conversation) -> None:
        found = await work(conversation, await conversation.ask(request))
        await conversation.tell(ParseDict(found, classes()[answer]()))

    return told


def _model(conversation: Conversation, name: str, version: str = "") -> Model:
    found = conversation.context.repository.get(name, version)
    conversation.call.use(found)
    return found


def _named(conversation: Conversation, message: Message) -> Model:
    asked = cast("Named", message)
    return _model(conversation, asked.name, asked.version)


async def _live(conversation: Conversation, message: Message) -> Mapping[str, object]:
    return {"live": True}


async def _ready(conversation: Conversation, message: Message) -> Mapping[str, object]:
    return {"ready": routes.is_ready(conversation.context)}


async def _model_ready(conversation: Conversation, message: Message) -> Mapping[str, object]:
    return {"ready": _named(conversation, message).state is State.READY}


async def _health(conversation: Conversation, message: Message) -> Mapping[str, object]:
    asked = cast("HealthCheckRequest", message)
    if asked.service in {"", SERVICE}:
        ready = routes.is_ready(conversation.context)
    elif (model := conversation.context.repository.models.get(asked.service)) is not None:
        ready = model.state is State.READY
    else:
        raise RefusalError(HTTPStatus.NOT_FOUND, f"there is no service {asked.service[:80]!r} here")
    return {"status": _SERVING if ready else _NOT_SERVING}


async def _server(conversation: Conversation, message: Message) -> Mapping[str, object]:
    return routes.server_metadata()


async def _metadata(conversation: Conversation, message: Message) -> Mapping[str, object]:
    return routes.model_metadata(_named(conversation, message))


async def _config(conversation: Conversation, message: Message) -> Mapping[str, object]:
    config = routes.model_config(_named(conversation, message))
    for ends in ("input", "output"):
        for entry in cast("list[dict[str, object]]", config[ends]):
            entry["data_type"] = 1 + _DATA_TYPES.index(str(entry["data_type"]).removeprefix("TYPE_"))
    return {"config": config}


async def _statistics(conversation: Conversation, message: Message) -> Mapping[str, object]:
    asked, models = cast("Named", message), conversation.context.repository.models
    found = [_named(conversation, message)] if asked.name else list(models.values())
    return {"model_stats": [routes.model_numbers(model) for model in found]}


async def _index(conversation: Conversation, message: Message) -> Mapping[str, object]:
    asked = cast("RepositoryIndexRequest", message)
    return {"models": routes.models_listed(conversation.context, asked.ready)}


def _moved(message: Message) -> str:
    asked = cast("RepositoryModelRequest", message)
    # Triton's clients name the model in the second field, KServe's in the first.
    return asked.model_name or asked.repository_name


async def _load(conversation: Conversation, message: Message) -> Mapping[str, object]:
    asked = cast("RepositoryModelRequest", message)
    model = _model(conversation, _moved(asked))
    await routes.load(model, list(asked.parameters))
    return {"model_name": model.name, "isLoaded": True}


async def _unload(conversation: Conversation, message: Message) -> Mapping[str, object]:
    name = _moved(message)
    await conversation.context.repository.unload(name)
    conversation.call.model = name
    return {"model_name": name, "isLoaded": False}


async def _infer(conversation: Conversation) -> None:
    asked = cast("ModelInferRequest", await conversation.ask("ModelInferRequest"))
    model = _model(conversation, asked.model_name, asked.model_version)
    routes.specs_of(model)  # what is not ready is said before what is wrong with the tensors
    call = conversation.call
    question = await asked_question(call, asked, conversation.size)
    outputs = await routes.predicted(model, question, call.client, conversation.left)
    await conversation.tell(await written_answer(call, model, asked, question, outputs))
