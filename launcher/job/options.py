# ruff: noqa: RUF009 - the fields are what the table is made of
"""The options of a job, each described once: from this come the flags with their help, the keys of job files
with their checks, the fields of `launcher.job.job.Job`, and the options of slicing."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from launcher.common.logs import Logs, parse_ranks
from launcher.common.restarts import EXPECTED as RESTARTS
from launcher.common.restarts import NEVER, parsed_restart
from launcher.common.starters import STARTERS
from launcher.errors import ConfigError
from launcher.job.option_table import Option, changed, described, table
from launcher.job.places.host_list import parse_hosts
from launcher.job.places.kinds import LinkOrFile, Patterns, Variables
from launcher.job.places.link import parse_link
from launcher.job.places.placement import (
    Placement,
    parse_bind,
    parse_variables,
    parse_words,
)
from launcher.job.precision import parse_plan
from launcher.job.values import (
    Choice,
    File,
    Files,
    LateChoice,
    Pairs,
    Seconds,
    Switch,
    Text,
    Whole,
    Words,
    Written,
    parse_bytes,
    parse_dims,
    parse_mesh_text,
    parse_state,
)
from ranks.common.settings import BIND, COLLECTIVES
from ranks.common.targets import MODES, TARGETS, modes_in_words
from sharding.common.bounds import MAX_LENGTH, MAX_MICRO_BATCHES, MAX_RANKS, MAX_THREADS
from sharding.common.encryption import MODES as CIPHERS
from sharding.demands.choices import STRATEGIES, SUMS

if TYPE_CHECKING:
    from launcher.job.places.host_list import Host
    from sharding.slices.mesh import Mesh
    from sharding.slices.topology import Link

RANKS, TYPES, SLICING = "ranks", "target and types", "slicing"
ENCRYPTED, DATA, FILES = "encrypted models", "data", "many files"
"""Titles of groups in ``--help``; a command takes whole groups."""
_Some = TypeVar("_Some", bound="Options")


@dataclass(frozen=True)
class Options:
    """The options of one job; None where an option is not given. ``inputs`` are texts as of ``--input``.

    An option is one field here, and the code that uses it.
    """

    model: Path | None = described(File("the path of a model or a slice folder"))
    ranks: int | None = described(Whole(1, MAX_RANKS), RANKS, "number of ranks", "N")
    rank_table: Path | None = described(
        File("the path of a rank table"), RANKS, "which ranks run on which hosts and devices", "FILE",
        file="rank table",
    )  # fmt: skip
    launcher: str = described(
        Choice(STARTERS), RANKS,
        "{}; external: this process is one rank that something else started (default: auto)",
        default="auto",
    )  # fmt: skip
    hosts: tuple[Host, ...] | None = described(
        Written(parse_hosts, "hosts such as node1:2,node2:2"), RANKS,
        "the hosts of the ranks, with how many each has (default: those that a batch system gave, or this "
        "machine)",
        "HOST:N,...",
    )  # fmt: skip
    hostfile: Path | None = described(
        File("the path of a hostfile"), RANKS, "the same, from a file as MPI has it: lines of HOST slots=N",
        "FILE", file="hostfile",
    )  # fmt: skip
    nodes: int | None = described(
        Whole(1, MAX_RANKS), RANKS, "with --launcher slurm: get so many nodes from Slurm first", "N"
    )
    bind: str | None = described(
        Written(parse_bind, BIND.values), RANKS,
        "the cores of a rank: none of its own, cores or numa nodes of its own, or those of a LIST such as "
        "0-7, which the ranks of a host divide, or 0-3/4-7, with those of each (default: cores, where each "
        "rank of a host can have one)",
        "none|cores|numa|LIST",
    )  # fmt: skip
    env: Mapping[str, str] = described(
        Variables(parse_variables, Text("text"), "a mapping of names of variables to texts"), RANKS,
        "a variable for all ranks, with the value that it has here or this one; repeatable",
        "NAME[=VALUE]", make=dict,
    )  # fmt: skip
    mpi_args: tuple[str, ...] = described(
        Words(parse_words, "words of a command line"),
        RANKS,
        "more arguments for mpirun",
        "ARGS",
        default=(),
    )
    srun_args: tuple[str, ...] = described(
        Words(parse_words, "words of a command line"), RANKS,
        "more arguments for srun, and for salloc where --nodes asks for it", "ARGS", default=(),
    )  # fmt: skip
    stage: bool = described(
        Switch(), RANKS,
        "copy to the cache of each host the files of its ranks, where the hosts have no common file system",
        default=False,
    )  # fmt: skip
    ray_address: str | None = described(
        Text("HOST:PORT, or auto"), RANKS,
        "with --launcher ray: the cluster's head, or auto on one of its nodes (default: RAY_ADDRESS, or a "
        "cluster of this machine for this job)",
        "HOST:PORT",
    )  # fmt: skip
    gpus: int | None = described(
        Whole(0, 64), RANKS,
        "with --launcher ray: GPUs of each rank (default: 1 with --target gpu, else 0)", "N",
    )  # fmt: skip
    target: str = described(
        Choice(TARGETS), TYPES,
        "what the ranks compute on (default: cpu); each takes its device of the rank table, or that "
        "with its local rank's number",
        default="cpu",
    )  # fmt: skip
    collectives: str | None = described(Choice(COLLECTIVES), RANKS, "default: auto")
    threads: int | None = described(
        Whole(1, MAX_THREADS),
        RANKS,
        "ONNX Runtime threads per rank (default: cores / ranks on the host)",
        "N",
    )
    timeout: float | None = described(
        Seconds(), RANKS, "how long a rank waits for another one (default: 300)", "SECONDS"
    )
    hang_timeout: float | None = described(
        Seconds(), RANKS,
        "how long a rank that is waited for may be stopped, stand still, or give no sign of life (default: "
        "60, or --timeout where that is less)",
        "SECONDS",
    )  # fmt: skip
    log_dir: Path | None = described(
        File("the path of a folder"), RANKS,
        "a new folder for a file with all lines of each rank, beside what the job is and its plan", "DIR",
    )  # fmt: skip
    tee: tuple[int, ...] | None = described(
        Written(parse_ranks, "ranks such as 0,3 or 0-7"), RANKS,
        "show the lines of these ranks only (default: of all)", "RANKS",
    )  # fmt: skip
    log_json: bool = described(
        Switch(), RANKS, "show each line of a rank as a JSON object with its time, rank, host and stream",
        default=False,
    )  # fmt: skip
    restart: str = described(
        Written(parsed_restart, f"a text: {RESTARTS}"), RANKS,
        "start ranks again that are lost, at most N times in a row (5), and repeat what they were asked "
        "(default: never)",
        "never|on-failure[:N]", default=NEVER,
    )  # fmt: skip
    allow_replicated: bool = described(
        Switch(), SLICING,
        "go on where nothing of the model can be split, with the whole model on every rank",
        default=False, slices="allow_replicated",
    )  # fmt: skip
    strategy: str | None = described(
        Choice(STRATEGIES), SLICING,
        "what the ranks share: the weights (tensor), the layers (pipeline), the batch (data); auto: the "
        "quickest that fits (default: tensor)",
        slices="strategy",
    )  # fmt: skip
    mesh: Mesh | None = described(
        Written(parse_mesh_text, "the sizes of mesh axes, such as data=2,tensor=4"), SLICING,
        "a mix of strategies, such as data=2,tensor=4; says the number of ranks too", "AXIS=SIZE,...",
        slices="mesh",
    )  # fmt: skip
    micro_batches: int | None = described(
        Whole(1, MAX_MICRO_BATCHES), SLICING,
        "pieces of the batch that pipeline stages work on at the same time (default: as many as stages)", "M",
        slices="micro_batches",
    )  # fmt: skip
    memory: int | None = described(
        Written(parse_bytes, "a number of bytes, or text such as 24GB", Whole(1, 2**63 - 1)), SLICING,
        "bytes of weights that a rank may hold, such as 24GB; --strategy auto keeps to it", "SIZE",
        slices="memory",
    )  # fmt: skip
    link: Link | None = described(
        LinkOrFile(parse_link, "a bandwidth and a latency such as 1Gbit/s,0.2ms"), SLICING,
        "how fast the hosts are joined, such as 1Gbit/s,0.2ms, or a file of `doctor --save-link`: the "
        "strategy auto keeps within hosts what exchanges most",
        "BANDWIDTH,LATENCY|FILE", slices="topology",
    )  # fmt: skip
    profile: Path | None = described(
        File("the path of a profile of ONNX Runtime"), SLICING,
        "a profile that ONNX Runtime wrote of the model: stages are balanced by its times", "FILE.json",
        file="profile of ONNX Runtime", slices="profile",
    )  # fmt: skip
    steer: Path | None = described(
        File("the path of a steering file"), SLICING,
        "how weights are cut, by name patterns (`layers.*.mlp.up: column`)", "FILE.yaml",
        file="steering file", slices="steering",
    )  # fmt: skip
    plan: Path | None = described(
        File("the path of a saved plan"), SLICING,
        "follow a plan that `shardrun slice --save-plan` wrote", "FILE.json",
        file="saved plan", slices="plan",
    )  # fmt: skip
    sums: str | None = described(
        Choice(SUMS), SLICING,
        "whether ranks may add up parts of sums (parts), or exchange more and answer as one process does to "
        "the bit (whole); auto: whole where products of few bits round what they read (default: parts; of "
        "generate: auto)",
        slices="sums",
    )  # fmt: skip
    ignore_annotations: bool = described(
        Switch(), SLICING,
        "do not follow the multi-device annotations (ONNX IR 11) that the model carries",
        default=False, slices="annotations",
    )  # fmt: skip
    state: Mapping[str, str] = described(
        Pairs(
            parse_state,
            Written(str, "the name of an output"),
            "a mapping of names of inputs to names of outputs",
        ),
        SLICING,
        "an input that is fed in each step what this output gave in the one before, besides those that are "
        "found; repeatable",
        "INPUT=OUTPUT", make=dict, slices="state",
    )  # fmt: skip
    inputs: tuple[str, ...] = described(
        Files("a list of FILE.npz or NAME=FILE, or a mapping of input names to files"), DATA,
        "arrays by name in an .npz, or one input from .npy or raw little-endian data; repeatable "
        "(default: ones)",
        "FILE.npz|NAME=FILE", "--input", default=(),
    )  # fmt: skip
    dims: Mapping[str, int] = described(
        Pairs(
            parse_dims,
            Whole(0, MAX_LENGTH, f"a length from 0 to {MAX_LENGTH}"),
            f"a mapping of dimension names to lengths from 0 to {MAX_LENGTH}",
        ),
        DATA,
        "length of a symbolic dimension, for which is planned and inputs are made (default: 1); repeatable",
        "NAME=SIZE", "--dim", make=dict, slices="dims",
    )  # fmt: skip
    seed: int | None = described(
        Whole(0, 2**63 - 1, "a whole number from 0 up"), DATA, "random inputs instead of ones", "S"
    )
    output: Path | None = described(
        File("the path of an .npz file"), DATA, "write the outputs to this file", "FILE.npz"
    )
    repeat: int = described(
        Whole(1, 10**9, "a whole number from 1 up"), DATA, "run K times; the latency is the median", "K",
        default=1,
    )  # fmt: skip
    verify: bool = described(
        Switch(), DATA,
        "compare with the unsliced model in plain ONNX Runtime; exit code 3 beyond the tolerance",
        default=False,
    )  # fmt: skip
    against: Path | None = described(
        File("the path of a model"), DATA, "the unsliced model for --verify", "MODEL.onnx", file="model"
    )
    files: tuple[str, ...] = described(
        Patterns(Text("a path, a pattern such as data/*.npz, or a folder"), "a list of patterns"),
        FILES,
        "run each of these files, such as 'data/*.npz' (** for folders of any depth) or all of a folder; "
        "repeatable",
        "PATTERN", "--inputs", default=(),
    )  # fmt: skip
    outputs: Path | None = described(
        File("the path of a folder"), FILES,
        "the folder for the outputs, an .npz file for each, named as its input",
        "DIR",
    )  # fmt: skip
    resume: bool = described(
        Switch(), FILES, "leave out what is done already, and go on with the rest", default=False
    )
    keep_going: bool = described(
        Switch(), FILES, "say what is wrong with a file, and go on with the next", default=False
    )
    precision_mode: str | None = described(
        LateChoice(
            tuple(dict.fromkeys(mode for modes in MODES.values() for mode in modes)),
            "a precision mode of the target, such as enforce_fp32",
        ),
        TYPES,
        f"{modes_in_words()}; default: the model's own types",
        "MODE",
    )  # fmt: skip
    execution_plan: Mapping[str, str] = described(
        Pairs(
            parse_plan,
            Choice(("float16", "float32"), "float16 or float32"),
            "a mapping of names of nodes or types of operators to float16 or float32",
        ),
        TYPES,
        "float16 or float32 for a node, or for all of a type of operators, such as MatMul=float16; "
        "repeatable",
        "NAME=TYPE", make=dict,
    )  # fmt: skip
    dec_key_file: Path | None = described(
        File("the path of a file with a key"), ENCRYPTED, "the key of an encrypted model: the file's bytes",
        "FILE",
    )  # fmt: skip
    dec_mode: str | None = described(Choice(CIPHERS), ENCRYPTED, f"default: {CIPHERS[0]}")

    def with_flags(self: _Some, flags: Mapping[str, object]) -> _Some:
        """The same with the flags that were given, which win."""
        given = {name: value for name, value in flags.items() if name in OPTIONS and value is not None}
        changes: dict[str, object] = {}
        for first, second, _ in EXCLUSIVE:
            for name, other in ((first, second), (second, first)):
                if name in given:
                    changes[other] = None
        for name, value in given.items():
            changes[name] = OPTIONS[name].merged(getattr(self, name), value)
        return changed(self, changes)

    @property
    def placement(self) -> Placement:
        """What the options say of where ranks run."""
        return Placement(**{name: getattr(self, name) for name in Placement._fields})

    @property
    def logs(self) -> Logs:
        """What the options say of the lines of ranks."""
        return Logs(**{name: getattr(self, name) for name in Logs._fields})

    def check_exclusive(self) -> None:
        """Raises `ConfigError` for options that exclude each other."""
        for first, second, why in EXCLUSIVE:
            if getattr(self, first) is not None and getattr(self, second) is not None:
                flags = f"{OPTIONS[first].flag} and {OPTIONS[second].flag}"
                raise ConfigError(f"{flags} exclude each other: {why}")

    def check_file(self, option: Option, before: str = "") -> None:
        """Raises `ConfigError` unless the file that an option names, if it does, is there."""
        from sharding.common.nearby import hint, shown

        path = getattr(self, option.name)
        if path is not None and not path.is_file():
            state = "not a file" if path.exists() else f"no such file{hint(path)}"
            raise ConfigError(f"{before}{shown(path)}: {state}; expected a {option.file}")


EXCLUSIVE = (
    ("ranks", "rank_table", "the table says how many ranks there are"),
    ("rank_table", "hosts", "the table says which hosts there are"),
    ("rank_table", "hostfile", "the table says which hosts there are"),
    ("rank_table", "nodes", "the table says which hosts there are"),
    ("hosts", "hostfile", "both say which hosts there are"),
    ("hosts", "nodes", "both say which hosts there are"),
    ("hostfile", "nodes", "both say which hosts there are"),
    ("strategy", "mesh", "a mesh says which strategies are mixed"),
    ("strategy", "plan", "the plan says it"),
    ("steer", "plan", "a plan leaves nothing to steer"),
    ("mesh", "link", "a mesh says what is within hosts and what is across"),
    ("plan", "link", "the plan says what is within hosts and what is across"),
)
"""Options that exclude each other, and why; a flag wins over the other one in a job file."""


OPTIONS = table(Options)
"""Option by name, which is also its key in job files."""

OF_STARTING = (
    *("launcher", "env", "restart"),
    *(*Placement._fields, *Logs._fields),
)
"""Options that only what starts the ranks can follow."""
OF_ALL_RANKS = frozenset({"ranks", "rank_table", "link", *OF_STARTING})
"""Options that say which ranks there are, and nothing to each of them."""


def grouped(group: str) -> list[Option]:
    """The options of a group, in order."""
    return [option for option in OPTIONS.values() if option.group == group]


def flags_for_a_rank(job: Options, *groups: str) -> Iterator[list[str]]:
    """The words, for each option of these groups that a job sets otherwise than by default, that tell a rank
    of it."""
    default = Options()
    for option in (option for group in groups for option in grouped(group)):
        value = getattr(job, option.name)
        if option.name not in OF_ALL_RANKS and value != getattr(default, option.name):
            yield option.kind.arguments(option.flag, value)
