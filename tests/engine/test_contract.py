"""Contract of all engines; see `edgechat.engine.protocol.Engine`.

A new kind of engine becomes a parameter of `make`. Requests are answered by what they say: 'hi', 'slow',
'long' or 'die'.
"""

import asyncio
from contextlib import AsyncExitStack, aclosing

import pytest

from edgechat.base.errors import EngineClosed, EngineCrashed, EngineGone, LoadFailed, PromptTooLong, WrongKind
from edgechat.engine.protocol import EngineState
from edgechat.engine.types import ChatRequest, Delta, Finished, Message, Translated
from edgechat.engine.worker.supervisor import EngineSupervisor
from tests.engine.remote.served import served_model
from tests.engine.remote.test_started import engine as started_engine
from tests.fakes import FakeEngine, words

HELLO = "Hello!"
ENDLESS = "on and on " * 2000
"""Takes longer than a test may last."""
CHAT = "0123456789abcdef"


def fake(*texts, load_seconds=0.0, load_error=""):
    scripts = {
        "hi": list(HELLO),
        "slow": words(ENDLESS, 0.05),
        "long": [PromptTooLong("It is longer than the context.")],
        "die": ["I was about ", EngineCrashed("It died.")],
    }
    engine = FakeEngine(*(scripts[text] for text in texts), load_seconds=load_seconds)
    engine.load_error = LoadFailed(load_error) if load_error else None
    return engine


RULES = [{"when": "slow", "reply": ENDLESS}, {"when": "die", "reply": "I was about to", "crash_after": 9}]


@pytest.fixture(params=["worker", "fake", "remote", pytest.param("started", marks=pytest.mark.slow)])
async def make(request, scripted, tmp_path):
    """Return a function that makes an engine for requests in this order."""
    async with AsyncExitStack() as servers:
        if request.param == "remote":
            script = {"reply": HELLO, "rules": RULES, "token_ms": 20}
            served = await servers.enter_async_context(served_model(tmp_path / "served", **script))

        def remote(*texts, load_seconds=0.0, load_error=""):
            served.delay, served.error = load_seconds, load_error
            return served.engine()

        def started(*texts, load_seconds=0.0, load_error=""):
            """One whose server edgechat starts: a program of a test, which is there sooner than real ones."""
            failing = ["--error", load_error] if load_error else []
            return started_engine("obeys", "--delay", f"{load_seconds}", *failing)

        def worker(*texts, load_seconds=0.0, load_error=""):
            failing = {"load_error": load_error} if load_error else {}
            script = {"reply": HELLO, "rules": RULES, "token_ms": 20, "load_ms": 1000 * load_seconds}
            return EngineSupervisor(scripted(n_seq_max=2, **script | failing))

        of_kind = {"fake": fake, "worker": worker, "remote": remote, "started": started}[request.param]

        def any_of_them(*texts, **load):
            engine = of_kind(*texts, **load)
            servers.push_async_callback(engine.close)
            return engine

        yield any_of_them


def asked(text, id="r"):
    return ChatRequest(id=id, messages=(Message("user", "x" * 5000 if text == "long" else text),))


async def events_of(engine, text, id="r"):
    return [event async for event in engine.stream(asked(text, id))]


async def reply_of(engine, text="hi", id="r"):
    events = await events_of(engine, text, id)
    assert events[-1].reason == "stop"
    return "".join(event.text for event in events if isinstance(event, Delta))


def ended(events):
    """Return the reason of the only Finished, which is the last event."""
    assert [isinstance(event, Finished) for event in events] == [False] * (len(events) - 1) + [True]
    last = events[-1]
    return last.reason


async def streaming(engine, id="r"):
    """Begin an endless reply; return once its first word has come."""
    begun = asyncio.Event()

    async def read():
        events = []
        async for event in engine.stream(asked("slow", id)):
            events.append(event)
            if isinstance(event, Delta):
                begun.set()
        return events

    task = asyncio.create_task(read())
    waiting = asyncio.create_task(begun.wait())
    await asyncio.wait([task, waiting], return_when=asyncio.FIRST_COMPLETED)
    assert begun.is_set()
    return task


