"""The version that the command and the package tell."""

from __future__ import annotations

from importlib import metadata

import pytest
from launcher.common.version import version


def test_a_source_tree_that_is_not_installed_knows_its_version(monkeypatch: pytest.MonkeyPatch) -> None:
    wanted = version()

    def missing(name: str) -> str:
        raise metadata.PackageNotFoundError(name)

    monkeypatch.setattr(metadata, "version", missing)
    assert version() == wanted
