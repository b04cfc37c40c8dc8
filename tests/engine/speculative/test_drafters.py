"""Who guesses: the n-grams of a text, and a small model that keeps up with it."""

import numpy as np
import pytest

from edgechat.base.errors import DecodeFailed
from edgechat.engine.backends.base import CacheFull
from edgechat.engine.engine import EngineCore
from edgechat.engine.sampling import Sampler
from edgechat.engine.scheduling.sequence import Draft
from edgechat.engine.scheduling.sequence import Sequence as Stream
from edgechat.engine.speculative.controller import Controller
from edgechat.engine.speculative.drafters import DraftRequest, ModelDrafter, NgramDrafter
from edgechat.engine.speculative.estimates import class_of_match
from edgechat.engine.types import ChatRequest, Delta, Failed, Message, Sampling
from tests.engine.cells import check_drafters
from tests.engine.speculative.always import Always
from tests.engine.speculative.tables import Fixed, Tables
from tests.engine.speculative.test_controller_by_hand import Known, linear

GREEDY = Sampling(temperature=0)


def stream(tokens, sampling=GREEDY):
    request = ChatRequest(id="a", messages=(), sampling=sampling)
    return Stream(request, list(tokens), len(tokens), Sampler(sampling), 0.0)


class TestNgrams:
    def test_what_followed_the_same_tokens_is_guessed(self):
        draft = NgramDrafter().draft(stream([1, 2, 3, 4, 5, 6, 7, 1, 2, 3, 4]), 3)
        assert draft.tokens == [5, 6, 7]
        assert draft.distributions is None
        assert draft.confidence == [class_of_match(4 + n) for n in range(3)]

    def test_the_longest_match_wins_and_of_equals_the_latest(self):
        longest = [9, 8, 1, 2, 3, 4, 50, 7, 1, 2, 3, 4, 60, 9, 8, 1, 2, 3, 4]
        assert NgramDrafter().draft(stream(longest), 1).tokens == [50]
        latest = [7, 1, 2, 3, 4, 50, 6, 1, 2, 3, 4, 60, 5, 1, 2, 3, 4]
        assert NgramDrafter().draft(stream(latest), 1).tokens == [60]

    def test_two_tokens_are_enough_where_four_are_not_found(self):
        assert NgramDrafter().draft(stream([1, 2, 3, 8, 1, 2]), 5).tokens == [3, 8, 1, 2]
        assert NgramDrafter().draft(stream([1, 2, 3, 8, 9, 2]), 5) is None

    @pytest.mark.parametrize("tokens", [[], [1], [1, 2], [1, 2, 3]])
    def test_of_too_short_a_text_nothing_is_guessed(self, tokens):
        assert NgramDrafter().draft(stream(tokens), 5) is None

    def test_bytes_that_are_alike_across_tokens_are_no_match(self):
        """0x00000001 0x00000002 is found in the bytes of 0x00000100 0x00000200 0x00000000, one byte on."""
        shifted = [0x0100, 0x0200, 0x0300, 0x0400, 0x55, 6]
        assert NgramDrafter().draft(stream([*shifted, 1, 2, 3, 4]), 3) is None
        real = [1, 2, 3, 4, 77]
        assert NgramDrafter().draft(stream([*real, *shifted, 1, 2, 3, 4]), 1).tokens == [77]

    def test_a_repetition_is_guessed_up_to_its_end(self):
        assert NgramDrafter().draft(stream([5] * 20), 9).tokens[0] == 5

    def test_it_grows_with_the_text(self):
        drafter, one = NgramDrafter(), stream([1, 2, 3, 4, 5])
        assert drafter.draft(one, 3) is None
        one.tokens += [9, 1, 2, 3, 4]
        assert drafter.draft(one, 2).tokens == [5, 9]
        one.tokens += [6, 7, 1, 2, 3, 4, 6]
        assert drafter.draft(one, 1).tokens == [7]

    def test_another_text_after_a_move_of_the_window(self):
        drafter, one = NgramDrafter(), stream([1, 2, 3, 4, 5, 6, 1, 2, 3, 4])
        assert drafter.draft(one, 1).tokens == [5]
        drafter.forget(one)
        one.tokens = [1, 2, 3, 4, 7, 8, 1, 2, 3, 4]
        assert drafter.draft(one, 1).tokens == [7]

    def test_a_random_text_is_matched_as_by_the_plainest_search(self):
        rng = np.random.default_rng(1)
        for _ in range(300):
            tokens = rng.choice([1, 2, 256, 512, 65536], int(rng.integers(3, 40))).tolist()
            draft = NgramDrafter().draft(stream(tokens), 1)
            found = next((size for size in (4, 2) if any(occurrences(tokens, size))), None)
            assert (draft is None) == (found is None)
            if draft is not None and found is not None:
                assert draft.tokens[0] in occurrences(tokens, found)


