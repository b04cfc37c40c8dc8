"""Speed benchmark: the request, the report, and the code that runs in the parent process."""

from __future__ import annotations

import statistics

import msgspec

from edgechat.bench.process import BenchFailure, BenchProgress, Tell, ask
from edgechat.native.params import AttentionKind, Buffer
from edgechat.planner.plan import LoadPlan

CEILING, PLAIN = "bare loop", "plain"


class BenchTask(msgspec.Struct, frozen=True, tag=True):
    """A request to load a model as planned and benchmark it."""

    plan: LoadPlan
    rounds: int = 5
    tokens: int = 48
    """Length of each reply, in tokens."""


class AtDepth(msgspec.Struct, frozen=True):
    """Speeds at a given depth (the number of tokens in the cache)."""

    depth: int
    prompt_tps: float
    """Prefill speed in tokens per second."""
    decode_tps: float
    """Speed of a bare loop that decodes one token at a time, in tokens per second."""


class DecodingRun(msgspec.Struct, frozen=True):
    """Speeds for one way of decoding on one task."""

    task: str
    name: str
    rates: tuple[float, ...]
    """The speed of each reply in tokens per second, measured from its first token."""
    drafted: int = 0
    accepted: int = 0

    @property
    def rate(self) -> float:
        """Mean speed in tokens per second: harmonic, since all rounds generate the same number of tokens."""
        return statistics.harmonic_mean(self.rates) if self.rates else 0.0


class BenchReport(msgspec.Struct, frozen=True, tag=True, kw_only=True):
    """All results of a benchmark. Times are in milliseconds, sizes in bytes."""

    architecture: str
    load_ms: float
    ttft_ms: float
    """Time to first token for a prompt with `prompt_tokens` tokens, none of them cached."""
    prompt_tokens: int
    resident_bytes: int
    """Memory used by the process, excluding memory on accelerators."""
    buffers: tuple[Buffer, ...]
    """The buffers that llama.cpp allocated for the model itself."""
    depths: tuple[AtDepth, ...]
    attention: AttentionKind | None
    """The planned kind of attention, used for everything but `other_depths`; None if only one kind works."""
    other_depths: tuple[AtDepth, ...]
    """Like `depths`, but with the other kind of attention; empty if that does not work or the load failed."""
    curve_depth: int
    curve_ms: dict[int, float]
    """C(n): the median time for a call with n rows at `curve_depth`."""
    draft_ms: float | None
    """Time taken to draft one token, by the draft model or by the model's own layers (MTP)."""
    drafters: tuple[str, ...]
    no_draft: str
    ways: tuple[DecodingRun, ...]

    @property
    def other_attention(self) -> AttentionKind:
        """The kind of attention used for `other_depths`."""
        return "plain" if self.attention == "flash" else "flash"


Answer = BenchProgress | BenchReport | BenchFailure


def measure(task: BenchTask, tell: Tell) -> BenchReport:
    """Run a benchmark in a child process, passing progress reports to `tell`. Raises EdgechatError."""
    hint = "Try a shorter context (--ctx 2048), or `--draft none`."
    report: BenchReport = ask("bench", task, Answer, tell, hint)
    return report
