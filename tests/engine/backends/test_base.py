"""The backend protocol: results are compared with computing the same tokens afresh."""

import contextlib
import threading

import numpy as np
import pytest

from edgechat.engine.backends.base import BatchPart, CacheFull, Checkpoint, Interrupted
from tests.engine.runtimes import Cold, Runtime, feed, is_true, load, plan, some
from tests.kit import CHATML, END, TEXT_END, Spec

pytestmark = [pytest.mark.slow, pytest.mark.pairs]

CUTS_ANYWHERE = ("dense", "moe")


def test_it_says_what_it_is(kind, open_backend):
    backend = open_backend(kind)
    assert backend.vocabulary.size == 259
    assert backend.chat_template == CHATML
    assert (backend.context, backend.train_context, backend.n_seq_max) == (2048, 4096, 3)
    assert backend.capabilities.cuts == (kind in CUTS_ANYWHERE)
    assert backend.capabilities.saves
    assert backend.n_params > 50_000
    assert backend.architecture


def test_both_formats_are_the_same_model(kind, cold, opened):
    """Results equal those of llama.cpp for the GGUF of the same Spec."""
    tokens = some(1, 200)
    other = opened(load(plan(Runtime("llama.cpp").model(kind), n_seq_max=1, n_outputs_max=64)))
    assert is_true(cold(tokens, 20), feed(other, 0, 0, tokens, 20))


# Rows.


@pytest.mark.quick
def test_rows_do_not_depend_on_the_calls(kind, open_backend, cold):
    """One token at a time, and in runs of every size: across the end of a window, too."""
    backend, tokens, at = open_backend(kind, n_outputs_max=0), some(1, 150), 0
    rows = []
    for size in (1, 1, 2, 7, 30, 1, 40, 3, *[1] * 15, 2, 38, 10):
        rows.append(backend.decode([BatchPart(0, at, tokens[at : at + size], size)]).copy())
        at += size
    assert at == 150
    assert is_true(np.concatenate(rows)[-60:], cold(tokens, 60))


def test_sequences_do_not_see_each_other(kind, open_backend, cold):
    backend = open_backend(kind)
    held = {seq: some(seq, 40) for seq in range(3)}
    for seq, tokens in held.items():
        feed(backend, seq, 0, tokens)
    for step in range(15):
        seq = step % 3
        held[seq] += some(step, 1 + step % 4)
        rows = feed(backend, seq, len(held[seq]) - 1 - step % 4, held[seq][-1 - step % 4 :])
    assert is_true(rows, cold(held[2]))
    for seq in (0, 1):
        assert is_true(feed(backend, seq, len(held[seq]), [60]), cold([*held[seq], 60]))


def test_what_an_interrupted_call_leaves_is_true(kind, open_backend, cold):
    """On every kind of model, at any depth, beside what another sequence holds and computes."""
    backend = open_backend(kind)
    interruption = backend.interruption
    if interruption is None:
        pytest.skip("its state would be half a new one" if kind == "hybrid" else "it runs to the end")
    texts = [some(1, 300), some(2, 300)]
    held = [0, 0]
    for at in range(0, 300, 30):
        parts = [BatchPart(seq, held[seq], texts[seq][held[seq] : at + 30], 0) for seq in (0, 1)]
        interruption.interrupt()
        with pytest.raises(Interrupted) as early:
            interruption.decode_interruptibly(parts)
        assert early.value.n_kept == (0, 0)
        interruption.clear_interrupt()
        interruption.decode_interruptibly(parts)
        held = [at + 30, at + 30]
    rows = [feed(backend, seq, 300, some(3, 20)) for seq in (0, 1)]
    for seq in (0, 1):
        assert is_true(rows[seq], cold([*texts[seq], *some(3, 20)]))


