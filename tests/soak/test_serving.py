"""200 clients of one server that come and go: no answer is lost or mixed up, and nothing stays behind."""

from __future__ import annotations

import asyncio
import json
import os
import random
import re
import signal
import subprocess
import sys
import time
from collections import Counter
from dataclasses import dataclass, field

import psutil
import pytest
from prometheus_client.parser import text_string_to_metric_families

from tests import scripted
from tests.server.raw import Raw

pytestmark = [
    pytest.mark.soak,
    pytest.mark.slow,
    pytest.mark.skipif(sys.platform == "win32", reason="SIGINT"),
]

SECONDS = float(os.environ.get("EDGECHAT_SOAK_SERVING", "120"))
CLIENTS = 200
KEY = "soak-soak-soak"
WORDS = ("quant", "draft", "layer", "cell", "token", "prompt", "window", "cache")
QUESTIONS = """\
What is a quant?
What is a draft model?
What is the KV cache?
What is the context?
How do I stop an answer?
What does Ctrl+G do?
How do I delete a conversation?
How do I download a model?
Does it work offline?
Where are my chats kept?
What does edgechat list do?
How do I quit?
What is temperature?
Why is it so slow?
How do I use my GPU?
Hello!
Thank you!
Who are you?
Which model fits 8 GB of memory?
What does F2 do?"""
GROWN = 16 * 2**20
"""Bytes that the heap of a process scatters by."""


@dataclass
class Load:
    """What the clients do, and what became of it."""

    url: str
    questions: list[str]
    expected: dict[str, str] = field(default_factory=dict)
    outcomes: Counter[str] = field(default_factory=Counter)
    wrong: list[tuple[str, str]] = field(default_factory=list)

    async def ask(self, question, leave_after=None):
        """Return an answer, or as much of it as was read before leaving; None where the server is full."""
        body = {
            "model": "default",
            "messages": [{"role": "user", "content": question}],
            "temperature": 0,
            "max_tokens": 300,
            "stream": True,
        }
        raw = await Raw.to(self.url)
        try:
            await raw.ask("POST", "/v1/chat/completions", body=json.dumps(body).encode(), key=KEY)
            status, headers = await raw.head()
            if status == 429:
                await asyncio.sleep(min(float(headers["retry-after"]), 2.0) * random.uniform(0.5, 1.5))
                return None
            assert status == 200, (status, headers)
            text, n_events = "", 0
            while line := await raw.reader.readline():
                if line.startswith(b"data: [DONE]"):
                    return text
                if line.startswith(b"data: "):
                    for choice in json.loads(line[6:])["choices"]:
                        text += choice["delta"].get("content") or ""
                    n_events += 1
                    if n_events == leave_after:
                        return text
            raise AssertionError(f"the answer broke off: {text!r}")
        finally:
            raw.writer.transport.abort()

    async def client(self, number, until):
        """Ask and leave, over and over."""
        chance = random.Random(number)
        while time.monotonic() < until:
            question = chance.choice(self.questions)
            leaves = chance.randint(1, 20) if chance.random() < 0.3 else None
            text = await self.ask(question, leaves)
            if text is None:
                self.outcomes["full"] += 1
                continue
            whole = self.expected[question]
            self.outcomes["whole" if text == whole else "cut"] += 1
            if text != whole and (leaves is None or not whole.startswith(text)):
                self.wrong.append((question, text))


def start(model, *more):
    """Start a server; return it with its address."""
    server = subprocess.Popen(
        [*scripted.COMMAND, "serve", model, "--port", "0", "--api-key", KEY, *more],
        stdout=subprocess.PIPE,
        stderr=subprocess.DEVNULL,
        text=True,
    )
    assert server.stdout is not None
    said = ""
    while (found := re.search(r"http://[\d.]+:\d+", said)) is None:
        line = server.stdout.readline()
        assert line, said
        said += line
    return server, found[0]


async def metric(url, name):
    """Return a figure of the server's."""
    raw = await Raw.to(url)
    await raw.ask(path="/metrics", key=KEY)
    _, _, text = await raw.answer()
    raw.close()
    families = text_string_to_metric_families(text.decode())
    return sum(one.value for family in families for one in family.samples if one.name == name)


def memory(server):
    """Return the resident bytes of the server and its children."""
    process = psutil.Process(server.pid)
    return [one.memory_info().rss for one in (process, *process.children())]


@pytest.fixture
def script(tmp_path):
    """A scripted model that answers each of 200 questions with words of its own."""
    questions = [f"question {number}, please" for number in range(CLIENTS)]
    rules = [
        {"when": asked, "reply": " ".join(f"{number}-{WORDS[at % 8]}-{at}" for at in range(12))}
        for number, asked in enumerate(questions)
    ]
    return str(scripted.write(tmp_path / "many.gguf", rules=rules, token_ms=0.5)), questions


@pytest.fixture
def guide():
    """The guide, which answers in earnest, from a cache that its questions share."""
    return "guide", QUESTIONS.splitlines()


@pytest.fixture(params=["script", "guide"])
def served(request):
    model, questions = request.getfixturevalue(request.param)
    server, url = start(model)
    yield server, Load(url, questions)
    server.kill()
    server.wait()


@pytest.mark.timeout(SECONDS + 300)
async def test_many_clients_that_come_and_go(served):
    server, load = served
    for question in load.questions:
        answer = await load.ask(question)
        assert answer
        load.expected[question] = answer
    assert len(set(load.expected.values())) > len(load.questions) // 2  # or a mix-up would not be seen

    end = time.monotonic() + SECONDS
    clients = [asyncio.create_task(load.client(number, end)) for number in range(CLIENTS)]
    await asyncio.sleep(SECONDS / 3)
    before = memory(server)
    await asyncio.gather(*clients)
    after = memory(server)
    print(load.outcomes, [f"{one / 2**20:.1f}" for one in (*before, *after)])

    assert load.wrong == []
    assert min(load.outcomes["whole"], load.outcomes["cut"], load.outcomes["full"]) > 10
    assert [now - then < GROWN for then, now in zip(before, after, strict=True)] == [True] * len(before)
    await asyncio.sleep(1.0)
    assert await metric(load.url, "edgechat_running") == 0
    assert await metric(load.url, "edgechat_waiting") == 0
    assert await metric(load.url, "edgechat_crashes_total") == 0
    assert await load.ask(load.questions[0]) == load.expected[load.questions[0]]
    server.send_signal(signal.SIGINT)
    assert server.wait(30) == 0
