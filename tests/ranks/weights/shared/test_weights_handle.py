"""Shared weights: handles, who may attach, and the sentences for those who may not."""

from __future__ import annotations

import ctypes
import multiprocessing
import os
import socket
import subprocess
import sys
import warnings
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import ranks
from ranks.errors import ShardrunError, WeightsError
from ranks.lite.options import config, texts
from ranks.weights.shared import handle, peers, protocol, server, sharing
from tests.ranks import api_models
from tests.ranks.threads import until
from tests.ranks.weights_worker import INPUT, Refused, Workers, oracle

pytestmark = pytest.mark.timeout(120)
ROOT = Path(__file__).parents[4]


def text_of(found: Any) -> str:
    assert isinstance(found, Refused), found
    assert found.kind == "WeightsError"
    assert "\n" not in found.text
    return found.text


# The protocol of the tutorials.


@pytest.mark.parametrize("section", ["ascend_context", "cpu_context", "gpu_context"])
def test_pids_and_handle_in_sections(section: str, workers: Workers, shared_model: Path) -> None:
    owner, first, second = (workers.new() for _ in range(3))
    listed = f"{first.pid}, {second.pid}"
    number = owner.do(
        "build", path=str(shared_model), config_dict={section: {"shareable_weight_pid_list": listed}}
    )
    assert 0 < int(number) < 2**64
    for worker in (first, second):
        config = {section: {"shareable_weight_mem_handle": number}}
        assert worker.do("build", path=str(shared_model), config_dict=config) == number
    expected = oracle(shared_model)
    assert all(worker.predicts(expected) for worker in (owner, first, second))


def test_short_forms(workers: Workers, shared_model: Path) -> None:
    owner, first, second = (workers.new() for _ in range(3))
    number = owner.do("build", path=str(shared_model), config_dict={"pids": f"{first.pid},{second.pid},"})
    for worker, given_as in ((first, str(number)), (second, int(number))):
        assert (
            worker.do("build", path=str(shared_model), config_dict={"shared_mem_handle": given_as}) == number
        )
        assert worker.predicts(oracle(shared_model))


