"""Draft heads know what the model has computed, whatever happened to its sequences."""

from contextlib import closing

import msgspec
import numpy as np
import pytest

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import BatchPart, CacheFull
from edgechat.engine.backends.llama_cpp import LlamaCppBackend
from edgechat.native.heads import AssistantContext, EagleContext, HeadContext
from tests.engine.headed import HEADS, headed
from tests.engine.runtimes import some
from tests.kit.heads import with_head

NEXT = 70
"""The token that drafts follow on."""


@pytest.fixture(params=HEADS, scope="module")
def head_kind(request):
    return request.param


@pytest.fixture
def opened(head_kind, opened):
    """Return a function that opens a backend with a head."""
    return lambda **changes: opened(
        LlamaCppBackend(headed(head_kind, n_rs_seq=8, n_outputs_max=32, **changes))
    )


def read(backend, seq, tokens, start=0):
    for at in range(0, len(tokens), 64):
        chunk = tokens[at : at + 64]
        backend.decode([BatchPart(seq, start + at, chunk, 1)])


def drafted(backend, seq, n=3):
    """Return the rows of a draft behind NEXT, each of the likeliest token."""
    rows = [backend.head.begin([(seq, NEXT)])[0].copy()]
    for _ in range(min(n, backend.head.longest) - 1):
        rows.append(backend.head.extend([(seq, int(rows[-1].argmax()))])[0].copy())
    return np.stack(rows)


def afresh(opened, tokens):
    backend = opened(n_seq_max=1)
    read(backend, 0, tokens)
    return drafted(backend, 0)


def close(rows, other, bound=0.02):
    return float(np.abs(rows - other).max()) < bound


@pytest.mark.parametrize("length", [1, 20, 33, 200])
def test_a_draft_is_the_same_however_the_text_was_read(opened, length):
    """In one call, token by token, or beside others; read by the head at once, or much later."""
    tokens = some(length, length)
    expected = afresh(opened, tokens)
    backend = opened()
    for at, token in enumerate(tokens):
        backend.decode([BatchPart(0, at, [token], 1), BatchPart(1, at, [NEXT], 1)])
        assert backend.head.can_draft(0, at + 1)
    assert close(drafted(backend, 0), expected)
    assert close(drafted(backend, 0), expected), "a draft has left something behind"


def test_rejected_drafts_are_forgotten(opened):
    tokens = some(1, 50)
    backend = opened(n_seq_max=1)
    read(backend, 0, tokens[:40])
    for at in range(40, 50):
        drafted(backend, 0)
        wrong = [tokens[at], *some(at, 4)]
        backend.decode([BatchPart(0, at, wrong, len(wrong))])
        assert backend.rollback(0, 4)
    assert close(drafted(backend, 0), afresh(opened, tokens))


@pytest.mark.slow
def test_sequences_are_drafted_for_together(opened):
    texts = [some(seed, 20 + 15 * seed) for seed in range(3)]
    expected = [afresh(opened, text)[0] for text in texts]
    backend = opened()
    for seq, text in enumerate(texts):
        read(backend, seq, text)
    rows = backend.head.begin([(seq, NEXT) for seq in (2, 0, 1)])
    for row, seq in zip(rows, (2, 0, 1), strict=True):
        assert close(row, expected[seq])
    some_rows = backend.head.extend([(2, 60), (1, 60)]).copy()
    alone = opened(n_seq_max=1)
    read(alone, 0, texts[1])
    alone.head.begin([(0, NEXT)])
    assert close(some_rows[1], alone.head.extend([(0, 60)])[0])


@pytest.mark.slow
def test_a_copy_and_a_saved_state_know_the_same(opened):
    tokens = some(3, 100)
    expected = afresh(opened, tokens)
    backend = opened()
    read(backend, 0, tokens[:90])
    read(backend, 0, tokens[90:], 90)
    assert backend.copy(0, 1, 100)
    backend.truncate(0, 0)
    assert close(drafted(backend, 1), expected)
    state = backend.save(1)
    other = opened()
    assert other.restore(2, state, tokens)
    assert close(drafted(other, 2), expected)
    more = some(4, 10)
    read(other, 2, more, 100)
    assert close(drafted(other, 2), afresh(opened, [*tokens, *more]))


