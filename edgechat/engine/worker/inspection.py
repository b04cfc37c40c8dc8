"""Inspection: takes snapshots of an engine between steps, without any bookkeeping in advance."""

from __future__ import annotations

import itertools
from bisect import bisect_left
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Protocol

import msgspec
import psutil

from edgechat.engine.backends.base import Backend, Vocabulary
from edgechat.engine.kv import snapshot
from edgechat.engine.kv.prefix_cache import PrefixCache, Slot
from edgechat.engine.prompt.window import turns_of
from edgechat.engine.scheduling.chat_cache import ChatCache
from edgechat.engine.scheduling.scheduler import Scheduler
from edgechat.engine.speculative.estimates import Acceptance
from edgechat.engine.speculative.speculation import Speculation
from edgechat.engine.types import ChatRequest, Message, Usage

_ROWS = (1, 2, 4, 8, 16)  # values of n for which a snapshot includes the cost C(n)
_AROUND = 512  # maximum bytes that a template may add before and around a message
_CLOSING = 3  # the token that closes a message is one of this many tokens after it


@dataclass(frozen=True, slots=True)
class _Pinned:
    first: tuple[Message, ...]
    """Messages that can be pinned."""
    length: int
    """Length of the slot when these tokens were last searched for."""
    tokens: list[int]


class Inspectable(Protocol):
    """The parts of an engine that are inspected."""

    backend: Backend
    scheduler: Scheduler
    chat_cache: ChatCache
    speculation: Speculation
    last_usage: Usage | None

    @property
    def n_waiting(self) -> int:
        """Number of requests that have not reached the scheduler yet."""


class Inspector:
    """Takes snapshots of an engine."""

    def __init__(self, engine: Inspectable) -> None:
        self._engine = engine
        self._process = psutil.Process()
        self._pinned: dict[str, _Pinned] = {}

    def inspect(self, chat: str | None = None) -> snapshot.Snapshot:
        """Return a snapshot that shows a chat's cache, by default the most recently answered chat's."""
        engine = self._engine
        draft = engine.speculation.draft_cache
        return snapshot.Snapshot(
            cache=self._map(chat or next(reversed(engine.chat_cache.chats), None)),
            draft_cache=snapshot.DraftCache(draft.cells, draft.cells_used) if draft is not None else None,
            prompt=self._prompt(),
            drafting=self._drafting_state(),
            work=self._scheduler_state(),
            on_disk=engine.chat_cache.on_disk(),
            memory_bytes=self._process.memory_info().rss,
        )

    # The cache.

    def _map(self, chat: str | None) -> snapshot.CacheMap:
        scheduler = self._engine.scheduler
        cache = scheduler.cache
        runs = list(_runs(cache, self._pinned_nodes(cache), chat))
        return snapshot.CacheMap(
            cells=max(scheduler.cells, cache.cells_used),
            used=cache.cells_used,
            runs=tuple(merge_small_runs(runs)),
            slots=tuple(
                snapshot.SlotState(slot.id, slot.chat, slot.length, slot.busy, slot.approximate)
                for slot in cache.slots
                if slot.length
            ),
            n_slots=len(cache.slots),
            stats=msgspec.structs.replace(cache.stats),
        )

    def _pinned_nodes(self, cache: PrefixCache) -> dict[int, int]:
        """Return the end of the pinned tokens in each node that has any, keyed by the node's id."""
        ends: dict[int, int] = {}
        requests = dict(self._engine.chat_cache.chats)
        for sequence in self._engine.scheduler.running:
            if sequence.generates and sequence.request.chat is not None:
                requests[sequence.request.chat] = sequence.request
        for slot in cache.slots:
            request = requests.get(slot.chat) if slot.chat is not None else None
            if request is None or not slot.length or request.overflow == "error":
                continue
            end = self._pinned_end(slot, request)
            for node in slot.path:
                if node.start >= end:
                    break
                ends[id(node)] = max(ends.get(id(node), 0), min(node.end, end))
        self._pinned = {chat: pinned for chat, pinned in self._pinned.items() if chat in requests}
        return ends

    def _pinned_end(self, slot: Slot, request: ChatRequest) -> int:
        """Return the number of pinned tokens in a chat's slot, which is usually searched only once."""
        assert slot.chat is not None
        pinned = self._pinned.get(slot.chat)
        first = first_turn(request.messages)
        if pinned is None or pinned.first != first or (not pinned.tokens and slot.length > pinned.length):
            vocabulary, cells = self._engine.backend.vocabulary, self._engine.scheduler.cells
            end = pinned_end(slot, request.messages, vocabulary, cells)
            pinned = self._pinned[slot.chat] = _Pinned(first, slot.length, list(_tokens(slot, end)))
        return len(pinned.tokens) if _starts_with(slot, pinned.tokens) else 0

    # The rest.

    def _prompt(self) -> snapshot.PromptUse | None:
        for sequence in reversed(self._engine.scheduler.running):
            if sequence.generates and sequence.slot is not None:
                return snapshot.PromptUse(sequence.n_prompt, sequence.n_cached or 0)
        last = self._engine.last_usage
        return None if last is None else snapshot.PromptUse(last.prompt_tokens, last.cached_tokens)

    def _drafting_state(self) -> snapshot.DraftingState:
        speculation = self._engine.speculation
        controller = speculation.controller
        sources = tuple(
            snapshot.SourceState(source, _acceptance_rate(rates), 1 + controller.expected_gain(source))
            for source, rates in controller.acceptance.items()
            if source in speculation.present
        )
        return snapshot.DraftingState(
            sources=sources,
            lengths=speculation.lengths,
            step_seconds=controller.cost.level,
            costs=tuple((n, controller.cost.ratio(n)) for n in _ROWS),
            speedup=controller.speedup,
            purse=controller.purse,
            why_off=self._why_off(sources),
        )

    def _why_off(self, sources: tuple[snapshot.SourceState, ...]) -> str:
        speculation = self._engine.speculation
        if not sources:
            return speculation.why_off
        if speculation.controller.purse <= 0:
            return "Drafts have cost more time than they saved, so they are paused for a while."
        if all(one.speedup <= 1 for one in sources):
            return "Drafts are unlikely to save time now; they are tried occasionally."
        return ""

    def _scheduler_state(self) -> snapshot.SchedulerState:
        scheduler = self._engine.scheduler
        cost = scheduler.cost
        return snapshot.SchedulerState(
            running=sum(one.generates for one in scheduler.running),
            waiting=sum(one.generates for one in scheduler.waiting) + self._engine.n_waiting,
            settling=any(not one.generates for one in scheduler.sequences),
            chunk_tokens=min(self._engine.backend.n_batch, cost.prompt_tokens()),
            step_seconds=cost.stream_seconds(),
            batches=tuple(scheduler.batches),
        )