def test_configuration_file(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    owner, other = workers.new(), workers.new()
    file = tmp_path / "config.ini"
    file.write_text(f"[cpu_context]\nshareable_weight_pid_list = {other.pid}\n")
    number = owner.do("build", path=str(shared_model), config_path=str(file))
    file.write_text(f"[ascend_context]\nShareable_Weight_Mem_Handle={number}\n")
    assert other.do("build", path=str(shared_model), config_path=str(file)) == number
    assert other.predicts(oracle(shared_model))


def test_information_of_a_model(shared_model: Path) -> None:
    plain = ranks.Model()
    assert plain.get_model_info("current_pid") == str(os.getpid())
    assert plain.get_model_info("shareable_weight_mem_handle") == ""
    plain.build_from_file(str(shared_model), ranks.ModelType.ONNX)
    assert plain.get_model_info("current_pid") == str(os.getpid())
    assert plain.get_model_info("shareable_weight_mem_handle") == ""


# Without lists of process ids.

CHILD = """
import sys
import numpy as np
import ranks
with ranks.attach(sys.argv[1], sys.argv[2]) as model:
    rows = np.frombuffer(bytes.fromhex(sys.argv[3]), np.float32).reshape(2, 8)
    print(model.predict([rows])[0].get_data_to_numpy().tobytes().hex())
"""


def _child(number: int, path: str, answer: Any) -> None:
    with ranks.attach(number, path) as model:
        answer.put(model.predict([INPUT])[0].get_data_to_numpy())


@pytest.mark.parametrize("method", ["fork", "spawn", "forkserver"])
def test_children_by_multiprocessing(method: str, shared_model: Path, _fork_server: None) -> None:
    context: Any = multiprocessing.get_context(method)
    with ranks.share_weights(str(shared_model)) as owner:
        answer = context.Queue()
        child = context.Process(target=_child, args=(owner.handle, str(shared_model), answer))
        child.start()
        found = answer.get(timeout=60)
        child.join(60)
    np.testing.assert_allclose(found, oracle(shared_model), rtol=1e-4)


def test_children_and_grandchildren_by_subprocess(shared_model: Path) -> None:
    with ranks.share_weights(str(shared_model)) as owner:
        command = [sys.executable, "-c", CHILD, str(owner.handle), str(shared_model), INPUT.tobytes().hex()]
        for whole in (command, ["sh", "-c", '"$@"; true', "sh", *command]):  # `true`: the shell stays between
            done = subprocess.run(whole, cwd=ROOT, capture_output=True, text=True, timeout=60, check=False)
            assert done.returncode == 0, done.stderr
            found = np.frombuffer(bytes.fromhex(done.stdout.strip()), np.float32).reshape(2, 4)
            np.testing.assert_allclose(found, oracle(shared_model), rtol=1e-4)


def test_family_of_the_process_that_starts_all(workers: Workers, shared_model: Path) -> None:
    owner, other = workers.new(), workers.new()
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    assert other.do("attach", given=number, path=str(shared_model)) == "attached"
    assert other.predicts(oracle(shared_model))
    assert "family must be this process" in text_of(
        owner.do("share", path=str(shared_model), family=other.pid)
    )


def test_name_agreed_beforehand_and_client_first(workers: Workers, shared_model: Path) -> None:
    owner, other = workers.new(), workers.new()
    name = f"encoder {os.getpid()}"
    other.start("attach", given=name, path=str(shared_model), timeout=60)
    assert not other.pipe.poll(0.3)  # it waits
    assert owner.do("share", path=str(shared_model), name=name, pids=[other.pid]) == name
    assert other.reply() == "attached"
    assert other.predicts(oracle(shared_model))
    third = workers.new()
    found = text_of(third.do("share", path=str(shared_model), name=name))
    assert f"weights are shared under the name {name!r} already by process {owner.pid}" in found
    # The owner ends its part; whoever is attached keeps the weights, and the name is free.
    assert owner.do("close") == "closed"
    assert other.predicts(oracle(shared_model))
    assert third.do("share", path=str(shared_model), name=name) == name


def test_waiting_has_an_end(workers: Workers, shared_model: Path) -> None:
    other = workers.new(SHARDRUN_TIMEOUT="0.2")
    found = text_of(other.do("attach", given="nobody has this", path=str(shared_model)))
    assert "nobody shared weights under the name 'nobody has this' within 0.2 s" in found
    found = text_of(other.do("attach", given="nobody has this", path=str(shared_model), timeout=0))
    assert "within 0 s" in found


def test_owner_that_builds_or_is_stopped_is_waited_for(workers: Workers, shared_model: Path) -> None:
    owner, other = workers.new(), workers.new()
    owner.do("stop_at", step="listening")
    name = f"slow {os.getpid()}"
    owner.start("share", path=str(shared_model), name=name, pids=[other.pid])
    assert owner.reply() == "at listening"
    found = text_of(other.do("attach", given=name, path=str(shared_model), timeout=0.3))
    told = f"did not answer within 0.3 s: it is process {owner.pid} "
    assert told in found and "which is stopped by a signal such as SIGSTOP" in found
    other.start("attach", given=name, path=str(shared_model), timeout=60)
    assert not other.pipe.poll(0.2)
    owner.go_on()
    assert owner.reply() == name
    assert other.reply() == "attached"
    assert other.predicts(oracle(shared_model))


def test_another_folder_and_file_name_are_the_same_model(
    workers: Workers, shared_model: Path, tmp_path: Path
) -> None:
    copy = tmp_path / "copy.onnx"
    copy.write_bytes(shared_model.read_bytes())
    owner, other = workers.new(), workers.new()
    number = owner.do("share", path=str(shared_model), pids=[other.pid])
    assert other.do("attach", given=number, path=str(copy)) == "attached"
    assert other.predicts(oracle(shared_model))


def test_attached_from_another_cache_folder(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    owner, other = workers.new(), workers.new(SHARDRUN_CACHE=str(tmp_path / "empty"))
    number = owner.do("share", path=str(shared_model), pids=[other.pid])
    assert other.do("attach", given=number, path=str(shared_model)) == "attached"
    assert other.predicts(oracle(shared_model))
    assert other.do("mapped_weights") == owner.do("mapped_weights")


def test_resized_models_stay_shared(workers: Workers, tmp_path: Path) -> None:
    path = api_models.linear(tmp_path / "fixed.onnx", batch=2, width=2048)
    owner, first, second = (workers.new() for _ in range(3))
    number = owner.do("share", path=str(path), pids=[first.pid, second.pid])
    assert owner.do("resize", shape=[3, 8]).shape == (3, 4)
    assert first.do("attach", given=number, path=str(path)) == "attached"
    assert first.do("resize", shape=[5, 8]).shape == (5, 4)
    assert second.do("attach", given=number, path=str(path)) == "attached"
    assert second.predicts(oracle(path))


# Refused.


def test_process_that_is_not_listed(workers: Workers, shared_model: Path) -> None:
    owner, listed, other = (workers.new() for _ in range(3))
    number = owner.do("build", path=str(shared_model), config_dict={"pids": str(listed.pid)})
    found = text_of(other.do("attach", given=number, path=str(shared_model)))
    assert (
        f"process {owner.pid}, the owner of the weights, refused this process: process {other.pid} is not "
        f"among those that may attach (the listed process {listed.pid})."
    ) in found
    number = owner.do("share", path=str(shared_model))
    found = text_of(other.do("attach", given=number, path=str(shared_model)))
    assert f"not among those that may attach (process {owner.pid} and its descendants)" in found
    assert listed.do("attach", given=number, path=str(shared_model)) != "attached"


def test_another_user(workers: Workers, shared_model: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    owner, other = workers.new(), workers.new()
    number = owner.do("share", path=str(shared_model), pids=[other.pid])
    other.do("become", user=65534)
    found = text_of(other.do("connect", given=number))
    assert f"process {owner.pid} shares these weights as user 0, but this process runs as user 65534" in found
    # Whoever does not ask as we do learns no more, and the owner says why.
    found = text_of(owner.do("share", path=str(shared_model), pids=[other.pid]))
    assert f"pids lists process {other.pid}, which runs as user 65534" in found


def test_owner_checks_the_user_too(workers: Workers, shared_model: Path) -> None:
    if os.getuid() != 0:
        pytest.skip("only root can start a process of another user")
    owner = workers.new()
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:  # without any of our code on this side
        try:
            os.setuid(65534)
            with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
                peer.connect(handle.address(number).socket_name)
                os.write(writing, peer.recv(4096))
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading) as file:
        said = file.read()
    os.waitpid(child, 0)
    assert f"process {child} runs as user 65534, the owner as user 0" in said


def test_wrong_and_stale_handles(workers: Workers, shared_model: Path) -> None:
    owner, other = workers.new(), workers.new()
    number = owner.do("build", path=str(shared_model), config_dict={"pids": str(other.pid)})
    wrong = {"shared_mem_handle": str(int(number) ^ 1)}
    expected = (
        "nobody shares weights under this handle: it is wrong, or it is stale because its owner has ended"
    )
    assert expected in text_of(other.do("build", path=str(shared_model), config_dict=wrong))
    assert other.do("build", path=str(shared_model), config_dict={"shared_mem_handle": number}) == number
    owner.kill()
    assert expected in text_of(
        workers.new().do("build", path=str(shared_model), config_dict={"shared_mem_handle": number})
    )
    assert other.predicts(oracle(shared_model))


def test_socket_found_without_the_handle(workers: Workers, shared_model: Path) -> None:
    """The sockets of a host can be listed: that gives no handle."""
    owner = workers.new()
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    where = handle.address(number)
    assert where.socket_name[1:].decode() in Path("/proc/net/unix").read_text()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        peer.settimeout(10)
        peer.connect(where.socket_name)
        challenge = protocol.receive(peer)
        assert challenge is not None and challenge.data is not None
        assert set(challenge.data) == {"protocol", "nonce"}
        guess = handle.address(number ^ 1).prove("attacher", challenge.data["nonce"], "00")
        protocol.send(peer, {"nonce": "00", "proof": guess})
        answer = protocol.receive(peer, 8)
        assert answer is not None
        assert answer.data == {"refused": "the handle is wrong"}
        assert answer.descriptors == []
        assert protocol.receive(peer) is None


def test_answer_of_another_connection_proves_nothing() -> None:
    where = handle.address(handle.new_handle())
    proof = where.prove("attacher", "a", "b")
    assert where.is_proof(proof, "attacher", "a", "b")
    for who, nonces in (("owner", "ab"), ("attacher", "ba"), ("attacher", "ac")):
        assert not where.is_proof(proof, who, *nonces)
    assert not where.is_proof(None, "attacher", "a", "b")
    assert not where.is_proof("é" * 64, "attacher", "a", "b")


def test_socket_held_by_somebody_who_does_not_know_the_handle(workers: Workers, shared_model: Path) -> None:
    number = handle.new_handle()
    guest = workers.new()
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as listener:
        listener.bind(handle.address(number).socket_name)
        listener.listen(8)
        listener.settimeout(30)
        mine = protocol.PROTOCOL.encode()
        for answer, sentence in (
            (None, "ended or closed its model meanwhile"),
            (b"\xff", "sent something that no owner of weights sends"),
            (b'{"protocol": "other", "nonce": "00"}', "in the way of another version of shardrun"),
            (b'{"protocol": "%s", "nonce": "\\ud800"}' % mine, "in the way of another version of shardrun"),
            (b'{"refused": "no \\u001b[31m\\nway"}', r"refused this process: no \x1b[31m\nway."),
        ):
            guest.start("attach", given=number, path=str(shared_model))
            peer = listener.accept()[0]
            with peer:
                if answer is not None:
                    peer.send(answer)
            assert sentence in text_of(guest.reply())
        guest.start("attach", given=number, path=str(shared_model))
        with listener.accept()[0] as peer:
            protocol.send(peer, {"protocol": protocol.PROTOCOL, "nonce": "00"})
            peer.recv(4096)
            protocol.send(peer, {"proof": "00", "facts": {}, "parts": []})
        assert "does not know the handle itself" in text_of(guest.reply())


def test_other_model_device_and_releases(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    other_model = api_models.linear(tmp_path / "model.onnx", width=1024)
    owner = workers.new()
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    who = f"process {owner.pid}, which shares the weights,"
    found = text_of(workers.new().do("attach", given=number, path=str(other_model)))
    assert f"{who} has another model: the hash of its content begins with" in found
    assert str(other_model) in found
    for facts, sentence in (
        ({"device": "CUDA device 0"}, "runs it on the CPU, but this process on CUDA device 0"),
        ({"runtime": "1.0.0"}, "but this process has 1.0.0, and weights prepared by one release"),
        ({"processor": "x"}, "prepared them for another processor"),
        ({"variable_weights": "x 'w'"}, "built with none, but this process with 'w'"),
    ):
        guest = workers.new()
        guest.do("pretend", **facts)
        found = text_of(guest.do("attach", given=number, path=str(shared_model)))
        assert who in found
        assert sentence in found


def test_number_of_a_process_given_again(workers: Workers, shared_model: Path) -> None:
    """A listed process ends, and the kernel gives its number to another: that one is a stranger."""
    owner, listed = workers.new(), workers.new()
    number = owner.do("build", path=str(shared_model), config_dict={"pids": str(listed.pid)})
    pid = listed.pid
    listed.kill()
    last = Path("/proc/sys/kernel/ns_last_pid")
    program = "import sys\nfrom ranks.weights.shared import client, handle\n"
    program += "client.connect(handle.address(int(sys.argv[1])), 5)"
    for _ in range(50):
        try:
            last.write_text(str(pid - 1))
        except OSError:
            break
        child = subprocess.Popen(
            [sys.executable, "-c", program, number], cwd=ROOT, stderr=subprocess.PIPE, text=True
        )
        if child.pid == pid:
            said = child.communicate(timeout=60)[1]
            assert f"process {pid} is not the one that the owner listed" in said
            return
        child.kill()
        child.communicate()
    pytest.skip("the kernel does not let this user choose the number of the next process")


def test_start_time_tells_processes_apart() -> None:
    now = peers.status(os.getppid())
    assert now is not None
    parent = os.getppid()
    assert peers.Guests({parent: now.start}).refusal(parent) is None
    assert "is not the one that the owner listed" in str(
        peers.Guests({parent: now.start - 1}).refusal(parent)
    )
    assert peers.Guests().refusal(os.getpid()) is None
    assert "PID namespace" in str(peers.Guests().refusal(0))
    assert "has ended" in str(peers.Guests().refusal(peers.LARGEST_PID))


def test_a_process_that_ended_is_not_listed(workers: Workers, shared_model: Path) -> None:
    owner, other = workers.new(), workers.new()
    other.kill()
    found = text_of(owner.do("build", path=str(shared_model), config_dict={"pids": str(other.pid)}))
    assert f"config_dict['pids'] lists process {other.pid}, which does not run" in found
    zombie = subprocess.Popen(["true"])
    os.waitid(os.P_PID, zombie.pid, os.WEXITED | os.WNOWAIT)
    assert "does not run" in text_of(owner.do("share", path=str(shared_model), pids=[zombie.pid]))
    zombie.wait()


def test_own_process_may_attach(shared_model: Path) -> None:
    owner = ranks.Model()
    owner.build_from_file(str(shared_model), ranks.ModelType.ONNX, config_dict={"pids": str(os.getpid())})
    other = ranks.Model()
    number = owner.get_model_info("shareable_weight_mem_handle")
    other.build_from_file(str(shared_model), ranks.ModelType.ONNX, config_dict={"shared_mem_handle": number})
    np.testing.assert_allclose(other.predict([INPUT])[0].get_data_to_numpy(), oracle(shared_model), rtol=1e-4)


def test_nothing_to_share_with(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    found = text_of(workers.new(SHARDRUN_WEIGHTS="off").do("share", path=str(shared_model)))
    assert found.endswith("without a store of prepared weights: SHARDRUN_WEIGHTS is off.")
    (tmp_path / "file").touch()
    found = text_of(workers.new(SHARDRUN_CACHE=str(tmp_path / "file")).do("share", path=str(shared_model)))
    assert f"{tmp_path / 'file' / 'weights'} cannot be used (Not a directory" in found
    assert found.endswith("set SHARDRUN_CACHE to a folder to which you and nobody else may write.")


# Values that are wrong.


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"pids": ""}, "must list 1 to 1024 process ids, but lists 0"),
        ({"pids": "a"}, "config_dict['pids'] must be process ids from 1 to 4194304 separated by commas"),
        ({"pids": "-5"}, "but holds '-5'"),
        ({"pids": "0"}, "must list 1 to 1024 process ids, but holds nothing but 0"),
        ({"pids": [0, 0]}, "must list 1 to 1024 process ids, but holds nothing but 0"),
        ({"cpu_context": {"shareable_weight_pid_list": "[0, 0]"}}, "but holds nothing but 0"),
        ({"pids": "4194305"}, "but holds '4194305'"),
        ({"pids": "9" * 5000}, "but holds '999"),
        ({"pids": "1,,2"}, "but holds ''"),
        ({"pids": "1;2"}, "but holds '1;2'"),
        ({"pids": "١"}, "but holds '١'"),
        ({"pids": ",".join(["1"] * 1025)}, "but lists 1025"),
        (
            {"cpu_context": {"shareable_weight_pid_list": "x"}},
            "[cpu_context] shareable_weight_pid_list in config_dict",
        ),
        ({"shared_mem_handle": ""}, "must be the number that get_model_info"),
        ({"shared_mem_handle": "0"}, "from 1 to 2**64 - 1"),
        ({"shared_mem_handle": -(2**63) - 1}, "but is a text of 20 characters"),
        ({"shared_mem_handle": "--1"}, "but is a text of 3 characters"),
        ({"shared_mem_handle": str(2**64)}, "but is a text of 20 characters"),
        ({"shared_mem_handle": "0x10"}, "but is a text of 4 characters"),
        ({"pids": "1", "shared_mem_handle": "1"}, "either shares its weights or attaches to another's"),
        (
            {
                "cpu_context": {"shareable_weight_mem_handle": "1"},
                "gpu_context": {"shareable_weight_mem_handle": "2"},
            },
            "they say different things",
        ),
    ],
)
def test_malformed_values(config: Any, sentence: str, shared_model: Path) -> None:
    with pytest.raises(RuntimeError) as caught:
        ranks.Model().build_from_file(str(shared_model), ranks.ModelType.ONNX, config_dict=config)
    assert isinstance(caught.value, WeightsError)
    assert str(caught.value).startswith("load configuration failed! Error is ")
    assert sentence in str(caught.value)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) < 500


