"""Weights of a ``transformers`` model: its own loader knows what older files call them."""

from __future__ import annotations

import contextlib
import logging
import warnings
from collections.abc import Iterator, Sequence
from typing import Any

from sharding.errors import ModelError
from sharding.importers.checkpoints.base import Checkpoint
from sharding.importers.checkpoints.match import Match
from sharding.importers.checkpoints.rename import Rule, rename_all
from sharding.importers.networks.factory import Network, described
from sharding.importers.networks.weights import as_tensor


def load(network: Network, checkpoint: Checkpoint, rules: Sequence[Rule], **allowed: bool) -> Match:
    """Builds the network anew with the weights; returns what fitted. Raises `ModelError` (`Match.check`)."""
    names = rename_all(checkpoint.entries, rules)
    with quiet():
        state = {new: as_tensor(checkpoint.entries[old].array()) for new, old in names.items()}
        try:
            module, info = type(network.module).from_pretrained(
                None,
                config=network.module.config,
                state_dict=state,
                output_loading_info=True,
                ignore_mismatched_sizes=True,
            )
        except Exception as error:  # whatever a checkpoint may lead to
            raise ModelError(
                f"{checkpoint.path} cannot be loaded by transformers: {described(error)}."
            ) from None
    unexpected = {str(name) for name in info["unexpected_keys"]}
    result = Match(
        {new: checkpoint.entries[old] for new, old in names.items() if new not in unexpected},
        sorted(str(name) for name in info["missing_keys"]),
        sorted(unexpected),
        [
            f"{name} (expected {list(want)}, found {list(have)})"
            for name, have, want in info["mismatched_keys"]
        ],
    )
    result.check(checkpoint, **allowed)
    network.module = module
    return result


@contextlib.contextmanager
def quiet() -> Iterator[None]:
    """Without the loader's progress and its own report: ours says the same."""
    logger = logging.getLogger("transformers")
    level = logger.level
    logger.setLevel(logging.CRITICAL)
    bars: Any = None
    with contextlib.suppress(ImportError):
        from transformers.utils import logging as progress

        bars = progress
    shown = bars is not None and bars.is_progress_bar_enabled()
    if shown:
        bars.disable_progress_bar()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
        if shown:
            bars.enable_progress_bar()