def test_the_micro_batches_before_an_interrupt_stay(runtime):
    """A call of several of them, ended at some moment by another thread."""
    backend = load(plan(runtime.model("dense"), n_ubatch=16, n_batch=512))
    with contextlib.closing(backend):
        interruption = backend.interruption
        if interruption is None:
            pytest.skip("this backend runs to the end")
        tokens, kept = some(1, 480), 0
        for delay in (ms / 4000 for ms in range(1, 400)):
            backend.truncate(0, 0)
            timer = threading.Timer(delay, interruption.interrupt)
            timer.start()
            try:
                interruption.decode_interruptibly([BatchPart(0, 0, tokens, 0)])
            except Interrupted as early:
                kept = early.n_kept[0] or 0
            timer.join()
            interruption.clear_interrupt()
            if 0 < kept < len(tokens):
                break
        assert 0 < kept < len(tokens)
        assert kept % 16 == 0
        rows = feed(backend, 0, kept, tokens[kept:])
        assert is_true(rows, Cold(backend)(tokens))


def test_what_cannot_be_interrupted_runs_to_its_end(kind, open_backend, cold):
    backend = open_backend(kind)
    if backend.interruption is not None:
        backend.interruption.interrupt()
    assert is_true(feed(backend, 1, 0, some(1, 40)), cold(some(1, 40)))


def test_only_the_rows_that_are_wanted(open_backend):
    backend = open_backend()
    assert backend.decode([BatchPart(0, 0, [70, 71, 72], 0)]).shape == (0, backend.vocabulary.size)
    assert backend.decode([BatchPart(0, 3, [70, 71, 72], 2)]).shape == (2, backend.vocabulary.size)


def test_the_rows_come_in_the_order_of_the_parts(open_backend):
    """Backends that compute one sequence at a time say so."""
    backend = open_backend()
    a, b = BatchPart(0, 0, [70, 71, 72], 1), BatchPart(1, 0, [80, 81, 82, 83], 2)
    if not backend.capabilities.mixes:
        with pytest.raises(ValueError, match=r"\S"):
            backend.decode([a, b])
        return
    both = backend.decode([a, b]).copy()
    assert both.shape == (3, backend.vocabulary.size)
    alone = backend.decode([BatchPart(2, 0, b.tokens, 2)])
    assert is_true(both[1:], alone)
    assert np.abs(both[0] - alone[1]).max() > 0.1


# A full cache.


def fits(backend, start, tokens):
    """Compute tokens, and say whether there was room for them."""
    try:
        backend.decode([BatchPart(0, start, tokens, 1)])
    except CacheFull:
        return False
    return True


def test_a_full_cache_is_as_it_was(kind, open_backend, cold):
    """Some have room for more than they say: what MLX cannot cut it must copy."""
    backend = open_backend(kind, context=256, n_seq_max=1)
    held = some(1, 230)
    feed(backend, 0, 0, held)
    while fits(backend, len(held), some(2, 50)):
        held += some(2, 50)
        assert len(held) < 600
    more = some(99, 6)
    assert is_true(feed(backend, 0, len(held), more), cold(held + more))
    assert backend.truncate(0, 0)
    assert is_true(feed(backend, 0, 0, held), cold(held))


def test_all_sequences_share_the_cells(open_backend):
    backend = open_backend(context=256)
    feed(backend, 0, 0, some(1, 150))
    feed(backend, 1, 0, some(1, 50))
    with pytest.raises(CacheFull):
        backend.decode([BatchPart(1, 50, some(2, 60), 1)])
    feed(backend, 1, 50, some(2, 50))
    assert backend.truncate(0, 0)
    assert backend.truncate(1, 0)
    feed(backend, 2, 0, some(2, 250))


# Cuts.


def test_a_cut_that_is_allowed_is_true(kind, open_backend, cold):
    """After a cut, logits equal those of the same tokens computed afresh; else nothing has changed."""
    tokens, more = some(1, 120), [65, 66, 67]
    for length in (119, 100, 60, 1):
        backend = open_backend(kind)
        feed(backend, 0, 0, tokens)
        cut = backend.truncate(0, length)
        assert cut or kind in ("windowed", "hybrid")
        assert not (cut and kind == "hybrid" and length < 119), "but for where a state was kept"
        left = tokens[:length] if cut else tokens
        assert is_true(feed(backend, 0, len(left), more), cold(left + more))


