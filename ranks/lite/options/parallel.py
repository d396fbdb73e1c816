"""`context.parallel`: the options of a `ModelParallelRunner`."""

from __future__ import annotations

from ranks.lite.options.check import check_isinstance, check_sections, count, list_of_integers
from ranks.lite.options.content import exists


class Parallel:
    """Options of a pool of workers: how many, and their configuration.

    - ``workers_num``: number of workers, 0 for the runtime's choice.
    - ``config_info``: sections of options, as in a configuration file; later settings add to earlier ones.
    - ``config_path``: path of a configuration file.
    - ``device_ids``: device of each worker.
    """

    def __init__(self) -> None:
        self._workers_num = 0
        self._config_info: dict[str, dict[str, str]] = {}
        self._config_path = ""
        self._device_ids: list[int] = []

    def __str__(self) -> str:
        return (
            f"workers num: {self.workers_num},\n"
            f"config info: {self.config_info},\n"
            f"config file: {self.config_path}."
        )

    @property
    def workers_num(self) -> int:
        return self._workers_num

    @workers_num.setter
    def workers_num(self, number: int) -> None:
        self._workers_num = count("workers_num", number, "Set parallel failed, ")

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

    @property
    def device_ids(self) -> list[int]:
        return list(self._device_ids)

    @device_ids.setter
    def device_ids(self, device_ids: list[int]) -> None:
        numbers = list_of_integers("device_ids", device_ids)
        if min(numbers, default=0) < 0:
            raise ValueError("Set parallel failed, device_ids contain a negative number.")
        self._device_ids = numbers
