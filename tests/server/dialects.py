"""The API dialects in which programs ask for answers, each through its own client library.

A test says what it wants in the engine's terms. A dialect translates that, sends it, and reads the response.
"""

from __future__ import annotations

import base64
import inspect
import json
from collections.abc import AsyncIterator, Iterable, Iterator
from contextlib import asynccontextmanager
from operator import attrgetter
from typing import Any, ClassVar, NamedTuple

import httpx2
import pytest

from edgechat.engine.types import ChatRequest, Message, Tool, ToolCallArguments
from edgechat.server.protocol.responses_items import sealed
from tests.later import Later
from tests.server.fakes import KEY, FakeModels, called, serving

anthropic = Later("anthropic")
ollama = Later("ollama")
openai = Later("openai")

Json = dict[str, Any]
BEARER = {"Authorization": f"Bearer {KEY}"}
HELLO = [{"role": "user", "content": "Hello"}]
SCHEMA = {"type": "object", "properties": {"place": {"type": "string"}}}
WEATHER = Tool("weather", "The weather of a place.", json.dumps(SCHEMA))
_ARGUMENTS = (ToolCallArguments("", '{"place": ', 2), ToolCallArguments("", '"Rome"}', 3))
PIECES = [called("weather", "", "call_a"), *_ARGUMENTS]
"""A tool call, as the engine's events."""
_ALIKE = "temperature top_p top_k min_p presence_penalty frequency_penalty seed stop"


class Told(NamedTuple):
    """An answer, as read by a client. tokens: in the prompt, cached among those, and in the answer."""

    text: str
    thinking: str = ""
    calls: tuple[tuple[str, str, Json], ...] = ()
    reason: str | None = None
    tokens: tuple[int | None, ...] = ()


class Refused(NamedTuple):
    """An error, as read by a client; None if its dialect has no field for it."""

    status: int | None
    message: str
    type: str | None = None
    param: str | None = None
    code: str | None = None


class Dialect:
    """An API dialect. Its methods take the fields of a body, and add those that every body needs.

    words: the fields for each of the engine's terms, with "..." in place of the value. needs: the fields of a
    minimal body. ends: the reasons for which answers end, for the engine's stop, length, context and tools.
    create: the client's method; gather, final: the methods that assemble a stream. said_at: the path to the
    answer's text in an event. silence: what a stream sends to break a long silence.
    """

    name = path = create = gather = final = said_at = ends = silence = ""
    words: ClassVar[Json] = {}
    needs: ClassVar[Json] = {"messages": HELLO}
    streams: ClassVar[Json] = {}
    error: type[Exception]
    connected: Any
    read: Any

    def has(self, *fields: str) -> bool:
        """Return True if it can express all of these."""
        return all(field in self.words or hasattr(self, f"say_{field}") for field in fields)

    def said(self, **values: Any) -> Json:
        """Return the body fields that express these values, given in the engine's terms."""
        sent: Json = {}
        for name, value in values.items():
            words = self.words.get(name) or getattr(self, f"say_{name}")(value)
            for field, one in _filled(words, value).items():
                sent[field] = {**sent.get(field, {}), **one} if isinstance(one, dict) else one
        return sent

    @asynccontextmanager
    async def client(self, models: FakeModels, **server: Any) -> AsyncIterator[Any]:
        """Serve the models; yield a client."""
        async with serving(models, **server) as url, self.connected(url) as client:
            yield client

    async def send(self, client: Any, **fields: Any) -> Any:
        """Send a request through a client."""
        return await _call(attrgetter(self.create)(client), self.needs | fields)

    async def gathered(self, client: Any, **fields: Any) -> Told:
        """Send a streaming request; return the answer that the client library assembles from the events."""
        async with _call(attrgetter(self.gather)(client), self.needs | self.streams | fields) as stream:
            return self.read((await getattr(stream, self.final)()).model_dump())

    def text(self, piece: Json) -> str:
        """Return the answer's text in an event of a stream."""
        found: Any = piece
        for key in self.said_at.split():
            found = found[int(key)] if key.isdigit() and found else (found or {}).get(key)
        return found if isinstance(found, str) else ""

    async def answered(self, models: FakeModels | None = None, *, on: Any = (), **fields: Any) -> Any:
        """Send a request; return the client's answer. on: options for the server."""
        async with self.client(models or FakeModels(), **dict(on)) as client:
            return await self.send(client, **fields)

    async def asked(self, models: FakeModels | None = None, **fields: Any) -> ChatRequest:
        """Send a request; return what the engine received."""
        models = models or FakeModels()
        await self.answered(models, **fields)
        return models.requests[-1]

    async def streamed(self, models: FakeModels, *, on: Any = (), **fields: Any) -> list[Any]:
        """Send a streaming request; return the client's events."""
        async with self.client(models, **dict(on)) as client:
            return [event async for event in await self.send(client, stream=True, **fields)]

    async def refused(self, models: FakeModels | None = None, **fields: Any) -> Refused:
        """Send a request that must fail; return the error."""
        with pytest.raises(self.error) as caught:
            await self.answered(models, **fields)
        told = getattr(caught.value, "body", None) or caught.value.error
        return self.failure({"error": told}, caught.value.status_code)

    async def post(self, url: str, **fields: Any) -> httpx2.Response:
        """Send a body without the client library."""
        async with httpx2.AsyncClient(headers=BEARER, timeout=60, verify=False) as client:
            return await client.post(url + self.path, json={"stream": False} | self.needs | fields)

    def told(self, detail: str | None) -> str | None:
        """Return an error's code or field as this dialect reports it; None if it has no place for them."""
        return None

    def pieces(self, text: str) -> list[Any]:
        """Return a stream's pieces: events as JSON, other lines unchanged."""
        blocks = [block.partition("data: ")[2] or block for block in text.split("\n\n") if block]
        return [json.loads(block) if block.startswith("{") else block for block in blocks]

    def failure(self, piece: Json, status: int | None = None) -> Refused:
        """Return the error in a body or event."""
        said = piece["error"].get("error", piece["error"])
        return Refused(status, *(said.get(name) for name in ("message", "type", "param", "code")))


