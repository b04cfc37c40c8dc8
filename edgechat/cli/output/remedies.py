"""Commands that install what is missing, for this installation and this shell."""

from __future__ import annotations

import importlib.util
import platform
import shutil
import sys

from edgechat.base.process.spawn import frozen
from edgechat.device.accelerators import Vendor
from edgechat.native.accelerators.devices import Build

DRIVERS: dict[Vendor, tuple[str, ...]] = {
    "nvidia": ("CUDA", "Vulkan"),
    "amd": ("ROCm", "Vulkan"),
    "intel": ("SYCL", "Vulkan"),
    "apple": ("MTL",),
}
"""ggml's backends for the GPUs of each vendor."""
_OPTIONS = {
    "CUDA": "GGML_CUDA",
    "ROCm": "GGML_HIP",
    "Vulkan": "GGML_VULKAN",
    "SYCL": "GGML_SYCL",
    "MTL": "GGML_METAL",
    "RPC": "GGML_RPC",
}
_TOOLKITS = {
    "CUDA": ("nvcc", "the CUDA toolkit"),
    "ROCm": ("hipcc", "ROCm"),
    "Vulkan": ("glslc", "the Vulkan SDK"),
    "MTL": ("xcrun", "Xcode's command line tools (xcode-select --install)"),
}
_ARCHIVES = {"CUDA": "cuda", "Vulkan": "vulkan"}
"""The backends with archives of their own, for x86-64 only; Metal is in every archive for Macs."""
_PACKAGE = "llama-cpp-python"


def rebuild(vendor: Vendor | None, build: Build, *, also: str | None = None) -> tuple[str, str]:
    """Return the name of the backend to build in for a vendor's GPUs ('' for none), and how to do it."""
    backend = _backend_for(vendor) if vendor else ""
    shown = {"MTL": "Metal"}.get(backend, backend)
    if frozen():
        return shown, _other_download(backend)
    backends = [name for name in _OPTIONS if name in build.backends or name in (backend, also)]
    options = " ".join(f"-D{_OPTIONS[name]}=ON" for name in backends)
    fix = install_llama(build.version, options)
    tool, toolkit = _TOOLKITS.get(backend, ("", ""))
    if tool and shutil.which(tool) is None:
        fix = f"First install {toolkit} ({tool} was not found); then:\n{fix}"
    return shown, fix


def install_llama(version: str | None = None, options: str = "") -> str:
    """Return the command that builds llama-cpp-python anew, on lines that begin with two spaces."""
    if frozen():
        return _other_download("")
    package = f"{_PACKAGE}=={version}" if version else _PACKAGE
    if importlib.util.find_spec("pip") is not None:
        command = [f"{sys.executable} -m pip install", "--force-reinstall --no-cache-dir --no-deps"]
        command.append(f"--no-binary {_PACKAGE} {package}")
    else:  # an environment made by uv has no pip
        command = [f"uv pip install --python {sys.executable}", f"--no-cache --reinstall-package {_PACKAGE}"]
        command.append(f"--no-binary-package {_PACKAGE} {package}")
    if sys.platform == "win32":
        setting = f'  $env:CMAKE_ARGS="{options}"\n' if options else ""
        return f"{setting}  {' '.join(command)}"
    return "  " + " \\\n    ".join([f'CMAKE_ARGS="{options}"', *command] if options else command)


def install(package: str, *, archive: str) -> str:
    """Return the command that installs a package, on a line that begins with two spaces.

    archive: of which archive to download instead if edgechat came as one.
    """
    if frozen():
        return f"Download edgechat again: the archive for {archive}."
    if importlib.util.find_spec("pip") is not None:
        return f"  {sys.executable} -m pip install {package}"
    return f"  uv pip install --python {sys.executable} {package}"


def _other_download(backend: str) -> str:
    """Return which archive to download, for an edgechat that came as one."""
    if backend not in _ARCHIVES:
        return "Download edgechat again: the archive for this system and CPU."
    if sys.platform == "darwin" or platform.machine().lower() not in ("x86_64", "amd64"):
        return (
            f"No archive for this system includes {backend}; edgechat installed with pip can be built with "
            "it."
        )
    return f"Download edgechat again: the archive whose name ends in -{_ARCHIVES[backend]}."


def _backend_for(vendor: Vendor) -> str:
    """Return the best backend for a vendor's GPUs, given what is installed here."""
    if vendor == "amd" and (frozen() or shutil.which("hipcc") is None):
        return "Vulkan"  # needs no ROCm, which supports few cards
    return {"nvidia": "CUDA", "amd": "ROCm", "apple": "MTL"}.get(vendor, "Vulkan")
