"""Runs of sessions with their bindings, one after another in every step of a model."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import onnxruntime as ort

from ranks.devices.providers import CPU


def running(
    session: ort.InferenceSession, binding: ort.IOBinding, *options: ort.RunOptions, on_host: bool
) -> Callable[[], object]:
    """What runs a session with its binding, which the caller keeps. ``on_host``: all that is bound is there.

    On the CPU it goes past ONNX Runtime's own Python, which asks each time whether a browser's GPU is to
    repeat the run, and has options made each time where it is given none: where weights have gone through
    the processor's caches since the last run, that is a third of what a run takes beside its operators.
    """
    own, inner = getattr(session, "_sess", None), getattr(binding, "_iobinding", None)
    known = isinstance(session, ort.InferenceSession) and hasattr(own, "run_with_iobinding")
    if not on_host or not known or own is None or inner is None or session.get_providers()[0] != CPU:
        return partial(session.run_with_iobinding, binding, *options)
    return partial(own.run_with_iobinding, inner, *(options or (ort.RunOptions(),)))