def _same(names: str) -> Json:
    return {name: {name: ...} for name in names.split()}


def _filled(words: Any, value: Any) -> Any:
    """Return `words` with `value` in place of "..."."""
    if isinstance(words, dict):
        return {name: _filled(inner, value) for name, inner in words.items()}
    return value if words is ... else words


def _call(method: Any, fields: Json) -> Any:
    """Call a client's method; pass arguments that it does not know in `extra_body`."""
    fields, known = {"model": "default"} | fields, inspect.signature(method).parameters
    extra = {name: value for name, value in fields.items() if name not in known}
    return method(**{name: fields[name] for name in fields if name in known}, extra_body=extra)


def coded(data: bytes) -> str:
    return base64.b64encode(data).decode()


def url_of(data: bytes) -> str:
    kind = {b"RIFF": "audio/wav", b"\x89PNG": "image/png"}.get(data[:4], "image/jpeg")
    return f"data:{kind};base64,{coded(data)}"


def _content(content: Any, part: Any) -> Any:
    """Return a message's content: a string, or strings and files in order."""
    return content if isinstance(content, str) else list(map(part, content))


def _function(tool: Tool) -> Json:
    return {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}


class OpenAI(Dialect):
    streams: ClassVar[Json] = {"stream_options": {"include_usage": True}}
    silence = ": waiting"

    @property
    def error(self) -> type[Exception]:
        return openai.APIError

    def connected(self, url: str, key: str = KEY) -> Any:
        fast = openai.DefaultAsyncHttpxClient(verify=False)  # reading certificates takes 20 ms
        return openai.AsyncOpenAI(base_url=f"{url}/v1", api_key=key, max_retries=0, http_client=fast)

    def told(self, detail: str | None) -> str | None:
        return detail

    def tokens(self, usage: Json) -> tuple[int | None, ...]:
        cached = usage["prompt_tokens_details"]["cached_tokens"]
        return usage["prompt_tokens"], cached, usage["completion_tokens"]


