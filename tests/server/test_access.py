"""Who may speak to the server: each HTTP row of the known CVEs of local model servers, byte by byte."""

import asyncio
import itertools
import random
import re

import pytest

from edgechat.server import connection, exchange
from edgechat.server.access import AccessPolicy, AccessRules
from tests.server.fakes import KEY, FakeModels, serving
from tests.server.raw import Raw, ask

CHAT = b'{"model": "default", "messages": [{"role": "user", "content": "hi"}]}'
CHATS = "/v1/chat/completions"
PAGE = "https://example.org"
UNTOLD = {"Content_Length": None, "Transfer_Encoding": "chunked"}
"""A body whose length is not told."""


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0", "::1"])
async def test_a_name_that_is_rebound_to_us_is_refused_on_every_bind(host):
    models = FakeModels()
    async with serving(models, host=host) as url:
        port = url.rpartition(":")[2]
        evil = ("evil.example", "127.0.0.1.evil.example", "user@127.0.0.1", "[::1]x", "192.168.7.7")
        evil = [f"{name}:{port}" for name in (*evil, f"127.0.0.1:{port}")]
        for name in (*evil, "evil.example", "127.0.0.1", "localhost:1"):
            status, _, said = await ask(url, Host=name)
            assert (status, said["error"]["code"]) == (403, "wrong_host"), name
            assert (await ask(url, "POST", CHATS, body=CHAT, Host=name))[0] == 403
            assert (await ask(url, path="/health", Host=name))[0] == 403
        for name in (f"localhost:{port}", f"127.0.0.1:{port}", f"LOCALHOST:{port}", f"[::1]:{port}"):
            assert (await ask(url, Host=name))[0] == 200, name
    assert models.requests == []


async def test_a_server_for_others_may_be_called_by_its_own_names():
    async with serving(FakeModels(), AccessRules(KEY, frozenset({"box.local"})), host="0.0.0.0") as url:
        port = url.rpartition(":")[2]
        assert (await ask(url, Host=f"box.local:{port}"))[0] == 200
        assert (await ask(url, Host="box.local"))[0] == 403


@pytest.mark.parametrize(
    ("server", "name", "status"),
    [
        (("192.168.7.7", 8000), "192.168.7.7:8000", 200),
        (("::ffff:192.168.7.7", 8000), "192.168.7.7:8000", 200),  # on a socket for both kinds
        (("fe80::1", 8000), "[fe80::1]:8000", 200),
        (("192.168.7.7", 80), "192.168.7.7", 200),
        (("192.168.7.7", 81), "192.168.7.7", 403),
        (("192.168.7.7", 8000), "192.168.7.8:8000", 403),
        (("fe80::1", 8000), "[fe80::2]:8000", 403),
    ],
)
async def test_a_server_for_others_may_be_called_by_the_address_it_is_reached_at(server, name, status):
    statuses = []

    async def app(scope, receive, send):
        statuses.append(200)

    async def send(message):
        statuses.extend([message["status"]] if "status" in message else [])

    scope = {"type": "http", "path": "/", "server": server, "headers": [(b"host", name.encode())]}
    await AccessPolicy(app, AccessRules(KEY))(scope, None, send)
    assert statuses == [status]


async def test_a_name_that_it_has_elsewhere_may_come_with_any_port():
    async with serving(FakeModels(), AccessRules(KEY, aliases=frozenset({"nas.lan"}))) as url:
        for name in ("nas.lan", "nas.lan:443", "NAS.lan:11434"):
            assert (await ask(url, Host=name))[0] == 200, name
        for name in ("other.lan", "nas.lan.evil", "nas.lan@evil", "nas.lan:x"):
            assert (await ask(url, Host=name))[0] == 403, name
        for host, name in (("Other.lan:80", "other.lan"), ("x" * 99, f"{'x' * 79}…"), ("nas.lan:x", "NAME")):
            _, _, said = await ask(url, Host=host)
            assert said["error"]["message"] == (
                "Unknown host name. Use the URL that `edgechat serve` printed, or start the server with "
                f"--allow-host {name} if clients use that name."
            )