@pytest.mark.parametrize(
    ("config", "message"),
    [
        ({"pids": 1.5}, "config_dict['pids'] must be str, but got <class 'float'>."),
        ({"pids": ["1"]}, "config_dict['pids'] element must be int, but got <class 'str'> at index 0."),
        (
            {"shared_mem_handle": None},
            "config_dict['shared_mem_handle'] must be str, but got <class 'NoneType'>.",
        ),
        ({"shared_mem_handle": [1]}, "config_dict['shared_mem_handle'] must be str, but got <class 'list'>."),
        (
            {"cpu_context": {"shareable_weight_mem_handle": 5}},
            "config_dict_value_value must be str, but got <class 'int'>.",
        ),
    ],
)
def test_values_of_other_types(config: Any, message: str, shared_model: Path) -> None:
    with pytest.raises(TypeError) as caught:
        ranks.Model().build_from_file(str(shared_model), ranks.ModelType.ONNX, config_dict=config)
    assert str(caught.value) == message


@settings(deadline=None)
@given(
    key=st.sampled_from(["pids", "shared_mem_handle"]),
    value=st.recursive(
        st.one_of(st.none(), st.integers(), st.text(max_size=5), st.binary(max_size=3), st.floats()),
        lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(st.text(max_size=3), inner)),
        max_leaves=5,
    ),
    section=st.booleans(),
)
def test_any_value(key: str, value: Any, section: bool) -> None:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            options = config.load("", {"cpu_context": {key: value}} if section else {key: value})
        assert options.sharing is not None or isinstance(value, dict)
    except TypeError as error:
        assert str(error).startswith("config_dict")
    except WeightsError as error:
        assert str(error).startswith("load configuration failed! Error is ")


