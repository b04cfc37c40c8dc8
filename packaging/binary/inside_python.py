"""Third-party libraries that Python contains or ships with, but whose licence texts it does not include.

Standalone builds, which uv installs and from which the Linux releases are frozen, have all of them linked in.
Other builds contain Expat and mpdecimal from Python's own sources, and any libraries shipped next to them.
"""

from __future__ import annotations

import re
import sys
import sysconfig
from collections.abc import Iterator, Set
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Library:
    """A library that one of Python's modules needs."""

    name: str
    licence: str
    homepage: str
    text: str
    """The name of its licence file in licence_texts."""
    module: str
    """The module that needs it."""
    files: str
    """Pattern for its file name, if it is a shared library."""
    copyright: str = ""
    """The copyright holders, if the licence text does not name them."""
    in_sources: bool = False
    """Whether Python's sources include it and use it by default."""


_OPENSSL = (
    "Copyright (c) 1998-2025 The OpenSSL Project Authors. "
    "Copyright (c) 1995-1998 Eric A. Young, Tim J. Hudson. All rights reserved."
)
LIBRARIES = (
    Library("bzip2", "bzip2-1.0.6", "https://sourceware.org/bzip2", "bzip2.txt", "_bz2", "(lib)?bz2"),
    Library(
        "Expat",
        "MIT",
        "https://libexpat.github.io",
        "expat.txt",
        "pyexpat",
        "(lib)?expat",
        in_sources=True,
    ),
    Library("libedit", "BSD-3-Clause", "https://thrysoee.dk/editline", "libedit.txt", "readline", "libedit"),
    Library("libffi", "MIT", "https://sourceware.org/libffi", "libffi.txt", "_ctypes", "libffi"),
    Library(
        "libuuid",
        "BSD-3-Clause",
        "https://sourceforge.net/projects/libuuid",
        "libuuid.txt",
        "_uuid",
        "libuuid",
    ),
    Library(
        "mpdecimal",
        "BSD-2-Clause",
        "https://www.bytereef.org/mpdecimal",
        "mpdecimal.txt",
        "_decimal",
        "libmpdec",
        in_sources=True,
    ),
    Library(
        "ncurses",
        "X11-distribute-modifications-variant",
        "https://invisible-island.net/ncurses",
        "ncurses.txt",
        "_curses",
        "lib(ncurses|panel|tinfo)w?",
    ),
    Library(
        "OpenSSL",
        "Apache-2.0",
        "https://www.openssl.org",
        "Apache-2.0.txt",
        "_ssl",
        "lib(ssl|crypto)",
        _OPENSSL,
    ),
    Library("SQLite", "blessing", "https://sqlite.org", "sqlite.txt", "_sqlite3", "(lib)?sqlite3"),
    Library("xz (liblzma)", "0BSD", "https://tukaani.org/xz", "xz.txt", "_lzma", "(lib)?lzma"),
    Library("zlib", "Zlib", "https://zlib.net", "zlib.txt", "zlib", "(libz|zlib1)"),
    Library("zstd", "BSD-3-Clause", "https://facebook.github.io/zstd", "zstd.txt", "_zstd", "(lib)?zstd"),
)


def is_standalone() -> bool:
    """Return True if this Python is a python-build-standalone build, which links everything in."""
    return bool(sysconfig.get_config_var("PYTHON_BUILD_STANDALONE"))


def libraries_inside(of_python: Set[str], of_system: Set[str]) -> Iterator[Library]:
    """Yield the libraries inside a frozen Python.

    of_python: names of the files that came with Python. of_system: names of the files that came from the
    system; the licence texts of their packages cover those.
    """
    standalone = is_standalone()
    for one in LIBRARIES:
        if one.module not in sys.stdlib_module_names:  # not available in this version of Python
            continue
        pattern = re.compile(rf"{one.files}\b", re.IGNORECASE)
        beside = any(map(pattern.match, of_python))
        own = one.in_sources and _has(one.module, of_python) and not any(map(pattern.match, of_system))
        if standalone or beside or own:
            yield one


def with_copyleft(of_python: Set[str]) -> list[str]:
    """Return what must not be shipped: a standalone Python's _dbm contains Berkeley DB, which is copyleft."""
    names = [name for name in of_python if is_standalone() and name.startswith("_dbm.")]
    return [f"Berkeley DB, which is in {name} (packaging/edgechat.spec can exclude _dbm)" for name in names]


def _has(module: str, of_python: Set[str]) -> bool:
    return module in sys.builtin_module_names or any(name.partition(".")[0] == module for name in of_python)
