"""Texts to tokens and back, as llama.cpp's server does it."""

import asyncio
import json

import pytest

from edgechat.base.errors import BadRequest
from edgechat.engine.types import ChatRequest, Finished, Message
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.prepare import prepare
from tests.kit import tiny
from tests.server.raw import ask

pytestmark = pytest.mark.slow

TEXT = "Hello there, <|im_end|> wörld\n"


async def asked(url, path, **body):
    status, _, said = await ask(url, "POST", path, body=json.dumps(body).encode())
    return status, said


async def test_tokens_and_texts(models, url):
    for path in ("/tokenize", "/v1/tokenize"):
        assert await asked(url, path, content="ab") == (200, {"tokens": [97, 98]})
    assert await asked(url, "/tokenize", content="a", add_special=True) == (200, {"tokens": [1, 97]})
    assert await asked(url, "/detokenize", tokens=[97, 98]) == (200, {"content": "ab"})
    assert await asked(url, "/detokenize", tokens=[]) == (200, {"content": ""})
    for path, body in (
        ("/tokenize", {}),
        ("/tokenize", {"content": ["a", 1]}),
        ("/tokenize", {"content": "x" * (2**20 + 1)}),
        ("/detokenize", {"tokens": [-1]}),
    ):
        assert (await asked(url, path, **body))[0] == 400, (path, body)
    assert (await ask(url, "POST", "/tokenize", body=b'{"content": "x"}', key=None))[0] == 401
    assert ("/tokenize", 200, "scripted") in models.metrics


@pytest.mark.parametrize("model", ["guide", "qwen3-embedding"])
async def test_a_real_models_tokens_come_back_as_the_text(model):
    plan = prepare(str(tiny(model)) if model != "guide" else model, may_embed=True)
    engine = EngineSupervisor(plan)
    try:
        made = await engine.translate("a", TEXT)
        back = await engine.translate("b", made.tokens)
        assert back.text.decode().strip() == TEXT.strip()
        for wrong in ((2**30,), (-1,)):
            with pytest.raises(BadRequest, match="Unknown token"):
                await engine.translate("c", wrong)
        with pytest.raises(BadRequest, match="characters"):
            await engine.translate("d", "x" * 40_000, special=True)
    finally:
        await engine.close()


async def test_nobody_waits_for_a_long_text(tmp_path):
    engine = EngineSupervisor(prepare("guide"))
    try:
        await engine.start()
        long = asyncio.ensure_future(engine.translate("long", "word " * 100_000))
        request = ChatRequest(id="r", messages=(Message("user", "hi"),), max_tokens=4)
        events = [event async for event in engine.stream(request)]
        assert isinstance(events[-1], Finished)
        made = await long
        assert len(made.tokens) > 50_000
        leaving = asyncio.ensure_future(engine.translate("gone", "word " * 100_000))
        await asyncio.sleep(0.01)
        leaving.cancel()
        await asyncio.wait([leaving])
        assert (await engine.translate("next", "word")) is not None
    finally:
        await engine.close()