async def test_a_model_is_loaded_once(make):
    engine = make("hi")
    assert (engine.model, engine.state, engine.has_crashed) == (None, EngineState.STOPPED, False)
    shares = []
    first, second = await asyncio.gather(engine.start(shares.append), engine.start())
    assert first == second == await engine.start() == engine.model
    assert engine.state is EngineState.READY
    assert first.context == engine.plan.context
    assert shares == sorted(shares)
    assert all(0 <= share <= 1 for share in shares)


@pytest.mark.slow
async def test_a_request_loads_the_model_and_ends_with_finished(make):
    engine = make("hi")
    events = await events_of(engine, "hi")
    assert ended(events) == "stop"
    deltas = [event for event in events if isinstance(event, Delta)]
    assert "".join(event.text for event in deltas) == HELLO
    assert {event.request_id for event in events} == {"r"}
    assert engine.state is EngineState.READY
    last = events[-1]
    assert last.usage.completion_tokens >= deltas[-1].tokens > 0


@pytest.mark.slow
async def test_streams_run_side_by_side(make):
    engine = make(*["hi"] * 5)  # more of them than places
    assert await asyncio.gather(*(reply_of(engine, id=id) for id in "abcde")) == [HELLO] * 5


@pytest.mark.slow
async def test_a_request_that_may_not_load(make):
    engine = make("hi", "hi")
    with pytest.raises(EngineGone):
        _ = [event async for event in engine.stream(asked("hi"), may_load=False)]
    assert engine.state is EngineState.STOPPED
    await engine.start()
    assert ended([event async for event in engine.stream(asked("hi", "b"), may_load=False)]) == "stop"


@pytest.mark.slow
async def test_cancelling_what_does_not_run_does_nothing(make):
    engine = make("hi", "hi")
    await engine.cancel("r")
    assert await reply_of(engine) == HELLO
    await engine.cancel("s")
    assert await reply_of(engine, id="s") == HELLO


@pytest.mark.slow
async def test_a_request_is_cancelled_while_the_model_loads(make):
    engine = make("slow", "hi", load_seconds=0.5)
    answer = asyncio.create_task(events_of(engine, "slow"))
    while engine.state is not EngineState.LOADING:
        await asyncio.sleep(0.01)
    await engine.cancel("r")
    events = await answer
    assert (ended(events), len(events)) == ("cancelled", 1)
    assert await reply_of(engine, id="b") == HELLO


@pytest.mark.slow
async def test_a_request_is_cancelled_while_it_streams(make):
    engine = make("slow", "hi")
    answer = await streaming(engine)
    await engine.cancel("r")
    assert ended(await answer) == "cancelled"
    assert await reply_of(engine, id="b") == HELLO


@pytest.mark.slow
async def test_leaving_a_stream_cancels_it(make):
    engine = make("slow", "slow", "hi")
    for id in ("a", "b"):  # both places
        async with aclosing(engine.stream(asked("slow", id))) as events:
            async for event in events:
                if isinstance(event, Delta):
                    break
    assert await reply_of(engine) == HELLO


@pytest.mark.slow
async def test_chats_that_are_not_known(make):
    engine = make("hi")
    for _ in range(2):  # without a model, and with one
        await engine.persist(CHAT)
        await engine.persist()
        engine.forget(CHAT)
        with pytest.raises(ValueError, match="not a chat id"):
            engine.forget("../etc")
        await engine.start()
    assert await reply_of(engine) == HELLO


async def test_nothing_is_seen_of_a_model_that_is_not_loaded(make):
    engine = make("hi")
    assert await engine.inspect() is None
    assert await engine.inspect(CHAT) is None
    assert engine.log_tail() == ""
    await engine.start()
    await engine.unload()
    assert await engine.inspect() is None


