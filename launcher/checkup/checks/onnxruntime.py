"""ONNX Runtime and its providers."""

from __future__ import annotations

import sys
from collections.abc import Iterator

from launcher.checkup.base import Asked, Check, Finding
from launcher.common.programs import ask, last_line
from ranks.devices.providers import SUFFIX

_ASK = "import onnxruntime as o; print(o.__version__, *o.get_available_providers())"
_ADVICE = "install it anew: `pip install --force-reinstall onnxruntime` or onnxruntime-gpu, not both"


def _run(asked: Asked) -> Iterator[Finding]:
    done = ask(sys.executable, "-c", _ASK, seconds=30, environ={"ORT_DISABLE_TELEMETRY": "1"})
    if done.returncode:
        yield Finding("fail", f"cannot be imported ({last_line(done)})", _ADVICE)
        return
    number, *providers = done.stdout.strip().splitlines()[-1].split()
    names = [name.removesuffix(SUFFIX) for name in providers]
    if "CPU" not in names:
        yield Finding("fail", f"{number} without the CPU provider", _ADVICE)
    else:
        yield Finding("ok", f"{number}: {', '.join(names)}")


CHECK = Check("ONNX Runtime", 2, _run)
