"""Plain completions and embeddings, through OpenAI's own client."""

import struct

import msgspec
import openai
import pytest

from edgechat.base.errors import PromptTooLong
from edgechat.engine.types import Delta, Sampling, TokenLogprobs
from edgechat.settings import SamplingDefaults
from tests.server.fakes import FakeModels, finished
from tests.server.protocol.openai.test_chat import client_of


async def test_text_goes_on():
    models = FakeModels([" a", " time", finished("length")])
    async with client_of(models) as client:
        done = await client.completions.create(model="default", prompt="Once upon", seed=1, echo=True)
        assert (done.choices[0].text, done.choices[0].finish_reason) == ("Once upon a time", "length")
        assert done.usage is not None
        assert done.usage.total_tokens == 25
        stream = await client.completions.create(
            model="default", prompt="Once", max_tokens=5, echo=True, stream=True
        )
        chunks = [chunk async for chunk in stream]
        await client.completions.create(model="default", prompt="Once", max_tokens=-1)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Once a time"
    assert chunks[-1].choices[0].finish_reason == "length"
    first, second, third = models.requests
    assert (first.text, first.max_tokens, first.overflow, first.messages) == ("Once upon", 16, "error", ())
    assert (second.text, second.max_tokens, second.logprobs) == ("Once", 5, None)
    assert third.max_tokens is None


async def test_a_text_is_not_held_against_repeating_itself():
    models = FakeModels()
    makers = SamplingDefaults(temperature=0.3, repetition_penalty=1.1, presence_penalty=1.5)
    models.plan = msgspec.structs.replace(models.plan, sampling=makers)
    async with client_of(models) as client:
        await client.completions.create(model="default", prompt="2025, 2025")
        await client.completions.create(model="default", prompt="2025, 2025", frequency_penalty=0.5)
    assert [one.sampling for one in models.requests] == [
        Sampling(temperature=0.3),
        Sampling(temperature=0.3, frequency_penalty=0.5),
    ]


async def test_a_suffix_is_what_comes_behind():
    models = FakeModels(["b"])
    async with client_of(models) as client:
        await client.completions.create(model="default", prompt="a", suffix="c")
        await client.completions.create(model="default", prompt="a", suffix="")
    assert [(one.text, one.suffix) for one in models.requests] == [("a", "c"), ("a", "")]


async def test_several_prompts_and_tokens():
    models = FakeModels(["a"], ["b"], ["c"], ["d"])
    prompt = ["x", [1, 2]]
    async with client_of(models) as client:
        done = await client.completions.create(model="default", prompt=prompt, n=2, best_of=2, seed=7)
        await client.completions.create(model="default", prompt=[5, 6])
    assert [(one.index, one.text) for one in done.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    assert [(one.text, one.sampling.seed) for one in models.requests[:4]] == [
        ("x", 7),
        ("x", 8),
        ((1, 2), 7),
        ((1, 2), 8),
    ]
    assert models.requests[4].text == (5, 6)
    assert done.usage is not None
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (40, 20)


async def test_logprobs_tell_where_in_the_text():
    models = FakeModels(
        [
            Delta("", "Hé", False, 1, (TokenLogprobs("Hé".encode(), -0.5, ((b"A", -1.0), (b"B", -2.0))),)),
            Delta("", "y", False, 2, (TokenLogprobs(b"y", -0.25),)),
        ]
    )
    async with client_of(models) as client:
        done = await client.completions.create(model="default", prompt="x", logprobs=2)
    told = done.choices[0].logprobs
    assert told is not None
    assert (told.tokens, told.token_logprobs, told.text_offset) == (["Hé", "y"], [-0.5, -0.25], [0, 2])
    assert told.top_logprobs == [{"A": -1.0, "B": -2.0}, {}]
    assert models.requests[0].logprobs == 2


@pytest.mark.parametrize(
    ("param", "fields"),
    [
        ("suffix", {"suffix": "x", "prompt": [1]}),
        ("best_of", {"best_of": 3}),
        ("best_of", {"best_of": 1, "n": 2}),
        ("logprobs", {"logprobs": 0.5}),
        ("logprobs", {"logprobs": 6}),
        ("echo", {"echo": True, "logprobs": 1}),
        ("echo", {"echo": True, "prompt": [1]}),
        ("prompt", {"prompt": ["x"] * 9}),
        ("prompt", {"prompt": ["x"] * 3, "n": 3}),
        ("prompt", {"prompt": [1, "x"]}),
        ("prompt", {"prompt": []}),
        ("prompt[0]", {"prompt": [-1]}),
    ],
)
async def test_what_cannot_be_done_is_refused_by_name(param, fields):
    async with client_of(FakeModels()) as client:
        with pytest.raises(openai.BadRequestError) as caught:
            await client.completions.create(**{"model": "default", "prompt": "x"} | fields)
    assert caught.value.param == param


async def test_embeddings():
    models = FakeModels(embedding=4)
    async with client_of(models) as client:
        made = await client.embeddings.create(model="default", input=["one", "three"])  # asks for base64
        assert [one.embedding for one in made.data] == [[3.0, 1.0, 2.0, 3.0], [5.0, 1.0, 2.0, 3.0]]
        assert made.usage.prompt_tokens == 7
        plain = await client.embeddings.create(
            model="default", input=[1, 2], encoding_format="float", dimensions=4
        )
        assert plain.data[0].embedding == [2.0, 1.0, 2.0, 3.0]
        raw = await client.embeddings.with_raw_response.create(
            model="default", input="x", encoding_format="base64"
        )
        assert struct.calcsize("<4f") == 16
        assert len(raw.http_response.json()["data"][0]["embedding"]) == 24
        for fields, param in (
            ({"input": "x", "dimensions": 3}, "dimensions"),
            ({"input": ""}, "input"),
            ({"input": [1, "x"]}, "input"),
            ({"input": []}, "input"),
            ({"input": ["x"] * 2049}, "input"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await client.embeddings.create(**{"model": "default"} | fields)
            assert caught.value.param == param


async def test_models_are_listed():
    async with client_of(FakeModels()) as client:
        assert [one.id async for one in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("scripted")).owned_by == "edgechat"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other/one:Q4")


async def test_what_is_too_long_is_told_with_a_remedy_that_there_is():
    for stream in (False, True):
        models = FakeModels(
            [PromptTooLong("The text has 5000 tokens, and the context is 4096 tokens long.", hint="x")]
        )
        async with client_of(models) as client:
            with pytest.raises(openai.BadRequestError, match="5000") as caught:
                await client.completions.create(model="default", prompt="x", stream=stream)
        assert "--ctx" in caught.value.message
        assert "overflow" not in caught.value.message