async def test_without_the_key_nothing_but_health_and_the_first_page_answers(models, url):
    paths = ("/v1/models", "/metrics", "/openapi.json", "/v1/models/scripted", "/nothing")
    for path in paths:
        for key in (None, "", "ek-wrong", KEY[:-1], KEY + "x", f"{KEY}\xe9"):
            status, headers, said = await ask(url, path=path, key=key)
            assert (status, headers["www-authenticate"]) == (401, "Bearer"), (path, key)
            assert KEY not in str(said)
    assert (await ask(url, "POST", CHATS, body=CHAT, key=None))[0] == 401
    assert (await ask(url, key=None, Authorization=f"Basic {KEY}"))[0] == 401
    assert (await ask(url, key=None, Authorization=f"bearer  {KEY}"))[0] == 200
    status, headers, page = await ask(url, path="/", key=None)
    assert (status, headers["content-type"]) == (200, "text/plain; charset=utf-8")
    assert b"/v1/chat/completions" in page
    assert KEY.encode() not in page
    assert (await ask(url, path="/health", key=None))[2] == {"status": "ready"}
    assert (await ask(url, path="/health"))[2] == {"status": "ready", "detail": "scripted is loaded."}
    assert models.requests == []
    assert ("/v1/chat/completions", 401, None) in models.metrics


@pytest.mark.parametrize(
    ("header", "value", "told"),
    [
        ("X_Nothing", "x", "No API key was sent."),
        ("x_api_key", "another", "The API key is not valid."),
        ("api_key", KEY, "The api-key header is not supported."),
        ("Authorization", KEY, "The key must follow the word Bearer."),
        ("Authorization", "bearer an other", "The API key is not valid."),
    ],
)
async def test_who_is_not_let_in_is_told_what_was_wrong_with_the_key(header, value, told):
    async with serving(FakeModels()) as url:
        status, _, said = await ask(url, key=None, **{header: value})
    assert (status, said["error"]["code"]) == (401, "invalid_api_key")
    how = "Send 'Authorization: Bearer KEY'; at startup, `edgechat serve` prints where the key is stored."
    assert said["error"]["message"] == f"{told} {how}"


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"x_api_key": KEY}, 200),
        ({"x_api_key": f" {KEY} "}, 200),
        ({"x_api_key": KEY, "Authorization": "Bearer another"}, 401),
        ({"x_api_key": "another", "Authorization": f"Bearer {KEY}"}, 200),
        ({"Authorization": f"BEARER {KEY}"}, 200),
        ({"Authorization": f"Bearer{KEY}"}, 401),
    ],
)
async def test_which_key_counts(headers, status):
    async with serving(FakeModels()) as url:
        assert (await ask(url, key=None, **headers))[0] == status


async def test_where_no_key_is_needed_any_will_do():
    async with serving(FakeModels(), AccessRules(None)) as url:
        for headers in ({}, {"x_api_key": "any"}, {"Authorization": "Basic x"}):
            assert (await ask(url, key=None, **headers))[0] == 200


async def test_a_page_cannot_even_tell_that_the_server_is_there(url):
    for site, expected in (("cross-site", 403), ("same-site", 403), ("same-origin", 200), ("none", 200)):
        assert (await ask(url, path="/health", Sec_Fetch_Site=site))[0] == expected


@pytest.mark.parametrize(
    "line", ["Origin: https://evil.example", f"Authorization: Bearer {KEY}", "Content-Type: application/json"]
)
async def test_headers_that_decide_are_there_once(line):
    models = FakeModels()
    async with serving(models) as url:
        raw = await Raw.to(url)
        name, _, value = line.partition(": ")
        more = {name: value, name.upper(): value}
        await raw.ask("POST", "/v1/chat/completions", key=None, body=CHAT, **more)
        status, _, said = await raw.answer()
        assert (status, said["error"]["code"]) == (400, "repeated_header")
        assert said["error"]["message"] == f"The header {name.lower()!r} was sent twice."
    assert models.requests == []


async def test_pages_of_other_origins_are_refused_and_never_named_in_the_answer():
    models = FakeModels()
    async with serving(models) as url:
        port = url.rpartition(":")[2]
        for origin in (
            PAGE,
            "null",
            "http://localhost:1",
            f"https://127.0.0.1:{port}",
            f"http://127.0.0.1:{port}.x",
        ):
            for method, body in (("POST", CHAT), ("GET", None), ("OPTIONS", None)):
                status, headers, said = await ask(
                    url, method, "/v1/chat/completions", body=body, Origin=origin
                )
                assert (status, said["error"]["code"]) == (403, "wrong_origin")
                assert said["error"]["message"] == (
                    "Web pages from this origin are not allowed to use the server; "
                    "`edgechat serve --cors ORIGIN` allows them."
                )
                assert not [name for name in headers if name.startswith("access-control")]
        assert (await ask(url, Origin=url))[0] == 200
    assert models.requests == []


async def test_a_named_origin_may_and_only_that_one():
    async with serving(FakeModels(), AccessRules(KEY, origins=frozenset({PAGE}))) as url:
        asked = "authorization, content-type, x-stainless-os, X-Title, http-referer"
        wanted = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Headers": asked}
        status, headers, _ = await ask(url, "OPTIONS", CHATS, key=None, Origin=PAGE, **wanted)
        assert status == 200
        assert headers["access-control-allow-origin"] == PAGE
        assert headers["access-control-allow-headers"] == asked
        assert "access-control-allow-credentials" not in headers
        assert "access-control-allow-private-network" not in headers
        for method, expected in (("GET", 200), ("DELETE", 200), ("PUT", 400)):
            asked = {"Access_Control_Request_Method": method}
            assert (await ask(url, "OPTIONS", key=None, Origin=PAGE, **asked))[0] == expected
        status, headers, _ = await ask(url, "POST", "/v1/chat/completions", body=CHAT, Origin=PAGE)
        assert (status, headers["access-control-allow-origin"], headers["vary"]) == (200, PAGE, "Origin")
        assert headers["access-control-expose-headers"] == "Retry-After"
        status, headers, _ = await ask(url, key=None, Origin=PAGE)
        assert (status, headers["access-control-allow-origin"]) == (401, PAGE)
        for refused in ({"Origin": "https://example.org.evil"}, {"Origin": PAGE, "Host": "evil.example"}):
            for method in ("GET", "OPTIONS"):
                status, headers, _ = await ask(url, method, Access_Control_Request_Method="POST", **refused)
                assert status == 403
                assert "access-control-allow-origin" not in headers


async def test_a_named_page_of_the_internet_may_ask_for_a_server_of_this_network():
    async with serving(FakeModels(), AccessRules(KEY, origins=frozenset({PAGE}))) as url:
        asked = {"Access_Control_Request_Method": "POST", "Access_Control_Request_Private_Network": "true"}
        status, headers, _ = await ask(url, "OPTIONS", key=None, Origin=PAGE, **asked)
        assert (status, headers["access-control-allow-private-network"]) == (200, "true")


@pytest.mark.parametrize("kind", ["text/plain", "multipart/form-data", "application/jsonx"])
async def test_what_a_form_could_send_is_no_request(kind, models, url):
    status, _, said = await ask(url, "POST", CHATS, body=CHAT, Content_Type=kind)
    assert (status, said["error"]["type"]) == (415, "invalid_request_error")
    charset = "application/json; charset=utf-8"
    assert (await ask(url, "POST", CHATS, body=CHAT, Content_Type=charset))[0] == 200
    packed = await ask(url, "POST", CHATS, body=CHAT, Content_Encoding="gzip")
    assert packed[0] == 415
    assert len(models.requests) == 1


@pytest.mark.parametrize("kind", [None, "application/x-www-form-urlencoded"])
async def test_programs_need_not_say_that_they_send_json(kind, models, url):
    """LiteLLM says nothing of what it sends to Ollama's API, and `curl -d` names a form."""
    for path in (CHATS, "/api/chat", "/v1/messages"):
        assert (await ask(url, "POST", path, body=CHAT, Content_Type=kind))[0] == 200
    of_a_form = await ask(url, "POST", CHATS, body=b"%7B%22messages%22%3A=", Content_Type=kind)
    of_a_page = await ask(url, "POST", CHATS, body=CHAT, Content_Type=kind, Origin="null")
    assert (of_a_form[0], of_a_page[0], len(models.requests)) == (400, 403, 3)


