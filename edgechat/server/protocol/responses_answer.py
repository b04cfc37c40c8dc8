"""Answers in the Responses API, as a whole or as a stream of events."""

from __future__ import annotations

import json
import secrets
import time
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from edgechat.engine.types import Sampling, TokenLogprobs
from edgechat.server.documents import citations_of, file_id_of, filename_of, question_in
from edgechat.server.protocol.answers import (
    AnswerBlock,
    Answers,
    BlockBegun,
    BlockEnded,
    BlockGrown,
    Change,
    PromptDetails,
    logprob_of,
    named_event,
)
from edgechat.server.protocol.fields import seed_of
from edgechat.server.protocol.responses_items import NOTHING, Earlier, items_of, sealed
from edgechat.server.protocol.responses_request import ResponseBody, toolbox_of
from edgechat.server.protocol.responses_store import (
    FoundText,
    IncompleteDetails,
    ItemStatus,
    Keep,
    OutputCall,
    OutputCustomCall,
    OutputDetails,
    OutputItem,
    OutputMessage,
    OutputReasoning,
    OutputSearch,
    OutputText,
    OutputThought,
    Response,
    ResponseError,
    ResponseStatus,
    ResponseUsage,
    record_of,
    stored_items,
)
from edgechat.server.refusal import Refusal
from edgechat.settings import SamplingDefaults

_PREFIXES = {"text": "msg", "thinking": "rs", "call": "fc", "custom": "ctc"}
"""Prefixes for item ids, keyed by the kind of block."""


