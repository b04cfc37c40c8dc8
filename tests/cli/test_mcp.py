"""`edgechat mcp`: tool servers are added, tried, listed, removed and imported."""

import asyncio
import json
import os
import sys
from pathlib import Path

import pytest

from edgechat.tools.config import config_path
from edgechat.tools.consent_store import ConsentStore, consents_path
from edgechat.tools.tool import ToolSpec
from tests.cli.running import edgechat

SERVER = Path(__file__).parents[1] / "tools" / "mcp" / "sdk_server.py"
HOSTILE = SERVER.with_name("hostile_server.py")
READ = ToolSpec(server="disk", name="read", description="Reads.")


def mcp(*words, **environment):
    return edgechat("mcp", *words, **environment)


def servers():
    return json.loads(config_path().read_text(encoding="utf-8"))["mcpServers"]


def test_add():
    done = mcp("add", "disk", "--env", "KEY=${OWN}=1", "--env", "EMPTY=", "--", "npx", "-y", "thing", "~/x")
    assert done.returncode == 0
    assert f"Added disk to {config_path()}." in done.stdout
    assert (
        mcp("add", "far", "https://example.org/mcp", "--header", "Authorization: Bearer a:b").returncode == 0
    )
    assert servers() == {
        "disk": {"command": "npx", "args": ["-y", "thing", "~/x"], "env": {"KEY": "${OWN}=1", "EMPTY": ""}},
        "far": {"url": "https://example.org/mcp", "headers": {"Authorization": "Bearer a:b"}},
    }
    again = mcp("add", "disk", "other")
    assert (again.returncode, "edgechat mcp rm disk" in again.stderr) == (1, True)


def test_a_path_is_kept_whole(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "server").write_text("", encoding="utf-8")
    assert mcp("add", "mine", os.path.join(".", "server")).returncode == 0
    assert servers()["mine"]["command"] == str(tmp_path / "server")


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["a"], "Missing argument"),
        (["files", "x"], "cannot be the name of a tool server"),
        (["a", "https://x", "more"], "has no arguments"),
        (["a", "https://x", "--env", "A=1"], "no environment"),
        (["a", "x", "--header", "A: 1"], "has no headers"),
        (["a", "x", "--env", "A"], "has no '='"),
    ],
)
def test_what_cannot_be_added(words, why):
    done = mcp("add", *words)
    assert done.returncode != 0
    assert why in done.stderr
    assert not config_path().exists()


def test_list_and_forget():
    assert "There is no tool server yet" in mcp("list").stdout
    mcp("add", "disk", "npx", "thing")
    store = ConsentStore(consents_path())
    asyncio.run(store.keep(READ, "always", "c1"))
    listed = mcp("list").stdout
    assert "disk        npx thing\n              read: always\n" in listed
    (last,) = (one for one in json.loads(mcp("list", "--json").stdout) if not one["built_in"])
    assert last == {
        "name": "disk",
        "about": "npx thing",
        "built_in": False,
        "answers": [{"tool": "read", "answer": "always"}],
    }
    assert mcp("forget", "disk/other").stdout == "No answers forgotten.\n"
    assert mcp("forget", "disk/read").stdout == "1 answer forgotten.\n"
    assert "always" not in mcp("list").stdout


def test_rm():
    mcp("add", "disk", "npx", "thing")
    asyncio.run(ConsentStore(consents_path()).keep(READ, "always", "c1"))
    assert mcp("rm", "disk").returncode == 2  # there is nobody to ask
    assert mcp("rm", "disk", "--yes").returncode == 0
    assert servers() == {}
    assert asyncio.run(_answers()) == []
    assert "There is no tool server 'disk'" in mcp("rm", "disk", "--yes").stderr
    assert "is a part of edgechat" in mcp("rm", "date", "--yes").stderr


async def _answers():
    return list(await ConsentStore(consents_path()).given())


@pytest.fixture
def others(tmp_path):
    """A home with the files of other programs."""
    home = tmp_path / "user"
    (home / ".cursor").mkdir(parents=True)
    entries = {
        "disk": {"command": "npx", "args": ["thing"], "env": {"KEY": "secret"}},
        "old": {"url": "http://x", "type": "sse"},
        "bad\x1b[31m": {"command": "x"},
    }
    (home / ".cursor" / "mcp.json").write_text(json.dumps({"mcpServers": entries}), encoding="utf-8")
    (home / ".lmstudio").mkdir()
    more = {"disk": {"command": "other"}, "far": {"url": "https://example.org/mcp"}}
    (home / ".lmstudio" / "mcp.json").write_text(json.dumps({"mcpServers": more}), encoding="utf-8")
    return home


@pytest.mark.skipif(os.name != "posix", reason="Windows finds a home by other variables")
def test_import(others):
    shown = mcp("import", HOME=str(others))
    assert shown.returncode == 2  # there is nobody to ask
    assert "  disk  npx thing (with KEY)\n" in shown.stdout
    assert "  disk  other (there already)\n" in shown.stdout
    assert "SSE" in shown.stderr
    assert "\x1b" not in shown.stdout + shown.stderr
    assert "secret" not in shown.stdout + shown.stderr
    assert not config_path().exists()
    done = mcp("import", "--yes", HOME=str(others))
    assert done.stdout.endswith(f"Imported into {config_path()}: disk, far.\n")
    assert servers()["disk"] == {"command": "npx", "args": ["thing"], "env": {"KEY": "secret"}}
    assert "nothing to import" in mcp("import", "lmstudio", "--yes", HOME=str(others)).stdout
    assert "No tool servers of Claude Desktop" in mcp("import", "claude", HOME=str(others)).stderr


def test_import_of_a_file(tmp_path):
    file = tmp_path / "other.json"
    assert "There is no file" in mcp("import", "--file", file).stderr
    file.write_text('{"mcpServers": {"a": {"command": "x"}}}', encoding="utf-8")
    assert mcp("import", "--file", file, "--yes").returncode == 0
    assert list(servers()) == ["a"]


@pytest.mark.slow
def test_test():
    pytest.importorskip("mcp")
    mcp("add", "nice", sys.executable, str(SERVER))
    mcp("add", "bad", "--", sys.executable, str(HOSTILE), "dies-at-once")
    mcp("add", "strange", "--", sys.executable, str(HOSTILE), "bombs")
    done = mcp("test", "nice")
    assert done.returncode == 0
    assert done.stdout.startswith("nice works: friendly 1.2, MCP 2026-07-28, 7 tools.\n")
    assert "  add (says that it changes nothing): Adds two numbers.\n" in done.stdout
    failed = mcp("test", "bad")
    assert (failed.returncode, failed.stdout) == (1, "")
    assert "The tool server bad ended before it answered. It last said: no [31mkey." in failed.stderr
    log = Path(failed.stderr.partition("What it wrote: ")[2].strip())
    assert "no \x1b[31mkey" in log.read_text(encoding="utf-8")
    strange = mcp("test", "strange")
    assert "not offered: 'deep': its schema is nested more than 32 deep" in strange.stderr
    tried = json.loads(mcp("test", "strange", "--json").stdout)
    assert [tool["name"] for tool in tried["tools"]] == ["escapes", "fine", "twice"]
    assert tried["error"] is None
    assert len(tried["left_out"]) == 5
