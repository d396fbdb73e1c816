"""The command as a process of its own: signals at any time, and models that cannot be loaded."""

from __future__ import annotations

import contextlib
import io
import json
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import httpx
import numpy as np
import psutil
import pytest

from tests.ranks.threads import until
from tests.sharding import graphs

SECONDS = 60.0


@contextlib.contextmanager
def command(*arguments: object) -> Iterator[tuple[subprocess.Popen[str], Callable[[], list[psutil.Process]]]]:
    """The command, and what says which processes it has started so far."""
    words = [sys.executable, "-m", "launcher.cli", "serve", *map(str, arguments), "--port", "0"]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process, lambda: psutil.Process(process.pid).children(recursive=True)
        finally:
            process.kill()


def url_of(process: subprocess.Popen[str]) -> str:
    """Where it says that it serves."""
    assert process.stdout is not None
    for line in process.stdout:
        if " at http" in line:
            return line.split(" at ")[1].strip()
    raise AssertionError("it ended before it served")


def ended(ranks: list[psutil.Process]) -> bool:
    _, alive = psutil.wait_procs(ranks, SECONDS)
    return not alive


def test_a_signal_while_ranks_load_ends_them(rows: Path) -> None:
    with command(rows, "--ranks", 2) as (process, children):
        end = time.monotonic() + SECONDS
        while len(found := children()) < 2:
            assert time.monotonic() < end and process.poll() is None
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) == 0
        assert ended(found)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


@pytest.mark.parametrize("seconds", [0.2, 0.4])
def test_a_signal_while_it_begins_ends_it_in_one_line(rows: Path, seconds: float) -> None:
    with command(rows, "--ranks", 1) as (process, children):
        time.sleep(seconds)
        found = children()
        process.send_signal(signal.SIGTERM)
        assert process.wait(SECONDS) in {0, 128 + signal.SIGTERM, -signal.SIGTERM}
        assert ended(found)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_a_terminal_that_goes_away_ends_it(rows: Path) -> None:
    with command(rows, "--ranks", 1) as (process, children):
        url_of(process)
        found = children()
        process.send_signal(signal.SIGHUP)
        assert process.wait(SECONDS) == 0 and ended(found)
        assert process.stderr is not None and "Traceback" not in process.stderr.read()


def test_a_second_signal_does_not_wait_for_requests(rows: Path) -> None:
    with command(rows, "--ranks", 2, "--drain", 600) as (process, children):
        url = url_of(process)
        assert httpx.get(f"{url}/v2/health/ready").status_code == 200
        found, (host, port) = children(), url.removeprefix("http://").split(":")
        with socket.create_connection((host, int(port))) as slow:
            slow.sendall(b"POST /v2/models/rows/infer HTTP/1.1\r\nHost: a\r\nContent-Length: 9\r\n\r\n{")
            time.sleep(0.3)
            process.send_signal(signal.SIGTERM)
            with pytest.raises(subprocess.TimeoutExpired):
                process.wait(1)
            process.send_signal(signal.SIGTERM)
            assert process.wait(SECONDS) == 0
        assert found and ended(found)


def test_one_model_that_cannot_be_served_ends_all(rows: Path, tmp_path: Path) -> None:
    graphs.save(tmp_path / "fixed.onnx", "fixed (float[2, 3] x) => (float[2, 3] y) { y = Relu(x) }", {})
    listed = {"models": {"rows": {"model": str(rows), "ranks": 1}}}
    listed["models"]["fixed"] = {"model": str(tmp_path / "fixed.onnx"), "ranks": 1, "max_batch_size": 2}
    (tmp_path / "models.json").write_text(json.dumps(listed))
    with command(tmp_path / "models.json") as (process, children):
        found: set[psutil.Process] = set()
        end = time.monotonic() + SECONDS
        while process.poll() is None:
            assert time.monotonic() < end
            with contextlib.suppress(psutil.NoSuchProcess):
                found |= set(children())
            time.sleep(0.01)
        assert process.stderr is not None
        said = process.stderr.read()
        assert process.returncode == 2 and "whose first axis is no open batch" in said, said
        assert "Traceback" not in said and found and ended(list(found))


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["--name", "a/b"], "--name: expected a name without slashes"),
        (["--name", ""], "--name: expected a name without slashes"),
        (["--host", ""], "--host: expected an address"),
        (["--host", "a" * 80], "this address cannot be used"),
        (["--tls-certificate", "no.pem", "--tls-key", "no.pem"], "--tls-certificate no.pem"),
        (["--token-file", "no-such"], "--token-file no-such"),
    ],
)
def test_wrong_usage(rows: Path, arguments: list[str], said: str, capsys: pytest.CaptureFixture[str]) -> None:
    from launcher.cli import main

    assert main(["serve", str(rows), "--port", "0", *arguments]) in {1, 2}
    error = capsys.readouterr().err
    assert said in error and "Traceback" not in error


@pytest.mark.parametrize("moment", ["restart", "version", "update", "storm"])
def test_a_signal_at_any_moment_leaves_no_rank(rows: Path, tmp_path: Path, moment: str) -> None:
    """While ranks are lost and others start, while another version loads, and while weights are on their
    way to a rank that stands still."""
    for version in ("1", "2"):
        (tmp_path / f"{version}.onnx").write_bytes(rows.read_bytes())
    tokens = tmp_path / "tokens"
    tokens.write_text("token-of-the-admin admin\ntoken-of-a-user\n")
    tokens.chmod(0o600)
    more = ["--restart", "on-failure", "--versions", tmp_path / "{}.onnx", "--variable-weights", "w"]
    with (
        command(
            tmp_path / "1.onnx", "--name", "rows", "--ranks", 2, "--launcher", "local", "--drain", 1,
            "--token-file", tokens, *more,
        ) as (process, children),
        httpx.Client(headers={"Authorization": "Bearer token-of-the-admin"}, timeout=60) as client,
        ThreadPoolExecutor(1) as threads,
    ):  # fmt: skip
        base = f"{url_of(process)}/v2/repository/models/rows"
        ranks = [child for child in children() if "rank" in " ".join(child.cmdline())]
        assert len(ranks) == 2
        found = set(children())

        def alive() -> set[psutil.Process]:
            now = set(children())
            found.update(now)
            return now

        def states() -> str:
            return str(client.post(f"{base.partition('/models')[0]}/index").json())

        sent = None
        if moment in {"restart", "storm"}:
            for _ in range({"restart": 1, "storm": 2}[moment]):
                until(lambda: "READY" in states())
                next(one for one in alive() if "rank 1" in " ".join(one.cmdline())).kill()
                until(lambda: "LOADING" in states())
            if moment == "restart":
                until(lambda: alive() - set(ranks))
        elif moment == "version":
            sent = threads.submit(client.post, f"{base}/versions/2/load")
            until(lambda: len(alive()) >= len(ranks) + 2)
        else:
            ranks[1].suspend()
            file = io.BytesIO()
            np.savez(file, w=np.zeros((8, 16), np.float32))
            sent = threads.submit(client.post, f"{base}/weights", content=file.getvalue())
            time.sleep(0.5)
            assert not sent.done()
        process.send_signal(signal.SIGTERM)
        while process.poll() is None:
            with contextlib.suppress(psutil.Error):
                alive()
            time.sleep(0.01)
        assert process.returncode == 0 and ended(list(found))
        assert process.stderr is not None and "Traceback" not in process.stderr.read()
        if sent is not None and sent.exception(60) is None:
            assert sent.result().status_code in {200, 503}
