"""Where the hub is, who may see the token, and where a redirect may lead."""

import pytest

from edgechat.base.errors import HubAnswerError, SettingsError
from edgechat.models.hub.endpoint import Endpoint, endpoint, next_address


def test_what_an_endpoint_is(monkeypatch):
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


def test_whose_token_it_is():
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


SPECIAL = [
    *("169.254.169.254", "[fe80::1]", "[fe80::1%25eth0]", "[::ffff:169.254.169.254]", "[2002:a9fe:a9fe::]"),
    *("0xa9fea9fe", "2852039166", "169.254.43518", "0251.0376.0251.0376", "169.254.169.254."),
    *("0.0.0.0", "[::]", "0", "224.0.0.1", "[ff02::1]", "255.255.255.255", "[64:ff9b::a9fe:a9fe]"),
]
LOOPBACK = ["127.0.0.1", "127.1", "0x7f000001", "2130706433", "[::1]", "[::ffff:127.0.0.1]", "localhost."]


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
        *[
            (hub, f"http://{address}/latest/meta-data/", None)
            for hub in (
                "http://127.0.0.1:9/x",
                "http://localhost/x",
                "http://mirror.lan/x",
                "http://10.0.0.2/x",
            )
            for address in SPECIAL
        ],
        *[("http://a.com/x", f"http://{address}/", None) for address in LOOPBACK],
        *[("http://127.0.0.1:9/x", f"http://{address}/", f"http://{address}/") for address in LOOPBACK],
        ("http://169.254.7.7:8/x", "http://169.254.7.7:9/y", "http://169.254.7.7:9/y"),
        ("http://169.254.7.7:8/x", "http://169.254.169.254/", None),
        ("http://mirror.lan/x", "http://10.0.0.2/y", "http://10.0.0.2/y"),
        ("https://a.com/x", "file:///etc/passwd", None),
        ("https://a.com/x", "https://u:p@b.com/", None),
        ("https://a.com/x", "https://b.com:0/", None),
        ("https://a.com/x", "https://[b.com/", None),
    ],
)
def test_where_a_redirect_may_lead(url, location, found):
    if found is not None:
        assert next_address(url, location) == found
        return
    with pytest.raises(HubAnswerError):
        next_address(url, location)