@pytest.mark.slow
async def test_a_body_has_a_bound_told_or_not(monkeypatch, url):
    monkeypatch.setattr(exchange, "BODY_BYTES", 1000)
    monkeypatch.setattr(exchange, "DRAIN_SECONDS", 0.2)
    told = await Raw.to(url)
    await told.ask("POST", CHATS, body=b"", Content_Length=str(10**12))
    assert (await told.answer())[0] == 413
    assert await told.is_closed()
    untold = await Raw.to(url)
    await untold.ask("POST", CHATS, body=b"", **UNTOLD)
    untold.writer.write(b"400\r\n" + b" " * 0x400 + b"\r\n")
    assert (await untold.answer())[0] == 413
    assert (await ask(url, "POST", CHATS, body=b" " * 900 + CHAT))[0] == 200


async def test_a_body_that_drips_is_cut_off(monkeypatch, url):
    monkeypatch.setattr(exchange, "BODY_SECONDS", 0.2)
    raw = await Raw.to(url)
    await raw.ask("POST", CHATS, body=b"{", Content_Length="100")
    assert (await raw.answer())[0] == 408
    assert await raw.is_closed()


@pytest.mark.slow
async def test_a_head_that_drips_is_cut_off(monkeypatch, models, url):
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.3)
    silent, dripping, second = [await Raw.to(url) for _ in range(3)]
    await second.ask()
    await second.answer()

    async def drip(raw):
        for letter in itertools.chain(b"GET /v1/models HTTP/1.1\r\n", itertools.repeat(ord("x"))):
            raw.writer.write(bytes([letter]))
            await asyncio.sleep(0.05)

    dripped = [asyncio.create_task(drip(raw)) for raw in (dripping, second)]
    for raw in (silent, dripping, second):
        assert await raw.is_closed()
    for one in dripped:
        one.cancel()


@pytest.mark.slow
async def test_who_was_refused_cannot_hold_on_by_going_on_to_send(monkeypatch, url):
    monkeypatch.setattr(connection, "HEADER_SECONDS", 0.3)
    raw = await Raw.to(url)
    await raw.ask("POST", CHATS, key=None, body=b"{", Content_Length="1000000")
    assert (await raw.answer())[0] == 401

    async def drip():
        while True:
            raw.writer.write(b" ")
            await asyncio.sleep(0.05)

    dripping = asyncio.create_task(drip())
    assert await raw.is_closed()
    dripping.cancel()


async def test_strangers_do_not_take_the_connections_of_who_has_the_key(monkeypatch, url):
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 3)
    silent, asking, known = [await Raw.to(url) for _ in range(3)]
    await asking.ask(path="/health", key=None)
    await asking.answer()
    await known.ask()
    await known.answer()
    newcomers = [await Raw.to(url)]
    for stranger in (silent, asking):
        await newcomers[-1].ask()
        assert (await newcomers[-1].answer())[0] == 200
        assert await stranger.is_closed()
        newcomers.append(await Raw.to(url))
    # All others have the key, and are silent: whoever is so for longest goes.
    assert await known.is_closed()
    await newcomers[-1].ask()
    assert (await newcomers[-1].answer())[0] == 200


@pytest.mark.slow
async def test_bodies_without_end_lock_nobody_out(monkeypatch):
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 40)
    models = FakeModels(["Hello", 0.5])
    async with serving(models) as url:
        running = await Raw.to(url)
        await running.ask("POST", CHATS, body=CHAT)
        endless = [await Raw.to(url) for _ in range(39)]
        for raw in endless:
            await raw.ask("POST", CHATS, body=b"{", Content_Length="100")
        await asyncio.sleep(0.1)
        newcomers = await asyncio.gather(*(Raw.to(url) for _ in range(5)))
        for raw in newcomers:
            await raw.ask()
        assert [(await raw.answer())[0] for raw in newcomers] == [200] * 5
        assert await endless[0].is_closed()
        assert (await running.answer())[0] == 200
        endless[-1].writer.write(b" " * 99)
        assert (await endless[-1].answer())[0] == 400


@pytest.mark.slow
async def test_silence_between_requests_locks_nobody_out(monkeypatch):
    monkeypatch.setattr(connection, "MOST_CONNECTIONS", 16)
    async with serving(FakeModels(["Hello", 0.5])) as url:
        idle = [await Raw.to(url) for _ in range(15)]
        running = await Raw.to(url)
        for raw in (*idle, idle[0]):  # which is silent for shorter than the others then
            await raw.ask()
            assert (await raw.answer())[0] == 200
        await running.ask("POST", CHATS, body=CHAT)
        assert (await ask(url))[0] == 200
        assert await idle[1].is_closed()
        await idle[0].ask()
        assert (await idle[0].answer())[0] == 200
        assert (await running.answer())[0] == 200


@pytest.mark.parametrize(
    "head",
    [
        "POST {} HTTP/1.1|Content-Length: 5|Transfer-Encoding: chunked",
        "POST {} HTTP/1.1|Transfer-Encoding: chunked|Content-Length: 0",
        "POST {} HTTP/1.0|Transfer-Encoding: chunked",
    ],
)
async def test_a_body_of_two_lengths_is_refused_and_the_connection_closed(head):
    models = FakeModels()
    lines = head.format("/v1/chat/completions").split("|")
    async with serving(models) as url:
        raw = await Raw.to(url)
        more = [f"Host: {raw.host}", f"Authorization: Bearer {KEY}", "Content-Type: application/json"]
        chunk = b"%x\r\n%s\r\n0\r\n\r\n" % (len(CHAT), CHAT)
        smuggled = f"GET /v1/models HTTP/1.1\r\nHost: {raw.host}\r\n\r\n".encode()
        raw.writer.write("\r\n".join([*lines, *more, "", ""]).encode() + chunk + smuggled)
        status, headers, said = await raw.answer()
        assert (status, headers["connection"]) == (400, "close")
        assert "Transfer-Encoding" in said["error"]["message"]
        assert await raw.is_closed()
    assert models.requests == []


@pytest.mark.parametrize("head", [{"X_Long": "x" * 70_000}, {f"X_{n}": "x" for n in range(101)}])
async def test_heads_have_a_bound_whole_or_not(head, url):
    raw = await Raw.to(url)
    await raw.ask(**head)
    status, headers, said = await raw.answer()
    assert (status, headers["content-type"]) == (431, "application/json")
    assert said["error"]["type"] == "invalid_request_error"
    assert await raw.is_closed()
    assert (await ask(url, **{f"X_{n}": "x" for n in range(90)}))[0] == 200
    raw = await Raw.to(url)
    raw.writer.write(b"GET / HTTP/1.1\r\n" + b"X: y\r\n" * 200)
    assert (await raw.head())[0] == 431


async def test_a_body_in_crumbs_is_not_read(url):
    for key in (KEY, None):
        raw = await Raw.to(url)
        await raw.ask("POST", CHATS, key=key, body=b"", **UNTOLD)
        if key is None:
            assert (await raw.answer())[0] == 401
        raw.writer.write(b"1\r\n \r\n" * 300)
        if key is not None:
            status, _, said = await raw.answer()
            assert (status, said["error"]["message"]) == (400, str(connection._CRUMBS))
        assert await raw.is_closed()
    raw = await Raw.to(url)
    await raw.ask("POST", CHATS, body=b"", **UNTOLD)
    raw.writer.write(b"12C\r\n" + b" " * 300 + b"\r\n")
    for part in (CHAT[:9], CHAT[9:]):
        raw.writer.write(f"{len(part):x}\r\n".encode() + part + b"\r\n")
    raw.writer.write(b"0\r\n\r\n")
    assert (await raw.answer())[0] == 200


@pytest.mark.slow
async def test_who_leaves_is_seen_behind_a_next_request_too():
    models = FakeModels(["Hello", 600.0])
    async with serving(models) as url:
        upgrade = {"Connection": "upgrade", "Upgrade": "h2c"}
        cases = [(0, {}), (0.05, {}), (0.05, upgrade)]
        for number, (pause, more) in enumerate(cases, 1):
            raw = await Raw.to(url)
            await raw.ask("POST", CHATS, body=CHAT, **more)
            await asyncio.sleep(pause)
            await raw.ask(path="/health")
            await asyncio.sleep(0.05)
            raw.close()
            while len(models.stopped) < number:
                await asyncio.sleep(0.01)


@pytest.mark.slow
async def test_requests_sent_ahead_are_answered_in_turn_and_have_a_bound():
    models = FakeModels([0.2, "Hello"], ["Hello"], ["Hello", 30.0])
    async with serving(models) as url:
        raw = await Raw.to(url)
        await raw.ask("POST", CHATS, body=CHAT)
        await asyncio.sleep(0.05)
        await raw.ask(path="/health")
        await raw.ask("POST", CHATS, body=CHAT)
        for path in ("chat", "health", "chat"):
            status, _, said = await raw.answer()
            assert (status, "choices" in said) == (200, path == "chat")
        await raw.ask("POST", CHATS, body=CHAT)
        await asyncio.sleep(0.05)
        raw.writer.write(b"x" * 100_000)
        assert await raw.is_closed()


