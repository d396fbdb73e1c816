"""A chat template in a process of its own, which has little time and memory: JSON on standard input and
output. Templates come with models, and a template can loop for ever or fill the memory."""

from __future__ import annotations

import json
import resource
import sys
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import jinja2
    from jinja2 import nodes
    from jinja2.parser import Parser

SECONDS = 2
"""Of processor time."""
MEMORY = 1 << 30
"""Bytes of address space beyond what the process has when it begins."""
MAX_CHARACTERS = 4 << 20


def _limit() -> None:
    resource.setrlimit(resource.RLIMIT_CPU, (SECONDS, SECONDS + 1))
    with open("/proc/self/statm", encoding="ascii") as file:  # noqa: PTH123 - pathlib is not needed else
        pages = int(file.read().split()[0])
    most = pages * resource.getpagesize() + MEMORY
    resource.setrlimit(resource.RLIMIT_AS, (most, most))
    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


def _environment() -> jinja2.Environment:
    import jinja2
    from jinja2 import nodes
    from jinja2.exceptions import SecurityError
    from jinja2.ext import Extension, loopcontrols
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Generated(Extension):
        """``{% generation %}``: marks what training counts; of no meaning here."""

        tags = {"generation"}  # noqa: RUF012 - jinja2's own class attribute

        def parse(self, parser: Parser) -> nodes.Node:
            line = next(parser.stream).lineno
            body = parser.parse_statements(("name:endgeneration",), drop_needle=True)
            return nodes.Scope(body, lineno=line)

    def refuse(message: object) -> None:
        raise jinja2.TemplateError(str(message))

    def to_json(value: object, ensure_ascii: bool = False, indent: int | None = None, **more: Any) -> str:
        return json.dumps(value, ensure_ascii=ensure_ascii, indent=indent, **more)

    def now(layout: str) -> str:
        from datetime import datetime

        return datetime.now().strftime(layout)

    class Closed(ImmutableSandboxedEnvironment):
        def unsafe_undefined(self, obj: object, attribute: str) -> jinja2.Undefined:
            # jinja2 itself refuses only what is then done with it, and prints nothing in its place.
            raise SecurityError(f"it may not read the attribute {attribute!r} of {type(obj).__name__}")

    made = Closed(trim_blocks=True, lstrip_blocks=True, extensions=[Generated, loopcontrols])
    made.filters["tojson"] = to_json
    made.globals.update(raise_exception=refuse, strftime_now=now)
    return made


def render(template: str, variables: dict[str, object]) -> str:
    """The text of a template. Raises what jinja2 raises, and `OverflowError` for a text without end."""
    pieces, size = [], 0
    for piece in _environment().from_string(template).generate(**variables):
        pieces.append(piece)
        size += len(piece)
        if size > MAX_CHARACTERS:
            raise OverflowError(f"it gives more than {MAX_CHARACTERS} characters")
    return "".join(pieces)


def main() -> None:
    """Answers one request: ``{"path": [...], "template": ..., "variables": {...}}``."""
    request = json.load(sys.stdin)
    sys.path[:] = request["path"]
    answer: dict[str, object]
    try:
        import jinja2  # noqa: F401 - whether it is there

        _limit()
        answer = {"text": render(request["template"], request["variables"])}
    except ModuleNotFoundError as error:
        answer = {"absent": error.name}
    except MemoryError:
        answer = {"error": "it takes too much memory"}
    except RecursionError:
        answer = {"error": "it calls itself without end"}
    except Exception as error:
        line = getattr(error, "lineno", None)
        answer = {"error": f"{f'line {line}: ' if line else ''}{error or type(error).__name__}"}
    json.dump(answer, sys.stdout)


if __name__ == "__main__":
    main()