def test_a_windowed_model_does_not_go_back_behind_its_window(open_backend):
    backend = open_backend("windowed", n_seq_max=1)
    for start in range(0, 700, 50):
        backend.decode([BatchPart(0, start, some(start, 50), 0)])
    assert not backend.truncate(0, 300)
    assert backend.truncate(0, 690)
    assert backend.truncate(0, 0)


def test_a_cut_inside_a_window_is_true_however_it_was_filled(open_backend):
    """In one go, token by token, and mixed; each cut as far as it is allowed."""
    backend, fresh = open_backend("windowed"), open_backend("windowed", n_outputs_max=8)
    allowed = 0
    for seed, size in enumerate((1, 2, 50, 64)):
        tokens, more = some(seed, 90), some(seed + 9, 12)
        backend.truncate(0, 0)
        for at in range(0, 90, size):
            backend.decode([BatchPart(0, at, tokens[at : at + size], 0)])
        length = next((n for n in range(40, 90) if backend.truncate(0, n)), 90)
        allowed += length < 90
        fresh.truncate(0, 0)
        assert is_true(feed(backend, 0, length, more, 3), feed(fresh, 0, 0, tokens[:length] + more, 3))
        one_by_one = [feed(backend, 0, length + 12 + i, [50 + i])[0] for i in range(5)]
        assert is_true(np.array(one_by_one), feed(fresh, 0, length + 12, [50, 51, 52, 53, 54], 5))
    assert allowed > 1


def test_an_empty_sequence_is_anew(kind, open_backend, cold):
    backend = open_backend(kind)
    feed(backend, 0, 0, some(1, 200))
    assert backend.truncate(0, 0)
    assert backend.truncate(2, 0), "which never was used"
    assert is_true(feed(backend, 0, 0, some(2, 30)), cold(some(2, 30)))


# Copies.


def test_a_copy_goes_on_as_the_original_does(kind, open_backend, cold):
    """Both, one after the other, and far enough for a window to have moved past what they share."""
    backend = open_backend(kind)
    shared, one, other = some(1, 150), some(2, 100), some(3, 100)
    feed(backend, 0, 0, shared)
    assert backend.can_copy(0, 150)
    backend.copy(0, 1, 150)
    first = feed(backend, 0, 150, one)
    second = feed(backend, 1, 150, other)
    assert is_true(first, cold(shared + one))
    assert is_true(second, cold(shared + other))


def test_copies_take_turns_with_the_original(kind, open_backend, cold):
    """Token by token, so that each writes where the others' tokens are."""
    backend = open_backend(kind)
    held = {seq: some(1, 60) for seq in range(3)}
    feed(backend, 0, 0, held[0])
    backend.copy(0, 1, 60)
    backend.copy(1, 2, 60)
    for step in range(6):
        for seq in held:
            held[seq].append(40 + (step * 7 + seq * 13) % 50)
            row = feed(backend, seq, len(held[seq]) - 1, held[seq][-1:])
            if step in (0, 5):
                assert is_true(row, cold(held[seq]))


def test_a_prefix_is_copied_where_that_is_true(kind, open_backend, cold):
    shared, one = some(1, 300), some(2, 50)
    backend = open_backend(kind)
    feed(backend, 0, 0, shared + some(4, 400))
    assert backend.can_copy(0, 300) == (kind in CUTS_ANYWHERE)
    if backend.can_copy(0, 300):
        backend.copy(0, 1, 300)
        assert is_true(feed(backend, 1, 300, one), cold(shared + one))
    assert is_true(feed(backend, 0, 700, one), cold(shared + some(4, 400) + one))


