"""Where the hub is, who may see the token, and where a redirect may lead."""

from __future__ import annotations

import pytest

from edgechat.errors import HubAnswerError, SettingsError
from edgechat.models.endpoint import Endpoint, endpoint, next_address


def test_what_an_endpoint_is(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("HF_ENDPOINT", raising=False)
    assert endpoint().url == "https://huggingface.co"
    for good in ("https://hf-mirror.com/", "http://10.0.0.1:8080/api/hub", "https://[::1]"):
        monkeypatch.setenv("HF_ENDPOINT", good)
        assert endpoint().url == good.rstrip("/")
    for bad in (
        "hf-mirror.com",
        "ftp://a",
        "https://",
        "https://a:b@c",
        "https://a?b",
        "http://a:x",
        "https://a\x1b",
    ):
        monkeypatch.setenv("HF_ENDPOINT", bad)
        with pytest.raises(SettingsError, match="HF_ENDPOINT"):
            endpoint()


def test_whose_token_it_is() -> None:
    hub = Endpoint("https://huggingface.co")
    assert hub.may_see_token("https://huggingface.co:443/a")
    for other in (
        "http://huggingface.co/",
        "https://huggingface.co:444/",
        "https://cdn.huggingface.co/",
        "https://huggingface.co.evil.com/",
        "https://huggingface.co@evil.com/",
    ):
        assert not hub.may_see_token(other)


@pytest.mark.parametrize(
    ("url", "location", "found"),
    [
        ("https://a.com/x/y", "/z", "https://a.com/z"),
        ("https://a.com/x", "https://b.com/y?c", "https://b.com/y?c"),
        ("http://a.com/x", "https://a.com/x", "https://a.com/x"),
        ("http://192.168.0.2/x", "http://192.168.0.3/y", "http://192.168.0.3/y"),
        ("http://127.0.0.1:1/x", "http://localhost:2/y", "http://localhost:2/y"),
        ("https://localhost/x", "http://127.0.0.1/y", "http://127.0.0.1/y"),
        ("https://a.com/x", "http://a.com/x", None),
        ("https://a.com/x", "http://127.0.0.1/x", None),
        ("http://a.com/x", "http://127.0.0.1:11434/api", None),
        ("https://a.com/x", "https://localhost./", None),
        ("https://a.com/x", "https://[::1]/", None),
        ("https://a.com/x", "https://[::ffff:127.0.0.1]/", None),
        ("https://a.com/x", "https://169.254.169.254/latest/meta-data", None),
        ("https://a.com/x", "https://0.0.0.0/", None),
        ("https://a.com/x", "file:///etc/passwd", None),
        ("https://a.com/x", "https://u:p@b.com/", None),
        ("https://a.com/x", "https://b.com:0/", None),
        ("https://a.com/x", "https://[b.com/", None),
    ],
)
def test_where_a_redirect_may_lead(url: str, location: str, found: str | None) -> None:
    if found is not None:
        assert next_address(url, location) == found
        return
    with pytest.raises(HubAnswerError):
        next_address(url, location)
