"""Job files: the options of ``shardrun run`` in YAML or JSON, checked by a pydantic model.

Relative paths in a job file are relative to the file's own folder.
"""

from __future__ import annotations

from collections.abc import Callable, Container
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError

from launcher.common.documents import quote, read_document
from launcher.common.starters import STARTERS
from launcher.errors import ConfigError
from launcher.job.slicing import FILES, parse_bytes, parse_mesh_text
from ranks.common.settings import COLLECTIVES, SECONDS
from sharding.common.bounds import LONGEST_TIMEOUT, MAX_LENGTH, MAX_MICRO_BATCHES, MAX_RANKS, MAX_THREADS
from sharding.common.text import closest

MAX_TEXT = 4096
Text = Annotated[str, Field(min_length=1, max_length=MAX_TEXT, pattern=r"^[^\x00]*$")]


def _one_of(names: Container[str]) -> Callable[[str], str]:
    def check(name: str) -> str:
        if name not in names:
            raise ValueError(name)
        return name

    return check


class JobFile(BaseModel):
    """A job file's keys. Types are strict: "2" is no number and 1 no truth value."""

    model_config = ConfigDict(extra="forbid", strict=True, hide_input_in_errors=True)

    model: Text | None = None
    ranks: Annotated[int, Field(ge=1, le=MAX_RANKS)] | None = None
    rank_table: Text | None = None
    launcher: Annotated[str, AfterValidator(_one_of(STARTERS))] | None = None
    target: Literal["cpu", "gpu", "ascend"] | None = None
    collectives: Annotated[str, AfterValidator(_one_of(COLLECTIVES))] | None = None
    threads: Annotated[int, Field(ge=1, le=MAX_THREADS)] | None = None
    timeout: Annotated[float, Field(gt=0, le=LONGEST_TIMEOUT)] | None = None
    allow_replicated: bool | None = None
    strategy: Literal["tensor", "pipeline", "data", "auto"] | None = None
    mesh: Text | None = None
    micro_batches: Annotated[int, Field(ge=1, le=MAX_MICRO_BATCHES)] | None = None
    memory: Annotated[int, Field(ge=1, lt=2**63)] | Text | None = None
    profile: Text | None = None
    steer: Text | None = None
    plan: Text | None = None
    ignore_annotations: bool | None = None
    inputs: list[Text] | dict[Text, Text] | None = None
    dims: dict[Text, Annotated[int, Field(ge=0, le=MAX_LENGTH)]] | None = None
    seed: Annotated[int, Field(ge=0, lt=2**63)] | None = None
    output: Text | None = None
    repeat: Annotated[int, Field(ge=1, le=10**9)] | None = None
    verify: bool | None = None
    against: Text | None = None
    precision_mode: Text | None = None
    execution_plan: dict[Text, Literal["float16", "float32"]] | None = None
    dec_key_file: Text | None = None
    dec_mode: Literal["AES-GCM", "AES-CBC"] | None = None


EXPECTED = {
    "model": "the path of a model or a slice folder",
    "ranks": f"a whole number from 1 to {MAX_RANKS}",
    "rank_table": "the path of a rank table",
    "launcher": f"one of {', '.join(STARTERS)}",
    "target": "one of cpu, gpu, ascend",
    "collectives": f"one of {', '.join(COLLECTIVES)}",
    "threads": f"a whole number from 1 to {MAX_THREADS}",
    "timeout": SECONDS,
    "allow_replicated": "true or false",
    "strategy": "one of tensor, pipeline, data, auto",
    "mesh": "the sizes of mesh axes, such as data=2,tensor=4",
    "micro_batches": f"a whole number from 1 to {MAX_MICRO_BATCHES}",
    "memory": "a number of bytes, or text such as 24GB",
    "profile": "the path of a profile of ONNX Runtime",
    "steer": "the path of a steering file",
    "plan": "the path of a saved plan",
    "ignore_annotations": "true or false",
    "inputs": "a list of FILE.npz or NAME=FILE, or a mapping of input names to files",
    "dims": f"a mapping of dimension names to lengths from 0 to {MAX_LENGTH}",
    "seed": "a whole number from 0 up",
    "output": "the path of an .npz file",
    "repeat": "a whole number from 1 up",
    "verify": "true or false",
    "against": "the path of a model",
    "precision_mode": "a precision mode of the target, such as enforce_fp32",
    "execution_plan": "a mapping of names of nodes or types of operators to float16 or float32",
    "dec_key_file": "the path of a file with a key",
    "dec_mode": "one of AES-GCM, AES-CBC",
}

