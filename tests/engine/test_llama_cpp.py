"""llama.cpp below our loop: the same tokens as its own, alone and in company, cached and cold.

Equality of greedy text needs F32 weights and flash attention off; elsewhere kernels for other batch
shapes round differently.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from edgechat.engine.backends.base import Part
from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.engine.engine import Engine
from edgechat.engine.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from edgechat.errors import LoadFailed
from edgechat.planner.plan import LoadPlan
from tests.kit import DENSE, NOT_PRINTABLE, Spec, build, tiny
from tests.kit import KINDS as KIT_KINDS
from tests.kit.corrupt import unknown_architecture
from tests.kit.reference import Reference

KINDS = ("dense", "windowed", "hybrid", "moe")
GREEDY = Sampling(temperature=0)
Open = Callable[..., Engine]


def plan(path: Path, **changes: object) -> LoadPlan:
    fields = {"context": 2048, "threads": 1, "flash_attention": False, "n_ubatch": 64, "n_seq_max": 3}
    return LoadPlan(model_path=str(path), model_name=path.stem, **fields | changes)


@pytest.fixture(scope="module")
def models() -> dict[str, Path]:
    return {kind: tiny(kind, mute=NOT_PRINTABLE) for kind in KINDS}


@pytest.fixture
def open_engine(models: dict[str, Path]) -> Iterator[Open]:
    made: list[Engine] = []

    def make(kind: str, **changes: object) -> Engine:
        backend = LlamaCppBackend(plan(models[kind], **changes))
        made.append(Engine(backend, ChatTemplate(backend.chat_template)))
        return made[-1]

    yield make
    for engine in made:
        engine.close()


def messages(*texts: str) -> tuple[Message, ...]:
    return tuple(Message("assistant" if n % 2 else "user", text) for n, text in enumerate(texts))


def answers(engine: Engine, **requests: tuple[Message, ...]) -> dict[str, tuple[str, Finished]]:
    """Run the requests together; return the text and the end of each."""
    for name, said in requests.items():
        engine.submit(ChatRequest(id=name, messages=said, sampling=GREEDY, max_tokens=40))
    text = dict.fromkeys(requests, "")
    ends: dict[str, Finished] = {}
    while not engine.is_idle:
        for event in engine.step():
            if isinstance(event, Delta):
                text[event.request_id] += event.text
            elif isinstance(event, Finished):
                ends[event.request_id] = event
    return {name: (text[name], ends[name]) for name in requests}


PROMPTS = {
    "short": messages("Hello."),
    "long": messages("The quick brown fox jumps over the lazy dog. " * 20),
    "other": messages("Tell me a story", "Once upon a time", "and then?"),
}


@pytest.mark.parametrize("kind", KINDS)
def test_the_tokens_are_llama_cpps_own(kind: str, models: dict[str, Path], open_engine: Open) -> None:
    engine = open_engine(kind)
    with Reference(models[kind], n_ctx=2048, n_batch=2048, n_ubatch=64) as reference:
        for name, said in PROMPTS.items():
            prompt = engine.template.render(said)
            tokens = reference.tokenize(prompt, special=True)
            assert engine.backend.vocabulary.tokenize(prompt, bos=True, special=True) == tokens
            reference.clear()
            expected = b"".join(reference.piece(one) for one in reference.greedy(tokens, 40))
            text, end = answers(engine, **{name: said})[name]
            assert text == expected.decode()[: len(text)]
            assert end.usage.completion_tokens == len(text) > 20


@pytest.mark.parametrize("kind", KINDS)
def test_in_company_as_alone(kind: str, open_engine: Open) -> None:
    alone = {}
    for name, said in PROMPTS.items():
        alone |= answers(open_engine(kind), **{name: said})
    together = answers(open_engine(kind), **PROMPTS)
    assert {name: text for name, (text, _) in together.items()} == {n: text for n, (text, _) in alone.items()}


@pytest.mark.parametrize("kind", KINDS)
def test_cached_as_cold_over_turns(kind: str, open_engine: Open) -> None:
    """Follow-ups, an edited turn, a return to an earlier one: each against an engine that knows nothing."""
    warm = open_engine(kind)
    long = "A long first question that is far longer than the window of any layer. " * 12
    first = messages(long)
    (reply, _), *_ = answers(warm, a=first).values()
    follow_up = (*first, *messages("", reply)[1:], Message("user", "And?"))
    for number, said in enumerate((follow_up, messages(long + " edited"), messages(long[:200]), follow_up)):
        text, end = answers(warm, **{f"warm{number}": said})[f"warm{number}"]
        cold, _ = answers(open_engine(kind), cold=said)["cold"]
        assert text == cold
        if kind in ("dense", "moe") and number != 2:  # that one shares too little to cut a chat for it
            assert end.usage.cached_tokens >= min(end.usage.prompt_tokens, 200)


@pytest.mark.parametrize("kind", ["windowed", "hybrid"])
def test_what_goes_on_is_reused_on_every_kind(kind: str, open_engine: Open) -> None:
    """A prompt that is the old text and more needs no cut, so a hybrid model keeps its cache too."""
    engine = open_engine(kind)
    template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    engine.template.close()
    engine.template = template
    first, _ = answers(engine, a=messages("Once upon a time"))["a"]
    _, end = answers(engine, b=messages("Once upon a time", first, " and on"))["b"]
    assert end.usage.cached_tokens >= len("Once upon a time") + len(first) - 1


def test_a_windowed_model_computes_micro_batches_one_by_one(open_engine: Open) -> None:
    assert open_engine("windowed").backend.n_batch == 64
    assert open_engine("dense").backend.n_batch == 512


def test_a_windowed_model_does_not_go_back_behind_its_window(open_engine: Open) -> None:
    backend = open_engine("windowed", n_seq_max=1).backend
    tokens = [40 + i % 50 for i in range(1500)]
    for start in range(0, 1500, 100):
        backend.decode([Part(0, start, tokens[start : start + 100], 1)])
    assert not backend.truncate(0, 500)
    assert backend.truncate(0, 1490)
    assert backend.truncate(0, 0)


def test_a_hybrid_model_does_not_go_back_at_all(open_engine: Open) -> None:
    backend = open_engine("hybrid").backend
    backend.decode([Part(0, 0, list(range(40, 60)), 1)])
    assert not backend.truncate(0, 10)
    assert backend.truncate(0, 0)
    backend.decode([Part(0, 0, list(range(40, 60)), 1)])


def test_a_cut_that_is_allowed_is_true(open_engine: Open) -> None:
    """What follows a cut is what follows the same tokens computed afresh."""
    for kind in ("dense", "moe", "windowed"):
        backend = open_engine(kind).backend
        tokens = [40 + i % 50 for i in range(120)]
        backend.decode([Part(0, 0, tokens, 1)])
        assert backend.truncate(0, 100)
        after = backend.decode([Part(0, 100, [65, 66, 67], 1)]).copy()
        fresh = backend.decode([Part(1, 0, [*tokens[:100], 65, 66, 67], 1)])
        assert np.abs(after - fresh).max() < 0.02


def some(seed: int, size: int) -> list[int]:
    return [int(one) for one in np.random.default_rng(seed).integers(40, 90, size)]


def feed(backend: LlamaCppBackend, seq: int, start: int, tokens: list[int]) -> np.ndarray:
    """Compute tokens in calls of 50; return the last row."""
    row = None
    for at in range(0, len(tokens), 50):
        row = backend.decode([Part(seq, start + at, tokens[at : at + 50], 1)]).copy()
    return row


def truth(kind: str, open_engine: Open, tokens: list[int]) -> np.ndarray:
    return feed(open_engine(kind, n_seq_max=1).backend, 0, 0, tokens)


@pytest.mark.parametrize("kind", KINDS)
def test_a_copy_goes_on_as_the_original_does(kind: str, open_engine: Open) -> None:
    """Both, one after the other, and far enough for a window to have moved past what they share."""
    backend = open_engine(kind).backend
    shared, one, other = some(1, 300), some(2, 200), some(3, 200)
    feed(backend, 0, 0, shared)
    assert backend.can_copy(0, 300)
    backend.copy(0, 1, 300)
    first = feed(backend, 0, 300, one)
    second = feed(backend, 1, 300, other)
    assert np.abs(first - truth(kind, open_engine, shared + one)).max() < 0.02
    assert np.abs(second - truth(kind, open_engine, shared + other)).max() < 0.02


def test_a_prefix_is_copied_where_that_is_true(open_engine: Open) -> None:
    shared, one = some(1, 300), some(2, 100)
    for kind in KINDS:
        backend = open_engine(kind).backend
        feed(backend, 0, 0, shared + some(4, 400))
        assert backend.can_copy(0, 300) == (kind in ("dense", "moe"))
        if backend.can_copy(0, 300):
            backend.copy(0, 1, 300)
            row = feed(backend, 1, 300, one)
            assert np.abs(row - truth(kind, open_engine, shared + one)).max() < 0.02


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
@pytest.mark.parametrize("kind", KINDS)
def test_a_restored_state_goes_on_as_if_never_stopped(kind: str, cache_type: str) -> None:
    wide = build(Spec(shape=KIT_KINDS[kind].sized(n_heads=2, n_kv_heads=1, head_dim=32), mute=NOT_PRINTABLE))
    load = plan(wide, cache_type=cache_type, flash_attention=cache_type != "f16")
    tokens, more = some(1, 300), some(2, 60)
    before, after = LlamaCppBackend(load), LlamaCppBackend(load)
    try:
        feed(before, 0, 0, tokens)
        state = before.save(0)
        expected = feed(before, 0, 300, more)
        feed(after, 1, 0, some(3, 70))  # it lands in other cells
        assert after.restore(0, state, 300)
        assert np.abs(feed(after, 0, 300, more) - expected).max() < 0.02
        assert not after.restore(2, state[: len(state) // 2], 300)
        assert after._context.last_position(2) == -1
        assert before.state_format == after.state_format
    finally:
        before.close()
        after.close()


def test_states_of_other_formats_are_told_apart() -> None:
    wide = build(Spec(shape=DENSE.sized(head_dim=32), mute=NOT_PRINTABLE))
    formats = set()
    for changes in ({}, {"cache_type": "q8_0", "flash_attention": True}, {"flash_attention": True}):
        backend = LlamaCppBackend(plan(wide, **changes))
        formats.add(backend.state_format)
        backend.close()
    assert len(formats) == 3


def test_a_state_that_finds_no_cells_is_refused(open_engine: Open) -> None:
    backend = open_engine("dense").backend
    feed(backend, 0, 0, some(1, 300))
    state = backend.save(0)
    small = open_engine("dense", context=256).backend
    assert not small.restore(0, state, 300)
    feed(small, 0, 0, some(1, 200))


def test_a_shift_is_near_the_truth_on_a_dense_model_and_refused_on_others(open_engine: Open) -> None:
    pinned, gone, rest = some(1, 40), some(2, 100), some(3, 200)
    for kind in KINDS:
        backend = open_engine(kind).backend
        feed(backend, 0, 0, pinned + gone + rest)
        for start, stop in ((140, 40), (-5, 20), (0, 40), (40, 340), (40, 400)):
            with pytest.raises(ValueError, match="not in the middle"):
                backend.shift(0, start, stop)
        assert backend.shift(0, 40, 140) == backend.capabilities.shifts == (kind in ("dense", "moe"))
        if not backend.capabilities.shifts:
            continue
        row = feed(backend, 0, 240, some(4, 10))[0]
        expected = truth(kind, open_engine, pinned + rest + some(4, 10))[0]
        assert np.dot(row, expected) / np.linalg.norm(row) / np.linalg.norm(expected) > 0.9


def test_the_rows_come_in_the_order_of_the_parts(open_engine: Open) -> None:
    backend = open_engine("dense").backend
    a, b = [70, 71, 72], [80, 81, 82, 83]
    both = backend.decode([Part(0, 0, a, 1), Part(1, 0, b, 2)]).copy()
    assert both.shape == (3, backend.vocabulary.size)
    alone = backend.decode([Part(2, 0, b, 2)])
    assert np.abs(both[1:] - alone).max() < 0.02
    assert np.abs(both[0] - alone[1]).max() > 0.1


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_cache_types(cache_type: str) -> None:
    wide = build(Spec(shape=DENSE.sized(head_dim=32), mute=NOT_PRINTABLE))
    backend = LlamaCppBackend(plan(wide, cache_type=cache_type, flash_attention=True))
    engine = Engine(backend, ChatTemplate(backend.chat_template))
    assert len(answers(engine, a=PROMPTS["long"])["a"][0]) > 20
    engine.close()


def test_an_unknown_architecture_is_named(tmp_path: Path) -> None:
    path = unknown_architecture(tmp_path / "strange.gguf")
    with pytest.raises(LoadFailed, match=r"cannot load strange\.gguf.*unknown model architecture"):
        LlamaCppBackend(plan(path))


def test_text_in_many_scripts_comes_back(open_engine: Open) -> None:
    vocabulary = open_engine("dense").backend.vocabulary
    text = "naïve — 日本語 🙂 \t\n العربية"
    tokens = vocabulary.tokenize(text, bos=False, special=False)
    assert b"".join(vocabulary.piece(token) for token in tokens).decode() == text


def test_control_tokens_in_a_text_are_read_only_where_asked(open_engine: Open) -> None:
    vocabulary = open_engine("dense").backend.vocabulary
    assert len(vocabulary.tokenize("<|im_end|>", bos=False, special=True)) == 1
    assert len(vocabulary.tokenize("<|im_end|>", bos=False, special=False)) == 10
    (end,) = vocabulary.tokenize("<|im_end|>", bos=False, special=True)
    assert vocabulary.is_end(end)
    assert (vocabulary.piece(end), vocabulary.piece(end, special=True)) == (b"", b"<|im_end|>")
