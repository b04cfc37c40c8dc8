"""`edgechat mcp`: tool servers are added, tried, listed, removed and imported."""

import asyncio
import sys
from pathlib import Path

import pytest

from edgechat.tools.consent import ConsentStore, consents_path
from edgechat.tools.tool import ToolSpec
from tests.cli.transcripts import transcript

SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "sdk_server.py"


def allow(world):
    """Leave the answer that a tool may always be called."""
    read = ToolSpec(server="disk", name="read", description="Reads.")
    asyncio.run(ConsentStore(consents_path()).keep(read, "always", "c1"))


def tools(world):
    pytest.importorskip("mcp")
    world.names |= {
        "SERVER": str(SERVER),
        "HOSTILE": str(SERVER.with_name("hostile_server.py")),
        "PYTHON": sys.executable,
    }


test_what_is_printed = transcript("mcp.txt", allow, tools)
