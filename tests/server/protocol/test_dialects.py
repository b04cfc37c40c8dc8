"""What programs can count on in every dialect, each through its own client library."""

import asyncio
import json

import msgspec
import pytest

from edgechat.base import errors
from edgechat.engine.types import Message, Sampling, Tool, ToolCall
from edgechat.server import operation
from edgechat.server.protocol.anthropic import MessagesBody
from edgechat.server.protocol.ollama import GenerateBody, OllamaChatBody
from edgechat.server.protocol.openai_chat import ChatBody
from edgechat.server.protocol.openai_texts import CompletionBody
from edgechat.server.protocol.responses_request import ResponseBody
from edgechat.settings import SamplingDefaults
from tests.later import Later
from tests.server.dialects import DIALECTS, HELLO, PIECES, SCHEMA, WEATHER, Told, named, those, those_saying
from tests.server.fakes import KEY, FakeModels, called, finished, serving, thought
from tests.server.raw import Raw, ask

openai = Later("openai")

CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA, GENERATE = DIALECTS
OTHER = msgspec.structs.replace(WEATHER, name="other")
# Their ids are those that Ollama's endpoint gives, whose clients send none.
CALLS = (ToolCall("call_2_0", "weather", '{"place":"Rome"}'), ToolCall("call_2_1", "weather", "{}"))
CONVERSATION = (
    Message("system", "Be short."),
    Message("user", "Weather?"),
    Message("assistant", "I look.", "Let me see.", CALLS),
    Message("tool", "Sunny.", call_id="call_2_0"),
    Message("tool", "No place.", call_id="call_2_1"),
    Message("assistant", "It is sunny."),
    Message("user", "Thanks."),
)
BACK = {
    CHAT: lambda answer: [answer.choices[0].message],
    RESPONSES: lambda answer: list(answer.output),
    MESSAGES: lambda answer: [{"role": "assistant", "content": answer.content}],
    OLLAMA: lambda answer: [answer.message],
}
"""What a client appends to the conversation, of an answer."""
BODIES = (ChatBody, CompletionBody, ResponseBody, MessagesBody, OllamaChatBody, GenerateBody)


def without_id(request):
    return msgspec.structs.replace(request, id="")


async def refusal(dialect, models, strict=False, **fields):
    """Send a body without the client library, which may not know its fields."""
    async with serving(models, strict=strict) as url:
        answer = await dialect.post(url, **fields)
    return dialect.failure(answer.json(), answer.status_code)


# What is asked.


@pytest.mark.slow
@those("messages", "tools")
async def test_a_conversation_comes_back_as_it_was(dialect):
    request = await dialect.asked(**dialect.said(messages=CONVERSATION, tools=[WEATHER]))
    assert request.messages == CONVERSATION


@those("messages", "tools")
async def test_a_result_that_is_null_is_empty(dialect):
    models, said = FakeModels(), dialect.said(messages=CONVERSATION[:4], tools=[WEATHER])
    sent = msgspec.json.encode(said, enc_hook=lambda one: one.model_dump())
    async with serving(models) as url:
        answer = await dialect.post(url, **msgspec.json.decode(sent.replace(b'"Sunny."', b"null")))
    assert answer.status_code == 200, answer.text
    assert models.requests[0].messages[-1].content == ""


@those("messages", "tools")
@pytest.mark.parametrize("as_dict", [False, True])
async def test_an_answer_can_be_sent_back_as_it_is(dialect, as_dict):
    script = [thought("Hm."), "I look.", called("weather", CALLS[0].arguments, "call_a"), finished("tools")]
    models = FakeModels(script, ["Sunny."])
    asked, result = Message("user", "Weather?"), Message("tool", "Sunny.", call_id="call_a")
    sent = dialect.said(messages=[asked, result], tools=[WEATHER])
    [name] = {"messages", "input"} & set(sent)
    async with dialect.client(models) as client:
        more = {"include": ["reasoning.encrypted_content"]} if dialect is RESPONSES else {}
        back = BACK[dialect](await dialect.send(client, **sent | more | {name: sent[name][:1]}))
        if as_dict:
            back = json.loads(json.dumps(back, default=lambda one: one.model_dump()))
        await dialect.send(client, **sent | {name: [sent[name][0], *back, sent[name][1]]})
    first, answer, last = models.requests[-1].messages
    [call] = answer.calls
    assert (first, answer.content, answer.thinking, call.name) == (asked, "I look.", "Hm.", "weather")
    assert json.loads(call.arguments) == {"place": "Rome"}
    assert last == msgspec.structs.replace(result, call_id=call.id)
    assert dialect is OLLAMA or call.id == "call_a"


