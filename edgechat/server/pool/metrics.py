"""A server's metrics in Prometheus's text format, in a separate registry.

Labels are bounded: they contain only the names of models that this server has loaded, and never text from
clients.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Literal

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    disable_created_metrics,
    generate_latest,
)
from prometheus_client.core import GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from edgechat.engine.kv.snapshot import Snapshot
from edgechat.engine.types import Delta, Embedded, Finished, RequestEvent, ToolCallArguments, ToolCallBegun
from edgechat.planner.plan import LoadPlan

CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
_FIRST = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0, 60.0, 120.0)
_EACH = (0.001, 0.0025, 0.005, 0.01, 0.02, 0.03, 0.05, 0.075, 0.1, 0.15, 0.25, 0.5, 1.0, 2.5)

# The text format has no creation times, so each would become an additional gauge.
disable_created_metrics()  # type: ignore[no-untyped-call]


@dataclass(frozen=True, slots=True)
class ModelGauges:
    """The values of one model's gauges."""

    model: str
    plan: LoadPlan
    loaded: bool
    taken: int
    """Number of places taken by requests that are running or waiting."""
    snapshot: Snapshot | None
    """The state of the engine, or None if it is not loaded or did not answer in time."""


class Metrics:
    """Counters and histograms for one server. Bound to one event loop."""

    def __init__(self) -> None:
        self._registry = registry = CollectorRegistry()
        self._models: set[str] = set()
        self._looks = _GaugeCollector()
        registry.register(self._looks)

        def counter(name: str, about: str, *labels: str) -> Counter:
            return Counter(f"edgechat_{name}", about, labels, registry=registry)

        def histogram(name: str, about: str, buckets: Sequence[float]) -> Histogram:
            return Histogram(f"edgechat_{name}", about, ("model",), buckets=buckets, registry=registry)

        self._requests = counter("requests", "Answered requests.", "endpoint", "status", "model")
        self._finished = counter("finished", "Replies, by finish reason.", "model", "reason")
        self._prompt = counter("prompt_tokens", "Tokens of prompts and of embedded texts.", "model")
        self._cached = counter("cached_tokens", "Prompt tokens found in the prefix cache.", "model")
        self._completion = counter("completion_tokens", "Generated tokens.", "model")
        self._drafted = counter("drafted_tokens", "Drafted tokens.", "model")
        self._accepted = counter("accepted_tokens", "Drafted tokens that were accepted.", "model")
        self._first = histogram("first_token_seconds", "Time to the first token.", _FIRST)
        self._each = histogram("token_seconds", "Time between two tokens of a reply.", _EACH)
        self._loads = counter("loads", "Model loads.", "model")
        self._load_failures = counter("load_failures", "Failed model loads.", "model")
        self._load_seconds = Gauge(
            "edgechat_load_seconds", "Duration of the last load.", ("model",), registry=registry
        )
        self._crashes = counter("crashes", "Crashes of the model's worker process.", "model")

    def request(self, endpoint: str, status: int, model: str | None = None) -> None:
        """Count an answered request.

        endpoint: one of a small set of labels. model: the model that answered, if any.
        """
        known = model if model in self._models else ""
        self._requests.labels(endpoint, str(status), known).inc()

    def loaded(self, model: str, seconds: float) -> None:
        """Count a load."""
        self._models.add(model)
        self._loads.labels(model).inc()
        self._crashes.labels(model)  # 0 until there is one
        self._load_seconds.labels(model).set(seconds)

    def load_failed(self, model: str) -> None:
        """Count a failed load."""
        self._models.add(model)
        self._load_failures.labels(model).inc()

    def crashed(self, model: str) -> None:
        """Count a crash of the worker process."""
        self._crashes.labels(model).inc()

    def embedded(self, model: str, found: Embedded) -> None:
        """Count an embeddings request and its tokens."""
        self._prompt.labels(model).inc(found.tokens)
        self._finished.labels(model, "stop").inc()

    def meter(self, model: str, arrived: float) -> Meter:
        """Return the meter for a reply. arrived: the `time.perf_counter()` value when its request arrived."""
        first, each = self._first.labels(model), self._each.labels(model)
        return Meter(self, model, arrived, first, each)

    def finished(self, model: str, event: Finished) -> None:
        """Count a finished reply and its tokens."""
        self._finished.labels(model, event.reason).inc()
        self._prompt.labels(model).inc(event.usage.prompt_tokens)
        self._cached.labels(model).inc(event.usage.cached_tokens)
        self._completion.labels(model).inc(event.usage.completion_tokens)
        if event.speculation is not None:
            self._drafted.labels(model).inc(event.speculation.drafted_tokens)
            self._accepted.labels(model).inc(event.speculation.accepted_tokens)

    def broke_off(self, model: str, reason: str, tokens: int) -> None:
        """Count a reply that failed or was cancelled, and the tokens that were sent."""
        self._finished.labels(model, reason).inc()
        self._completion.labels(model).inc(tokens)

    def text(self, looks: Sequence[ModelGauges]) -> bytes:
        """Return all metrics as text. looks: the gauges for each model."""
        self._looks.now = looks
        return generate_latest(self._registry)


