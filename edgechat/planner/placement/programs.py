"""Programs that edgechat can start to run a model: where they are, and how to start them."""

from __future__ import annotations

import os
import shlex
import shutil
import sys
import typing
from collections.abc import Mapping
from dataclasses import dataclass

from edgechat import settings
from edgechat.base.errors import EngineMissing
from edgechat.base.network.offline import offline_by
from edgechat.base.text import one_line
from edgechat.settings import EngineName, EngineProgram, Settings

ENGINES: tuple[EngineName, ...] = typing.get_args(EngineName)
_HUB = ("HF_HOME", "HF_HUB_CACHE", "HUGGINGFACE_HUB_CACHE", "HF_ENDPOINT", "HF_TOKEN", "XDG_CACHE_HOME")
_NETWORK = ("HTTP_PROXY", "HTTPS_PROXY", "NO_PROXY", "http_proxy", "https_proxy", "no_proxy", "SSL_CERT_FILE")
_CARDS = ("CUDA_VISIBLE_DEVICES", "CUDA_HOME", "HIP_VISIBLE_DEVICES", "ROCR_VISIBLE_DEVICES")
_OFFLINE = {"HF_HUB_OFFLINE": "1", "TRANSFORMERS_OFFLINE": "1", "UV_OFFLINE": "1"}
_NO_REPORTS = {"DO_NOT_TRACK": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}


@dataclass(frozen=True, slots=True)
class ProgramFacts:
    """What edgechat knows about a program."""

    label: str
    executable: str
    subcommand: tuple[str, ...]
    install: str
    packages: tuple[str, ...] = ()
    """Packages for `uvx`; empty for programs not written in Python."""
    key_variable: str = ""
    """The environment variable that holds the API key, or '' if there is none."""


PROGRAMS: Mapping[EngineName, ProgramFacts] = {
    "vllm": ProgramFacts(
        "vLLM", "vllm", ("serve",), "uv tool install vllm", ("vllm",), key_variable="VLLM_API_KEY"
    ),
    "sglang": ProgramFacts("SGLang", "sglang", ("serve",), 'uv tool install "sglang[all]"', ("sglang[all]",)),
    "transformers": ProgramFacts(
        "Transformers",
        "transformers",
        ("serve",),
        'pip install "edgechat[torch]"',
        ("transformers[serving]", "torch", "accelerate"),
    ),
    "llama-server": ProgramFacts(
        "llama-server",
        "llama-server",
        (),
        "brew install llama.cpp, or https://github.com/ggml-org/llama.cpp/releases",
        key_variable="LLAMA_API_KEY",
    ),
}


def split_engine(model: str) -> tuple[EngineName | None, str]:
    """Split a name of the form ENGINE:MODEL into engine and model. For other names, the engine is None."""
    head, colon, rest = model.partition(":")
    engine = next((name for name in ENGINES if name == head), None)
    return (engine, rest) if engine is not None and colon and rest else (None, model)


def effective(engine: EngineName) -> tuple[str, ...]:
    """Return the fields of a `PlanRequest` that have an effect if a program runs the model."""
    if engine == "llama-server":  # uses the plan that edgechat made for itself
        return ("context", "anyway", "vision", "threads")
    return ("context", "anyway")


def start_of(engine: EngineName, config: Settings) -> tuple[str, ...]:
    """Return the first part of a program's command line. Raises EngineMissing."""
    facts, own = PROGRAMS[engine], config.engines.get(engine, EngineProgram())
    if own.command is not None:
        first, *rest = shlex.split(own.command)
        found = shutil.which(os.path.expanduser(first))
        if found is None:
            raise EngineMissing(
                f"{one_line(first, 200)} does not exist, or is not a program.",
                hint=f"Correct `command` under [engines.{engine}] in {settings.settings_file()}.",
            )
        return (found, *(rest or facts.subcommand))
    # edgechat[torch] is installed in edgechat's environment, which may not be on the PATH.
    found = shutil.which(facts.executable) or shutil.which(
        facts.executable, path=os.path.dirname(sys.executable)
    )
    if found is not None:
        return (found, *facts.subcommand)
    uvx = shutil.which("uvx")
    if uvx is not None and facts.packages:
        package, *others = facts.packages
        beside = [word for other in others for word in ("--with", other)]
        return (uvx, "--from", package, *beside, facts.executable, *facts.subcommand)
    raise EngineMissing(
        f"{facts.label} is not installed, as far as edgechat can see: there is no {facts.executable} on the "
        "PATH.",
        hint=f"To install it: {facts.install}\n  If it is elsewhere, say where in "
        f'{settings.settings_file()}:\n  [engines.{engine}]\n  command = "/path/to/{facts.executable}"',
    )


def is_uvx(start: tuple[str, ...]) -> bool:
    """Return whether the program is run by `uvx`, which downloads it the first time."""
    return os.path.basename(start[0]).removesuffix(".exe") == "uvx"


def variables_of(engine: EngineName, config: Settings) -> tuple[str, ...]:
    """Return the names of the environment variables that a program inherits."""
    own = config.engines.get(engine, EngineProgram()).env
    return (*_CARDS, "LD_LIBRARY_PATH", *(() if is_offline(config) else _NETWORK), *_HUB, *own)


def settings_of(engine: EngineName, config: Settings) -> dict[str, str]:
    """Return the environment variables to set for a program."""
    return {
        **_NO_REPORTS,
        **({"VLLM_NO_USAGE_STATS": "1"} if engine == "vllm" else {}),
        **(_OFFLINE if is_offline(config) else {}),
    }


def is_offline(config: Settings) -> bool:
    """Return whether programs must not use the network."""
    return config.offline or offline_by() is not None
