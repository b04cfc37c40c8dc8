"""What a chat is offered, and what becomes of its calls, with the built-in tools alone."""

import asyncio
import json
import sys

import pytest

from edgechat.base.errors import DocumentError, StoreError
from edgechat.tools.builtin.searches import FoundInChats
from edgechat.tools.config import config_path
from edgechat.tools.registry import ToolRegistry, ToolSet
from edgechat.tools.tool import ToolResult, ToolSpec


async def found(words, limit):
    if words == "broken":
        raise StoreError("The file is damaged.")
    places = [FoundInChats("A \x1b[31mtitle", "user", f"…{words}…", 1_600_000_000.0)] * 30
    return places[:limit] if words == "cats" else []


async def in_documents(names, query):
    if query == "broken":
        raise DocumentError("They cannot be read.")
    return f"{query} in {' and '.join(names)}"


async def test_documents_are_searched_by_name():
    registry = ToolRegistry(found, in_documents)
    tools = await registry.open(["documents:notes+handbook"])
    (tool,) = tools.tools
    assert "(notes, handbook)" in tool.description
    assert (await tools.call(tool, '{"query": "Cats"}')).text == "Cats in notes and handbook"
    broken = await tools.call(tool, '{"query": "broken"}')
    assert (broken.text, broken.failed) == ("Error: They cannot be read.", True)
    assert (await tools.call(tool, json.dumps({"query": "x" * 1001}))).failed
    twice = await registry.open(["documents:notes", "documents:handbook"])
    assert [problem.message for problem in twice.problems] == [
        "The documents tools can be chosen only once; the first choice is used."
    ]


async def test_the_built_in_tools(tmp_path):
    registry = ToolRegistry(found)
    chosen = ["web", "date", f"files:{tmp_path}", "chats", "calculator", "date"]
    tools = await registry.open(chosen)
    assert tools.problems == ()
    names = "calculate search_chats current_date list_files read_file search_files fetch_page"
    assert [tool.model_name for tool in tools.tools] == names.split()
    assert await registry.open(chosen[::-1]) == tools
    assert [tool.name for tool in tools.tools if tool.harmless] == ["calculate", "current_date"]
    assert all(tool.built_in and json.loads(tool.schema)["type"] == "object" for tool in tools.tools)
    assert await registry.open([]) == ToolSet()
    await registry.close()


async def test_calls():
    tools = await ToolRegistry(found).open(["calculator", "chats", "date"])

    async def call(name, arguments):
        tool = tools.find(name)
        assert tool is not None
        return await tools.call(tool, arguments)

    assert tools.find("nothing") is None
    assert (await call("calculate", '{"expression": "6*7"}')).text == "42"
    assert (await call("calculate", '{"expression": "x"}')).failed
    assert (await call("calculate", '{"expression": 1}')).text.startswith("Error: wrong arguments")
    assert (await call("current_date", "{}")).text
    lines = (await call("search_chats", '{"words": "cats"}')).text.splitlines()
    assert len(lines) == 20
    assert lines[0].startswith("2020-09-1")
    assert lines[0].endswith(", “A [31mtitle”, user: …cats…")
    assert (await call("search_chats", '{"words": "dogs"}')).text == "No conversation has these words."
    broken = await call("search_chats", '{"words": "broken"}')
    assert (broken.text, broken.failed) == ("Error: The file is damaged.", True)


@pytest.mark.parametrize(
    ("chosen", "why"),
    [
        ("files", "The folder for the files tool does not exist: (none)."),
        ("files:/none/such", "The folder for the files tool does not exist: /none/such."),
        ("chats", "There are no conversations to search here."),
        ("documents:notes", "No documents are named."),
        ("unknown", "There is no tool server 'unknown'."),
        ("un\x1bknown", "There is no tool server 'unknown'."),
    ],
)
async def test_what_cannot_be_opened_is_a_problem(chosen, why):
    tools = await ToolRegistry().open([chosen, "date"])
    assert [problem.message for problem in tools.problems] == [why]
    assert [tool.name for tool in tools.tools] == ["current_date"]


async def test_one_folder_at_a_time(tmp_path):
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    tools = await ToolRegistry().open([f"files:{tmp_path / 'b'}", f"files:{tmp_path / 'a'}"])
    assert len(tools.tools) == 3
    assert f"{tmp_path / 'a'}," in tools.tools[0].description
    assert [problem.message for problem in tools.problems] == [
        "The files tools can be chosen only once; the first choice is used."
    ]


async def test_a_damaged_file_of_servers_is_a_problem_only_for_them():
    config_path().write_text("{", encoding="utf-8")
    tools = await ToolRegistry().open(["disk", "date"])
    assert "mcp.json is not valid" in tools.problems[0].message
    assert [tool.name for tool in tools.tools] == ["current_date"]


def test_what_can_be_chosen():
    entry = {"command": "npx", "args": ["x"], "env": {"KEY": "secret"}}
    config_path().write_text(json.dumps({"mcpServers": {"disk": entry}}), encoding="utf-8")
    known = ToolRegistry(found).known()
    assert [one.name for one in known] == ["calculator", "chats", "date", "files", "web", "disk"]
    assert (known[-1].about, known[-1].built_in) == ("npx x", False)
    assert "chats" not in [one.name for one in ToolRegistry().known()]
    assert "documents" in [one.name for one in ToolRegistry(found, in_documents).known()]


async def test_results_are_cut_and_harmless():
    class Server:
        name = "s"

        async def tools(self):
            return ()

        async def call(self, tool, arguments):
            if tool.name == "hangs":
                await asyncio.sleep(60)
            return ToolResult(text="\x1b]0;x\x07" + "a" * 1_000_000 if tool.name == "long" else "\u202eb")

        async def close(self):
            pass

    tools = ToolSet(servers={"s": Server()})
    long = await tools.call(ToolSpec(server="s", name="long"), "{}", most=50)
    assert long.text == "]0;x" + "a" * 17 + "\n[Cut: the result is longer.]"
    assert len(long.text) == 50
    assert long.left_out > 900_000
    assert (await tools.call(ToolSpec(server="s", name="short"), "{}")).text == "b"
    hangs = await tools.call(ToolSpec(server="s", name="hangs"), "{}", seconds=0.05)
    assert hangs.failed
    assert 0.05 <= hangs.seconds < 30


def test_the_sdk_is_not_imported_by_the_program():
    """Nor anything else of weight, before something is chosen."""
    import subprocess

    code = "import sys; from edgechat.tools.registry import ToolRegistry; ToolRegistry(); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    weighty = {"mcp", "pydantic", "httpx2", "anyio", "pathspec", "psutil", "filelock", "tomlkit"}
    assert weighty.isdisjoint(done.stdout.split())
