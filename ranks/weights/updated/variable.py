"""Weights that can be replaced between two predictions."""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

import onnx
import onnxruntime as ort

from ranks.common import forks
from ranks.common.tensors import array_of, element_number
from ranks.errors import ModelError, WeightsError
from ranks.models import model_file
from ranks.sessions.nodes import reads
from ranks.weights.updated.graph import Divided, divide
from ranks.weights.updated.values import (
    Delta,
    Given,
    Pair,
    Snapshot,
    Spec,
    added,
    check_value,
    contiguous,
    converted,
    copied,
    delta,
    not_marked,
    of_file,
    ort_value,
    some,
    transposed,
)

if TYPE_CHECKING:
    from ranks.sessions.session import SessionConfig
    from ranks.weights.updated.memory import Attached, Published, Region
    from sharding.common.arrays import Array


@dataclass(frozen=True)
class Feed:
    """A further input of the session: the weight or prepared value that it takes, and what it is.

    A length of a prepared value that depends on the values themselves is None.
    """

    source: str
    element: int
    shape: tuple[int | None, ...]
    turned: bool = False
    """Whether it takes the source transposed, which is a matrix then."""


@dataclass(frozen=True)
class Prepared:
    """An update that is complete but not in use yet."""

    snapshot: Snapshot
    values: Mapping[str, Array]
    bases: Mapping[str, Array]
    regions: Mapping[str, Region]
    """Where the new values lie in shared memory."""


@dataclass(frozen=True)
class Preparation:
    """Computes from the weights what the main model reads in their place."""

    session: ort.InferenceSession
    sources: Mapping[str, frozenset[str]]

    def run(self, values: Mapping[str, ort.OrtValue], outputs: Sequence[str]) -> dict[str, ort.OrtValue]:
        """These outputs. Raises `WeightsError` where ONNX Runtime cannot compute them."""
        inputs = {argument.name: values[argument.name] for argument in self.session.get_inputs()}
        try:
            found = self.session.run_with_ort_values(list(outputs), inputs)
        except Exception as error:
            from ranks.sessions.session import reason

            raise WeightsError(
                f"What the model computes from these weights cannot be computed: {reason(error)}"
            ) from None
        return dict(zip(outputs, found, strict=True))


