"""--engine in `plan`, `run` and `serve`: a program of a test in the place of vLLM."""

import json
import os
import shlex
import shutil
import sys

import pytest

from edgechat import settings
from tests.cli.running import edgechat
from tests.engine.remote.test_started import SCRIPT
from tests.kit import tiny as tiny_gguf
from tests.planner.placement.engines.test_engine_plan import folder

PROGRAM = os.environ.get("EDGECHAT_LLAMA_SERVER") or shutil.which("llama-server")
pytestmark = pytest.mark.slow


@pytest.fixture
def tiny(tmp_path):
    return folder(tmp_path / "tiny")


@pytest.fixture
def program():
    command = shlex.join([sys.executable, str(SCRIPT), "ready"])
    path = settings.settings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[engines.vllm]\ncommand = {json.dumps(command)}\n")


def test_a_program_that_is_not_installed_is_told_with_what_to_do(tiny):
    done = edgechat("run", "--engine", "sglang", tiny, "Hi", PATH="/nowhere")
    assert done.returncode == 1
    assert "SGLang is not installed" in done.stderr
    assert "uv tool install" in done.stderr
    assert "[engines.sglang]" in done.stderr


def test_a_plan_says_that_it_is_a_formula_and_shows_the_command(tiny):
    done = edgechat("plan", "--engine", "sglang", tiny, PATH="/nowhere")
    assert done.returncode == 0
    assert "calculated, not measured" in done.stdout
    assert "SGLang is not installed" in done.stdout
    assert "--served-model-name" in done.stdout
    as_json = json.loads(edgechat("plan", f"sglang:{tiny}", "--json", PATH="/nowhere").stdout)
    assert as_json["program"]["engine"] == "sglang"
    assert as_json["exact"] is None or as_json["exact"] is False


@pytest.mark.usefixtures("program")
@pytest.mark.parametrize("words", [("--engine", "vllm", "{}"), ("vllm:{}",)])
def test_a_question_is_answered_by_the_program(tiny, words):
    done = edgechat("run", *(word.format(tiny) for word in words), "Hi")
    assert (done.returncode, done.stdout) == (0, "Hello there\n"), done.stderr


def test_quant_is_for_programs_that_can_it(tiny):
    for words in (
        ("run", "--quant", "nf4", tiny, "Hi"),
        ("plan", "--engine", "vllm", "--quant", "nf4", tiny),
    ):
        done = edgechat(*words)
        assert done.returncode == 2
        assert "needs --engine transformers" in done.stderr


@pytest.mark.skipif(PROGRAM is None, reason="there is no llama-server")
def test_a_real_llama_server_runs_a_file():
    path = settings.settings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(f"[engines.llama-server]\ncommand = {json.dumps(PROGRAM)}\n")
    words = ("--max-tokens", "4", "--ctx", "512", "--json")
    done = edgechat("run", "--engine", "llama-server", str(tiny_gguf("dense")), "Hi", *words)
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["usage"]["completion_tokens"] <= 4
