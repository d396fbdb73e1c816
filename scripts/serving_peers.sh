#!/usr/bin/env bash
# Makes the environments of the servers that benchmarks/serving.py compares with.
#
#     scripts/serving_peers.sh FOLDER [fastapi] [mlserver] [triton]     (default: all three)
#
# FOLDER/fastapi has FastAPI, uvicorn and ONNX Runtime; FOLDER/mlserver MLServer, and FOLDER/triton Triton Inference Server as PyTriton
# brings it, both beside ONNX Runtime. vLLM's is made by scripts/generation_peers.sh FOLDER vllm, with the language model.
set -euo pipefail
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0"; exit 2; }
folder=$1
shift
peers=("${@:-}")
[ $# -gt 0 ] || peers=(fastapi mlserver triton)
python=${SHARDRUN_PYTHON:-python3}
mkdir -p -- "$folder"

. "$(dirname -- "$(readlink -f -- "${BASH_SOURCE[0]}")")/environment.sh"

for peer in "${peers[@]}"; do
    case $peer in
    fastapi) environment fastapi fastapi "uvicorn[standard]" onnxruntime numpy ;;
    mlserver) environment mlserver mlserver onnxruntime numpy ;;
    triton)
        environment triton nvidia-pytriton onnxruntime numpy
        # Its own interpreter is older than the modules of a Python from 3.11.7 on, which ask its locks for what they have not.
        cat >"$("$folder/triton/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')/sitecustomize.py" <<'EOF'
import threading
from multiprocessing import resource_tracker

resource_tracker._resource_tracker._lock = threading._PyRLock()
EOF
        ;;
    *) echo "serving_peers.sh: there is no peer '$peer': expected fastapi, mlserver or triton." >&2 && exit 2 ;;
    esac
done
echo "made in $folder: see benchmarks/serving.py"
