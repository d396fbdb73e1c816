"""What the launcher tells a rank of its place. It says so over their connection, and to each rank only what
concerns it: what starts ranks may give all of them one environment, which cannot hold it for thousands."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True)
class Told:
    """ "" where nothing is said. ``cores`` and ``interface``: the processors to run on, and the network
    interface to reach other hosts by, as a rank table has them; ``alone``: whether no other rank of the job
    runs on these processors; ``copy``: the key of the model's copy in the cache of the rank's host, and
    ``file``: the rank's model in it, where it is no slice folder."""

    cores: str = ""
    interface: str = ""
    alone: bool = False
    copy: str = ""
    file: str = ""

    @classmethod
    def of(cls, fields: Mapping[str, object]) -> Told:
        """From the fields of a message."""
        texts = {name: str(fields.get(name, "")) for name in ("cores", "interface", "copy", "file")}
        return cls(**texts, alone=fields.get("alone") is True)


NOTHING = Told()
