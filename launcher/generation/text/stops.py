"""Stop texts in a stream: found also across pieces, and nothing shown that may still become one."""

from __future__ import annotations

from collections.abc import Sequence


class Stops:
    """Holds back the end of a text while it may be the beginning of a stop text."""

    def __init__(self, texts: Sequence[str]) -> None:
        self._texts = tuple(texts)
        self._longest = max(map(len, texts), default=0)
        self._held = ""
        self.found: str | None = None
        """The stop text that has come; nothing is shown after it."""

    def add(self, piece: str) -> str:
        """What may be shown now that the text has grown by ``piece``."""
        if self.found is not None:
            return ""
        if not self._texts:
            return piece
        text = self._held + piece
        places = [(place, -len(stop), stop) for stop in self._texts if (place := text.find(stop)) >= 0]
        if places:
            place, _, self.found = min(places)
            self._held = ""
            return text[:place]
        begin = max(0, len(text) - self._longest + 1)
        # The earliest place from which all that is left begins a stop text.
        for place in range(begin, len(text)):
            rest = text[place:]
            if any(stop.startswith(rest) for stop in self._texts):
                begin = place
                break
        else:
            begin = len(text)
        self._held = text[begin:]
        return text[:begin]

    def end(self) -> str:
        """What was held back, when nothing more comes."""
        held, self._held = self._held, ""
        return held
