"""Positions of checkpoints in prompts, and their cost in calls."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.scheduling.scheduler import checkpoints_of
from edgechat.engine.types import ChatRequest, Message
from tests.engine.cells import check
from tests.scripted.backend import ScriptedBackend

SIZES = st.lists(st.integers(1, 400), min_size=1, max_size=60)


@given(SIZES, st.integers(0, 2000), st.integers(1, 20))
def test_every_boundary_has_a_checkpoint_near_before_it(sizes, start, last):
    """Wherever in its place it is taken: a quarter more is computed at the most, or 32 tokens."""
    boundaries = [sum(sizes[: n + 1]) for n in range(len(sizes))]
    end = boundaries[-1] + last
    places = checkpoints_of(boundaries, start, end)
    assert list(places) == sorted(places)
    for first, latest in places:
        assert start < latest
        assert latest in boundaries
        assert first <= latest
    taken = [max(first, start) for first, _ in places]
    for at in boundaries:
        if at > start:
            back = at - max(one for one in [start, *taken] if one <= at)
            assert back <= max((end - at) // 4, 32)
    assert len(places) <= 3 + len(sizes) / 2 + 20
    assert not places or places[-1] == (boundaries[-1], boundaries[-1])


def test_a_prompt_of_equal_messages_takes_few():
    for size, most in ((30, 16), (130, 12), (1000, 8)):
        boundaries = range(size, 8001, size)
        assert len(checkpoints_of(boundaries, 0, 8004)) <= most + 3


@pytest.mark.slow
@pytest.mark.parametrize(("n_batch", "most"), [(16, 2), (64, 6), (512, 14)])
def test_short_calls_need_not_be_cut(scripted, n_batch, most):
    """Calls that would end there anyway cost nothing; long ones end at a dozen places."""
    calls = {}
    template = ChatTemplate(None, bos="<s>", eos="<|im_end|>")
    for cuts in (True, False):
        backend = ScriptedBackend(scripted(cuts=cuts, n_batch=n_batch, n_checkpoints=32, context=8192))
        engine = EngineCore(backend, template)
        sizes = []
        backend.decode = counted(backend.decode, sizes)
        messages = tuple(Message(("user", "assistant")[n % 2], "word " * 20) for n in range(31))
        engine.submit(ChatRequest(id="x", messages=messages, max_tokens=1))
        while not engine.is_idle:
            engine.step()
            check(engine)
        assert sum(sizes) > 3000
        calls[cuts] = len(sizes)
    template.close()
    assert 0 < calls[False] - calls[True] <= most


def counted(decode, sizes):
    def counting(parts):
        sizes.append(sum(len(part.tokens) for part in parts))
        return decode(parts)

    return counting