def test_runner_does_not_share(shared_model: Path) -> None:
    context = ranks.Context()
    context.parallel.config_info = {"cpu_context": {"shareable_weight_pid_list": "1"}}
    with pytest.raises(RuntimeError, match="does not share weights with other processes"):
        ranks.ModelParallelRunner().build_from_file(str(shared_model), context)


def test_arguments_of_the_short_way(shared_model: Path) -> None:
    path = str(shared_model)
    wrong: list[tuple[Any, type[Exception], str]] = [
        (lambda: ranks.attach(1.5, path), TypeError, "handle must be int or str"),
        (lambda: ranks.attach(True, path), TypeError, "handle must be int or str"),
        (lambda: ranks.attach(0, path), WeightsError, "from 1 to 2"),
        (lambda: ranks.attach(2**64, path), WeightsError, "from 1 to 2"),
        (lambda: ranks.attach("9" * 30, path), WeightsError, "from 1 to 2"),
        (lambda: ranks.attach(" ", path), WeightsError, "1 to 200 characters"),
        (lambda: ranks.attach("a", path, timeout=-1), WeightsError, "timeout must be a number"),
        (lambda: ranks.attach("a", path, timeout=float("nan")), WeightsError, "timeout must be a number"),
        (lambda: ranks.attach("a", path, timeout=1e300), WeightsError, "timeout must be a number"),
        (lambda: ranks.share_weights(path, name="12"), WeightsError, "must not be a number"),
        (lambda: ranks.share_weights(path, name="n" * 201), WeightsError, "1 to 200 characters"),
        (lambda: ranks.share_weights(path, name=5), TypeError, "name must be str"),
        (lambda: ranks.share_weights(path, pids=5), TypeError, "pids must be a list of int, but got"),
        (lambda: ranks.share_weights(path, pids=["1"]), TypeError, "pids element must be int, but got .* at"),
        (lambda: ranks.share_weights(path, pids=[-1]), WeightsError, "pids must be process ids"),
        (lambda: ranks.share_weights(path, family="1"), TypeError, "family must be int"),
        (lambda: ranks.share_weights("/no"), ShardrunError, "does not exist"),
    ]
    for call, kind, sentence in wrong:
        with pytest.raises(kind, match=sentence):
            call()


