"""mcp.json: the configuration of tool servers, in a widely used format. Also finds other programs' files.

    {"mcpServers": {
        "disk": {"command": "npx", "args": ["-y", "@modelcontextprotocol/server-filesystem", "/home/me"]},
        "tracker": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer ${TRACKER_KEY}"}}
    }}

`${NAME}` and `${env:NAME}` are replaced with the values of edgechat's environment variables.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import msgspec

from edgechat.base import paths
from edgechat.base.errors import SettingsError, ToolError
from edgechat.base.text import flat, one_line

BUILT_IN = {
    "calculator": "computes arithmetic expressions",
    "chats": "searches your own conversations",
    "date": "says what day and time it is",
    "documents": "finds passages of documents that you name: documents:NAME",
    "files": "lists, reads and searches the files below a folder that you name: files:FOLDER",
    "web": "fetches pages of the public web",
}
"""Built-in groups of tools, with their descriptions."""
ARGUMENTS = {"documents": "NAME", "files": "FOLDER"}
"""Arguments for the groups that take one, as in `files:FOLDER`."""
MOST_SERVERS = 64
_MOST_BYTES = 2**20
_MOST_TEXT, _MOST_ENTRIES = 8192, 256
_LOCK_SECONDS = 5
_NAME = re.compile(r"[^\W_][\w .-]{0,39}")
_VARIABLE = re.compile(r"\$\{(?:env:)?([A-Za-z_][A-Za-z0-9_]*)\}")


class ServerConfig(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """A server in mcp.json: a command to run, or a URL."""

    name: str
    command: str = ""
    args: tuple[str, ...] = ()
    env: dict[str, str] = {}
    """Environment variables to set, in addition to the ones that every server gets."""
    cwd: str = ""
    """Its working directory; '' means the user's home folder."""
    url: str = ""
    """URL of a streamable HTTP server; used instead of a command."""
    headers: dict[str, str] = {}

    @property
    def shown(self) -> str:
        """Its command, or its URL without secrets, on one line."""
        if self.url:
            return one_line(_without_secrets(self.url), 200)
        return one_line(" ".join((self.command, *self.args)), 200)

    def resolved(self) -> ServerConfig:
        """Return a copy with variables replaced by their values. Raises ToolError if any is not set."""

        def put(text: str) -> str:
            return _VARIABLE.sub(lambda match: self._variable(match.group(1)), text)

        return msgspec.structs.replace(
            self,
            command=put(self.command),
            args=tuple(map(put, self.args)),
            env={name: put(value) for name, value in self.env.items()},
            cwd=put(self.cwd),
            url=put(self.url),
            headers={name: put(value) for name, value in self.headers.items()},
        )

    def _variable(self, name: str) -> str:
        value = os.environ.get(name)
        if value is None:
            raise ToolError(
                f"The tool server {self.name} needs the environment variable {name}, which is not set.",
                hint=f"Set it, or write its value into {config_path()}.",
            )
        return value


def config_path() -> Path:
    """Return the path of mcp.json, which need not exist. Raises FolderError."""
    return paths.config_dir() / "mcp.json"


def read_servers(path: Path) -> dict[str, ServerConfig]:
    """Return the servers in a file, in file order; {} if there is no file. Raises SettingsError."""
    return {name: _server(path, name, entry) for name, entry in entries_of(path).items()}


def entries_of(path: Path) -> dict[str, dict[str, Any]]:
    """Return the unvalidated entries in a file, keyed by server name. Raises SettingsError."""
    entries = _document(path).get("mcpServers", {})
    if not isinstance(entries, dict):
        raise _wrong(path, "mcpServers is not an object")
    if len(entries) > MOST_SERVERS:
        raise _wrong(path, f"it has more than {MOST_SERVERS} servers")
    wrong = next((name for name, entry in entries.items() if not isinstance(entry, dict)), None)
    if wrong is not None:
        raise _wrong(path, f"the entry {one_line(wrong, 50)!r} is not an object")
    return entries


def server_of(name: str, entry: Mapping[str, Any]) -> ServerConfig:
    """Return the server described by an entry in mcp.json. Raises SettingsError."""
    if not _NAME.fullmatch(name) or name in BUILT_IN:
        shown = one_line(name, 50)
        raise SettingsError(
            f"{shown!r} cannot be the name of a tool server.",
            hint="A name has up to 40 letters, digits, spaces, dots and dashes, and must differ from the "
            f"names of built-in tools: {', '.join(BUILT_IN)}.",
        )
    try:
        server = msgspec.convert({**entry, "name": name}, ServerConfig)
    except (msgspec.ValidationError, TypeError) as error:
        raise SettingsError(f"The tool server {name} is not valid: {one_line(str(error))}.") from error
    texts = [server.command, server.cwd, server.url, *server.args]
    texts += [*server.env, *server.env.values(), *server.headers, *server.headers.values()]
    if len(texts) > _MOST_ENTRIES or any(len(text) > _MOST_TEXT or "\0" in text for text in texts):
        raise SettingsError(f"The tool server {name} is not valid: its entry is too long.")
    if bool(server.command) == bool(server.url):
        raise SettingsError(f"The tool server {name} needs either a command or a url.")
    if entry.get("type") == "sse":
        raise SettingsError(
            f"The tool server {name} uses the outdated SSE transport, which edgechat does not support.",
            hint="Most such servers also have a URL for streamable HTTP.",
        )
    if server.url and urlsplit(server.url).scheme not in ("http", "https"):
        raise SettingsError(f"The url of the tool server {name} does not begin with http:// or https://.")
    return server


