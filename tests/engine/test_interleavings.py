"""Random lives of chats: cached equals cold, in company as alone, restored as never stopped, settled as cold.

And what is drafted changes nothing of it, however much and however wrong that is.

A few here; `make soak` does a thousand (tests/soak/test_lives.py). Equality of real models' text needs F32
weights and flash attention off: elsewhere kernels for other batch shapes round differently.
"""

import random
from contextlib import contextmanager
from functools import partial
from pathlib import Path

import numpy as np
import pytest

from edgechat.engine.backends.base import BatchPart
from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.prompts import Prompts
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.speculative.drafters import ModelDrafter
from edgechat.engine.types import CachePolicy
from tests.engine.cells import check, check_drafters
from tests.engine.headed import HEADS, headed
from tests.engine.runtimes import BOUND, SharedTemplate, load, plan
from tests.engine.speculative.always import Always
from tests.engine.world import MAX_TOKENS, World
from tests.scripted.backend import ScriptedBackend

pytestmark = pytest.mark.slow

SCRIPTED = {
    "dense": {"shifts": True},
    "dense, no shifts": {},
    "windowed": {"window": 60},
    "hybrid": {"cuts": False},
    "takes turns": {"mixes": False},
}
STEPS = {"llama.cpp": 60, "mlx": 30}
"""Steps of a life: MLX takes ten times as long on a processor."""
CONTEXT = 768
# Thoughts are stripped from earlier turns, and something is said before them: no prompt extends the last.
STRIPPING = (
    "{% for m in messages %}<|im_start|>{{ m.role }}\n{% if m.role == 'assistant' %}{{ m.content | trim }}"
    "{% else %}{{ m.content }}{% endif %}<|im_end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|im_start|>assistant\n{% endif %}"
)


@contextmanager
def stripping():
    template = ChatTemplate(STRIPPING, bos="<s>", eos="<|im_end|>")
    yield template
    template.close()


@pytest.fixture(scope="module")
def template():
    with stripping() as template:
        yield template


def scripted_question(rng):
    return f"<{rng.randrange(1, 7)}>" + rng.choice("xyz") * rng.randrange(rng.choice((5, 60, 120)))


def scripted_judge(request, text, reason):
    number = int(request.messages[-1].content[1])
    expected = (f"reply number {number} " * number)[:MAX_TOKENS]
    return text == expected if reason in ("stop", "length") else expected.startswith(text)


def scripted_world(scripted, template, kind, seed, *, drafts=False):
    rng = random.Random(seed)
    rules = [{"when": f"<{n}>", "reply": f"reply number {n} " * n} for n in range(1, 7)]
    size = {"context": rng.choice((300, 500, 900)), "n_seq_max": rng.randrange(1, 6), "n_batch": 64}
    made = scripted(rules=rules, rolls_back=rng.choice((3, 16)), **SCRIPTED[kind], **size)
    # Each reply is drafted right up to some place, and it is another one in each.
    astray = [{"when": f"<{n}>", "reply": ("reply number " * n)[: 5 * n] + "and so on"} for n in range(1, 7)]
    window = rng.choice((0, 60))
    draft_plan = scripted(rules=[*astray[::2], *rules], window=window, **size | {"n_batch": 32})

    def make():
        backend = ScriptedBackend(made)
        states = KVStateStore(rng.choice((2000, 100_000)), b"scripted")
        settles = CachePolicy(settle=rng.random() < 0.8)
        return EngineCore(
            backend, SharedTemplate(template), cache_policy=settles, states=states, **drafting()
        )

    def drafting():
        if not drafts:
            return {}
        drafter = ModelDrafter(ScriptedBackend(draft_plan), 259) if rng.random() < 0.8 else None
        return {"model_drafter": drafter, "ngrams": rng.random() < 0.8, "controller": Always(rng.random())}

    return World(make, scripted_judge, scripted_question, seed, check)


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "drafts"])
@pytest.mark.parametrize("kind", SCRIPTED)
@pytest.mark.parametrize("seed", range(2))
def test_lives_of_scripted_chats(scripted, template, kind, seed, drafts):
    world = scripted_world(scripted, template, kind, seed, drafts=drafts)
    try:
        world.run(80)
    finally:
        world.close()
    assert world.compared > 3
    assert bool(world.drafted) == drafts


def real_question(rng):
    words = [
        rng.choice(("apple", "bear", "cloud", "delta")) for _ in range(rng.randrange(1, rng.choice((4, 40))))
    ]
    return " ".join(words)