def test_a_copy_outlives_the_original(kind, open_backend, cold):
    backend = open_backend(kind)
    feed(backend, 0, 0, some(1, 200))
    backend.copy(0, 1, 200)
    assert backend.truncate(0, 0)
    feed(backend, 0, 0, some(2, 100))
    assert is_true(feed(backend, 1, 200, some(3, 5)), cold(some(1, 200) + some(3, 5)))


# Shifts.


def test_a_shift_is_near_the_truth_or_refused(kind, open_backend, cold):
    pinned, gone, rest, more = some(1, 40), some(2, 50), some(3, 100), some(4, 10)
    backend = open_backend(kind)
    feed(backend, 0, 0, pinned + gone + rest)
    for start, stop in ((90, 40), (-5, 20), (0, 40), (40, 190), (40, 400)):
        with pytest.raises(ValueError, match="not in the middle"):
            backend.shift(0, start, stop)
    assert backend.shift(0, 40, 90) == backend.capabilities.shifts
    if not backend.capabilities.shifts:
        assert is_true(feed(backend, 0, 190, more), cold(pinned + gone + rest + more))
        return
    assert kind in CUTS_ANYWHERE
    row, expected = feed(backend, 0, 140, more)[0], cold(pinned + rest + more)[0]
    assert np.dot(row, expected) / np.linalg.norm(row) / np.linalg.norm(expected) > 0.9