@those()
async def test_what_is_said_reaches_the_engine(dialect):
    sampling = {"temperature": 0.25, "top_p": 0.5, "top_k": 3, "min_p": 0.125, "repetition_penalty": 1.5}
    sampling |= {"presence_penalty": -0.5, "frequency_penalty": 0.75, "seed": 42}
    others = {"max_tokens": 9, "stop": ("\n", "END"), "priority": "background", "overflow": "window"}
    sampling, others = (
        {name: one for name, one in said.items() if dialect.has(name)} for said in (sampling, others)
    )
    request = await dialect.asked(**dialect.said(**sampling, **others))
    assert request.sampling == Sampling(**sampling)
    assert msgspec.structs.asdict(request).items() >= others.items()


@those()
async def test_what_is_not_said_is_as_the_models_makers_recommend(dialect):
    models = FakeModels()
    against = {"repetition_penalty": 1.1, "presence_penalty": 1.5}
    models.plan = msgspec.structs.replace(
        models.plan,
        sampling=SamplingDefaults(temperature=0.3, top_k=7, **against),
        answering_sampling=SamplingDefaults(temperature=0.1),
    )
    request = await dialect.asked(models, **dialect.said(top_p=0.5))
    # What is held against repetition is for chats: a text may have to repeat itself.
    penalties = {} if dialect is COMPLETIONS else against
    assert request.sampling == Sampling(temperature=0.3, top_k=7, top_p=0.5, **penalties)
    overflow = "window" if dialect in (OLLAMA, GENERATE) else "error"
    assert (request.overflow, request.priority, request.think) == (overflow, "interactive", None)
    assert request.max_tokens == {COMPLETIONS: 16, MESSAGES: 99}.get(dialect)
    assert (request.schema, request.logprobs, request.tools, request.chat) == (None, None, (), None)
    greedy = await dialect.asked(models, **dialect.said(temperature=0))
    assert greedy.sampling == Sampling(temperature=0, top_k=7)  # nothing is held against repetition
    if dialect.has("presence_penalty"):
        greedy = await dialect.asked(models, **dialect.said(temperature=0, presence_penalty=0.5))
        assert greedy.sampling == Sampling(temperature=0, top_k=7, presence_penalty=0.5)
    if dialect.has("think"):
        models.model = msgspec.structs.replace(models.model, can_switch_thinking=True)
        request = await dialect.asked(models, **dialect.said(think=False))
        assert (request.think, request.sampling.temperature) == (False, 0.1)


@those("stop")
async def test_a_blank_stop_is_no_stop(dialect):
    assert (await dialect.asked(**dialect.said(stop=["", "END"]))).stop == ("END",)
    assert (await dialect.asked(**dialect.said(stop=[""]))).stop == ()


@those()
async def test_null_is_as_nothing_for_every_field(dialect, models, url):
    body = BODIES[DIALECTS.index(dialect)]
    names = set(body.__struct_encode_fields__) - {*dialect.needs, "overflow"}
    for nulls in ({}, dict.fromkeys(names)):
        assert (await dialect.post(url, **nulls | {"stream": False})).status_code == 200
    assert without_id(models.requests[0]) == without_id(models.requests[1])


@those()
async def test_the_model_may_be_left_out(dialect, models, url):
    for more in ({}, {"model": None}, {"model": ""}):
        assert (await dialect.post(url, **more)).status_code == 200
    assert models.asked == ["", "", ""]


