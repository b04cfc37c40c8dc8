"""The key and the socket: who may be let in, and where the key is kept."""

import socket
import stat
from unittest.mock import Mock

import pytest

from edgechat.base import paths
from edgechat.base.errors import SettingsError
from edgechat.server.access import Key, find_key, key_file
from edgechat.server.serving import is_loopback, listen, url_for_others, url_of


@pytest.fixture(autouse=True)
def no_key(monkeypatch):
    monkeypatch.delenv("EDGECHAT_API_KEY", raising=False)


def test_a_key_is_made_once_and_kept_for_its_owner_alone():
    first = find_key(None)
    assert first.is_new
    assert first.text.startswith("ek-")
    assert len(first.text) == 46
    assert first.file == key_file()
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600
    key_file().chmod(0o644)
    again = find_key(None)
    assert (again.text, again.is_new) == (first.text, False)
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600


def test_a_key_that_is_given_wins_and_is_not_kept(monkeypatch):
    monkeypatch.setenv("EDGECHAT_API_KEY", "from-the-environment")
    assert find_key(None) == Key("from-the-environment", variable="EDGECHAT_API_KEY")
    assert find_key("from-the-line") == Key("from-the-line")
    assert not key_file().exists()


@pytest.mark.parametrize("bad", ["short", "with a space", "with\nnewline", "schlüssel-lang", "x" * 513])
def test_what_no_header_can_carry_is_no_key(bad, home):
    with pytest.raises(SettingsError):
        find_key(bad)
    key_file().write_text(bad)
    with pytest.raises(SettingsError, match="api-key"):
        find_key(None)


def test_an_empty_key_is_refused_but_a_file_left_empty_gets_a_key(monkeypatch):
    with pytest.raises(SettingsError):
        find_key("")
    key_file().touch()
    with monkeypatch.context() as full:
        full.setattr(paths, "replace", Mock(side_effect=OSError(28, "No space left on device")))
        with pytest.raises(SettingsError, match="No space left"):
            find_key(None)
    made = find_key(None)
    assert made.is_new
    assert find_key(None).text == made.text
    assert stat.S_IMODE(key_file().stat().st_mode) == 0o600


def test_a_port_that_is_taken_is_told_with_another():
    with listen("127.0.0.1", 0) as first:
        port = first.getsockname()[1]
        with pytest.raises(SettingsError, match=str(port)) as caught:
            listen("127.0.0.1", port)
        assert f"--port {port + 1}" in caught.value.hint
    with pytest.raises(SettingsError, match=r"no\.such\.name\.invalid"):
        listen("no.such.name.invalid", 0)


@pytest.mark.parametrize(
    ("host", "told", "hint"),
    [
        ("203.0.113.7", "is not an address of this machine", "--host 127.0.0.1"),
        ("localhost:9000", "address 'localhost:9000' cannot be resolved", "--host localhost --port 9000"),
    ],
)
def test_what_is_no_address_here_is_told_so(host, told, hint):
    with pytest.raises(SettingsError, match=told) as caught:
        listen(host, 0)
    assert hint in (caught.value.hint or "")


def test_others_are_told_an_address_that_is_not_the_loopbacks():
    with listen("0.0.0.0", 0) as listener:
        assert "://0.0.0.0" not in url_for_others(listener)
        assert "://127." not in url_for_others(listener)


@pytest.mark.parametrize(
    ("host", "url", "loopback"),
    [
        ("127.0.0.1", "http://127.0.0.1:", True),
        ("localhost", "http://", True),
        ("::1", "http://[::1]:", True),
        ("0.0.0.0", "http://127.0.0.1:", False),
        ("::", "http://[::1]:", False),
    ],
)
def test_the_address_to_type(host, url, loopback):
    with listen(host, 0) as listener:
        assert url_of(listener).startswith(url)
        assert is_loopback(listener) is loopback
        with socket.create_connection(listener.getsockname()[:2], timeout=1):
            pass
