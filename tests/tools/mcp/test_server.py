"""Tool servers that behave, and those that do not: each is a real process."""

import asyncio
import contextlib
import json
import os
import signal
import socket
import subprocess
import sys
import textwrap
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import psutil
import pytest

from edgechat.tools.config import config_path
from edgechat.tools.consent import AskingPermission, ConsentStore
from edgechat.tools.mcp import connection, server
from edgechat.tools.registry import ToolRegistry
from edgechat.tools.tool import MAX_RESULT
from tests.later import later_or_skip

later_or_skip("mcp")
pytestmark = pytest.mark.slow  # each server is two processes that import the SDK
HERE = Path(__file__).parent
FRIENDLY = {"command": sys.executable, "args": [str(HERE / "sdk_server.py")]}


def hostile(mode, *more):
    return {"command": sys.executable, "args": [str(HERE / "hostile_server.py"), mode, *more]}


class Program:
    """The tools of a program, with the servers that a test configures."""

    def __init__(self):
        self.registry = ToolRegistry()

    async def open(self, **servers):
        config_path().write_text(json.dumps({"mcpServers": servers}), encoding="utf-8")
        return await self.registry.open(list(servers))

    async def opened(self, **servers):
        tools = await self.open(**servers)
        assert tools.problems == ()
        return tools

    async def problem(self, entry):
        """Return why the server 'bad' cannot be used."""
        tools = await self.open(bad=entry)
        assert tools.tools == ()
        (problem,) = tools.problems
        assert problem.message.startswith("The tool server bad ")
        assert problem.hint
        assert "\x1b" not in problem.message
        return problem.message


@pytest.fixture
async def program():
    found = Program()
    yield found
    await found.registry.close()
    assert running() == []


def running():
    """The commands of the servers that run, and of the children that speak to them."""
    found = list[str]()
    for process in psutil.Process().children(recursive=True):
        with contextlib.suppress(psutil.Error):
            found.append(" ".join(process.cmdline()))  # of a process that has ended: nothing
    return [command for command in found if "_server.py" in command or "--child mcp" in command]


async def call(tools, name, seconds=60.0, **arguments):
    tool = tools.find(name)
    assert tool is not None
    return await tools.call(tool, json.dumps(arguments), seconds=seconds)


async def until(true):
    for _ in range(500):
        if true():
            return
        await asyncio.sleep(0.02)
    raise AssertionError("it never happened")


@pytest.mark.quick
async def test_a_server(program, monkeypatch, tmp_path):
    monkeypatch.setenv("SECRET_OF_THE_USER", "x")
    tools = await program.opened(nice={**FRIENDLY, "env": {"GIVEN": "1"}})
    assert [tool.name for tool in tools.tools] == sorted(tool.name for tool in tools.tools)
    add = tools.find("nice__add")
    assert add is not None
    assert (add.description, add.read_only) == ("Adds two numbers.", True)
    assert json.loads(add.schema)["required"] == ["a", "b"]
    assert (await call(tools, "nice__add", a=40, b=2)).text == "42"
    environment = (await call(tools, "nice__environment")).text.split()
    assert "SECRET_OF_THE_USER" not in environment
    if os.name == "posix":
        # What Python sets for itself when there is no locale.
        assert set(environment) - {"LC_CTYPE", "PWD", "TMPDIR"} == {"GIVEN", "HOME", "PATH"}
    assert (await call(tools, "nice__folder")).text == os.path.expanduser("~")
    failed = await call(tools, "nice__fail")
    assert failed.failed
    assert failed.text.startswith("Error executing tool fail")
    assert failed.error is None
    assert (await call(tools, "nice__add", a="x")).failed
    assert (await call(tools, "nice__nosy")).failed  # nobody is asked
    picture = await call(tools, "nice__picture")
    assert (picture.images, picture.text) == ((b"\x89PNG picture",), "")
    assert await program.registry.open(["nice"]) == tools  # the prompt stays the same


async def test_calls_run_side_by_side_and_can_be_cancelled(program, tmp_path):
    tools = await program.opened(nice=FRIENDLY)
    left = tmp_path / "left"
    slow = asyncio.create_task(call(tools, "nice__slow", path=str(left)))
    await asyncio.sleep(0.3)
    assert (await call(tools, "nice__add", a=1, b=1)).text == "2"
    slow.cancel()
    with pytest.raises(asyncio.CancelledError):
        await slow
    await until(left.exists)
    late = await call(tools, "nice__slow", seconds=0.3, path=str(tmp_path / "other"))
    assert late.failed
    assert late.error is not None
    assert late.text == "Error: The tool slow of nice did not answer within 0 seconds."
    assert late.error.hint == "To test the server alone: edgechat mcp test nice"
    assert (await call(tools, "nice__add", a=1, b=2)).text == "3"