class VariableWeights:
    """The variable weights of one loaded model (of a rank: of its part), with their present values."""

    def __init__(
        self,
        weights: Mapping[str, Spec],
        values: Mapping[str, Array],
        feeds: Mapping[str, Feed],
        preparation: Preparation | None = None,
        device: tuple[str, int] = ("cpu", 0),
    ) -> None:
        """``feeds``: the further inputs of the model's session; ``values``: those of the file."""
        self.specs = dict(weights)
        self.feeds = dict(feeds)
        read = {argument.name for argument in preparation.session.get_inputs()} if preparation else set()
        own = {name: feed for name, feed in feeds.items() if feed.source in weights}
        self._direct = {feed.source: name for name, feed in own.items() if not feed.turned}
        """Weight -> the feed that is its value."""
        self._mirrored = {
            feed.source: name
            for name, feed in own.items()
            if feed.turned and feed.source not in self._direct and feed.source not in read
        }
        """Weight that is kept transposed alone -> the feed that has it so."""
        self._preparation = preparation
        self._device = device
        self._values = dict(values)
        self._bases: dict[str, Array] = {}
        self._current: Snapshot | None = None
        self._published: Published | None = None
        self._attached: Attached | None = None
        self._lock = threading.RLock()
        forks.in_child(self, VariableWeights._renew)

    def _renew(self) -> None:
        """In a forked child: it updates its own copy, and no other process's."""
        self._lock = threading.RLock()
        self._published = None

    @property
    def names(self) -> tuple[str, ...]:
        """The weights that may be replaced."""
        return tuple(self.specs)

    @property
    def nbytes(self) -> int:
        """Bytes of all variable weights."""
        return sum(spec.nbytes for spec in self.specs.values())

    @property
    def version(self) -> int:
        """0 for the values of the file, then one more with every update."""
        return self.snapshot().version

    def snapshot(self) -> Snapshot:
        """The present version. Cheap: for every prediction; safe from any thread."""
        if self._attached is not None:
            return self._attached.snapshot()
        current = self._current
        return current if current is not None else self._first()

    def _first(self) -> Snapshot:
        with self._lock:
            if self._attached is not None:
                return self._attached.snapshot()
            if self._current is None:
                first = self._build(0, self._values, self._values, {})
                self._current, self._values = first.snapshot, dict(first.values)
            return self._current

    def update(self, given: Given) -> int:
        """Replaces weights, all at once; returns the new version.

        Raises `WeightsError` where a name, type or shape is not that of a variable weight; nothing has
        changed then.
        """
        with self._lock:
            return self.commit(self.prepare(given))

    def prepare(self, given: Given, *, empty: bool = False) -> Prepared:
        """All of an update but its coming into use. ``empty``: it may concern none of these weights."""
        with self._lock:
            if self._attached is not None:
                raise WeightsError(
                    "These weights are another process's, which shares them: only their owner updates them."
                )
            if not given and not empty:
                raise WeightsError(
                    "No weights were given: give one list of tensors that are named as the weights, like "
                    f"[[tensor]]. Variable are {some(self.names)}."
                )
            try:
                fresh, bases = self._fresh(given)
                return self._build(self.snapshot().version + 1, {**self._values, **fresh}, fresh, bases)
            except MemoryError:
                raise WeightsError(
                    "There is not enough memory for the new weights beside the present ones."
                ) from None

    def commit(self, prepared: Prepared) -> int:
        """Makes a prepared update the present version, which it returns."""
        with self._lock:
            self._values, self._bases = dict(prepared.values), dict(prepared.bases)
            self._current = prepared.snapshot
            if self._published is not None:
                self._published.publish(prepared.snapshot.version, prepared.regions)
            return prepared.snapshot.version

    def check(self, name: str, value: Array | Pair | Delta) -> None:
        """Raises `WeightsError` unless a value may be given for a weight."""
        spec = self.specs.get(name)
        if spec is None:
            raise WeightsError(not_marked(name, self.names))
        check_value(name, spec, value)

    def _fresh(self, given: Given) -> tuple[dict[str, Array], dict[str, Array]]:
        """The new values, our own or about to be copied, and the bases of pairs after the update."""
        for name, value in given.items():
            self.check(name, value)
        fresh: dict[str, Array] = {}
        bases = {name: base for name, base in self._bases.items() if name not in given}
        for name, value in given.items():
            if isinstance(value, (Pair, Delta)):
                change = delta(value, self.specs[name].dtype) if isinstance(value, Pair) else value.change
                bases[name] = self._bases.get(name, self._values[name])
                fresh[name] = added(bases[name], change)
                continue
            new = converted(value, self.specs[name])
            # To write it to shared memory, or transposed, is to copy it; what else is kept must be our own.
            passing = name in self._mirrored or (self._published is not None and name in self._direct)
            fresh[name] = copied(new) if new is value and not passing else new
        return fresh, bases

    def _build(
        self,
        version: int,
        values: Mapping[str, Array],
        fresh: Mapping[str, Array],
        bases: Mapping[str, Array],
    ) -> Prepared:
        """A version in which the weights ``fresh`` are new."""
        placed = self._changed(values, fresh)
        regions: Mapping[str, Region] = {}
        if self._published is not None:
            regions = self._published.place(placed)
            placed = {feed: region.array for feed, region in regions.items()}
        kept = dict(values)
        kept.update((name, placed[feed]) for name, feed in self._direct.items() if feed in placed)
        kept.update((name, placed[feed].T) for name, feed in self._mirrored.items() if feed in placed)
        before = self._current
        arrays = {**(before.arrays if before else {}), **placed}
        feeds = {**(before.feeds if before else {}), **self._ort_values(placed)}
        return Prepared(Snapshot(version, feeds, arrays), kept, bases, regions)

    def _changed(self, values: Mapping[str, Array], fresh: Mapping[str, Array]) -> dict[str, Array]:
        """The feeds that new values of these weights change."""
        sources = {**fresh, **self._prepared(values, fresh)}
        return {
            name: transposed(sources[feed.source]) if feed.turned else sources[feed.source]
            for name, feed in self.feeds.items()
            if feed.source in sources
        }

    def _prepared(self, values: Mapping[str, Array], fresh: Mapping[str, Array]) -> dict[str, Array]:
        """What the preparation makes of new values of these weights."""
        if self._preparation is None:
            return {}
        known = self._preparation.sources.items()
        outputs = [name for name, weights in known if not weights.isdisjoint(fresh)]
        if not outputs:
            return {}
        given = {name: ort_value(contiguous(array)) for name, array in values.items()}
        return {name: array_of(value) for name, value in self._preparation.run(given, outputs).items()}

    def _ort_values(self, arrays: Mapping[str, Array]) -> dict[str, ort.OrtValue]:
        return {feed: ort_value(array, *self._device) for feed, array in arrays.items()}

    def blamed(self, model: onnx.ModelProto, error: str) -> str:
        """ONNX Runtime's refusal of a model that has these weights as inputs, with the weights concerned."""
        readers = [(reads(node), node.name) for node in model.graph.node]
        named = {
            feed.source
            for name, feed in self.feeds.items()
            if any(node and node in error and name in names for names, node in readers)
        }
        names = sorted(named) or list(self.names)
        return (
            f"{error} The weight{'s' if len(names) > 1 else ''} {some(names)} would be variable, but some "
            "operators take constants only: leave out what these read."
        )

    # Sharing with other processes.

    def export(self) -> tuple[dict[str, object], list[int]]:
        """The present version for another process: a JSON-able description, and open files to send with it.

        From the first call on the values lie in memory that other processes can map. The caller closes the
        files. Raises `WeightsError` where there is no such memory.
        """
        from ranks.weights.updated.memory import Published

        with self._lock:
            if self._attached is not None:
                raise WeightsError("These weights are another process's, which shares them.")
            if self._published is None:
                snapshot = self.snapshot()
                published = Published(snapshot.version)
                regions = published.place(snapshot.arrays)
                published.publish(snapshot.version, regions)
                placed = {feed: region.array for feed, region in regions.items()}
                self._values.update((name, placed[feed]) for name, feed in self._direct.items())
                self._values.update((name, placed[feed].T) for name, feed in self._mirrored.items())
                self._current = Snapshot(snapshot.version, self._ort_values(placed), placed)
                self._published = published
            description, files = self._published.describe()
            return {"names": list(self.names), **description}, files

    def attach(
        self,
        description: Mapping[str, object],
        files: Sequence[int],
        fetch: Callable[[], tuple[Mapping[str, object], Sequence[int]]],
    ) -> None:
        """Takes the values from another process from now on, which gave the description and files of its
        `export`; closes the files.

        ``fetch`` asks it for its newest version, in the same form; it is called by the first prediction after
        an update. Where it raises `OSError`, `EOFError` or `ShardrunError` the values stay as they are (the
        owner may have ended); after a `TimeoutError` the next prediction calls it again. Raises
        `WeightsError` where the description does not fit this model.
        """
        from ranks.weights.updated.memory import Attached

        expected = {name: (feed.element, feed.shape) for name, feed in self.feeds.items()}
        attached = Attached(description, files, fetch, expected, self._ort_values)
        with self._lock:
            self._attached = attached
            self._current, self._values, self._bases = None, {}, {}


