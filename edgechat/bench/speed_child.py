"""Speed benchmark that runs in a child process, on an engine like the worker's and directly on its backend.

The ways of decoding take turns, in a different order each round, so that noise affects them all equally.
They share one controller, which starts out with what earlier sessions have learned. The bare loop runs in its
own sequence: it decodes tokens from a fixed list one at a time, without sampling or converting them to text.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Iterator

import msgspec
import psutil

from edgechat.base.errors import LoadFailed
from edgechat.bench.process import Tell, answer
from edgechat.bench.speed import CEILING, PLAIN, AtDepth, BenchReport, BenchTask, DecodingRun
from edgechat.engine.backends.base import BatchPart, CacheFull
from edgechat.engine.engine import EngineCore
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Failed,
    Finished,
    Message,
    ModelInfo,
    Sampling,
    Source,
)
from edgechat.engine.worker.worker import load
from edgechat.planner.plan import NGRAMS, OWN_LAYERS, LoadPlan

_DEPTHS = (0, 1024, 4096, 16384)
_CHUNK = 256
"""Number of prompt tokens to time at each depth."""
_CALL_SIZES = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_REPEATS = 5
_ROOM = 256
"""Number of tokens of context to plan beyond the greatest depth."""
_DECODED = 8
"""Number of tokens to decode at each depth."""
_DEPTHS_SECONDS = 60.0
"""Time limit after which the remaining depths are skipped, in seconds."""
_WORDS = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with")

_TEXT = (
    "The ferry leaves the harbour at seven and reaches the island before noon. On the way it passes the old "
    "lighthouse, where gulls nest in the broken windows, and the sandbank on which seals lie when the tide "
    "is low. Tickets are sold on board. Dogs travel free, bicycles cost two crowns, and children under six "
    "need no ticket at all. The last boat back leaves at nine in the evening, in summer half an hour later."
)

TASKS = {
    "prose": "Explain how a bicycle stays upright while it is moving, to a curious child.",
    "editing": f"Repeat the following text word for word, but write 'train' instead of 'ferry'.\n\n{_TEXT}",
}
"""Prompts, keyed by the kind of text that each one asks for."""


class BareModel:
    """The engine's backend, called directly, in a slot that the engine does not use."""

    def __init__(self, engine: EngineCore) -> None:
        self._backend = engine.backend
        self.n_batch = engine.backend.n_batch
        self._cache = engine.scheduler.cache
        self._slot = self._cache.slots[-1]
        self._cache.clear(self._slot)
        self._slot.busy = True
        text = " ".join(_WORDS)
        self._tokens = self._backend.vocabulary.tokenize(text, bos=False, special=False) or [0]

    @property
    def depth(self) -> int:
        """Number of tokens currently in the cache."""
        return self._slot.length

    @property
    def room(self) -> int:
        """Number of tokens that can still be added to the cache."""
        return self._backend.context - self._slot.length - 64

    def call(self, n_tokens: int, n_rows: int) -> float:
        """Decode this many tokens in one call and return its duration in seconds. The tokens stay cached."""
        start = self._slot.length
        tokens = [self._tokens[at % len(self._tokens)] for at in range(start, start + n_tokens)]
        while True:
            started = time.perf_counter()
            try:
                self._backend.decode([BatchPart(self._slot.id, start, tokens, n_rows)])
            except CacheFull:
                if not self._cache.evict():
                    raise
                continue
            seconds = time.perf_counter() - started
            self._cache.extend(self._slot, tokens)
            return seconds

    def go_to(self, depth: int) -> None:
        """Bring the number of cached tokens to `depth`, or close to it if the cache cannot be truncated."""
        if self.depth > depth and not self._cache.truncate(self._slot, depth):
            self._cache.clear(self._slot)
        while self.depth < depth:
            self.call(min(depth - self.depth, self.n_batch), 0)

    def decode(self, tokens: int) -> float:
        """Decode tokens one at a time and return the speed in tokens per second."""
        return tokens / sum(self.call(1, 1) for _ in range(tokens))

    def clear(self) -> None:
        """Remove all tokens from the cache."""
        self._cache.clear(self._slot)