@those("tools", "one_call")
async def test_tools_and_how_many_of_their_calls(dialect):
    request = await dialect.asked(**dialect.said(tools=[WEATHER, OTHER]))
    told = [(tool.name, tool.description, json.loads(tool.parameters)) for tool in request.tools]
    assert told == [(name, WEATHER.description, SCHEMA) for name in ("weather", "other")]
    assert (request.tool_choice, request.tool, request.most_calls) == ("auto", None, None)
    assert (await dialect.asked(**dialect.said(tools=[WEATHER], one_call=True))).most_calls == 1


@those("tools", "choice", "tool")
@pytest.mark.parametrize(
    ("said", "mode", "tool", "n_tools"),
    [
        ({"choice": "auto"}, "auto", None, 2),
        ({"choice": "none"}, "auto", None, 0),
        ({"choice": "required"}, "required", None, 2),
        ({"tool": "weather"}, "required", "weather", 2),
    ],
)
async def test_the_choice_of_tools(dialect, said, mode, tool, n_tools):
    request = await dialect.asked(**dialect.said(tools=[WEATHER, OTHER], **said))
    assert (request.tool_choice, request.tool, len(request.tools)) == (mode, tool, n_tools)


@those("schema")
async def test_a_schema_is_followed(dialect):
    assert json.loads((await dialect.asked(**dialect.said(schema=SCHEMA))).schema) == SCHEMA
    if dialect.has("any_json"):
        assert (await dialect.asked(**dialect.said(any_json=True))).schema == '{"type": "object"}'


@those_saying(
    "can, told",
    ({"think": True}, "switch", (True, None)),
    ({"think": False}, "switch", (False, None)),
    ({"effort": "high"}, "switch", (True, None)),
    ({"effort": "low"}, "effort", (None, "low")),
    ({"effort": "high"}, "effort", (None, "high")),
    ({}, "effort", (None, None)),
    ({"think": True}, "nothing", (None, None)),
    ({"effort": "medium"}, "nothing", (None, None)),
    ({}, "nothing", (None, None)),
)
async def test_thinking_is_switched_where_the_model_can(dialect, said, can, told):
    models = FakeModels(can_switch_thinking=can == "switch", has_effort=can == "effort")
    request = await dialect.asked(models, **dialect.said(**said))
    insists = (can, dialect, "think" in said) == ("nothing", CHAT, True)  # then the engine refuses it
    assert (request.think, request.effort) == (insists or told[0], told[1])


@those("effort")
async def test_thinking_is_switched_by_the_settings_where_nobody_says_otherwise(dialect):
    for can, said, expected in ((True, {}, False), (True, {"effort": "high"}, True), (False, {}, None)):
        models = FakeModels(can_switch_thinking=can)
        assert (await dialect.asked(models, on={"think": False}, **dialect.said(**said))).think is expected


# What is ignored.

