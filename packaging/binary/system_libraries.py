"""Asks the package manager which packages the system's shared libraries come from, and under what terms."""

from __future__ import annotations

import re
import subprocess
from dataclasses import dataclass
from pathlib import Path

_DEBIAN_TEXTS = Path("/usr/share/common-licenses")

# Redistributable libraries whose terms are only published at a URL.
_REDISTRIBUTABLE = {
    r"(vcruntime|msvcp|concrt|vcomp|vccorlib)\d+.*\.dll|ucrtbase\.dll|api-ms-win-.*\.dll": (
        "Microsoft Visual C++ Runtime",
        "https://visualstudio.microsoft.com/license-terms/vs2022-cruntime/",
    ),
    r"(lib)?(cudart|cublas|cublasLt)[-_.\d]*.*": (
        "NVIDIA CUDA Runtime",
        "https://docs.nvidia.com/cuda/eula/",
    ),
}


class NoPackage(Exception):
    """No system package contains the library, or the package has no licence text."""


@dataclass(frozen=True, slots=True)
class SystemPackage:
    """A system package."""

    name: str
    version: str
    homepage: str
    text: str
    """Its full copyright notice."""


def package_of(library: str) -> SystemPackage:
    """Return the package that a shared library ("libssl.so.3") came from. Raises NoPackage."""
    for pattern, (name, terms) in _REDISTRIBUTABLE.items():
        if re.fullmatch(pattern, library, re.IGNORECASE):
            return SystemPackage(name, "", terms, f"Shipped unchanged, under its maker's terms: {terms}")
    return _debian(library) or _rpm(library) or _unknown(library)


def common_texts(text: str) -> dict[str, str]:
    """Return the licences that a Debian copyright file refers to instead of quoting, keyed by name."""
    named = set(re.findall(r"common-licenses/([\w.+-]*[\w+-])", text))
    files = {(_DEBIAN_TEXTS / name).resolve() for name in named}
    return {path.name: path.read_text(errors="replace") for path in sorted(files) if path.is_file()}


def _debian(library: str) -> SystemPackage | None:
    found = _said("dpkg-query", "--search", f"*/{library}")
    for line in found.splitlines():
        package, _, path = line.partition(": ")
        if Path(path).name != library or "diversion by" in package:
            continue
        name = package.partition(":")[0]
        text = Path("/usr/share/doc", name, "copyright")
        if not text.is_file():
            continue
        version, _, homepage = _said(
            "dpkg-query", "--show", "--showformat=${Version}\\n${Homepage}", package
        ).partition("\n")
        return SystemPackage(f"{name} (Debian)", version, homepage.strip(), text.read_text(errors="replace"))
    return None


def _rpm(library: str) -> SystemPackage | None:
    names = _said("rpm", "--query", "--whatprovides", f"{library}()(64bit)", "--queryformat", "%{NAME}\\n")
    for name in names.split():
        files = [Path(line) for line in _said("rpm", "--query", "--licensefiles", name).splitlines()]
        texts = [path.read_text(errors="replace") for path in files if path.is_file()]
        if texts:
            about = _said("rpm", "--query", "--queryformat", "%{VERSION}\\n%{URL}\\n", name).splitlines()
            return SystemPackage(f"{name} (RPM)", about[0], about[1], "\n\n".join(texts))
    return None


def _unknown(library: str) -> SystemPackage:
    raise NoPackage(f"No package of this system has {library} and a text of its licence.")


def _said(*command: str) -> str:
    """Return what a program prints, or '' if it is missing or fails."""
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    except OSError:
        return ""
    return done.stdout if done.returncode == 0 else ""