def mark(
    model: onnx.ModelProto,
    names: Sequence[str],
    file: Path,
    config: SessionConfig,
    device: tuple[str, int] = ("cpu", 0),
) -> VariableWeights:
    """Makes weights of a model inputs of it (``model`` changes); returns them with the file's values.

    Raises `ModelError` for names that are no weights of the model or cannot be variable.
    """
    divided = divide(model, names, file, products=device[0] == "cpu")
    preparation: Preparation | None = None
    prepared: dict[str, Feed] = {}
    if divided.preparation is not None:
        preparation, prepared = _load(divided, file, config)
    feeds: dict[str, Feed] = {}
    for name, source in divided.feeds.items():
        tensor = divided.weights.get(source)
        feed = prepared[source] if tensor is None else Feed(source, tensor.data_type, tuple(tensor.dims))
        if name in divided.turned:
            feed = replace(feed, shape=feed.shape[::-1], turned=True)
        feeds[name] = feed
        value = onnx.helper.make_tensor_value_info(name, feed.element, list(feed.shape))
        model.graph.input.append(value)
    specs = {name: Spec(tensor.data_type, tuple(tensor.dims)) for name, tensor in divided.weights.items()}
    values = {name: of_file(tensor, file) for name, tensor in divided.weights.items()}
    return VariableWeights(specs, values, feeds, preparation, device)


def _load(divided: Divided, file: Path, config: SessionConfig) -> tuple[Preparation, dict[str, Feed]]:
    from ranks.sessions.session import SessionConfig, create

    assert divided.preparation is not None
    session = create(
        model_file.serialized(divided.preparation, file),
        SessionConfig(threads=config.threads, folder=file.parent),
        f"what {file} computes from its variable weights",
    )
    feeds = {}
    for argument in session.get_outputs():
        element = element_number(argument.type)
        if element is None:
            names = ", ".join(map(repr, sorted(divided.sources[argument.name])[:5]))
            raise ModelError(
                f"{file} makes a {argument.type} of the weights {names}, so that they cannot be variable."
            )
        shape = tuple(dim if isinstance(dim, int) and dim >= 0 else None for dim in argument.shape)
        feeds[argument.name] = Feed(argument.name, element, shape)
    return Preparation(session, divided.sources), feeds
