"""Reads settings.toml and other TOML files. Errors name the file, the field and the allowed values."""

from __future__ import annotations

import contextlib
import difflib
import re
import shlex
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal, TypeVar
from urllib.parse import urlsplit

import msgspec

from edgechat.base import paths
from edgechat.base.errors import SettingsError
from edgechat.base.text import one_line
from edgechat.settings.fields import NAME_LENGTH, EngineName, EngineProgram, RemoteServer, Settings

S = TypeVar("S", bound=msgspec.Struct)

_REMOTE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,39}")
MAX_BYTES = 1 << 20
"""Maximum size of a TOML file, in bytes: twenty times the size of the catalogue."""


def settings_file() -> Path:
    """Return the path of settings.toml, which may not exist."""
    return paths.config_dir() / "settings.toml"


def load() -> Settings:
    """Return the contents of settings.toml, or the defaults if it does not exist. Raises SettingsError."""
    path = settings_file()
    return settings_of(read_toml(path), str(path)) if path.exists() else Settings()


def settings_of(table: dict[str, Any], where: str) -> Settings:
    """Convert a table to Settings. Raises SettingsError, naming the field and the file (`where`)."""
    from edgechat.base.network import lenders  # needed only if there is a file

    settings = checked(table, Settings, where)
    for kind, names in (("preset", settings.presets), ("prompt", settings.prompts)):
        for name in names:
            if fault := name_fault(name):
                shown = one_line(repr(name), 60)
                raise SettingsError(
                    f"{where}: {shown} is not a valid {kind} name. {fault}", hint=f"Rename the {kind}."
                )
    for name, remote in settings.remotes.items():
        if fault := remote_fault(name, remote):
            raise SettingsError(f"{where}: remotes.{one_line(name, 60)}: {fault}", hint="Correct the file.")
    for name, program in settings.engines.items():
        if fault := engine_fault(name, program):
            raise SettingsError(f"{where}: engines.{one_line(name, 60)}: {fault}", hint="Correct the file.")
    for server in settings.rpc:
        if lenders.rpc_address(server) is None:
            raise SettingsError(f"{where}: rpc: {lenders.rpc_refusal(server)}", hint=lenders.RPC_HINT)
    for worker in settings.workers:
        if lenders.ssh_host(worker) is None:
            raise SettingsError(f"{where}: workers: {lenders.ssh_refusal(worker)}", hint=lenders.SSH_HINT)
    return settings


def name_fault(name: str) -> str | None:
    """Return why a name for a preset or saved prompt is invalid, or None if it is valid."""
    # Every character must be visible in a terminal.
    if 0 < len(name) <= NAME_LENGTH and name.isprintable() and name == name.strip():
        return None
    return f"A name has 1 to {NAME_LENGTH} visible characters, and no spaces at its ends."


def remote_fault(name: str, remote: RemoteServer) -> str | None:
    """Return why a remote is invalid, or None if it is valid."""
    try:
        url = urlsplit(remote.url)
        is_valid = url.scheme in ("http", "https") and bool(url.hostname) and url.port != 0
    except ValueError:
        return "its url is not valid."
    if _REMOTE_NAME.fullmatch(name) is None:
        return "A name has up to 40 letters, digits, dots, dashes and underscores."
    if not is_valid or not remote.url.isprintable() or " " in remote.url:
        return "its url does not begin with http:// or https:// and a host."
    if url.username is not None or url.query or url.fragment:
        return "its url has a password, a query or a fragment; a key belongs in key or key_env."
    if remote.key is not None and remote.key_env is not None:
        return "it has both key and key_env."
    if remote.key is not None and not (0 < len(remote.key) <= 8192 and _is_header(remote.key)):
        return "its key is empty or too long, or contains characters that a key cannot have."
    return None


def engine_fault(name: str, program: EngineProgram) -> str | None:
    """Return why an engine's program is invalid, or None if it is valid."""
    names = typing.get_args(EngineName)
    if name not in names:
        return f"there is no such engine. Known engines: {', '.join(names)}."
    try:
        words = shlex.split(program.command or "a")
    except ValueError:
        return "its command has an unmatched quotation mark."
    if not words or not words[0] or any("\0" in word for word in (*words, *program.args)):
        return "its command is not valid."
    return None


def _is_header(text: str) -> bool:
    return text.isascii() and text.isprintable() and text == text.strip()


