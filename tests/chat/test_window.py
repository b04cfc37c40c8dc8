"""What left the window, as the conversation works it out, beside what the engine really leaves out."""

import random

import msgspec
import pytest

from edgechat.chat.conversation import Conversation
from edgechat.chat.storage.store import Store
from edgechat.engine.prompt.prompts import Prompts
from edgechat.engine.types import Delta, Finished, Timings, Usage
from tests.engine.prompt.test_prompts import Words, template
from tests.fakes import MODEL, FakeEngine

CELLS = 600


class Windowed(FakeEngine):
    """Answers at random length, of prompts made as the engine makes them."""

    def __init__(self, source, seed):
        super().__init__()
        self.model = msgspec.structs.replace(MODEL, context=CELLS)
        self.random = random.Random(seed)
        self.vocabulary = Words()
        self.prompts = Prompts(template(source), self.vocabulary)
        self.left = []
        """What the last prompt was without."""
        self.near = False
        """Whether head and first turn are a quarter of the context to within a few tokens."""

    async def stream(self, request, on_progress=None):
        prompt = self.prompts.of(request, CELLS)
        window = self.prompts._window(request, request.messages, CELLS, exact=True)
        kept = set(self.prompts._fit(request, request.messages, window, CELLS, CELLS - 37).window.kept)
        self.left = [one.content for at, one in enumerate(request.messages) if at not in kept]
        reply = words(self.random, self.random.choice((5, 40, 90)))
        n_reply = len(self.vocabulary.tokenize(reply, bos=False, special=False)) + 1
        if len(request.messages) < 3:
            self.near = abs(len(prompt.tokens) + n_reply - CELLS // 4) < 16
        yield Delta(request.id, reply, False, n_reply)
        usage = Usage(len(prompt.tokens), 0, n_reply, prompt.dropped)
        yield Finished(request.id, "stop", usage, Timings(1.0, 1.0, 1.0))


def words(source, n):
    return " ".join("".join(source.choices("abcdefgh", k=5)) for _ in range(n))


@pytest.mark.slow
@pytest.mark.parametrize("source", ["chatml", "merges_system", "strips_thinking", "phi"])
async def test_the_turns_that_left_are_those_that_the_engine_left_out(source):
    compared = pinned = 0
    for seed in range(12):
        engine, store = Windowed(source, seed), await Store.in_memory()
        conversation = Conversation(store, "guide", system=words(engine.random, 10) if seed % 2 else None)
        for _ in range(14):
            await conversation.ask(words(engine.random, engine.random.choice((3, 30, 80))))
            async for _ in conversation.answer(engine):
                pass
            if not engine.near:
                assert [turn.content for turn in conversation.left_out()] == engine.left
                compared += bool(engine.left)
                pinned += bool(engine.left) and conversation.turns[seed % 2] not in conversation.left_out()
        await store.close()
    assert compared > 50
    assert 0 < pinned < compared
