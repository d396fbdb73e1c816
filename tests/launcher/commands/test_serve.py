"""What `shardrun serve` makes of its flags."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

pytest.importorskip("prometheus_client", reason="what serving needs is not installed")

from launcher import cli
from launcher.commands import serve
from launcher.serving import access, opening, server


@pytest.mark.parametrize("logged", [False, True])
def test_flags_of_a_server(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], logged: bool
) -> None:
    served: list[Any] = []
    logs: list[bool] = []
    repository = SimpleNamespace(models={"a": None, "b": None})

    def serving(context: Any, listening: Any, ready: Any) -> None:
        served.extend((context, listening))
        ready("http://x")

    monkeypatch.setattr(access, "client_log", lambda: logs.append(True))
    monkeypatch.setattr(opening, "repository_of", lambda *_: repository)
    monkeypatch.setattr(opening, "weight_folders", lambda offered: {})
    monkeypatch.setattr(server, "serve", serving)
    words = ["serve", "m.onnx", "--port", "1234", *(["--access-log"] if logged else [])]
    assert serve.run(cli.build_parser("serve").parse_args(words)) == 0
    context, listening = served
    assert logs == [True] * logged
    assert context.repository is repository and context.tokens == access.Tokens()
    assert (listening.port, listening.grpc_port) == (1234, None)
    assert capsys.readouterr().out == "serving a, b at http://x\n"
