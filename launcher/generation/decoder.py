"""What generation needs of a model: a decoder that starts sequences, and sequences that read tokens.

Whatever runs a model (ranks that keep the state, or a caller that carries it along) stands behind these two
protocols; nothing above them knows which.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping
from collections.abc import Sequence as Several
from typing import TYPE_CHECKING, Protocol, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from launcher.errors import ConfigError
from ranks.common.tensors import TensorSpec
from sharding.common.text import counted

if TYPE_CHECKING:
    from ranks.tokens.chooser import Chooser
    from sharding.common.arrays import Array


Ids = NDArray[np.int64]
Logits = NDArray[np.float32]
"""(positions, vocabulary): before any softmax."""
Arrays = Mapping[str, "Array"]


class Sequence(Protocol):
    """The state of one sequence in a model."""

    @property
    def length(self) -> int:
        """Tokens read so far."""

    def step(self, ids: Ids, *, every: bool = False) -> Logits:
        """Reads tokens (n,), n at least 1, and returns the logits of the last one (1, vocabulary), or with
        ``every`` those of all (n, vocabulary)."""

    def rewind(self, length: int) -> None:
        """Forgets all tokens from position ``length`` on. Only where the decoder `Decoder.rewinds`, or to 0,
        or to the present length."""

    def fork(self) -> Sequence:
        """An independent sequence that has read the same tokens."""

    def close(self) -> None:
        """Frees the state; safe to call twice."""


@runtime_checkable
class Follows(Protocol):
    """A sequence that may be able to choose tokens, and read them on, by itself."""

    @property
    def follows(self) -> bool:
        """Whether it can from here on."""

    def follow(
        self, chooser: Chooser, most: int, ahead: int, wanted: Callable[[], bool] | None = None
    ) -> Generator[int]:
        """The tokens that follow a text, as they come: at most ``most``, and none after one that ends the
        text. None may come. The text's last token is read first; that which comes last is not read. At most
        ``ahead`` are chosen before they are asked for.

        Once ``wanted`` is false no more are chosen. Those that were still come, and then the sequence is
        where its reader is. Closed before, it forgets them; recurrent state cannot, and is freed.
        """


@runtime_checkable
class MakesRoom(Protocol):
    """A sequence that can make room at once for what it will hold."""

    expected: int
    """How many tokens that is; it counts before the first one is read."""


def expect(sequence: Sequence, prompt: int, most: int) -> None:
    """Says what is to come: a prompt, and up to ``most`` tokens after it. So a sequence need not move what it
    has read to get more room, as it would at each doubling; nor has it more room than a doubling gives."""
    if isinstance(sequence, MakesRoom):
        sequence.expected = min(prompt + most, 2 * prompt)


class Decoder(Protocol):
    """A model that can start sequences."""

    @property
    def vocabulary(self) -> int:
        """How many ids there are: 0 to ``vocabulary`` - 1."""

    @property
    def context(self) -> int | None:
        """The most tokens that a sequence may hold; None if nothing says it."""

    @property
    def rewinds(self) -> bool:
        """Whether sequences can forget their last tokens. Recurrent state cannot."""

    @property
    def encoder_inputs(self) -> Several[TensorSpec]:
        """The arrays that `sequence` takes, which an encoder reads first; nothing for a decoder alone. A text
        encoder takes ``input_ids`` (1, n), and ``attention_mask`` where it is given."""

    def sequence(self, inputs: Arrays | None = None) -> Sequence:
        """A new, empty sequence; of an encoder-decoder model with the encoder's ``inputs``."""

    def step_many(self, sequences: Several[Sequence], ids: Ids) -> list[Logits]:
        """Has each sequence read one token of ``ids`` (sequences,); the logits (1, vocabulary) of each."""


def step_each(sequences: Several[Sequence], ids: Ids) -> list[Logits]:
    """`Decoder.step_many` where sequences are no quicker together."""
    return [sequence.step(ids[k : k + 1]) for k, sequence in enumerate(sequences)]


def check_ids(ids: object, decoder: Decoder, what: str = "the prompt") -> Ids:
    """Token ids as an array (n,). Raises `ConfigError` for none, and for what is no id of this model."""
    try:
        array = np.asarray(ids)
    except ValueError:
        array = np.empty((0, 0))
    if array.ndim == 2 and array.shape[0] == 1:
        array = array[0]
    if array.ndim != 1 or (array.size and array.dtype.kind not in "iu"):
        raise ConfigError(
            f"{what}: expected token ids, which are whole numbers in one row, found {ids!r:.80}"
        )
    if not array.size:
        raise ConfigError(f"{what} has no token: expected at least one, such as the model's first token")
    low, high = int(array.min()), int(array.max())
    if low < 0 or high >= decoder.vocabulary:
        wrong = low if low < 0 else high
        raise ConfigError(
            f"{what} holds the token {wrong}, but the model's vocabulary has the ids 0 to "
            f"{decoder.vocabulary - 1}; is the tokenizer another model's?"
        )
    return array.astype(np.int64)


def check_room(length: int, context: int | None) -> int | None:
    """How many tokens may follow so many, at least one, in a context; None if nothing says it. Raises
    `ConfigError`."""
    if context is None:
        return None
    if length >= context:
        raise ConfigError(
            f"the prompt has {counted(length, 'token')}, but the model's context holds {context}, "
            "and one must be left for the answer; shorten it"
        )
    return context - length
