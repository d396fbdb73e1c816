"""``shardrun run``: the job's inputs through a group that this process starts, or through this one rank."""

from __future__ import annotations

import contextlib
import functools
import json
import logging
import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Literal, TypeAlias

from launcher.common.report import human_bytes, human_seconds, print_table, progress, say, warn_unsplit
from launcher.errors import ConfigError
from launcher.inspection.rank_models import STRATEGY
from launcher.job import precision
from launcher.job.job import Job
from launcher.job.model import Opened, opened, reference_key, source_of, world_size
from launcher.job.verify import check_signature, compare_outputs, run_reference
from launcher.tasks.loading import join_group, start_group, take_part
from ranks.identity.identity import identify
from sharding.common.text import listed_collectives, reason_rows

if TYPE_CHECKING:
    from launcher.inspection.signature import Signature
    from launcher.job.verify import Comparison
    from launcher.tasks.outputs import Summary
    from ranks.identity.place import Identity
    from sharding.common.arrays import Array
    from sharding.common.encryption import Key
    from sharding.slices.manifest import Manifest

    Arrays: TypeAlias = dict[str, Array]

log = logging.getLogger(__name__)

Show = Literal["table", "json", "nothing"]
"""How a run is reported on standard output."""


@dataclass
class Result:
    """What one run gave: outputs by name, seconds of every repetition, and facts for the summary."""

    outputs: Arrays
    seconds: list[float]
    facts: dict[str, str] = field(default_factory=dict)


def external_identity(job: Job) -> Identity | None:
    """Which rank this process is, if something else started it; None if the job starts its own ranks."""
    if job.launcher not in {"auto", "external"}:
        return None
    identity = identify()
    if job.launcher == "auto" and (identity.world_size == 1 or job.rank_table is not None):
        return None
    if job.launcher == "external" and identity.source == "single":
        raise ConfigError(
            "--launcher external: nothing says which rank this process is: neither RANK and WORLD_SIZE nor "
            "the variables of mpirun or srun are set; set them, or leave out --launcher external"
        )
    if said := job.of_starting():
        raise ConfigError(
            f"{said}: something else started this process as rank {identity.rank} of {identity.world_size} "
            f"({identity.source}), and whoever starts the ranks says it; leave it out"
        )
    job.slicing.check(identity.world_size, f"the environment ({identity.source})")
    if job.ranks is not None and job.ranks != identity.world_size:
        raise ConfigError(
            f"--ranks {job.ranks} contradicts the environment ({identity.source}): this process is rank "
            f"{identity.rank} of {identity.world_size}; leave out --ranks, or give --launcher local or mpirun"
        )
    return identity


def run_group(job: Job, show: Show = "table") -> None:
    """Starts a group, runs the inputs through it, and prints what came out."""
    with opened(job, world_size(job), check=lambda found: check_job(job, found)) as model:
        manifest = model.manifest
        source = source_of(job, model.path, manifest) if job.verify else None
        feeds = read_inputs(job, manifest)
        key = reference_key(job, source)
        if source is not None:
            check_signature(source, manifest.inputs, manifest.outputs, key)
        from launcher.group.ready import places

        began = time.perf_counter()
        size = human_bytes(sum(rank.weight_bytes for rank in manifest.ranks))
        with contextlib.ExitStack() as stack:
            with progress(f"loading {size} of weights: ranks ready", counted=True) as update:
                group = stack.enter_context(start_group(job, model, update))
            loaded = time.perf_counter() - began
            log.info("slices: %s", model.path)
            for rank in group.stats:
                log.info(
                    "rank %d on host %s (pid %d): %d segments, loaded in %s",
                    rank.rank, rank.host, rank.pid, rank.segments, seconds(rank.load_seconds),
                )  # fmt: skip
            result = repeat(job, lambda: dict(group.predict(feeds)))
            by = {"collectives by": group.stats[0].backend} if manifest.collectives else {}
            result.facts |= {**places(group.stats), **by, "start and load": seconds(loaded)}
        finish(job, manifest, feeds, result, source, show)


