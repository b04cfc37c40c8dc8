"""The benchmark's process: an engine as the worker has it, and the same loaded model below it.

Ways of decoding are measured in turns, each round in another order, so that a noisy machine is fair to all
of them; they share one controller, which starts with what earlier sessions have learnt. Beside them runs the
bare loop: one token after another from a fixed list, no sampling and no text, in a sequence of its own.
"""

from __future__ import annotations

import faulthandler
import os
import statistics
import threading
import time
import traceback
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import BinaryIO

import msgspec
import psutil

from edgechat.base.errors import EdgechatError, EngineError
from edgechat.base.process import frames, spawn
from edgechat.cli.bench.figures import (
    CEILING,
    PLAIN,
    Answer,
    AtDepth,
    BenchFailure,
    BenchProgress,
    BenchReport,
    BenchTask,
    DecodingRun,
)
from edgechat.engine.backends.base import BatchPart, CacheFull
from edgechat.engine.engine import EngineCore
from edgechat.engine.scheduling.draft import Source
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    ErrorInfo,
    Event,
    Failed,
    Finished,
    Message,
    ModelInfo,
    Sampling,
)
from edgechat.engine.worker.worker import load

_DEPTHS = (0, 1024, 4096, 16384)
_CHUNK = 256
"""Tokens of a prompt whose speed is measured at each depth."""
_ROWS = (1, 2, 3, 4, 5, 6, 8, 12, 16)
_REPEATS = 5
_SINGLES = 8
_PATIENCE = 60.0
"""Seconds after which no greater depth is looked at."""
_COMMON = ("the", "of", "and", "to", "in", "is", "that", "it", "was", "for", "on", "are", "as", "with")

Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class BenchPrompt:
    """A prompt, and what kind of text answers it."""

    name: str
    prompt: str


_TEXT = (
    "The ferry leaves the harbour at seven and reaches the island before noon. On the way it passes the old "
    "lighthouse, where gulls nest in the broken windows, and the sandbank on which seals lie when the tide "
    "is low. Tickets are sold on board. Dogs travel free, bicycles cost two crowns, and children under six "
    "need no ticket at all. The last boat back leaves at nine in the evening, in summer half an hour later."
)

TASKS = (
    BenchPrompt("prose", "Explain how a bicycle stays upright while it is moving, to a curious child."),
    BenchPrompt(
        "editing",
        f"Repeat the following text word for word, but write 'train' instead of 'ferry'.\n\n{_TEXT}",
    ),
)


class BareModel:
    """The model below the engine: a sequence that the engine leaves alone."""

    def __init__(self, engine: EngineCore) -> None:
        self._backend = engine.backend
        self._cache = engine.scheduler.cache
        self._slot = self._cache.slots[-1]
        self._cache.clear(self._slot)
        self._slot.busy = True
        words = " ".join(_COMMON)
        self._tokens = self._backend.vocabulary.tokenize(words, bos=False, special=False) or [0]

    @property
    def depth(self) -> int:
        """Tokens in its cache."""
        return self._slot.length

    @property
    def most(self) -> int:
        """Tokens of one call."""
        return self._backend.n_batch

    @property
    def room(self) -> int:
        """Tokens that it may still take."""
        return self._backend.context - self._slot.length - 64

    def call(self, n_tokens: int, n_rows: int) -> float:
        """Return the seconds of a call with this many tokens, which stay in the cache."""
        start = self._slot.length
        tokens = [self._tokens[at % len(self._tokens)] for at in range(start, start + n_tokens)]
        while True:
            began = time.perf_counter()
            try:
                self._backend.decode([BatchPart(self._slot.id, start, tokens, n_rows)])
            except CacheFull:
                if not self._cache.evict():
                    raise
                continue
            seconds = time.perf_counter() - began
            self._cache.extend(self._slot, tokens)
            return seconds

    def go_to(self, depth: int) -> None:
        """Set the number of tokens in its cache, approximately if it cannot be cut."""
        if self.depth > depth and not self._cache.truncate(self._slot, depth):
            self._cache.clear(self._slot)
        while self.depth < depth:
            self.call(min(depth - self.depth, self._backend.n_batch), 0)

    def decode(self, tokens: int) -> float:
        """Return tokens per second, one by one."""
        return tokens / sum(self.call(1, 1) for _ in range(tokens))

    def clear(self) -> None:
        """Empty its cache."""
        self._cache.clear(self._slot)


