"""``--grpc-port`` of the command as a process: signals, and ports and packages that are not there."""

from __future__ import annotations

import contextlib
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest
import tritonclient.grpc as triton

from tests.launcher.serving.test_command import SECONDS, command, ended, url_of
from tests.launcher.serving.test_grpc_staying_up import BEGIN, HEAD, frame


def test_grpc_beside_http_and_signals(rows: Path) -> None:
    with command(rows, "--ranks", 1, "--grpc-port", 0, "--drain", 600) as (process, children):
        assert process.stdout is not None
        address = process.stdout.readline().split(" at grpc://")[1].strip()
        url_of(process)
        found = children()
        with triton.InferenceServerClient(address) as client:
            assert client.is_model_ready("rows")
            client.start_stream(lambda result, error: None)
            process.send_signal(signal.SIGTERM)  # nothing is under way, though a stream is open
            assert process.wait(SECONDS) == 0 and ended(found)
        assert process.stderr is not None and process.stderr.read() == ""


def test_a_second_signal_does_not_wait_for_streams(rows: Path) -> None:
    with command(rows, "--ranks", 1, "--grpc-port", 0, "--drain", 600) as (process, children):
        assert process.stdout is not None
        address = process.stdout.readline().split(" at grpc://")[1].strip()
        url_of(process)
        found, (host, port) = children(), address.split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(BEGIN + frame(1, 4, 1, HEAD) + frame(0, 0, 1, b"\0\0\0\1\0abc"))
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        assert found and ended(found)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_a_grpc_port_that_is_taken_ends_it_in_one_line(rows: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = taken.getsockname()[1]
        with command(rows, "--ranks", 1, "--grpc-port", port) as (process, children):
            assert process.wait(SECONDS) == 1 and not children_of(children)
            assert process.stderr is not None
            said = process.stderr.read()
            assert f"--grpc-port {port}: this address cannot be used" in said and said.count("\n") == 1, said


def children_of(children: Callable[[], list[psutil.Process]]) -> list[psutil.Process]:
    with contextlib.suppress(psutil.NoSuchProcess):
        return children()
    return []


def test_grpc_without_its_package(
    rows: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from launcher.cli import main

    for name in [name for name in sys.modules if name.startswith("launcher.serving.grpc.")]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "grpc", None)
    assert main(["serve", str(rows), "--port", "0", "--grpc-port", "0"]) == 2
    error = capsys.readouterr().err
    assert "needs the package grpc, which is not installed: `pip install 'shardrun[serve]'`" in error