class Chat(OpenAI):
    name, path, create = "chat", "/v1/chat/completions", "chat.completions.create"
    gather, final, said_at = "chat.completions.stream", "get_final_completion", "choices 0 delta content"
    words = _same(f"{_ALIKE} repetition_penalty think overflow priority docs logprobs") | {
        "max_tokens": {"max_completion_tokens": ...},
        "effort": {"reasoning_effort": ...},
        "schema": {"response_format": {"type": "json_schema", "json_schema": {"name": "x", "schema": ...}}},
        "any_json": {"response_format": {"type": "json_object"}},
        "choice": {"tool_choice": ...},
        "tool": {"tool_choice": {"type": "function", "function": {"name": ...}}},
        "one_call": {"parallel_tool_calls": False},
    }
    ends = "stop length length tool_calls"

    def say_tools(self, tools: Iterable[Tool]) -> Json:
        return {"tools": [{"type": "function", "function": _function(tool)} for tool in tools]}

    def say_messages(self, messages: Iterable[Message]) -> Json:
        return {"messages": list(map(self.message, messages))}

    def message(self, message: Message) -> Json:
        sent: Json = {"role": message.role, "content": _content(message.content, self.part)}
        sent |= {"reasoning_content": message.thinking} if message.thinking else {}
        functions = ((one.id, {"name": one.name, "arguments": one.arguments}) for one in message.calls)
        calls = [{"id": id, "type": "function", "function": function} for id, function in functions]
        sent |= {"tool_calls": calls} if calls else {}
        return sent | ({"tool_call_id": message.call_id} if message.call_id else {})

    def part(self, part: str | bytes) -> Json:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        if part.startswith(b"RIFF"):
            return {"type": "input_audio", "input_audio": {"data": coded(part), "format": "wav"}}
        return {"type": "image_url", "image_url": {"url": url_of(part), "detail": "low"}}

    def read(self, answer: Json) -> Told:
        [choice] = answer["choices"]
        said = choice["message"]
        functions = ((one["id"], one["function"]) for one in said.get("tool_calls") or ())
        calls = tuple((id, one["name"], json.loads(one["arguments"])) for id, one in functions)
        more = calls, choice["finish_reason"], self.tokens(answer["usage"])
        return Told(said["content"], said.get("reasoning_content") or "", *more)


class Completions(OpenAI):
    name, path, create = "completions", "/v1/completions", "completions.create"
    needs, said_at = {"prompt": "Hello"}, "choices 0 text"
    words, ends = _same(f"{_ALIKE} repetition_penalty max_tokens priority"), "stop length length"

    async def gathered(self, client: Any, **fields: Any) -> Told:
        stream = await self.send(client, stream=True, **self.streams, **fields)
        *chunks, last = [chunk.model_dump() async for chunk in stream]
        assert last["choices"] == []
        choice = chunks[-1]["choices"][0] | {"text": "".join(map(self.text, chunks))}
        return self.read(last | {"choices": [choice]})

    def read(self, answer: Json) -> Told:
        [choice] = answer["choices"]
        return Told(choice["text"], "", (), choice["finish_reason"], self.tokens(answer["usage"]))


class Responses(OpenAI):
    name, path, create, needs = "responses", "/v1/responses", "responses.create", {"input": "Hello"}
    gather, final, said_at = "responses.stream", "get_final_response", "delta"
    words = _same("temperature top_p seed priority docs") | {
        "max_tokens": {"max_output_tokens": ...},
        "effort": {"reasoning": {"effort": ...}},
        "overflow": {"truncation": "auto"},
        "schema": {"text": {"format": {"type": "json_schema", "name": "x", "schema": ...}}},
        "any_json": {"text": {"format": {"type": "json_object"}}},
        "choice": {"tool_choice": ...},
        "tool": {"tool_choice": {"type": "function", "name": ...}},
        "one_call": {"parallel_tool_calls": False},
    }
    ends, silence = "completed incomplete incomplete completed", "event: response.in_progress"
    streams: ClassVar[Json] = {}

    def say_tools(self, tools: Iterable[Tool]) -> Json:
        return {"tools": [{"type": "function", "strict": False, **_function(tool)} for tool in tools]}

    def say_messages(self, messages: Iterable[Message]) -> Json:
        return {"input": [item for message in messages for item in self.items(message)]}

    def items(self, message: Message) -> Iterator[Json]:
        content = _content(message.content, self.part)
        if message.thinking:
            yield {"type": "reasoning", "summary": [], "encrypted_content": sealed(message.thinking)}
        if message.role == "tool":
            yield {"type": "function_call_output", "call_id": message.call_id, "output": content}
        elif content:
            yield {"role": message.role, "content": content}
        for one in message.calls:
            yield {"type": "function_call", "call_id": one.id, "name": one.name, "arguments": one.arguments}

    def part(self, part: str | bytes) -> Json:
        if isinstance(part, str):
            return {"type": "input_text", "text": part}
        if part.startswith(b"RIFF"):
            return {"type": "input_audio", "input_audio": {"data": url_of(part), "format": "wav"}}
        return {"type": "input_image", "image_url": url_of(part), "detail": "auto"}

    def read(self, answer: Json) -> Told:
        parts = [(item["type"], part) for item in answer["output"] for part in item.get("content") or ()]
        text, thinking = (
            "".join(part["text"] for kind, part in parts if kind == of) for of in ("message", "reasoning")
        )
        called = (item for item in answer["output"] if item["type"] == "function_call")
        calls = tuple((one["call_id"], one["name"], json.loads(one["arguments"])) for one in called)
        usage = answer["usage"]
        tokens = usage["input_tokens"], usage["input_tokens_details"]["cached_tokens"], usage["output_tokens"]
        return Told(text, thinking, calls, answer["status"], tokens)

    def failure(self, piece: Json, status: int | None = None) -> Refused:
        return super().failure(piece.get("response", piece), status)


