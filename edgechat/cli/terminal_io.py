"""Where words come in from a terminal and go out to it."""

from __future__ import annotations

import sys

_USAGE = 2


def as_text(word: str) -> str:
    """Return what was typed with bytes that are no UTF-8 replaced: models are sent text."""
    return word.encode("utf-8", "surrogateescape").decode("utf-8", "replace")


def complain(message: str, hint: str | None) -> None:
    """Print an error for people on stderr: what happened, in a line, and what to do next.

    Lines of the hint that begin with two spaces, commands to copy, stay lines; no name in it makes another.
    """
    from edgechat.base.text import flat

    print(f"error: {flat(message)}", file=sys.stderr)
    if hint:
        lines = [flat(line) for line in hint.split("\n  ")]
        print("\n".join(f"  {line}" for line in lines), file=sys.stderr)


def note(text: str) -> None:
    """Print on stderr what someone may want to know."""
    from edgechat.base.text import flat

    print(f"note: {flat(text)}", file=sys.stderr)


def refused(question: str, nothing: str, without: str) -> int | None:
    """Ask a person before something goes for good; return None for a yes, else the exit code.

    1 after a no, and 2 where there is no terminal to ask in. nothing: what was not done; without: how to do
    it unasked.
    """
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        complain(f"{nothing}: there is no terminal to confirm in.", without)
        return _USAGE
    try:
        answer = input(f"{question} [y/N] ")
    except EOFError:
        answer = ""
    if answer.strip().lower() in ("y", "yes"):
        return None
    print(f"{nothing}.")
    return 1
