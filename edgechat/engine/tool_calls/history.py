"""Call history: a conversation's calls and results, in the form that its chat template expects."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Sequence
from typing import Any

from msgspec.structs import replace

from edgechat.engine.tool_calls.formats import Format
from edgechat.engine.tool_calls.tools import arguments_in, arguments_text, is_cut, template_tool
from edgechat.engine.types import Message, Role, Tool, ToolCall

_TOOLS_MESSAGE = """# Tools

You may call functions to help with a question. These are the functions that there are:
<tools>
{tools}
</tools>

To call one, write its name and its arguments as a JSON object between <tool_call> tags:
<tool_call>
{{"name": <function-name>, "arguments": <args-json-object>}}
</tool_call>

Its result comes back between <tool_response> tags. Call functions where they help, else answer as usual."""


_CUT = "This call was cut off before its arguments were complete. It was not carried out."


def as_dicts(
    messages: Sequence[Message], family: Format, *, text_arguments: bool = False
) -> list[dict[str, Any]]:
    """Return messages in the form that a family's templates expect.

    text_arguments: pass arguments as JSON text instead of objects.
    """
    called: dict[str, str] = {}
    dicts = []
    for message in _one_call_each(messages) if family.single else messages:
        called |= {call.id: call.name for call in message.calls}
        dicts.append(_as_dict(message, family, called, text_arguments))
    return dicts


def _as_dict(
    message: Message, family: Format, called: dict[str, str], text_arguments: bool
) -> dict[str, Any]:
    fields: dict[str, Any] = {"role": message.role, "content": message.content}
    # Some templates include thoughts; others ignore this field.
    if message.thinking:
        fields["reasoning_content"] = message.thinking
    if message.calls:
        fields["tool_calls"] = [_call(call, family, text_arguments) for call in message.calls]
        if family.before:
            before = "\n\n".join(text for text in (message.thinking, message.content) if text)
            fields |= {"content": "", family.before: before}
    if message.role == "tool":
        fields["tool_call_id"] = _id(message.call_id, family)
        if name := called.get(message.call_id):
            fields["name"] = name
    return fields


def _call(call: ToolCall, family: Format, text_arguments: bool) -> dict[str, Any]:
    arguments = arguments_text(call.arguments) if text_arguments else arguments_in(call.arguments)
    function = {"name": call.name, "arguments": arguments}
    return {"id": _id(call.id, family), "type": "function", "function": function}


def _id(call_id: str, family: Format) -> str:
    if not family.short_ids or (len(call_id) == 9 and call_id.isascii() and call_id.isalnum()):
        return call_id
    return hashlib.blake2b(call_id.encode("utf-8", "replace"), digest_size=8).hexdigest()[:9]


def _one_call_each(messages: Sequence[Message]) -> Iterable[Message]:
    """Split messages with several calls into messages with one call each, followed by its result."""
    at = 0
    while at < len(messages):
        message = messages[at]
        at += 1
        if len(message.calls) < 2:
            yield message
            continue
        results: list[Message] = []
        while at < len(messages) and messages[at].role == "tool":
            results.append(messages[at])
            at += 1
        for number, call in enumerate(message.calls):
            first = {} if not number else {"content": "", "thinking": ""}
            yield replace(message, calls=(call,), **first)
            yield from (result for result in results if result.call_id == call.id)
        call_ids = {call.id for call in message.calls}
        yield from (result for result in results if result.call_id not in call_ids)


def with_cut_calls(messages: Sequence[Message]) -> Sequence[Message]:
    """Return messages with a result for each cut-off call that has none, saying that it was cut off."""
    if not any(message.calls for message in messages):
        return messages
    result: list[Message] = []
    waiting: list[Message] = []
    """Results to add unless real results follow."""
    for message in messages:
        if message.role == "tool":
            waiting = [due for due in waiting if due.call_id != message.call_id]
        else:
            result += waiting
            waiting = [
                Message("tool", _CUT, call_id=call.id) for call in message.calls if is_cut(call.arguments)
            ]
        result.append(message)
    return [*result, *waiting]


def with_rules_first(messages: Sequence[Message]) -> list[Message]:
    """Return messages for a template that accepts system messages only at the beginning.

    Later system messages are merged into the adjacent user message, since turns may have to alternate.
    """
    result: list[Message] = []
    is_rule = False
    for message in messages:
        last = result[-1] if result else None
        is_later = message.role == "system" and last is not None and last.role != "system"
        if last is not None and (
            (is_later and last.role in ("user", "tool")) or (is_rule and message.role == "user")
        ):
            result[-1] = replace(last, content=f"{last.content}\n\n{message.content}")
        else:
            result.append(replace(message, role="user") if is_later else message)
        is_rule = is_later
    return result


def in_words(messages: Sequence[Message], tools: Sequence[Tool], *, ruled: bool) -> list[Message]:
    """Return messages for a template without tool support: tools, calls and results become text.

    ruled: whether the template accepts a system message. If not, the first question describes the tools.
    """
    result: list[Message] = []
    answered = False
    for message in messages:
        role, content = message.role, message.content
        if role == "tool":
            role, content = "user", f"<tool_response>\n{content}\n</tool_response>"
        if message.calls:
            content = "\n".join(
                [*([content] if content else []), *(_call_text(call) for call in message.calls)]
            )
        if answered and role == "user":  # merged into one message, since turns may have to alternate
            result[-1] = replace(result[-1], content=f"{result[-1].content}\n{content}")
        else:
            result.append(Message(role, content, message.thinking))
        answered = message.role == "tool"
    return _add_tools(result, tools, ruled) if tools else result


def _call_text(call: ToolCall) -> str:
    arguments = arguments_text(call.arguments)
    return f'<tool_call>\n{{"name": {json.dumps(call.name)}, "arguments": {arguments}}}\n</tool_call>'


def _add_tools(messages: list[Message], tools: Sequence[Tool], ruled: bool) -> list[Message]:
    lines = "\n".join(json.dumps(template_tool(tool), ensure_ascii=False) for tool in tools)
    text = _TOOLS_MESSAGE.format(tools=lines)
    role: Role = "system" if ruled else "user"
    at = next((at for at, message in enumerate(messages) if message.role == role), None)
    if at is None or (ruled and at > 0):
        return [Message(role, text), *messages]
    both = (messages[at].content, text) if ruled else (text, messages[at].content)
    return [*messages[:at], replace(messages[at], content="\n\n".join(both)), *messages[at + 1 :]]
