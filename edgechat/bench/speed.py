"""A benchmark of speed: the request, the report, and the front end's side."""

from __future__ import annotations

import statistics

import msgspec

from edgechat.bench.process import BenchFailure, BenchProgress, Tell, ask
from edgechat.native.buffers import Buffer
from edgechat.native.params import AttentionKind
from edgechat.planner.plan import LoadPlan

CEILING, PLAIN = "bare loop", "plain"


class BenchTask(msgspec.Struct, frozen=True, tag=True):
    """A request to measure a model, loaded as planned."""

    plan: LoadPlan
    rounds: int = 5
    tokens: int = 48
    """Of each reply."""


class AtDepth(msgspec.Struct, frozen=True):
    """Speeds at this depth of context."""

    depth: int
    prompt_tps: float
    """Tokens per second of a chunk of a prompt."""
    decode_tps: float
    """Of a bare loop of single tokens."""


class DecodingRun(msgspec.Struct, frozen=True):
    """The rates of one way of decoding, in one task."""

    task: str
    name: str
    rates: tuple[float, ...]
    """Tokens per second after the first token."""
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Tokens per second of all rounds, which have the same length."""
        return statistics.harmonic_mean(self.rates) if self.rates else 0.0


class BenchReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """Everything that was measured; times in milliseconds, sizes in bytes."""

    architecture: str
    load_ms: float
    ttft_ms: float
    """Time to the first token of a prompt of `prompt_tokens`, none of which were in the cache."""
    prompt_tokens: int
    resident_bytes: int
    """Memory of the process, without accelerators."""
    buffers: tuple[Buffer, ...]
    """What llama.cpp has allocated for the model itself."""
    depths: tuple[AtDepth, ...]
    attention: AttentionKind | None
    """That of the plan, with which all was measured; None: there is no choice."""
    other_depths: tuple[AtDepth, ...]
    """`depths` with the other kind of attention; empty where there is none, or it did not load."""
    curve_depth: int
    curve_ms: dict[int, float]
    """C(n): the median time of a call of n rows at that depth."""
    draft_ms: float | None
    """The time of one token of the draft model, or of the model's own layers (MTP)."""
    drafters: tuple[str, ...]
    no_draft: str
    ways: tuple[DecodingRun, ...]

    @property
    def other_attention(self) -> AttentionKind:
        """The kind of `other_depths`."""
        return "plain" if self.attention == "flash" else "flash"


Answer = BenchProgress | BenchReport | BenchFailure


def measure(task: BenchTask, tell: Tell) -> BenchReport:
    """Return what was measured, reporting progress to `tell`. Raises EdgechatError."""
    hint = "Try a shorter context (--ctx 2048), or `--draft none`."
    report: BenchReport = ask("bench", task, Answer, tell, hint)
    return report