class Meter:
    """Measures one reply: the time to the first token, and the time between tokens."""

    def __init__(
        self, metrics: Metrics, model: str, arrived: float, first: Histogram, each: Histogram
    ) -> None:
        self._metrics, self._model = metrics, model
        self._first, self._each = first, each
        self._last = arrived
        self._tokens = 0
        self._has_ended = False

    def take(self, event: RequestEvent) -> None:
        """Record an event as it is sent."""
        if isinstance(event, Delta | ToolCallBegun | ToolCallArguments):
            self._ticks(event.tokens)
        elif isinstance(event, Finished):
            self._has_ended = True
            self._metrics.finished(self._model, event)

    def broke_off(self, reason: Literal["failed", "cancelled"]) -> None:
        """Count a reply that ended early, unless it has already been counted as finished."""
        if not self._has_ended:
            self._metrics.broke_off(self._model, reason, self._tokens)

    def _ticks(self, tokens: int) -> None:
        more = tokens - self._tokens
        if more <= 0:
            return
        now = time.perf_counter()
        if not self._tokens:
            self._first.observe(now - self._last)
        else:
            each = (now - self._last) / more
            for _ in range(more):
                self._each.observe(each)
        self._last, self._tokens = now, tokens


class _GaugeCollector(Collector):
    def __init__(self) -> None:
        self.now: Sequence[ModelGauges] = ()

    def collect(self) -> Iterator[Metric]:
        yield _gauge(
            "model_loaded", "1 while a model is loaded.", ((one, float(one.loaded)) for one in self.now)
        )
        yield _gauge("running", "Requests being computed.", ((one, _running(one)) for one in self.now))
        yield _gauge(
            "waiting", "Requests waiting.", ((one, max(0, one.taken - _running(one))) for one in self.now)
        )
        seen = [(one, one.snapshot) for one in self.now if one.snapshot is not None]
        yield _gauge("cache_cells", "Cells of the KV cache.", ((one, look.cache.cells) for one, look in seen))
        yield _gauge(
            "cache_cells_used",
            "Occupied cells of the KV cache.",
            ((one, look.cache.used) for one, look in seen),
        )
        yield _gauge(
            "memory_real_bytes",
            "Resident memory of the worker process.",
            ((one, look.memory_bytes) for one, look in seen),
        )
        yield self._planned()
        yield self._batches()

    def _planned(self) -> Metric:
        found = GaugeMetricFamily(
            "edgechat_memory_planned_bytes", "Memory planned on each device.", labels=("model", "memory")
        )
        for one in self.now:
            for memory in one.plan.memory if one.loaded else ():
                found.add_metric((one.model, memory.name), memory.total_bytes)
        return found

    def _batches(self) -> Metric:
        found = HistogramMetricFamily(
            "edgechat_batch_sequences",
            "Sequences per backend call since the model was loaded.",
            labels=("model",),
        )
        for one in self.now:
            if one.snapshot is not None and one.snapshot.work.batches:
                counts = one.snapshot.work.batches
                below = [(str(float(n)), float(sum(counts[:n]))) for n in range(1, len(counts) + 1)]
                total = sum(n * count for n, count in enumerate(counts, 1))
                found.add_metric((one.model,), [*below, ("+Inf", float(sum(counts)))], total)
        return found


def _gauge(name: str, about: str, values: Iterable[tuple[ModelGauges, float]]) -> Metric:
    found = GaugeMetricFamily(f"edgechat_{name}", about, labels=("model",))
    for look, value in values:
        found.add_metric((look.model,), value)
    return found


def _running(one: ModelGauges) -> int:
    if one.snapshot is not None:
        return one.snapshot.work.running
    return min(one.taken, one.plan.n_seq_max) if one.loaded else 0