def measure(task: BenchTask, tell: Tell) -> BenchReport:
    """Load the model and benchmark it. Raises EdgechatError."""
    tell("loading the model")
    engine, model, _ = load(task.plan, CachePolicy(settle=False, disk_bytes=0), lambda _events: None)
    bare = BareModel(engine)
    tell("reading prompts")
    # A longer prompt, none of which is cached.
    n_words = min(512, task.plan.context // 4)
    prompt = " ".join(_WORDS[at * 7 % len(_WORDS)] for at in range(n_words))
    first = _reply(engine, prompt, frozenset(), 2)
    depths = tuple(_at_depths(bare, tell))
    tell("measuring calls of 1 to 16 tokens")
    bare.clear()
    bare.go_to(min(512, bare.room // 2))
    curve_depth, curve = bare.depth, _curve(bare, engine.backend.n_outputs_max)
    bare.clear()
    ways = tuple(_decoding_runs(engine, bare, task, model, tell))
    controller = engine.speculation.controller
    computing = max(frozenset[Source]().union(*_ways(model).values()) - {"ngram"}, default=None)
    resident = psutil.Process().memory_info().rss
    engine.close()
    deepest = max((at.depth for at in depths), default=0)
    others = _with_other_attention(task.plan, deepest, tell) if _has_choice(task.plan) else ()
    return BenchReport(
        architecture=model.architecture,
        load_ms=model.load_ms,
        ttft_ms=first.timings.ttft_ms,
        prompt_tokens=first.usage.prompt_tokens,
        resident_bytes=resident,
        buffers=model.buffers,
        depths=depths,
        attention=task.plan.attention if _has_choice(task.plan) else None,
        other_depths=others,
        curve_depth=curve_depth,
        curve_ms=curve,
        draft_ms=1000 * controller.round_costs[computing] * controller.cost.level if computing else None,
        drafters=model.drafters,
        no_draft=model.no_draft,
        ways=ways,
    )


def _at_depths(bare: BareModel, tell: Tell) -> Iterator[AtDepth]:
    started = time.perf_counter()
    for depth in _DEPTHS:
        is_late = time.perf_counter() - started > _DEPTHS_SECONDS
        if is_late or bare.room < depth + _CHUNK + _DECODED - bare.depth:
            break
        tell(f"measuring at a depth of {depth} tokens")
        bare.go_to(depth)
        reached = bare.depth
        chunk = min(_CHUNK, bare.n_batch)
        prompt_tps = chunk / bare.call(chunk, 0)
        yield AtDepth(reached, prompt_tps, bare.decode(_DECODED))


def _has_choice(plan: LoadPlan) -> bool:
    """Return whether both kinds of attention would work; an 8-bit cache requires flash attention."""
    return plan.backend == "llama.cpp" and plan.cache_type == "f16"


def _with_other_attention(plan: LoadPlan, deepest: int, tell: Tell) -> tuple[AtDepth, ...]:
    """Load the model by itself with the other kind of attention, and measure it at depths up to `deepest`.

    Returns () if the load fails, because plain attention needs more memory.
    """
    other = msgspec.structs.replace(
        plan,
        flash_attention=not plan.flash_attention,
        context=min(plan.context, deepest + _CHUNK + _ROOM),
        draft=None,
        head=None,
        mtp=False,
        projector=None,
    )
    tell("loading the model with the other kind of attention")
    try:
        engine, _, _ = load(other, CachePolicy(settle=False, disk_bytes=0), lambda _events: None)
    except LoadFailed:
        return ()
    try:
        return tuple(_at_depths(BareModel(engine), tell))
    finally:
        engine.close()


def _curve(bare: BareModel, n_outputs_max: int) -> dict[int, float]:
    """Return C(n), the time in milliseconds that a call with n rows takes, for several n."""
    seconds: dict[int, list[float]] = {n: [] for n in _CALL_SIZES if n <= n_outputs_max}
    for _ in range(_REPEATS):
        for n, measured in seconds.items():
            if bare.room > n:
                measured.append(bare.call(n, n))
    return {n: 1000 * statistics.median(measured) for n, measured in seconds.items() if measured}


def _decoding_runs(
    engine: EngineCore, bare: BareModel, task: BenchTask, model: ModelInfo, tell: Tell
) -> Iterator[DecodingRun]:
    ways = _ways(model)
    for kind, prompt in TASKS.items():
        rates: dict[str, list[float]] = {name: [] for name in (CEILING, *ways)}
        drafted, accepted = dict.fromkeys(rates, 0), dict.fromkeys(rates, 0)
        prompt_tokens = _reply(engine, prompt, frozenset(), 4).usage.prompt_tokens
        for number in range(task.rounds):
            tell(f"{kind}: round {number + 1} of {task.rounds}")
            names = list(rates)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if name == CEILING:
                    bare.go_to(prompt_tokens)
                    rates[name].append(bare.decode(min(task.tokens, max(bare.room, 1))))
                    continue
                end = _reply(engine, prompt, ways[name], task.tokens)
                if end.timings.decode_tps > 0:
                    rates[name].append(end.timings.decode_tps)
                if end.speculation is not None:
                    drafted[name] += end.speculation.drafted_tokens
                    accepted[name] += end.speculation.accepted_tokens
        bare.clear()
        for name in rates:
            yield DecodingRun(kind, name, tuple(rates[name]), drafted[name], accepted[name])


def _ways(model: ModelInfo) -> dict[str, frozenset[Source]]:
    """Return the drafters used in each way of decoding: none, each one alone, and all of them together."""
    named: dict[str, Source] = {OWN_LAYERS: "mtp", NGRAMS: "ngram"}
    ways: dict[str, frozenset[Source]] = {PLAIN: frozenset()}
    for name in model.drafters:
        ways[name] = frozenset({named.get(name, "model")})
    if len(model.drafters) > 1:
        ways["both" if len(model.drafters) == 2 else "all"] = frozenset[Source]().union(*ways.values())
    return ways


def _reply(engine: EngineCore, prompt: str, sources: frozenset[Source], max_tokens: int) -> Finished:
    """Generate a reply to a prompt, using the drafters in `sources`. Raises EdgechatError."""
    engine.speculation.sources = sources
    request = ChatRequest(
        id=f"{time.perf_counter_ns()}",
        messages=(Message("user", prompt),),
        sampling=Sampling(temperature=0, seed=1),
        max_tokens=max_tokens,
        think=False if engine.template.can_switch_thinking else None,
    )
    events = engine.submit(request)
    while True:
        for event in events:
            if isinstance(event, Finished):
                return event
            if isinstance(event, Failed):
                raise event.error.error()
        events = engine.step()


def main() -> None:
    """Run the BenchTask sent by the parent process."""
    answer(BenchTask, measure)
