"""Images from the web: what a client is told. `tests/base/network/test_web.py` has what is refused."""

import httpx2
import pytest

from edgechat.base.errors import ImageError
from edgechat.server.media import ImageFetcher


def fetcher(status=200):
    transport = httpx2.MockTransport(
        lambda _request: httpx2.Response(status, stream=httpx2.ByteStream(b"image"))
    )
    return ImageFetcher(resolve=lambda _host, _port: ["1.1.1.1"], transport=transport)


@pytest.fixture(autouse=True)
def online(monkeypatch):
    for name in ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


def test_an_image_is_fetched():
    assert fetcher().fetch("https://example.org/a.png") == b"image"


def test_why_an_image_is_not_fetched():
    with pytest.raises(ImageError, match=r"The image at https://example.org/a.png cannot be fetched: .* 404"):
        fetcher(404).fetch("https://example.org/a.png")
    with pytest.raises(ImageError, match="is larger than 1 KiB"):
        fetcher().fetch("https://example.org/a.png", most_bytes=4)


@pytest.mark.parametrize("variable", ["EDGECHAT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_fetched(monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    with pytest.raises(ImageError, match=f"{variable} keeps edgechat offline") as caught:
        fetcher().fetch("https://example.org/a.png")
    assert caught.value.hint == "Send it as a data URL."
