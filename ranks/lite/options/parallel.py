"""`context.parallel`: the options of a `ModelParallelRunner`."""

from __future__ import annotations

from functools import partial

from ranks.lite.options.check import Checked, check_isinstance, check_sections, count, list_of_integers
from ranks.lite.options.content import exists


def _device_ids(name: str, value: object) -> list[int]:
    numbers = list_of_integers(name, value)
    if min(numbers, default=0) < 0:
        raise ValueError("Set parallel failed, device_ids contain a negative number.")
    return numbers


class Parallel:
    """Options of a pool of workers: how many, and their configuration.

    - ``workers_num``: number of workers, 0 for the runtime's choice.
    - ``config_info``: sections of options, as in a configuration file; later settings add to earlier ones.
    - ``config_path``: path of a configuration file.
    - ``device_ids``: device of each worker.
    """

    workers_num = Checked(partial(count, subject="Set parallel failed, "), 0)
    device_ids = Checked[list[int]](_device_ids, [])

    def __init__(self) -> None:
        self._config_info: dict[str, dict[str, str]] = {}
        self._config_path = ""

    def __str__(self) -> str:
        return (
            f"workers num: {self.workers_num},\n"
            f"config info: {self.config_info},\n"
            f"config file: {self.config_path}."
        )

    @property
    def config_info(self) -> str:
        """The options as text: for each section its name, a colon, and one "key value" a line."""
        text = ""
        for section, entries in self._config_info.items():
            text += f"{section}: " + "".join(f"{key} {value}\n" for key, value in entries.items())
        return text.rstrip("\n")

    @config_info.setter
    def config_info(self, config_info: dict[str, dict[str, str]]) -> None:
        check_sections("config_info", config_info)
        for section, entries in config_info.items():
            self._config_info.setdefault(section, {}).update(entries)

    @property
    def sections(self) -> dict[str, dict[str, str]]:
        """`config_info` as a dictionary: options by section and key."""
        return {section: dict(entries) for section, entries in self._config_info.items()}

    @property
    def config_path(self) -> str:
        return self._config_path

    @config_path.setter
    def config_path(self, config_path: str) -> None:
        check_isinstance("config_path", config_path, str)
        if config_path == "":
            return
        if not exists(config_path):
            raise ValueError("Set parallel failed, config_path does not exist!")
        self._config_path = config_path
