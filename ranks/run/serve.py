"""A rank that stays up: loads its shard once, then answers its launcher's requests until told to stop."""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, cast

from ranks.common import large_pages
from ranks.common.pulse import work
from ranks.errors import CollectiveError, ShardrunError
from ranks.identity.told import NOTHING
from ranks.run.steps.spent import Spent
from ranks.talk.reports import WHOLE
from ranks.talk.wire import Kind, Message
from sharding.common.ranges import in_ranges

if TYPE_CHECKING:
    from ranks.collectives.broadcast import Spreader
    from ranks.common.tensors import TensorSpec
    from ranks.identity.place import Identity
    from ranks.identity.told import Told
    from ranks.run.rank_model import RankModel
    from ranks.run.steps.shown import Asking
    from ranks.talk.control import Control
    from ranks.talk.reports import Change, RunReport


def serve(  # noqa: PLR0917 - the words of its command line
    identity: Identity,
    control: Control | None,
    path: str,
    target: str = "cpu",
    precision: str = "",
    weights: str = "",
    *,
    told: Told = NOTHING,
) -> None:
    """Joins the group, loads ``path`` on ``target`` and serves; returns when the launcher says stop.

    ``precision``: the text of a `ranks.precision.request.Asked`; "" for none. ``weights``: the names of those
    that may be replaced, as a list in JSON; "" for none. ``told``: may name a copy that stands for ``path``
    on this host.
    """
    if control is None:
        raise ShardrunError(
            "`ranks.boot serve` is started by shardrun's launchers only (SHARDRUN_CONTROL is not set): "
            "use `shardrun run`, or launcher.start() from Python."
        )
    from ranks.cache import staged
    from ranks.collectives.broadcast import Spreader
    from ranks.precision.request import Asked
    from ranks.run.executor import LoadOptions
    from ranks.run.target import load

    path = staged.here(path, told, identity.host)
    began = time.perf_counter()
    asked = Asked.from_text(precision) if precision else None
    names = json.loads(weights) if weights else ()
    communicator, model = load(
        path, identity, target, asked=asked, variable_weights=names, options=LoadOptions(alone=True)
    )
    control.send(
        Kind.READY, _describe(model, model.collectives or communicator.name, time.perf_counter() - began)
    )
    at = _Place(identity.rank, model, Spreader(communicator), control, Spent(model))
    try:
        while True:
            # Blocks without a time-out and without spinning: an idle rank uses no CPU. No rank waits for a
            # peer between requests either, since the launcher wakes each of them.
            began = time.perf_counter()
            message = control.next()
            at.spent.waited(began)
            if message.kind is Kind.STOP:
                break
            if message.kind is Kind.PREDICT:
                good = _predict(message, at)
            elif message.kind is Kind.WEIGHTS:
                good = _replace(message, at)
            elif message.kind is Kind.STATS:
                control.send(Kind.STATS, at.spent.told())
                continue
            else:
                good = _change(message.fields, identity.rank, model, control)
            if not good and not control.resumed(message.fields.get("request")):
                break
    finally:
        model.close()
        communicator.close()


@dataclasses.dataclass(frozen=True)
class _Place:
    """A rank that serves: what each of its requests needs."""

    rank: int
    model: RankModel
    spreader: Spreader
    control: Control
    spent: Spent

    @functools.cached_property
    def asking(self) -> Asking:
        """What its steps were asked for. Only a model with state has steps, and few make texts: what chooses
        tokens is imported by those that do."""
        from ranks.run.steps.shown import Asking

        return Asking()


