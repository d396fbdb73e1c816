"""Manifests, for scripts that import them from here. In this package: `sharding.slices.manifest`."""

from sharding.slices.manifest import Manifest, read_manifest

__all__ = ["Manifest", "read_manifest"]
