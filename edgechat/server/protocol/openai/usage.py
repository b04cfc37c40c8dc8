"""How many tokens an answer was, and how long it took."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from edgechat.engine.types import Finished


class PromptDetails(msgspec.Struct, frozen=True):
    """Prompt tokens that were found in the prefix cache."""

    cached_tokens: int


class CompletionDetails(msgspec.Struct, frozen=True):
    """Tokens of the thinking, and drafted tokens that were accepted and rejected."""

    reasoning_tokens: int
    accepted_prediction_tokens: int
    rejected_prediction_tokens: int


class UsageBody(msgspec.Struct, frozen=True, kw_only=True):
    """The tokens of all answers to a request; the prompt counts once."""

    prompt_tokens: int
    completion_tokens: int
    total_tokens: int
    prompt_tokens_details: PromptDetails
    completion_tokens_details: CompletionDetails


class AnswerTimings(msgspec.Struct, frozen=True):
    """Extension: milliseconds to the first token, and tokens per second, of the first answer."""

    ttft_ms: float
    prompt_tps: float
    decode_tps: float


def usage_of(ends: Sequence[Finished], *, reasoning: int = 0, prompts: int = 1) -> UsageBody:
    """Return the usage of `ends`, of which each run of len(ends) / prompts has one prompt."""
    each = max(1, len(ends) // prompts)
    runs = [ends[at : at + each] for at in range(0, len(ends), each)]
    prompt = sum(max(one.usage.prompt_tokens for one in run) for run in runs)
    cached = sum(min(one.usage.cached_tokens for one in run) for run in runs)
    written = sum(one.usage.completion_tokens for one in ends)
    drafts = [one.speculation for one in ends if one.speculation is not None]
    accepted = sum(one.accepted_tokens for one in drafts)
    drafted = sum(one.drafted_tokens for one in drafts)
    return UsageBody(
        prompt_tokens=prompt,
        completion_tokens=written,
        total_tokens=prompt + written,
        prompt_tokens_details=PromptDetails(cached),
        completion_tokens_details=CompletionDetails(reasoning, accepted, drafted - accepted),
    )


def timings_of(ends: Sequence[Finished]) -> AnswerTimings:
    """Return how long the first of them took."""
    first = ends[0].timings
    return AnswerTimings(round(first.ttft_ms, 3), round(first.prompt_tps, 2), round(first.decode_tps, 2))
