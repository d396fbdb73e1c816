"""``shardrun table``: make and check rank tables."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from launcher.job.places.host_list import parse_count, parse_hosts, read_hostfile
from launcher.job.places.placement import Places
from sharding.common.text import counted, one_line

if TYPE_CHECKING:
    from launcher.job.rank_table import RankTable

DESCRIPTION = """\
Makes, merges and checks rank tables: which rank runs on which device of which host. The format is HCCL's
version 1.0, or 1.2 with super pods (JSON, all values as strings), or the same in YAML with plain integers."""
EPILOG = """\
examples:
  shardrun table make --local 2
  shardrun table make --hosts 10.0.0.1:2,10.0.0.2:2 --output hosts.json
  shardrun table make --hosts node1:8 --format yaml
  shardrun table make --hostfile hosts.txt --cores 0-3/4-7 --interface eth0
  shardrun table make --allocation
  shardrun table make --npus --output node1.json
  shardrun table merge node1.json node2.json --output hosts.json
  shardrun table check hosts.json
"""


def configure(parser: argparse.ArgumentParser) -> None:
    """Adds the arguments of ``make`` and ``check``."""
    actions = parser.add_subparsers(dest="action", metavar="make|merge|check", required=True)
    make = actions.add_parser("make", help="write a rank table")
    where = make.add_mutually_exclusive_group(required=True)
    where.add_argument("--hosts", metavar="HOST:N,...", help="N ranks on each host, in this order")
    where.add_argument(
        "--hostfile", metavar="FILE", type=Path, help="the same, from a file as MPI has it: HOST slots=N"
    )
    where.add_argument(
        "--allocation", action="store_true", help="the hosts that Slurm, PBS or LSF gave this job"
    )
    where.add_argument("--local", metavar="N", help="N ranks on this machine (localhost)")
    where.add_argument("--gpus", action="store_true", help="a rank for each GPU of this machine (nvidia-smi)")
    where.add_argument(
        "--npus", action="store_true",
        help="a rank for each NPU of this machine, with its address (/etc/hccn.conf, else npu-smi)",
    )  # fmt: skip
    make.add_argument(
        "--cores", metavar="LIST/LIST/...", help="the cores of the ranks of each host, such as 0-3/4-7"
    )
    make.add_argument("--interface", metavar="NAME", help="by which hosts reach one another, such as eth0")
    merge = actions.add_parser("merge", help="join the tables of several hosts, ranks numbered in this order")
    merge.add_argument("files", metavar="FILE", type=Path, nargs="+")
    for action in (make, merge):
        _add_output(action)
    check = actions.add_parser("check", help="check a rank table and show its ranks")
    check.add_argument("file", metavar="FILE", type=Path)


def _add_output(make: argparse.ArgumentParser) -> None:
    make.add_argument("--format", choices=("json", "yaml"), help="default: by the output's name, else json")
    make.add_argument("--output", metavar="FILE", type=Path, help="default: standard output")


def run(args: argparse.Namespace) -> int:
    """Runs the chosen action; a table with problems gives exit code 2."""
    if args.action == "check":
        return _check(args.file)
    return _write(_merged(args.files) if args.action == "merge" else _made(args), args)


def _made(args: argparse.Namespace) -> RankTable:
    from launcher.errors import ConfigError
    from launcher.job.rank_table import make_rank_table

    for flag, text in (("--cores", args.cores), ("--interface", args.interface)):
        if text == "":
            raise ConfigError(f"{flag}: expected what `shardrun table make --help` says, found an empty text")
    if args.gpus or args.npus:
        from launcher.common.devices_here import of_gpus, of_npus

        table = of_gpus() if args.gpus else of_npus()
        return _placed(table, args)
    hosts = _hosts(args)
    cores = args.cores.split("/") if args.cores is not None else []
    if cores and (other := next(((host, count) for host, count in hosts if count != len(cores)), None)):
        raise ConfigError(
            f"--cores {args.cores}: cores of {counted(len(cores), 'rank')}, but {other[0]} has {other[1]}: "
            "give a list for each, with / between them"
        )
    return make_rank_table(hosts, cores, args.interface or "")


def _placed(table: RankTable, args: argparse.Namespace) -> RankTable:
    """A table of this machine's devices, with cores and interface."""
    from launcher.errors import ConfigError
    from launcher.job.rank_table import with_places

    cores = args.cores.split("/") if args.cores is not None else []
    if cores and len(cores) != table.world_size:
        raise ConfigError(
            f"--cores {args.cores}: cores of {counted(len(cores), 'rank')}, but there are "
            f"{counted(table.world_size, 'device')}: give a list for each, with / between them"
        )
    return with_places(table, cores, args.interface or "")


def _hosts(args: argparse.Namespace) -> list[tuple[str, int]]:
    if args.local is not None:
        return [("localhost", parse_count(args.local, "--local"))]
    if args.allocation:
        from launcher.errors import ConfigError
        from launcher.job.places import allocation

        found = allocation.find()
        if found is None:
            raise ConfigError(
                "--allocation: this is no job of Slurm, PBS or LSF, by their environment variables; give the "
                "hosts with --hosts or --hostfile"
            )
        return Places(found.name, found.hosts, found.ranks).spread(found.ranks)
    listed = parse_hosts(args.hosts) if args.hosts is not None else read_hostfile(args.hostfile)
    return [(host, count or 1) for host, count in listed]


def _merged(files: list[Path]) -> RankTable:
    from launcher.job.rank_table import load_rank_table, merge_rank_tables

    return merge_rank_tables([load_rank_table(file) for file in files])


def _write(table: RankTable, args: argparse.Namespace) -> int:
    by_name = "yaml" if args.output and args.output.suffix.lower() in {".yaml", ".yml"} else "json"
    text = table.to_yaml() if (args.format or by_name) == "yaml" else table.to_json()
    if args.output is None:
        sys.stdout.write(text)
        return 0
    from launcher.common.files import write_file
    from launcher.common.report import say

    write_file(args.output, text.encode(), "rank table")
    say(f"wrote {args.output}: {_size(table)}")
    return 0


def _size(table: RankTable) -> str:
    return f"{counted(table.world_size, 'rank')} on {counted(len(table.hosts), 'host')}"


def _check(path: Path) -> int:
    from launcher.common.report import print_table, say
    from launcher.job.rank_table import find_problems, load_rank_table

    problems = find_problems(path)
    for problem in problems:
        print(one_line(f"shardrun: error: {problem}"), file=sys.stderr)
    if problems:
        return 2
    table = load_rank_table(path)
    rows = [
        [str(d.rank), d.host, str(d.local_rank), str(d.device_id), d.device_ip or "-", d.cores, d.interface]
        for d in table.devices
    ]
    columns = ["rank", "host", "local rank", "device", "device address", "cores", "interface"]
    shown = [at for at in range(len(columns)) if at < 5 or any(row[at] for row in rows)]
    say(f"{path}: {_size(table)}")
    print_table(
        [columns[at] for at in shown],
        [[row[at] or "-" for at in shown] for row in rows],
        "".join("rlrrlll"[at] for at in shown),
    )
    return 0
