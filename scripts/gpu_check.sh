#!/bin/sh
# Checks the GPU path on this machine, most important first, each check in a process of its own and with a time-out.
#
#     scripts/gpu_check.sh [PYTHON] [--bare] [--minutes 5] [--list]
#
# PYTHON (default: .venv/bin/python where it is, else python3) needs shardrun's dependencies, a CUDA build of torch and
# onnxruntime-gpu; with onnxruntime alone, or with --bare, what is below ONNX Runtime is checked. Ends with 0 where all
# was checked and right, 1 where a check failed, 2 where nothing can be checked here, 3 where all that was checked is
# right but a part was not checked. docs/gpu.md says more.
set -eu
python="" value="" left=$#
while [ "$left" -gt 0 ]; do # all arguments but PYTHON, wherever it stands, go on to the checks
    one=$1 left=$((left - 1))
    shift
    if [ -z "$value$python" ] && [ "${one#-}" = "$one" ]; then
        python=$one
    else
        if [ "$one" = --minutes ]; then value=next; else value=""; fi
        set -- "$@" "$one"
    fi
done
root=$(CDPATH="" cd -- "$(dirname -- "$0")/.." && pwd)
if [ -z "$python" ]; then
    if [ -x "$root/.venv/bin/python" ]; then python=$root/.venv/bin/python; else python=python3; fi
fi
if ! command -v "$python" >/dev/null; then
    echo "The GPU checks cannot run: there is no $python; name a Python: scripts/gpu_check.sh /path/to/python" >&2
    exit 2
fi
limit=""
if command -v timeout >/dev/null; then limit="timeout 60"; fi # what is no Python may never end, or end with 0
found=$($limit "$python" -c 'import sys; print("python %d.%d" % sys.version_info[:2])' 2>/dev/null </dev/null) || true
case $found in
"python 2."* | "python 3."[0-9])
    echo "The GPU checks cannot run: $python is $found, but shardrun needs Python 3.10 or newer" >&2
    exit 2
    ;;
"python "[0-9]*) ;;
*)
    echo "The GPU checks cannot run: $python does not run as Python; name one: scripts/gpu_check.sh /path/to/python" >&2
    exit 2
    ;;
esac
# Unbuffered: what a full disk did not take would be tried once more at the end, with a status of its own.
exec "$python" -u "$root/scripts/gpu_check.py" "$@"
