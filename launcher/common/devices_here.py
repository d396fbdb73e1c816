"""The accelerators of this machine as a rank table has them, as its own programs and files say."""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Callable
from pathlib import Path

from launcher.common.programs import SilentError, ask, last_line
from launcher.errors import ConfigError
from sharding.common.rank_table import RankTable, parse_rank_table

SECONDS = 20.0
HCCN = Path("/etc/hccn.conf")
"""Where Ascend's driver keeps the addresses of its devices' network cards."""
_ADDRESS = re.compile(r"^\s*address_(\d{1,4})\s*=\s*(\S+)\s*$", re.MULTILINE)
NPUS = ("npu-smi", "info", "-l")
MAP = ("npu-smi", "info", "-m")
_NPU = re.compile(r"^\s*NPU ID\s*:\s*(\d{1,4})\s*$", re.MULTILINE)
_TOTAL = re.compile(r"^\s*(?:Total|Card) Count\s*:\s*(\d{1,4})\s*$", re.MULTILINE)
_CHIPS = re.compile(r"^\s*Chip Count\s*:\s*(?!0*1\s*$)\d{1,4}\s*$", re.MULTILINE)
"""A card with several chips, each of which is a device."""
_CHIP = re.compile(r"^\s*\d{1,4}[ \t]+\d{1,4}[ \t]+(\d{1,4})[ \t]+(?:(\d{1,4})[ \t]+)?\S.*$", re.MULTILINE)
"""A chip that computes, in the list of all chips: its number, and what the hardware calls it, where that is
told too. Of others, such as Mcu, the number is a hyphen."""


def of_gpus() -> RankTable:
    """A rank for each GPU that ``nvidia-smi`` lists. Raises `ConfigError` where there is none."""
    said = _ask("--gpus", "nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
    # Whole lines: a warning may have numbers in it.
    found = [int(line) for line in map(str.strip, said.splitlines()) if line.isdecimal()]
    if not found:
        raise ConfigError("--gpus: nvidia-smi lists no GPU")
    return _table(dict.fromkeys(found, ""))


def of_npus() -> RankTable:
    """A rank for each NPU, with the address of its network card where `HCCN` has it. Raises `ConfigError`
    where there is none, and for addresses that are none."""
    try:
        text = HCCN.read_text(errors="replace")
    except FileNotFoundError:
        said = _ask("--npus", *NPUS)
        found = listed_npus(said, lambda: _ask("--npus", *MAP))
        if not found:
            raise ConfigError(f"--npus: npu-smi lists no NPU, and {HCCN} is not there") from None
        return _table(dict.fromkeys(found, ""))
    except OSError as problem:
        raise ConfigError(f"--npus: {HCCN}: {problem.strerror}") from None
    addresses = {int(number): address for number, address in _ADDRESS.findall(text)}
    if not addresses:
        raise ConfigError(f"--npus: {HCCN} has no line such as address_0=192.168.1.8")
    for number, address in addresses.items():
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ConfigError(
                f"--npus: {HCCN}: address_{number}: expected an IP address, found {address!r}"
            ) from None
    return _table(addresses)


def listed_npus(said: str, mapped: Callable[[], str]) -> list[int]:
    """The numbers of the NPUs that `NPUS` lists: a container may have 4 to 7. Where it only counts them, they
    are those from 0; where a card has several chips, those that `MAP`, asked by ``mapped``, lists."""
    if _CHIPS.search(said) and (chips := _CHIP.findall(mapped())):
        return [int(physical or number) for number, physical in chips]
    numbers = [int(number) for number in _NPU.findall(said)]
    if not numbers and (total := _TOTAL.search(said)):
        return list(range(int(total[1])))
    return numbers


def _table(addresses: dict[int, str]) -> RankTable:
    devices = [
        {"device_id": str(number), **({"device_ip": address} if address else {}), "rank_id": str(rank)}
        for rank, (number, address) in enumerate(sorted(addresses.items()))
    ]
    document = {
        "version": "1.0",
        "server_count": "1",
        "server_list": [{"server_id": os.uname().nodename, "device": devices}],
        "status": "completed",
    }
    return parse_rank_table(document, "this machine's devices")


def _ask(flag: str, *command: str) -> str:
    try:
        done = ask(*command, seconds=SECONDS)
    except FileNotFoundError:
        raise ConfigError(f"{flag}: there is no {command[0]} on PATH") from None
    except SilentError as problem:
        raise ConfigError(f"{flag}: {problem}") from None
    except OSError as problem:
        raise ConfigError(f"{flag}: {command[0]}: {problem.strerror}") from None
    if done.returncode:
        raise ConfigError(f"{flag}: {command[0]} fails ({last_line(done)})")
    return done.stdout