def measure(ask: BenchTask, tell: Tell) -> BenchReport:
    """Load the model and measure it. Raises EdgechatError."""
    plan = ask.plan
    tell("loading the model")
    engine, model, _ = load(plan, CachePolicy(settle=False, disk_bytes=0), lambda _events: None)
    bare = BareModel(engine)
    tell("reading prompts")
    first = _first_token(engine, ask)
    depths = tuple(_at_depths(bare, tell))
    tell("measuring calls of 1 to 16 tokens")
    bare.clear()
    bare.go_to(min(512, bare.room // 2))
    curve_depth, curve = bare.depth, _curve(bare, engine.backend.n_outputs_max)
    bare.clear()
    ways = tuple(_side_by_side(engine, bare, ask, model, tell))
    controller = engine.speculation.controller
    has_model = len(model.drafters) > (model.drafters[-1:] == ("n-grams",))
    return BenchReport(
        architecture=model.architecture,
        load_ms=model.load_ms,
        ttft_ms=first.timings.ttft_ms,
        prompt_tokens=first.usage.prompt_tokens,
        resident_bytes=psutil.Process().memory_info().rss,
        buffers=model.buffers,
        depths=depths,
        curve_depth=curve_depth,
        curve_ms=curve,
        draft_ms=1000 * controller.round_cost * controller.cost.level if has_model else None,
        drafters=model.drafters,
        no_draft=model.no_draft,
        ways=ways,
    )


def _at_depths(bare: BareModel, tell: Tell) -> Iterator[AtDepth]:
    began = time.perf_counter()
    for depth in _DEPTHS:
        if bare.room < depth + _CHUNK + _SINGLES - bare.depth or time.perf_counter() - began > _PATIENCE:
            break
        tell(f"measuring at a depth of {depth} tokens")
        bare.go_to(depth)
        reached = bare.depth
        chunk = min(_CHUNK, bare.most)
        prompt = chunk / bare.call(chunk, 0)
        yield AtDepth(reached, prompt, bare.decode(_SINGLES))


def _curve(bare: BareModel, most: int) -> dict[int, float]:
    """Return C(n) in milliseconds."""
    rows = [n for n in _ROWS if n <= most]
    seconds: dict[int, list[float]] = {n: [] for n in rows}
    for _ in range(_REPEATS):
        for n in rows:
            if bare.room > n:
                seconds[n].append(bare.call(n, n))
    return {n: 1000 * statistics.median(found) for n, found in seconds.items() if found}


def _side_by_side(
    engine: EngineCore, bare: BareModel, ask: BenchTask, model: ModelInfo, tell: Tell
) -> Iterator[DecodingRun]:
    ways = _ways(model)
    for task in TASKS:
        rates: dict[str, list[float]] = {name: [] for name in (CEILING, *ways)}
        drafted, accepted = dict.fromkeys(rates, 0), dict.fromkeys(rates, 0)
        prompt = _reply(engine, task, ask, frozenset(), 4).usage.prompt_tokens
        for number in range(ask.rounds):
            tell(f"{task.name}: round {number + 1} of {ask.rounds}")
            names = list(rates)
            for name in names[number % len(names) :] + names[: number % len(names)]:
                if name == CEILING:
                    bare.go_to(prompt)
                    rates[name].append(bare.decode(min(ask.tokens, max(bare.room, 1))))
                    continue
                end = _reply(engine, task, ask, ways[name], ask.tokens)
                if end.timings.decode_tps > 0:
                    rates[name].append(end.timings.decode_tps)
                if end.speculation is not None:
                    drafted[name] += end.speculation.drafted_tokens
                    accepted[name] += end.speculation.accepted_tokens
        bare.clear()
        for name, found in rates.items():
            yield DecodingRun(task.name, name, tuple(found), drafted[name], accepted[name])


def _ways(model: ModelInfo) -> dict[str, frozenset[Source]]:
    """Return the drafters of each way of decoding."""
    ways: dict[str, frozenset[Source]] = {PLAIN: frozenset()}
    for name in model.drafters:
        ways[name] = frozenset({"ngram"} if name == "n-grams" else {"model"})
    if len(model.drafters) > 1:
        ways["both"] = frozenset({"model", "ngram"})
    return ways


def _first_token(engine: EngineCore, ask: BenchTask) -> Finished:
    """Answer a longer question, nothing of which is in the cache."""
    n = min(512, ask.plan.context // 4)
    text = " ".join(_COMMON[at * 7 % len(_COMMON)] for at in range(n))
    return _reply(engine, BenchPrompt("prompt", text), ask, frozenset(), 2)


def _reply(
    engine: EngineCore, task: BenchPrompt, ask: BenchTask, sources: frozenset[Source], tokens: int
) -> Finished:
    engine.speculation.sources = sources
    sampling = Sampling(temperature=0, seed=1)
    request = ChatRequest(
        id=f"{time.perf_counter_ns()}",
        messages=(Message("user", task.prompt),),
        sampling=sampling,
        max_tokens=tokens,
        think=False if engine.template.can_switch_thinking else None,
    )
    events: list[Event] = engine.submit(request)
    while not any(isinstance(one, Finished) for one in events):
        events = engine.step()
        _raise_failures(events)
    return next(one for one in events if isinstance(one, Finished))


def _raise_failures(events: Sequence[Event]) -> None:
    for one in events:
        if isinstance(one, Failed):
            raise one.error.error()


def main() -> None:
    """Answer one BenchTask; end when the parent is gone."""
    incoming, outgoing = spawn.adopt_pipe()
    faulthandler.enable()
    asked = frames.read(incoming)
    if asked is None:
        return
    ask = msgspec.msgpack.decode(asked, type=BenchTask)
    threading.Thread(target=_end_with_parent, args=(incoming,), daemon=True).start()

    def send(answer: Answer) -> None:
        frames.write(outgoing, msgspec.msgpack.encode(answer))

    try:
        send(measure(ask, lambda text: send(BenchProgress(text))))
    except EdgechatError as error:
        send(BenchFailure(ErrorInfo.of(error)))
    except Exception as error:
        traceback.print_exc()
        send(BenchFailure(ErrorInfo.of(EngineError(f"The benchmark failed: {error!r}"))))


def _end_with_parent(incoming: BinaryIO) -> None:
    incoming.read()
    os._exit(0)
