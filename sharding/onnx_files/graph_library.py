"""Imports `onnx_ir` without sympy, whose import takes longer than all the rest of it.

`onnx_ir` calls sympy only where lengths are added or multiplied as symbols; reading and slicing a model
never do. A stand-in takes sympy's place while `onnx_ir` is imported, and then leaves it. What `onnx_ir` keeps
of the stand-in imports sympy itself when it is first used.
"""

from __future__ import annotations

import importlib
import sys
import threading
from collections.abc import Callable
from importlib.machinery import PathFinder
from types import ModuleType
from typing import cast

_NAME = "sympy"
_IMPORTING, _LEAVING = threading.Lock(), threading.Lock()


def import_graph_library() -> None:
    """Imports `onnx_ir`; who reads or makes a graph calls this first."""
    if "onnx_ir" in sys.modules:
        return
    with _IMPORTING:
        sys.modules.setdefault(_NAME, _StandIn(_NAME))
        try:
            importlib.import_module("onnx_ir")
        finally:
            _leave()


def _leave() -> None:
    with _LEAVING:
        if isinstance(sys.modules.get(_NAME), _StandIn):
            del sys.modules[_NAME]


def _of_sympy(name: str) -> object:
    _leave()  # another thread may ask while `onnx_ir` is being imported
    found: object = getattr(importlib.import_module(_NAME), name)
    return found


class _StandIn(ModuleType):
    """Has names alone for the thread that imports `onnx_ir`; later, and for other threads, what sympy has."""

    def __init__(self, name: str) -> None:
        super().__init__(name)
        self.__spec__ = PathFinder.find_spec(name)  # for who only asks whether it is installed
        self._thread = threading.get_ident()

    def __getattr__(self, name: str) -> object:
        if sys.modules.get(_NAME) is not self or threading.get_ident() != self._thread:
            return _of_sympy(name)
        if name.startswith("__"):  # what Python asks of any module
            raise AttributeError(name)
        return _Later(name)


class _Later:
    """A function or class of sympy, imported when it is called."""

    def __init__(self, name: str) -> None:
        self._name = name

    def __call__(self, *arguments: object, **named: object) -> object:
        return cast(Callable[..., object], _of_sympy(self._name))(*arguments, **named)