@pytest.mark.parametrize("written", ["-{}", "+{}", "{:#x}", "{}.0", "0{}00", "{:_}", "{:e}", " {:#X}\n"])
def test_a_number_is_no_name(written: str, shared_model: Path) -> None:
    text = written.format(12345678901234567890)
    with pytest.raises(WeightsError, match="must be the number that get_model_info") as caught:
        ranks.attach(text, str(shared_model))  # and does not wait
    assert text.strip() not in str(caught.value)  # it may be a secret
    with pytest.raises(WeightsError, match="must not be a number"):
        ranks.share_weights(str(shared_model), name=text)


def test_a_handle_as_a_program_reads_it(shared_model: Path) -> None:
    path = str(shared_model)
    with ranks.share_weights(path) as owner, ranks.attach(f" {owner.handle}\n", path) as attached:
        assert attached.handle == owner.handle


@settings(deadline=None)
@given(text=st.one_of(st.text(max_size=30), st.from_regex(r"[-0-9, \[\]]{0,40}", fullmatch=True)))
def test_any_list_of_pids(text: str) -> None:
    try:
        found = texts.parse_pids(text, "pids")
    except WeightsError as error:
        assert str(error).startswith("pids must ")
    else:
        assert found and all(0 < pid <= peers.LARGEST_PID for pid in found)
        assert len(set(found)) == len(found)


