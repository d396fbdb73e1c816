"""Greedy generation on ranks against ONNX Runtime GenAI, transformers and vLLM on the same weights.

    python benchmarks/generation.py FOLDER [--prompt 128] [--new 128] [--rounds 5] [--ranks 2]
        [--genai PYTHON] [--transformers PYTHON --weights FOLDER] [--vllm PYTHON --weights FOLDER]
        [--texts 8] [--chunk N] [--starts 3] [--whole-sums] [--before FOLDER] [--realtime] [--json FILE]

FOLDER is one of ONNX Runtime GenAI's model builder, WEIGHTS the transformers folder it was built from; both
are made by `scripts/generation_peers.sh`, which also makes an environment for each peer: the PYTHONs here. A
peer without its PYTHON is left out.

Every contestant is a process of its own, asked in turn, so that what else the machine does hits all alike.
Peers that are not asked are stopped, for some of them burn a core for a second after they have answered; the
ranks wait for a line. `--starts N` starts all of them N times, for as many rounds each: how memory and cores
fall to a process differs more from start to start than from round to round. Printed are medians over all
rounds: the prompt up to its first token, and the mean of the further tokens; and the 90th percentile of these
(of the ranks, in groups of four). A long context is `--prompt 2000 --new 64`, and `--chunk N` has the ranks
read the prompt N tokens at a time. The ranks have one thread and one core each. `--texts N` also generates N
texts at once, through the engine, and compares their tokens a second with those of one.

`--whole-sums` has ranks contend that add up no parts of sums, and `--before FOLDER` another version of this
project, as its files lie in FOLDER. Ratios are medians of pairs of the same round, and the least and most of
these. On a machine that others
use, `--realtime` (for root) gives all contestants their cores while they work, and rests between two of them.

Of a token on ranks it is said where its time goes, in milliseconds and as a share of the whole, which its
reader measures: the sessions of ONNX Runtime on rank 0; its waiting for other ranks in collectives, and the
rest of these (only shared memory tells the two apart); the choice of tokens; all else in Python on rank 0;
what passes besides until the reader has it.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from common import Asked, parser_of, write_json
from generation_peers import GENAI, GENAI_MODEL, LOOP, TRANSFORMERS, VLLM

if TYPE_CHECKING:
    from launcher.group.group import Group

Answer = dict[str, Any]
GO = "go"
OWN = "shardrun"
FEW = 4
"""Tokens over which the time of one is averaged."""
SEGMENTS, WAITING, COLLECTIVES = "segments in ONNX Runtime", "waiting for other ranks", "collectives"
SAMPLING, PYTHON, TRANSPORT = "sampling", "Python", "transport to the reader"
PARTS = (SEGMENTS, WAITING, COLLECTIVES, SAMPLING, PYTHON, TRANSPORT)
"""Where the time of a token goes, on rank 0 and from there."""


@dataclass
class Contestant(Asked):
    """A process that generates when it is told."""

    prompts: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    more: dict[str, list[float]] = field(default_factory=dict)
    ids: list[int] = field(default_factory=list)
    means: list[float] = field(default_factory=list)
    """Seconds of a token, of each round."""
    stops: bool = False
    """Whether its processes are stopped while others are asked."""

    def generate(self) -> None:
        """One generation."""
        self.signal(signal.SIGCONT)
        answer = self.ask(GO)
        self.signal(signal.SIGSTOP)
        self.prompts.append(answer["prompt"])
        self.steps += answer["steps"]
        self.means.append(answer.get("mean") or statistics.mean(answer["steps"]))
        self.ids = answer["ids"]
        for name, value in answer.get("more", {}).items():
            self.more.setdefault(name, []).append(value)

    def signal(self, number: signal.Signals) -> None:
        """Sends a signal to all its processes, where it may be stopped."""
        if self.stops:
            os.killpg(self.process.pid, number)


def own(args: argparse.Namespace) -> Callable[[], Answer]:
    """This project's ranks: one thread each, on a core of its own."""
    if args.before:
        sys.path.insert(0, str(args.before))
        os.environ["PYTHONPATH"] = str(args.before)
    import numpy as np

    from launcher import load_language_model
    from launcher.generation.engine import Engine, EngineLimits
    from launcher.generation.sample import Token
    from sharding.demands.options import SliceOptions

    folder, ranks, prompt, new = args.folder, args.ranks, args.prompt, args.new
    texts, chunk = args.texts, args.chunk
    options = SliceOptions(allow_replicated=True)
    if args.whole_sums:
        options = replace(options, sums="whole")
    model = load_language_model(folder, ranks=ranks, threads=1, launcher="local", options=options)
    group = model.decoder.later.group  # type: ignore[attr-defined]
    cores = sorted(os.sched_getaffinity(0))
    if args.realtime:  # whoever reads goes first, as on a machine at rest
        first(os.getpid(), 2)
        for stats in group.stats:
            first(stats.pid, 1)
    for stats in group.stats if len(cores) >= ranks else ():
        for thread in Path(f"/proc/{stats.pid}/task").iterdir():
            os.sched_setaffinity(int(thread.name), {cores[stats.rank]})
    ids = np.arange(5, 5 + prompt) % 900
    many = [np.roll(ids, shift) for shift in range(texts)]

    def run() -> Answer:
        made = model.generate(ids, max_new_tokens=new, temperature=0, ignore_eos=True, chunk=chunk)
        start = time.perf_counter()
        found, times = [next(made).id], [time.perf_counter()]  # type: ignore[union-attr]
        first_token = times[0] - start
        before = spent(group)
        for event in made:
            if isinstance(event, Token):
                times.append(time.perf_counter())
                found.append(event.id)
        count = new - 1
        parts = parts_of(before, spent(group), times[-1] - times[0])
        more = {name: seconds / count for name, seconds in parts.items()}
        # Tokens that come quickly come several at a time.
        steps = [(times[k + FEW] - times[k]) / FEW for k in range(len(times) - FEW)]
        if texts:
            limits = EngineLimits(sequences=texts, prefixes=0)
            with Engine(model.decoder, limits=limits) as engine:
                start = time.perf_counter()
                streams = [
                    engine.submit(one, max_new_tokens=new, temperature=0, ignore_eos=True) for one in many
                ]
                for stream in streams:
                    stream.finish()
                more["together"] = texts * new / (time.perf_counter() - start)
                start = time.perf_counter()
                engine.submit(ids, max_new_tokens=new, temperature=0, ignore_eos=True).finish()
                more["alone"] = new / (time.perf_counter() - start)
        mean = (times[-1] - times[0]) / count
        return {"prompt": first_token, "steps": steps, "ids": found, "more": more, "mean": mean}

    return run


