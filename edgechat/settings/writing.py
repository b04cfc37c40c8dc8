"""Changes settings.toml, preserving its comments, order and layout."""

from __future__ import annotations

import contextlib
import copy
import os
import tempfile
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from edgechat.base import paths
from edgechat.base.errors import SettingsError
from edgechat.base.text import one_line
from edgechat.settings.fields import Settings
from edgechat.settings.reading import read_text, read_toml, settings_file, settings_of

_LOCK_SECONDS = 5.0
"""Seconds to wait for another process that is changing the file."""


Name = str | tuple[str, ...]
"""The name of a setting, as a string or a tuple.

A string is split only at its first dot: 'context', 'sampling.top_p', 'presets.coder'. A tuple can reach more
deeply nested settings: ('presets', 'coder', 'think').
"""


def change(name: Name, value: Any) -> Settings:
    """Change one setting; see `save`."""
    return save({name: value})


def save(changes: Mapping[Any, Any]) -> Settings:
    """Save changes to settings.toml, and return all settings.

    changes: the new values, keyed by `Name`; None removes a setting. The value of a preset is a Preset or a
    table. Raises SettingsError, without changing the file, if a value is invalid or the file cannot be read
    or written.
    """
    path = settings_file()
    with _locked(path):
        before = read_toml(path) if path.exists() else {}
        wanted = copy.deepcopy(before)
        for name, value in changes.items():
            _put(wanted, name, value)
        settings = settings_of(wanted, str(path))
        if wanted != before:
            text = read_text(path) if path.exists() else ""
            _replace(path, _edited(path, text, changes, wanted))
    return settings


def _put(tables: MutableMapping[str, Any], name: Name, value: Any) -> None:
    """Set a setting in plain or tomlkit tables, or remove it if `value` is None."""
    *heads, last = _parts(name)
    for head in heads:
        if head not in tables and value is None:
            return
        inner = tables.setdefault(head, {})
        if not isinstance(inner, MutableMapping):
            raise SettingsError(f"{one_line(head, 80)} is not a table, so {_shown(name)} cannot be set.")
        # Do not use `inner` here, because tomlkit stores a copy of it.
        tables = tables[head]
    _set(tables, last, _plain(value))


def _parts(name: Name) -> list[str]:
    if isinstance(name, tuple):
        return list(name)
    head, dot, rest = name.partition(".")
    return [head, rest] if dot else [head]


def _shown(name: Name) -> str:
    return one_line(".".join(_parts(name)), 80)


def _set(table: MutableMapping[str, Any], name: str, value: Any) -> None:
    old = table.get(name)
    if isinstance(old, MutableMapping) and isinstance(value, dict):
        # Set the keys one by one, to preserve the comments between them.
        for key in {**old, **value}:
            _set(old, key, value.get(key))
    elif value is not None:
        table[name] = value
    else:
        table.pop(name, None)


def _plain(value: Any) -> Any:
    """Convert a value to TOML types: lists, and tables without None values."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {name: _plain(item) for name, item in value.items() if item is not None}
    return [_plain(item) for item in value] if isinstance(value, tuple | list) else value


def _without_empty_tables(value: Any) -> Any:
    """Return a table without empty subtables, which tomlkit does not always write."""
    if not isinstance(value, dict):
        return value
    items = {name: _without_empty_tables(item) for name, item in value.items()}
    return {name: item for name, item in items.items() if item != {}}


def _edited(path: Path, text: str, changes: Mapping[Any, Any], wanted: dict[str, Any]) -> str:
    """Return the text of the file with the changes applied. Raises SettingsError if that is not possible."""
    import tomllib

    import tomlkit  # 40 ms
    from tomlkit.exceptions import TOMLKitError

    newline = "\r\n" if "\r\n" in text else "\n"
    text = text.replace("\r\n", "\n")
    try:
        known = tomllib.loads(text)
        for name, value in changes.items():
            head, *inner = _parts(name)
            if not inner and head not in known and value is not None:
                text = _with_line(text, head, tomlkit.dumps({head: _plain(value)}))
        document = tomlkit.parse(text)
        for name, value in changes.items():
            _put(document, name, value)
        edited = tomlkit.dumps(document)
        # tomlkit damages some layouts, so check the result.
        result = tomllib.loads(edited)
        if _without_empty_tables(result) != _without_empty_tables(wanted):
            raise ValueError("the tables differ")
        if settings_of(result, "") != settings_of(wanted, ""):
            raise ValueError("the settings differ")
    except (TOMLKitError, ValueError, KeyError, TypeError, AttributeError) as error:
        names = ", ".join(map(_shown, changes))
        raise SettingsError(
            f"edgechat cannot change {path} without damaging its layout.", hint=f"Edit {names} in the file."
        ) from error
    return edited.replace("\n", newline)


def _with_line(text: str, name: str, line: str) -> str:
    """Return the text with a line inserted before the first table and any comment above it."""
    import tomllib

    lines = text.splitlines(keepends=True)
    for header in (at for at, content in enumerate(lines) if content.lstrip().startswith("[")):
        at = header
        while at and lines[at - 1].lstrip().startswith("#"):
            at -= 1
        while at and not lines[at - 1].strip():
            at -= 1
        gap = "\n" if at == header or lines[at].strip() else ""
        candidate = "".join([*lines[:at], line, gap, *lines[at:]])
        with contextlib.suppress(ValueError):  # not a table header, but a line of a longer value
            if name in tomllib.loads(candidate):
                return candidate
    return text


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    """Lock the file to prevent other processes from changing it. Raises SettingsError."""
    import filelock

    try:
        paths.config_dir().mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(".settings.lock"), timeout=_LOCK_SECONDS, mode=0o600):
            yield
    except filelock.Timeout as error:
        raise SettingsError(
            f"Another program is changing {path}.", hint="Wait until it has finished, then try again."
        ) from error
    except OSError as error:
        raise SettingsError(
            f"{path} is not writable: {error.strerror or error}.",
            hint=f"Check the free disk space and the permissions of {path.parent}.",
        ) from error


def _replace(path: Path, text: str) -> None:
    """Replace the file's contents atomically. If it is a symlink, the symlink is preserved."""
    target = Path(os.path.realpath(path))
    handle, temporary = tempfile.mkstemp(dir=target.parent, prefix=".settings-", suffix=".part")
    try:
        with open(handle, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():  # a new file keeps mkstemp's mode: readable by its owner only
            os.chmod(temporary, target.stat().st_mode & 0o7777)
        os.replace(temporary, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise
