"""The public web: nothing but the internet is reached, whatever a URL or a server on the way says."""

import contextlib
import socket
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer

import httpx2
import pytest

from edgechat.base.network.web import MAX_REDIRECTS, Fetched, NotFetched, PublicWeb, addresses_of, is_public

PAGE = b"<p>A page.</p>"
PUBLIC, PUBLIC_6 = "93.184.216.34", "2606:2800:220:1::1"


class Rerouted(httpx2.BaseTransport):
    """Connects to a server of the test, and records where it should have gone."""

    def __init__(self, port):
        self.hosts = []
        self.names = []
        self._port = port
        self._inner = httpx2.HTTPTransport(trust_env=False)

    def handle_request(self, request):
        self.hosts.append(request.url.host)
        self.names.append((request.headers["host"], request.extensions.get("sni_hostname")))
        request.url = request.url.copy_with(scheme="http", host="127.0.0.1", port=self._port)
        return self._inner.handle_request(request)

    def close(self):
        self._inner.close()


class Web:
    """A server, a transport to it, and what names mean."""

    def __init__(self):
        self.answer = lambda handler: send(handler, PAGE)
        self.addresses = {"example.org": [PUBLIC]}
        self.resolved = []
        web = self

        class Handler(BaseHTTPRequestHandler):
            def do_GET(self):
                web.answer(self)

            def log_message(self, *args):
                pass

        self.server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.transport = Rerouted(self.server.server_address[1])
        self.fetcher = PublicWeb("*/*", resolve=self.resolve, transport=self.transport)
        threading.Thread(target=self.server.serve_forever, args=(0.01,), daemon=True).start()

    def resolve(self, host, port):
        self.resolved.append(host)
        if host not in self.addresses:
            raise socket.gaierror("unknown")
        return self.addresses[host]

    def fetch(self, url="http://example.org/a", *, most=2**20, seconds=5.0):
        return self.fetcher.fetch(url, most_bytes=most, seconds=seconds).data

    def refused(self, url="http://example.org/a", **limits):
        with pytest.raises(NotFetched) as caught:
            self.fetch(url, **limits)
        return str(caught.value)


@pytest.fixture
def web(monkeypatch):
    for name in ("EDGECHAT_OFFLINE", "HF_HUB_OFFLINE", "TRANSFORMERS_OFFLINE"):
        monkeypatch.delenv(name, raising=False)
    found = Web()
    yield found
    found.server.shutdown()
    found.server.server_close()


def send(handler, body, status=200, **headers):
    handler.send_response(status)
    for name, value in headers.items():
        handler.send_header(name.replace("_", "-"), value)
    handler.send_header("Content-Length", str(len(body)))
    handler.end_headers()
    handler.wfile.write(body)


def test_an_image_is_fetched_from_the_address_that_was_checked(web):
    assert web.fetch("http://example.org/a.png") == PAGE
    assert web.fetch("https://example.org/a.png") == PAGE
    assert web.transport.hosts == [PUBLIC, PUBLIC]
    assert web.transport.names == [("example.org", "example.org")] * 2
    assert web.resolved == ["example.org"] * 2  # once for each: a name may mean something else later
    web.addresses["example.org"] = [PUBLIC_6]
    assert web.fetch("http://example.org:80/a.png?x=1") == PAGE
    assert web.transport.hosts[-1] == PUBLIC_6


@pytest.mark.parametrize(
    "address",
    [
        *("127.0.0.1", "127.9.9.9", "0.0.0.0", "10.0.0.1", "172.16.0.1", "192.168.1.1"),
        *("169.254.169.254", "100.64.0.1", "100.100.100.200", "192.0.0.8", "198.18.0.1", "192.0.2.1"),
        *("224.0.0.1", "239.1.1.1", "255.255.255.255", "240.0.0.1"),
        *("::", "::1", "fe80::1", "fe80::1%eth0", "fc00::1", "fd00:ec2::254", "fec0::1", "ff02::1"),
        *("::ffff:127.0.0.1", "::ffff:169.254.169.254", "::127.0.0.1", "64:ff9b::7f00:1", "64:ff9b:1::1"),
        *("2002:7f00:1::1", "2001:0:1::1", "2001:db8::1", "", "localhost", "1.2.3"),
    ],
)
def test_what_is_not_on_the_internet_is_refused(web, address):
    assert not is_public(address)
    web.addresses["example.org"] = [PUBLIC, address]  # one of several is enough
    assert "is not on the public internet" in web.refused()
    assert web.transport.hosts == []


@pytest.mark.parametrize("address", [PUBLIC, PUBLIC_6, "1.1.1.1", "64:ff9b::5db8:d822", "::ffff:1.1.1.1"])
def test_what_is_on_the_internet(address):
    assert is_public(address)


