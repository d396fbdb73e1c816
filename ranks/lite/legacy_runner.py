"""Deprecated: how the generation before `Context.parallel` set up a `ModelParallelRunner`."""

from __future__ import annotations

from ranks.common.notice import deprecated
from ranks.lite.options.check import check_isinstance
from ranks.lite.options.context import Context
from ranks.lite.options.parallel import Parallel


class RunnerConfig:
    """Deprecated: `Context.parallel`. The context of a `ModelParallelRunner` and its options in one.

    Raises `TypeError` for arguments of another type, `ValueError` for a negative number of workers and for a
    configuration file that does not exist.
    """

    def __init__(
        self,
        context: Context | None = None,
        workers_num: int | None = None,
        config_info: dict[str, dict[str, str]] | None = None,
        config_path: str | None = None,
    ) -> None:
        deprecated("RunnerConfig", "context.parallel")
        check_isinstance("context", context, Context, none_allowed=True)
        self.context = Context() if context is None else context
        self.parallel = Parallel()
        if workers_num is not None:
            self.parallel.workers_num = workers_num
        if config_info is not None:
            self.parallel.config_info = config_info
        if config_path is not None:
            self.parallel.config_path = config_path

    def __str__(self) -> str:
        cpu = self.context.cpu
        return (
            f"workers num: {self.parallel.workers_num},\n"
            f"config info: {self.parallel.config_info},\n"
            f"context: thread num: {cpu.thread_num}, bind mode: {cpu.thread_affinity_mode},\n"
            f"config path: {self.parallel.config_path}."
        )
