"""`packaging/install.py`: pip with progress, and with reasons."""

import importlib.util
import os
import subprocess
import sys
from pathlib import Path

import pytest

SCRIPT = Path(__file__).parents[2] / "packaging" / "install.py"


@pytest.fixture(scope="module")
def install():
    spec = importlib.util.spec_from_file_location("install", SCRIPT)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize(
    ("line", "said"),
    [
        (
            "  [37/141] Building CXX object vendor/llama.cpp/src/CMakeFiles/llama.dir/llama-vocab.cpp.o",
            "compiling llama.cpp, 37 of 141: llama-vocab.cpp",
        ),
        (
            "  [1/142] /usr/bin/g++ -O3 -MF x/ggml.cpp.o.d -o x/ggml.cpp.o -c /tmp/a.b/ggml.cpp",
            "compiling llama.cpp, 1 of 142: ggml.cpp",
        ),
        (r"[2/9] Building C object ggml\src\ggml.dir\ggml.c.obj", "compiling llama.cpp, 2 of 9: ggml.c"),
        ("Collecting textual==8.3.0 (from edgechat==0.1.0)", "downloading textual"),
        (
            "  Downloading numpy-2.3.5-cp311.whl (16 MB)",
            "downloading numpy-2.3.5-cp311.whl",
        ),
        ("  [140/141] Linking CXX shared library bin/libllama.so", None),
        ("Requirement already satisfied: psutil", None),
    ],
)
def test_progress_is_told(install, line, said):
    assert install.progress(line) == said


@pytest.mark.parametrize(
    ("output", "words"),
    [
        ("CMake Error: CMAKE_CXX_COMPILER not set, after EnableLanguage", "no C++ compiler"),
        ("could not find any instance of Visual Studio.", "no C++ compiler"),
        ("c++: fatal error: Killed signal terminated program cc1plus", "CMAKE_BUILD_PARALLEL_LEVEL=1"),
        ("ERROR: Could not install packages: [Errno 28] No space left on device", "disk is full"),
        ("  CMake 3.21 or higher is required.  You are running version 3.16.3", "install cmake ninja"),
        ("x.cpp:3:1: error: expected unqualified-id\nninja: build stopped", "expected unqualified-id"),
        ("", "did not say why"),
    ],
)
def test_a_failure_is_explained(install, output, words):
    assert words in install.explain(output)


def test_without_a_network_it_ends_in_a_sentence(tmp_path):
    without_pip = {name: value for name, value in os.environ.items() if not name.startswith("PIP_")}
    done = subprocess.run(
        [sys.executable, SCRIPT, "--index-url", "http://127.0.0.1:9/simple", "--retries", "0", "six==0.0.1"],
        cwd=tmp_path,
        env=without_pip | {"PIP_CONFIG_FILE": os.devnull},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "The installation failed. The package index cannot be reached." in done.stderr
    assert "127.0.0.1" in (tmp_path / "build" / "install.log").read_text()
    assert not done.stdout
