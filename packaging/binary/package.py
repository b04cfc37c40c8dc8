"""Freeze edgechat and package it: `python packaging/binary/package.py [--flavour cpu]`.

Run it with the Python of an environment that has edgechat's wheel, the portable llama.cpp from `llama.py` and
PyInstaller; `make package` creates one. Leaves the folder, its archive and a checksum in dist/.
"""

from __future__ import annotations

import argparse
import gzip
import hashlib
import os
import platform
import shutil
import subprocess
import sys
import tarfile
import time
import zipfile
from pathlib import Path

import completions
import licences
import llama
import manpage
import sizes

from edgechat import __version__

_HERE = Path(__file__).resolve().parent
_ROOT = _HERE.parent.parent
_SYSTEMS = {"linux": "linux", "darwin": "macos", "win32": "windows"}
_PROCESSORS = {"amd64": "x86_64", "x86_64": "x86_64", "aarch64": "arm64", "arm64": "arm64"}
_FIRST_STAMP = 315532800  # 1980, the first date in zip files
_IMPLIED = ("cpu", "metal")
"""Flavours omitted from archive names because they are the default on their systems."""


def archive_name(flavour: str) -> str:
    """Return 'edgechat-VERSION-OS-ARCH', with a suffix such as '-cuda' for other flavours."""
    machine = platform.machine().lower()
    system, processor = _SYSTEMS.get(sys.platform, sys.platform), _PROCESSORS.get(machine, machine)
    words = ["edgechat", __version__, system, processor]
    return "-".join(words if flavour in _IMPLIED else [*words, flavour])


def freeze(work: Path) -> Path:
    """Run PyInstaller; return the folder that contains the program."""
    command = [sys.executable, "-P", "-m", "PyInstaller", "--noconfirm", "--clean", "--log-level", "WARN"]
    command += ["--workpath", str(work / "work"), "--distpath", str(work / "frozen")]
    command.append(str(_HERE.parent / "edgechat.spec"))
    # A fixed hash seed makes the order of sets, and thus the archives, reproducible.
    subprocess.run(command, check=True, cwd=work, env=os.environ | {"PYTHONHASHSEED": "1"})
    return work / "frozen" / "edgechat"


def strip(folder: Path) -> None:
    """Remove unneeded symbols from shared libraries on Linux.

    Libraries in NAME.libs are skipped: auditwheel has rearranged their sections, so `strip` would break
    them.
    """
    if sys.platform != "linux" or shutil.which("strip") is None:
        return
    for path in folder.rglob("*.so*"):
        if not path.is_symlink() and path.parent.suffix != ".libs":
            subprocess.run(["strip", "--strip-unneeded", str(path)], check=True)


def furnish(folder: Path) -> None:
    """Add the documents, man pages and completions to the frozen program's folder."""
    shutil.copy(_ROOT / "LICENSE", folder)
    shutil.copy(_HERE / "README.md", folder)
    manpage.write_pages(folder / "man")
    completions.write_completions(folder / "completions")
    licences.write_licences(folder, folder / "LICENCES.txt")


def pack(folder: Path) -> Path:
    """Return a reproducible archive of a folder: a .zip on Windows, a .tar.gz elsewhere."""
    stamp = int(os.environ["SOURCE_DATE_EPOCH"])
    files = sorted(folder.rglob("*"))
    if sys.platform == "win32":
        archive = folder.with_name(f"{folder.name}.zip")
        with zipfile.ZipFile(archive, "w", zipfile.ZIP_DEFLATED) as packed:
            for path in (path for path in files if path.is_file()):
                entry = zipfile.ZipInfo(path.relative_to(folder.parent).as_posix(), time.gmtime(stamp)[:6])
                entry.compress_type = zipfile.ZIP_DEFLATED
                with path.open("rb") as file, packed.open(entry, "w", force_zip64=True) as out:
                    shutil.copyfileobj(file, out)
        return archive

    def anonymous(entry: tarfile.TarInfo) -> tarfile.TarInfo:
        entry.uid = entry.gid = 0
        entry.uname = entry.gname = ""
        entry.mtime = stamp
        entry.mode = 0o755 if entry.isdir() or entry.mode & 0o100 else 0o644  # regardless of the umask
        return entry

    archive = folder.with_name(f"{folder.name}.tar.gz")
    with gzip.GzipFile(archive, "wb", 9, mtime=stamp) as out, tarfile.open(fileobj=out, mode="w") as packed:
        for path in [folder, *files]:
            packed.add(path, path.relative_to(folder.parent), recursive=False, filter=anonymous)
    return archive


def _time() -> int:
    """Return the Unix timestamp to give all files: SOURCE_DATE_EPOCH, or the time of the last commit."""
    command = ["git", "-C", str(_ROOT), "log", "-1", "--format=%ct"]
    last = subprocess.run(command, capture_output=True, text=True).stdout.strip()  # '' without git
    return max(int(os.environ.get("SOURCE_DATE_EPOCH") or last or 0), _FIRST_STAMP)


def main() -> None:
    """Freeze the program, add files and pack it; print its largest parts."""
    parser = argparse.ArgumentParser(description="Make the archive of the packaged program.")
    parser.add_argument("--flavour", choices=llama.FLAVOURS, default="cpu")
    parser.add_argument("--where", action="store_true", help="only print where the program is or would be")
    options = parser.parse_args()
    work = _ROOT / "build" / "package" / options.flavour
    folder = _ROOT / "dist" / archive_name(options.flavour)
    if options.where:
        print(folder / ("edgechat.exe" if sys.platform == "win32" else "edgechat"))
        return
    os.environ["SOURCE_DATE_EPOCH"] = str(_time())
    work.mkdir(parents=True, exist_ok=True)
    folder.parent.mkdir(exist_ok=True)
    shutil.rmtree(folder, ignore_errors=True)
    shutil.move(freeze(work), folder)
    strip(folder)
    furnish(folder)
    archive = pack(folder)
    with archive.open("rb") as file:
        checksum = hashlib.file_digest(file, "sha256").hexdigest()
    line = f"{checksum}  {archive.name}\n"
    archive.with_name(f"{archive.name}.sha256").write_text(line, encoding="ascii", newline="\n")
    print(sizes.report(folder))
    print(f"{archive.stat().st_size / 1e6:7.1f}  MB packed: {archive.relative_to(_ROOT)}")


if __name__ == "__main__":
    main()
