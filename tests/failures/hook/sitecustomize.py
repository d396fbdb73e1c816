# ruff: noqa: N818, PTH123, PTH118, ANN
"""Loaded by every Python of a job under test: it says when its rank is at work, and dies when it is told to.

``FAILURES_FOLDER``: where it writes ``busy_N`` for rank N, and looks for ``die``, which is a JSON object: the
rank that is to die, how, and what for. Nothing of the project is imported here.
"""

import contextlib
import json
import os
import signal
import sys
import threading
import time

_FOLDER = os.environ.get("FAILURES_FOLDER")
_RANK_NAMES = ("RANK", "OMPI_COMM_WORLD_RANK", "PMIX_RANK", "PMI_RANK", "SLURM_PROCID")
_WORKING = "ranks/run/program.py"
_SECONDS = 0.02


class _Exits(SystemExit):
    def __init__(self):
        super().__init__(7)


class _Breaks(ValueError):
    def __init__(self):
        super().__init__("a mistake in the model")


def _rank():
    return next((os.environ[name] for name in _RANK_NAMES if name in os.environ), None)


def _works():
    frame = sys._current_frames().get(threading.main_thread().ident)
    while frame is not None:
        # Not while it is imported or made: a rank that still loads is given more time.
        if frame.f_code.co_name == "run" and frame.f_code.co_filename.endswith(_WORKING):
            return True
        frame = frame.f_back
    return False


def _until_it_ends(kill):
    while True:
        kill()
        time.sleep(1.0)
        # What is raised in a destructor or a callback is forgotten: then the rank goes on. Between two of its
        # runs it is not at work either; one that ends never is again.
        while not _works():
            time.sleep(_SECONDS)


def _raise(kind):
    import ctypes

    main = ctypes.c_ulong(threading.main_thread().ident)
    _until_it_ends(lambda: ctypes.pythonapi.PyThreadState_SetAsyncExc(main, ctypes.py_object(kind)))


_ASKED = []


def _write(number, frame):
    """In the main thread, wherever that is."""
    if _ASKED:
        with open(os.path.join(_ASKED[0], "file"), "wb") as file:
            file.write(b"x" * (1 << 20))


def _wait_for_ever(*given):
    lock = threading.Lock()
    lock.acquire()
    lock.acquire()  # nobody gives it back


def _use_all_memory(group):
    with open(os.path.join(group, "cgroup.procs"), "w") as joined:
        joined.write(str(os.getpid()))
    held = []
    while True:
        held.append(b"x" * (8 << 20))


def _die(how, where):
    if how in signal.Signals.__members__:
        os.kill(os.getpid(), signal.Signals[how])
    elif how == "exit":
        _raise(_Exits)
    elif how == "exception":
        _raise(_Breaks)
    elif how == "disk":
        _ASKED.append(where)
        _until_it_ends(lambda: os.kill(os.getpid(), signal.SIGUSR2))
    elif how == "success":
        os._exit(0)
    elif how == "child":
        if os.fork() == 0:
            time.sleep(10**6)
        os._exit(3)
    elif how == "lock":
        # In the midst of the next run: elsewhere it may be that the rank waits for others.
        sys.modules["ranks.run.program"].Program.run = _wait_for_ever
    elif how == "memory":
        _use_all_memory(where)


def _watch():
    said = False
    path = os.path.join(_FOLDER, "die")
    while True:
        time.sleep(_SECONDS)
        rank = _rank()
        if rank is None:
            continue
        if not said and _works():
            with open(os.path.join(_FOLDER, f"busy_{rank}"), "w"):
                said = True
        with contextlib.suppress(OSError, ValueError):
            with open(path) as asked:
                order = json.load(asked)
            if order["rank"] == int(rank) and said:
                _die(order["how"], order["where"])
                return


def _begin():
    threading.Thread(target=_watch, daemon=True).start()


class _Never:
    """A rank that never gets so far as to say who it is."""

    def find_spec(self, name, path=None, target=None):
        if name == "ranks.identity.identity" and _rank() == os.environ["FAILURES_NEVER"]:
            time.sleep(10**6)


if _FOLDER:
    if os.environ.get("FAILURES_NEVER"):
        sys.meta_path.insert(0, _Never())
    signal.signal(signal.SIGUSR2, _write)
    _begin()
    os.register_at_fork(after_in_child=_begin)