def occurrences(tokens, size):
    """Return what followed the last tokens elsewhere."""
    return [
        tokens[at + size]
        for at in range(len(tokens) - size)
        if len(tokens) > size and tokens[at : at + size] == tokens[-size:]
    ]


def counting(n=10):
    """Return the tables of a model that says a, b, c ... in turn."""
    tables = np.zeros((1, n, n, n), np.float32)
    for last in range(n):
        tables[0, :, last, (last + 1) % n] = 9.0
    return tables


def asked(drafter, one, most=4):
    draft = Draft("model")
    drafter.draft([DraftRequest(one, draft, most, lambda _: True, lambda _: True)])
    return draft


class TestModel:
    @pytest.fixture
    def backend(self):
        return Tables(counting(), context=200, n_seq_max=3)

    @pytest.fixture
    def drafter(self, backend):
        return ModelDrafter(backend, 10)

    def test_it_reads_what_was_said_and_goes_on(self, drafter):
        one = stream([3, 4, 5])
        assert drafter.n_behind(one) == 3
        assert asked(drafter, one).tokens == [6, 7, 8, 9]
        assert drafter.n_behind(one) == 0

    def test_what_was_guessed_and_said_is_not_read_again(self, drafter, backend):
        one = stream([3, 4, 5])
        asked(drafter, one)
        one.tokens += [6, 7, 8, 9, 0]
        assert drafter.n_behind(one) == 2
        assert asked(drafter, one, 1).tokens == [1]
        assert backend.held[drafter._states[one].slot.id] == one.tokens

    def test_what_was_rejected_is_taken_back(self, drafter, backend):
        one = stream([3, 4, 5])
        asked(drafter, one)
        one.tokens += [6, 2]
        assert drafter.n_behind(one) == 1
        assert asked(drafter, one, 2).tokens == [3, 4]
        assert backend.held[drafter._states[one].slot.id] == [3, 4, 5, 6, 2, 3]

    def test_it_catches_up_in_parts(self, drafter, backend):
        one = stream([n % 10 for n in range(150)])
        assert drafter.read(one, 100)
        assert drafter.n_behind(one) == 50
        assert drafter.read(one, 1000)
        assert drafter.n_behind(one) == 1
        assert backend.held[drafter._states[one].slot.id] == one.tokens[:-1]
        assert asked(drafter, one, 2).tokens == [0, 1]

    def test_more_than_a_batch_is_not_read_in_one_call(self, drafter, backend):
        """As where a place is lost that cannot be cut."""
        one = stream([n % 10 for n in range(backend.n_batch + 1)])
        assert asked(drafter, one).tokens == []
        one = stream([n % 10 for n in range(backend.n_batch)])
        assert asked(drafter, one, 1).tokens == [backend.n_batch % 10]

    def test_who_comes_next_finds_what_was_read(self, drafter):
        one = stream([3, 4, 5, 6, 7])
        asked(drafter, one, 1)
        drafter.forget(one)
        assert drafter.n_behind(stream([3, 4, 5, 6, 7, 8, 9])) == 2

    def test_several_draft_at_once(self, drafter):
        streams = [stream([n, n + 1]) for n in (1, 4, 7)]
        drafts = [Draft("model") for _ in streams]
        lengths = (1, 3, 2)
        rounds = drafter.draft(
            [
                DraftRequest(one, draft, most, lambda _: True, lambda _: True)
                for one, draft, most in zip(streams, drafts, lengths, strict=True)
            ]
        )
        assert [draft.tokens for draft in drafts] == [[3], [6, 7, 8], [9, 0]]
        assert rounds == 3

    def test_without_a_free_place_nothing_is_drafted(self, drafter):
        for n in range(3):
            assert asked(drafter, stream([n, n + 1]))
        late = stream([5, 6])
        assert asked(drafter, late).tokens == []
        assert not drafter.read(late, 10)

    def test_a_full_cache_ends_a_draft(self, drafter, backend):
        one, other = stream([1] * 100), stream([2] * 100)
        assert drafter.read(one, 99)
        drafter.read(other, 99)
        backend.context = sum(map(len, backend.held)) + 2
        assert len(asked(drafter, one).tokens) == 2
        assert drafter.cache.cells_used == sum(map(len, backend.held))

    def test_tokens_that_the_target_does_not_know_are_not_guessed(self, backend):
        assert 6 not in asked(ModelDrafter(backend, 6), stream([3, 4, 5])).tokens


