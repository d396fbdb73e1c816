"""Numbers of models and their ranks as they are when Prometheus asks: nothing is counted between."""

from __future__ import annotations

import asyncio
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from launcher.serving.models import Model, State

if TYPE_CHECKING:
    from launcher.group.group import Group

_SECONDS, _LEAST = 10.0, 1.0
_ASK_SECONDS, _LOOKS = 0.01, 10
_SPENT = {"computing": "compute", "communicating": "communication", "waiting": "wait"}
"""Key of a rank's report -> label."""


class Rate:
    """How many of something there were in a second, over the last ten."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._began = clock, clock()
        self._seen: deque[list[float]] = deque()
        """Second, and how many in it."""

    def add(self, count: int = 1) -> None:
        """So many more."""
        second = int(self._clock())
        if self._seen and self._seen[-1][0] == second:
            self._seen[-1][1] += count
        else:
            self._seen.append([second, count])
        self._forget()

    def _forget(self) -> None:
        while self._seen and self._seen[0][0] < self._clock() - _SECONDS:
            self._seen.popleft()

    def value(self) -> float:
        """Per second."""
        self._forget()
        over = min(_SECONDS, max(_LEAST, self._clock() - self._began))
        return sum(count for _, count in self._seen) / over


async def ask_ranks(models: Iterable[Model]) -> None:
    """Has all ranks say what they have done. Those that are at work say it when they are done with that: this
    waits for a moment only, and shows what they said before."""
    groups = [group for model in models if model.state is State.READY for group in model.groups]
    # To tell a rank something waits for whoever is just sending to it, maybe much.
    before = await asyncio.to_thread(lambda: {id(group): group.work() for group in groups})
    for _ in range(_LOOKS):
        if all(_is_new(group, before[id(group)]) for group in groups):
            return
        await asyncio.sleep(_ASK_SECONDS)


def _is_new(group: Group, before: object) -> bool:
    now = group.said
    return len(now) == len(group.stats) and now != before


class RankCollector(Collector):
    """What waits for models now, and what their ranks have said."""

    def __init__(self, models: Callable[[], Iterable[Model]]) -> None:
        self._models = models

    def collect(self) -> Iterator[Metric]:
        """For Prometheus."""
        of_rank = ["model", "version", "rank"]
        spent = CounterMetricFamily(
            "shardrun_rank_seconds",
            "What a rank has spent on computing, in collectives, and on waiting for requests",
            labels=[*of_rank, "in"],
        )
        state = GaugeMetricFamily(
            "shardrun_rank_state_bytes", "State of texts and sessions that a rank holds", labels=of_rank
        )
        memory = GaugeMetricFamily(
            "shardrun_rank_memory_bytes", "Memory that a rank's process has", labels=of_rank
        )
        weights = GaugeMetricFamily("shardrun_rank_weight_bytes", "Weights that a rank holds", labels=of_rank)
        ready = GaugeMetricFamily(
            "shardrun_model_ready", "1: the model answers; 0: it does not", labels=["model", "version"]
        )
        renewed = GaugeMetricFamily(
            "shardrun_model_weight_updates", "Updates of weights since the model was loaded",
            labels=["model", "version"],
        )  # fmt: skip
        waiting = GaugeMetricFamily(
            "shardrun_queue_length", "Requests that wait for a model", labels=["model"]
        )
        # A version may be there twice: one that ends slowly, and one that was loaded anew, which comes first.
        models: dict[tuple[str, str], Model] = {}
        lengths: Counter[str] = Counter()
        for model in self._models():
            models.setdefault((model.name, model.version), model)
            lengths[model.name] += model.waiting
        for name, length in lengths.items():
            waiting.add_metric([name], length)
        for own, model in models.items():
            ready.add_metric([*own], float(model.state is State.READY))
            renewed.add_metric([*own], sum(group.weights_version for group in model.groups))
            first = 0
            for group in model.groups:  # a language model may have several: their ranks are numbered on
                stats, said = group.stats, group.said
                for one in stats:
                    label = [*own, str(first + one.rank)]
                    weights.add_metric(label, one.weight_bytes)
                    if (work := said.get(one.rank)) is None:
                        continue
                    for key, name in _SPENT.items():
                        spent.add_metric([*label, name], work[key])  # type: ignore[literal-required]
                    state.add_metric(label, work["state_bytes"])
                    memory.add_metric(label, work["memory_bytes"])
                first += len(stats)
        yield from (waiting, spent, state, memory, weights, ready, renewed)