def first_turn(messages: tuple[Message, ...]) -> tuple[Message, ...]:
    """Return the messages that can be pinned. The first turn is only included once there is a second."""
    turns = turns_of([message.role for message in messages])
    if not turns:
        return messages
    return messages[: turns[0].stop] if len(turns) > 1 else messages[: turns[0].start]


def pinned_end(slot: Slot, messages: tuple[Message, ...], vocabulary: Vocabulary, cells: int) -> int:
    """Return the number of tokens in a slot that stay when the window moves; see `window_of`.

    They are found by their text, which can fail, for example if a template moves the system prompt.
    """
    first = first_turn(messages)
    end = _end_of(slot, first, vocabulary)
    if end <= cells // 4:
        return end
    return _end_of(slot, tuple(itertools.takewhile(lambda one: one.role == "system", first)), vocabulary)


def _end_of(slot: Slot, messages: tuple[Message, ...], vocabulary: Vocabulary) -> int:
    """Return how many tokens a slot has up to the end of the last message, or 0 if it is not found."""
    if not messages:
        return 0
    sizes = [len(message.content.strip().encode()) for message in messages]
    thoughts = sum(len(message.thinking.encode()) for message in messages)
    most = sum(sizes) + thoughts + _AROUND * (1 + len(messages))
    text, ends, controls = bytearray(), [], []
    for token in _tokens(slot, slot.length):
        piece = vocabulary.piece(token)
        text += piece
        ends.append(len(text))
        if not piece:
            controls.append(len(ends))
        if len(text) > most:
            break
    at = text.find(messages[-1].content.strip().encode(), sum(sizes[:-1]))
    if at < 0:
        return 0
    end = bisect_left(ends, at + sizes[-1]) + 1
    # The control token that closes a message counts as part of it.
    return next((closing for closing in controls if end < closing <= end + _CLOSING), end)


def _tokens(slot: Slot, stop: int) -> Iterator[int]:
    every = (token for node in slot.path for token in node.tokens)
    return itertools.islice(every, stop)


def _starts_with(slot: Slot, tokens: list[int]) -> bool:
    if slot.length < len(tokens):
        return False
    return all(
        node.tokens[: max(len(tokens) - node.start, 0)] == tokens[node.start : node.end] for node in slot.path
    )


def _runs(cache: PrefixCache, pinned: dict[int, int], chat: str | None) -> Iterator[snapshot.Run]:
    """Yield the runs of all nodes, slot by slot."""
    paths = [(slot, slot.path) for slot in cache.slots]
    owners: dict[int, set[str | int]] = {}
    own: set[int] = set()
    for slot, path in paths:
        is_own = slot.busy or (slot.chat is not None and slot.chat == chat)
        for node in path:
            # A chat's earlier versions also have slots, but what they share with it does not count as shared.
            owners.setdefault(id(node), set()).add(slot.id if slot.chat is None else slot.chat)
            if is_own:
                own.add(id(node))
    seen: set[int] = set()
    for _, path in paths:
        for node in path:
            if id(node) in seen:
                continue
            seen.add(id(node))
            stop = pinned.get(id(node), node.start)
            if stop > node.start:
                yield snapshot.Run(node.start, stop - node.start, node.n_slots, "pinned")
            if stop < node.end:
                shared = len(owners[id(node)]) > 1
                kind: snapshot.Kind = "shared" if shared else "own" if id(node) in own else "kept"
                yield snapshot.Run(stop, node.end - stop, node.n_slots, kind)


def merge_small_runs(runs: list[snapshot.Run], most: int = snapshot.MOST_RUNS) -> list[snapshot.Run]:
    """Return at most `most` runs. If there are more, the smallest of each kind are merged and come last."""
    if len(runs) <= most:
        return runs
    by_size = sorted(range(len(runs)), key=lambda at: runs[at].length, reverse=True)
    large = set(by_size[: most - len(snapshot.KINDS)])
    kept = [run for at, run in enumerate(runs) if at in large]
    for kind in snapshot.KINDS:
        small = [run for at, run in enumerate(runs) if at not in large and run.kind == kind]
        if small:
            length, slots = sum(run.length for run in small), max(run.slots for run in small)
            kept.append(snapshot.Run(min(run.start for run in small), length, slots, kind, len(small)))
    return kept


def _acceptance_rate(acceptance: Acceptance) -> float | None:
    counts = acceptance.by_position
    tried = sum(counts.tried)
    return sum(counts.stood) / tried if tried > 0 else None
