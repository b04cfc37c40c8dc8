"""What a child pays for llama.cpp's functions."""

from __future__ import annotations

import subprocess
import sys


def printed(code: str) -> str:
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_functions_come_without_the_interface_of_llama_cpp_python() -> None:
    code = "import sys, edgechat.native.ggml; print({'jinja2', 'llama_cpp.llama', 'numpy'} & {*sys.modules})"
    assert printed(code) == "set()\n"


def test_the_interface_is_there_for_who_asks() -> None:
    code = "import edgechat.native.ggml, llama_cpp; from llama_cpp import Llama"
    version, module = printed(f"{code}; print(llama_cpp.__version__, Llama.__module__)").split()
    assert module == "llama_cpp.llama"
    assert printed("from edgechat.native.bindings import version; print(version())").strip() == version
