"""Facts that stand in one place: names of environment variables, and what else would be written twice."""

from __future__ import annotations

import ast
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from launcher.errors import ConfigError
from launcher.job.options import OPTIONS
from launcher.job.places.host_list import parse_count, parse_hosts
from launcher.job.ports import check_port, free_port
from launcher.job.values import parse_bytes, parse_dims
from launcher.starters import marks
from launcher.submission.lines import Lines
from ranks.common import settings, sources
from ranks.errors import ShardrunError
from ranks.identity.identity import identify
from sharding.common.ranges import expand_counts, parse_ranges
from sharding.common.rank_table import parse_rank_table
from sharding.common.text import parse_size, parse_whole
from sharding.slices.mesh import parse_mesh
from tests.trees import MODULES, nodes, tree

OURS = re.compile(r"\bSHARDRUN_[A-Z_]*[A-Z]\b")
LAUNCHERS = re.compile(
    r"\b(?:RANK|WORLD_SIZE|RANK_ID|RANK_SIZE|RANK_TABLE_FILE|DEVICE_ID|LOCAL_(?:RANK|WORLD_SIZE)"
    r"|MASTER_(?:ADDR|PORT)|MPI_LOCAL[A-Z]+"
    r"|(?:TORCHELASTIC|SLURM|OMPI_COMM_WORLD|PMIX|PMI|PBS|LSB)_[A-Z]+(?:_[A-Z]+)*)\b"
)
"""Variables by which launchers and batch systems tell a process who and where it is."""
OF_SYSTEMS = {"SLURM_CONF", "PBS_O_WORKDIR"}
"""What messages and scripts alone name: no code reads it."""


def _texts(module: str, *, prose: bool) -> Iterator[tuple[int, str]]:
    """The texts of a module with their lines; without docstrings unless ``prose`` is wanted."""
    docstrings = {id(node.value) for node in nodes(module, ast.Expr)}
    for node in nodes(module, ast.Constant):
        if isinstance(node.value, str) and (prose or id(node) not in docstrings):
            yield node.lineno, node.value


def _names(module: object) -> set[str]:
    return {value for value in vars(module).values() if isinstance(value, str)}


@pytest.mark.parametrize(
    ("pattern", "home", "known"),
    [
        (OURS, "ranks.common.settings", {variable.name for variable in settings.VARIABLES}),
        (LAUNCHERS, "ranks.common.sources", _names(sources)),
    ],
    ids=["settings", "launchers"],
)
def test_names_of_variables_stand_in_one_module(pattern: re.Pattern[str], home: str, known: set[str]) -> None:
    """Elsewhere a variable is named by the constant. Messages and scripts may have its name within a longer
    text, if it is one of those known: no typing error comes to a user."""
    alone, unknown, seen = [], [], 0
    for name in MODULES:
        for line, text in _texts(name, prose=pattern is OURS):
            found = set(pattern.findall(text))
            if name != home or pattern is OURS:
                unknown += [f"{name}:{line}: {word}" for word in sorted(found - known - OF_SYSTEMS)]
            if name != home:
                seen += len(found)
                alone += [f"{name}:{line}: {text}"] if pattern.fullmatch(text) else []
    assert seen > 10 and alone == [] and unknown == []


def test_the_way_to_graphs_in_attributes_is_written_once() -> None:
    """Who looks into attributes for graphs may forget some: `walk` and `graph.values` do, and no other."""
    written = re.compile(r"\battribute\.(g|graphs)\b|HasField\(.g.\)|AttributeType\.GRAPHS?\b")
    word = re.compile(r"\b(g|graphs|GRAPHS?)\b")
    found = {
        name
        for name, path in MODULES.items()
        if word.search(path.read_text()) and written.search(ast.unparse(tree(name)))
    }
    assert found == {
        "sharding.onnx_files.walk",
        "sharding.graph.values",
        "sharding.graph.fold",  # whether an attribute is one
        "sharding.reading.control_flow",  # one branch of two
    }


@pytest.mark.parametrize("name", ["a=b", "a/b", "-x", "a b", "a,b", "", "n" * 256, "a\nb"])
def test_a_host_has_a_name_by_one_rule(name: str) -> None:
    """Rank tables and lists of hosts refuse the same."""
    document = {
        "version": "1.0", "server_count": "1", "status": "completed",
        "server_list": [{"server_id": name, "device": [{"device_id": "0", "rank_id": "0"}]}],
    }  # fmt: skip
    with pytest.raises(ShardrunError, match="name or address"):
        parse_rank_table(document, "table")
    with pytest.raises(ConfigError, match="--hosts: "):
        parse_hosts(f"[{name}]:2")
    document["server_list"][0]["server_id"] = "a_b.c-1"  # type: ignore[index]
    assert parse_rank_table(document, "table").hosts.keys() == {"a_b.c-1"}
    assert parse_hosts("a_b.c-1:2") == (("a_b.c-1", 2),)


