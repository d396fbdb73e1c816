"""One shell script per rank, for machines where a person or another program starts the ranks."""

from __future__ import annotations

import itertools
import math
import shlex
import shutil
import tempfile
from pathlib import Path

from launcher.errors import ConfigError
from launcher.inspection.reference import refer
from launcher.job.job import Job
from launcher.job.options import DATA, FILES, RANKS, TYPES, flags_for_a_rank
from launcher.job.rank_table import RankTable, make_rank_table
from launcher.job.values import absolute
from launcher.starters.environment import python_path
from ranks.common import settings
from ranks.common.processes import LEFT_SECONDS
from sharding.common.storage import probe, why_unwritable

RANK_SCRIPT = """\
#!/bin/sh
# Rank {rank} of {world_size}, to run on {host}. All ranks of one run need the same SHARDRUN_JOB (32
# hexadecimal digits), MASTER_ADDR and MASTER_PORT: these here, unless you (or run_all.sh) set others.
set -eu
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
{python}
[ -n "${{SHARDRUN_JOB-}}" ] || SHARDRUN_JOB={job}
[ -n "${{MASTER_ADDR-}}" ] || MASTER_ADDR={master}
[ -n "${{MASTER_PORT-}}" ] || MASTER_PORT=29500
export SHARDRUN_JOB MASTER_ADDR MASTER_PORT
export RANK={rank} WORLD_SIZE={world_size} LOCAL_RANK={local_rank} LOCAL_WORLD_SIZE={local_size}
{exports}exec "$python" -m launcher.cli run {arguments}
"""

PYTHON = """\
python={python}
[ -z "${{SHARDRUN_PYTHON-}}" ] || python=$SHARDRUN_PYTHON"""

