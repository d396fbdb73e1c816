"""Which ONNX Runtime runs the tests: on Python 3.10 the newest is 1.23, elsewhere it is newer."""

import onnxruntime

Release = tuple[int, int]


def release(text: str) -> Release:
    """Major and minor number: ``1.23.2`` is (1, 23)."""
    major, minor = text.split(".")[:2]
    return int(major), int(minor)


INSTALLED = release(onnxruntime.__version__)
