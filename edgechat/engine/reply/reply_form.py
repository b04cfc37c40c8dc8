"""The form of the reply to a request: its stop strings, its parts, and the grammar that it follows."""

from __future__ import annotations

from edgechat.base.errors import BadRequest
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.template import ChatTemplate, begins_answer
from edgechat.engine.reply.forced_calls import calls_grammar
from edgechat.engine.reply.grammar import json_rule, reply_grammar
from edgechat.engine.reply.reply import Reply
from edgechat.engine.tool_calls.splitter import Splitter
from edgechat.engine.tool_calls.tools import constrained_tools, kinds_of
from edgechat.engine.types import ChatRequest


def reply_of(request: ChatRequest, template: ChatTemplate, *, thinking: bool) -> Reply:
    """Return the empty reply to a request. thinking: the prompt has opened the thought already."""
    if request.text is not None:
        return Reply(request.stop)
    calls = None
    if request.tools:
        calls = Splitter(
            template.calls,
            kinds_of(request.tools),
            forced=request.tool_choice == "required",
            marked=bool(constrained_tools(request)),
            most=request.most_calls,
        )
    marks = None if begins_answer(request.messages) else template.marks
    return Reply(request.stop, marks, ends=template.stop, thinking=thinking, calls=calls)


def grammar_of(
    request: ChatRequest, template: ChatTemplate, vocabulary: Vocabulary, *, thinking: bool
) -> str | None:
    """Return the grammar that the reply follows, if it follows any. Raises SchemaError or BadRequest."""
    has_begun = begins_answer(request.messages)
    if has_begun and (request.schema is not None or constrained_tools(request)):
        raise BadRequest(
            "A schema cannot be applied to an answer that has already begun.",
            hint="End with a user message, or omit response_format, tool_choice and strict.",
        )
    must_call = request.tool_choice == "required"
    answer = json_rule(request.schema) if request.schema is not None else ""
    if constrained_tools(request):
        body = calls_grammar(
            template.calls,
            request.tools,
            vocabulary,
            tool=request.tool,
            most_calls=request.most_calls,
            alternative="" if must_call else answer,
            optional=not (must_call or answer),
        )
    elif answer:
        body = f"answer: {answer}"
    else:
        return None
    marks = template.marks if request.text is None else None
    return reply_grammar(body, vocabulary, marks, thinking=thinking)
