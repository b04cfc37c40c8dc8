"""Speed benchmark: its request, its report, and the code that runs in the parent process."""

from __future__ import annotations

import statistics

import msgspec

from edgechat.bench.process import BenchFailure, BenchProgress, Tell, ask
from edgechat.native.params import AttentionKind, Buffer
from edgechat.planner.plan import LoadPlan

CEILING, PLAIN = "bare loop", "plain"


class BenchTask(msgspec.Struct, frozen=True, tag=True):
    """A request to measure a model that is loaded according to a plan."""

    plan: LoadPlan
    rounds: int = 5
    tokens: int = 48
    """Length of each reply in tokens."""


class AtDepth(msgspec.Struct, frozen=True):
    """The speeds at one depth of context."""

    depth: int
    prompt_tps: float
    """Prefill speed in tokens per second."""
    decode_tps: float
    """Decoding speed in a bare loop that decodes single tokens, in tokens per second."""


class DecodingRun(msgspec.Struct, frozen=True):
    """The speeds of one way of decoding, on one task."""

    task: str
    name: str
    rates: tuple[float, ...]
    """Speed of each reply after its first token, in tokens per second."""
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Mean speed over all rounds, which are equally long, in tokens per second."""
        return statistics.harmonic_mean(self.rates) if self.rates else 0.0


class BenchReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All results. Times are in milliseconds, sizes in bytes."""

    architecture: str
    load_ms: float
    ttft_ms: float
    """Time to first token for a prompt of `prompt_tokens` tokens that were not in the cache."""
    prompt_tokens: int
    resident_bytes: int
    """Memory used by the process, not counting accelerators."""
    buffers: tuple[Buffer, ...]
    """What llama.cpp allocated for the model itself."""
    depths: tuple[AtDepth, ...]
    attention: AttentionKind | None
    """The plan's kind, used for everything except `other_depths`; None if there is no choice."""
    other_depths: tuple[AtDepth, ...]
    """Same as `depths`, but with the other kind of attention; empty if there is none or it failed to load."""
    curve_depth: int
    curve_ms: dict[int, float]
    """C(n): median time for a call of n rows at that depth."""
    draft_ms: float | None
    """Time per token drafted by the draft model or by the model's own layers (MTP)."""
    drafters: tuple[str, ...]
    no_draft: str
    ways: tuple[DecodingRun, ...]

    @property
    def other_attention(self) -> AttentionKind:
        """The kind of attention that was used for `other_depths`."""
        return "plain" if self.attention == "flash" else "flash"


Answer = BenchProgress | BenchReport | BenchFailure


def measure(task: BenchTask, tell: Tell) -> BenchReport:
    """Run a benchmark in a child process, reporting progress to `tell`. Raises EdgechatError."""
    hint = "Try a shorter context (--ctx 2048), or `--draft none`."
    report: BenchReport = ask("bench", task, Answer, tell, hint)
    return report
