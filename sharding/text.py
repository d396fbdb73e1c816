"""Numbers as people read them."""

from __future__ import annotations


def human_bytes(count: int) -> str:
    """A number of bytes with a decimal unit: 1234567 is 1.23 MB."""
    size = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if size < 1000 or unit == "GB":
            break
        size /= 1000
    return f"{count} B" if unit == "B" else f"{size:.3g} {unit}" if size < 1000 else f"{size:.0f} {unit}"


def counted(count: int, noun: str) -> str:
    """A number of things: 1 rank, 2 ranks."""
    return f"{count} {noun}{'s' * (count != 1)}"


def reason_rows(reason: str) -> list[tuple[str, str]]:
    """Why a strategy was chosen, as rows of a table, one for each part of the sentence."""
    parts = reason.split("; ") if reason else []
    return [("" if number else "chosen", part) for number, part in enumerate(parts)]


# Besides control characters: line ends and changes of direction in Unicode, and halves of surrogate pairs,
# which no stream can encode.
_HIDDEN = (*range(0x2028, 0x202F), *range(0x2066, 0x206A), *range(0xD800, 0xE000))
_CONTROLS = {code: f"\\x{code:02x}" for code in (*range(32), *range(127, 160))} | {0x0A: "\\n", 0x09: "\\t"}
_CONTROLS |= {code: f"\\u{code:04x}" for code in _HIDDEN}


def one_line(text: str) -> str:
    """Text with control characters escaped: names in files may hold line ends and a terminal's commands."""
    return text.translate(_CONTROLS)


def shortened(text: str, length: int = 60) -> str:
    """A long name without its middle."""
    half = (length - 1) // 2
    return text if len(text) <= length else f"{text[:half]}…{text[-half:]}"
