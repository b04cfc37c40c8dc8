"""Plain completions and embeddings, through OpenAI's own client."""

import pytest

from edgechat.engine.types import Delta, TokenLogprobs
from tests.later import Later
from tests.server.dialects import CHAT, COMPLETIONS
from tests.server.fakes import FakeModels, finished

openai = Later("openai")


async def test_text_goes_on():
    models = FakeModels([" a", " time", finished("length")])
    done = await COMPLETIONS.answered(models, prompt="Once upon", echo=True)
    assert (done.choices[0].text, done.usage.total_tokens) == ("Once upon a time", 25)
    chunks = await COMPLETIONS.streamed(models, prompt="Once", max_tokens=5, echo=True)
    assert "".join(chunk.choices[0].text for chunk in chunks) == "Once a time"
    assert chunks[-1].choices[0].finish_reason == "length"
    await COMPLETIONS.answered(models, max_tokens=-1)
    first, second, third = models.requests
    assert (first.text, first.max_tokens, first.messages) == ("Once upon", 16, ())
    assert (second.text, second.max_tokens, second.logprobs) == ("Once", 5, None)
    assert third.max_tokens is None


async def test_a_suffix_is_what_comes_behind():
    for suffix in ("c", ""):
        request = await COMPLETIONS.asked(prompt="a", suffix=suffix)
        assert (request.text, request.suffix) == ("a", suffix)


async def test_several_prompts_and_tokens():
    models = FakeModels(["a"], ["b"], ["c"], ["d"])
    done = await COMPLETIONS.answered(models, prompt=["x", [1, 2]], n=2, best_of=2, seed=7)
    assert [(one.index, one.text) for one in done.choices] == [(0, "a"), (1, "b"), (2, "c"), (3, "d")]
    seeds = [(one.text, one.sampling.seed) for one in models.requests]
    assert seeds == [("x", 7), ("x", 8), ((1, 2), 7), ((1, 2), 8)]
    assert (done.usage.prompt_tokens, done.usage.completion_tokens) == (40, 20)
    assert (await COMPLETIONS.asked(prompt=[5, 6])).text == (5, 6)


async def test_logprobs_tell_where_in_the_text():
    chances = TokenLogprobs("Hé".encode(), -0.5, ((b"A", -1.0), (b"B", -2.0))), TokenLogprobs(b"y", -0.25)
    models = FakeModels([Delta("", "Hé", False, 1, chances[:1]), Delta("", "y", False, 2, chances[1:])])
    told = (await COMPLETIONS.answered(models, logprobs=2)).choices[0].logprobs
    assert (told.tokens, told.token_logprobs, told.text_offset) == (["Hé", "y"], [-0.5, -0.25], [0, 2])
    assert told.top_logprobs == [{"A": -1.0, "B": -2.0}, {}]
    assert models.requests[0].logprobs == 2


async def test_an_empty_answer_has_logprobs_where_they_were_asked_for():
    assert (await CHAT.answered(FakeModels([finished()]), logprobs=True)).choices[0].logprobs.content == []
    assert (await COMPLETIONS.answered(FakeModels([finished()]), logprobs=1)).choices[0].logprobs.tokens == []


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
    refused = await COMPLETIONS.refused(**fields)
    assert (refused.status, refused.param) == (400, param)


async def test_embeddings():
    async with COMPLETIONS.client(FakeModels(embedding=4)) as client:
        create = client.embeddings.create
        made = await create(model="default", input=["one", "three"])  # asks for base64
        assert [one.embedding for one in made.data] == [[3.0, 1.0, 2.0, 3.0], [5.0, 1.0, 2.0, 3.0]]
        assert made.usage.prompt_tokens == 7
        for model in ("", "default"):
            plain = await create(model=model, input=[1, 2], encoding_format="float", dimensions=4)
            assert plain.data[0].embedding == [2.0, 1.0, 2.0, 3.0]
        raw = client.embeddings.with_raw_response.create
        packed = (await raw(model="default", input="x", encoding_format="base64")).http_response.json()
        assert len(packed["data"][0]["embedding"]) == 24  # of 16 bytes
        for fields, param in (
            ({"input": "x", "dimensions": 3}, "dimensions"),
            ({"input": ""}, "input"),
            ({"input": [1, "x"]}, "input"),
            ({"input": []}, "input"),
            ({"input": ["x"] * 2049}, "input"),
        ):
            with pytest.raises(openai.BadRequestError) as caught:
                await create(**{"model": "default"} | fields)
            assert caught.value.param == param