def entry_of(server: ServerConfig) -> dict[str, Any]:
    """Return the entry for a server, as stored in mcp.json."""
    entry: dict[str, Any] = msgspec.to_builtins(server)
    del entry["name"]
    return entry


def add_servers(path: Path, *servers: ServerConfig) -> None:
    """Add servers to a file, replacing any with the same names. Raises SettingsError."""
    with _locked(path):
        document = _document(path)
        entries = {**entries_of(path), **{one.name: entry_of(one) for one in servers}}
        if len(entries) > MOST_SERVERS:
            raise SettingsError(f"There can be at most {MOST_SERVERS} tool servers.")
        _write(path, {**document, "mcpServers": entries})


def remove_server(path: Path, name: str) -> bool:
    """Remove a server from a file; return whether the file contained it. Raises SettingsError."""
    with _locked(path):
        document, entries = _document(path), entries_of(path)
        if entries.pop(name, None) is None:
            return False
        _write(path, {**document, "mcpServers": entries})
        return True


def _server(path: Path, name: str, entry: Mapping[str, Any]) -> ServerConfig:
    try:
        return server_of(name, entry)
    except SettingsError as error:
        raise SettingsError(f"{flat(str(path))}: {error.message}", hint=error.hint) from error


def _document(path: Path) -> dict[str, Any]:
    """Return the contents of a file; {} if there is none. Raises SettingsError."""
    try:
        document = json.loads(paths.read_bytes(path, _MOST_BYTES) or b"{}")
    except FileNotFoundError:
        return {}
    except OSError as error:
        raise SettingsError(f"{flat(str(path))} cannot be read: {error.strerror}.") from error
    except (ValueError, RecursionError) as error:
        raise _wrong(path, one_line(str(error), 120)) from error
    if not isinstance(document, dict):
        raise _wrong(path, "it is not an object")
    return document


def _write(path: Path, document: dict[str, Any]) -> None:
    """Replace a file, or the file that a symlink points to. Raises OSError.

    The new file is readable only by its owner, since it may contain keys.
    """
    text = json.dumps(document, indent=2, ensure_ascii=False) + "\n"
    paths.replace(Path(os.path.realpath(path)), text.encode("utf-8", "replace"))


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock a file against changes by other programs. OS errors raised in the block become SettingsError."""
    import filelock

    try:
        with filelock.FileLock(path.with_name(".mcp.lock"), timeout=_LOCK_SECONDS, mode=0o600):
            yield
    except filelock.Timeout as error:
        raise SettingsError(f"Another program is changing {flat(str(path))}.", hint="Try again.") from error
    except OSError as error:
        raise SettingsError(
            f"{flat(str(path))} cannot be written: {error.strerror}.",
            hint=f"Check the free disk space and the permissions of {flat(str(path.parent))}.",
        ) from error


def _wrong(path: Path, why: str) -> SettingsError:
    return SettingsError(f"{flat(str(path))} is not valid: {why}.", hint="Correct the file.")


def _without_secrets(url: str) -> str:
    parts = urlsplit(url)
    host = parts.netloc.rpartition("@")[2]
    return f"{parts.scheme}://{host}{parts.path}" + "?…" * bool(parts.query)


NAMES = {"claude": "Claude Desktop", "cursor": "Cursor", "lmstudio": "LM Studio"}


def config_files(program: str) -> list[Path]:
    """Return the paths of the files in which a program might list its tool servers.

    program: 'claude', 'cursor' or 'lmstudio'.
    """
    home = Path.home()
    match program:
        case "claude":
            return [_application_data() / "Claude" / "claude_desktop_config.json"]
        case "cursor":
            return [home / ".cursor" / "mcp.json"]
        case "lmstudio":
            return [home / ".lmstudio" / "mcp.json", home / ".cache" / "lm-studio" / "mcp.json"]
    raise ValueError(program)


def _application_data() -> Path:
    home = Path.home()
    if sys.platform == "darwin":
        return home / "Library" / "Application Support"
    if sys.platform == "win32":
        return Path(os.environ.get("APPDATA") or home / "AppData" / "Roaming")
    return Path(os.environ.get("XDG_CONFIG_HOME") or home / ".config")
