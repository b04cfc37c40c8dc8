import importlib.util

import pytest

from edgechat.base.errors import HubUnreachable, SettingsError
from edgechat.base.network.offline import unusable_proxy
from edgechat.models.hub import client
from edgechat.models.hub.listing import list_repo

SOCKS, HTTP = "socks://127.0.0.1:7897/", "http://127.0.0.1:9"


@pytest.fixture(autouse=True)
def no_proxy(hub, monkeypatch):
    hub.add("owner/repo", {"x.gguf": b"GGUF"})
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "NO_PROXY"):
        monkeypatch.delenv(name, raising=False)
        monkeypatch.delenv(name.lower(), raising=False)
    monkeypatch.setattr("edgechat.base.network.offline.find_spec", lambda name: None)


@pytest.mark.parametrize(
    ("proxies", "why", "hint"),
    [
        ({"ALL_PROXY": SOCKS}, "ALL_PROXY begins with socks://", "socks5://127.0.0.1:7897"),
        (
            {"all_proxy": "socks://me:secret@host:1"},
            "ALL_PROXY begins with socks://",
            "set it to socks5://host:1",
        ),
        ({"https_proxy": "socks5h://127.0.0.1:1"}, "HTTPS_PROXY is a SOCKS proxy", "pip install socksio"),
        ({"HTTP_PROXY": "ftp://x:1"}, "HTTP_PROXY begins with ftp://", "unset HTTP_PROXY"),
        ({"ALL_PROXY": SOCKS, "HTTPS_PROXY": HTTP}, "ALL_PROXY", "HTTPS_PROXY is enough: unset ALL_PROXY"),
    ],
)
def test_a_proxy_that_cannot_be_used_is_named(monkeypatch, proxies, why, hint):
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    with pytest.raises(HubUnreachable) as error:
        list_repo("owner/repo", None)
    assert why in error.value.message
    assert hint in error.value.hint
    assert "secret" not in error.value.message + error.value.hint


@pytest.mark.parametrize(
    "proxies",
    [
        {},
        {"ALL_PROXY": "127.0.0.1:9"},
        {"HTTPS_PROXY": "HTTPS://proxy:3128", "ALL_PROXY": ""},
        {"ALL_PROXY": SOCKS, "NO_PROXY": "localhost, *"},
    ],
)
def test_others_are_left_alone(monkeypatch, proxies):
    for name, value in proxies.items():
        monkeypatch.setenv(name, value)
    assert unusable_proxy() is None


def test_socks_works_where_its_package_is(monkeypatch):
    monkeypatch.setenv("ALL_PROXY", "socks5://127.0.0.1:1")
    assert unusable_proxy() is not None
    monkeypatch.setattr("edgechat.base.network.offline.find_spec", importlib.util.find_spec)
    assert (unusable_proxy() is None) is (importlib.util.find_spec("socksio") is not None)


@pytest.mark.parametrize("contents", [None, "no certificate"])
def test_certificates_that_cannot_be_read_are_named(tmp_path, monkeypatch, contents):
    path = tmp_path / "own.pem"
    if contents is not None:
        path.write_text(contents)
    monkeypatch.setenv("SSL_CERT_FILE", str(path))
    client._tls.cache_clear()
    with pytest.raises(SettingsError, match=r"SSL_CERT_FILE is '.*own\.pem'"):
        list_repo("owner/repo", None)
