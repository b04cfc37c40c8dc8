"""Where everything in a frozen folder comes from: a distribution, Python, or the system."""

from __future__ import annotations

import contextlib
import re
import sys
import sysconfig
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from importlib import metadata
from importlib.machinery import all_suffixes
from pathlib import Path, PurePosixPath
from typing import Any

OWN = "edgechat"
BOOTLOADER = "pyinstaller"
# PyInstaller's own modules, and its names for the modules and the archive that it creates.
_OF_PYINSTALLER = re.compile(r"pyi(mod|boot)\d+_|_?pyi_|PYZ")
_SUFFIXES = tuple(sorted(all_suffixes(), key=len, reverse=True))
_NAMESPACE = 3
"""PyInstaller's PYZ_ITEM_NSPKG."""
# Where PyInstaller puts Python and its Info.plist on a Mac.
_FRAMEWORK = "Python.framework"
_SHARED = re.compile(r"\.(so(\.\d+)*|dylib|dll|pyd)$", re.IGNORECASE)


class UnknownOrigin(Exception):
    """The folder contains something of unknown origin."""


@dataclass
class Origins:
    """The contents of a frozen folder."""

    distributions: set[str] = field(default_factory=set)
    """Names, as importlib.metadata expects them."""
    of_python: set[str] = field(default_factory=set)
    """Shared libraries that came with Python, by file name."""
    of_system: set[str] = field(default_factory=set)
    """Shared libraries that were taken from the system, by file name."""


def origins(frozen: Path) -> Origins:
    """Examine a one-folder program made by PyInstaller. Raises UnknownOrigin."""
    found = Origins(distributions={OWN, BOOTLOADER})
    owners = _Owners()
    unknown: list[str] = []
    for module in _modules(frozen):
        owner = owners.of_module(module)
        if owner is not None:
            found.distributions.add(owner)
        elif not _is_pythons(module):
            unknown.append(f"the module {module}")
    for path in _files(frozen / "_internal"):
        owner = owners.of_file(path)
        if owner is not None:
            found.distributions.add(owner)
        elif _SHARED.search(path.name):
            (found.of_python if _comes_with_python(path) else found.of_system).add(path.name)
        elif path.name != "base_library.zip" and path.parts[0] != _FRAMEWORK:
            unknown.append(str(path))
    if unknown:
        raise UnknownOrigin(f"Nobody is known to have written: {', '.join(sorted(unknown))}.")
    return found


class _Owners:
    """Finds the installed distribution that a module or file belongs to."""

    def __init__(self) -> None:
        self._files: dict[str, str] = {}
        self._folders: defaultdict[str, set[str]] = defaultdict(set)
        self._modules: dict[str, str] = {}
        for one in metadata.distributions():
            name = one.name  # the property reads it from disk on each access
            for path in one.files or ():
                self._files[path.as_posix()] = name
                self._folders[path.parts[0]].add(name)
                module = _module_of(path)
                if module:
                    self._modules[module] = name

    def of_module(self, name: str) -> str | None:
        """Return the distribution that contains this module, if any."""
        if name.partition(".")[0] == OWN:
            return OWN
        # Runtime hooks are files in PyInstaller itself or in its package of contributed hooks.
        hooks = (f"PyInstaller.hooks.rthooks.{name}", f"_pyinstaller_hooks_contrib.rthooks.{name}")
        found = next((self._modules[one] for one in (name, *hooks) if one in self._modules), None)
        return found or (BOOTLOADER if _OF_PYINSTALLER.match(name) else None)

    def of_file(self, path: PurePosixPath) -> str | None:
        """Return the distribution that contains this file, else the only one in its folder, else None."""
        if path.parts[0].startswith(OWN):
            return OWN
        found = self._files.get(path.as_posix())
        if found is None and len(path.parts) > 1:
            folder = self._folders.get(path.parts[0], set())
            found = next(iter(folder)) if len(folder) == 1 else None
        return found


def _modules(frozen: Path) -> Iterator[str]:
    """Yield the names of the Python modules in the program, except its own script."""
    archive = _archive(frozen)
    for name, (*_, kind) in archive.toc.items():
        if kind == "z":
            inside = archive.open_embedded_archive(name).toc
            # A namespace package, such as opentelemetry, has no file of its own.
            yield from (module for module, (kind, *_) in inside.items() if kind != _NAMESPACE)
        elif _OF_PYINSTALLER.match(name):
            yield name


def _archive(frozen: Path) -> Any:
    """Return a CArchiveReader for the program in a folder."""
    # Imported here, so that everything else works without PyInstaller.
    from PyInstaller.archive.readers import ArchiveReadError, CArchiveReader

    for path in sorted(frozen.iterdir()):
        if path.is_file() and path.suffix in ("", ".exe"):
            with contextlib.suppress(ArchiveReadError):
                return CArchiveReader(str(path))
    raise UnknownOrigin(f"There is no program of PyInstaller in {frozen}.")


def _files(internal: Path) -> Iterator[PurePosixPath]:
    for path in sorted(internal.rglob("*")):
        if path.is_file() and not path.is_symlink():
            yield PurePosixPath(path.relative_to(internal).as_posix())


def _module_of(path: PurePosixPath) -> str | None:
    """Return the name under which a file is imported, or None."""
    suffix = next((one for one in _SUFFIXES if path.name.endswith(one)), None)
    if suffix is None:
        return None
    parts = [*path.parts[:-1], path.name.removesuffix(suffix)]
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


def _is_pythons(module: str) -> bool:
    first = module.partition(".")[0]
    return first in sys.stdlib_module_names or first.startswith("_sysconfigdata") or first == "__main__"


def _comes_with_python(path: PurePosixPath) -> bool:
    """Return True if a shared library is one of Python's extension modules or is shipped with Python."""
    if path.name.partition(".")[0] in sys.stdlib_module_names or path.name.lower().startswith("libpython"):
        return True
    base = Path(sys.base_prefix)
    if base in (Path("/usr"), Path("/usr/local")):
        return False
    folders = (base, base / "DLLs", base / "lib", Path(sysconfig.get_config_var("LIBDIR") or base))
    return any((folder / path.name).is_file() for folder in folders)
