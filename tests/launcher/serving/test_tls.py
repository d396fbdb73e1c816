"""https, and clients that must show a certificate."""

from __future__ import annotations

import datetime
import os
import ssl
from dataclasses import dataclass, replace
from ipaddress import ip_address
from pathlib import Path

import httpx
import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec

from launcher.errors import ConfigError
from launcher.serving.limits import ServeLimits
from launcher.serving.metrics import Metrics
from launcher.serving.server import Listening
from launcher.serving.tensor_model import TensorModel
from tests.launcher.serving.playing import URL, Played, ask
from tests.launcher.serving.running import running


@dataclass
class Signed:
    """A certificate and its key, as files."""

    certificate: Path
    key: Path


def sign(folder: Path, name: str, by: str | None = None) -> Signed:
    """Makes a certificate for this machine: of an authority, or signed by one that was made before."""
    own = ec.generate_private_key(ec.SECP256R1())
    (folder / f"{name}.key").write_bytes(
        own.private_bytes(
            serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, serialization.NoEncryption()
        )
    )
    signer = serialization.load_pem_private_key((folder / f"{by or name}.key").read_bytes(), None)
    assert isinstance(signer, ec.EllipticCurvePrivateKey)
    now = datetime.datetime.now(datetime.timezone.utc)
    made = x509.CertificateBuilder(
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, by or name)]),
        x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, name)]),
        own.public_key(), x509.random_serial_number(), now - datetime.timedelta(days=1),
        now + datetime.timedelta(days=1),
    )  # fmt: skip
    made = made.add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
    made = made.add_extension(
        x509.SubjectAlternativeName([x509.IPAddress(ip_address("127.0.0.1"))]), critical=False
    )
    (folder / f"{name}.pem").write_bytes(
        made.sign(signer, hashes.SHA256()).public_bytes(serialization.Encoding.PEM)
    )
    return Signed(folder / f"{name}.pem", folder / f"{name}.key")


def test_only_clients_whose_certificates_are_signed(tmp_path: Path) -> None:
    authority, other = sign(tmp_path, "authority"), sign(tmp_path, "other")
    own, friend = sign(tmp_path, "own", "authority"), sign(tmp_path, "friend", "authority")
    stranger = sign(tmp_path, "stranger", "other")
    metrics = Metrics()
    model = TensorModel("played", ServeLimits(), metrics, open_group=Played)  # type: ignore[arg-type]
    listening = Listening(port=0, certificate=own.certificate, key=own.key, clients=authority.certificate)
    with running(model, metrics=metrics, listening=listening) as found:
        assert found.url.startswith("https://127.0.0.1:")

        def answer(client: Signed | None) -> int:
            trust = ssl.create_default_context(cafile=str(authority.certificate))
            if client is not None:
                trust.load_cert_chain(client.certificate, client.key)
            return httpx.post(found.url + URL, json=ask(1), verify=trust, timeout=30).status_code

        assert answer(friend) == 200
        for wrong in (None, stranger):
            with pytest.raises(httpx.TransportError):
                answer(wrong)
        with pytest.raises(httpx.ConnectError):
            httpx.post(found.url + URL, json=ask(1), verify=ssl.create_default_context(), timeout=30)
        assert answer(friend) == 200
    os.mkfifo(tmp_path / "pipe")
    for bad, said in (
        (replace(listening, clients=tmp_path / "no.pem"), "--tls-clients .*no.pem: No such file"),
        (replace(listening, key=tmp_path / ("n" * 300)), "--tls-key .*nnn: File name too long"),
        (replace(listening, clients=other.key), "--tls-clients .*other.key"),
        (replace(listening, key=other.key), "--tls-certificate .*--tls-key .*other.key"),
        (replace(listening, key=None), "belong together"),
        *(
            (replace(listening, **{part: tmp_path / "pipe"}), f"--tls-{part} .*pipe: expected a regular file")
            for part in ("certificate", "key", "clients")
        ),
    ):
        with pytest.raises(ConfigError, match=said):
            bad.check()
