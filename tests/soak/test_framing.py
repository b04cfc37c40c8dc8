"""Requests whose length can be read in two ways: nothing hangs, none is a fault of ours or gets through.

Each attack hides a request for /smuggled in what one reading takes for a body. Whoever answers it has read
the body as a request, as an attacker behind a proxy wants; a server refuses it, or takes it as the body.
"""

import asyncio
import os
import random
import re
from collections import Counter

import pytest

from edgechat.server import connection, exchange
from tests.server.fakes import KEY, FakeModels, serving
from tests.server.raw import Raw, ask

pytestmark = [pytest.mark.soak, pytest.mark.slow]

ATTACKS = int(os.environ.get("EDGECHAT_SOAK_FRAMING", "4000"))
AT_ONCE = 100
CHAT = b'{"model": "default", "messages": [{"role": "user", "content": "hi"}]}'
SILENCE = 8.0
"""Seconds after which nothing more comes of a connection that stays open."""
SPACES = (" ", "\t", "\x0b", "\x0c", "\x00", "\xa0", "")
Lines = list[str]
Attack = tuple[Lines, bytes]
"""Headers, and what comes behind the head."""


def smuggled(dice):
    ending = dice.choice(["\r\n", "\r\n", "\n"])
    return ending.join(["GET /smuggled HTTP/1.1", "Host: x", "", ""]).encode()


def chunked(*parts):
    return b"".join(b"%x\r\n%s\r\n" % (len(part), part) for part in (*parts, b""))


def two_lengths(dice):
    """Both Content-Length and Transfer-Encoding: by the one the hidden request is of the body."""
    hidden = smuggled(dice)
    if dice.random() < 0.5:
        body = chunked(CHAT) + hidden
        length = len(body)
    else:
        body = chunked(CHAT, hidden)
        length = body.index(hidden)
    lines = [f"Content-Length: {length}", "Transfer-Encoding: chunked"]
    return dice.sample(lines, 2), body


def odd_encodings(dice):
    """A Transfer-Encoding that some know and others do not; the length says that all is the body."""
    value = dice.choice(
        [
            "xchunked",
            "identity",
            "chunked, identity",
            "gzip, chunked",
            "chunked;q=1",
            "chunk\u00ebd",
            '"chunked"',
        ]
    )
    before, after = dice.choice(SPACES), dice.choice(SPACES)
    odd = dice.choice(
        [f"Transfer-Encoding:{before}{value}{after}", f"Transfer-Encoding{before or ' '}: chunked"]
    )
    body = b"0\r\n\r\n" + smuggled(dice)
    return dice.sample([odd, f"Content-Length: {len(body)}"], 2), body


def lies(dice):
    """A length that is none, or several."""
    body = CHAT + smuggled(dice)
    short, whole = len(CHAT), len(body)
    value = dice.choice(
        [
            f"+{whole}",
            f"-{short}",
            f"{whole:#x}",
            f"{short} {whole}",
            f"{short}, {whole}",
            f"{whole}.0",
            "",
            "x",
            f"{short}_0",
            f"{short}\x00",
            "9" * 40,
            f"{short}²",
            f"{whole}e0",
            f"{whole};{short}",
        ]
    )
    lines = [f"Content-Length: {value}"]
    if dice.random() < 0.3:
        lines = dice.sample([f"Content-Length: {short}", f"Content-Length: {whole}"], 2)
    return lines, body


def folds(dice):
    """A line that goes on in the next one, which some read as a header of its own."""
    body = CHAT + smuggled(dice)
    inner = dice.choice(["Content-Length: 0", "Transfer-Encoding: chunked", f"Content-Length: {len(CHAT)}"])
    folded = f"X-Folded: a\r\n{dice.choice([' ', chr(9)])}{inner}"
    return dice.sample([folded, f"Content-Length: {len(body)}"], 2), body


def line_ends(dice):
    """Lines that end in LF alone, or have a CR or a NUL within."""
    body = CHAT + smuggled(dice)
    within = dice.choice(["\n", "\r", "\x00", "\r\r\n", "\n\r"])
    odd = f"X-Odd: a{within}Content-Length: 0{within}" if within != "\n" else "X-Odd: a"
    return dice.sample([odd, f"Content-Length: {len(body)}"], 2), body


def chunks(dice):
    """Sizes of chunks that are none, or that are not the size."""
    hidden = smuggled(dice)
    size = len(hidden)
    text = dice.choice(
        [
            f"0x{size:x}",
            f"+{size:x}",
            f"-{size:x}",
            f"{size:x} ",
            f" {size:x}",
            f"{size:x};a=b",
            "",
            "g",
            f"{size:x};\nxx",
            f"{size:x}\n",
            "f" * 21,
            f"0_{size:x}",
            f"{size:x}\x00",
            f"00000{size:x}",
            f"{size - 1:x}",
            f"{size + 1:x}",
            "7fffffffffffffff",
        ]
    )
    end = dice.choice([b"\r\n0\r\n\r\n", b"0\r\n\r\n", b"\n0\n\n", b""])
    return ["Transfer-Encoding: chunked"], text.encode("latin-1") + b"\r\n" + hidden + end


