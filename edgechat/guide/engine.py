"""The guide's engine: a tiny model, checked and supplemented by the bundled documentation.

The probability of the model's first words shows how well it knows the answer. `_merit` combines this with how
well the documentation covers the question. As the merit rises, the model answers alone, then with a link to a
page, then with a quotation. Above that, the documentation answers alone, or says that it has no answer. The
app, the commands and the server all get this engine from `local_engine`.
"""

# ruff: noqa: D102  (`Engine` documents its methods)

from __future__ import annotations

import asyncio
import math
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Iterator
from contextlib import aclosing
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Delta,
    Dropped,
    Finished,
    Message,
    ModelInfo,
    Prefill,
    RequestEvent,
    Timings,
    Usage,
)
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.guide.manual import FROM, Lookup, Manual
from edgechat.planner.plan import LoadPlan

DECLINES = "I am a small guide that only knows edgechat;"
"""The start of every answer to an off-topic question."""
_TOKENS = 8
"""Number of tokens whose probability is checked. If the model knows the answer, they determine the rest."""
# Tuned on the practice exams: `python packaging/guide/told.py --practice`.
_NAMED, _QUOTED, _ALONE = 1.3, 1.6, 2.1
"""Minimum merits for linking to the documentation, quoting it below the model's answer, and using it alone.

Below the second of these, a quotation was useful in only 3 of 44 cases.
"""
_LEAST = 0.4
"""Fraction of a question that a passage must cover to count as an answer."""
_UNSURE = 1.1
"""Maximum doubt with which the model may answer a question that no passage covers.

Above this, the model was wrong on 3 of 3 practice questions; below it, on 1 of 9.
"""
_NOTHING = "The documentation does not say."
_OR = "If that is not what you meant:"
_SEE = "More: "


class Guide(EngineSupervisor):
    """The guide's engine. If the request has tools, a schema or a token limit, the model answers alone."""

    async def start(self, on_progress: Callable[[float], None] | None = None) -> ModelInfo:
        model, _ = await asyncio.gather(super().start(on_progress), asyncio.to_thread(manual))
        return model

    async def stream(
        self,
        request: ChatRequest,
        on_progress: Callable[[float], None] | None = None,
        *,
        may_load: bool = True,
    ) -> AsyncGenerator[RequestEvent, None]:
        question = _question(request)
        own = msgspec.structs.replace(request, messages=_own_words(request.messages))
        if question is not None:
            own = msgspec.structs.replace(own, logprobs=0)
        arrived = time.perf_counter()
        async with aclosing(super().stream(own, on_progress, may_load=may_load)) as events:
            if question is None:
                async for event in events:
                    yield event
                return
            begun = await _begin(events)
            hit, merit = Lookup(), 0.0
            if not begun.is_cut:
                hit = (await asyncio.to_thread(manual)).search(question)
                merit = _merit(begun, hit)
            if merit > _ALONE:
                for event in begun.instead(_answer(hit), time.perf_counter() - arrived):
                    yield event
                return
            after = ""
            if merit > _NAMED and hit.coverage >= _LEAST:
                after = f"{_OR}\n\n{hit.text}" if merit > _QUOTED else f"{_SEE}{hit.passages[0].place}"
            for event in begun.events:
                for told in _told(event, after):
                    yield told
            async for event in events:
                for told in _told(event, after):
                    yield told


@dataclass(slots=True)
class _Begun:
    """The start of the model's reply."""

    events: list[RequestEvent] = field(default_factory=list)
    text: str = ""
    logprobs: list[float] = field(default_factory=list)

    @property
    def is_cut(self) -> bool:
        """Whether the reply was cancelled or did not fit."""
        last = self.events[-1] if self.events else None
        return isinstance(last, Finished) and last.reason != "stop"

    @property
    def doubt(self) -> float:
        """How unsure the model is: 0 if it is certain, 1 if its first words have a probability of 1/e."""
        return math.sqrt(max(0.0, -sum(self.logprobs[:_TOKENS])))

    def instead(self, text: str, seconds: float) -> Iterator[RequestEvent]:
        """Yield events for a reply with `text` in place of the model's. seconds: time since the request."""
        last = self.events[-1]
        if isinstance(last, Finished):
            usage = last.usage
        else:
            reads = [event for event in self.events if isinstance(event, Prefill)]
            usage = Usage(
                max((event.total for event in reads), default=0),
                max((event.cached for event in reads), default=0),
                last.tokens if isinstance(last, Delta) else 0,
            )
        yield from (event for event in self.events if isinstance(event, Dropped | Prefill))
        yield Delta(last.request_id, text, thinking=False, tokens=usage.completion_tokens)
        yield Finished(last.request_id, "stop", usage, Timings(1000 * seconds, 0.0, 0.0))