CACHED = {"cache_control": {"type": "ephemeral"}}
PART = {"type": "text", "text": "Hello", **CACHED}
FUNCTION = {"type": "function", "function": {"name": "weather"}}
CALL = {"id": "a", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
PARSED = CALL | {"function": CALL["function"] | {"parsed_arguments": {"a": 1}}}
OBFUSCATED = {"stream": True, "stream_options": {"include_obfuscation": True}}


def each(dialect, **fields):
    return [(dialect, {name: value}, name) for name, value in fields.items()]


def said_before(**more):
    return {"messages": [HELLO[0] | {"role": "assistant"} | more]}


IGNORED = [
    *((dialect, {"new": 1}, "new") for dialect in DIALECTS),
    *each(CHAT, store=True, service_tier="flex", verbosity="low", prompt_cache_retention="24h"),
    *each(CHAT, reasoning_effort="xhigh"),
    (CHAT, {"max_completion_tokens": 3, "max_tokens": 4}, "max_tokens"),
    (CHAT, {"messages": [HELLO[0] | {"name": "Ann"}]}, "messages[0].name"),
    (CHAT, {"messages": [HELLO[0] | {"content": [PART]}]}, "messages[0].content[0].cache_control"),
    (CHAT, said_before(new=1), "messages[0].new"),
    (CHAT, said_before(thinking_blocks=[1]), "messages[0].thinking_blocks"),
    (CHAT, said_before(tool_calls=[CALL | {"extra": 1}]), "messages[0].tool_calls[0].extra"),
    (CHAT, said_before(tool_calls=[PARSED]), "messages[0].tool_calls[0].function.parsed_arguments"),
    (CHAT, {"tools": [FUNCTION | CACHED]}, "tools[0].cache_control"),
    (CHAT, OBFUSCATED, "stream_options.include_obfuscation"),
    *each(RESPONSES, user="me", safety_identifier="x", max_tool_calls=3, client_metadata={"a": "b"}),
    (RESPONSES, {"text": {"verbosity": "low"}}, "text.verbosity"),
    (RESPONSES, {"tools": [{"type": "web_search"}]}, "tools[0]"),
    *each(MESSAGES, metadata={"user_id": "x"}, context_management={"edits": []}, service_tier="priority"),
    (MESSAGES, {"tools": [{"type": "web_search_20250305", "name": "web_search"}]}, "tools[0]"),
    *each(OLLAMA, keep_alive="5m"),
    (OLLAMA, {"options": {"num_ctx": 4096}}, "options.num_ctx"),
    *each(GENERATE, template="x", context=[1]),
]
TAKEN = [
    (CHAT, {"store": False, "service_tier": "auto", "max_tokens": 3, "max_completion_tokens": 3}),
    (CHAT, {"user": "me", "metadata": {"a": "b"}, "safety_identifier": "x", "prompt_cache_key": "x"}),
    (RESPONSES, {"store": False, "include": ["web_search_call.action.sources"], "prompt_cache_key": "x"}),
    (RESPONSES, {"metadata": {"a": "b"}, "service_tier": "auto", "stream_options": None}),
    (MESSAGES, {"service_tier": "auto"}),
    *((dialect, {"user": "me"}) for dialect in (CHAT, COMPLETIONS)),
]


@pytest.mark.parametrize(("dialect", "fields", "param"), IGNORED, ids=named)
async def test_what_is_ignored_changes_nothing_and_strict_refuses_it(dialect, fields, param):
    models = FakeModels()
    refused = await refusal(dialect, models, strict=True, **fields)
    assert (refused.status, models.requests) == (400, [])
    assert f"{param!r} has no effect" in refused.message
    assert (refused.param, refused.code) == (dialect.told(param), dialect.told("not_heeded"))
    async with serving(models) as url:
        assert (await dialect.post(url, **fields)).status_code == 200
        if not {"messages", "max_tokens"} & fields.keys():
            known = {"tools": [FUNCTION]} if fields.get("tools") == [FUNCTION | CACHED] else {}
            assert (await dialect.post(url, **known)).status_code == 200
            assert without_id(models.requests[0]) == without_id(models.requests[1])


@pytest.mark.parametrize(("dialect", "fields"), TAKEN, ids=named)
@pytest.mark.parametrize("strict", [False, True])
async def test_what_costs_nothing_is_taken(dialect, fields, strict):
    models = FakeModels()
    async with serving(models, strict=strict) as url:
        assert (await dialect.post(url, **fields)).status_code == 200
        assert (await dialect.post(url)).status_code == 200
    first, second = map(without_id, models.requests)
    assert first == msgspec.structs.replace(second, max_tokens=first.max_tokens)


# What is refused.

CRITIC, HUGE = Message("critic", "x"), {"const": "x" * 2**17}


@those_saying(
    "words, params",
    ({"temperature": -1}, "temperature: Expected `float` >= 0.0", {}),
    ({"temperature": 9}, "temperature: Expected `float` <= 5.0", {}),
    ({"top_p": 2}, "top_p: Expected `float` <= 1.0", {}),
    ({"top_k": -1}, "top_k: Expected `int` >= 0", {}),
    (
        {"stop": ["x" * 257]},
        "[0]: Expected `str` of length <= 256",
        {CHAT: "stop[0]", COMPLETIONS: "stop[0]"},
    ),
    ({"stop": ["x"] * 17}, "Expected `array` of length <= 16", {}),
    # Ollama has no priority, and takes 0 for as many tokens as there can be.
    ({"priority": "interactive", "max_tokens": 0}, "at least one token", {}),
    ({"messages": [CRITIC]}, "value 'critic'", {CHAT: "messages[0].role", RESPONSES: "input[0].role"}),
    (
        {"messages": [CONVERSATION[3]]},
        " call",
        {CHAT: "messages[0].tool_call_id", RESPONSES: "input[0].call_id"},
    ),
    ({"choice": "required"}, "no tools were sent", {}),
    ({"tools": [WEATHER], "tool": "other"}, "'other' must be called, but is not one of the tools", {}),
    ({"tools": [WEATHER, WEATHER]}, "Two tools have the same name", {}),
    ({"tools": [Tool("f", "", "[1]")]}, "tool f are not a JSON schema for an object", {}),
    ({"tools": [Tool("f", "", json.dumps(HUGE))]}, "tool f have 131084 characters; the limit is", {}),
    ({"schema": HUGE}, "The JSON schema has 131084 characters; the limit is", {RESPONSES: "text.format"}),
)
async def test_what_cannot_be_done_is_refused(dialect, said, words, params):
    models, fields = FakeModels(), dialect.said(**said)
    refused = await refusal(dialect, models, **fields)
    kind = None if dialect in (OLLAMA, GENERATE) else "invalid_request_error"
    assert (refused.status, refused.type) == (400, kind)
    assert refused.param == dialect.told(params.get(dialect, [*fields][-1]))
    assert words in refused.message
    assert models.requests == []


@those()
async def test_what_is_too_long_is_told_with_a_remedy_that_there_is(dialect):
    long = errors.PromptTooLong("It has 5000 tokens, the context 4096.", hint="Shorten it.")
    for stream in (False, True):
        refused = await refusal(dialect, FakeModels([long]), stream=stream)
        assert (refused.status, refused.code) == (400, dialect.told("context_length_exceeded"))
        assert "It has 5000 tokens, the context 4096." in refused.message
        assert "--ctx" in refused.message
        assert ('"overflow": "window"' in refused.message) == (dialect is CHAT)
        assert ('"truncation": "auto"' in refused.message) == (dialect is RESPONSES)


@those()
async def test_a_wrong_key_a_wrong_method_and_no_json_are_told_in_words_of_the_dialect(dialect):
    async with serving(FakeModels()) as url, dialect.connected(url, "ek-wrong") as client:
        with pytest.raises(dialect.error, match="key is not valid") as caught:
            await dialect.send(client)
        status, _, said = await ask(url, "GET", dialect.path)
        assert (status, len(dialect.failure(said).message.split()) > 2) == (405, True)
        assert dialect is not MESSAGES or said["type"] == "error"
        status, _, said = await ask(url, "POST", dialect.path, body=b"{", x_api_key=KEY, key=None)
        assert (status, "JSON" in dialect.failure(said).message) == (400, True)
    assert caught.value.status_code == 401
    assert dialect is not MESSAGES or caught.value.body["error"]["type"] == "authentication_error"


# What comes back.


def answer_of(dialect):
    """Return a script of all that a dialect can tell, and what its clients read."""
    thoughts = [] if dialect is COMPLETIONS else [thought("Hm. ", 3)]
    calls = PIECES if dialect.has("tools") else []
    end = "tools" if calls else "stop"
    reason = dict(zip(("stop", "length", "context", "tools"), dialect.ends.split(), strict=False))[end]
    is_ollama = dialect in (OLLAMA, GENERATE)
    told = (("" if is_ollama else "call_a", "weather", {"place": "Rome"}),) if calls else ()
    tokens = (20, None if is_ollama else 8, 5)
    expected = Told("It is sunny.", "Hm. " if thoughts else "", told, reason, tokens)
    return [*thoughts, "It is ", "sunny.", *calls, finished(end)], expected


@those()
@pytest.mark.parametrize("stream", [False, True])
async def test_an_answer_is_what_the_engine_has_told(dialect, stream):
    script, expected = answer_of(dialect)
    models = FakeModels(script)
    fields = dialect.said(tools=[WEATHER]) if dialect.has("tools") else {}
    async with dialect.client(models) as client:
        if stream:
            assert await dialect.gathered(client, **fields) == expected
        else:
            answer = await dialect.send(client, **fields)
            assert (dialect.read(answer.model_dump()), answer.model) == (expected, "scripted")
    assert models.metrics == [(dialect.path, 200, "scripted")]


@those()
async def test_why_it_has_ended(dialect):
    for end, word in zip(("stop", "length", "context"), dialect.ends.split(), strict=False):
        answer = await dialect.answered(FakeModels(["x", finished(end)]))
        assert dialect.read(answer.model_dump()).reason == word


@those("tools")
async def test_a_call_that_is_cut_short_is_not_lost(dialect):
    models = FakeModels([*PIECES[:2], finished("length")])
    answer = await dialect.answered(models, **dialect.said(tools=[WEATHER]))
    assert "weather" in str(BACK[dialect](answer))
    assert dialect.ends.split()[1] in str(answer)


@those()
async def test_words_come_as_they_are_written(dialect):
    said = {letter: asyncio.Event() for letter in "abcdefgh"}
    models = FakeModels([step for letter, event in said.items() for step in (letter, event)])
    async with dialect.client(models) as client:
        async for event in await dialect.send(client, stream=True):
            if text := dialect.text(event.model_dump()):  # none waits for the next one
                said.pop(text).set()
    assert said == {}


@those()
@pytest.mark.parametrize(
    ("step", "status", "code", "told"),
    [
        (errors.EngineCrashed("It crashed."), 503, "engine_crashed", "It crashed."),
        (ValueError("a secret"), 500, "fault", "Internal error"),
        (finished("cancelled"), 503, "stopped", "stopped during the answer"),
    ],
)
async def test_a_stream_that_fails_ends_with_the_error(dialect, step, status, code, told):
    models = FakeModels(["Hel", "lo", step])
    async with serving(models) as url:
        answer, whole = await dialect.post(url, stream=True), await dialect.post(url)
        async with dialect.connected(url) as client:
            if dialect is RESPONSES:
                events = [event async for event in await dialect.send(client, stream=True)]
                assert events[-1].type == "response.failed"
            else:
                with pytest.raises(dialect.error, match=told):
                    [event async for event in await dialect.send(client, stream=True)]
    *before, last = dialect.pieces(answer.text)
    assert "".join(map(dialect.text, before)) == "Hello"
    assert (answer.status_code, whole.status_code) == (200, status)
    for failure in (dialect.failure(last), dialect.failure(whole.json())):
        assert told in failure.message
        assert failure.code == dialect.told(code)
    assert "secret" not in answer.text + whole.text
    assert "[DONE]" not in answer.text


TYPES = {404: "not_found_error", 503: "overloaded_error", 422: "invalid_request_error", 500: "api_error"}


@those()
@pytest.mark.parametrize(
    ("error", "status", "code", "again"),
    [
        (errors.ModelNotFound("No such model.", hint="Pull it."), 404, "model_not_found", None),
        (errors.DoesNotFit("Too large."), 503, "does_not_fit", None),
        (errors.LoadFailed("Broken."), 503, "load_failed", None),
        (errors.EngineCrashed("It died."), 503, "engine_crashed", "1"),
        (errors.RequestRefused("It died twice."), 422, "request_refused", None),
        (ValueError("a secret"), 500, "fault", None),
    ],
)
async def test_what_goes_wrong_before_the_first_word_is_a_status(dialect, error, status, code, again):
    for stream in (True, False):
        for models in (FakeModels(refuses=error), FakeModels([error])):
            async with serving(models) as url:
                answer = await dialect.post(url, stream=stream)
            told = dialect.failure(answer.json(), answer.status_code)
            assert (told.status, told.code) == (status, dialect.told(code))
            assert answer.headers.get("retry-after") == again
            assert getattr(error, "message", "Internal error") in told.message
            assert "secret" not in answer.text
            assert dialect is not MESSAGES or told.type == TYPES[status]
            assert models.metrics == [(dialect.path, status, None if models.refuses else "scripted")]


@pytest.mark.slow
@those()
async def test_silence_is_broken(dialect, monkeypatch):
    """By events where clients with a limit for silence count no comments."""
    monkeypatch.setattr(operation, "KEEP_ALIVE", 0.05)
    models = FakeModels([0.12, "Hi", 0.12])
    models.load_seconds = 0.12
    async with serving(models) as url:
        answer = await dialect.post(url, stream=True)
    before, _, after = answer.text.partition("Hi")
    pieces = dialect.pieces(answer.text)
    if dialect.silence:
        assert answer.text.startswith((dialect.silence, "event: response.created"))
        assert before.count(dialect.silence) >= 3
        assert after.count(dialect.silence) >= 1
    else:
        assert [piece["done"] for piece in pieces] == [False, True]
    assert "".join(dialect.text(piece) for piece in pieces if isinstance(piece, dict)) == "Hi"


@those()
@pytest.mark.parametrize("stream", [True, False])
async def test_who_leaves_stops_the_generation(dialect, stream):
    models = FakeModels(["x", *[step for _ in range(1000) for step in (0.01, "x")]])
    async with serving(models) as url:
        raw = await Raw.to(url)
        n = 2 if dialect in (CHAT, COMPLETIONS) else 1
        body = {"stream": stream} | dialect.needs | ({"n": n} if n > 1 else {})
        await raw.ask("POST", dialect.path, body=json.dumps(body).encode())
        if stream:
            await raw.reader.readuntil(b'"x"')
        while len(models.requests) < n:
            await asyncio.sleep(0.01)
        raw.close()
        while len(models.stopped) < n:  # else it comes to its end, and is not stopped
            await asyncio.sleep(0.01)
        assert (await ask(url))[0] == 200


# The list of models.


async def test_codex_can_read_the_list_and_others_are_not_told_of_an_empty_one(url):
    plain = (await ask(url))[2]
    codex = (await ask(url, path="/v1/models?client_version=0.169.0"))[2]
    assert "models" not in plain
    assert codex == plain | {"models": []}
    assert [model["id"] for model in codex["data"]] == [codex["first_id"]] == [codex["last_id"]]


async def test_models_are_listed():
    async with CHAT.client(FakeModels()) as client:
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("scripted")).owned_by == "edgechat"
        with pytest.raises(openai.NotFoundError):
            await client.models.retrieve("other/one:Q4")
    async with MESSAGES.client(FakeModels()) as client:
        models = [model async for model in client.models.list()]
        assert [(one.id, one.type, one.display_name) for one in models] == [("scripted", "model", "scripted")]
    async with OLLAMA.client(FakeModels()) as client:
        (model,) = (await client.list()).models
        assert (model.model, model.size) == ("scripted", 7)
        assert [one.model for one in (await client.ps()).models] == ["scripted"]
        shown = await client.show("scripted:latest")
        assert (shown.capabilities or [])[0] == "completion"
        assert (shown.modelinfo or {})["llama.context_length"] == 4096
        with pytest.raises(OLLAMA.error):
            await client.show("other")


@those()
async def test_lines_of_a_stream_end_for_everybody_at_the_same_place(dialect):
    """Clients with httpx cut lines where Unicode does, which is in the middle of a text of JSON."""
    said = "a\x85b\u2028c\u2029d\ne"
    async with serving(FakeModels([said])) as url:
        lines = (await dialect.post(url, stream=True)).content.decode()
    assert lines.splitlines() == lines.split("\n")[:-1]
    assert said in "".join(dialect.text(piece) for piece in dialect.pieces(lines) if isinstance(piece, dict))