@settings(max_examples=30, deadline=None)
@given(text=st.one_of(st.text(max_size=30), st.integers(-(2**70), 2**70).map(str)))
def test_any_handle(text: str) -> None:
    try:
        assert 0 < texts.parse_handle(text, "handle") < 2**64
    except WeightsError as error:
        assert str(error).startswith("handle must be the number")
        assert len(text) < 4 or text not in str(error)  # it may be a secret


@pytest.mark.parametrize("number", [2**63, 2**63 + 5, 2**64 - 1, 2**63 - 1, 1])
def test_a_handle_that_went_through_a_signed_number(number: int) -> None:
    signed = ctypes.c_int64(number).value
    assert handle.unsigned(signed) == number
    assert texts.parse_handle(f" {signed}", "handle") == number
    assert texts.parse_handle(str(number), "handle") == number


def test_an_owner_with_the_largest_handle(
    monkeypatch: pytest.MonkeyPatch, workers: Workers, shared_model: Path
) -> None:
    """An owner whose handle no signed number can hold: others come with its two's complement, as text and
    as a number."""
    monkeypatch.setattr(sharing, "new_handle", lambda: handle.LARGEST_HANDLE - 6)
    path = str(shared_model)
    with ranks.share_weights(path) as owner:
        assert owner.handle == handle.LARGEST_HANDLE - 6
        signed = ctypes.c_int64(int(owner.handle)).value
        assert signed == -7
        with ranks.attach(signed, path) as attached:
            assert np.array_equal(attached.predict([INPUT])[0].get_data_to_numpy(), oracle(shared_model))
        model = ranks.Model()
        section = {"gpu_context": {"shareable_weight_mem_handle": str(signed)}}
        model.build_from_file(path, ranks.ModelType.MINDIR, config_dict=section)
        assert np.array_equal(model.predict([INPUT])[0].get_data_to_numpy(), oracle(shared_model))