class Judge:
    """Judges greedy replies by computing them at once, with nothing cached."""

    def __init__(self, path, template):
        self.backend = load(plan(path, context=CONTEXT, n_seq_max=1, n_outputs_max=64))
        self._prompts = Prompts(template, self.backend.vocabulary)

    def __call__(self, request, text, reason):
        """Return whether every token was the likeliest, or nearly so."""
        prompt = self._prompts.of(request, self.backend.context).tokens
        vocabulary = self.backend.vocabulary
        said = vocabulary.tokenize(text, bos=False, special=False)
        if reason == "length" and len(said) != MAX_TOKENS:
            return False
        tokens, n_rows = prompt + said, len(said) + 1
        self.backend.truncate(0, 0)
        first = len(tokens) - n_rows
        for at in range(0, first, 64):
            self.backend.decode([BatchPart(0, at, tokens[at : min(first, at + 64)], 0)])
        rows = self.backend.decode([BatchPart(0, first, tokens[first:], n_rows)])
        chosen = all(row[token] >= row.max() - BOUND for row, token in zip(rows, said, strict=False))
        best = rows[-1] >= rows[-1].max() - BOUND
        return chosen and (
            reason != "stop" or any(vocabulary.is_end(int(one)) for one in np.flatnonzero(best))
        )


def real_world(template, planned, seed, judge, *, drafts=False, draft=None):
    """Return a world; planned: how the model is loaded, with these sizes."""
    rng = random.Random(seed)
    size = {"n_seq_max": rng.randrange(1 if drafts and draft is None else 2, 6), "context": CONTEXT}
    rows = {"n_outputs_max": 32, "n_rs_seq": 8} if drafts else {"n_outputs_max": 8}
    made = planned(**rows, **size)
    draft_plan = plan(draft, n_outputs_max=8, **size) if draft else None

    def make():
        states = KVStateStore(50_000_000, b"the same")
        settles = CachePolicy(settle=rng.random() < 0.8)
        return EngineCore(
            load(made), SharedTemplate(template), cache_policy=settles, states=states, **drafters()
        )

    def drafters():
        if not drafts:
            return {}
        drafter = None
        if draft_plan is not None and rng.random() < 0.8:
            backend = load(draft_plan)
            drafter = ModelDrafter(backend, backend.vocabulary.size)
        return {"model_drafter": drafter, "ngrams": rng.random() < 0.8, "controller": Always(rng.random())}

    def fits(engine):
        check_drafters(engine, cells=False)
        assert engine.scheduler.cache.cells_used <= engine.backend.context
        assert engine.scheduler.cells == engine.backend.context, "the backend had fewer cells than it said"

    return World(make, judge, real_question, seed, fits)


@pytest.fixture(scope="module")
def judge(runtime, kind):
    """Return who knows what the model says; its template is its own, as another thread asks an engine's."""
    with stripping() as template:
        judge = Judge(runtime.model(kind), template)
        yield judge
        judge.backend.close()


@pytest.fixture(autouse=True)
def all_is_worth_it(monkeypatch):
    """Save, read, shift and draft whatever can be: tiny models compute as fast as a disk reads."""
    monkeypatch.setattr("edgechat.engine.scheduling.scheduler.SHIFT_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.PREWARMED_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.WORTH_READING", 1)
    monkeypatch.setattr("edgechat.engine.speculative.speculation.OVERHEAD", 1e9)
    monkeypatch.setattr("edgechat.engine.speculative.controller.SURE_OF_GAIN", -1e9)


@pytest.mark.parametrize("drafts", [False, True], ids=["alone", "drafts"])
def test_lives_of_real_chats(template, runtime, kind, judge, drafts):
    # Of a dense model and an MoE one that is always right, of others one that nearly never is.
    draft = runtime.model("moe" if kind == "moe" else "dense") if drafts else None
    world = real_world(template, partial(plan, runtime.model(kind)), 0, judge, drafts=drafts, draft=draft)
    live(world, STEPS[runtime.name], drafts=drafts)


@pytest.mark.parametrize("head_kind", HEADS)
def test_lives_of_chats_whose_model_has_a_head(template, head_kind):
    planned = partial(headed, head_kind)
    with stripping() as own_template:
        judge = Judge(Path(planned().model_path), own_template)
        live(real_world(template, planned, 0, judge, drafts=True), STEPS["llama.cpp"], drafts=True)
        judge.backend.close()


def live(world, steps, *, drafts):
    """Let a world live for a while."""
    try:
        world.run(steps)
    finally:
        world.close()
    assert world.compared > 2
    assert world.cached
    assert drafts or not world.drafted
    recurrent = not world.engine.backend.rolls_back or world.engine.backend.rolls_back_alone
    assert world.drafted or not drafts or recurrent  # which drafts only where it is computed alone