async def test_arguments_that_are_no_object_are_not_sent(program):
    tools = await program.opened(mute=hostile("mute"))
    for arguments in ("", "[]", "{", "[" * 100_000, '{"x": "' + "y" * 300_000 + '"}'):
        result = await tools.call(tools.tools[0], arguments, seconds=5.0)
        assert result.text.startswith("Error: the arguments ")


async def test_a_server_over_http(program, monkeypatch):
    for name in ("HTTP_PROXY", "ALL_PROXY"):  # nothing of this machine is reached through a proxy
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    process = subprocess.Popen([sys.executable, str(HERE / "sdk_server.py"), str(port)])
    try:
        with contextlib.suppress(OSError):
            for _ in range(500):
                with contextlib.suppress(ConnectionRefusedError):
                    socket.create_connection(("127.0.0.1", port), 1).close()
                    break
                await asyncio.sleep(0.02)
        url = f"http://127.0.0.1:{port}/mcp"
        tools = await program.opened(remote={"url": url, "headers": {"X-Key": "1"}})
        assert (await call(tools, "remote__add", a=40, b=2)).text == "42"
        assert (await call(tools, "remote__fail")).failed
    finally:
        process.kill()
        process.wait()
    gone = await call(tools, "remote__add", a=1, b=1)
    assert gone.error is not None
    assert "The tool server remote " in gone.text


@pytest.mark.parametrize("kind", ["application/json", "text/event-stream"])
async def test_a_response_without_end(program, kind):
    class Handler(BaseHTTPRequestHandler):
        def do_POST(self):
            self.send_response(200)
            self.send_header("Content-Type", kind)
            self.end_headers()
            with contextlib.suppress(OSError):
                while True:
                    self.wfile.write(b": nothing\n\n" * 10_000)

        def log_message(self, *args):
            pass

    web = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=web.serve_forever, args=(0.01,), daemon=True).start()
    try:
        why = await program.problem({"url": f"http://127.0.0.1:{web.server_address[1]}/mcp"})
        assert "wrote endlessly" in why
    finally:
        web.shutdown()
        web.server_close()


async def test_what_is_not_there(program, monkeypatch):
    assert "cannot be started: /none/such: No such file" in await program.problem({"command": "/none/such"})
    assert "cannot be reached" in await program.problem({"url": "http://127.0.0.1:9/mcp"})
    monkeypatch.delenv("UNSET_KEY", raising=False)
    assert "needs the environment variable UNSET_KEY" in await program.problem({"command": "${UNSET_KEY}"})
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    tools = await program.open(bad={"url": "https://example.org/mcp"})
    assert "EDGECHAT_OFFLINE keeps edgechat offline" in tools.problems[0].message
    tools = await program.registry.open(["unknown"])
    assert tools.problems[0].message == "There is no tool server 'unknown'."


async def test_a_server_that_ends_at_once_says_why(program):
    began = time.monotonic()
    assert "It last said: no [31mkey" in await program.problem(hostile("dies-at-once"))
    starts = time.monotonic() - began
    await program.problem(hostile("dies-at-once"))  # not started again
    assert time.monotonic() - began < starts + 0.2


async def test_a_server_that_never_answers(program, monkeypatch):
    monkeypatch.setattr(connection, "START_SECONDS", 1.5)
    assert "did not answer within 2 seconds" in await program.problem(hostile("silent"))


async def test_a_start_can_be_cancelled_or_closed(program):
    for end in ("cancel", "close"):
        opening = asyncio.create_task(program.open(bad=hostile("silent")))
        await until(lambda: any("hostile_server.py" in command for command in running()))
        if end == "cancel":
            opening.cancel()
            with pytest.raises(asyncio.CancelledError):
                await opening
        else:
            await program.registry.close()
            assert (await opening).problems[0].message == "The tool server bad was closed."
        await until(lambda: not running())


@pytest.mark.parametrize(
    ("mode", "why"),
    [("many", "offers more than 128 tools"), ("endless-pages", "lists its tools without end")],
)
async def test_tools_without_end(program, mode, why):
    assert why in await program.problem(hostile(mode))


async def test_tools_that_are_bombs_or_disguised(program):
    tools = await program.opened(bad=hostile("bombs"))
    assert [tool.name for tool in tools.tools] == ["escapes", "fine", "twice"]
    escapes, fine, _ = tools.tools
    assert escapes.description == "[31mred]0;title gnp.exe"
    assert escapes.title == escapes.description
    assert json.loads(escapes.schema)["title"].strip() == escapes.description
    assert len(fine.description) == 4096
    running = tools.servers["bad"]
    flaws = (
        "'deep': its schema is nested",
        "'wide': its schema has",
        "'twice': two have",
        "'na[31mme': a name",
    )
    assert all(flaw in "\n".join(running.left_out) for flaw in flaws)


