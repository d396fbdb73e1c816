"""A model on ranks that are ready, whoever started them: sessions, generation, what a request must hold."""

from __future__ import annotations

import logging
from abc import ABC, abstractmethod
from collections.abc import AsyncIterable, AsyncIterator, Collection, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.errors import ShardrunError
from launcher.group.serving.series import check_ahead, in_order, in_order_async
from ranks.common.tensors import TensorSpec, checked_feeds, unlike

if TYPE_CHECKING:
    from launcher.generation.generate import Generation
    from launcher.generation.options import GenerateOptions
    from ranks.state.session import Host, Session
    from sharding.common.arrays import Array

log = logging.getLogger(__name__)


class ReadyModel(ABC):
    """A model that ranks have loaded. ``inputs``, ``optional_inputs`` (those with a default) and ``outputs``
    are its `TensorSpec`s."""

    inputs: list[TensorSpec]
    optional_inputs: list[TensorSpec]
    outputs: list[TensorSpec]
    _model: Path
    _noted = False
    _weights: Collection[str] | None = None
    """The names of its weights, once somebody fed what it has no input for."""

    @property
    @abstractmethod
    def session_host(self) -> Host:
        """What sessions and batches of them run on. Raises `ShardrunError` for a model without state."""

    @abstractmethod
    def predict(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """The outputs, by name, for one set of inputs, by name."""

    @abstractmethod
    def submit(self, feeds: Mapping[str, Array], *, block: bool = True) -> Future[dict[str, Array]]:
        """A future of what `predict` returns or raises; inputs that do not fit are refused here."""

    @abstractmethod
    def _submit_unbounded(self, feeds: Mapping[str, Array]) -> Future[dict[str, Array]]:
        """`submit` for a coroutine, which waits in any case: any number may wait."""

    def map(
        self,
        feeds: Iterable[Mapping[str, Array]],
        *,
        ahead: int | None = None,
        timeout: float | None = None,
        return_errors: bool = False,
    ) -> Iterator[dict[str, Array] | ShardrunError]:
        """The outputs for each of many inputs, in their order. The inputs are read as outputs are taken, and
        at most ``ahead`` requests (8) before the first that is not taken yet.

        ``return_errors``: what is wrong with single inputs is given in its place, and not raised.
        ``timeout``: seconds to wait for one answer before `TimeoutError` is raised. Raises `ConfigError`.
        """
        return in_order(feeds, self.submit, ahead=check_ahead(ahead), timeout=timeout, errors=return_errors)

    async def predict_async(self, feeds: Mapping[str, Array]) -> dict[str, Array]:
        """`predict` for an event loop, which goes on meanwhile; no thread waits. A task that is cancelled
        gives its place up where its request waits."""
        import asyncio

        return await asyncio.wrap_future(self._submit_unbounded(feeds))

    def map_async(
        self,
        feeds: Iterable[Mapping[str, Array]] | AsyncIterable[Mapping[str, Array]],
        *,
        ahead: int | None = None,
        return_errors: bool = False,
    ) -> AsyncIterator[dict[str, Array] | ShardrunError]:
        """`map` for an event loop."""
        return in_order_async(feeds, self._submit_unbounded, ahead=check_ahead(ahead), errors=return_errors)

    @abstractmethod
    def _check_open(self) -> None:
        """Raises `LaunchError` where the ranks have ended."""

    def session(self) -> Session:
        """A sequence whose state stays on the ranks from one step to the next; several may be open at once.

        Raises `ShardrunError` for a model without state.
        """
        from ranks.state.session import Session

        return Session(self.session_host)

    def generate(
        self,
        prompt: Sequence[int] | Array | None,
        options: GenerateOptions | None = None,
        *,
        inputs: Mapping[str, Array] | None = None,
        **more: object,
    ) -> Generation:
        """Continues token ids with a decoder; arguments and result are those of `launcher.generate`. Texts
        need a tokenizer: see `launcher.load_language_model`.

        Raises `ConfigError` for a model that is no decoder of tokens, and for what does not fit it.
        """
        from launcher.generation.model import of_ranks

        self._check_open()
        return of_ranks(self).generate(prompt, options, inputs=inputs, special=True, **more)

    def _tensors(self, feeds: Mapping[str, Array], *, hint: bool = True) -> dict[str, Array]:
        """What a request sends. Raises `ShardrunError` for inputs that do not fit the model.

        ``hint``: whether it says what to do where a weight was fed, for which the model's file is read once.
        A large one takes a second.
        """
        if not isinstance(feeds, Mapping):
            raise ShardrunError(
                f"Inputs are a mapping of names to arrays, such as {{{self.inputs[0].name!r}: array}}, "
                f"but are {type(feeds).__name__}."
            )
        self._check_open()
        specs = self.inputs + [spec for spec in self.optional_inputs if spec.name in feeds]
        try:
            checked = checked_feeds(specs, feeds)
        except ShardrunError as error:
            raise (self._of_weights(error, feeds) if hint else error) from None
        self._note_symbols(specs, checked.values())
        return checked

    def _of_weights(self, error: ShardrunError, feeds: Mapping[str, Array]) -> ShardrunError:
        """The same error, or where a weight was fed one that says what to do."""
        known = {spec.name for spec in (*self.inputs, *self.optional_inputs)}
        unknown = [name for name in feeds if name not in known]
        if not unknown:
            return error
        from launcher.inspection.signature import fed_weight, names_of_weights

        if self._weights is None:
            self._weights = frozenset(names_of_weights(self._model))
        found = next((name for name in unknown if name in self._weights), None)
        return error if found is None else ShardrunError(f"{str(error).rstrip('.')}{fed_weight(found)}.")

    def _note_symbols(self, specs: Sequence[TensorSpec], arrays: Iterable[Array]) -> None:
        """Says once where one symbol stands for two lengths: it runs, but seldom is it meant."""
        if self._noted or not log.isEnabledFor(logging.INFO):
            return
        found = unlike(specs, [array.shape for array in arrays])
        if found:
            self._noted = True
            log.info("%s: the dimension %s; ONNX Runtime lets them differ.", self._model, found)
