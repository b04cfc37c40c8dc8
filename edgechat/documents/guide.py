"""The guide: the engine of a tiny model whose answers the documentation that ships checks and completes.

The model writes its first words, whose probability tells how well it knows the question, and the documentation is
searched; how little the one knows and how much the other has make one number, `_merit`. From low to high, the model
answers, both do (the likelier one first), or the documentation does, with page and heading, or says that it has
nothing. Whoever loads the guide gets this engine from `local_engine`, so chats, commands and servers are the same.
"""

# ruff: noqa: D102  (`Engine` documents its methods)

from __future__ import annotations

import asyncio
import math
from collections.abc import AsyncGenerator, Callable
from contextlib import aclosing
from functools import cache
from pathlib import Path

import msgspec

from edgechat.base import paths
from edgechat.documents.manual import FROM, Hit, Manual
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Delta,
    Finished,
    Message,
    ModelInfo,
    Prefill,
    RequestEvent,
    Timings,
    Usage,
)
from edgechat.engine.worker.supervisor import EngineSupervisor
from edgechat.planner.plan import LoadPlan

DECLINES = "I am a small guide that only knows edgechat;"
"""What all answers of the model to questions that are none of its own begin with."""
_TOKENS = 8
"""The probability of so many tokens is looked at: an answer that it knows follows from its beginning."""
# Chosen by the practice exams: `python packaging/guide/told.py --practice`.
_BOTH, _FIRST, _ALONE = 1.3, 1.6, 1.9
"""From which merit on the documentation is quoted, comes first, and is all of the answer."""
_LEAST = 0.4
"""A passage that covers less of a question does not answer it."""
_NOTHING = "The documentation does not say."
_OR = "If that is not what you meant:"


class Guide(EngineSupervisor):
    """The engine of the guide. What is not a plain question, or has a limit of tokens, the model answers alone."""

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
        asked = _question(request)
        own = msgspec.structs.replace(request, messages=_own_words(request.messages))
        if asked is not None:
            own = msgspec.structs.replace(own, logprobs=0)
        async with aclosing(super().stream(own, on_progress, may_load=may_load)) as events:
            if asked is None:
                async for event in events:
                    yield event
                return
            begun: list[RequestEvent] = []
            text, chances = "", list[float]()
            async for event in events:
                begun.append(event)
                if isinstance(event, Delta):
                    text += event.text
                    chances += (one.logprob for one in event.chances)
                is_known = len(chances) >= _TOKENS and not DECLINES.startswith(text)
                if is_known or isinstance(event, Finished):
                    break
            last = begun[-1]
            if isinstance(last, Finished) and last.reason != "stop":
                hit, merit = None, 0.0
            else:
                hit = (await asyncio.to_thread(manual)).search(asked)
                merit = _merit(sum(chances[:_TOKENS]), hit)
                if text.startswith(DECLINES) and merit <= _ALONE:
                    merit = 0.0
            if hit is not None and merit > _ALONE:
                n = last.tokens if isinstance(last, Delta) else 0
                for event in begun:
                    if not isinstance(event, Delta | Finished):
                        yield event
                yield Delta(request.id, _answer(hit), thinking=False, tokens=n)
                yield (
                    last
                    if isinstance(last, Finished)
                    else Finished(
                        request.id, "stop", Usage(_prompt_tokens(begun), 0, n), Timings(0.0, 0.0, 0.0)
                    )
                )
                return
            both = hit is not None and merit > _BOTH and hit.coverage >= _LEAST
            if hit is not None and both and merit > _FIRST:
                yield Delta(request.id, f"{hit.text}\n\n{_OR} ", thinking=False, tokens=0)
            for event in begun:
                for told in _told(event, hit if both and merit <= _FIRST else None):
                    yield told
            async for event in events:
                for told in _told(event, hit if both and merit <= _FIRST else None):
                    yield told


@cache
def manual() -> Manual:
    """Return the documentation that ships, read once: it takes a tenth of a second."""
    found = Manual()
    found.search("What is edgechat?")  # which makes the index
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
    """Return the engine of a model on this machine, not yet loaded: the guide's own for the guide."""
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
    """Return what is asked, if the answer may have any words and any length."""
    is_free = request.text is None and not (request.tools or request.schema or request.stop)
    if not is_free or request.logprobs is not None or request.max_tokens is not None or not request.messages:
        return None
    last = request.messages[-1]
    return last.content if last.role == "user" and not last.media else None


def _merit(logprob: float, hit: Hit) -> float:
    """Return how much better the documentation answers: the doubts of the model, and what was found."""
    return 0.87 * math.sqrt(max(0.0, -logprob)) + 1.1 * hit.coverage + hit.score / 20


def _answer(hit: Hit) -> str:
    if hit.coverage >= _LEAST:
        return hit.text
    return f"{_NOTHING} The nearest page: {hit.passages[0].place}." if hit.passages else _NOTHING


def _told(event: RequestEvent, after: Hit | None) -> list[RequestEvent]:
    """Return an event of the model as it is passed on, and before its end what follows its words."""
    if isinstance(event, Delta):
        return [msgspec.structs.replace(event, chances=())] if event.text else []
    if isinstance(event, Finished) and event.reason == "stop" and after is not None:
        words = f"\n\n{_OR}\n\n{after.text}"
        return [Delta(event.request_id, words, thinking=False, tokens=event.usage.completion_tokens), event]
    return [event]


def _own_words(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return a chat with the model's own words alone, which it was trained to go on from."""
    kept: list[Message] = []
    for one in messages:
        if one.role != "assistant":
            kept.append(one)
            continue
        parts = [part.strip() for part in one.content.split(_OR)]
        words = "".join(part for part in parts if not part.startswith((FROM, _NOTHING)))
        if words:
            kept.append(msgspec.structs.replace(one, content=words))
        elif kept and kept[-1].role == "user":
            kept.pop()
    return tuple(kept)


def _prompt_tokens(events: list[RequestEvent]) -> int:
    return max((event.total for event in events if isinstance(event, Prefill)), default=0)
