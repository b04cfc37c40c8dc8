"""Run `pip install` with a progress line: `python packaging/install.py -e .`, with pip's options.

pip prints nothing during the minutes it takes to compile llama.cpp, and prints everything if that fails.
This script shows what is being compiled and how far it has got. If compiling fails, it shows the cause and a
command that may help.
"""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
import time
from pathlib import Path

LOG = Path("build") / "install.log"
_STEP = re.compile(r"\[(\d+)/(\d+)\] ")
_SOURCE = re.compile(r"([\w.-]+\.(?:c|cc|cpp|cxx|mm?|cu))(?!\w)")
_COLLECTED = re.compile(r"(?:Collecting|Downloading) ([^\s/;=<>~!\[(]+)")
_QUIET = 15.0
"""Seconds between progress lines if the output is not a terminal."""
_LAST = 5
"""Number of lines to show from an error that is not in `_CAUSES`."""

_COMPILERS = {
    "apt-get": "sudo apt install build-essential",
    "dnf": "sudo dnf install gcc-c++ make",
    "pacman": "sudo pacman -S base-devel",
    "zypper": "sudo zypper install gcc-c++ make",
    "apk": "sudo apk add build-base linux-headers",
    "xcode-select": "xcode-select --install",
    "winget": 'winget install Microsoft.VisualStudio.2022.BuildTools --override "--add '
    'Microsoft.VisualStudio.Workload.VCTools --passive"',
}
"""Commands that install a compiler, keyed by the program they need."""
_CAUSES: tuple[tuple[str, str, str], ...] = (
    (
        r"No space left on device|Errno 28",
        "The disk is full.",
        "Free 2 GB, then run the same command again: it goes on where it stopped.",
    ),
    (
        r"fatal error: Killed|cannot allocate memory|virtual memory exhausted|out of memory",
        "The memory was too small to compile two files at once.",
        "CMAKE_BUILD_PARALLEL_LEVEL=1 make run",
    ),
    (
        r"No CMAKE_C(XX)?_COMPILER could be found|CMAKE_C(XX)?_COMPILER not set|instance of Visual Studio",
        "There is no C++ compiler, which llama.cpp needs.",
        "{compiler}",
    ),
    (
        r"from versions: none|NewConnectionError|ConnectTimeout|Name or service not known|nodename nor"
        r"|Temporary failure in name|ProxyError|Connection refused|Network is unreachable|getaddrinfo failed",
        "The package index cannot be reached.",
        "Connect to a network and run the same command again: what was downloaded and compiled is kept.",
    ),
    (
        r"CMake [\d.]+ or higher is required|Could not find CMake",
        "CMake is missing or too old.",
        "{python} -m pip install cmake ninja",
    ),
)
"""Patterns in pip's output, the causes they point to, and the command to run next."""


def progress(line: str) -> str | None:
    """Return the progress that a line of pip's output reports, if any."""
    if (step := _STEP.search(line)) and (sources := _SOURCE.findall(line)):
        return f"compiling llama.cpp, {step[1]} of {step[2]}: {sources[-1]}"
    if found := _COLLECTED.match(line.strip()):
        return f"downloading {found[1]}"
    return None


def explain(output: str) -> str:
    """Return why pip failed and what to run next, or pip's last error lines if the cause is unknown."""
    for pattern, cause, command in _CAUSES:
        if re.search(pattern, output, re.IGNORECASE):
            return f"{cause}\n  {command.format(compiler=_compiler(), python=sys.executable)}"
    lines = [line.strip() for line in output.splitlines() if re.search(r"\berror\b", line, re.IGNORECASE)]
    return "\n".join(lines[-_LAST:]) or "pip did not say why."


def _compiler() -> str:
    """Return the command that installs a compiler on this system."""
    known = (command for program, command in _COMPILERS.items() if shutil.which(program))
    return next(known, "Install GCC or Clang with C++17.")


def main() -> int:
    """Run pip; return its exit code."""
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "-v", *sys.argv[1:]]
    in_terminal = sys.stderr.isatty()
    begun = said = time.monotonic()
    LOG.parent.mkdir(exist_ok=True)
    with (
        LOG.open("w", encoding="utf-8") as log,
        subprocess.Popen(
            command,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            errors="replace",
            env=os.environ | {"PYTHONUNBUFFERED": "1"},
        ) as pip,
    ):
        assert pip.stdout is not None
        for line in pip.stdout:
            log.write(line)
            now = time.monotonic()
            if (what := progress(line)) is None or (not in_terminal and now < said + _QUIET):
                continue
            said = now
            text = f"  {int(now - begun) // 60}:{int(now - begun) % 60:02d}  {what}"
            width = shutil.get_terminal_size().columns - 1
            print(f"\r{text[:width]:<{width}}" if in_terminal else text, end="", file=sys.stderr)
            print(end="" if in_terminal else "\n", file=sys.stderr, flush=True)
    if in_terminal:
        print("\r\x1b[K", end="", file=sys.stderr, flush=True)
    if pip.returncode:
        output = LOG.read_text(encoding="utf-8", errors="replace")
        print(f"The installation failed. {explain(output)}\nAll that pip said: {LOG}", file=sys.stderr)
    return pip.returncode


if __name__ == "__main__":
    try:
        code = main()
    except KeyboardInterrupt:
        code = 130
    raise SystemExit(code)
