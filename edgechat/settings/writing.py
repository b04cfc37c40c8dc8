"""Changing settings.toml while keeping its comments, order and layout."""

from __future__ import annotations

import contextlib
import os
import tempfile
import tomllib
from collections.abc import Iterator, Mapping, MutableMapping
from pathlib import Path
from typing import Any

import msgspec

from edgechat.base import paths
from edgechat.base.errors import SettingsError
from edgechat.base.text import one_line
from edgechat.settings.fields import Settings
from edgechat.settings.reading import read_text, read_toml, settings_file, settings_of

_PATIENCE = 5.0
"""Seconds to wait for another process that is changing the file."""


Name = str | tuple[str, ...]
"""Of a setting: as in the file, where all after the first dot is one name ('context', 'sampling.top_p',
'presets.coder'), or in parts: ('presets', 'coder', 'think')."""


def change(name: Name, value: Any) -> Settings:
    """Change one setting: `save` with one."""
    return save({name: value})


def save(changes: Mapping[Any, Any]) -> Settings:
    """Write settings, by their `Name`, to settings.toml, and return what holds now. None takes one out.

    The value of a preset is a Preset or a table. All are written or none: raises SettingsError, and the file
    is as it was, for a value that makes no sense, a file that cannot be read, and one that cannot be written.
    """
    path = settings_file()
    with _alone(path):
        before = read_toml(path) if path.exists() else {}
        wanted = _copied(before)
        for name, value in changes.items():
            _put(wanted, name, value)
        said = settings_of(wanted, str(path))
        if wanted != before:
            text = read_text(path) if path.exists() else ""
            _replace(path, _edited(path, text, changes, wanted))
    return said


def _put(tables: MutableMapping[str, Any], name: Name, value: Any) -> None:
    """Set one setting in a document, or in the plain tables; None removes it."""
    *heads, last = _parts(name)
    for head in heads:
        if head not in tables and value is None:
            return
        inner = tables.setdefault(head, {})
        if not isinstance(inner, MutableMapping):
            raise SettingsError(f"{one_line(head, 80)} is not a table, so {_shown(name)} cannot be set.")
        # Not `inner`: of what tomlkit takes in it makes a table of its own.
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
        # Value by value, for the comments between them.
        for one in {**old, **value}:
            _set(old, one, value.get(one))
    elif value is not None:
        table[name] = value
    else:
        table.pop(name, None)


def _plain(value: Any) -> Any:
    """Return a value as TOML types: tables without None values, lists."""
    if isinstance(value, msgspec.Struct):
        value = msgspec.to_builtins(value)
    if isinstance(value, Mapping):
        return {name: _plain(one) for name, one in value.items() if one is not None}
    return [_plain(one) for one in value] if isinstance(value, tuple | list) else value


def _copied(value: Any) -> Any:
    return {name: _copied(one) for name, one in value.items()} if isinstance(value, dict) else value


def _full(value: Any) -> Any:
    """Return tables without empty tables, which tomlkit writes only sometimes."""
    if not isinstance(value, dict):
        return value
    found = {name: _full(one) for name, one in value.items()}
    return {name: one for name, one in found.items() if one != {}}


def _edited(path: Path, text: str, changes: Mapping[Any, Any], wanted: dict[str, Any]) -> str:
    """Return the text of the file with the changes. Raises SettingsError if that is not possible."""
    import tomlkit  # 40 ms, and only who changes something needs it
    from tomlkit.exceptions import TOMLKitError

    ends = "\r\n" if "\r\n" in text else "\n"
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
        made = tomlkit.dumps(document)
        # What it must say is known: a shape that tomlkit gets wrong is found out here, and left alone.
        found = tomllib.loads(made)
        right = _full(found) == _full(wanted) and settings_of(found, "") == settings_of(wanted, "")
    except (TOMLKitError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise _by_hand(path, changes) from error
    if not right:
        raise _by_hand(path, changes)
    return made.replace("\n", ends)


def _with_line(text: str, name: str, line: str) -> str:
    """Return a file with a line before its first table, and before the comment that belongs to that table."""
    lines = text.splitlines(keepends=True)
    for header in (at for at, one in enumerate(lines) if one.lstrip().startswith("[")):
        at = header
        while at and lines[at - 1].lstrip().startswith("#"):
            at -= 1
        while at and not lines[at - 1].strip():
            at -= 1
        gap = "\n" if at == header or lines[at].strip() else ""
        candidate = "".join([*lines[:at], line, gap, *lines[at:]])
        with contextlib.suppress(ValueError):  # that was no table, but a line of a longer value
            if name in tomllib.loads(candidate):
                return candidate
    return text


def _by_hand(path: Path, changes: Mapping[Any, Any]) -> SettingsError:
    names = ", ".join(map(_shown, changes))
    return SettingsError(
        f"edgechat cannot change {path} without damaging its layout.",
        hint=f"Edit {names} in the file.",
    )


@contextlib.contextmanager
def _alone(path: Path) -> Iterator[None]:
    """Lock the file against changes by other processes. Raises SettingsError."""
    import filelock

    try:
        paths.config_dir().mkdir(parents=True, exist_ok=True)
        with filelock.FileLock(path.with_name(".settings.lock"), timeout=_PATIENCE, mode=0o600):
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
    """Replace the file's text atomically; a symbolic link is kept."""
    target = Path(os.path.realpath(path))
    handle, draft = tempfile.mkstemp(dir=target.parent, prefix=".settings-", suffix=".part")
    try:
        with open(handle, "wb") as stream:
            stream.write(text.encode())
            stream.flush()
            os.fsync(stream.fileno())
        if target.exists():  # a new file keeps mkstemp's mode: nobody else's to read
            os.chmod(draft, target.stat().st_mode & 0o7777)
        os.replace(draft, target)
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(draft)
        raise
