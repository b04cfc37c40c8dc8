"""Arguments from a terminal, and what is printed besides answers: errors, notes, questions, JSON."""

from __future__ import annotations

import sys

from click.exceptions import Exit

from edgechat.base.text import escaped_json, flat

USAGE_ERROR = 2
_PATIENCE = 2.0
"""Seconds after which it is told that standard input is waited for."""


def as_text(argument: str) -> str:
    """Return an argument with bytes that are no UTF-8 replaced: models are sent text."""
    return argument.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def complain(message: str, hint: str | None) -> None:
    """Print an error for people on stderr: what happened, in a line, and what to do next.

    Lines of the hint that begin with two spaces, commands to copy, stay lines; no name in it makes another.
    """
    print(f"error: {flat(message)}", file=sys.stderr)
    if hint:
        lines = [flat(line) for line in hint.split("\n  ")]
        print("\n".join(f"  {line}" for line in lines), file=sys.stderr)


def note(text: str) -> None:
    """Print on stderr what someone may want to know."""
    print(f"note: {flat(text)}", file=sys.stderr)


def read_piped(limit: int) -> bytes:
    """Return what is piped in, `limit` bytes at most, however slow its source.

    A program that starts this one may leave a pipe open that nobody writes to: then it is told what is
    waited for.
    """
    import threading

    nothing = "NUL" if sys.platform == "win32" else "/dev/null"
    text = f"still reading standard input, which has not ended. To do without: <{nothing}"
    waiting = threading.Timer(_PATIENCE, note, [text])
    waiting.daemon = True  # Ctrl+C does not wait for it
    waiting.start()
    try:
        return sys.stdin.buffer.read(limit)
    finally:
        waiting.cancel()


def print_json(value: object) -> None:
    """Print a value as JSON on one line that is safe to show in a terminal."""
    import json

    print(escaped_json(json.dumps(value, ensure_ascii=False)))


def is_interactive() -> bool:
    """Say whether a person can be asked."""
    return sys.stdin.isatty() and sys.stdout.isatty()


def confirm(question: str, nothing: str, without: str) -> None:
    """Ask a person before something is deleted for good.

    nothing: what was not done; without: how to do it unasked. Raises Exit, with 1 after a no, with 2
    where there is no terminal to ask in.
    """
    if not is_interactive():
        complain(f"{nothing}: there is no terminal to confirm in.", without)
        raise Exit(USAGE_ERROR)
    if not answers_yes(question):
        print(f"{nothing}.")
        raise Exit(1)


def answers_yes(question: str) -> bool:
    """Ask a question; return whether the answer is yes."""
    try:
        return input(f"{question} [y/N] ").strip().lower() in ("y", "yes")
    except EOFError:
        return False
