"""Pages of the web as text. `tests/base/network/test_web.py` has what is never fetched."""

import json

import httpx2
import pytest

from edgechat.base.network.html_text import page_text
from edgechat.base.network.web import PublicWeb
from edgechat.tools.builtin import page
from edgechat.tools.builtin.page import web_pages
from edgechat.tools.tool import ToolSpec

FETCH = ToolSpec(server="web", name="fetch_page")

HTML = """<!doctype html><html><head><title>A &amp; B</title><style>p {}</style></head><body>
<script>alert("no")</script><h1>Head<b>ing</b></h1><p>One
   two <a href="https://example.org/x">a link</a>, <a href="javascript:x">none</a>.</p>
<ul><li>first<li>second</ul><pre>  kept
    so</pre><svg><text>unseen</text></svg><template>unseen</template></body></html>"""


@pytest.fixture(autouse=True)
def online(monkeypatch):
    for name in ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)


async def fetch(body, kind, url="https://example.org/"):
    answer = httpx2.Response(200, headers={"content-type": kind}, stream=httpx2.ByteStream(body))
    web = PublicWeb(
        "*/*", resolve=lambda _host, _port: ["1.1.1.1"], transport=httpx2.MockTransport(lambda _: answer)
    )
    return await web_pages(web).call(FETCH, json.dumps({"url": url}))


def test_the_text_of_a_page():
    assert page_text(HTML).splitlines() == [
        "# A & B",
        "",
        "# Heading",
        "",
        "One two a link (https://example.org/x), none.",
        "",
        "- first",
        "- second",
        "",
        "```",
        "  kept",
        "    so",
        "```",
    ]


@pytest.mark.parametrize("html", ["", "<", "<p", "<a href=", "<script>", "&#x110000;", "<li>" * 50_000])
def test_pages_that_are_broken(html):
    assert isinstance(page_text(html), str)


@pytest.mark.parametrize(
    ("body", "kind", "expected"),
    [
        (b"<p>caf\xe9</p>", "text/html; charset=latin-1", "café"),
        ("<p>café</p>".encode(), "text/html", "café"),
        (b'<meta charset="iso-8859-1"><p>caf\xe9</p>', "text/html", "café"),
        (b"<p>x</p>", "text/html; charset=nonsense", "x"),
        (b"<p>x</p>" + b"z" * 500_000, "text/plain; charset=Punycode", "<p>x</p>" + "z" * 500_000),
        (b"<p>x</p>", "text/plain", "<p>x</p>"),
        (b'{"a": 1}', "application/json", '{"a": 1}'),
        (b"<HTML><p>x", "", "x"),
    ],
)
async def test_kinds_of_pages(body, kind, expected):
    result = await fetch(body, kind)
    assert result.text == f"https://example.org/\n\n{expected}"
    assert not result.failed


@pytest.mark.slow
async def test_a_page_that_takes_hours_to_read(monkeypatch):
    monkeypatch.setattr(page, "_READING_SECONDS", 1.0)
    result = await fetch(b"<a " * 500_000, "text/html")
    assert result.text == (
        "Error: https://example.org/ cannot be read: its reader did not respond within 1 seconds."
    )


async def test_what_is_no_text():
    assert (await fetch(b"%PDF", "application/pdf")).text == (
        "Error: https://example.org/ is not text, but application/pdf."
    )
    assert (await fetch(b"a\0b", "text/plain")).failed
    long = await fetch(b"x" * (2**21 + 1), "text/plain")
    assert long.text.endswith("x\n[The page is longer.]")


async def test_what_is_not_fetched(monkeypatch):
    result = await fetch(b"", "text/plain", url="http://example.org:8080/")
    assert result.text.startswith("Error: http://example.org:8080/ cannot be fetched: only http and https")
    private = PublicWeb("*/*", resolve=lambda _host, _port: ["10.0.0.1"])
    result = await web_pages(private).call(FETCH, '{"url": "http://router/"}')
    assert "is not on the public internet" in result.text
    monkeypatch.setenv("EDGECHAT_OFFLINE", "1")
    assert "EDGECHAT_OFFLINE keeps edgechat offline" in (await fetch(b"x", "text/plain")).text
