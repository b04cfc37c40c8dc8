"""mcp.json: the notation that other programs use, and what is refused."""

import json
import os
import stat

import pytest

from edgechat.base.errors import SettingsError, ToolError
from edgechat.tools.config import (
    ServerConfig,
    add_servers,
    config_path,
    entry_of,
    read_servers,
    remove_server,
    server_of,
)

LOCAL = {"command": "npx", "args": ["-y", "thing"], "env": {"KEY": "${SOME_KEY}"}}
REMOTE = {
    "url": "https://me:pw@example.org/mcp?key=1",
    "headers": {"Authorization": "Bearer x"},
}


def write(document):
    config_path().write_text(json.dumps(document), encoding="utf-8")


def test_the_usual_notation():
    assert read_servers(config_path()) == {}
    write(
        {"mcpServers": {"local": {**LOCAL, "type": "stdio", "disabled": False}, "remote": REMOTE}, "other": 1}
    )
    servers = read_servers(config_path())
    assert list(servers) == ["local", "remote"]
    assert servers["local"] == ServerConfig(
        name="local", command="npx", args=("-y", "thing"), env={"KEY": "${SOME_KEY}"}
    )
    assert servers["local"].shown == "npx -y thing"
    assert servers["remote"].shown == "https://example.org/mcp?…"
    assert entry_of(servers["remote"]) == REMOTE


@pytest.mark.parametrize(
    ("text", "why"),
    [
        ("{", "Expecting property name"),
        ("[]", "it is not an object"),
        ('{"mcpServers": []}', "mcpServers is not an object"),
        ('{"mcpServers": {"a": 1}}', "the entry 'a' is not an object"),
        ('{"mcpServers": {"a": {}}}', "either a command or a url"),
        ('{"mcpServers": {"a": {"command": "x", "url": "http://x"}}}', "either a command or a url"),
        ('{"mcpServers": {"a": {"command": ["x"]}}}', "not valid"),
        ('{"mcpServers": {"a": {"command": "x", "env": {"A": 1}}}}', "not valid"),
        ('{"mcpServers": {"a": {"command": "x\\u0000"}}}', "too long"),
        ('{"mcpServers": {"a": {"url": "file:///x"}}}', "does not begin with http"),
        ('{"mcpServers": {"a": {"url": "http://x", "type": "sse"}}}', "SSE"),
        ('{"mcpServers": {"files": {"command": "x"}}}', "cannot be the name"),
        ('{"mcpServers": {"a\\u001b[31m": {"command": "x"}}}', "cannot be the name"),
        ('{"mcpServers": {"a:b": {"command": "x"}}}', "cannot be the name"),
        ("[" * 100_000, "not valid"),
        (" " * 2**20 + " {}", "cannot be read"),
    ],
)
def test_what_is_wrong_with_a_file_is_said(text, why):
    config_path().write_text(text, encoding="utf-8")
    with pytest.raises(SettingsError, match=why) as caught:
        read_servers(config_path())
    assert "mcp.json" in str(caught.value)
    assert "\x1b" not in str(caught.value)


def test_too_many_servers():
    write({"mcpServers": {f"s{n}": LOCAL for n in range(65)}})
    with pytest.raises(SettingsError, match="more than 64"):
        read_servers(config_path())


def test_variables(monkeypatch):
    entry = {
        "command": "x",
        "args": ["--key=${env:SOME_KEY}", "$HOME"],
        "env": {"A": "${SOME_KEY}${SOME_KEY}"},
    }
    server = server_of("local", entry)
    monkeypatch.delenv("SOME_KEY", raising=False)
    with pytest.raises(ToolError, match="local needs the environment variable SOME_KEY"):
        server.resolved()
    monkeypatch.setenv("SOME_KEY", "${PATH}")
    resolved = server.resolved()
    assert resolved.args == ("--key=${PATH}", "$HOME")
    assert resolved.env == {"A": "${PATH}${PATH}"}


@pytest.mark.skipif(os.name != "posix", reason="links need rights on Windows")
def test_a_link_is_kept(tmp_path):
    (tmp_path / "dotfiles.json").write_text("{}", encoding="utf-8")
    config_path().symlink_to(tmp_path / "dotfiles.json")
    add_servers(config_path(), server_of("local", LOCAL))
    assert config_path().is_symlink()
    assert list(read_servers(tmp_path / "dotfiles.json")) == ["local"]


def test_adding_and_removing_keeps_the_rest():
    write({"mcpServers": {"other": REMOTE}, "more": {"x": [1]}})
    add_servers(config_path(), server_of("local", LOCAL))
    document = json.loads(config_path().read_text(encoding="utf-8"))
    assert document == {"mcpServers": {"other": REMOTE, "local": LOCAL}, "more": {"x": [1]}}
    assert os.name != "posix" or stat.S_IMODE(config_path().stat().st_mode) == 0o600
    assert remove_server(config_path(), "other")
    assert not remove_server(config_path(), "other")
    assert list(read_servers(config_path())) == ["local"]