@pytest.mark.parametrize(
    "host", ["127.0.0.1", "2130706433", "0x7f.1", "0177.0.0.1", "127.1", "[::1]", "[::ffff:7f00:1]"]
)
def test_addresses_in_disguise(host, monkeypatch):
    monkeypatch.delenv("EDGECHAT_OFFLINE", raising=False)
    with pytest.raises(NotFetched, match=r"is not on the public internet|host is unknown|Invalid IPv4"):
        PublicWeb("*/*").fetch(f"http://{host}/a", most_bytes=9, seconds=5.0)


def test_names_of_this_machine():
    assert addresses_of("localhost", 80)
    assert not any(map(is_public, addresses_of("localhost", 80)))


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://example.org:8080/a.png", "usual ports"),
        ("http://example.org:22/", "usual ports"),
        ("ftp://example.org/a.png", "only http and https"),
        ("file:///etc/passwd", "only http and https"),
        ("http://user:secret@example.org/a.png", "password"),
        ("http://nowhere.example/a.png", "host is unknown"),
        ("http://", "host is unknown"),
        ("http://[::1", "Invalid"),
    ],
)
def test_urls_that_are_not_allowed(web, url, why):
    assert why in web.refused(url)
    assert web.transport.hosts == []


def redirect(location, status=302):
    return lambda handler: (
        send(handler, PAGE) if handler.path == "/end" else send(handler, b"", status, Location=location)
    )


@pytest.mark.parametrize("status", [301, 302, 303, 307, 308])
def test_redirects_are_followed(web, status):
    web.addresses["other.example"] = ["1.1.1.1"]
    web.answer = redirect("https://other.example/end", status)
    assert web.fetch("http://example.org/a") == PAGE
    assert web.transport.hosts == [PUBLIC, "1.1.1.1"]
    web.answer = redirect("/end", status)
    assert web.fetch("http://example.org/a") == PAGE


@pytest.mark.parametrize(
    ("location", "why"),
    [
        ("http://inside.example/", "is not on the public internet"),
        ("http://127.0.0.1/", "is not on the public internet"),
        ("http://example.org:8080/", "usual ports"),
        ("file:///etc/passwd", "only http and https"),
        ("/again", "more than 3 times"),
    ],
)
def test_each_redirect_is_checked(web, location, why):
    web.addresses |= {"inside.example": ["10.0.0.1"], "127.0.0.1": ["127.0.0.1"]}
    web.answer = redirect(location)
    assert why in web.refused()
    assert set(web.transport.hosts) == {PUBLIC}
    assert len(web.transport.hosts) <= MAX_REDIRECTS + 1


def test_a_name_that_changes_its_meaning_is_asked_once(web):
    """DNS rebinding: the second answer would be this machine."""
    answers = iter([[PUBLIC], ["127.0.0.1"]])
    web.fetcher = PublicWeb("*/*", resolve=lambda host, port: next(answers), transport=web.transport)
    assert web.fetch() == PAGE
    assert "is not on the public internet" in web.refused()
    assert web.transport.hosts == [PUBLIC]


def test_size_is_bounded(web):
    web.answer = lambda handler: send(handler, bytes(3 * 2**20))
    assert "is larger than 2 MiB" in web.refused(most=2 * 2**20)
    assert len(web.fetch(most=3 * 2**20)) == 3 * 2**20
    cut = web.fetcher.fetch("http://example.org/", most_bytes=10, seconds=5.0, may_cut=True)
    assert cut == Fetched(bytes(10), "", "http://example.org/", cut=True)


@pytest.mark.slow
def test_time_is_bounded(web):
    def drip(handler):
        handler.send_response(200)
        handler.end_headers()
        with contextlib.suppress(OSError):  # nobody reads on
            for _ in range(200):
                handler.wfile.write(b"x")
                time.sleep(0.05)

    web.answer = drip
    began = time.monotonic()
    assert "took more than 1 seconds" in web.refused(seconds=1.0)
    assert time.monotonic() - began < 8


def test_errors_of_the_other_server(web):
    web.answer = lambda handler: send(handler, b"", 404)
    assert "answered with status 404" in web.refused()
    web.answer = lambda handler: send(handler, PAGE, Content_Encoding="gzip")
    assert "compressed" in web.refused()
    web.answer = lambda handler: handler.connection.close()
    assert web.refused()


@pytest.mark.parametrize("variable", ["EDGECHAT_OFFLINE", "HF_HUB_OFFLINE"])
def test_offline_nothing_is_fetched(web, monkeypatch, variable):
    monkeypatch.setenv(variable, "1")
    assert f"{variable} keeps edgechat offline" in web.refused()
    assert web.resolved == []