def test_a_cut_costs_one_hidden_state(opened):
    """The hidden state at the cut is not kept: the head reads one token without it, and drafts alike."""
    tokens, more = some(5, 100), some(6, 30)
    backend = opened()
    if not backend.capabilities.cuts:
        pytest.skip("its state cannot be cut")
    read(backend, 0, tokens)
    drafted(backend, 0)
    assert backend.truncate(0, 60)
    read(backend, 0, more, 60)
    assert backend.head.can_draft(0, 90)
    rows = drafted(backend, 0, 1), afresh(opened, [*tokens[:60], *more])[:1]
    assert close(*rows, bound=1.5)
    assert rows[0].argmax() == rows[1].argmax()


def test_a_state_that_is_rewound_is_cut_for_the_head(opened):
    tokens = some(7, 100)
    backend = opened()
    if backend.capabilities.cuts:
        pytest.skip("it is cut at any token")
    read(backend, 0, tokens[:60])
    checkpoint = backend.checkpoint(0)
    read(backend, 0, some(8, 20), 60)
    drafted(backend, 0)
    assert backend.rewind(0, checkpoint)
    read(backend, 0, tokens[60:], 60)
    assert close(drafted(backend, 0, 1), afresh(opened, tokens)[:1], bound=1.5)


def test_a_shifted_sequence_still_has_drafts(opened):
    backend = opened()
    if not backend.capabilities.shifts:
        pytest.skip("it cannot be shifted")
    read(backend, 0, some(9, 100))
    assert backend.shift(0, 20, 50)
    read(backend, 0, some(10, 5), 70)
    assert backend.head.can_draft(0, 75)
    assert np.isfinite(drafted(backend, 0)).all()


def test_nothing_is_drafted_for_the_first_token(opened):
    backend = opened()
    assert not backend.head.can_draft(0, 0)
    read(backend, 0, [NEXT])
    assert backend.head.can_draft(0, 1)


@pytest.mark.slow
def test_a_full_cache_is_no_draft(opened):
    backend = opened(context=256, n_seq_max=1)
    read(backend, 0, some(11, 256))
    with pytest.raises(CacheFull):
        drafted(backend, 0)
    backend.truncate(0, 0)
    read(backend, 0, some(12, 40))
    assert close(drafted(backend, 0), afresh(opened, some(12, 40)))


def test_a_head_that_fails_costs_no_reply(opened, monkeypatch):
    def fail(*_):
        raise DecodeFailed("a layer is broken")

    backend = opened()
    with monkeypatch.context() as broken:
        broken.setattr(HeadContext, "read", fail)
        broken.setattr(EagleContext, "read", fail)
        broken.setattr(AssistantContext, "read", fail)
        read(backend, 0, some(16, 100))
    assert not backend.head.can_draft(0, 100)
    backend.truncate(0, 0)
    read(backend, 0, some(16, 100))
    assert close(drafted(backend, 0), afresh(opened, some(16, 100)))


def test_text_after_what_it_cannot_read_is_not_drafted_for(opened):
    backend = opened(n_seq_max=1)
    read(backend, 0, some(13, 20))
    backend.head.stop(0)
    read(backend, 0, some(14, 20), 20)
    assert not backend.head.can_draft(0, 40)
    backend.truncate(0, 0)
    read(backend, 0, some(14, 20))
    assert backend.head.can_draft(0, 20)


def test_without_it_the_model_is_the_same(opened, head_kind):
    tokens = some(15, 64)
    rows = []
    made = headed(head_kind)
    for one in (msgspec.structs.replace(made, mtp=False, draft=None), made):
        backend = LlamaCppBackend(one)
        rows.append(backend.decode([BatchPart(0, 0, tokens, 1)]).copy())
        assert (backend.head is not None) == (one is made)
        backend.close()
    assert close(*rows)


@pytest.mark.parametrize(
    ("kind", "target", "why"),
    [
        ("eagle3", "glm4_moe", "llama.cpp cannot draft for glm4moe models with EAGLE-3."),
        ("gemma4", "qwen35", "Gemma 4's drafter cannot draft for qwen35 models."),
        ("mtp-qwen35", "glm4_moe", "Layers of qwen35 models cannot draft for glm4moe models."),
    ],
)
def test_a_head_for_another_model_is_refused(kind, target, why):
    """Most of these llama.cpp would answer with a crash."""
    made = msgspec.structs.replace(headed(kind), model_path=str(with_head(target)))
    with closing(LlamaCppBackend(made)) as backend:
        assert backend.head is None
        assert backend.no_head == why
        read(backend, 0, some(1, 5))