FORM = b', "response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": '


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"{",
        b"[]",
        b'"x"',
        b"\xff\xfe",
        b'{"model": "default", "messages": "x"}',
        b'{"model": "default", "messages": []}',
        b'{"model": "default", "messages": [{"role": "user", "content": "\\ud800"}]}',
        CHAT[:-1] + b', "tools": ' + b"[" * 100_000 + b"]" * 100_000 + b"}",
        CHAT[:-1] + b', "max_tokens": ' + b"9" * 5000 + b"}",
        *(CHAT[:-1] + FORM + b'{"a": ' * deep + b"1" + b"}" * deep + b"}}}" for deep in (200, 50_000)),
    ],
)
async def test_bodies_of_strangers_are_refused_in_words(body, models, url):
    status, _, said = await ask(url, "POST", CHATS, body=body)
    assert status == 400
    assert 0 < len(said["error"]["message"]) < 500
    assert "Traceback" not in said["error"]["message"]
    assert models.requests == []


@pytest.mark.parametrize("half", [rb"\ud83d", rb"\uDC00", rb"\ud83d\ude00\ud83d", rb"x\ude00\ud83d"])
async def test_half_of_a_character_is_named(half, models, url):
    """Texts that were cut between its halves have one."""
    _, _, said = await ask(url, "POST", CHATS, body=CHAT.replace(b"hi", half))
    assert re.search(r"\\u[dD]\w{3} is half of a surrogate pair", said["error"]["message"])
    assert models.requests == []
    status, _, _ = await ask(url, "POST", CHATS, body=CHAT.replace(b"hi", rb"\\ud83d \ud83d\ude00"))
    assert status == 200


async def test_no_path_and_no_method_are_told_in_the_protocols_words(models, url):
    for method, path, expected in (
        ("GET", "/v1/nothing", 404),
        ("GET", "/v1", 404),
        ("GET", "/v1/models/../../etc/passwd", 404),
        ("GET", "//evil.example/", 404),
        ("GET", "/v1/chat/completions", 405),
        ("DELETE", "/v1/models", 405),
    ):
        status, headers, said = await ask(url, method, path)
        assert (status, headers["content-type"]) == (expected, "application/json"), path
        assert said["error"]["type"] == "invalid_request_error"
        assert "location" not in headers


async def test_paths_are_the_same_without_the_version_and_with_a_slash(models, url):
    for path in ("/v1/models", "/v1/models/", "/v1/models//", "/models", "/models/"):
        assert (await ask(url, path=path))[2]["object"] == "list", path
    for path in ("/v1/models/scripted", "/v1/models/scripted/", "/models/scripted"):
        assert (await ask(url, path=path))[2]["id"] == "scripted", path
    for path in ("/v1/chat/completions/", "/chat/completions"):
        assert (await ask(url, "POST", path, body=CHAT))[0] == 200, path
    for path in ("/health/", "/v1/health", "/v1/health/"):
        assert (await ask(url, path=path, key=None))[0] == 200, path
    for path in ("/models", "/v1/metrics", "/v1/models/scripted/"):
        assert (await ask(url, path=path, key=None))[0] == 401, path
    assert {endpoint for endpoint, _, _ in models.metrics} == {"/v1/models", CHATS, "/health", "/metrics"}


async def test_bytes_that_are_no_http_hurt_nobody(url):
    dice = random.Random(7)
    for _ in range(60):
        raw = await Raw.to(url)
        start = dice.choice([b"", b"GET / HTTP/1.1\r\n", b"POST /v1/completions HTTP/1.1\r\nHost: x\r\n"])
        raw.writer.write(start + dice.randbytes(dice.choice([1, 20, 3000])) + b"\r\n\r\n")
        raw.writer.write_eof()
        answer = await raw.reader.read()
        assert answer == b"" or answer[9:12] in (b"400", b"403", b"431"), answer
    assert (await ask(url))[0] == 200
