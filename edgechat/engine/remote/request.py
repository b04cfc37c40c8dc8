"""Remote request: turns a ChatRequest into the body of a chat completion, in a server's dialect."""

from __future__ import annotations

import base64
import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec

from edgechat.base.errors import BadRequest, ImageError, SwitchUnknown
from edgechat.base.images.image import PLACE, Image
from edgechat.base.paths import read_bytes
from edgechat.engine.prompt.window import turns_of
from edgechat.engine.tool_calls.tools import arguments_text
from edgechat.engine.types import ChatRequest, MediaFile, Message, Sampling, Tool, ToolCall
from edgechat.models.remote.model import KINDS, HostedModel
from edgechat.settings import RemoteKind

_MOST_MEDIA = 64 * 2**20
_TYPES = {"jpg": "jpeg"}
_ANY_OBJECT = {"type": "object"}
_OPENAI = ("temperature", "top_p", "presence_penalty", "frequency_penalty", "seed")
_ALL = (*_OPENAI, "top_k", "min_p", "repetition_penalty")
_KNOWN: Mapping[RemoteKind, tuple[str, ...]] = {
    "vllm": _ALL,
    "sglang": _ALL,
    "llama-server": _ALL,
    "edgechat": _ALL,
    "transformers": ("temperature", "top_p", "seed"),
    "lmstudio": (*_OPENAI, "top_k", "repetition_penalty"),
    "ollama": _OPENAI,
    "tgi": _OPENAI,
    "openai": _OPENAI,
}
"""The sampling parameters for which each kind of server has a field."""
_NAMES: Mapping[tuple[RemoteKind, str], str] = {
    ("llama-server", "repetition_penalty"): "repeat_penalty",
    ("lmstudio", "repetition_penalty"): "repeat_penalty",
}
_BY_TEMPLATE = ("vllm", "sglang", "llama-server", "transformers", "edgechat")
"""Servers that pass variables on to the chat template."""


def body_of(request: ChatRequest, model: HostedModel) -> dict[str, Any]:
    """Return the body for a request. Reads the request's media files.

    Raises ImageError, SwitchUnknown, and BadRequest for anything that the server does not support.
    """
    if request.text is not None or request.suffix:
        raise BadRequest(f"{model.name} accepts only messages, not plain text to complete.")
    if request.adapters:
        raise BadRequest(
            f"LoRA adapters require a model on this machine, but {model.name} is on a server.",
            hint="Leave them out: use /lora off, or omit --lora.",
        )
    if model.kind == "transformers":  # Transformers would ignore such options and only log this
        _refuse_ignored(request, model)
    body: dict[str, Any] = {
        "model": model.id,
        "messages": [_message(message, model) for message in request.messages],
        "stream": True,
        "stream_options": {"include_usage": True},
        **_sampling(request, model),
        **_thinking(request, model),
    }
    if request.max_tokens is not None:
        # OpenAI's own models accept only the newer name; most other servers know only the older one.
        body["max_completion_tokens" if model.kind == "openai" else "max_tokens"] = request.max_tokens
    if request.stop:
        body["stop"] = list(request.stop)
    if request.tools:
        body["tools"] = [_tool(tool) for tool in request.tools]
        if request.tool_choice == "required":
            named = {"type": "function", "function": {"name": request.tool}}
            body["tool_choice"] = named if request.tool else "required"
            if model.kind == "vllm":  # vLLM otherwise accepts any JSON as arguments
                for tool in body["tools"]:
                    tool["function"]["strict"] = True
            if request.tool and model.kind == "llama-server":  # llama-server treats an object as "auto"
                body["tools"] = [_tool(tool) for tool in request.tools if tool.name == request.tool]
                body["tool_choice"] = "required"
        if request.most_calls == 1:
            body["parallel_tool_calls"] = False
    if request.schema is not None:
        schema = json.loads(request.schema)
        answer = {"name": "answer", "schema": schema, "strict": True}
        form = {"type": "json_schema", "json_schema": answer}
        body["response_format"] = {"type": "json_object"} if schema == _ANY_OBJECT else form
    if request.logprobs is not None:
        body |= {"logprobs": True, "top_logprobs": request.logprobs}
    if model.kind == "llama-server":
        body["return_progress"] = True
    if model.kind == "edgechat":
        body |= {"overflow": request.overflow, "priority": request.priority}
    return body


def _refuse_ignored(request: ChatRequest, model: HostedModel) -> None:
    named = {
        "JSON schemas": request.schema is not None,
        "required tool calls": bool(request.tools) and request.tool_choice == "required",
        "token probabilities": request.logprobs is not None,
    }
    if asked := [name for name, is_set in named.items() if is_set]:
        raise BadRequest(
            f"{model.name} does not support {' or '.join(asked)} ({KINDS[model.kind]}).",
            hint="Leave that out, or use --engine vllm or a GGUF file.",
        )


