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
python=""
case "${1:-}" in
"" | -*) ;;
*)
    case $1 in
    /*) python=$1 ;;
    */*) python=$PWD/$1 ;; # as seen from where it was called
    *) python=$1 ;;
    esac
    shift
    ;;
esac
cd "$(dirname "$0")/.."
if [ -z "$python" ]; then
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
if ! command -v "$python" >/dev/null; then
    echo "The GPU checks cannot run: there is no $python; name a Python: scripts/gpu_check.sh /path/to/python" >&2
    exit 2
fi
exec "$python" scripts/gpu_check.py "$@"