RUN_ALL = """\
#!/usr/bin/env bash
# Starts the ranks of one host, waits for them, and ends the others when one fails.{usage}
set -u
here=$(CDPATH='' cd -- "$(dirname -- "$0")" && pwd)
{python}
{choice}
{fresh}
# Ranks that are done write their numbers into a file without a name, and those that have said an error "said"
# before it.
list=$(mktemp) && exec 5<>"$list" && rm -f -- "$list" || exit 1
export SHARDRUN_RUN_ALL=$$:5
exec 3>&2
hang={hang}
pids=() ended=()
watcher= nap=
end() {{
  trap '' INT TERM HUP
  [ -n "$watcher" ] && kill -TERM "$watcher" 2>/dev/null
  [ -n "$nap" ] && kill -TERM "$nap" 2>/dev/null
  if [ "${{#pids[@]}}" -gt 0 ]; then
    kill -TERM "${{pids[@]}}" 2>/dev/null
    for _ in {{1..50}}; do
      kill -0 "${{pids[@]}}" 2>/dev/null || break
      sleep 0.1
    done
    kill -KILL "${{pids[@]}}" 2>/dev/null
  fi
  # What ranks have started, and left, may end by itself first: what keeps shared memory then removes it.
  local pid asked=' '
  for _ in {{1..{looks}}}; do
    left
    [ -n "$left" ] || break
    for pid in $left; do
      case $asked in *" $pid "*) ;; *) kill -TERM "$pid" 2>/dev/null ;; esac
      asked="$asked$pid "
    done
    sleep 0.1
  done
  left
  for pid in $left; do kill -KILL "$pid" 2>/dev/null; done
  wait 2>/dev/null
}}
# The processes that ranks have started.
left() {{
  left=$(
    ours=$SHARDRUN_RUN_ALL SHARDRUN_RUN_ALL= # what looks is not to be found
    grep -lzx "SHARDRUN_RUN_ALL=$ours" /proc/[0-9]*/environ 2>/dev/null | tr -cs 0-9 ' '
  )
  [ "$left" != ' ' ] || left=
}}
stop() {{
  end
  echo "shardrun: $1" >&3
  exit "$2"
}}
trap 'stop interrupted 130' INT
trap 'stop terminated 143' TERM
trap 'stop "hung up: its terminal or session was closed" 129' HUP
# How surely a rank's end is the cause: one that has said an error may just miss another rank, and so may one
# whose code is that of an error.
weigh() {{
  grep -qx "said $1" "/proc/$$/fd/5" && echo 0 && return
  case $2 in 1 | 2 | 3 | 75 | 130 | 143) echo 1 ;; *) echo 2 ;; esac
}}
# How a rank ended, where it has not said so itself.
tell() {{
  local how="ended with exit code $2"
  grep -qx "said $1" "/proc/$$/fd/5" && return
  [ "$2" -eq 0 ] && how="$how before it was done, as os._exit(0) would"
  [ "$2" -gt 128 ] && how="was killed by SIG$(kill -l "$(($2 - 128))" 2>/dev/null)"
  [ "$2" -eq 137 ] && how="$how: someone killed it, or the kernel did when memory ran out"
  echo "shardrun: error: rank $1 on host $(uname -n) $how." >&3
}}
# Ends a rank that is stopped for as long as --hang-timeout: nobody else would notice it.
watch() {{
  local rank pid state nap= since=()
  export -n SHARDRUN_RUN_ALL # what it starts is not to be found among what ranks have left
  # Nothing of it stays, nor keeps open what somebody reads to its end.
  trap '[ -n "$nap" ] && kill "$nap" && wait "$nap"; exit' TERM
  for rank in "${{!pids[@]}}"; do since[rank]=0; done
  while kill -0 "$1" 2>/dev/null; do
    for rank in "${{!pids[@]}}"; do
      pid=${{pids[$rank]}}
      state=$(sed -n 's/^State:[[:space:]]*\\(.\\).*/\\1/p' "/proc/$pid/status" 2>/dev/null)
      [ "$state" = T ] || {{ since[rank]=0; continue; }}
      since[rank]=$((since[rank] + 1))
      if [ "${{since[rank]}}" -gt "$hang" ]; then
        echo "shardrun: error: rank $rank on host $(uname -n) did not go on within $hang s: its" \\
          "process $pid is stopped by a signal (SIGSTOP or SIGTSTP; \\`kill -CONT $pid\\` lets it go on)." >&3
        kill -KILL "$pid" 2>/dev/null
        return
      fi
    done
    SHARDRUN_RUN_ALL='' sleep 1 3>&- 5>&- &
    nap=$!
    wait "$nap"
    nap=
  done
}}
exec 2>/dev/null # what bash itself says of jobs
for rank in "${{ranks[@]}}"; do
  "$here/rank_$rank.sh" 2>&3 &
  pids[$rank]=$!
done
watch $$ >/dev/null &
watcher=$!
while [ "${{#pids[@]}}" -gt 0 ]; do
  # Each second: of one that a signal has ended before it waits, bash tells no more.
  SHARDRUN_RUN_ALL='' sleep 1 >/dev/null 3>&- 5>&- &
  nap=$!
  wait -n "${{pids[@]}}" "$nap"
  # Not one that has been waited for: its number may be another's by now.
  jobs -rp | grep -qx "$nap" && kill "$nap"
  wait "$nap"
  nap= failed= ended=()
  for rank in "${{!pids[@]}}"; do
    # A process that is gone has been waited for: its code is kept.
    kill -0 "${{pids[$rank]}}" && continue
    wait "${{pids[$rank]}}"
    how=$?
    unset "pids[$rank]"
    [ "$how" -eq 0 ] && grep -qx "$rank" "/proc/$$/fd/5" && continue
    ended[$rank]=$how
    weight=$(weigh "$rank" "$how")
    if [ -z "$failed" ] || [ "$weight" -gt "$most" ]; then
      failed=$rank code=$how most=$weight
    fi
  done
  if [ -n "$failed" ]; then
    tell "$failed" "$code"
    unset "ended[$failed]"
    for rank in "${{!ended[@]}}"; do tell "$rank" "${{ended[$rank]}}"; done
    end
    exit "$((code > 0 ? code : 1))"
  fi
done
end
"""

FRESH = """\
# A run of its own, so that it meets no rank of another one.
SHARDRUN_JOB=$("$python" -c 'import secrets; print(secrets.token_hex(16))') || exit 1
free='import socket; s = socket.socket(); s.bind(("", 0)); print(s.getsockname()[1])'
MASTER_PORT=$("$python" -c "$free") || exit 1
export SHARDRUN_JOB MASTER_PORT"""


def check_new_folder(folder: Path) -> None:
    """Raises `ConfigError` unless scripts can be written into ``folder``: it is new or empty."""
    try:
        probe(folder.absolute())
        found = "one with files in it"
        if folder.exists() and not folder.is_dir():
            found = "what is no folder"
        elif not folder.exists() or not any(folder.iterdir()):
            return
    except OSError as problem:
        raise ConfigError(f"--output {folder}: cannot write the scripts: {why_unwritable(problem)}") from None
    raise ConfigError(f"--output {folder}: expected a new or empty folder, found {found}")


