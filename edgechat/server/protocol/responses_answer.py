"""From the engine's events to a response, whole or as the events of a stream."""

from __future__ import annotations

import json
import secrets
import time
from abc import ABC, abstractmethod
from collections.abc import Iterator, Sequence
from typing import Any

import msgspec
from msgspec import UNSET

from edgechat.documents.library import Given
from edgechat.engine.types import (
    ChatRequest,
    Delta,
    Dropped,
    Finished,
    Prefill,
    RequestEvent,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.server.documents import FileCitation, citations_of, question_in
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.answers import (
    LONGER,
    OneAnswer,
    PromptDetails,
    TokenLogprob,
    logprob_of,
    named_event,
)
from edgechat.server.protocol.fields import limit, thinking_of
from edgechat.server.protocol.responses_items import NOTHING, Earlier, items_of, sealed
from edgechat.server.protocol.responses_request import ResponseBody, Toolbox, toolbox_of
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

Told = tuple[str, dict[str, Any]]
"""The type of an event, and its fields."""


class _Item(ABC):
    """An item of the output while it is written."""

    prefix: str

    def __init__(self) -> None:
        self.id = f"{self.prefix}_{secrets.token_hex(16)}"

    @abstractmethod
    def item(self, status: ItemStatus) -> OutputItem:
        """Return it as it is now."""

    def begin(self) -> Iterator[Told]:
        """Yield the events that follow after it was added."""
        return iter(())

    @abstractmethod
    def end(self) -> Iterator[Told]:
        """Yield the events that come before it is done."""


class _Text(_Item):
    """A message, or a thought: one part of text."""

    prefix, kind = "msg", "output_text"

    def __init__(self, passages: Sequence[Given] = ()) -> None:
        """passages: what it may cite."""
        super().__init__()
        self._passages = passages
        self._texts: list[str] = []
        self._logprobs: list[TokenLogprob] = []

    @property
    def text(self) -> str:
        return "".join(self._texts)

    def add(self, delta: Delta) -> Told:
        """Add text; return the event of it."""
        self._texts.append(delta.text)
        logprobs = [logprob_of(token) for token in delta.chances]
        self._logprobs += logprobs
        more = {"logprobs": logprobs} if self.kind == "output_text" else {}
        return f"response.{self.kind}.delta", {"content_index": 0, "delta": delta.text, **more}

    def begin(self) -> Iterator[Told]:
        yield "response.content_part.added", {"content_index": 0, "part": self.empty_part()}

    def end(self) -> Iterator[Told]:
        more = {"logprobs": self._logprobs} if self.kind == "output_text" else {}
        for number, annotation in enumerate(self._citations()):
            about = {"annotation_index": number, "annotation": annotation}
            yield f"response.{self.kind}.annotation.added", {"content_index": 0, **about}
        yield f"response.{self.kind}.done", {"content_index": 0, "text": self.text, **more}
        yield "response.content_part.done", {"content_index": 0, "part": self.part()}

    def empty_part(self) -> OutputText | OutputThought:
        return OutputText()

    def part(self) -> OutputText | OutputThought:
        return self._whole()

    def item(self, status: ItemStatus) -> OutputItem:
        parts = [] if status == "in_progress" else [self._whole()]
        return OutputMessage(id=self.id, status=status, content=parts)

    def _whole(self) -> OutputText:
        return OutputText(text=self.text, annotations=self._citations(), logprobs=self._logprobs)

    def _citations(self) -> list[FileCitation]:
        return citations_of(self.text, self._passages) if self._passages else []


class _Thought(_Text):
    prefix, kind = "rs", "reasoning_text"

    def __init__(self, *, seals: bool) -> None:
        """seals: the thought is sent once more, in the form that agents send back."""
        super().__init__()
        self._seals = seals

    def empty_part(self) -> OutputThought:
        return OutputThought()

    def part(self) -> OutputThought:
        return OutputThought(text=self.text)

    def item(self, status: ItemStatus) -> OutputItem:
        begun = status == "in_progress"
        return OutputReasoning(
            id=self.id,
            status=status,
            content=[] if begun else [self.part()],
            encrypted_content=sealed(self.text) if self._seals and not begun else UNSET,
        )


class _Call(_Item):
    """A call of a function."""

    prefix = "fc"

    def __init__(self, call: ToolCall, name: str, namespace: str | None) -> None:
        super().__init__()
        self.call_id = call.id
        self.name = name
        self._namespace = namespace
        self._arguments = [call.arguments] if call.arguments else []

    @property
    def arguments(self) -> str:
        return "".join(self._arguments)

    def add(self, text: str) -> Iterator[Told]:
        """Add arguments; yield the event of it."""
        self._arguments.append(text)
        yield "response.function_call_arguments.delta", {"delta": text}

    def begin(self) -> Iterator[Told]:
        if self._arguments:
            yield "response.function_call_arguments.delta", {"delta": self.arguments}

    def end(self) -> Iterator[Told]:
        yield "response.function_call_arguments.done", {"name": self.name, "arguments": self.arguments}

    def item(self, status: ItemStatus) -> OutputItem:
        return OutputCall(
            id=self.id,
            status=status,
            call_id=self.call_id,
            name=self.name,
            namespace=self._namespace or UNSET,
            arguments="" if status == "in_progress" else self.arguments,
        )


class _CustomCall(_Call):
    """A call of a tool that takes free text: the model writes it as a JSON object, which is undone."""

    prefix = "ctc"

    @property
    def input(self) -> str:
        """The text, or what the model has written if that is no such object."""
        try:
            value = json.loads(self.arguments)["input"]
        except (ValueError, TypeError, KeyError):
            return self.arguments
        return value if isinstance(value, str) else self.arguments

    def add(self, text: str) -> Iterator[Told]:
        self._arguments.append(text)
        return iter(())

    def begin(self) -> Iterator[Told]:
        return iter(())

    def end(self) -> Iterator[Told]:
        yield "response.custom_tool_call_input.delta", {"delta": self.input}
        yield "response.custom_tool_call_input.done", {"input": self.input}

    def item(self, status: ItemStatus) -> OutputItem:
        text = "" if status == "in_progress" else self.input
        return OutputCustomCall(id=self.id, status=status, call_id=self.call_id, name=self.name, input=text)


class _Search(_Item):
    """A search in documents, which is done."""

    prefix = "fs"

    def __init__(self, query: str, results: list[FoundText] | None) -> None:
        super().__init__()
        self._query = query
        self._results = results

    def begin(self) -> Iterator[Told]:
        for state in ("in_progress", "searching"):
            yield f"response.file_search_call.{state}", {}

    def end(self) -> Iterator[Told]:
        yield "response.file_search_call.completed", {}

    def item(self, status: ItemStatus) -> OutputItem:
        results = None if status == "in_progress" else self._results
        return OutputSearch(id=self.id, status=status, queries=[self._query], results=results)


class ResponseAnswers(OneAnswer[Told]):
    """The response to one request, as it grows."""

    def __init__(
        self, body: ResponseBody, think: bool | None, earlier: Earlier = NOTHING, keep: Keep | None = None
    ) -> None:
        """think: what the settings say for models that can switch it. earlier: what it refers to.

        keep: stores the response; None if it is not to be stored. Raises Refusal.
        """
        self._tools: Toolbox = toolbox_of(body.tools or ())
        super().__init__(
            model=body.model,
            streams=body.stream,
            priority=body.priority,
            lora=body.lora,
            documents=body.documents(self._tools),
        )
        self._body = body
        self._think = think
        self._request = body.asked(self._tools, earlier)
        self._limit = limit(body.max_output_tokens, None, "max_output_tokens")
        self._seals = "reasoning.encrypted_content" in (body.include or ())
        self._has_searched = self.documents is None or self.documents is not self._tools.search
        """Whether the search of the tool has been told of, if there is one."""
        self._id = f"resp_{secrets.token_hex(16)}"
        self._created = time.time()
        self._completed: float | None = None
        self._number = 0
        self._output: list[OutputItem] = []
        self._open: _Text | _Call | _Search | None = None
        """The item that is being written, after those of the output."""
        self._reasoning = 0
        self._error: ResponseError | None = None
        self._keep = keep
        self._input = stored_items(items_of(body.input or (), earlier)) if keep is not None else ()
        # What `store` says is true when it is sent: until the end, that the response is going to be stored;
        # at the end, whether that has worked. So it is stored before the end is sent, and a client that has
        # read the end can continue it. One that fails is never stored.
        self._is_stored = keep is not None

    @property
    def shorter(self) -> str:
        """Return what to do about a prompt that is too long."""
        if self._request.overflow == "window":
            return f"The parts that cannot be left out are too long: shorten the last message; {LONGER}"
        return f'Shorten it; "truncation": "auto" leaves out the oldest turns; {LONGER}'

    def request(self, served: ServedModel, choice: int) -> ChatRequest:
        """Return what the engine is asked for."""
        effort = self._body.reasoning.effort if self._body.reasoning is not None else None
        think, effort = thinking_of(
            served.model, think=None, effort=effort, default=self._think, insists=False
        )
        return msgspec.structs.replace(
            self._request,
            id=self._id,
            logprobs=self._body.wants_logprobs,
            max_tokens=self._limit,
            think=think,
            effort=effort,
            sampling=self._body.sampling(served.plan.sampling_for(think)),
            priority=self.priority,
        )

    async def settle(self) -> None:
        """Store the response."""
        self._completed = time.time()
        if self._keep is not None:
            self._is_stored = await self._keep(record_of(self._response(), self._created, self._input))

    def whole(self) -> bytes:
        """Return the response."""
        return msgspec.json.encode(self._response())

    def end(self) -> bytes:
        """Return the last event of a stream."""
        response = self._response()
        return self._told(f"response.{response.status}", {"response": response})

    def waiting(self) -> bytes:
        """Return an event, since clients with a limit for silence count events alone."""
        if self._has_begun:
            return self._told("response.in_progress", {"response": self._response("in_progress")})
        self._has_begun = True
        return self._begin()

    def failure(self, refusal: Refusal) -> bytes:
        """Return the response as it failed."""
        beginning = b"" if self._has_begun else self._begin()
        self._is_stored = False
        self._error = ResponseError(refusal.code or "server_error", refusal.message)
        return beginning + self._told("response.failed", {"response": self._response("failed")})

    def _begin(self) -> bytes:
        response = {"response": self._response("in_progress")}
        return self._told("response.created", response) + self._told("response.in_progress", response)

    def _encode(self, told: Told) -> bytes:
        return self._told(*told)

    def _told(self, kind: str, fields: dict[str, Any]) -> bytes:
        body = {"type": kind, "sequence_number": self._number, **fields}
        self._number += 1
        return named_event(kind, msgspec.json.encode(body))

    def _events(self, event: RequestEvent) -> Iterator[Told]:
        """Take an event of the engine; yield those that tell of it."""
        if not self._has_searched and not isinstance(event, Prefill | Dropped):
            self._has_searched = True
            yield from self._add(self._search())
            yield from self._close("completed")
        match event:
            case Delta(thinking=thinking, tokens=tokens):
                if thinking:
                    self._reasoning = tokens
                if type(self._open) is not (_Thought if thinking else _Text):
                    yield from self._add(_Thought(seals=self._seals) if thinking else _Text(self.passages))
                assert isinstance(self._open, _Text)
                yield self._about_open(*self._open.add(event))
            case ToolCallBegun(call=call):
                namespace, name = self._tools.name_of(call.name)
                kind = _CustomCall if call.name in self._tools.custom else _Call
                yield from self._add(kind(call, name, namespace))
            case ToolCallArguments(text=text):
                assert isinstance(self._open, _Call)
                for told in self._open.add(text):
                    yield self._about_open(*told)
            case Finished(reason=reason):
                self._finish(0, event)
                yield from self._close("incomplete" if reason in ("length", "context") else "completed")

    def _search(self) -> _Search:
        """Return the search that has found the passages."""
        wants_results = "file_search_call.results" in (self._body.include or ())
        found = list(map(FoundText.of, range(1, len(self.passages) + 1), self.passages))
        return _Search(question_in(self._request), found if wants_results else None)

    def _add(self, item: _Text | _Call | _Search) -> Iterator[Told]:
        yield from self._close("completed")
        self._open = item
        added = {"output_index": len(self._output), "item": item.item("in_progress")}
        yield "response.output_item.added", added
        for told in item.begin():
            yield self._about_open(*told)

    def _close(self, status: ItemStatus) -> Iterator[Told]:
        """End the item that is being written, if there is one."""
        if self._open is None:
            return
        for told in self._open.end():
            yield self._about_open(*told)
        item = self._open.item(status)
        yield "response.output_item.done", {"output_index": len(self._output), "item": item}
        self._output.append(item)
        self._open = None

    def _about_open(self, kind: str, fields: dict[str, Any]) -> Told:
        assert self._open is not None
        return kind, {"item_id": self._open.id, "output_index": len(self._output), **fields}

    def _response(self, status: ResponseStatus | None = None) -> Response:
        """Return the response as it is now. status: None where it has ended."""
        body, end = self._body, self._ends[0]
        if status is None:
            is_cut = end is not None and end.reason in ("length", "context")
            status = "incomplete" if is_cut else "completed"
        return Response(
            id=self._id,
            created_at=int(self._created),
            completed_at=int(self._completed or time.time()) if status == "completed" else None,
            status=status,
            error=self._error,
            incomplete_details=IncompleteDetails("max_output_tokens") if status == "incomplete" else None,
            instructions=body.instructions,
            max_output_tokens=self._limit,
            metadata=body.metadata or {},
            model=self.model,
            output=list(self._output),
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
            usage=None if end is None else self._usage(end),
            user=body.user,
            truncated=UNSET if end is None else end.usage.dropped_turns or UNSET,
            sources=UNSET if end is None else self._sources,
        )

    def _usage(self, end: Finished) -> ResponseUsage:
        read, written = end.usage.prompt_tokens, end.usage.completion_tokens
        return ResponseUsage(
            input_tokens=read,
            input_tokens_details=PromptDetails(end.usage.cached_tokens),
            output_tokens=written,
            output_tokens_details=OutputDetails(self._reasoning),
            total_tokens=read + written,
        )
