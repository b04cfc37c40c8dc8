"""The engine over every backend: the library's own tokens, alone and in company, cached and cold.

Equality of greedy text needs F32 weights and flash attention off; elsewhere kernels for other batch
shapes round differently.
"""

import pytest

from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.template import ChatTemplate
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Sampling
from tests.engine.runtimes import SharedTemplate, load, plan
from tests.kit import CHATML

pytestmark = pytest.mark.slow

GREEDY = Sampling(temperature=0)


@pytest.fixture
def open_engine(runtime, chatml, opened):
    """Return a function that makes an engine: `open_engine(kind, context=256)`."""

    def make(kind, states=None, **changes):
        backend = load(plan(runtime.model(kind), **changes))
        assert backend.chat_template == CHATML
        return opened(EngineCore(backend, SharedTemplate(chatml), states=states))

    return make


def messages(*texts):
    return tuple(Message("assistant" if n % 2 else "user", text) for n, text in enumerate(texts))


def answers(engine, *, chat=None, **requests):
    """Run the requests together; return the text and the end of each. chat: what they are of."""
    for name, said in requests.items():
        engine.submit(ChatRequest(id=name, messages=said, sampling=GREEDY, max_tokens=24, chat=chat))
    text = dict.fromkeys(requests, "")
    ends = {}
    while not engine.is_idle:
        for event in engine.step():
            if isinstance(event, Delta):
                text[event.request_id] += event.text
            elif isinstance(event, Finished):
                ends[event.request_id] = event
    return {name: (text[name], ends[name]) for name in requests}


PROMPTS = {
    "short": messages("Hello."),
    "long": messages("The quick brown fox jumps over the lazy dog. " * 12),
    "other": messages("Tell me a story", "Once upon a time", "and then?"),
}


def test_the_tokens_are_the_librarys_own(runtime, kind, open_engine):
    engine = open_engine(kind)
    with runtime.library(runtime.model(kind)) as library:
        for name, said in PROMPTS.items():
            prompt = engine.template.render(said)
            tokens = engine.backend.vocabulary.tokenize(prompt, bos=True, special=True)
            expected = bytes(library.greedy(tokens, 24)).decode()
            text, end = answers(engine, **{name: said})[name]
            assert text == expected[: len(text)]
            assert end.usage.completion_tokens == len(text) > 20


def test_in_company_as_alone(kind, open_engine):
    alone = {}
    for name, said in PROMPTS.items():
        alone |= answers(open_engine(kind), **{name: said})
    together = answers(open_engine(kind), **PROMPTS)
    assert {name: text for name, (text, _) in together.items()} == {n: text for n, (text, _) in alone.items()}


def test_cached_as_cold_over_turns(kind, open_engine):
    """Follow-ups, an edited turn, a return to an earlier one: each against an engine that knows nothing."""
    warm = open_engine(kind)
    long = "A long first question that is far longer than the window of any layer. " * 6
    first = messages(long)
    (reply, _), *_ = answers(warm, a=first).values()
    follow_up = (*first, *messages("", reply)[1:], Message("user", "And?"))
    for number, said in enumerate((follow_up, messages(long + " edited"), messages(long[:200]), follow_up)):
        text, end = answers(warm, **{f"warm{number}": said})[f"warm{number}"]
        cold, _ = answers(open_engine(kind), cold=said)["cold"]
        assert text == cold
        if kind in ("dense", "moe") and number != 2:  # that one shares too little to cut a chat for it
            assert end.usage.cached_tokens >= min(end.usage.prompt_tokens, 200)


@pytest.mark.parametrize("kind", ["windowed", "hybrid"], scope="module")
def test_what_goes_on_is_reused_on_every_kind(kind, open_engine):
    """A prompt that is the old text and more needs no cut, so a hybrid model keeps its cache too."""
    engine = open_engine(kind)
    engine.template = ChatTemplate("{% for m in messages %}{{ m.content }}{% endfor %}")
    first, _ = answers(engine, a=messages("Once upon a time"))["a"]
    _, end = answers(engine, b=messages("Once upon a time", first, " and on"))["b"]
    assert end.usage.cached_tokens >= len("Once upon a time") + len(first) - 1


@pytest.mark.parametrize("kind", ["windowed", "hybrid"], scope="module")
def test_another_chat_with_the_same_rules_begins_from_a_saved_checkpoint(kind, open_engine, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.worth_saving", lambda *_, **__: True)
    rules = Message("system", "You are brief. " * 40)
    first, second = ((rules, Message("user", text * 30)) for text in ("What? ", "Why? "))
    engine = open_engine(kind, KVStateStore(10**8, b"x"))
    answers(engine, chat="c0ffee00", a=first)
    engine.persist(None)
    while not engine.is_idle:
        engine.step()
    again = open_engine(kind, KVStateStore(10**8, b"x"))
    text, end = answers(again, chat="beef0000", b=second)["b"]
    assert end.usage.cached_tokens >= 0.95 * len(rules.content)
    assert text == answers(open_engine(kind), b=second)["b"][0]


@pytest.mark.parametrize("cache_type", ["f16", "q8_0", "q4_0"])
def test_cache_types(runtime, chatml, cache_type, opened):
    backend = load(plan(runtime.wide(), cache_type=cache_type, flash_attention=True))
    engine = opened(EngineCore(backend, SharedTemplate(chatml)))
    assert len(answers(engine, a=PROMPTS["long"])["a"][0]) > 20
