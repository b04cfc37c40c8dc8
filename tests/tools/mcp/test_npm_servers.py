"""The reference servers of the protocol, if node and they are here.

npm install @modelcontextprotocol/server-everything @modelcontextprotocol/server-filesystem
EDGECHAT_TEST_NPM=FOLDER python -m pytest -m soak tests/tools/mcp/test_npm_servers.py
"""

import json
import os
import shutil
from importlib.util import find_spec
from pathlib import Path

import pytest

from edgechat.tools.config import config_path
from edgechat.tools.registry import ToolRegistry

BINARIES = Path(os.environ.get("EDGECHAT_TEST_NPM", "")) / "node_modules" / ".bin"
SERVER = BINARIES / "mcp-server-everything"
pytestmark = [
    pytest.mark.soak,
    pytest.mark.skipif(
        any((find_spec("mcp") is None, shutil.which("node") is None, not SERVER.exists())),
        reason="node, the servers, or the SDK are not here",
    ),
]


@pytest.fixture
async def tools(tmp_path):
    entries = {
        "all": {"command": str(SERVER)},
        "disk": {"command": str(BINARIES / "mcp-server-filesystem"), "args": [str(tmp_path)]},
    }
    config_path().write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    registry = ToolRegistry()
    found = await registry.open(["all", "disk"])
    assert found.problems == ()
    yield found
    await registry.close()


async def call(tools, name, **arguments):
    tool = tools.find(name)
    assert tool is not None
    return await tools.call(tool, json.dumps(arguments))


async def test_everything(tools):
    assert (await call(tools, "all__echo", message="hi")).text == "Echo: hi"
    assert "42" in (await call(tools, "all__get-sum", a=40, b=2)).text
    environment = json.loads((await call(tools, "all__get-env")).text)
    assert set(environment) <= {"HOME", "PATH", "TMPDIR"}
    assert len((await call(tools, "all__get-tiny-image")).images) == 1
    assert "temperature" in (await call(tools, "all__get-structured-content", location="Chicago")).text
    assert (await call(tools, "all__get-resource-links", count=2)).text.count("demo://") >= 1
    # It offers these only to clients that let it ask their model, or their user.
    assert not [tool.name for tool in tools.tools if "sampling" in tool.name or "elicit" in tool.name]


async def test_the_filesystem(tools, tmp_path):
    path = str(tmp_path / "note.txt")
    assert not (await call(tools, "disk__write_file", path=path, content="héllo\n")).failed
    assert (await call(tools, "disk__read_text_file", path=path)).text == "héllo\n"
    assert "note.txt" in (await call(tools, "disk__list_directory", path=str(tmp_path))).text
    refused = await call(tools, "disk__read_text_file", path="/etc/hostname")
    assert refused.failed
    assert "Access denied" in refused.text
    write = tools.find("disk__write_file")
    assert write is not None
    assert write.destructive
