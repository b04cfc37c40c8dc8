"""Every child process starts from the frozen program, and ends with its parent."""

import asyncio
import json
import shutil
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from edgechat.__main__ import ROLES
from edgechat.base.process import spawn
from edgechat.base.process.ask import ask
from edgechat.base.process.program import Program as Started
from edgechat.base.process.program import ProgramStart
from edgechat.base.process.spawn import ROLE_FLAG
from edgechat.documents.reading.reader import DocumentReader
from edgechat.native.multimodal.probe import probe
from tests.documents.reading.files import pdf, word_of
from tests.frozen.program import until
from tests.kit import tiny
from tests.kit.vision import KINDS, seeing

SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "hostile_server.py"
posix = pytest.mark.skipif(sys.platform == "win32", reason="Windows has no such signals")


@pytest.mark.parametrize("role", ROLES)
def test_a_child_whose_parent_is_gone_ends_quietly(program, role):
    run = program(ROLE_FLAG, role, seconds=20)
    assert run.returncode == 0, run
    assert run.stderr == ""


COMMANDS = {
    ("engine", "template"): ("run", "MODEL", "Hi", "--temperature", "0"),
    ("bench",): ("bench", "guide"),
    ("quality",): ("bench", "guide", "--quality", "--chunks", "0"),
    ("dryrun",): ("plan", "--offline"),
    ("speed",): ("device", "--refresh"),
    ("quantize",): ("quantize", "F16", "Q4_0", "--imatrix", "auto"),
}
SHORT = {"amx", "devices", "gpu"}
"""Gone before their parent could be killed; that they answer, test_commands.py sees."""
SERVERS = {"grammar", "image", "sound"}
"""Of the server, for answers that follow a schema, images, and sounds."""
HUB = {"xet"}
"""For files that the packaged program does not fetch."""
VISION = {"projector"}
"""Of models that see."""
TOOLS = {"mcp", "page"}
"""Of tools; the second, which reads pages of the web, answers `ask` as the others do."""
DOCUMENTS = {"document"}
"""With the libraries that read them."""
OTHERS = {"lend", "program"}
"""Of workers, and of engines that edgechat starts."""


def test_every_child_is_tried():
    tried = {role for roles in COMMANDS for role in roles}
    assert tried | SHORT | SERVERS | HUB | VISION | TOOLS | DOCUMENTS | OTHERS == set(ROLES)


def test_tool_servers_answer_and_end(newcomer):
    """By the SDK that is inside, though the server's Python is not."""
    for name in ("fine", "silent"):
        newcomer.said("mcp", "add", name, "--", sys.executable, str(SERVER), name)
    assert newcomer.said("mcp", "test", "fine").startswith("fine works: hostile 0, MCP ")
    parent = newcomer.start("mcp", "test", "silent")
    child = newcomer.child("mcp")
    (server,) = until(child.children, 20)
    parent.kill()
    parent.communicate()
    newcomer.is_gone()
    server.wait(20)


def test_pages_are_read(program, monkeypatch):
    monkeypatch.setattr(spawn, "command", lambda role: [str(program.path), ROLE_FLAG, role])
    assert ask("page", b"<p>Hello</p>", limit=20) == b"Hello"


def test_documents_are_read(program, monkeypatch):
    monkeypatch.setattr(spawn, "command", lambda role: [str(program.path), ROLE_FLAG, role])
    with DocumentReader() as documents:
        assert documents.read(pdf(["Hello"]), name="a.pdf").text == "Hello\n"
        assert (
            documents.read(word_of("<w:p><w:r><w:t>Hello</w:t></w:r></w:p>"), name="a.docx").text == "Hello\n"
        )


def test_workers_measure_and_lend(newcomer):
    worker = newcomer.start("worker", "--memory", "1GiB", stdin=subprocess.PIPE)
    assert worker.stdin is not None
    assert worker.stdout is not None
    offer = json.loads(worker.stdout.readline())
    assert offer["devices"][0]["speed"]["bandwidth"] > 0
    worker.stdin.close()
    assert worker.wait(20) == 0


def test_engines_are_started(program, monkeypatch, tmp_path):
    monkeypatch.setattr(spawn, "command", lambda role: [str(program.path), ROLE_FLAG, role])
    log = tmp_path / "log"

    async def run():
        with log.open("ab") as file:
            one = await Started.start(
                ProgramStart((sys.executable, "-c", "print(40 + 2)"), {}), file.fileno()
            )
        while one.exit_code is None:
            await asyncio.sleep(0.05)
        await one.close()
        return one.exit_code

    assert asyncio.run(asyncio.wait_for(run(), 20)) == 0
    assert log.read_text() == "42\n"


@pytest.mark.parametrize("kind", KINDS)
def test_libmtmd_takes_projectors(program, monkeypatch, kind):
    """With the packaged backend of the processor, which is a module."""
    projector = seeing(kind).projector
    here = probe(projector)
    monkeypatch.setattr(spawn, "command", lambda role: [str(program.path), ROLE_FLAG, role])
    assert probe(projector) == here


@posix
@pytest.mark.parametrize("roles", COMMANDS, ids="-".join)
def test_a_killed_parent_leaves_no_child(newcomer, roles):
    models = {"MODEL": tiny, "F16": lambda: tiny(weights="F16")}
    words = [models[word]() if word in models else word for word in COMMANDS[roles]]
    parent = newcomer.start(*words)
    for role in roles:
        newcomer.child(role)
    parent.kill()
    parent.communicate()
    newcomer.is_gone()
    shutil.rmtree(newcomer.scratch)  # nobody tidies up after SIGKILL


@posix
@pytest.mark.parametrize("name", ["SIGTERM", "SIGINT", "SIGHUP"])
def test_a_signal_ends_an_answer_and_leaves_the_words(newcomer, slow, name):
    number = signal.Signals[name]
    run = newcomer.start("run", slow, "Count.", "--temperature", "0")
    assert run.stdout is not None
    begun = run.stdout.read(100).decode()
    run.send_signal(number)
    _, errors = run.communicate(timeout=60)
    newcomer.is_gone()
    assert run.returncode == 128 + number
    assert b"Traceback" not in errors
    (_, content, state) = newcomer.turns()[-1]
    assert content.startswith(begun)
    assert state in ("stopped", "interrupted")