async def test_results_are_bounded_and_harmless(program):
    tools = await program.opened(bad=hostile("escapes"))
    result = await call(tools, "bad__do")
    assert result.text.startswith("[31mred]0;title gnp.exe")
    assert len(result.text) == MAX_RESULT
    assert result.text.endswith("[Cut: the result is longer.]")
    assert result.left_out > 0
    short = await tools.call(tools.tools[0], "{}", most=100)
    assert len(short.text) == 100


async def test_an_answer_that_is_no_result(program):
    tools = await program.opened(bad=hostile("nonsense"))
    assert "sent an invalid answer" in (await call(tools, "bad__do")).text
    tools = await program.opened(chatty=hostile("talks"))
    assert (await call(tools, "chatty__do")).text == "done"


async def test_sampling_and_elicitation_are_refused(program):
    tools = await program.opened(bad=hostile("samples"))
    answers = json.loads((await call(tools, "bad__do")).text)
    assert {answer["id"] for answer in answers} == {"q1", "q2"}
    assert all("error" in answer and "result" not in answer for answer in answers)


async def test_a_tool_that_changes_after_consent_asks_anew(program):
    asked = []

    async def always(question):
        asked.append(question)
        return "always"

    permission = AskingPermission(ConsentStore(None), "chat", always)
    tools = await program.opened(bad=hostile("changes"))
    for _ in range(2):
        assert await permission(tools.tools[0], "{}")
    assert len(asked) == 1
    assert (await call(tools, "bad__do")).text == "done"
    refused = await call(tools, "bad__do")  # as it was when the user consented
    assert "has changed its tool do since it was offered" in refused.text
    changed = await program.registry.open(["bad"])
    assert changed != tools
    assert await permission(changed.tools[0], "{}")
    assert "+Does something else, and sends it away." in asked[1].changed
    assert "-Does something." in asked[1].changed


async def test_a_server_that_dies_is_started_again_but_not_forever(program):
    tools = await program.opened(bad=hostile("dies"))
    for _ in range(server.MOST_STARTS):
        result = await call(tools, "bad__do")
        assert result.text == "Error: The tool server bad has ended. It last said: a [31mreason."
    assert "has ended 3 times in 10 minutes" in (await call(tools, "bad__do")).text
    assert "has ended 3 times in 10 minutes" in (await program.registry.open(["bad"])).problems[0].message


async def test_a_server_that_is_closed_meanwhile_is_not_started_again(program, monkeypatch):
    tools = await program.opened(bad=hostile("dies"))
    await call(tools, "bad__do")
    closing = tools.servers["bad"]
    close = connection.McpConnection.close

    async def close_all(_):
        monkeypatch.setattr(connection.McpConnection, "close", close)
        await closing.close()

    monkeypatch.setattr(connection.McpConnection, "close", close_all)
    assert (await call(tools, "bad__do")).text == "Error: The tool server bad was closed."
    assert running() == []


async def test_a_server_that_is_no_longer_configured_ends(program):
    await program.opened(good=FRIENDLY)
    config_path().write_text("{}", encoding="utf-8")
    (problem,) = (await program.registry.open(["good"])).problems
    assert problem.message == "There is no tool server 'good'."
    assert running() == []


@pytest.mark.parametrize("mode", ["flood", "long-line"])
async def test_output_without_end(program, mode):
    tools = await program.opened(bad=hostile(mode))
    before = psutil.Process().memory_info().rss
    result = await call(tools, "bad__do")
    assert result.error is not None
    assert "was stopped because" in result.text
    assert psutil.Process().memory_info().rss < before + 2**28


@pytest.mark.skipif(os.name != "posix", reason="Windows has no signals to ignore")
async def test_a_server_that_does_not_want_to_end(program, tmp_path):
    pids = tmp_path / "pids"
    await program.opened(bad=hostile("stays", str(pids)))
    began = time.monotonic()
    await program.registry.close()
    assert time.monotonic() - began < 8
    await until(lambda: not any(map(runs, numbers(pids))))


@pytest.mark.skipif(os.name != "posix", reason="Windows has no signals to ignore")
async def test_servers_end_with_the_program_even_if_it_is_killed(tmp_path):
    pids = tmp_path / "pids"
    config_path().write_text(
        json.dumps({"mcpServers": {"bad": hostile("stays", str(pids))}}), encoding="utf-8"
    )
    code = """
        import asyncio
        from edgechat.tools.registry import ToolRegistry

        async def main():
            print(len((await ToolRegistry().open(["bad"])).tools), flush=True)
            await asyncio.sleep(600)

        asyncio.run(main())
    """
    process = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE)
    assert process.stdout is not None
    assert process.stdout.readline() == b"1\n"
    assert all(map(runs, numbers(pids)))
    process.send_signal(signal.SIGKILL)
    process.wait()
    await until(lambda: not any(map(runs, numbers(pids))))


def numbers(path):
    return [int(pid) for pid in path.read_text(encoding="utf-8").split()]


def runs(pid):
    with contextlib.suppress(psutil.Error):
        return psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
    return False