def test_slurm_counts_tasks_in_one_way() -> None:
    assert expand_counts("2(x3),1") == [2, 2, 2, 1] and expand_counts("4") == [4]
    assert expand_counts("2(x3),1", most=3) is None
    for text in ("", "x", "2(x", "2(x3", "1,,2", "-1", "2(x9999999)", "²"):
        assert expand_counts(text) is None
    environ = {"SLURM_STEP_TASKS_PER_NODE": "2(x3", "SLURM_NODEID": "0"}
    told = {"SLURM_PROCID": "0", "SLURM_NTASKS": "2", "SLURM_LOCALID": "0", "SLURM_STEP_ID": "0"}
    assert identify(environ=told | environ).local_size is None
    assert identify(environ=told | environ | {"SLURM_STEP_TASKS_PER_NODE": "2"}).local_size == 2


CORES = {"0-3,8": True, " 0 , 2 ": True, "7": True, "3-1": False, "": False, "0,,1": False, "0-99999": False,
         "a": False, "0-3-5": False, "²": False}  # fmt: skip
"""Whether a text is a list of cores."""


@pytest.mark.parametrize("cores", CORES)
def test_a_list_of_cores_is_one_by_one_rule(cores: str) -> None:
    """Rank tables take what --bind and what binds a rank take."""
    document = {
        "version": "1.0", "server_count": "1", "status": "completed",
        "server_list": [{"server_id": "a", "device": [{"device_id": "0", "rank_id": "0", "cores": cores}]}],
    }  # fmt: skip
    assert (settings.BIND.parse(cores) is not None) == (parse_ranges(cores) is not None) == CORES[cores]
    if CORES[cores]:
        assert parse_rank_table(document, "table").devices[0].cores == cores
    else:
        with pytest.raises(ShardrunError, match=r"cores: expected processors such as \"0-3,8\""):
            parse_rank_table(document, "table")


NUMBERS = {"2": True, "007": True, "0": False, "-1": False, "+2": False, " 2": False, "1_0": False,
           "2.0": False, "": False, "٢": False, "²": False, "9" * 5000: False}  # fmt: skip
"""Whether a text is a whole number above 0, as far as readers agree."""
READERS: dict[str, Callable[[str], object]] = {
    "flags": OPTIONS["ranks"].kind.parse,
    "counts of ranks": lambda text: parse_count(text, "ranks"),
    "variables": lambda text: settings.THREADS.get({"SHARDRUN_THREADS": text or "-"}),
    "ranks": lambda text: identify(environ={"RANK": "0", "WORLD_SIZE": text or "-", "LOCAL_RANK": "0"}),
    "meshes": lambda text: parse_mesh(f"tensor={text}"),
    "lengths": lambda text: parse_dims([f"n={text if text != '0' else '-'}"]),
    "ports": lambda text: check_port(
        f"{'0' * (text == '007')}{free_port()}" if NUMBERS[text] else text, "127.0.0.1"
    ),
}


@pytest.mark.parametrize("text", NUMBERS, ids=lambda text: ascii(text)[:8])
@pytest.mark.parametrize("reader", READERS)
def test_a_whole_number_is_one_by_one_rule(reader: str, text: str) -> None:
    """Each refuses the others in a sentence of its own."""
    assert (parse_whole(text, 1) is not None) == NUMBERS[text]
    if reader in {"variables", "ranks", "meshes"}:
        text = text.strip()  # blanks around these are none
    if NUMBERS[text]:
        assert READERS[reader](text)
    else:
        with pytest.raises((ConfigError, ShardrunError), match=r"expected|must be"):
            READERS[reader](text)


SIZES = {"24GB": 24 * 10**9, "512 MiB": 2**29, "1.5G": 15 * 10**8, "2gib": 2**31, "7": 7, "4KB": 4000,
         "9223372036854775807": 2**63 - 1, "9223372036854775808": None, "0": None, "": None, "1.5": 1,
         "GB": None, "1 2": None, "-1": None, "1PB": None, "²": None}  # fmt: skip


@pytest.mark.parametrize("text", SIZES)
def test_a_size_is_one_by_one_rule(text: str) -> None:
    """Flags, job files and variables take the same."""
    assert parse_size(text) == settings.CACHE_LIMIT.parse(text) == SIZES[text]
    if SIZES[text] is not None:
        assert parse_bytes(text) == OPTIONS["memory"].kind.read(text, "memory", Path()) == SIZES[text]
    else:
        with pytest.raises(ConfigError, match=r"expected (bytes|a number of bytes)"):
            OPTIONS["memory"].kind.read(text, "memory", Path())
    assert OPTIONS["memory"].kind.read(2**63 - 1, "memory", Path()) == 2**63 - 1


LINES = {
    "[host,1,3]<stdout>: said": marks.OPEN_MPI,
    "[host,1,3]<stderr>:said": marks.OPEN_MPI_4,
    "[3] said": marks.HYDRA,
}


@pytest.mark.parametrize("line", LINES)
def test_a_line_is_a_rank_s_for_its_starter_and_in_a_log(line: str) -> None:
    """A line of an mpirun that is known, and one of an mpirun that is not."""
    found = LINES[line].match(line)
    assert found is not None and found[1] == "3" and line[found.end() :] == "said"
    job: Any = SimpleNamespace(ranks=4, job=SimpleNamespace(log_json=False, tee=None))
    of_mpirun, of_srun = Lines(job, *marks.OF_MPIRUN).shown, Lines(job, marks.SRUN).shown
    assert of_mpirun(line) == "[3@?] said" and of_mpirun("said") == "said"
    assert of_srun(" 3: said") == of_srun("3:said") == "[3@?] said"
