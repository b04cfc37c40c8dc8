"""Which backend runs a model: what is available, what was requested, when llama.cpp and MLX are compared.

llama.cpp reads GGUF files and MLX its own folders, so choosing a backend is choosing among files. They are
compared only if MLX has a GPU, which is on Apple Silicon; elsewhere MLX runs only models without a GGUF file.
"""

from __future__ import annotations

import platform
import sys
from collections.abc import Sequence

from edgechat.base.errors import BackendMissing
from edgechat.base.process.spawn import frozen
from edgechat.base.text import one_line
from edgechat.device.mlx import missing
from edgechat.device.profile import DeviceProfile
from edgechat.planner.ranking.candidates import Variant
from edgechat.planner.request import PlanRequest
from edgechat.settings import Backend

_PACKAGES = {
    ("darwin", "arm64"): "mlx-lm",
    ("linux", "x86_64"): "'mlx[cpu]' mlx-lm",
    ("linux", "aarch64"): "'mlx[cpu]' mlx-lm",
}


def weighs_mlx(profile: DeviceProfile, request: PlanRequest) -> bool:
    """Return whether MLX models of the catalogue are considered although none was named."""
    if request.backend is not None:
        return request.backend == "mlx"
    if request.prefers is not None:
        return request.prefers == "mlx" and profile.mlx
    return profile.mlx_card is not None


def runnable(files: Sequence[Variant], profile: DeviceProfile, request: PlanRequest) -> list[Variant]:
    """Return the files of one model that can run here, at least one. Raises BackendMissing."""
    if request.backend == "mlx" and not profile.mlx:
        raise without_mlx("MLX is not available.")
    if request.backend is not None:
        chosen = [file for file in files if file.backend == request.backend]
        if files and not chosen:
            raise _unreadable(files[0], request.backend)
        return chosen
    usable = [file for file in files if profile.mlx or file.backend != "mlx"]
    if files and not usable:
        raise without_mlx(f"{one_line(files[0].model)} is an MLX model, and MLX is not available.")
    if weighs_mlx(profile, request) and request.prefers is None:
        return usable
    first = request.prefers or "llama.cpp"
    return [file for file in usable if file.backend == first] or usable


def without_mlx(what: str) -> BackendMissing:
    """Return the error for MLX that is not installed."""
    hint = "MLX is for Macs with Apple Silicon (and, slowly, Linux). Use a GGUF file of the model."
    wanted = _PACKAGES.get((sys.platform, platform.machine()))
    if wanted is not None and not frozen():
        hint = f"Install it, or use a GGUF file of the model:\n  {sys.executable} -m pip install {wanted}"
    return BackendMissing(f"{what} {missing() or 'It is not installed.'}", hint=hint)


def _unreadable(file: Variant, backend: Backend) -> BackendMissing:
    """Return the error for a file that a backend does not read."""
    name = one_line(file.model)
    if backend == "llama.cpp":
        hint = "Omit --backend llama.cpp, or use a GGUF file of the model."
        return BackendMissing(f"{name} is an MLX model, which llama.cpp cannot load.", hint=hint)
    hint = "To run it with llama.cpp, omit --backend mlx"
    if file.entry is not None and file.entry.mlx:
        hint = f"To download an MLX version: edgechat pull {file.entry.name} --backend mlx"
    return BackendMissing(
        f"{name} is not an MLX model (a folder with safetensors), and there is none of it on this machine.",
        hint=hint,
    )
