"""Whatever is done to a sequence, what it holds is what a fresh computation of its tokens gives."""

import random

import mlx.core as mx
import numpy as np
import pytest

from edgechat.engine.backends.base import BatchPart
from edgechat.engine.backends.mlx import caches as states
from edgechat.engine.backends.mlx.backend import MlxBackend
from edgechat.engine.types import Sampling
from tests.engine.runtimes import plan
from tests.kit.build import Spec
from tests.kit.mlx import mlx_build
from tests.kit.shapes import KINDS

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0.0)
NEAR = 2e-4
"""Of logits up to 10, in F32: a run and a token at a time round differently."""
FRESH = 9
KINDS_OF_CACHE = [
    ("dense", "f16"),
    ("dense", "q8_0"),
    ("windowed", "f16"),
    ("windowed", "q4_0"),
    ("narrow", "f16"),
    ("hybrid", "f16"),
    ("hybrid", "q8_0"),
    ("moe", "f16"),
]


class Player:
    """A backend, and what its sequences should hold."""

    def __init__(self, backend, seed):
        self.backend = backend
        self.random = random.Random(seed)
        self.tokens = {0: [], 1: []}
        self.last = (0, 0)
        """The sequence that was computed last, and how much of it."""

    def some(self, n):
        """Return random tokens."""
        return [self.random.randrange(3, 250) for _ in range(n)]

    def other(self, seq):
        """Return the other sequence."""
        return 1 - seq

    def run(self, seq):
        """Compute a run, and hold its logits against a fresh computation."""
        n = self.random.choice([1, 1, 1, 2, 3, 9, 31, 32, 33, 40])
        wanted = self.random.randint(0, min(n, 9))
        said, more = self.tokens[seq], self.some(n)
        rows = self.backend.decode([BatchPart(seq, len(said), more, wanted)])
        said += more
        self.last = seq, n
        if wanted:
            assert np.abs(rows - self.fresh(said, wanted)).max() < NEAR

    def draw(self, seq):
        """Let the backend choose some tokens, and work ahead."""
        for pending in (self.some(self.random.randint(1, 3)), *([],) * self.random.randint(0, 4)):
            said = self.tokens[seq]
            more = pending or [self.chosen]
            self.chosen = self.backend.next_token(BatchPart(seq, len(said), more, 1), GREEDY, 0.5)
            said += more
            assert self.chosen == int(self.fresh(said, 1).argmax())
        self.last = seq, 1
        if self.random.random() < 0.5:  # what was computed ahead is wanted, with more
            more = [self.chosen, *self.some(self.random.randint(0, 3))]
            rows = self.backend.decode([BatchPart(seq, len(said), more, len(more))])
            said += more
            assert np.abs(rows - self.fresh(said, len(more))).max() < NEAR

    def take_back(self, seq):
        """Take back a part of what was computed last, if it was this sequence."""
        n = self.last[1] - 1
        if self.last[0] != seq or n < 1:
            return
        count = self.random.randint(1, min(n, 31))
        done = self.backend.rollback(seq, count)
        assert done == (self.backend.rolls_back >= count)
        if done:
            del self.tokens[seq][-count:]
        self.last = -1, 0

    def cut(self, seq):
        """Cut somewhere, where the backend says that it is true."""
        n = len(self.tokens[seq])
        length = self.random.choice([self.random.randint(0, n), max(0, n - self.random.randint(1, 20))])
        done = self.backend.truncate(seq, length)
        assert done or not self.backend.capabilities.cuts
        if done:
            del self.tokens[seq][length:]
        self.last = -1, 0

    def copy(self, seq):
        """Copy into the other sequence."""
        said, target = self.tokens[seq], self.other(seq)
        length = self.random.choice([len(said), self.random.randint(0, len(said))])
        if length and self.backend.can_copy(seq, length):
            self.backend.truncate(target, 0)
            self.backend.copy(seq, target, length)
            self.tokens[target] = said[:length]
            self.last = -1, 0

    def keep(self, seq):
        """Write a sequence down, and read it into the other one."""
        if not (said := self.tokens[seq]):
            return
        state = self.backend.save(seq)
        self.backend.truncate(self.other(seq), 0)
        assert self.backend.restore(self.other(seq), state, said)
        self.tokens[self.other(seq)] = list(said)
        self.last = -1, 0

    def fresh(self, tokens, n_rows):
        """Return the logits of a computation from the start."""
        rows = self.backend.decode([BatchPart(FRESH, 0, tokens, n_rows)]).copy()
        self.backend.truncate(FRESH, 0)
        return rows


@pytest.fixture(params=KINDS_OF_CACHE, ids="-".join, scope="module")
def backend(request):
    kind, cache_type = request.param
    shape = KINDS["windowed" if kind == "narrow" else kind].sized(
        n_embd=128, n_heads=2, n_kv_heads=1, head_dim=64
    )
    if shape.window:
        shape = shape.sized(window=4 if kind == "narrow" else 40)
    folder = mlx_build(Spec(shape=shape, name=f"caches-{kind}"))
    made = MlxBackend(plan(folder, context=4096, cache_type=cache_type, n_outputs_max=64))
    yield made
    made.close()


@pytest.mark.parametrize("seed", range(3))
def test_whatever_is_done_to_it_a_sequence_holds_what_was_said(backend, seed):
    for seq in (0, 1, FRESH):
        backend.truncate(seq, 0)
    player = Player(backend, seed)
    actions = [player.run, player.run, player.draw, player.take_back, player.cut, player.copy, player.keep]
    for _ in range(3):
        seq = player.random.randrange(2)
        player.random.choice(actions)(seq)
        if len(player.tokens[seq]) > 160:
            backend.truncate(seq, 0)
            player.tokens[seq] = []


def test_nothing_is_left_of_a_model_that_is_closed():
    folder = mlx_build(Spec(shape=KINDS["dense"].sized(n_embd=512, n_ff=1024), name="closed"))
    mx.clear_cache()
    before = mx.get_active_memory()
    made = MlxBackend(plan(folder))
    made.decode([BatchPart(0, 0, [70, 71, 72], 1)])
    assert mx.get_active_memory() > before + 2**20
    made.close()
    assert mx.get_active_memory() < before + 2**16


def test_a_kept_state_holds_no_prompt(opened):
    """mlx-lm's states are slices, some of them of all that a prompt was computed with."""
    folder = mlx_build(Spec(shape=KINDS["hybrid"].sized(n_embd=512, n_heads=4, n_kv_heads=1), name="kept"))
    made = opened(MlxBackend(plan(folder)))
    made.decode([BatchPart(0, 0, [70] * 500, 0)])
    mx.clear_cache()
    before = mx.get_active_memory()
    for seq in (1, 2):
        made.copy(0, seq, 500)
        made.decode([BatchPart(seq, 500, [71], 1)])
    assert mx.get_active_memory() - before < 2 * 2 * states.size_of(made._sequences[0].caches) + 2**17