def read_toml(path: Path) -> dict[str, Any]:
    """Return the tables of a TOML file. Raises SettingsError if it cannot be read."""
    import tomllib  # 2 ms, needed only if there is a file

    try:
        return tomllib.loads(read_text(path))
    except (OSError, ValueError, RecursionError) as error:  # a number of 5000 digits raises ValueError
        why = error.strerror if isinstance(error, OSError) and error.strerror else error
        raise SettingsError(
            f"{path} cannot be read: {one_line(str(why))}.", hint=f"Correct or remove {path}."
        ) from error


def read_text(path: Path) -> str:
    """Return the text of a TOML file. Raises OSError and UnicodeDecodeError."""
    # Some editors write a byte order mark, which TOML does not allow.
    return paths.read_bytes(path, MAX_BYTES).decode("utf-8-sig")


def checked(table: dict[str, Any], kind: type[S], where: str, prefix: str = "") -> S:
    """Convert `table` to a `kind`. Raises SettingsError, naming the field and the file (`where`)."""
    with contextlib.suppress(msgspec.ValidationError):
        return msgspec.convert(table, kind)
    # Find the invalid field by converting one at a time. This is twenty times slower.
    fields = {field.name: field for field in msgspec.structs.fields(kind)}
    values: dict[str, Any] = {}
    for name, value in table.items():
        if name not in fields:
            known = [prefix + field for field in fields]
            near = difflib.get_close_matches(prefix + name, known, n=1)
            hint = f"Did you mean {near[0]}?" if near else f"Known fields: {', '.join(known)}."
            raise SettingsError(f"{where}: unknown field {one_line(prefix + name, 60)}.", hint=hint)
        values[name] = _value(value, fields[name].type, where, prefix + name)
    for name, field in fields.items():
        if field.required and name not in values:
            raise SettingsError(f"{where}: {prefix}{name} is missing.", hint=f"Add a line {prefix}{name} = …")
    return kind(**values)


def checked_value(value: Any, kind: Any) -> Any:
    """Convert a value to a field's type. Raises ValueError, listing the allowed values."""
    try:
        return msgspec.convert(value, kind)
    except msgspec.ValidationError as error:
        reason = str(error).replace(" | null", "").removesuffix(".")
        if reason.startswith("Invalid enum value") and (allowed := list(literals(kind))):
            names = [f'"{value}"' if isinstance(value, str) else str(value) for value in allowed]
            others = ", ".join(names[:-1])
            reason = "Allowed values: " + (f"{others} or {names[-1]}" if others else names[-1])
            near = difflib.get_close_matches(str(value), map(str, allowed), n=1)
            reason += f". Did you mean {near[0]}?" if near else ""
        raise ValueError(reason) from error


def literals(kind: Any) -> Iterator[Any]:
    """Yield the values in every Literal within a type."""
    if typing.get_origin(kind) is Literal:
        yield from typing.get_args(kind)
        return
    parts = typing.get_args(kind)
    for part in parts[:1] if typing.get_origin(kind) is typing.Annotated else parts:
        yield from literals(part)


def _value(value: Any, kind: Any, where: str, name: str) -> Any:
    plain = stripped(kind)
    if isinstance(value, dict):
        if isinstance(plain, type) and issubclass(plain, msgspec.Struct):
            return checked(value, plain, where, f"{name}.")
        inner = typing.get_args(plain)[1] if typing.get_origin(plain) is dict else None
        if isinstance(inner, type) and issubclass(inner, msgspec.Struct):
            return {key: _value(item, inner, where, f"{name}.{key}") for key, item in value.items()}
    try:
        return checked_value(value, kind)
    except ValueError as error:
        end = "" if str(error).endswith("?") else "."
        field = one_line(name, 80)
        shown = "…" if field.startswith("remotes.") else _shown(value)  # it may contain a key
        raise SettingsError(
            f"{where}: {field} = {shown} is not valid. {error}{end}",
            hint=f"Change {field} in {where}, or remove the line.",
        ) from error


def stripped(kind: Any) -> Any:
    """Return a type without its `Annotated` wrapper."""
    while typing.get_origin(kind) is typing.Annotated:
        kind = typing.get_args(kind)[0]
    return kind


def _shown(value: Any) -> str:
    try:
        return one_line(repr(value), 60)
    except ValueError:  # 0xfff…: Python refuses to convert very long numbers
        return "…"
