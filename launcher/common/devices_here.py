"""The accelerators of this machine as a rank table has them, as its own programs and files say."""

from __future__ import annotations

import ipaddress
import os
import re
import subprocess
from pathlib import Path

from launcher.errors import ConfigError
from sharding.common.rank_table import RankTable, parse_rank_table

SECONDS = 20.0
HCCN = Path("/etc/hccn.conf")
"""Where Ascend's driver keeps the addresses of its devices' network cards."""
_ADDRESS = re.compile(r"^\s*address_(\d{1,4})\s*=\s*(\S+)\s*$", re.MULTILINE)
_TOTAL = re.compile(r"^\s*Total Count\s*:\s*(\d{1,4})\s*$", re.MULTILINE)


def of_gpus() -> RankTable:
    """A rank for each GPU that ``nvidia-smi`` lists. Raises `ConfigError` where there is none."""
    said = _ask("--gpus", "nvidia-smi", "--query-gpu=index", "--format=csv,noheader")
    found = [int(line) for line in said.split() if line.isdecimal()]
    if not found:
        raise ConfigError("--gpus: nvidia-smi lists no GPU")
    return _table(dict.fromkeys(found, ""))


def of_npus(file: Path = HCCN) -> RankTable:
    """A rank for each NPU, with the address of its network card where ``file`` has it. Raises `ConfigError`
    where there is none, and for addresses that are none."""
    try:
        text = file.read_text(errors="replace")
    except FileNotFoundError:
        found = _TOTAL.search(_ask("--npus", "npu-smi", "info", "-l"))
        if found is None or not int(found[1]):
            raise ConfigError(f"--npus: npu-smi lists no NPU, and {file} is not there") from None
        return _table(dict.fromkeys(range(int(found[1])), ""))
    except OSError as problem:
        raise ConfigError(f"--npus: {file}: {problem.strerror}") from None
    addresses = {int(number): address for number, address in _ADDRESS.findall(text)}
    if not addresses:
        raise ConfigError(f"--npus: {file} has no line such as address_0=192.168.1.8")
    for number, address in addresses.items():
        try:
            ipaddress.ip_address(address)
        except ValueError:
            raise ConfigError(
                f"--npus: {file}: address_{number}: expected an IP address, found {address!r}"
            ) from None
    return _table(addresses)


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
        done = subprocess.run(
            command, stdin=subprocess.DEVNULL, capture_output=True, text=True, errors="replace",
            timeout=SECONDS, check=False,
        )  # fmt: skip
    except FileNotFoundError:
        raise ConfigError(f"{flag}: there is no {command[0]} on PATH") from None
    except (subprocess.TimeoutExpired, OSError) as problem:
        why = f"gave no answer within {SECONDS:.0f} s" if not isinstance(problem, OSError) else str(problem)
        raise ConfigError(f"{flag}: {command[0]} {why}") from None
    if done.returncode:
        said = (done.stderr.strip() or done.stdout.strip() or f"exit code {done.returncode}").splitlines()[-1]
        raise ConfigError(f"{flag}: {command[0]} fails ({said[:200]})")
    return done.stdout