class Messages(Dialect):
    name, path, create = "messages", "/v1/messages", "messages.create"
    gather, final, said_at = "messages.stream", "get_final_message", "delta text"
    needs: ClassVar[Json] = {"messages": HELLO, "max_tokens": 99}
    words = _same("temperature top_p top_k max_tokens priority docs") | {
        "stop": {"stop_sequences": ...},
        "effort": {"output_config": {"effort": ...}},
        "schema": {"output_config": {"format": {"type": "json_schema", "schema": ...}}},
        "tool": {"tool_choice": {"type": "tool", "name": ...}},
        "one_call": {"tool_choice": {"type": "auto", "disable_parallel_tool_use": True}},
    }
    ends = "end_turn max_tokens max_tokens tool_use"
    silence = "event: ping"

    @property
    def error(self) -> type[Exception]:
        return anthropic.APIStatusError

    def say_tools(self, tools: Iterable[Tool]) -> Json:
        functions = map(_function, tools)
        return {"tools": [{"input_schema": one.pop("parameters"), **one} for one in functions]}

    def say_think(self, on: bool) -> Json:
        return {"thinking": {"type": "enabled", "budget_tokens": 2048} if on else {"type": "disabled"}}

    def say_choice(self, choice: str) -> Json:
        return {"tool_choice": {"type": "any" if choice == "required" else choice}}

    def say_messages(self, messages: Iterable[Message]) -> Json:
        sent = [(one, _content(one.content, self.part)) for one in messages]
        system = [content for one, content in sent if one.role == "system"]
        turns = [self.turn(*one) for one in sent if one[0].role != "system"]
        return {"messages": turns} | ({"system": system[0]} if system else {})

    def turn(self, message: Message, content: Any) -> Json:
        if message.role == "user":
            return {"role": "user", "content": content}
        if message.role == "tool":
            result = {"type": "tool_result", "tool_use_id": message.call_id, "content": content}
            return {"role": "user", "content": [result]}
        blocks: list[Json] = []
        if message.thinking:
            blocks.append({"type": "thinking", "thinking": message.thinking, "signature": "x"})
        if message.content:
            blocks.append(self.part(message.content))
        for call in message.calls:
            named = {"id": call.id, "name": call.name, "input": json.loads(call.arguments)}
            blocks.append({"type": "tool_use", **named})
        return {"role": message.role, "content": blocks}

    def part(self, part: str | bytes) -> Json:
        if isinstance(part, str):
            return {"type": "text", "text": part}
        source: Json = {"type": "url", "url": url_of(part)}
        if part.startswith(b"\x89PNG"):
            source = {"type": "base64", "media_type": "image/png", "data": coded(part)}
        return {"type": "image", "source": source}

    def connected(self, url: str, key: str = KEY) -> Any:
        fast = anthropic.DefaultAsyncHttpxClient(verify=False)
        return anthropic.AsyncAnthropic(base_url=url, api_key=key, max_retries=0, http_client=fast)

    def read(self, answer: Json) -> Told:
        blocks, usage = answer["content"], answer["usage"]
        text, thinking = ("".join(one.get(kind) or "" for one in blocks) for kind in ("text", "thinking"))
        called = (one for one in blocks if one["type"] == "tool_use")
        calls = tuple((one["id"], one["name"], one["input"]) for one in called)
        kinds = ("input_tokens", "cache_creation_input_tokens", "cache_read_input_tokens")
        tokens = sum(usage[kind] for kind in kinds), usage[kinds[-1]], usage["output_tokens"]
        return Told(text, thinking, calls, answer["stop_reason"], tokens)


