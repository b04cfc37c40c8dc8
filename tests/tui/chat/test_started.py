"""The app on a model that a program runs which edgechat starts: it answers, shows its log, and ends."""

import json
import shlex
import sys

import psutil
import pytest

from edgechat import settings
from edgechat.chat.session import SessionServices
from edgechat.tui.app import EdgechatApp, StartOptions
from tests.engine.remote.test_started import SCRIPT, processes
from tests.planner.placement.engines.test_engine_plan import folder
from tests.tui.driving import driven, stored_turns
from tests.tui.libraries import Fake

pytestmark = pytest.mark.slow


async def test_it_answers_and_ends_with_the_app(tmp_path):
    path = settings.settings_file()
    path.parent.mkdir(parents=True, exist_ok=True)
    command = json.dumps(shlex.join([sys.executable, str(SCRIPT), "ready", "--delay", "2"]))
    path.write_text(f"[engines.vllm]\ncommand = {command}\n")
    services, model = SessionServices.real(), folder(tmp_path / "tiny")
    app = EdgechatApp(StartOptions(f"vllm:{model}"), services=services, library=Fake(rows=[]).library())
    async with driven(app, size=(110, 40)) as pilot:
        await pilot.see("started by edgechat: vLLM", shown="What you write stays on this machine.")
        await pilot.ask("What are you?", see="Starting vLLM, ")
        await pilot.see("Hello there")
        scripts = [one for one in map(psutil.Process, processes()) if str(SCRIPT) in one.cmdline()]
        assert len(scripts) == 1
        await pilot.press("ctrl+g", see="environment:")
        await pilot.app.action_quit()
    _gone, alive = psutil.wait_procs(scripts, timeout=20)
    assert not alive
    turns = await stored_turns(services.store_path())
    assert [turn.content for turn in turns] == ["What are you?", "Hello there"]