# States.


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_a_restored_state_goes_on_as_if_never_stopped(runtime, kind, cache_type):
    made = plan(runtime.wide(kind), cache_type=cache_type, flash_attention=cache_type != "f16")
    tokens, more = some(1, 100), some(2, 30)
    before, after = load(made), load(made)
    try:
        feed(before, 0, 0, tokens)
        state = before.save(0)
        expected = feed(before, 0, 100, more)
        feed(after, 1, 0, some(3, 70))  # it lands in other cells
        assert after.restore(0, state, tokens)
        assert is_true(feed(after, 0, 100, more), expected)
        assert not after.restore(2, state[: len(state) // 2], tokens)
        assert not after.restore(2, state, tokens[:99])
        assert before.state_format == after.state_format
        assert is_true(feed(after, 2, 0, tokens), feed(before, 1, 0, tokens))  # it has stayed empty
    finally:
        before.close()
        after.close()


def test_a_restored_state_goes_back_to_a_checkpoint_saved_with_it(kind, runtime, open_backend, cold, opened):
    """Also after a restart: as bytes, in another backend."""
    before = open_backend(kind)
    if before.capabilities.cuts:
        pytest.skip("it can be cut anywhere")
    feed(before, 0, 0, some(1, 150))
    checkpoint = before.checkpoint(0)
    if not isinstance(checkpoint.state, np.ndarray):
        pytest.skip("its checkpoints are not saved")
    feed(before, 0, 150, some(2, 100))
    state, kept = before.save(0), np.frombuffer(checkpoint.state.tobytes(), np.uint8)
    after = opened(load(plan(runtime.model(kind))))
    assert after.restore(1, state, some(1, 150) + some(2, 100))
    assert after.rewind(1, Checkpoint(150, kept.nbytes, kept))
    assert is_true(feed(after, 1, 150, some(3, 60)), cold(some(1, 150) + some(3, 60)))


def test_a_state_is_of_the_moment_it_was_saved(kind, open_backend, cold):
    """Later computations write to other memory."""
    backend = open_backend(kind)
    feed(backend, 0, 0, some(1, 140))
    state = backend.save(0)
    kept = state.copy()
    feed(backend, 0, 140, some(2, 140))
    assert np.array_equal(state, kept)
    for seq in (1, 2):
        assert backend.restore(seq, state, some(1, 140))
        assert is_true(feed(backend, seq, 140, some(seq, 5)), cold(some(1, 140) + some(seq, 5)))


def test_states_of_other_formats_are_told_apart(runtime):
    formats = set()
    for changes in ({}, {"cache_type": "q8_0", "flash_attention": True}, {"cache_type": "q4_0"}):
        backend = load(plan(runtime.wide(), **{"flash_attention": True} | changes))
        formats.add(backend.state_format)
        backend.close()
    assert len(formats) == 3


def test_a_state_that_finds_no_cells_is_refused(open_backend):
    backend = open_backend()
    feed(backend, 0, 0, some(1, 300))
    state = backend.save(0)
    small = open_backend(context=256)
    assert not small.restore(0, state, some(1, 300))
    feed(small, 0, 0, some(1, 200))


# Text.

TEXTS = (
    "",
    "plain",
    "naïve — 日本語 🙂 \t\n العربية",
    "  two  spaces ",
    "the thing and the rest\n\nin there",
)


@pytest.mark.parametrize("pieces", [False, True], ids=["bytes", "pieces"])
def test_text_comes_back(runtime, pieces):
    """And both formats have the same tokens for it."""
    spec = Spec(pieces=pieces)
    backend, other = load(plan(runtime.build(spec))), load(plan(Runtime("llama.cpp").build(spec)))
    try:
        words, theirs = backend.vocabulary, other.vocabulary
        assert (words.bos, words.eos, words.size) == (theirs.bos, theirs.eos, theirs.size)
        for text in TEXTS:
            tokens = words.tokenize(text, bos=False, special=False)
            back = b"".join(words.piece(token) for token in tokens).decode()
            assert back.removeprefix(" " if pieces and text else "") == text
            for bos in (False, True):
                assert words.tokenize(text, bos=bos, special=False) == theirs.tokenize(
                    text, bos=bos, special=False
                )
        for token in range(words.size):
            assert words.is_end(token) == theirs.is_end(token)
            assert words.piece(token) == theirs.piece(token)
            assert words.piece(token, special=True) == theirs.piece(token, special=True)
    finally:
        backend.close()
        other.close()


@pytest.mark.parametrize("pieces", [False, True], ids=["bytes", "pieces"])
def test_a_beginning_is_put_in_front_once(runtime, pieces, opened):
    backend = opened(load(plan(runtime.build(Spec(pieces=pieces)))))
    words = backend.vocabulary
    plain = words.tokenize("the end", bos=False, special=True)
    assert words.tokenize("the end", bos=True, special=True) == ([1, *plain] if pieces else plain)
    written = words.tokenize(f"{words.bos}the end", bos=True, special=True)
    assert written == words.tokenize(f"{words.bos}the end", bos=False, special=True)


def test_control_tokens_in_a_text_are_read_only_where_asked(open_backend):
    vocabulary = open_backend().vocabulary
    assert len(vocabulary.tokenize("<|im_end|>", bos=False, special=False)) == 10
    (end,) = vocabulary.tokenize("<|im_end|>", bos=False, special=True)
    assert end == END
    assert [token for token in range(vocabulary.size) if vocabulary.is_end(token)] == [END, TEXT_END]
    assert (vocabulary.piece(end), vocabulary.piece(end, special=True)) == (b"", b"<|im_end|>")


def test_a_text_that_is_no_unicode_is_read_as_far_as_it_is(open_backend):
    vocabulary = open_backend().vocabulary
    tokens = vocabulary.tokenize("a\ud800b", bos=False, special=False)
    assert b"".join(vocabulary.piece(token) for token in tokens) == b"a?b"


def test_vocabularies_fit_or_not(runtime, open_backend):
    specs = {"padded": Spec(n_vocab=300), "longer": Spec(n_vocab=500), "pieces": Spec(pieces=True)}
    others = {name: load(plan(runtime.build(spec))) for name, spec in specs.items()}
    own = open_backend().vocabulary
    try:
        assert own.misfit(open_backend("moe").vocabulary) == ""
        assert own.misfit(others["padded"].vocabulary) == ""
        assert "500 tokens, not 259" in own.misfit(others["longer"].vocabulary)
        assert "of a different type" in own.misfit(others["pieces"].vocabulary)
    finally:
        for one in others.values():
            one.close()