def run_rank(job: Job, identity: Identity, show: Show = "table") -> int:
    """This process as one rank that something else started; rank 0 prints. Returns the exit code, or ends the
    process itself, as it does if the run fails."""
    from ranks.talk import orphan

    take_part(job, identity)
    joined = False
    try:
        check = functools.partial(check_job, job, inputs=identity.rank == 0)
        with opened(job, identity.world_size, identity.rank, check) as made:
            source = source_of(job, made.path, made.manifest) if job.verify and identity.rank == 0 else None
            # Before the group exists, so that a wrong input ends this rank while nobody waits for it in MPI.
            feeds = read_inputs(job, made.manifest) if identity.rank == 0 else None
            if source is not None:
                key = reference_key(job, source)
                check_signature(source, made.manifest.inputs, made.manifest.outputs, key)
            if identity.rank == 0 and made.path.is_dir():
                warn_unsplit(made.path, job.model or made.path)
            joined = True
            _run_joined(job, identity, made, feeds, source, show)
    except BaseException as error:
        if not joined:
            raise
        leave_now(error, identity)
    orphan.say_done(identity.rank)
    return 0


def _run_joined(  # noqa: PLR0917 - what `run_rank` has
    job: Job, identity: Identity, made: Opened, feeds: Arrays | None, source: Path | None, show: Show
) -> None:
    """Joins the group and runs; ``feeds`` are on rank 0 only."""
    from ranks.collectives.broadcast import Spreader
    from ranks.run import group
    from ranks.talk.wire import Kind, Message

    began = time.perf_counter()
    communicator, model = join_group(job, made, identity)
    loaded = time.perf_counter() - began
    given = Message(Kind.PREDICT, {}, feeds) if feeds is not None else None
    everyone = Spreader(communicator).spread(given).tensors
    result = repeat(job, lambda: dict(zip((s.name for s in model.outputs), model.run(everyone), strict=True)))
    by = {"collectives by": model.collectives or communicator.name} if made.manifest.collectives else {}
    result.facts |= {**by, "join and load": seconds(loaded)}
    model.close()
    group.leave()
    if feeds is not None:
        finish(job, made.manifest, feeds, result, source, show)


def group_or_rank(job: Job, group: Callable[[], None], rank: Callable[[Identity], None]) -> int:
    """Does a job as this process's place in it demands: with ranks of its own, or as the rank that something
    else made it. Gives the exit code."""
    identity = external_identity(job)
    if identity is None:
        group()
        return 0
    try:
        rank(identity)
    except BaseException as error:
        leave_now(error, identity)
    return 0


def leave_now(error: BaseException, identity: Identity) -> None:
    """Ends this process at once: with MPI up, Python's ordinary exit would wait for the other ranks."""
    from launcher.common.exits import report
    from launcher.common.signals import ENDING
    from ranks.collectives.absence import ABSENCE
    from ranks.errors import PeerLostError
    from ranks.talk import orphan

    if isinstance(error, PeerLostError) and not error.silent:
        try:
            orphan.let_others_tell(ABSENCE.first_stays)
        except KeyboardInterrupt:  # that one's end has been seen, or a person waits no longer
            ENDING.heard()
    code = report(error, f"rank {identity.rank} on host {identity.host}: " if identity.world_size > 1 else "")
    for stream in (sys.stdout, sys.stderr):
        try:
            stream.flush()
        except (OSError, ValueError):
            continue  # nobody reads it any more
    ABSENCE.stay()
    os._exit(code)


def check_job(job: Job, found: Signature, *, inputs: bool = True) -> None:
    """Raises `ConfigError` for dimensions, and unless they are on another host ``inputs`` and a model to
    compare with, that do not fit what a model declares."""
    from launcher.job.inputs import check_inputs

    given = job.inputs if inputs else ()
    check_inputs(found.inputs, given, dims=job.dims, optional=found.optional, weights=found.weights)
    if inputs and job.verify and job.against is not None:
        check_signature(job.against, found.inputs, found.outputs, reference_key(job, job.against))


def read_inputs(job: Job, manifest: Manifest) -> Arrays:
    """The job's input arrays, as the manifest describes inputs."""
    from launcher.job.inputs import make_inputs

    feeds, made = make_inputs(
        manifest.inputs, job.inputs, dims=job.dims, seed=job.seed, optional=manifest.optional_inputs,
        weights=manifest.weights.keys(),
    )  # fmt: skip
    if made and job.inputs:
        kind = "ones" if job.seed is None else "random numbers"
        log.warning("no --input gives %s: %s are used", ", ".join(made), kind)
    return feeds


def repeat(job: Job, run: Callable[[], Arrays]) -> Result:
    """Runs ``job.repeat`` times; the outputs are those of the last."""
    times: list[float] = []
    outputs: Arrays = {}
    with progress("running") as update:
        for done in range(job.repeat):
            began = time.perf_counter()
            outputs = run()
            times.append(time.perf_counter() - began)
            if update is not None:
                update(done + 1, job.repeat)
    return Result(outputs, times)


