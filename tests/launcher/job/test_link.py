"""``--link``: what it takes, and what becomes of it in plans."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from launcher.checkup.handshake import _saved
from launcher.errors import ConfigError
from launcher.job.job import merge
from launcher.job.places.link import link_text, parse_link
from sharding.slices.topology import Link, Topology
from tests.launcher.cli_tools import copied as shardrun
from tests.launcher.cli_tools import save_mlp

TABLE_HOSTS = "a.invalid:1,b.invalid:2"


@pytest.mark.parametrize(
    ("text", "link"),
    [
        ("1Gbit/s,0.2ms", Link(125e6, 2e-4)),
        ("10 Gbit, 50 us", Link(1.25e9, 5e-5)),
        ("12.5GB/s,5µs", Link(12.5e9, 5e-6)),
        ("400Mbps,0s", Link(50e6, 0.0)),
    ],
)
def test_links_that_are_read(text: str, link: Link) -> None:
    found = parse_link(text)
    assert found.bandwidth == pytest.approx(link.bandwidth) and found.latency == pytest.approx(link.latency)
    again = parse_link(str(found))
    assert (again.bandwidth, again.latency) == pytest.approx((found.bandwidth, found.latency))


@pytest.mark.parametrize(
    "text", ["1Gbit/s,", "fast,0.2ms", "0Gbit/s,1ms", "1Gbit/s,-1ms", "1Gbit/s,1", ",", "1,1", "", " "]
)
def test_links_that_are_refused(text: str) -> None:
    with pytest.raises(ConfigError, match=r"expected BANDWIDTH,LATENCY such as 1Gbit/s,0\.2ms"):
        parse_link(text)


@pytest.mark.parametrize(
    ("content", "message"),
    [
        (None, "no such file; expected BANDWIDTH,LATENCY"),
        ("{}", "not a link that `shardrun doctor --save-link` wrote"),
        ("[" * 100000, "not a link that"),
        (f'{{"bytes_per_second": 1{"0" * 400}, "latency_seconds": 1}}', "not a link that"),
        ('{"bytes_per_second": 0, "latency_seconds": 1}', "expected a bandwidth above 0"),
        ('{"bytes_per_second": NaN, "latency_seconds": 1}', "expected a bandwidth above 0"),
        ('{"bytes_per_second": 1e9, "latency_seconds": -1}', "expected a bandwidth above 0"),
    ],
)
def test_files_of_links(tmp_path: Path, content: str | None, message: str) -> None:
    path = tmp_path / "link.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=message):
        parse_link(str(path))
    path.write_text(link_text(Link(125e6, 2e-4)))
    assert parse_link(str(path)) == Link(125e6, 2e-4)


def test_a_job_file_names_a_link_beside_it(tmp_path: Path) -> None:
    (tmp_path / "jobs").mkdir()
    save_mlp(tmp_path / "jobs" / "m.onnx")
    (tmp_path / "jobs" / "link.json").write_text(link_text(Link(125e6, 2e-4)))
    for said in ("link.json", "1Gbit/s,0.2ms"):
        (tmp_path / "jobs" / "job.yaml").write_text(f"model: m.onnx\nlink: {said}\nhosts: a.invalid:2\n")
        assert merge({}, tmp_path / "jobs" / "job.yaml").link == Link(125e6, 2e-4)


def test_a_job_knows_its_hosts(tmp_path: Path) -> None:
    save_mlp(tmp_path / "m.onnx")
    flags = {"model": tmp_path / "m.onnx", "link": Link(125e6, 2e-4)}
    hosts = (("a.invalid", 1), ("b.invalid", 2))
    options = merge({**flags, "hosts": hosts}, None).slicing.options()
    assert options.strategy == "auto" and options.topology == Topology((0, 1, 1), flags["link"])  # type: ignore[arg-type]
    options = merge({**flags, "nodes": 2, "ranks": 3}, None).slicing.options()
    assert options.topology is not None and options.topology.hosts == (0, 1, 1)
    with pytest.raises(ConfigError, match="--link says how fast hosts are joined: say which hosts"):
        merge({**flags, "ranks": 2}, None).slicing.options()
    with pytest.raises(ConfigError, match="--strategy tensor and --link exclude each other"):
        merge({**flags, "hosts": hosts, "strategy": "tensor"}, None)


def test_commands_that_plan(tmp_path: Path) -> None:
    """Hosts say the number of ranks too, and the reason says what crosses them."""
    save_mlp(tmp_path / "m.onnx")
    (tmp_path / "link.json").write_text(link_text(Link(125e6, 2e-4)))
    words = ("m.onnx", "--hosts", "a.invalid:1,b.invalid:1", "--link")
    done = shardrun("inspect", *words, "1Gbit/s,0.2ms", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "2 hosts, 1 Gbit/s, 0.2 ms between them: " in done.stdout
    done = shardrun("slice", *words, "link.json", "--output", "slices", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    manifest = json.loads((tmp_path / "slices" / "manifest.json").read_text())
    assert manifest["world_size"] == 2 and "2 hosts, 1 Gbit/s, 0.2 ms between them: " in manifest["reason"]
    done = shardrun("slice", "m.onnx", "--ranks", 2, "--link", "1Gbit/s,0.2ms", "--plan-only", cwd=tmp_path)
    assert done.returncode == 2 and "say which hosts, with --hosts" in done.stderr
    done = shardrun("slice", *words, "1Gbit/s,0.2ms", "--mesh", "tensor=2", "--plan-only", cwd=tmp_path)
    assert done.returncode == 2 and "--mesh and --link exclude each other" in done.stderr


def test_doctor_saves_only_what_it_can_measure(tmp_path: Path) -> None:
    done = shardrun("doctor", "--ranks", 2, "--save-link", "link.json", cwd=tmp_path)
    assert done.returncode == 2 and "--save-link measures between hosts" in done.stderr


@pytest.mark.parametrize(("large", "said"), [(0.021, "1 Gbit/s, 0.5 ms between hosts"), (0.001, None)])
def test_a_link_is_what_sums_take(tmp_path: Path, large: float, said: str | None) -> None:
    """A ring of two hosts takes two rounds, in each of which half of the bytes moves."""
    path = tmp_path / "link.json"
    finding = _saved(path, 2, {"small": 0.001, "large": large, "bytes": 2_500_000})
    if said is None:
        assert finding.level == "fail" and "took no longer than the small one" in finding.what
        assert not path.exists()
    else:
        assert finding.level == "ok" and said in finding.what
        assert parse_link(str(path)).bandwidth == pytest.approx(125e6)


def test_what_joins_the_hosts_is_written_as_it_was_measured(tmp_path: Path) -> None:
    path = tmp_path / "link.yaml"
    found = {"bytes": 3e6, "small": 8e-3, "large": 12e-3}
    said = _saved(path, 3, found)  # a ring of three: four rounds, in each a third of the sum
    link = parse_link(str(path))
    assert (link.bandwidth, link.latency) == pytest.approx((1e9, 2e-3))
    assert (said.level, said.what) == ("ok", f"{path}: 8 Gbit/s, 2 ms between hosts, for --link")