def spent(group: Group) -> list[float]:
    """What ranks have spent so far, as rank 0 measures it: seconds of runs, and what of them were segments,
    collectives, waiting in these, and the choice of tokens."""
    names = ("run", "segment", "communication", "waiting", "choosing")
    found = getattr(group, "spent", group)  # versions before had fewer figures
    return [getattr(found, f"{name}_seconds", 0.0) for name in names]


def parts_of(before: list[float], after: list[float], whole: float) -> dict[str, float]:
    """Where the time of a text's tokens went, whose ``whole`` the reader has measured: seconds, which add up
    to it. ``before`` and ``after``: `spent`."""
    ran, segments, talked, waited, chose = (late - early for early, late in zip(before, after, strict=True))
    return {
        SEGMENTS: segments,
        WAITING: waited,
        COLLECTIVES: talked - waited,
        SAMPLING: chose,
        PYTHON: ran - segments - talked - chose,
        TRANSPORT: whole - ran,
    }


def first(pid: int, priority: int) -> None:
    """Has all threads of a process go before those of ordinary processes."""
    for thread in Path(f"/proc/{pid}/task").iterdir():
        os.sched_setscheduler(int(thread.name), os.SCHED_RR, os.sched_param(priority))


def _serve(run: Callable[[], Answer]) -> None:
    """Answers each line with one generation; what libraries print goes elsewhere."""
    out = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    run()
    print("ready", file=out, flush=True)
    for _ in sys.stdin:
        print(json.dumps(run()), file=out, flush=True)


@contextlib.contextmanager
def started(
    found: Contestant | None, name: str, command: list[str], cores: set[int] | None = None, *, realtime: bool
) -> Iterator[Contestant]:
    """A contestant, ready, with what was ``found`` of it in earlier starts; ended at the end."""

    def bind() -> None:
        if cores:
            os.sched_setaffinity(0, cores)
            if realtime:
                os.sched_setscheduler(0, os.SCHED_RR, os.sched_param(1))

    process = subprocess.Popen(
        command,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        preexec_fn=bind,  # noqa: PLW1509
    )
    found = found or Contestant(name, process, stops=not name.startswith(OWN))
    found.process = process
    try:
        while found.line().strip() != "ready":
            pass
        found.signal(signal.SIGSTOP)
        yield found
    finally:
        with contextlib.suppress(ProcessLookupError):
            found.signal(signal.SIGCONT)
        found.close()


def commands(args: argparse.Namespace) -> dict[str, tuple[list[str], set[int] | None]]:
    """What starts each contestant, and on which cores."""
    lengths = [str(args.prompt), str(args.new)]
    mine = [sys.executable, __file__, str(args.folder), "--own", "--ranks", str(args.ranks)]
    mine += ["--prompt", lengths[0], "--new", lengths[1], "--texts", str(args.texts)]
    mine += ["--chunk", str(args.chunk)] if args.chunk else []
    mine += ["--realtime"] if args.realtime else []
    cores = sorted(os.sched_getaffinity(0))
    found: dict[str, tuple[list[str], set[int] | None]] = {f"{OWN}, {args.ranks} ranks": (mine, None)}
    if args.before:
        found[f"{OWN}, before"] = [*mine, "--before", str(args.before.resolve())], None
    if args.whole_sums:
        found[f"{OWN}, whole sums"] = [*mine, "--whole-sums"], None
    for threads in (1, 2) if args.genai else ():
        command = [args.genai, "-c", GENAI_MODEL + GENAI + LOOP, str(args.folder), str(threads), *lengths]
        found[f"GenAI, {threads} thread{'s' * (threads > 1)}"] = command, set(cores[:threads])
    if args.transformers:
        command = [args.transformers, "-c", TRANSFORMERS + LOOP, str(args.weights), "2", *lengths]
        found["transformers, 2 threads"] = command, set(cores[:2])
    if args.vllm:
        command = [args.vllm, "-c", VLLM + LOOP, str(args.weights), str(args.ranks), *lengths]
        found[f"vLLM, {args.ranks} ranks"] = command, None
    return found


