"""What `edgechat serve` prints first: its address, and commands to paste, for this shell."""

from __future__ import annotations

import shlex
import socket
import sys
from typing import TYPE_CHECKING

from edgechat.base.text import one_line
from edgechat.models.formats.modalities import ModelKind

if TYPE_CHECKING:
    from edgechat.server.access import Key

_EXAMPLES: dict[ModelKind, tuple[str, str]] = {
    "chat": (
        "chat/completions",
        '{"model": "default", "messages":\n      [{"role": "user", "content": "Hello"}]}',
    ),
    "embedding": ("embeddings", '{"model": "default", "input": "Hello"}'),
    "reranking": (
        "rerank",
        '{"model": "default", "query": "Hello",\n      "documents": ["Hello there", "Goodbye"]}',
    ),
}


def first_screen(
    name: str, listener: socket.socket, key: Key | None, *, kind: ModelKind, logged: bool = False
) -> str:
    """Return the text. It contains the key only if that is new and the output is not logged.

    kind: of the default model. logged: whether the output is stored, as in a journal.
    Commands have at most 60 columns, except for paths and keys.
    """
    from edgechat.server.serving import is_loopback, url_for_others, url_of

    url = url_of(listener)
    lines = [f"Serving {one_line(name)} at {url}/v1; press Ctrl+C to stop."]
    if not is_loopback(listener):
        url_there = url_for_others(listener)
        lines.append(f"Other machines can reach it at {url_there}/v1. Connections are not encrypted:")
        lines.append("on an untrusted network, put a proxy with TLS in front of it.")
    if key is not None and key.is_new and logged:
        lines += ["", "The API key was generated and stored in", f"{key.file}."]
    elif key is not None and key.is_new:
        lines += ["", "The API key was generated. It is shown only this once, and stored in"]
        lines += [f"{key.file}:", f"  {key.text}"]
    lines += [
        "",
        "For programs that use OpenAI's client:",
        _setting("OPENAI_BASE_URL", f'"{url}/v1"'),
        _setting("OPENAI_API_KEY", _key_expression(key)),
        "",
        "To try it:",
        _example_request(has_key=key is not None, kind=kind),
        "",
    ]
    return "\n".join(lines)


def _example_request(*, has_key: bool, kind: ModelKind) -> str:
    path, body = _EXAMPLES[kind]
    if sys.platform == "win32":  # PowerShell, which has another curl and takes quotes apart
        command = f'Invoke-RestMethod "$env:OPENAI_BASE_URL/{path}" -Method Post'
        authorization = '-Headers @{Authorization = "Bearer $env:OPENAI_API_KEY"}'
        options = ["-ContentType application/json", f"-Body '{body}'"]
        line_end = " `\n    "
    else:
        command = f'curl "$OPENAI_BASE_URL/{path}"'
        authorization = '-H "Authorization: Bearer $OPENAI_API_KEY"'
        options = ['-H "Content-Type: application/json"', f"-d '{body}'"]
        line_end = " \\\n    "
    return "  " + line_end.join([command, *([authorization] if has_key else []), *options])


def _setting(name: str, value: str) -> str:
    return f"  $env:{name} = {value}" if sys.platform == "win32" else f"  export {name}={value}"


def _key_expression(key: Key | None) -> str:
    """Return a shell expression that reads the key, so that the key is not in the shell's history."""
    if key is None:
        return '"none"'
    if sys.platform == "win32":
        if key.file is not None:
            return f"(Get-Content {_powershell_quoted(str(key.file))})"
        return f"$env:{key.variable}" if key.variable else _powershell_quoted(key.text)
    if key.file is not None:
        return f'"$(cat {shlex.quote(str(key.file))})"'
    return f'"${key.variable}"' if key.variable else shlex.quote(key.text)


def _powershell_quoted(text: str) -> str:
    doubled = text.replace("'", "''")
    return f"'{doubled}'"