class ResponseAnswers(Answers):
    """The response to one request. Its items are the search, if any, and the blocks of the answer."""

    id_prefix = "resp_"
    window_field = '"truncation": "auto"'

    def __init__(
        self, body: ResponseBody, think: bool | None, earlier: Earlier = NOTHING, keep: Keep | None = None
    ) -> None:
        """think: the default from the settings. earlier: the items that the request refers to.

        keep: stores the response, or None if it should not be stored. Raises Refusal.
        """
        self._tools = toolbox_of(body.tools or ())
        super().__init__(
            body.engine_request(self._tools, earlier),
            model=body.model,
            streams=body.stream,
            think=think,
            effort=body.reasoning.effort if body.reasoning is not None else None,
            lora=body.lora,
            documents=body.documents(self._tools),
        )
        self._body = body
        self._seals = "reasoning.encrypted_content" in (body.include or ())
        self._searches = self.documents is not None and self.documents is self._tools.search
        self._search_id = f"fs_{secrets.token_hex(16)}"
        self._has_searched = False
        self._created = time.time()
        self._completed: float | None = None
        self._number = 0
        """The sequence number of the next event."""
        self._error: ResponseError | None = None
        self._keep = keep
        self._input = stored_items(items_of(body.input or (), earlier)) if keep is not None else ()
        # In the last event, `store` says whether the response was stored; before that, whether it will be.
        # The response is therefore stored before that event is sent, so clients that have read the event can
        # refer to the response. A failed response is never stored.
        self._is_stored = keep is not None

    def _sampling(self, defaults: SamplingDefaults, choice: int) -> Sampling:
        body = self._body
        sent = SamplingDefaults(temperature=body.temperature, top_p=body.top_p)
        return Sampling(**sent.over(defaults).given(), seed=seed_of(body.seed))

    async def settle(self) -> None:
        """Store the response."""
        self._completed = time.time()
        if self._keep is not None:
            self._is_stored = await self._keep(record_of(self._response(), self._created, self._input))

    def whole(self) -> bytes:
        """Return the response as JSON."""
        return msgspec.json.encode(self._response())

    def end(self) -> bytes:
        """Return the last event of a stream."""
        response = self._response()
        return self._event(response.status, response=response)

    def waiting(self) -> bytes:
        """Return an event, because some clients time out on a stream without events."""
        if self._has_begun:
            return self._event("in_progress", response=self._response("in_progress"))
        self._has_begun = True
        return self._begin()

    def failure(self, refusal: Refusal) -> bytes:
        """Return the failed response as the last event."""
        beginning = b"" if self._has_begun else self._begin()
        self._is_stored = False
        self._error = ResponseError(refusal.code or "server_error", refusal.message)
        return beginning + self._event("failed", response=self._response("failed"))

    def _begin(self) -> bytes:
        response = self._response("in_progress")
        created = self._event("created", response=response)
        return created + self._event("in_progress", response=response)

    def _encode(self, choice: int, change: Change) -> bytes:
        return b"".join(self._event(kind, **fields) for kind, fields in self._events(change))

    def _event(self, kind: str, **fields: Any) -> bytes:
        body = {"type": f"response.{kind}", "sequence_number": self._number, **fields}
        self._number += 1
        return named_event(f"response.{kind}", msgspec.json.encode(body))

    def _events(self, change: Change) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the types and fields of the events that report a change."""
        if self._searches and not self._has_searched:
            self._has_searched = True
            yield "output_item.added", {"output_index": 0, "item": self._search("in_progress")}
            for state in ("in_progress", "searching", "completed"):
                yield f"file_search_call.{state}", {"item_id": self._search_id, "output_index": 0}
            yield "output_item.done", {"output_index": 0, "item": self._search("completed")}
        match change:
            case BlockBegun(block=block):
                place = self._place(block)
                yield "output_item.added", {"output_index": place, "item": self._item(block, "in_progress")}
                if block.call is None:
                    part = OutputThought() if block.kind == "thinking" else OutputText()
                    yield "content_part.added", {**self._about(block), "content_index": 0, "part": part}
                elif block.text:
                    yield from self._grown(block, block.text, ())
            case BlockGrown(block=block, text=text, chances=chances):
                yield from self._grown(block, text, chances)
            case BlockEnded(block=block):
                for kind, fields in self._ended(block):
                    yield kind, self._about(block) | fields
                item = self._item(block, self._status(block))
                yield "output_item.done", {"output_index": self._place(block), "item": item}

    def _grown(
        self, block: AnswerBlock, text: str, chances: Sequence[TokenLogprobs]
    ) -> Iterator[tuple[str, dict[str, Any]]]:
        about = self._about(block)
        if block.kind == "thinking":
            yield "reasoning_text.delta", {**about, "content_index": 0, "delta": text}
        elif block.kind == "text":
            logprobs = list(map(logprob_of, chances))
            yield "output_text.delta", {**about, "content_index": 0, "delta": text, "logprobs": logprobs}
        elif not self._is_custom(block):  # its text is known only once the JSON object around it is complete
            yield "function_call_arguments.delta", {**about, "delta": text}

    def _ended(self, block: AnswerBlock) -> Iterator[tuple[str, dict[str, Any]]]:
        """Yield the events to send before the end of an item."""
        if block.call is None:
            part = self._part(block)
            if isinstance(part, OutputText):
                for number, citation in enumerate(part.annotations):
                    about = {"annotation_index": number, "annotation": citation}
                    yield "output_text.annotation.added", {"content_index": 0, **about}
                text = {"text": part.text, "logprobs": part.logprobs}
                yield "output_text.done", {"content_index": 0, **text}
            else:
                yield "reasoning_text.done", {"content_index": 0, "text": part.text}
            yield "content_part.done", {"content_index": 0, "part": part}
        elif self._is_custom(block):
            yield "custom_tool_call_input.delta", {"delta": _free_text(block.text)}
            yield "custom_tool_call_input.done", {"input": _free_text(block.text)}
        else:
            _, name = self._tools.name_of(block.call.name)
            yield "function_call_arguments.done", {"name": name, "arguments": block.text}

    def _place(self, block: AnswerBlock) -> int:
        """Return the position of a block in the list of output items."""
        return block.index + self._searches

    def _about(self, block: AnswerBlock) -> dict[str, Any]:
        return {"item_id": self._item_id(block), "output_index": self._place(block)}

    def _item_id(self, block: AnswerBlock) -> str:
        kind = "custom" if self._is_custom(block) else block.kind
        return f"{_PREFIXES[kind]}_{block.id}"

    def _is_custom(self, block: AnswerBlock) -> bool:
        return block.call is not None and block.call.name in self._tools.custom

    def _status(self, block: AnswerBlock) -> ItemStatus:
        """Return the status of an item that has ended."""
        [reply] = self._replies
        return "incomplete" if reply.is_cut and block is reply.blocks[-1] else "completed"

    def _item(self, block: AnswerBlock, status: ItemStatus) -> OutputItem:
        """Return a block as an item, which has no content while it is in progress."""
        begun = status == "in_progress"
        about: dict[str, Any] = {"id": self._item_id(block), "status": status}
        if block.call is None:
            part = self._part(block)
            if isinstance(part, OutputText):
                return OutputMessage(**about, content=[] if begun else [part])
            encrypted = sealed(part.text) if self._seals and not begun else UNSET
            return OutputReasoning(**about, content=[] if begun else [part], encrypted_content=encrypted)
        namespace, name = self._tools.name_of(block.call.name)
        about |= {"call_id": block.call.id, "name": name}
        if self._is_custom(block):
            return OutputCustomCall(**about, input="" if begun else _free_text(block.text))
        arguments = "" if begun else block.text
        return OutputCall(**about, namespace=namespace or UNSET, arguments=arguments)

    def _part(self, block: AnswerBlock) -> OutputText | OutputThought:
        if block.kind == "thinking":
            return OutputThought(text=block.text)
        citations = citations_of(block.text, self.passages) if self.passages else []
        logprobs = list(map(logprob_of, block.chances))
        return OutputText(text=block.text, annotations=citations, logprobs=logprobs)

    def _search(self, status: ItemStatus) -> OutputSearch:
        """Return the search for passages as an item."""
        results = None
        if status == "completed" and "file_search_call.results" in (self._body.include or ()):
            results = [
                FoundText(file_id=file_id_of(one), filename=filename_of(one), score=1 / rank, text=one.text)
                for rank, one in enumerate(self.passages, 1)
            ]
        queries = [question_in(self._asked)]
        return OutputSearch(id=self._search_id, status=status, queries=queries, results=results)

    def _response(self, status: ResponseStatus | None = None) -> Response:
        """Return the response so far. status: None to derive the status from how the answer ended."""
        body, [reply] = self._body, self._replies
        if status is None:
            status = "incomplete" if reply.is_cut else "completed"
        output = [self._item(block, self._status(block)) for block in reply.blocks if not block.is_open]
        if self._has_searched or (self._searches and reply.end is not None):
            output.insert(0, self._search("completed"))
        return Response(
            id=self._id,
            created_at=int(self._created),
            completed_at=int(self._completed or time.time()) if status == "completed" else None,
            status=status,
            error=self._error,
            incomplete_details=IncompleteDetails("max_output_tokens") if status == "incomplete" else None,
            instructions=body.instructions,
            max_output_tokens=self._asked.max_tokens,
            metadata=body.metadata or {},
            model=self.model,
            output=output,
            parallel_tool_calls=body.parallel_tool_calls is not False,
            previous_response_id=body.previous_response_id,
            reasoning=body.reasoning or {"effort": None, "summary": None},
            store=self._is_stored,
            temperature=body.temperature,
            text=body.text or {"format": {"type": "text"}},
            tool_choice=body.tool_choice or "auto",
            tools=body.tools or [],
            top_logprobs=body.top_logprobs or 0,
            top_p=body.top_p,
            truncation=body.truncation or "disabled",
            usage=self._usage(),
            user=body.user,
            truncated=UNSET if reply.end is None else reply.end.usage.dropped_turns or UNSET,
            sources=UNSET if reply.end is None else self._sources,
        )

    def _usage(self) -> ResponseUsage | None:
        [reply] = self._replies
        if reply.end is None:
            return None
        read, written = reply.end.usage.prompt_tokens, reply.end.usage.completion_tokens
        return ResponseUsage(
            input_tokens=read,
            input_tokens_details=PromptDetails(reply.end.usage.cached_tokens),
            output_tokens=written,
            output_tokens_details=OutputDetails(reply.thinking_tokens),
            total_tokens=read + written,
        )


def _free_text(arguments: str) -> str:
    """Return the text for a custom tool from the JSON object around it, or anything else unchanged."""
    try:
        value = json.loads(arguments)["input"]
    except (ValueError, TypeError, KeyError):
        return arguments
    return value if isinstance(value, str) else arguments
