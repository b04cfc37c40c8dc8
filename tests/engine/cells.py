"""Checks that the cell accounting agrees with the scripted backend's."""

from __future__ import annotations

from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.prefix_cache import PrefixCache
from tests.scripted.backend import tokens_in


def check_cache(cache: PrefixCache) -> None:
    """Check that the tree agrees with the cache: nothing is leaked, and nothing shared by mistake."""
    backend = cache._backend
    assert all(backend.tokens_of(slot.id) == slot.tokens for slot in cache.slots)
    assert cache.cells_used == backend.cells_used <= backend.context
    found = {id(node): node for slot in cache.slots for node in slot.path}
    assert sum(len(node.tokens) for node in found.values()) == cache.cells_used
    for node in found.values():
        assert node.tokens
        assert node.n_slots == sum(node in slot.path for slot in cache.slots) > 0
        assert node.parent is not None
        assert node.parent.end == node.start
        lengths = [one.length for one in node.checkpoints]
        assert lengths == sorted(set(lengths))
        assert all(node.start < length <= node.end for length in lengths)
    for slot in cache.slots:
        assert all(tokens_in(one) == slot.tokens[: one.length] for one in slot.checkpoints)
    assert sum(one.n_bytes for one in cache.checkpoints) <= backend.checkpoint_bytes
    listed, ahead = set(), [node for slot in cache.slots for node in slot.root.children]
    while ahead:
        node = ahead.pop()
        listed.add(id(node))
        ahead += node.children
    assert listed <= found.keys()
    hidden = found.keys() - listed
    assert all(
        any(node is slot.tip for slot in cache.slots if slot.approximate) for node in map(found.get, hidden)
    )


def check(engine: EngineCore) -> None:
    """Check the same for an engine, and that its sequences run where they should."""
    scheduler = engine.scheduler
    check_cache(scheduler.cache)
    running = [one.slot for one in scheduler.running]
    assert [slot for slot in scheduler.cache.slots if slot.busy] == sorted(running, key=lambda slot: slot.id)
    for one in scheduler.running:
        assert one.slot.tokens == one.tokens[: one.slot.length]
    check_drafters(engine)


def check_drafters(engine: EngineCore, *, cells: bool = True) -> None:
    """Check that no drafter serves a finished request. cells: whether the draft's cache can be inspected."""
    model, ngram = engine.speculation._model, engine.speculation._ngram
    streams = set() if engine.is_idle else set(engine.scheduler.sequences)
    if ngram is not None:
        assert ngram._texts.keys() <= streams
        for stream, (said, _) in ngram._texts.items():
            assert said.tolist() == stream.tokens[: len(said)]
    if model is not None:
        assert model._states.keys() <= streams
        busy = [state.slot.id for state in model._states.values()]
        assert sorted(busy) == [slot.id for slot in model.cache.slots if slot.busy]
        for stream, state in model._states.items():
            read = state.slot.tokens
            assert read[: state.n_read] == stream.tokens[: state.n_read]
            assert read[state.n_read :] == state.drafted[: len(read) - state.n_read]
        if cells:
            check_cache(model.cache)