def test_the_largest_new_handle_fits_into_a_signed_number(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(handle.secrets, "randbelow", lambda bound: bound - 1)
    assert handle.new_handle() == 2**63 - 1 == ctypes.c_int64(handle.new_handle()).value
    monkeypatch.setattr(handle.secrets, "randbelow", lambda bound: 0)
    assert handle.new_handle() == 1


@pytest.mark.parametrize(
    "text",
    ["0, {0}, {1}", "[0, {0}, {1}]", "{0},0,{1},0", "'{0}', '0', \"{1}\"", "['{0}','{1}']", "000,{0},{1},"],
)
def test_a_list_of_pids_with_places_that_nobody_filled(text: str) -> None:
    listed = text.format(os.getpid(), os.getppid())
    assert texts.parse_pids(listed, "pids") == (os.getpid(), os.getppid())


def test_handles_cannot_be_guessed() -> None:
    found = {handle.new_handle() for _ in range(2000)}
    assert len(found) == 2000
    assert all(0 < number < 2**63 for number in found)  # programs hand them on as signed numbers
    # Every bit is set in about half of them.
    for bit in range(63):
        assert 800 < sum(number >> bit & 1 for number in found) < 1200
    shown = repr(handle.address(77)) + str(handle.address(77))
    assert "key" not in shown and "socket_name" not in shown


# Pages.


def test_attached_pages_are_read_only(workers: Workers, shared_model: Path) -> None:
    owner, other, writer = (workers.new() for _ in range(3))
    number = owner.do("share", path=str(shared_model), family=os.getpid())
    other.do("attach", given=number, path=str(shared_model))
    mapped = other.do("mapped_weights")
    assert mapped and mapped == owner.do("mapped_weights")
    for path, how in mapped.items():
        assert how.endswith("p"), "what a process writes to a private mapping stays its own"
        assert Path(path).stat().st_mode & 0o777 == 0o400
    writer.do("connect", given=number)
    assert writer.do("folder_flags") & os.O_PATH
    blob = f"blobs/{Path(next(iter(mapped))).name}"
    found = writer.do("map_writable", name=blob)
    assert isinstance(found, Refused) and found.kind == "PermissionError"
    found = writer.do("write_to", name=blob)
    assert isinstance(found, Refused) and found.kind == "PermissionError"


# The owner's end of it.


def test_server_ends_with_the_model(workers: Workers, shared_model: Path) -> None:
    owner = workers.new()
    before = owner.do("descriptors")
    for end in ("close", "drop"):
        number = owner.do("share", path=str(shared_model))
        name = handle.address(number).socket_name[1:].decode()
        assert name in Path("/proc/net/unix").read_text()
        owner.do(end)
        until(lambda name=name: name not in Path("/proc/net/unix").read_text())  # type: ignore[misc]
        owner.do("drop")
        assert owner.do("descriptors") <= before + 1  # the store's may come later
    number = owner.do("share", path=str(shared_model))
    again = owner.do("share", path=str(shared_model))
    assert number != again
    other = workers.new()
    assert "nobody shares weights under this handle" in text_of(
        other.do("attach", given=number, path=str(shared_model))
    )


def test_failed_build_gives_the_name_back(workers: Workers, shared_model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.onnx"
    broken.write_bytes(shared_model.read_bytes()[:-100])
    owner, name = workers.new(), f"again {os.getpid()}"
    assert isinstance(owner.do("share", path=str(broken), name=name), Refused)
    assert owner.do("share", path=str(shared_model), name=name) == name


def test_forked_child_neither_serves_nor_keeps_the_address(shared_model: Path) -> None:
    where = handle.address(handle.new_handle())
    owner = server.Server(where, peers.Guests())
    owner.serve(server.Offer({}, os.open("/", os.O_PATH)))
    reading, writing = os.pipe()
    told, telling = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.close(writing)
            owner.close()  # as an interpreter that ends would
            os.write(telling, b"!")
            os.read(reading, 1)  # until the parent says
        finally:
            os._exit(0)
    os.close(reading)
    try:
        assert os.read(told, 1) == b"!"
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
            peer.settimeout(10)
            peer.connect(where.socket_name)
            assert protocol.receive(peer) is not None  # the parent's goes on
        owner.close()
        again = server.Server(where, peers.Guests())  # free, though the child lives
        again.close()
    finally:
        for descriptor in (writing, told, telling):
            os.close(descriptor)
        os.waitpid(child, 0)


def test_waiting_costs_nothing() -> None:
    owner = server.Server(handle.address(handle.new_handle()), peers.Guests())
    try:
        assert owner._patience() is None  # no time-out: the thread sleeps until somebody connects
    finally:
        owner.close()


def test_users_do_not_meet_at_one_name(monkeypatch: pytest.MonkeyPatch) -> None:
    mine = handle.address("our weights")
    assert handle.address("our weights") == mine != handle.address("our weight")
    monkeypatch.setattr(os, "getuid", lambda: 4711)
    theirs = handle.address("our weights")
    assert theirs.socket_name != mine.socket_name and theirs.key != mine.key
    assert handle.address(7) == handle.address(7)