class Generate(Dialect):
    """Ollama's prompts, which are chats with a single question."""

    name, path, create = "generate", "/api/generate", "generate"
    needs, said_at = {"prompt": "Hello"}, "response"
    words = {name: {"options": {name: ...}} for name in _ALIKE.split()} | {
        "repetition_penalty": {"options": {"repeat_penalty": ...}},
        "max_tokens": {"options": {"num_predict": ...}},
        "think": {"think": ...},
        "effort": {"think": ...},
        "schema": {"format": ...},
        "any_json": {"format": "json"},
    }
    ends, silence = "stop length length stop", ""

    @property
    def error(self) -> type[Exception]:
        return ollama.ResponseError

    def connected(self, url: str, key: str = KEY) -> Any:
        return ollama.AsyncClient(host=url, headers={"Authorization": f"Bearer {key}"}, verify=False)

    async def send(self, client: Any, **fields: Any) -> Any:
        return await attrgetter(self.create)(client)(**{"model": "default"} | self.needs | fields)

    async def gathered(self, client: Any, **fields: Any) -> Told:
        lines = [line.model_dump() async for line in await self.send(client, stream=True, **fields)]
        assert [line["done"] for line in lines] == [False] * (len(lines) - 1) + [True]
        parts = [self.read(line) for line in lines]
        calls = tuple(call for part in parts for call in part.calls)
        text, thinking = ("".join(part[at] for part in parts) for at in (0, 1))
        return Told(text, thinking, calls, *parts[-1][3:])

    def read(self, answer: Json) -> Told:
        said = answer.get("message") or {"content": answer.get("response"), **answer}
        called = [call["function"] for call in said.get("tool_calls") or ()]
        calls = tuple(("", one["name"], one["arguments"]) for one in called)  # the library drops their ids
        tokens = answer["prompt_eval_count"], None, answer["eval_count"]
        return Told(said["content"], said.get("thinking") or "", calls, answer["done_reason"], tokens)

    def failure(self, piece: Json, status: int | None = None) -> Refused:
        return Refused(status, piece["error"])

    def pieces(self, text: str) -> list[Any]:
        return [json.loads(line) for line in text.splitlines()]


class Ollama(Generate):
    name, path, create, needs = "ollama", "/api/chat", "chat", {"messages": HELLO}
    said_at = "message content"
    words: ClassVar[Json] = Generate.words | _same("docs")
    say_tools = Chat.say_tools

    def say_messages(self, messages: Iterable[Message]) -> Json:
        return {"messages": list(map(self.message, messages))}

    def message(self, message: Message) -> Json:
        parts = [part for part in message.content if isinstance(part, bytes)]
        texts = message.content if isinstance(message.content, str) else message.content[len(parts) :]
        functions = [{"name": one.name, "arguments": json.loads(one.arguments)} for one in message.calls]
        sent = {"role": message.role, "content": "".join(texts), "thinking": message.thinking or None}
        sent |= {"tool_calls": [{"function": one} for one in functions] or None}
        return sent | {"images": list(map(coded, parts)) or None}


CHAT, COMPLETIONS, RESPONSES, MESSAGES = Chat(), Completions(), Responses(), Messages()
OLLAMA, GENERATE = Ollama(), Generate()
DIALECTS: tuple[Any, ...] = (CHAT, COMPLETIONS, RESPONSES, MESSAGES, OLLAMA, GENERATE)


def named(value: Any) -> str | None:
    """Return a dialect's name, for the ids of parametrized tests."""
    return value.name if isinstance(value, Dialect) else None


def those(*fields: str) -> Any:
    """Parametrize a test with the dialects that can express all of these."""
    return pytest.mark.parametrize("dialect", [one for one in DIALECTS if one.has(*fields)], ids=named)


def those_saying(names: str, *cases: tuple[Any, ...]) -> Any:
    """Parametrize a test with cases, which start with the values to express, and the dialects that can."""
    able = [(dialect, *case) for case in cases for dialect in DIALECTS if dialect.has(*case[0])]
    return pytest.mark.parametrize(f"dialect, said, {names}", able, ids=named)
