"""Build the llama-cpp-python for packaged programs: `python packaging/binary/llama.py FOLDER`.

For each generation of processors, a CPU backend is built as a module next to the library, and
`edgechat.native.ggml.start` loads the best one. The oldest 64-bit variant (x64) is left out, since numpy,
which is also in the program, needs SSE4.2. GPU backends are modules too: without the driver, they fail to
load and the CPU is used instead.
"""

from __future__ import annotations

import argparse
import os
import re
import shlex
import subprocess
import sys
from pathlib import Path

_HERE = Path(__file__).resolve().parent
_LOCK = _HERE.parent / "constraints.txt"
_PACKAGE = "llama-cpp-python"

_CARDS = "61-virtual;75-real;80-real;86-real;89-real;90"
"""Machine code for Turing cards (2018) and later; older and newer cards compile theirs once."""
FLAVOURS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    # The wheel includes Metal and its shaders on every Mac.
    "metal": (),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "cuda": ("-DGGML_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={_CARDS}"),
}
"""CMake options that each flavour adds to the CPU backends, which all flavours include."""


def cmake_args(flavour: str) -> list[str]:
    """Return the arguments for CMake. CMAKE_ARGS from the environment come last, so they take precedence."""
    return [
        "-DGGML_NATIVE=OFF",
        "-DGGML_BACKEND_DL=ON",
        "-DGGML_CPU_ALL_VARIANTS=ON",
        "-DGGML_RPC=ON",
        # The wheel installs only the ggml-cpu module; llama.cpp would put the others next to its executables.
        "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
        "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
        "-DCMAKE_INSTALL_RPATH=" + ("@loader_path" if sys.platform == "darwin" else "$ORIGIN"),
        # Wheels have no symlinks: a library with three names would be stored three times and loaded twice.
        "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
        f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={(_HERE / 'llama.cmake').as_posix()}",
        *FLAVOURS[flavour],
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]


def pinned() -> str:
    """Return the tested version as a pip requirement: 'llama-cpp-python==0.3.36'."""
    found = re.search(r"^llama[-_]cpp[-_]python==(\S+)", _LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{_LOCK} does not pin {_PACKAGE}: run `make lock`.")
    return f"{_PACKAGE}=={found.group(1)}"


def main() -> None:
    """Build the wheel."""
    parser = argparse.ArgumentParser(description="Build the portable wheel of llama-cpp-python.")
    parser.add_argument("folder", type=Path, help="where the wheel goes")
    parser.add_argument("--flavour", choices=FLAVOURS, default="cpu")
    options = parser.parse_args()
    command = [sys.executable, "-m", "pip", "--disable-pip-version-check", "wheel", "--no-deps"]
    command += ["--no-cache-dir", "--no-binary", _PACKAGE, "--wheel-dir", str(options.folder), pinned()]
    variables = os.environ | {"CMAKE_ARGS": shlex.join(cmake_args(options.flavour))}
    raise SystemExit(subprocess.run(command, env=variables).returncode)


if __name__ == "__main__":
    main()
