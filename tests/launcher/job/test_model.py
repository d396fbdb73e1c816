"""How many ranks a job asks for, what they are told, and what one of many files says."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.job.decryption import check_key, read_key
from launcher.job.inputs import show_shape
from launcher.job.job import Job
from launcher.job.model import Loadable, asked_by, world_size
from launcher.job.precision import check, computed, parse_entry, parse_plan
from ranks.common.settings import WEIGHTS
from ranks.precision.request import Asked
from sharding.common.encryption import MODES
from sharding.slices.mesh import Mesh
from tests.launcher.cli_tools import save_mlp

HOSTS = (("a", 2), ("b", 1))


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return save_mlp(tmp_path_factory.mktemp("model") / "m.onnx")


@pytest.mark.parametrize(
    ("options", "ranks"),
    [
        ({}, None),
        ({"ranks": 2}, 2),
        ({"mesh": Mesh.of(tensor=2, pipeline=3)}, 6),
        ({"ranks": 2, "mesh": Mesh.of(tensor=6)}, 2),
        ({"hosts": HOSTS}, 3),
        ({"hosts": HOSTS, "ranks": 2}, 2),
        ({"hosts": HOSTS, "launcher": "local"}, None),
        ({"hosts": HOSTS, "launcher": "external"}, None),
        ({"hosts": (("a", None), ("b", None))}, 2),
    ],
)
def test_how_many_ranks(model: Path, options: dict[str, Any], ranks: int | None) -> None:
    assert world_size(Job(model=model, **options)) == ranks


def test_hosts_say_nothing_of_what_is_sliced(model: Path) -> None:
    assert world_size(Job(model=model.parent, hosts=HOSTS)) is None  # which has as many as it has
    with pytest.raises(ConfigError, match="expected places for 4 ranks, found 3"):
        world_size(Job(model=model, hosts=HOSTS, ranks=4))


def test_who_asks_for_so_many() -> None:
    assert asked_by(Job(ranks=2)) == "--ranks"
    assert asked_by(Job(ranks=2, rank_table=Path("t.json"))) == "the rank table t.json"
    assert asked_by(Job()).startswith("the environment (RANK and WORLD_SIZE")


def test_ranks_of_what_was_decrypted_keep_no_weights() -> None:
    assert Loadable(path=Path("m"), ranks=2).environment == {}
    assert Loadable(path=Path("m"), ranks=2, keep=False).environment == {WEIGHTS.name: "off"}


@pytest.mark.parametrize(
    ("content", "secret"),
    [
        (b"16 bytes of keys\n", b"16 bytes of keys"),
        (b"k" * 14 + b"\r\n", b"k" * 14 + b"\r\n"),
        (b"k" * 24, b"k" * 24),
    ],
)
def test_a_key_and_the_line_end_after_it(tmp_path: Path, content: bytes, secret: bytes) -> None:
    """Which is a part of it where only so the length is one of keys."""
    path = tmp_path / "key"
    path.write_bytes(content)
    found = read_key(path, None)
    assert found is not None and (found.secret, found.mode) == (secret, MODES[0])
    for mode in MODES:
        other = read_key(path, mode)
        assert other is not None and other.mode == mode
    assert read_key(None, None) is None


def test_a_key_that_is_not_there_or_not_needed(tmp_path: Path, model: Path) -> None:
    with pytest.raises(ConfigError, match=r"--dec-mode .* says how to use a key, but there is none"):
        read_key(None, MODES[0])
    with pytest.raises(ConfigError, match=r"--dec-key-file .*absent: No such file"):
        read_key(tmp_path / "absent", None)
    (tmp_path / "key").write_bytes(b"k" * 16)
    key = read_key(tmp_path / "key", None)
    check_key(None, Job(model=model).reference)
    for against in (None, model):
        with pytest.raises(ConfigError):
            check_key(key, Job(model=model).reference, against)


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"outputs": Path("o")}, "--outputs: give --inputs too"),
        ({"resume": True}, "--resume: give --inputs too"),
        ({"keep_going": True}, "--keep-going: give --inputs too"),
        ({"files": ("a",)}, "--inputs: give --outputs too"),
        ({"files": ("a",), "outputs": Path("o"), "seed": 0}, "--inputs and --seed exclude each other"),
        ({"files": ("a",), "outputs": Path("o"), "repeat": 2}, "--inputs and --repeat exclude each other"),
        ({"files": ("a",), "outputs": Path("o"), "verify": True}, "--inputs and --verify exclude each other"),
        ({"files": ("a",), "outputs": Path("o")}, ""),
        ({"files": ("a",), "outputs": Path("o"), "resume": True, "keep_going": True}, ""),
    ],
)
def test_options_of_many_files(options: dict[str, Any], message: str) -> None:
    job = Job(**options)
    if not message:
        job._check_files()
        return
    with pytest.raises(ConfigError, match=message):
        job._check_files()


def test_options_that_only_a_starter_follows() -> None:
    assert Job().of_starting() == "" and Job(launcher="ssh").of_starting() == ""
    assert Job(hosts=HOSTS).of_starting() == "--hosts"


@pytest.mark.parametrize(
    ("shape", "known", "shown"),
    [
        ([], None, "[]"),
        (["batch", 128, None], None, "[batch, 128, ?]"),
        (["batch", "seq", 0], {"batch": 2}, "[batch=2, seq, 0]"),
    ],
)
def test_shapes_as_text(shape: list[Any], known: dict[str, int] | None, shown: str) -> None:
    assert show_shape(shape, known) == shown


@pytest.mark.parametrize(
    ("asked", "target", "types"),
    [
        (None, "cpu", set()),
        (None, "gpu", {"tf32"}),
        (None, "ascend", set()),
        (Asked("enforce_fp32"), "gpu", set()),
        (Asked("enforce_origin"), "gpu", {"tf32"}),
        (Asked("enforce_fp16"), "gpu", {"float16"}),
        (Asked("preferred_fp16"), "ascend", {"float16"}),
        (Asked("enforce_fp16"), "cpu", set()),
        (Asked("", (("MatMul", "float16"),)), "cpu", {"float16"}),
        (Asked("", (("MatMul", "float32"),)), "cpu", set()),
        (Asked("enforce_fp32", (("MatMul", "float16"),)), "gpu", {"float16"}),
    ],
)
def test_types_that_a_model_is_made_to_compute_in(asked: Asked | None, target: str, types: set[str]) -> None:
    assert computed(asked, target) == types


def test_entries_of_execution_plans() -> None:
    assert parse_entry("a=b = FLOAT16 ") == ("a=b", "float16")
    assert parse_entry("MatMul=data_type:float32") == ("MatMul", "float32")
    assert parse_plan(["a=float16", "b=float32", "a=float16"]) == {"a": "float16", "b": "float32"}
    for wrong in ("float16", "=float16", "a=float64", "a=", "a=xfloat16"):
        with pytest.raises(ConfigError, match=r"expected NAME=float16 or NAME=float32"):
            parse_entry(wrong)
    with pytest.raises(ConfigError, match=r"'a' is given twice, with two types"):
        parse_plan(["a=float16", "a=float32"])


def test_modes_and_plans_that_cannot_be() -> None:
    check(Job())
    check(Job(target="gpu", precision_mode="preferred_fp16"))
    with pytest.raises(ConfigError, match=r"no mode of the target cpu: expected one of"):
        check(Job(precision_mode="preferred_optimal"))
    check(Job(execution_plan={"n" * 90_000: "float16"}))
    with pytest.raises(ConfigError, match=r"the plan has 1 entries, together longer than 100000"):
        check(Job(execution_plan={"n" * 100_001: "float16"}))
