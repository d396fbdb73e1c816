"""Routes that change what a model computes: new weights, and other versions. They take an admin's token."""

from __future__ import annotations

import logging
from collections.abc import Mapping
from http import HTTPStatus

from starlette.responses import Response
from starlette.routing import Route

from launcher.errors import ConfigError, LaunchError, RankFailedError, ShardrunError
from launcher.serving.access import Role
from launcher.serving.bodies import bad, needed
from launcher.serving.context import Call, Context, Frame, json_response
from launcher.serving.kserve.tensors import described
from launcher.serving.refusals import RefusalError
from launcher.serving.tensor_model import TensorModel
from launcher.serving.upkeep.versions import check_alike
from launcher.serving.upkeep.weights import Updates, holds_weights

log = logging.getLogger(__name__)

_BASE = "/v2/repository/models/{model}"


def _error(refusal: RefusalError) -> Mapping[str, object]:
    return {"error": str(refusal)}


def routes(context: Context, updates: Updates) -> list[Route]:
    """All of them."""
    frame = Frame(context, "repository", _error)

    async def replace(call: Call) -> Response:
        return await _replace(call, updates)

    return [
        Route(f"{_BASE}/weights", frame(_weights, Role.LOADS)),
        Route(f"{_BASE}/weights", frame(replace, Role.CHANGES), methods=["POST"]),
        Route(f"{_BASE}/versions/{{version}}/load", frame(_load, Role.CHANGES), methods=["POST"]),
    ]


def _model(call: Call) -> TensorModel:
    found = call.context.repository.get(call.request.path_params["model"])
    if not isinstance(found, TensorModel):
        raise RefusalError(
            HTTPStatus.CONFLICT,
            f"texts of {found.name!r} remember what its weights made of them, so that these are not replaced "
            "under them: load another version of it",
        )
    call.use(found)
    return found


async def _weights(call: Call) -> Response:
    model = _model(call)
    group = model.ready
    return json_response(
        {
            "name": model.name, "version": model.version, "updates": group.weights_version,
            "weights": [described(spec) for spec in group.variable_weights],
        }
    )  # fmt: skip


async def _replace(call: Call, updates: Updates) -> Response:
    model = _model(call)
    data = await call.body()
    source: bytes | str = data
    if not holds_weights(data):
        asked = await call.object_in(data)
        if others := sorted(asked.keys() - {"file"}):
            raise bad(f"{others[0]!r}: expected the key `file` alone")
        source = needed(asked, "file", str)
    number, names = await updates.replace(model, source)
    log.warning("model %s: update %d replaced %d of its weights", model.name, number, len(names))
    return json_response({"name": model.name, "version": model.version, "updates": number, "weights": names})


async def _load(call: Call) -> Response:
    name, version = call.request.path_params["model"], call.request.path_params["version"]
    call.model = call.context.repository.get(name).name
    try:
        await call.context.repository.replace(name, version, check_alike)
    except RefusalError:
        raise
    except (ConfigError, LaunchError, RankFailedError, ShardrunError, OSError) as error:
        log.error("model %s: version %s could not be loaded: %s", name, version, error)
        raise RefusalError(
            HTTPStatus.SERVICE_UNAVAILABLE,
            f"version {version} of the model {name!r} could not be loaded; the server's log says why",
        ) from None
    return json_response({"name": name, "version": version})