@work
def _predict(message: Message, at: _Place) -> bool:
    """Computes a request, of which rank 0 sends the answer; whether that could be done."""
    rank, model, spreader, control = at.rank, at.model, at.spreader, at.control
    request, session = message.fields.get("request"), message.fields.get("session")
    woken = time.perf_counter()
    given = message if WHOLE in message.fields else spreader.spread(message if rank == 0 else None)
    feeds, run = given.tensors, cast("RunReport | None", given.fields.get("run"))
    began = time.perf_counter()
    more = {}
    try:
        if run is not None:
            from ranks.run.steps.follow import Lead, follow

            lead = Lead(run, cast("int", request), control) if rank == 0 else None
            more, tensors = {"error": follow(model, cast("int", session), feeds, run, spreader, lead)}, {}
            if lead is not None:
                model.sequences.choosing_seconds += lead.seconds
        elif session is not None:
            from ranks.run.steps.shown import shown

            rows = at.asking.rows(given.fields, feeds)
            tensors = shown(model.step(cast("int", session), feeds, rows), rows)
        else:
            outputs = model.run(feeds)
            tensors = {spec.name: array for spec, array in zip(model.outputs, outputs, strict=True)}
        if rank == 0:
            seconds = time.perf_counter() - began
            fields = {"request": request, "stats": model.stats._asdict(), "seconds": seconds, **more}
            control.send(Kind.RESULT, fields, tensors, cast("int", message.fields.get("slot", 0)))
    except CollectiveError:
        raise
    except Exception as error:
        # Often the input's fault (an index out of range), and then every rank stops at the same place: the
        # launcher lets the group live if all of them report it, and ends it otherwise.
        _tell_failed(control, request, error)
        return False
    finally:
        at.spent.add(woken, began)
    return True


def _tell_failed(control: Control, request: object, error: Exception) -> None:
    control.send(Kind.FAILED, {"request": request, "type": type(error).__name__, "message": str(error)})


@work
def _replace(message: Message, at: _Place) -> bool:
    """Replaces weights, of which rank 0 has all: on every rank, or on none; whether that could be done."""
    request, given = message.fields.get("request"), message.tensors
    try:
        if not at.model.gives_parts:
            given = at.spreader.spread(message if at.rank == 0 else None).tensors
        at.model.update_weights(given)
        if at.rank == 0:
            at.control.send(Kind.RESULT, {"request": request})
    except CollectiveError:
        raise
    except Exception as error:
        _tell_failed(at.control, request, error)
        return False
    return True


@work
def _change(fields: Mapping[str, object], rank: int, model: RankModel, control: Control) -> bool:
    """Changes a sequence. Nobody waits for it: what fails is told by the next step."""
    if fields["change"] == "describe":
        return _describe_state(cast("int", fields["request"]), rank, model, control)
    model.sequences.change(**cast("Change", fields))
    return True


def _describe_state(request: int, rank: int, model: RankModel, control: Control) -> bool:
    """Tells what the sessions of the model take; whether it has any."""
    try:
        sequences = model.sequences
        # Each of many small steps will read all weights, and little else. A program's own process is left
        # alone: it may share its memory with others that it has forked.
        large_pages.collapse()
        if rank == 0:
            fields = {
                "request": request,
                "pairs": [dataclasses.asdict(pair) for pair in sequences.pairs],
                "filled": [spec.name for spec in sequences.filled],
            }
            control.send(Kind.RESULT, fields)
    except ShardrunError as error:
        _tell_failed(control, request, error)
        return False
    return True


def _describe(model: RankModel, collectives: str, seconds: float) -> dict[str, object]:
    return {
        "inputs": [_spec(item) for item in model.inputs],
        "optional_inputs": [_spec(item) for item in model.optional_inputs],
        "outputs": [_spec(item) for item in model.outputs],
        "stats": model.stats._asdict(),
        "collectives": collectives,
        "load_seconds": seconds,
        "cpus": in_ranges(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else "",
        "variable": [
            {"name": name, "dtype": spec.dtype.name, "shape": list(spec.shape)}
            for name, spec in model.variable_specs.items()
        ],
    }


def _spec(spec: TensorSpec) -> dict[str, object]:
    dtype = "string" if spec.dtype.kind in "OUS" else spec.dtype.name
    return {"name": spec.name, "dtype": dtype, "shape": list(spec.shape), "open_rank": spec.open_rank}
