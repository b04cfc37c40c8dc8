"""Build the llama-cpp-python that packaged programs carry: `python packaging/binary/llama.py FOLDER`.

A CPU backend is built for each generation of processors as a module beside the library, of which
`edgechat.native.ggml.start` loads the best. The first of 64 bits (x64) stays out of the program: numpy, which
is in it too, wants SSE4.2. Backends for GPUs are more such modules: where their driver is missing they do not
load, and the processor computes.
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
"""Machine code for cards since Turing (2018); older and newer ones compile it for themselves, once."""
FLAVOURS: dict[str, tuple[str, ...]] = {
    "cpu": (),
    # Metal and its shaders are built in on every Mac by the wheel itself.
    "metal": (),
    "vulkan": ("-DGGML_VULKAN=ON",),
    "cuda": ("-DGGML_CUDA=ON", f"-DCMAKE_CUDA_ARCHITECTURES={_CARDS}"),
}
"""What each adds to the processors that all of them run on."""


def cmake_args(flavour: str) -> list[str]:
    """Return what CMake is told, with CMAKE_ARGS of the environment at the end so that it wins."""
    return [
        "-DGGML_NATIVE=OFF",
        "-DGGML_BACKEND_DL=ON",
        "-DGGML_CPU_ALL_VARIANTS=ON",
        "-DGGML_RPC=ON",
        # The wheel installs no module but ggml-cpu; llama.cpp puts them all where its programs would lie.
        "-DCMAKE_INSTALL_BINDIR=llama_cpp/lib",
        "-DCMAKE_INSTALL_LIBDIR=llama_cpp/lib",
        "-DCMAKE_INSTALL_RPATH=" + ("@loader_path" if sys.platform == "darwin" else "$ORIGIN"),
        # Wheels keep no links, so a library of three names would be there three times, and be loaded twice.
        "-DCMAKE_PLATFORM_NO_VERSIONED_SONAME=ON",
        f"-DCMAKE_PROJECT_llama_cpp_INCLUDE={(_HERE / 'llama.cmake').as_posix()}",
        *FLAVOURS[flavour],
        *shlex.split(os.environ.get("CMAKE_ARGS", "")),
    ]


def pinned() -> str:
    """Return the version that was tested, as pip wants it: 'llama-cpp-python==0.3.36'."""
    found = re.search(r"^llama[-_]cpp[-_]python==(\S+)", _LOCK.read_text(encoding="utf-8"), re.MULTILINE)
    if found is None:
        raise SystemExit(f"{_LOCK} does not pin {_PACKAGE}: run `make lock`.")
    return f"{_PACKAGE}=={found.group(1)}"


def main() -> None:
    """Build it."""
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
