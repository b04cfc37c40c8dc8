"""Reading time: how many tokens the model must read before answering, and how long that takes."""

from __future__ import annotations

from typing import TYPE_CHECKING

from edgechat.base.text import seconds
from edgechat.engine.prompt.window import guessed_tokens

if TYPE_CHECKING:
    from edgechat.chat.records import Attachment
    from edgechat.engine.types import Finished
    from edgechat.planner.plan import LoadPlan

_MANY_TOKENS, _LONG_SECONDS = 1000, 10.0
"""A prompt at or below both limits gets no note."""
_TELLING = 256
"""Minimum number of prompt tokens that must have been read for a reply before its speed is used."""
_SAMPLE = 1000
"""Length, in tokens, of the prompt for which a plan predicts the speed."""


class ReadingTime:
    """The loaded model's reading speed: the plan's prediction, corrected using the last long prompt."""

    def __init__(self) -> None:
        self._plan: LoadPlan | None = None
        self._slowness = 0.0
        """Ratio of the measured time to the plan's forecast, or 0 if not measured yet."""

    def measure(self, plan: LoadPlan, finished: Finished) -> None:
        """Correct the speed using a reply's measurements."""
        usage, timings = finished.usage, finished.timings
        n_read = usage.prompt_tokens - usage.cached_tokens
        if plan.forecast is not None and timings.prompt_tps > 0 and n_read >= _TELLING:
            forecast = plan.forecast.prefilling(n_read, usage.cached_tokens)
            self._plan, self._slowness = plan, n_read / timings.prompt_tps / forecast

    def seconds(self, plan: LoadPlan, n: int, depth: int) -> float:
        """Return the seconds needed to read n tokens after `depth` others; 0 if unknown."""
        forecast, predicted = plan.forecast, plan.predicted
        if forecast is None or predicted is None:
            return 0.0
        slowness = self._slowness if plan is self._plan else 0.0
        slowness = slowness or _SAMPLE / predicted.prompt_tps / forecast.prefilling(_SAMPLE)
        return slowness * forecast.prefilling(n, depth)


def tokens_of(attachment: Attachment) -> int:
    """Estimate the number of tokens in an attachment."""
    return guessed_tokens(len(attachment.text.encode("utf-8", "replace")))


def notice(n: int, wait: float, context: int) -> str:
    """Return a note about a prompt of n tokens, or '' if it is short and quick to read.

    wait: how long reading it takes, in seconds. context: context length in tokens. Both are 0 if unknown.
    """
    if 0 < context < n:
        return f"~{n:,} tokens, more than the context of {context:,}"
    if n <= _MANY_TOKENS and wait <= _LONG_SECONDS:
        return ""
    return f"~{n:,} tokens to read" + (f" · {seconds(wait)}" if wait else "")
