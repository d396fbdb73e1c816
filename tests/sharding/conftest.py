"""What several test modules of this package start from."""

from __future__ import annotations

import logging
from collections.abc import Iterator

import pytest


@pytest.fixture
def quiet() -> Iterator[None]:
    """No warnings of models that give many of them."""
    logging.disable(logging.WARNING)
    yield
    logging.disable(logging.NOTSET)