@pytest.mark.slow
async def test_a_model_is_unloaded_unless_it_is_used(make):
    engine = make("slow", "hi", "hi")
    answer = await streaming(engine)
    await engine.unload()
    assert engine.state is EngineState.READY
    await engine.cancel("r")
    await answer
    with engine.holding():
        await engine.unload()
        assert engine.state is EngineState.READY
    await engine.unload()
    assert (engine.state, engine.has_crashed) == (EngineState.STOPPED, False)
    assert await reply_of(engine, id="b") == HELLO


async def test_text_becomes_tokens_and_text_again(make):
    engine = make("hi")
    there = await engine.translate("a", "Hello")
    assert isinstance(there, Translated)
    assert there.tokens
    back = await engine.translate("b", there.tokens)
    assert isinstance(back, Translated)
    assert back.text == b"Hello"


async def test_a_model_for_chat_makes_no_embeddings(make):
    engine = make("hi")
    with pytest.raises(WrongKind):
        await engine.embed("r", ("Hello",))
    with pytest.raises(WrongKind, match="cannot score texts"):
        await engine.embed("r", ("Hello",), query="Hello?")
    assert await reply_of(engine) == HELLO


async def test_a_load_that_fails(make):
    engine = make("hi", load_error="no such weights")
    with pytest.raises(LoadFailed) as failed:
        await engine.start()
    assert "no such weights" in f"{failed.value.message} {failed.value.hint}"
    with pytest.raises(LoadFailed):
        await events_of(engine, "hi")
    assert (engine.state, engine.has_crashed, engine.model) == (EngineState.STOPPED, False, None)


@pytest.mark.slow
async def test_a_request_that_fails_leaves_the_engine_well(make):
    engine = make("long", "hi")
    with pytest.raises(PromptTooLong):
        await events_of(engine, "long")
    assert engine.state is EngineState.READY
    assert await reply_of(engine, id="b") == HELLO


@pytest.mark.slow
async def test_a_crash_ends_a_request_and_the_next_one_loads_again(make):
    engine = make("die", "hi")
    with pytest.raises(EngineCrashed):
        await events_of(engine, "die")
    assert (engine.state, engine.has_crashed) == (EngineState.STOPPED, True)
    assert await engine.inspect() is None
    assert await reply_of(engine, id="b") == HELLO
    assert not engine.has_crashed


async def test_close_ends_streams(make):
    engine = make("slow")
    answer = await streaming(engine)
    await engine.close()
    assert ended(await answer) == "cancelled"
    assert (engine.state, engine.has_crashed) == (EngineState.STOPPED, False)


async def test_close_ends_a_load(make):
    engine = make("slow", load_seconds=60.0)
    loading = asyncio.create_task(engine.start())
    answer = asyncio.create_task(events_of(engine, "slow"))
    while engine.state is not EngineState.LOADING:
        await asyncio.sleep(0.01)
    await engine.close()
    with pytest.raises(EngineClosed):
        await loading
    assert ended(await answer) == "cancelled"
    assert (engine.state, engine.has_crashed) == (EngineState.STOPPED, False)


async def test_a_closed_engine_is_of_no_more_use_and_does_no_harm(make):
    engine = make("hi", "hi")
    await engine.start()
    for _ in range(2):
        await engine.close()
        with pytest.raises(EngineClosed):
            await engine.start()
        assert ended(await events_of(engine, "hi")) == "cancelled"
        assert await engine.translate("t", "Hello") is None
        await engine.cancel("r")
        await engine.persist()
        engine.forget(CHAT)
        await engine.unload()
        assert await engine.inspect() is None
        assert isinstance(engine.log_tail(), str)
        assert engine.state is EngineState.STOPPED


async def test_a_closed_engine_starts_no_worker(scripted):
    states = []
    engine = EngineSupervisor(scripted(), on_state=states.append)
    await engine.close()
    with pytest.raises(EngineClosed):
        await engine.start()
    assert states == []
