"""`edgechat launch`: a program of the user's, a server for it, and nothing left when it ends."""

import dataclasses
import json
import os
import signal
import stat
import subprocess
import sys
import time
from pathlib import Path

import psutil
import pytest

from edgechat.cli.agents import AGENTS, ServerAddress
from tests import scripted
from tests.cli.running import EDGECHAT, complaint, edgechat

pytestmark = pytest.mark.slow

ADDRESS = ServerAddress("http://127.0.0.1:9", "ek-secret", "a model", 16384)
AGENT = """#!{python}
import json, os, sys, urllib.request
base, key = os.environ["OPENAI_API_BASE"], os.environ["OPENAI_API_KEY"]
model = sys.argv[sys.argv.index("--model") + 1].removeprefix("openai/")
metadata = json.load(open(sys.argv[sys.argv.index("--model-metadata-file") + 1]))
body = {{"model": model, "messages": [{{"role": "user", "content": "Hi"}}]}}
head = {{"Content-Type": "application/json", "Authorization": "Bearer " + key}}
request = urllib.request.Request(base + "/chat/completions", json.dumps(body).encode(), head)
answer = urllib.request.urlopen(request)
print(json.load(answer)["choices"][0]["message"]["content"], *sys.argv[-2:], len(metadata))
sys.stdout.flush()
if "--stay" in sys.argv:
    import time
    time.sleep(60)
sys.exit(7)
"""


@pytest.fixture
def model(tmp_path):
    return scripted.write(tmp_path / "little.gguf", reply="Hello there.")


@pytest.fixture
def path(tmp_path):
    """A PATH with an agent in front."""
    folder = tmp_path / "bin"
    folder.mkdir()
    program = folder / "aider"
    program.write_text(AGENT.format(python=sys.executable))
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return f"{folder}{os.pathsep}{os.environ['PATH']}"


def servers():
    return [
        process.pid
        for process in psutil.process_iter(["cmdline"])
        if "serve" in (process.info["cmdline"] or ()) and "little.gguf" in " ".join(process.info["cmdline"])
    ]


def test_an_agent_has_its_server_while_it_runs(model, path, tmp_path):
    run = edgechat(
        "launch", "aider", "-m", model, "--", "--yes", "file.py", PATH=path, EDGECHAT_HOME=str(tmp_path)
    )
    assert run.returncode == 7, run
    assert run.stdout == "Hello there. --yes file.py 1\n"
    assert "tokens of context" in run.stderr
    assert servers() == []


def test_the_server_ends_with_a_terminal_that_is_closed(model, path, tmp_path):
    process = subprocess.Popen(
        [*EDGECHAT, "launch", "aider", "--model", str(model), "--", "--stay", "now"],
        env={**os.environ, "PATH": path, "EDGECHAT_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdout.readline() == "Hello there. --stay now 1\n"
    assert len(servers()) == 1
    process.send_signal(signal.SIGHUP)
    process.wait(30)
    end = time.monotonic() + 30
    while servers():
        assert time.monotonic() < end
        time.sleep(0.05)


def test_an_agent_that_is_not_there_is_not_waited_for(tmp_path):
    said = complaint(edgechat("launch", "codex", PATH=str(tmp_path)))
    assert "codex is not installed" in said
    assert "npm install -g @openai/codex" in said
    assert "knows codex, claude" in complaint(edgechat("launch", "cursor"))
    assert "No program was named." in complaint(edgechat("launch"))


def test_settings_are_printed_for_other_programs(model, tmp_path):
    process = subprocess.Popen(
        [*EDGECHAT, "launch", "--print", "--model", str(model)],
        env={**os.environ, "EDGECHAT_HOME": str(tmp_path)},
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    lines = [process.stdout.readline() for _ in range(7)]
    assert lines[0].startswith("export OPENAI_BASE_URL=http://127.0.0.1:")
    assert any(line.startswith("export ANTHROPIC_AUTH_TOKEN=ek-") for line in lines)
    (server,) = servers()
    process.send_signal(signal.SIGINT)
    assert process.wait(15) == 130  # of 20 s after which the server would be killed
    assert not psutil.pid_exists(server)


@pytest.mark.parametrize("name", AGENTS)
def test_an_agent_is_told_where_the_model_is(name, tmp_path):
    settings = AGENTS[name].settings(ADDRESS, tmp_path)
    said = json.dumps([settings.arguments, dict(settings.environment), dict(settings.files)])
    assert "http://127.0.0.1:9" in said
    assert "a model" in said
    assert "ek-secret" in json.dumps(dict(settings.environment))
    assert not any("ek-secret" in word for word in settings.arguments)  # which others can see
    assert all(Path(file).name == file for file in settings.files)


@pytest.mark.parametrize(
    ("name", "said"),
    [
        ("opencode", '"modalities": {"input": ["text", "image"]'),
        ("aider", '"supports_vision": true'),
        ("crush", '"supports_attachments": true'),
        ("pi", '"input": ["text", "image"]'),
    ],
)
def test_an_agent_is_told_whether_the_model_sees(name, said, tmp_path):
    def told(address):
        settings = AGENTS[name].settings(address, tmp_path)
        return " ".join(str(value) for value in (*settings.environment.values(), *settings.files.values()))

    assert said in told(dataclasses.replace(ADDRESS, sees=True))
    assert said not in told(ADDRESS)