def trailers(dice):
    """Headers behind the body that would have said something before it."""
    line = dice.choice(
        ["Content-Length: 9", "Transfer-Encoding: chunked", "Host: evil", "X" * 70_000, " folded: x"]
    )
    # What follows is a request in earnest, and no smuggled one: there is no other reading.
    body = chunked(CHAT).removesuffix(b"\r\n") + line.encode() + b"\r\n\r\n"
    return ["Transfer-Encoding: chunked"], body


def versions(dice):
    """Chunks where the version knows none."""
    return ["Transfer-Encoding: chunked", f"Connection: {dice.choice(['keep-alive', 'close'])}"], chunked(
        CHAT
    ) + smuggled(dice)


KINDS = [*(two_lengths, odd_encodings, lies, folds, line_ends, chunks, trailers, versions)]


def attack(kind, dice, host):
    lines, body = kind(dice)
    version = "1.0" if kind is versions else "1.1"
    head = [f"POST /v1/chat/completions HTTP/{version}", f"Host: {host}", "Content-Type: application/json"]
    if dice.random() < 0.8:
        head.append(f"Authorization: Bearer {KEY}")
    ending = "\n" if kind is line_ends and dice.random() < 0.5 else "\r\n"
    sent = ending.join([*head, *lines, "", ""]).encode("latin-1") + body
    before = f"GET /health HTTP/1.1\r\nHost: {host}\r\n\r\n".encode() * dice.choice([0, 0, 1, 3])
    return before + sent


def crumbs(sent, dice):
    """Cut what is sent into parts, some of a byte."""
    while sent:
        size = dice.choice([1, 2, 7, 64, 1000, len(sent)])
        yield sent[:size]
        sent = sent[size:]


async def told(raw):
    """Return all that the server sends, until it closes or is silent for long."""
    found = b""
    try:
        while more := await asyncio.wait_for(raw.reader.read(2**16), SILENCE):
            found += more
    except TimeoutError:
        assert found, "neither an answer nor an end"
    except ConnectionError:
        pass
    return found


@pytest.mark.timeout(1200)
async def test_no_framing_hangs_or_smuggles(monkeypatch, caplog):
    caplog.set_level("INFO", "edgechat.server")
    monkeypatch.setattr(connection, "HEADER_SECONDS", 1.0)
    monkeypatch.setattr(exchange, "BODY_SECONDS", 1.0)
    monkeypatch.setattr(exchange, "DRAIN_SECONDS", 0.2)
    models, outcomes, room = FakeModels(), Counter[tuple[str, str]](), asyncio.Semaphore(AT_ONCE)
    async with serving(models) as url:

        async def try_out(number):
            dice = random.Random(number)
            kind = dice.choice(KINDS)
            async with room:
                raw = await Raw.to(url)
                try:
                    for part in crumbs(attack(kind, dice, raw.host), dice):
                        raw.writer.write(part)
                        if dice.random() < 0.2:
                            await asyncio.sleep(0.002)
                    found = await told(raw)
                except ConnectionError:
                    found = b""
                finally:
                    raw.writer.transport.abort()
            statuses = [status.decode() for status in re.findall(rb"HTTP/1\.1 (\d{3}) ", found)]
            assert not [one for one in statuses if one >= "500"], (number, kind, found)
            outcomes[kind.__name__, statuses[-1] if statuses else "closed"] += 1

        async with asyncio.TaskGroup() as group:
            for number in range(ATTACKS):
                group.create_task(try_out(number))
        print(sorted(outcomes.items()))
        assert "smuggled" not in caplog.text
        assert {kind for kind, _ in outcomes} == {kind.__name__ for kind in KINDS}
        assert (await ask(url, "POST", "/v1/chat/completions", body=CHAT))[0] == 200
    assert exchange.BodyMemory.total == 0


async def test_requests_in_crumbs_and_in_one_are_answered_in_turn():
    models = FakeModels()
    async with serving(models) as url:
        for number in range(200):
            dice = random.Random(number)
            raw = await Raw.to(url)
            head = f"Host: {raw.host}\r\nAuthorization: Bearer {KEY}\r\nContent-Type: application/json\r\n"
            paths = dice.choices(["chat", "chunks", "models"], k=dice.randint(1, 6))
            sent = b""
            for path in paths:
                if path == "models":
                    sent += f"GET /v1/models HTTP/1.1\r\n{head}\r\n".encode()
                    continue
                length = f"Content-Length: {len(CHAT)}" if path == "chat" else "Transfer-Encoding: chunked"
                cut = dice.randrange(1, len(CHAT))
                body = CHAT if path == "chat" else chunked(CHAT[:cut], CHAT[cut:])
                sent += f"POST /v1/chat/completions HTTP/1.1\r\n{head}{length}\r\n\r\n".encode() + body
            for part in crumbs(sent, dice):
                raw.writer.write(part)
                if dice.random() < 0.05:
                    await asyncio.sleep(0)
            for path in paths:
                status, _, said = await asyncio.wait_for(raw.answer(), SILENCE)
                assert (status, "choices" in said) == (200, path != "models"), number
            raw.close()