def finish(  # noqa: PLR0917 - what a run gave
    job: Job,
    manifest: Manifest,
    feeds: Mapping[str, Array],
    result: Result,
    source: Path | None,
    show: Show = "table",
) -> None:
    """Prints the outputs and the summary, writes the outputs' file, and compares with the unsliced model."""
    from launcher.tasks.outputs import ALIGN, COLUMNS, summarize

    shown = summarize(result.outputs)
    if job.output is not None:  # first: nobody may be there to read what is printed
        from launcher.job.inputs import save_outputs

        save_outputs(job.output, result.outputs)
    if show == "table":
        print_table(COLUMNS, [item.row() for item in shown], ALIGN)
        print()
        print_table(["", "value"], summary(manifest, result), "ll")
        if job.output is not None:
            say(f"wrote {job.output}")
    compared = None
    if source is not None:
        short = precision.computed(precision.asked(job), job.target)
        compared = compare(manifest, feeds, result, source, reference_key(job, source), short, job.timeout)
    if show == "json":
        _print_json(job, manifest, result, shown, compared)
    if compared is not None and source is not None:
        from launcher.job.verify import check

        if show == "table":
            print_comparisons(compared, source)
        check(compared, source)


def _print_json(
    job: Job,
    manifest: Manifest,
    result: Result,
    shown: Sequence[Summary],
    compared: Sequence[Comparison] | None,
) -> None:
    document = {
        "outputs": [item.to_json() for item in shown],
        "ranks": manifest.world_size,
        "strategy": manifest.strategy,
        "weight_bytes": [rank.weight_bytes for rank in manifest.ranks],
        "collectives": dict(sorted(Counter(item.op for item in manifest.collectives).items())),
        "seconds": result.seconds,
        "written": None if job.output is None else str(job.output),
        "verify": None if compared is None else [item.to_json() for item in compared],
    }
    print(json.dumps(document, indent=1))
    sys.stdout.flush()


def summary(manifest: Manifest, result: Result) -> list[tuple[str, str]]:
    """What is worth knowing of a run, as (what, value)."""
    import numpy as np

    held = [rank.weight_bytes for rank in manifest.ranks]
    # Of many ranks, the least and the most.
    each = ", ".join(map(human_bytes, held if len(held) <= 8 else sorted({min(held), max(held)})))
    whole = human_bytes(sum(weight.bytes for weight in manifest.weights.values()))
    talks = listed_collectives((item.op, item.within) for item in manifest.collectives)
    times = result.seconds
    latency = seconds(float(np.median(times)))
    if len(times) > 1:
        latency += f" (median of {len(times)}; first {seconds(times[0])})"
    known = manifest.strategy != STRATEGY
    rows = [
        ("ranks", str(manifest.world_size)),
        ("weights per rank", f"{each} of {whole}" if known else each),
        ("collectives per inference", talks),
        *result.facts.items(),
        ("latency", latency),
        *reason_rows(manifest.reason),
    ]
    if known and manifest.strategy != "tensor":
        used = ", ".join(f"{size} {name}" for name, size in manifest.mesh.axes if size > 1)
        rows[1:1] = [("strategy", manifest.strategy), ("mesh", used)]
        if manifest.mesh.length("pipeline") > 1:
            rows[3:3] = [("micro-batches", str(manifest.micro_batches))]
    return rows


def compare(  # noqa: PLR0917 - what `finish` was given
    manifest: Manifest,
    feeds: Mapping[str, Array],
    result: Result,
    source: Path,
    key: Key | None = None,
    computed: Iterable[str] = (),
    timeout: float | None = None,
) -> list[Comparison]:
    """Runs the unsliced model and compares every output.

    ``computed``: types that the ranks compute in, besides those of weights and outputs.
    """
    reference = run_reference(source, feeds, key=key, timeout=timeout)
    types = {weight.dtype for weight in manifest.weights.values()} | set(computed)
    return compare_outputs(result.outputs, reference, types)


def print_comparisons(comparisons: Sequence[Comparison], source: Path) -> None:
    """Prints how far every output is from that of the unsliced model."""
    rows = [
        [c.name, f"{c.error:.2e}", f"{c.tolerance:g}", "ok" if c.good else "DIFFERS", c.note]
        for c in comparisons
    ]
    print()
    title = f"against {source.name} in plain ONNX Runtime (largest |difference| / largest |value|)"
    print_table(["output", "relative error", "tolerance", "", ""], rows, "lrrll", title=title)
    sys.stdout.flush()


def seconds(value: float) -> str:
    """A duration, readable."""
    return human_seconds(value)
