#!/bin/sh
# Runs every test that needs a CUDA device and prints a table of their results.
#
#     scripts/gpu_check.sh [PYTHON]
#
# PYTHON (default: .venv/bin/python where it is, else python3) needs shardrun's dependencies, a CUDA build of torch and
# onnxruntime-gpu. Exits with 1 where a test failed, with 2 and one sentence where there is no CUDA device.
set -eu
cd "$(dirname "$0")/.."
python=${1:-}
if [ -z "$python" ]; then
    if [ -x .venv/bin/python ]; then python=.venv/bin/python; else python=python3; fi
fi
"$python" - <<'PYTHON' || exit 2
import sys

try:
    from ranks import devices
    from ranks.errors import DeviceError

    devices.require("CUDAExecutionProvider")
    import torch
except ImportError as error:
    sys.exit(f"The GPU checks cannot run: {error}.")
except DeviceError as error:
    sys.exit(f"The GPU checks need a CUDA device. {error}")
if not torch.cuda.is_available():
    sys.exit(f"The GPU checks need a CUDA build of torch; torch {torch.__version__} sees no CUDA device.")
import onnxruntime

names = [torch.cuda.get_device_name(index) for index in range(torch.cuda.device_count())]
print(f"{', '.join(names)}; torch {torch.__version__}, onnxruntime {onnxruntime.__version__}")
PYTHON
results=$(mktemp)
trap 'rm -f "$results"' EXIT INT TERM
status=0
"$python" -m pytest tests/gpu -q -p no:cacheprovider --junitxml="$results" || status=1
"$python" - "$results" <<'PYTHON'
import sys
import xml.etree.ElementTree as ElementTree

print(f"\n{'test':76}{'result':>10}{'seconds':>9}")
for case in ElementTree.parse(sys.argv[1]).iter("testcase"):
    kinds = [child.tag for child in case if child.tag in ("failure", "error", "skipped")]
    result = {"failure": "failed", "error": "failed", "skipped": "skipped"}[kinds[0]] if kinds else "passed"
    print(f"{case.get('name', '')[:75]:76}{result:>10}{float(case.get('time', 0)):>9.2f}")
    for child in case.iter("skipped"):
        print(f"    {child.get('message')}")
PYTHON
exit $status