def without_oldest(messages: Sequence[Message]) -> tuple[int, tuple[Message, ...]]:
    """Drop the older half of the turns that can be dropped; return their number and the remaining messages.

    The system prompt, the first turn and the last turn are kept, as in `edgechat.engine.prompt.window`. Only
    the server knows how many tokens the turns have.
    """
    turns = turns_of([message.role for message in messages])
    n_dropped = (len(turns) - 1) // 2
    gone = {at for turn in turns[1 : 1 + n_dropped] for at in turn}
    return n_dropped, tuple(message for at, message in enumerate(messages) if at not in gone)


def unsupported(request: ChatRequest, model: HostedModel) -> tuple[str, ...]:
    """Return the sampling parameters that are set, but for which the server has no field."""
    known = _KNOWN[model.kind]
    return tuple(name for name in _given(request) if name not in known)


def _given(request: ChatRequest) -> dict[str, Any]:
    """Return the sampling parameters that were set. The server's defaults apply to the others."""
    values, usual = msgspec.structs.asdict(request.sampling), Sampling()
    named = request.sampling_set
    names = [
        name
        for name in _ALL
        if (name in named if named is not None else values[name] != getattr(usual, name))
    ]
    if request.sampling.seed is not None and "seed" not in names:
        names.append("seed")
    return {name: values[name] for name in names}


def _sampling(request: ChatRequest, model: HostedModel) -> dict[str, Any]:
    if request.sampling.bias:
        raise BadRequest(f"{model.name} does not accept token biases: only the server knows its token ids.")
    known = _KNOWN[model.kind]
    given = {name: value for name, value in _given(request).items() if name in known}
    return {_NAMES.get((model.kind, name), name): value for name, value in given.items()}


def _thinking(request: ChatRequest, model: HostedModel) -> dict[str, Any]:
    fields: dict[str, Any] = {}
    if request.think is not None:
        if not model.can_switch_thinking:
            raise SwitchUnknown(
                f"{model.name} has no switch for thinking that edgechat knows ({KINDS[model.kind]}).",
                hint="Omit --think and --no-think, and set /think to default.",
            )
        if model.kind in _BY_TEMPLATE:
            fields["chat_template_kwargs"] = {"enable_thinking": request.think}
        else:
            fields["reasoning_effort"] = "medium" if request.think else "none"
    if request.effort is not None and request.think is not False:
        fields["reasoning_effort"] = request.effort
    return fields


def _tool(tool: Tool) -> dict[str, Any]:
    function = {"name": tool.name, "description": tool.description, "parameters": json.loads(tool.parameters)}
    return {"type": "function", "function": function | ({"strict": True} if tool.strict else {})}


def _message(message: Message, model: HostedModel) -> dict[str, Any]:
    content: Any = message.content
    if message.media:
        content = list(_parts(message, model))
    sent: dict[str, Any] = {"role": message.role, "content": content}
    if message.role == "tool":
        sent["tool_call_id"] = message.call_id
    if message.calls:
        sent["tool_calls"] = list(map(_call, message.calls))
        sent["content"] = content or None
    if message.thinking and model.kind in _BY_TEMPLATE:  # for templates that show a turn's earlier thoughts
        sent["reasoning_content"] = message.thinking
    return sent


def _call(call: ToolCall) -> dict[str, Any]:
    """Return an earlier call. Its arguments become a JSON object, which many servers require."""
    function = {"name": call.name, "arguments": arguments_text(call.arguments)}
    return {"id": call.id, "type": "function", "function": function}


def _parts(message: Message, model: HostedModel) -> Iterator[dict[str, Any]]:
    """Yield the parts of a message with media: the text, with each file where it belongs."""
    texts = message.content.split(PLACE, len(message.media))
    unplaced = len(message.media) - (len(texts) - 1)
    for file in message.media[:unplaced]:
        yield _media(file, model)
    for at, text in enumerate(texts):
        if text:
            yield {"type": "text", "text": text}
        if at < len(texts) - 1:
            yield _media(message.media[unplaced + at], model)


def _media(file: MediaFile, model: HostedModel) -> dict[str, Any]:
    path = Path(file.path)
    kind = path.suffix.removeprefix(".").lower()
    try:
        data = base64.b64encode(read_bytes(path, _MOST_MEDIA)).decode()
    except OSError as error:
        raise ImageError(f"A file in the question cannot be read: {error.strerror}.") from error
    if isinstance(file, Image):
        url = f"data:image/{_TYPES.get(kind, kind)};base64,{data}"
        return {"type": "image_url", "image_url": {"url": url}}
    return {"type": "input_audio", "input_audio": {"data": data, "format": kind}}