def _row(one: Contestant) -> list[str]:
    median = statistics.median(one.means)
    late = sorted(one.steps)[int(0.9 * (len(one.steps) - 1))]
    return [
        one.name, f"{1e3 * statistics.median(one.prompts):.1f}", f"{1e3 * median:.2f}", f"{1e3 * late:.2f}",
        f"{1 / median:.1f}",
    ]  # fmt: skip


def shares(one: Contestant) -> list[str]:
    """A line for each part of a token's time, and for those that are no computing: medians, and what share of
    the whole token they are, as its reader sees it, in the median of rounds."""
    lines = [f"  {one.name}: where the time of a token goes, as its reader sees it"]
    for names in (*((name,) for name in PARTS), (PYTHON, TRANSPORT)):
        rounds = [sum(values) for values in zip(*(one.more[name] for name in names), strict=True)]
        share = statistics.median(part / whole for part, whole in zip(rounds, one.means, strict=True))
        what = " and ".join(names)
        lines.append(f"    {what:<42}{1e3 * statistics.median(rounds):8.3f} ms  {100 * share:5.1f} %")
    return lines


def _ratios(theirs: list[float], mine: list[float]) -> str:
    found = [other / own for other, own in zip(theirs, mine, strict=True)]
    return f"{statistics.median(found):.3f} ({min(found):.2f} to {max(found):.2f})"


def main() -> None:
    numbers = {"prompt": 128, "new": 128, "rounds": 5, "starts": 1, "ranks": 2, "texts": 0, "chunk": int}
    peers = dict.fromkeys(("genai", "transformers", "vllm"), str)
    switches = {"whole_sums": False, "realtime": False}
    parser = parser_of(__doc__, **numbers, **peers, **switches, weights=Path, before=Path, json=Path)
    parser.add_argument("folder", type=Path)
    parser.add_argument("--own", action="store_true", help=argparse.SUPPRESS)
    args = parser.parse_args()
    if args.own:
        _serve(own(args))
        return
    if (args.transformers or args.vllm) and args.weights is None:
        parser.error("transformers and vLLM need --weights: the folder that FOLDER was built from")
    found: dict[str, Contestant] = {}
    for _ in range(args.starts):
        with contextlib.ExitStack() as stack:
            for name, how in commands(args).items():
                process = started(found.get(name), name, *how, realtime=args.realtime)
                found[name] = stack.enter_context(process)
            for _ in range(args.rounds):
                for one in random.sample(list(found.values()), len(found)):
                    time.sleep(0.5 if args.realtime else 0)
                    one.generate()
    all_ = list(found.values())
    rounds = f"{args.starts} x {args.rounds} rounds"
    print(f"{args.folder.name}: prompt {args.prompt}, {args.new} new tokens, {rounds}; medians")
    heads = ["", "prompt, ms", "token, ms", "90 %, ms", "tokens/s"]
    rows = [heads, *map(_row, all_)]
    widths = [max(len(row[k]) for row in rows) for k in range(len(heads))]
    for row in rows:
        print(
            "  ".join(
                cell.ljust(width) if k == 0 else cell.rjust(width)
                for k, (cell, width) in enumerate(zip(row, widths, strict=True))
            )
        )
    mine = all_[0]
    for one in (item for item in all_ if item.more):
        print(*shares(one), sep="\n")
        for name in ("together", "alone"):
            if name in one.more:
                print(f"  {one.name}, {name}: {statistics.median(one.more[name]):.1f} tokens/s")
    owns = [one for one in all_ if not one.stops]
    for other in all_[1:]:
        token, prompt = _ratios(other.means, mine.means), _ratios(other.prompts, mine.prompts)
        print(f"  {other.name} / {mine.name}: a token {token}, the prompt {prompt}")
        for one in owns if other not in owns else [mine]:
            same = sum(a == b for a, b in zip(one.ids, other.ids, strict=False))
            print(f"  tokens of {one.name} equal to those of {other.name}: {same} of {len(one.ids)}")
    figures = {
        one.name: {"prompts": one.prompts, "steps": one.steps, "more": one.more, "ids": one.ids}
        for one in all_
    }
    write_json(args.json, figures)


if __name__ == "__main__":
    main()