class Breaking(Tables):
    """A backend whose call fails, after so many."""

    left, error = 3, DecodeFailed("broken")
    closed = False

    def decode(self, parts):
        self.left -= 1
        if self.left < 0:
            raise self.error
        return super().decode(parts)

    def close(self):
        self.closed = True


@pytest.fixture
def nobody_skips(monkeypatch):
    monkeypatch.setattr("edgechat.engine.speculative.speculation.OVERHEAD", 1e9)


def reply(engine):
    engine.submit(ChatRequest(id="a", messages=(Message("user", ""),), sampling=GREEDY, max_tokens=50))
    text = ""
    while not engine.is_idle:
        for event in engine.step():
            assert not isinstance(event, Failed)
            text += event.text if isinstance(event, Delta) else ""
    return text


@pytest.mark.usefixtures("nobody_skips")
@pytest.mark.parametrize("left", [0, 1, 2, 5, 11])
def test_the_target_goes_on_without_a_draft_model_that_breaks(left, caplog):
    broken = Breaking(counting())
    broken.left = left
    engine = EngineCore(
        Tables(counting()), Fixed("abc"), model_drafter=ModelDrafter(broken, 10), controller=Always()
    )
    assert reply(engine) == ("defghijabc" * 5)
    assert "the draft model is no longer used: broken" in caplog.text
    assert broken.closed
    assert not engine.speculation.drafts


@pytest.mark.usefixtures("nobody_skips")
def test_the_target_goes_on_beside_a_draft_model_without_room():
    full = Breaking(counting())
    full.error = CacheFull()
    engine = EngineCore(
        Tables(counting()), Fixed("abc"), model_drafter=ModelDrafter(full, 10), controller=Always()
    )
    assert reply(engine) == ("defghijabc" * 5)
    assert engine.speculation.drafts
    check_drafters(engine, cells=False)


@pytest.mark.usefixtures("nobody_skips")
@pytest.mark.parametrize("ngrams", [False, True], ids=["a model", "n-grams"])
@pytest.mark.parametrize("seed", range(8))
def test_nothing_is_drafted_behind_the_end_of_a_reply(monkeypatch, ngrams, seed):
    """It would stand, and stay in the cache behind the reply."""
    monkeypatch.setattr("tests.engine.speculative.tables.Letters.is_end", lambda self, token: token == 9)
    drafter = None if ngrams else ModelDrafter(Tables(counting()), 10)
    prompt = "ghijabcdefgh"
    engine = EngineCore(
        Tables(counting()), Fixed(prompt), model_drafter=drafter, ngrams=ngrams, controller=Always(seed)
    )
    assert reply(engine) == "i"
    assert all(9 not in slot.tokens[len(prompt) : -1] for slot in engine.scheduler.cache.slots)


class Careless(Always):
    """Drafts as long as a reply may lose by it, at costs that are known."""

    may_lose = Controller.may_lose

    def __init__(self):
        super().__init__()
        self.cost, self.chosen = Known(linear(0.5)), []

    def choose(self, offers, most):
        chosen = super().choose(offers, most)
        self.chosen += [one.source for one in chosen if one]
        return chosen


@pytest.mark.usefixtures("nobody_skips")
@pytest.mark.parametrize("ngrams", [False, True])
def test_each_reply_loses_little_by_a_source_and_the_others_go_on(ngrams):
    wrong = np.roll(counting(), 1, axis=3)
    controller = Careless()
    engine = EngineCore(
        Tables(counting()),
        Fixed("abcdefghijab"),
        model_drafter=ModelDrafter(Tables(wrong), 10),
        ngrams=ngrams,
        controller=controller,
    )
    for _ in range(3):
        controller.chosen.clear()
        reply(engine)
        assert 1 <= controller.chosen.count("model") <= 8
        assert (controller.chosen.count("ngram") >= 3) is ngrams