def write_scripts(job: Job, folder: Path, executable: str, *, replace_model: Path | None = None) -> RankTable:
    """Writes ``rank_0.sh`` ... and ``run_all.sh`` into ``folder``, which must not exist or be empty.

    ``job.model`` is a slice folder of ``job.ranks`` or ``job.rank_table`` ranks; with ``replace_model`` that
    slice folder is moved into ``folder`` and found there, wherever that is copied. Raises `ConfigError`.
    """
    from launcher.job.rank_table import load_rank_table

    if job.rank_table is not None:
        table = load_rank_table(job.rank_table)
    else:
        given = job.hosts is not None or job.hostfile is not None
        places = job.placement.places() if given else None
        size = job.ranks or 1
        table = make_rank_table([("localhost", size)] if places is None else places.spread(size))
    try:
        check_new_folder(folder)
        folder.parent.mkdir(parents=True, exist_ok=True)
        work = Path(tempfile.mkdtemp(prefix=f".{folder.name[:100]}.", dir=folder.absolute().parent))
        try:
            if replace_model is not None:
                replace_model.rename(work / "slices")
            for name, text in _texts(job, table, executable, replace_model is not None):
                (work / name).write_bytes(text.encode(errors="surrogateescape"))
                # The scripts hold the job's secret.
                (work / name).chmod(0o700)
            work.chmod(0o755)
            work.replace(folder)
        finally:
            shutil.rmtree(work, ignore_errors=True)
    except OSError as problem:
        raise ConfigError(f"--output {folder}: cannot write the scripts: {why_unwritable(problem)}") from None
    return table


def _texts(job: Job, table: RankTable, executable: str, own_model: bool) -> list[tuple[str, str]]:
    import secrets

    secret = secrets.token_hex(16)
    python = PYTHON.format(python=shlex.quote(executable))
    local = len(table.hosts) == 1
    master = "127.0.0.1" if local else table.devices[0].host
    exports = ""
    path = python_path({})
    if path:
        exports += f'export PYTHONPATH={shlex.quote(path)}"${{PYTHONPATH:+:$PYTHONPATH}}"\n'
    exports += "".join(f"export {name}={shlex.quote(value)}\n" for name, value in job.env.items())
    arguments = ['"$here/slices"' if own_model else quote_path(job.model), *_arguments(job)]
    arguments += _key_file(job, own_model)
    texts = []
    for device in table.devices:
        place = f"export DEVICE_ID={device.device_id}\n" if job.rank_table else ""
        texts.append((
            f"rank_{device.rank}.sh",
            RANK_SCRIPT.format(
                rank=device.rank,
                world_size=table.world_size,
                local_rank=device.local_rank,
                local_size=len(table.hosts[device.host]),
                host=device.host,
                job=secret,
                master=shlex.quote(master),
                python=python,
                exports=exports + place,
                arguments=" ".join(arguments),
            ),
        ))  # fmt: skip
    seconds = settings.DEFAULT_HANG if job.hang_timeout is None else job.hang_timeout
    texts.append(("run_all.sh", _run_all(table, python, math.ceil(seconds))))
    return texts


def _run_all(table: RankTable, python: str, hang: int) -> str:
    same = {"python": python, "hang": hang, "looks": math.ceil(LEFT_SECONDS * 10)}
    if len(table.hosts) == 1:
        ranks = " ".join(str(rank) for rank in range(table.world_size))
        return RUN_ALL.format(usage="", choice=f"ranks=({ranks})", fresh=FRESH, **same)
    usage = "\n# The ranks are on several hosts: run it on each, with the host's name in the rank table."
    choice = 'case "${1-}" in\n'
    for host, devices in table.hosts.items():
        choice += f"  {shlex.quote(host)}) ranks=({' '.join(str(d.rank) for d in devices)}) ;;\n"
    hosts = shlex.quote(f"usage: run_all.sh HOST, with HOST one of {', '.join(table.hosts)}")
    choice += f"  *) printf '%s\\n' {hosts} >&2; exit 2 ;;\nesac"
    fresh = (
        "# All hosts must agree on SHARDRUN_JOB and MASTER_PORT: the rank scripts', unless you set others."
    )
    return RUN_ALL.format(usage=usage, choice=choice, fresh=fresh, **same)


def _arguments(job: Job) -> list[str]:
    """The flags of ``shardrun run`` for one rank, with absolute paths, quoted for the shell."""
    flags = itertools.chain(["--launcher", "external"], *flags_for_a_rank(job, DATA, FILES, RANKS, TYPES))
    return [shlex.quote(flag) for flag in flags]


def _key_file(job: Job, own_model: bool) -> list[str]:
    """Where ranks find the key, if they read anything encrypted; the key itself is in no script."""
    read = [job.against if job.verify else None, None if own_model else job.model]
    if job.dec_key_file is None or not any(path is not None and refer(path).encrypted for path in read):
        return []
    mode = ["--dec-mode", job.dec_mode] if job.dec_mode is not None else []
    return ["--dec-key-file", quote_path(job.dec_key_file), *mode]


def quote_path(path: str | Path | None) -> str:
    """An absolute path, quoted for the shell."""
    return shlex.quote(absolute(path or "."))