async def _begin(events: AsyncIterator[RequestEvent]) -> _Begun:
    """Read events until it is clear how confident the model is, and whether it declines to answer."""
    begun = _Begun()
    async for event in events:
        begun.events.append(event)
        if isinstance(event, Delta):
            begun.text += event.text
            begun.logprobs += (one.logprob for one in event.chances)
        may_decline = len(begun.text) < len(DECLINES) and DECLINES.startswith(begun.text)
        if isinstance(event, Finished) or (len(begun.logprobs) >= _TOKENS and not may_decline):
            break
    return begun


@cache
def manual() -> Manual:
    """Return the bundled documentation. It is cached, because reading it takes a tenth of a second."""
    found = Manual()
    found.search("What is edgechat?")  # builds the index
    return found


def local_engine(
    plan: LoadPlan,
    *,
    idle_seconds: float,
    cache_policy: CachePolicy,
    replan: Callable[[], LoadPlan] | None = None,
    on_state: Callable[[EngineState], None] | None = None,
    on_note: Callable[[str], None],
) -> EngineSupervisor:
    """Return an engine for a local model, without loading it. For the guide's model, this is a `Guide`."""
    is_guide = Path(plan.model_path) == paths.shipped("guide.gguf")
    return (Guide if is_guide else EngineSupervisor)(
        plan,
        idle_seconds=idle_seconds,
        cache_policy=cache_policy,
        replan=replan,
        on_state=on_state,
        on_note=on_note,
    )


def _question(request: ChatRequest) -> str | None:
    """Return the user's question, or None if there is none or the request constrains the answer."""
    is_free = request.text is None and not (request.tools or request.schema or request.stop)
    if not is_free or request.logprobs is not None or request.max_tokens is not None or not request.messages:
        return None
    last = request.messages[-1]
    return last.content if last.role == "user" and not last.media else None


def _merit(begun: _Begun, hit: Lookup) -> float:
    """Return how much better the documentation's answer is, given the model's doubt and the passages found.

    If the model declines, the documentation answers alone or not at all. If neither has an answer, the merit
    is infinite.
    """
    declines = begun.text.startswith(DECLINES)
    if hit.coverage < _LEAST and begun.doubt > _UNSURE and not declines:
        return math.inf
    merit = 0.87 * begun.doubt + 1.1 * hit.coverage + hit.score / 20
    return merit if merit > _ALONE or not declines else 0.0


def _answer(hit: Lookup) -> str:
    if hit.coverage >= _LEAST:
        return hit.text
    return f"{_NOTHING} The closest page: {hit.passages[0].place}." if hit.passages else _NOTHING


def _told(event: RequestEvent, after: str) -> Iterator[RequestEvent]:
    """Yield an event from the model without its probabilities. after: text to append to the reply."""
    if isinstance(event, Delta):
        if event.text:
            yield msgspec.structs.replace(event, chances=())
        return
    if after and isinstance(event, Finished) and event.reason == "stop":
        tokens = event.usage.completion_tokens
        yield Delta(event.request_id, f"\n\n{after}", thinking=False, tokens=tokens)
    yield event


def _own_words(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a chat without quoted documentation: the model was trained to continue only its own words."""
    kept: list[Message] = []
    for one in messages:
        if one.role != "assistant" or (one is messages[-1] and one.content.startswith((FROM, _NOTHING))):
            kept.append(one)
            continue
        parts = [part.split(f"\n\n{_SEE}")[0].strip() for part in one.content.split(_OR)]
        words = "".join(part for part in parts if not part.startswith((FROM, _NOTHING)))
        if words:
            kept.append(msgspec.structs.replace(one, content=words))
        elif kept and kept[-1].role == "user":
            kept.pop()
    return tuple(kept)
