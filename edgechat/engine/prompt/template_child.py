"""Child process that renders chat templates.

A template is untrusted code. The sandbox keeps it from reaching other objects, but nothing inside a process
can limit the memory that `'a' * 300000000` takes, or the time that a nested loop takes. So templates run in a
separate process, which `template.py` watches and kills if it exceeds the limits.
"""

from __future__ import annotations

import functools
import json
import traceback
from datetime import datetime
from typing import Any

import msgspec

from edgechat.base.process import child, spawn

MEMORY_LIMIT = 512 * 2**20
"""Memory limit for the process, in bytes. Well-behaved templates take 30 MB."""
TIME_LIMIT = 3.0
"""Time limit for one rendering, in seconds. Well-behaved templates take milliseconds."""


class Render(msgspec.Struct, frozen=True):
    """A template, its variables, and the date for `strftime_now` (in ISO format; None means now)."""

    template: str
    variables: dict[str, Any]
    date: str | None = None


class Rendered(msgspec.Struct, frozen=True):
    """The rendered text, or the template's error."""

    text: str = ""
    error: str | None = None
    line: int | None = None
    """The line in the template where an error occurred; None if the template raised the error on purpose."""


def render(request: Render) -> Rendered:
    """Render a template in the immutable sandbox. Errors in the template are returned as text."""
    try:
        return Rendered(_compiled(request.template, request.date).render(**request.variables))
    except Exception as error:
        line = None if isinstance(error, _RefusedError) else _line_of(error)
        return Rendered(error=str(error)[:500] or type(error).__name__, line=line)


class _RefusedError(ValueError):
    """The template called raise_exception."""


def _line_of(error: Exception) -> int | None:
    """Return the innermost template line in an error's traceback."""
    steps = traceback.walk_tb(error.__traceback__)
    lines = [line for frame, line in steps if frame.f_code.co_filename == "<template>"]
    return lines[-1] if lines else getattr(error, "lineno", None)


@functools.lru_cache(maxsize=4)
def _compiled(template: str, date: str | None) -> Any:
    """Return a compiled template from the cache: compiling takes longer than rendering 500 messages."""
    return _environment(date).from_string(template)


@functools.lru_cache(maxsize=4)
def _environment(date: str | None) -> Any:
    """Return the environment that chat templates expect, with the settings and helpers of transformers."""
    from jinja2.ext import Extension, loopcontrols
    from jinja2.nodes import Scope
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class GenerationTag(Extension):
        """`{% generation %}`, which marks replies for training. Its content is rendered unchanged."""

        tags = {"generation"}  # noqa: RUF012

        def parse(self, parser: Any) -> Any:
            line = next(parser.stream).lineno
            return Scope(parser.parse_statements(("name:endgeneration",), drop_needle=True), lineno=line)

    day = datetime.fromisoformat(date) if date else datetime.now()
    environment = ImmutableSandboxedEnvironment(
        trim_blocks=True,
        lstrip_blocks=True,
        extensions=[loopcontrols, GenerationTag],
        keep_trailing_newline=False,
    )
    environment.filters["tojson"] = _to_json
    environment.globals["raise_exception"] = _raise
    environment.globals["strftime_now"] = day.strftime
    return environment


def _to_json(
    value: Any,
    ensure_ascii: bool = False,
    indent: int | None = None,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    # Jinja's own filter escapes <, > and & for HTML, and models should not see these escapes.
    return json.dumps(
        value, ensure_ascii=ensure_ascii, indent=indent, separators=separators, sort_keys=sort_keys
    )


def _raise(message: str) -> None:
    raise _RefusedError(message)


def main() -> None:
    """Answer each Render with a Rendered until the parent exits."""
    pipes = spawn.adopt_pipe()
    child.limit_memory(MEMORY_LIMIT)
    _environment(None)
    child.serve(pipes, _answer, seconds=int(TIME_LIMIT) + 2)


def _answer(question: bytes) -> bytes:
    return msgspec.msgpack.encode(render(msgspec.msgpack.decode(question, type=Render)))
