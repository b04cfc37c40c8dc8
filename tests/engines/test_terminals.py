"""The app and `edgechat run` in a terminal, on the real vLLM that they start."""

import json
import sys
from pathlib import Path

import psutil
import pytest

from edgechat import settings
from tests.engines.make import environment, models
from tests.engines.test_engines import FOLDER
from tests.terminal import Terminal, needs_tmux

pytestmark = [
    pytest.mark.engines,
    pytest.mark.slow,
    pytest.mark.skipif(FOLDER is None, reason="make test-engines makes what this needs"),
    pytest.mark.timeout(300),
    needs_tmux,
]


@pytest.fixture
def home_with_vllm(home):
    path = settings.settings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    command = json.dumps(str(environment(Path(FOLDER, "venv")) / "vllm"))
    path.write_text(f"[engines.vllm]\ncommand = {command}\n")
    return home


def test_the_app_goes_on_when_vllm_is_killed_in_an_answer(tmp_path, home_with_vllm):
    folder, _ = models(Path(FOLDER, "models"))
    with Terminal(tmp_path / "t", home=home_with_vllm) as terminal:
        terminal.run([sys.executable, "-m", "edgechat", "--model", f"vllm:{folder}"])
        terminal.until("started by edgechat: vLLM", 60)
        terminal.ask("Hi")
        terminal.until("Starting vLLM", 30)
        terminal.until("loading the weights", 120)
        terminal.until("Writing", 120)
        for process in terminal.processes("vllm serve"):
            process.kill()
        terminal.until("the partial answer is kept", 30)
        terminal.type("a draft")
        terminal.until("a draft")
        terminal.press("Enter")
        terminal.until("Starting vLLM", 30)
        terminal.until("Writing", 120)
        terminal.press("Escape")
        terminal.press("C-q")
        terminal.until("left with 0", 60)
        assert not terminal.processes("vllm")


def test_control_c_while_it_starts_ends_it_and_its_children(tmp_path, home_with_vllm):
    folder, _ = models(Path(FOLDER, "models"))
    with Terminal(tmp_path / "t", home=home_with_vllm) as terminal:
        terminal.run([sys.executable, "-m", "edgechat", "run", "--engine", "vllm", str(folder), "Hi"])
        terminal.until("Starting vLLM: ", 60)
        running = terminal.processes("vllm")
        assert len(running) > 1
        terminal.press("C-c")
        terminal.until("left with 130", 30)
        _, alive = psutil.wait_procs(running, timeout=10)
        assert not alive