_EXPECTED_INSIDE = {
    "dims": f"a length from 0 to {MAX_LENGTH}",
    "inputs": "the path of a file",
    "execution_plan": "float16 or float32",
}


def read_job_file(path: Path) -> dict[str, Any]:
    """The options in a job file, as `launcher.job.job.Job` names and types them; raises `ConfigError`."""
    data, _ = read_document(path, "job file")
    if data is None:
        raise ConfigError(f"{path}: expected a mapping of options, found an empty file")
    if not isinstance(data, dict):
        raise ConfigError(f"{path}: expected a mapping of options, found {quote(data)}")
    for key in data:
        if key not in EXPECTED:
            close = closest(key, EXPECTED)
            hint = f"did you mean {close}?" if close else f"expected one of {', '.join(EXPECTED)}"
            raise ConfigError(f"{path}: unknown key {quote(key)}; {hint}")
    try:
        job = JobFile.model_validate(data)
    except ValidationError as problem:
        raise ConfigError(f"{path}: {_explain(problem, data)}") from None
    found = {name: value for name, value in job.model_dump().items() if value is not None}
    for name, parse in (("mesh", parse_mesh_text), ("memory", parse_bytes)):
        if isinstance(found.get(name), str):
            try:
                found[name] = parse(found[name])
            except ConfigError as problem:
                raise ConfigError(f"{path}: $.{name}: {problem}") from None
    return _with_paths(found, path.absolute().parent)


def _explain(problem: ValidationError, data: Any) -> str:
    """One problem: the key's path, what was expected, what is there."""
    key = str(problem.errors()[0]["loc"][0])
    steps = [error["loc"] for error in problem.errors() if error["loc"][0] == key]
    for *_, name, last in (found for found in steps if len(found) > 2):
        # pydantic's mark of a key that is wrong, which the value below need not be
        if last == "[key]" and isinstance(data[key], dict) and name in data[key]:
            return f"$.{key}: expected names of 1 to {MAX_TEXT} characters as keys, found {quote(name)}"
    # A union has a problem per branch; the one that leads deepest is of the branch that was meant.
    places = [_place(found, data) for found in steps]
    where, value = max(places, key=lambda place: len(place[0]))
    expected = _EXPECTED_INSIDE.get(key, EXPECTED[key]) if where != f"$.{key}" else EXPECTED[key]
    return f"{where}: expected {expected}, found {quote(value)}"


def _place(steps: tuple[int | str, ...], data: Any) -> tuple[str, Any]:
    """The JSON path that pydantic's steps lead to, and the value there; names of branches are left out."""
    where, value = "$", data
    for step in steps:
        if isinstance(value, dict) and step in value:
            where, value = f"{where}.{step}", value[step]
        elif isinstance(value, list) and isinstance(step, int) and 0 <= step < len(value):
            where, value = f"{where}[{step}]", value[step]
    return where, value


def _with_paths(options: dict[str, Any], folder: Path) -> dict[str, Any]:
    for name in ("model", "rank_table", "output", "against", "dec_key_file", *FILES):
        if name in options:
            options[name] = folder / options[name]
    inputs = options.get("inputs")
    if isinstance(inputs, dict):
        options["inputs"] = tuple(f"{name}={folder / file}" for name, file in inputs.items())
    elif inputs is not None:
        texts = []
        for text in inputs:
            name, equals, file = text.rpartition("=")
            # A whole path may hold an equals sign too.
            whole = not equals or (folder / text).exists()
            texts.append(str(folder / text) if whole else f"{name}={folder / file}")
        options["inputs"] = tuple(texts)
    return options
