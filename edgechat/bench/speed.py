"""Speed benchmark: the request, the report, and the parent process's side."""

from __future__ import annotations

import statistics

import msgspec

from edgechat.bench.process import BenchFailure, BenchProgress, Tell, ask
from edgechat.native.params import AttentionKind, Buffer
from edgechat.planner.plan import LoadPlan

CEILING, PLAIN = "bare loop", "plain"


class BenchTask(msgspec.Struct, frozen=True, tag=True):
    """A request to measure a model, loaded as planned."""

    plan: LoadPlan
    rounds: int = 5
    tokens: int = 48
    """Length of each reply."""


class AtDepth(msgspec.Struct, frozen=True):
    """Speeds at one depth of context."""

    depth: int
    prompt_tps: float
    """Prefill speed in tokens per second."""
    decode_tps: float
    """Tokens per second in a bare loop that decodes single tokens."""


class DecodingRun(msgspec.Struct, frozen=True):
    """The rates of one way of decoding, for one task."""

    task: str
    name: str
    rates: tuple[float, ...]
    """Tokens per second after the first token."""
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Mean speed over all rounds, which have the same length, in tokens per second."""
        return statistics.harmonic_mean(self.rates) if self.rates else 0.0


class BenchReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All results. Times are in milliseconds, sizes in bytes."""

    architecture: str
    load_ms: float
    ttft_ms: float
    """Time to first token with `prompt_tokens`, none of which were in the cache."""
    prompt_tokens: int
    resident_bytes: int
    """Memory of the process, not including accelerators."""
    buffers: tuple[Buffer, ...]
    """llama.cpp's allocations for the model itself."""
    depths: tuple[AtDepth, ...]
    attention: AttentionKind | None
    """The plan's kind, used for all measurements except `other_depths`; None if there is no choice."""
    other_depths: tuple[AtDepth, ...]
    """`depths` with the other kind of attention; empty if there is none, or if it did not load."""
    curve_depth: int
    curve_ms: dict[int, float]
    """C(n): median time of a call of n rows at that depth."""
    draft_ms: float | None
    """Time per token for the draft model, or for the model's own layers (MTP)."""
    drafters: tuple[str, ...]
    no_draft: str
    ways: tuple[DecodingRun, ...]

    @property
    def other_attention(self) -> AttentionKind:
        """Kind of attention used for `other_depths`."""
        return "plain" if self.attention == "flash" else "flash"


Answer = BenchProgress | BenchReport | BenchFailure


def measure(task: BenchTask, tell: Tell) -> BenchReport:
    """Run a benchmark in a child process, reporting progress to `tell`. Raises EdgechatError."""
    hint = "Try a shorter context (--ctx 2048), or `--draft none`."
    report: BenchReport = ask("bench", task, Answer, tell, hint)
    return report
