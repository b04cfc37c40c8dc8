"""Chats between turns: prewarmed, interrupted, cut by the window, closed, restored and deleted."""

import re
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace

import pytest

from edgechat.base.errors import PromptTooLong
from edgechat.engine.engine import EngineCore
from edgechat.engine.kv.prefix_cache import Rent, common_prefix
from edgechat.engine.kv.state_files import path_of
from edgechat.engine.kv.state_store import KVStateStore
from edgechat.engine.prompt.template import ChatTemplate, template_process
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Delta,
    Dropped,
    Finished,
    Message,
    Persisted,
    Prefill,
    Prewarmed,
)
from tests.engine.cells import check
from tests.scripted.backend import ScriptedBackend

pytestmark = pytest.mark.slow

CHAT = "c0ffee00"
TEMPLATES = sorted((Path(__file__).parents[1] / "templates").glob("*.jinja"))
KINDS = {"dense": {}, "windowed": {"window": 40}, "hybrid": {"cuts": False}}
PREWARMS, KEEPS = CachePolicy(settle=True), CachePolicy(settle=False)
STRIPS = next(path for path in TEMPLATES if path.stem == "strips_thinking").read_text()


@pytest.fixture(scope="module")
def process():
    process = template_process()
    yield process
    process.close()


@pytest.fixture(autouse=True)
def all_is_worth_it(monkeypatch):
    """Save and read whatever can be: a script costs nothing to compute."""
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.LEAVE_SECONDS", 0.0)
    monkeypatch.setattr("edgechat.engine.scheduling.chat_cache.PREWARMED_SECONDS", 0.0)


@pytest.fixture
def make(scripted, process, opened):
    def engine(template=None, cache_policy=PREWARMS, states=None, **script):
        backend = ScriptedBackend(scripted(**{"reply": "Hello.", "n_batch": 64} | script))
        kept = ChatTemplate(template, bos="<s>", eos="<|im_end|>", process=process)
        kept.close = lambda: None
        disk = None if states is None else KVStateStore(10_000_000, states)
        return opened(EngineCore(backend, kept, cache_policy=cache_policy, states=disk))

    return engine


def ask(engine, name, *messages, **options):
    """Return the reply, its end, and all events until the engine is idle."""
    request = ChatRequest(id=name, messages=messages, **{"chat": CHAT} | options)
    events = [*engine.submit(request), *idle(engine)]
    text = "".join(e.text for e in events if isinstance(e, Delta) and not e.thinking and e.request_id == name)
    (end,) = [event for event in events if isinstance(event, Finished) and event.request_id == name]
    return text, end, events


def idle(engine):
    events = []
    while not engine.is_idle:
        events += engine.step()
        check(engine)
    return events


def until(engine, kind):
    while not any(isinstance(event, kind) for event in engine.step()):
        pass


def user(text):
    return Message("user", text)


LONG = user("A question that is longer than the window of this model, so that going back is hard.")
WHAT = user("What? " * 20)


def assistant(text, thinking=""):
    return Message("assistant", text, thinking)


def computed(end):
    return end.usage.prompt_tokens - end.usage.cached_tokens


def answer_after(engine):
    """Return the end of every prompt; control tokens are one token each, so the text behind the last one."""
    one, other = (engine.template.render((user(text),)) for text in "ab")
    n = next(n for n in range(1, len(one)) if one[-n:] != other[-n:]) - 1
    return re.split(r"<s>|<\|im_(?:start|end)\|>", one[-n:])[-1][-14:]


@pytest.mark.parametrize("settle", [False, True])
@pytest.mark.parametrize(
    ("template", "system"),
    [
        (path, system)
        for path in TEMPLATES
        for system in (False, True)
        if path.stem != "refuses_system" or not system
    ],
    ids=lambda value: getattr(value, "stem", "system" if value else "alone"),
)
def test_a_turn_computes_no_more_than_what_is_new(make, template, system, settle):
    source, cache_policy = template.read_text(), CachePolicy(settle=settle)
    engine = make(source, cache_policy)
    marks, reply = engine.template.marks, "An answer that goes on for a while."
    begins = answer_after(engine)
    if marks is not None:
        opens = "" if begins.rstrip().endswith(marks.open) else marks.open
        reply = f"{opens}Let me see. It is so.{marks.close}{reply}"
    engine = make(source, cache_policy, reply=reply, answer_after=begins)
    said, prewarmed_at = [Message("system", "Be brief.")] * system, 0
    for turn in range(4):
        said.append(user(f"Question number {turn} is a long one, as questions go."))
        prompt = engine.prompts.of(ChatRequest(id="x", messages=tuple(said)), 4096).tokens
        known = max(common_prefix(slot.tokens, prompt) for slot in engine.scheduler.cache.slots)
        text, end, events = ask(engine, f"t{turn}", *said)
        assert computed(end) == max(1, len(prompt) - known)
        thinking = "".join(e.text for e in events if isinstance(e, Delta) and e.thinking)
        assert bool(thinking) == (marks is not None)
        said.append(assistant(text, thinking))
        assert any(isinstance(event, Prewarmed) for event in events) == settle
        assert computed(end) <= len(prompt) - prewarmed_at + 1
        prewarmed_at = max((event.tokens for event in events if isinstance(event, Prewarmed)), default=0)


@pytest.mark.parametrize("kind", KINDS)
def test_what_has_prewarmed_is_all_there_on_every_kind(make, kind):
    engine = make(STRIPS, reply="<think>Hm, let me think about it.</think>An answer.", **KINDS[kind])
    text, _, events = ask(engine, "a", LONG)
    (prewarmed,) = [event for event in events if isinstance(event, Prewarmed)]
    _, end, _ = ask(engine, "b", LONG, assistant(text, "Hm, let me think about it."), user("And?"))
    assert end.usage.cached_tokens == prewarmed.tokens


@pytest.mark.parametrize("kind", KINDS)
def test_the_same_question_again_computes_the_generation_prompt_at_most(make, kind):
    engine = make(**KINDS[kind])
    ask(engine, "a", LONG)
    _, end, _ = ask(engine, "b", LONG)
    assert computed(end) <= (1 if kind == "dense" else len("<|im_start|>assistant\n"))


def test_an_edited_question_reuses_everything_before_the_edit(make):
    engine = make()
    first = [user("The first question, as it was asked " * 3), assistant("Hello.")]
    ask(engine, "a", first[0])
    ask(engine, "b", *first, user("The second question"))
    _, end, _ = ask(engine, "c", *first, user("The second question, edited"))
    assert computed(end) <= len(", edited<|im_end|>") + len("\n<|im_start|>assistant\n")


def test_a_new_turn_interrupts_prewarming_and_goes_on_from_there(make):
    long = "An answer of many words, which are stripped of their thoughts. " * 6
    engine = make(STRIPS, reply=f"<think>Hm.</think>{long}", n_batch=32)
    question = user("What?")
    engine.submit(ChatRequest(id="a", messages=(question,), chat=CHAT))
    until(engine, Finished)
    engine.step()
    while engine.is_waiting:  # what comes next is prepared
        engine.step()
    for _ in range(3):
        assert not engine.is_idle
        engine.step()
    engine.submit(ChatRequest(id="b", messages=(question, assistant(long, "Hm."), user("More")), chat=CHAT))
    check(engine)
    events = idle(engine)
    (end,) = [event for event in events if isinstance(event, Finished)]
    assert end.usage.cached_tokens >= 64, "two chunks had prewarmed"
    assert [event.request_id for event in events if isinstance(event, Prewarmed)] == ["b"]


def test_prewarming_waits_for_everybody_else(make):
    engine = make(STRIPS, reply="<think>Hm.</think>" + "An answer of many words. " * 8, n_batch=32)
    engine.submit(ChatRequest(id="a", messages=(user("What?"),), chat=CHAT))
    until(engine, Finished)
    engine.submit(ChatRequest(id="b", messages=(user("Another chat"),), chat="beef0000"))
    order = [type(e).__name__ for e in idle(engine) if isinstance(e, Finished | Prewarmed)]
    assert order == ["Finished", "Prewarmed", "Prewarmed"]


def test_nothing_prewarms_where_it_is_switched_off_or_on_battery(make, monkeypatch):
    def prewarms(cache_policy, plugged):
        monkeypatch.setattr("edgechat.device.load._may_have_battery", lambda: True)
        monkeypatch.setattr(
            "psutil.sensors_battery", lambda: SimpleNamespace(power_plugged=plugged), raising=False
        )
        _, _, events = ask(make(cache_policy=cache_policy), "a", user("What?"))
        return any(isinstance(event, Prewarmed) for event in events)

    assert prewarms(CachePolicy(), plugged=False)
    assert not prewarms(KEEPS, plugged=True)
    assert not prewarms(CachePolicy(settle_on_battery=False), plugged=False)
    assert prewarms(CachePolicy(settle_on_battery=False), plugged=True)


def test_the_background_is_computed_while_nobody_waits(make):
    engine = make(reply="a long reply " * 10, n_seq_max=1)
    engine.submit(ChatRequest(id="title", messages=(user("Name it"),), priority="background"))
    for _ in range(20):
        engine.step()
    engine.submit(ChatRequest(id="now", messages=(user("Now!"),)))
    events = idle(engine)
    assert [event.request_id for event in events if isinstance(event, Finished)] == ["now", "title"]
    behind = [event for event in events if isinstance(event, Delta) and event.request_id == "title"]
    assert events.index(behind[0]) > next(at for at, e in enumerate(events) if isinstance(e, Finished))


def test_who_begins_alike_waits_for_the_other_to_compute_it(make):
    engine = make(n_batch=32)
    for name in "abc":
        engine.submit(ChatRequest(id=name, messages=(Message("system", "Rules. " * 60), user(name))))
    events = idle(engine)
    ends = [event for event in events if isinstance(event, Finished)]
    assert sum(computed(end) for end in ends) < 1.3 * ends[0].usage.prompt_tokens
    assert any(isinstance(event, Prefill) and event.request_id == "a" for event in events)


# The window.


def talk(engine, turns, size=60, **options):
    said, ends = [Message("system", "Be brief.")], []
    for turn in range(turns):
        said.append(user(f"{turn} " + "x" * size))
        text, end, events = ask(engine, f"t{turn}", *said, **options)
        said.append(assistant(text))
        ends.append((end, events))
    return ends


@pytest.mark.parametrize("kind", KINDS)
def test_a_conversation_never_ends_for_lack_of_context(make, kind):
    engine = make(context=600, **KINDS[kind])
    ends = talk(engine, 30)
    dropped = [end.usage.dropped_turns for end, _ in ends]
    assert dropped == sorted(dropped)
    assert dropped[-1] > 20
    assert all(end.usage.prompt_tokens < 600 and end.reason == "stop" for end, _ in ends)
    for end, events in ends:
        told = [event.turns for event in events if isinstance(event, Dropped)]
        assert told == [end.usage.dropped_turns] * bool(end.usage.dropped_turns)
    # What a turn computes does not grow: the cuts were prewarmed while nobody waited.
    new = [computed(end) for end, _ in ends[2:]]
    assert max(new) <= min(new) + 8


def test_the_system_prompt_and_the_first_turn_stay(make):
    engine = make(None, context=600)
    talk(engine, 30)
    (held,) = {
        bytes(token for token in slot.tokens if token < 256)[:80]
        for slot in engine.scheduler.cache.slots
        if slot.length > 200
    }
    assert held.startswith(b"system\nBe brief.\nuser\n0 xxx")


def test_who_wants_no_window_gets_an_error_with_both_numbers(make):
    engine = make(None, context=300)
    with pytest.raises(PromptTooLong, match=r"has \d+ tokens, but the context is 300"):
        talk(engine, 10, overflow="error")


def test_a_reply_that_fills_the_context_goes_on(make):
    reply = "It goes on and on. " * 20
    engine = make(None, context=700, rules=[{"when": "long", "reply": reply}])
    said = [message for turn in range(5) for message in (user(f"{turn} {'y' * 40}"), assistant("Hello."))]
    text, end, events = ask(engine, "a", *said, user("long"))
    assert (text, end.reason) == (reply, "stop")
    assert [event.turns for event in events if isinstance(event, Dropped)] == [end.usage.dropped_turns]
    assert end.usage.prompt_tokens + end.usage.completion_tokens < 700
    text, end, _ = ask(engine, "b", *said, user("long"), overflow="error")
    assert end.reason == "context"
    assert reply.startswith(text)


def test_one_who_waits_behind_a_cut_gets_moved_cells_which_nobody_else_gets(make, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.scheduler.SHIFT_SECONDS", 0.0)
    engine = make(None, KEEPS, context=600, shifts=True)
    ends = talk(engine, 30, size=70)
    shifted = [at for at, (end, _) in enumerate(ends) if end.usage.shifted_tokens]
    assert shifted
    for at in shifted:
        end = ends[at][0]
        assert end.usage.shifted_tokens < end.usage.cached_tokens
        if at + 1 < len(ends) and not ends[at + 1][0].usage.shifted_tokens:
            # The next turn begins with what is exact.
            assert (
                ends[at + 1][0].usage.cached_tokens <= end.usage.cached_tokens - end.usage.shifted_tokens + 8
            )
    assert all(
        not end.usage.shifted_tokens for end, _ in talk(make(None, context=600, shifts=True), 30, size=70)
    )


def test_a_reply_says_how_much_of_it_is_approximate_where_the_cut_comes_in_its_middle(make, monkeypatch):
    monkeypatch.setattr("edgechat.engine.scheduling.scheduler.SHIFT_SECONDS", 0.0)
    reply = "It goes on and on. " * 16
    engine = make(None, KEEPS, context=500, shifts=True, reply=reply)
    said = [
        message for turn in range(5) for message in (user(f"{turn * 1234567} said"), assistant("Hm, yes."))
    ]
    _, end, events = ask(engine, "a", *said, user("And?"))
    assert any(isinstance(event, Dropped) for event in events)
    assert 0 < end.usage.shifted_tokens <= end.usage.cached_tokens <= end.usage.prompt_tokens


# The disk.


def leave(engine):
    engine.persist(CHAT)
    assert Persisted(CHAT) in idle(engine)


def left(engine, *messages):
    """Let a chat be answered and left; return the engine."""
    ask(engine, "a", *messages)
    leave(engine)
    return engine


@pytest.mark.quick
@pytest.mark.parametrize("kind", KINDS)
def test_a_chat_that_was_left_goes_on_after_a_restart(make, kind):
    left(make(states=b"x", **KINDS[kind]), LONG)
    said = (LONG, assistant("Hello."), user("And?"))
    _, end, _ = ask(make(states=b"x", **KINDS[kind]), "b", *said)
    assert computed(end) <= len("And?<|im_end|>\n<|im_start|>assistant\n") + 2
    for other in (make(states=b"another model", **KINDS[kind]), make(**KINDS[kind])):
        assert ask(other, "c", *said)[1].usage.cached_tokens == 0


def test_a_chat_left_before_it_prewarmed_keeps_what_is_common(make):
    question, reply = user("What? " * 10), "<think>Hm.</think>An answer."
    engine = make(STRIPS, KEEPS, states=b"x", reply=reply)
    ask(engine, "a", question)
    prompt = engine.prompts.of(ChatRequest(id="x", messages=(question,)), 4096)
    leave(engine)
    _, end, _ = ask(
        make(STRIPS, states=b"x", reply=reply), "b", question, assistant("An answer.", "Hm."), user("And?")
    )
    assert end.usage.cached_tokens >= prompt.boundaries[-1]


@pytest.mark.parametrize("chat", ["beef0000", None])
def test_another_chat_continues_from_what_was_left(make, chat):
    common = "What? " * 20
    left(make(states=b"x"), user(common + "Is this?"))
    _, end, _ = ask(make(states=b"x"), "b", user(common + "Was that?"), chat=chat)
    assert end.usage.cached_tokens >= len(common)


@pytest.mark.parametrize("kind", ["windowed", "hybrid"])
def test_another_chat_goes_back_to_the_system_prompt_of_a_state_that_cannot_be_cut(make, kind):
    rules = Message("system", "You are brief. " * 100)
    left(make(states=b"x", **KINDS[kind]), rules, WHAT)
    again = make(states=b"x", **KINDS[kind])
    text, end, _ = ask(again, "b", rules, user("Why? " * 20), chat="beef0000")
    assert text == "Hello."
    assert end.usage.cached_tokens >= 0.95 * len(rules.content)


def test_a_state_that_cannot_be_cut_is_of_no_use_to_what_only_begins_alike(make):
    left(make(states=b"x", cuts=False), WHAT)
    text, end, _ = ask(make(states=b"x", cuts=False), "b", user("What? " * 19), chat="beef0000")
    assert (text, end.usage.cached_tokens) == ("Hello.", 0)


def test_a_state_is_not_read_for_a_small_part_where_computing_is_faster(make):
    common = "What? " * 20
    left(make(states=b"x"), user(common + "Is this? " * 40))
    for seconds, least in (1e-12, 0), (0.001, len(common)):
        again = make(states=b"x")
        again.scheduler.cost.expect(seconds)
        _, end, _ = ask(again, "b", user(common + "Was that?"), chat="beef0000")
        assert (end.usage.cached_tokens > 0) == (least > 0)
        assert end.usage.cached_tokens >= least


@pytest.mark.parametrize("chat", [CHAT, "beef0000"])
def test_what_is_forgotten_while_another_chat_reads_it_does_not_come_back(make, monkeypatch, chat):
    left(make(states=b"x"), WHAT)
    engine = make(states=b"x")
    engine.submit(ChatRequest(id="b", chat=chat, messages=(WHAT,)))
    assert engine.is_waiting
    engine.forget(CHAT)
    (end,) = [event for event in idle(engine) if isinstance(event, Finished)]
    assert end.usage.cached_tokens == 0


def test_a_damaged_state_is_as_if_there_were_none(make, caplog):
    left(make(states=b"x"), WHAT)
    whole = path_of(CHAT).read_bytes()
    path_of(CHAT).write_bytes(whole[:-9] + b"?" + whole[-8:])
    text, end, _ = ask(make(states=b"x"), "b", WHAT)
    assert (text, end.usage.cached_tokens) == ("Hello.", 0)
    assert "could not be used" in caplog.text


@pytest.mark.parametrize("left", [False, True])
@pytest.mark.parametrize("settle", [False, True])
def test_nothing_is_kept_of_a_chat_that_is_deleted(make, settle, left):
    engine = make(cache_policy=CachePolicy(settle=settle), states=b"x")
    ask(engine, "a", WHAT)
    if left:
        leave(engine)
        assert path_of(CHAT).exists()
    engine.forget(CHAT)
    check(engine)
    assert not path_of(CHAT).exists()
    assert not engine.scheduler.cache.cells_used
    leave(engine)
    assert not path_of(CHAT).exists()


def test_a_chat_is_not_saved_with_what_another_one_holds(make):
    engine = make(None, KEEPS, states=b"x", n_seq_max=1)
    rules = Message("system", "Rules. " * 30)
    ask(engine, "a", rules, user("aaaa"))
    ask(engine, "b", rules, user("bbbb " * 20), chat="beef0000")
    (slot,) = engine.scheduler.cache.slots
    length = slot.length
    leave(engine)
    assert slot.length == length, "the other chat was cut to what both begin with"
    assert not path_of(CHAT).exists()


def test_no_chat_gives_way_to_a_state_that_has_no_room(make):
    small = {"context": 400, "rules": [{"when": "long", "reply": "It goes on and on. " * 12}]}
    left(make(None, states=b"x", **small), user("What? " * 45))
    engine = make(None, KEEPS, states=b"x", **small)
    ask(engine, "b", user("Another chat"), chat="beef0000")
    engine.submit(ChatRequest(id="c", messages=(user("long " * 30),)))
    until(engine, Delta)
    engine.submit(ChatRequest(id="d", chat=CHAT, messages=(user("What? " * 45),)))
    while engine.n_waiting:
        engine.step()
    assert engine.scheduler.cache.stats.evictions == 0
    idle(engine)


@pytest.mark.parametrize("left", [False, True])
def test_nothing_is_kept_of_a_chat_that_is_deleted_while_it_is_answered(make, left):
    engine = make(states=b"x")
    if left:  # and read when the next turn comes
        ask(engine, "a", WHAT)
        leave(engine)
        engine = make(states=b"x")
    engine.submit(ChatRequest(id="b", chat=CHAT, messages=(WHAT,)))
    assert engine.is_waiting == left
    engine.forget(CHAT)
    (end,) = [event for event in idle(engine) if isinstance(event, Finished)]
    assert end.usage.cached_tokens == 0
    engine.persist(None)
    idle(engine)
    assert not path_of(CHAT).exists()


def test_no_cell_is_kept_of_a_chat_that_is_deleted_while_it_is_answered(make):
    engine = make()
    engine.submit(ChatRequest(id="a", chat=CHAT, messages=(user("What?"),)))
    until(engine, Delta)
    engine.forget(CHAT)
    idle(engine)
    assert not engine.scheduler.cache.cells_used
    _, end, _ = ask(engine, "b", user("What? And why?"))
    assert end.usage.cached_tokens == 0
    assert engine.scheduler.cache.cells_used


def test_nothing_is_looked_for_while_a_state_is_being_read(make, monkeypatch):
    """A chat that is to be prewarmed waits for the disk, too."""
    engine = left(make(states=b"x", n_seq_max=1), WHAT)
    engine.submit(ChatRequest(id="b", chat="beef0000", messages=(user("Another chat"),)))
    until(engine, Finished)
    monkeypatch.setattr(KVStateStore, "load", lambda self, chat, *, mark: Future())
    engine.submit(ChatRequest(id="c", chat=CHAT, messages=(WHAT,)))
    assert engine.step() == []
    assert engine.is_waiting
    engine.cancel("c")
    assert not engine.is_waiting
    assert any(isinstance(event, Prewarmed) for event in idle(engine))


@pytest.mark.parametrize("kind", KINDS)
def test_of_a_deleted_chat_no_cell_is_held_and_others_keep_theirs(make, kind):
    engine = make(**KINDS[kind])
    said = []
    for turn in range(4):
        said.append(user(f"Question {turn}, which is longer than the window of the model."))
        text, _, _ = ask(engine, f"t{turn}", *said)
        said.append(assistant(text))
    other = user("Something else entirely, in another conversation.")
    ask(engine, "o", other, chat="beef0000")
    held = sum(len(slot.tokens) for slot in engine.scheduler.cache.slots if slot.chat == "beef0000")
    engine.forget(CHAT)
    check(engine)
    assert 0 < engine.scheduler.cache.cells_used <= held


def test_a_request_whose_state_is_being_read_can_be_cancelled(make, monkeypatch):
    left(make(states=b"x"), WHAT)
    engine = make(states=b"x")
    engine.submit(ChatRequest(id="b", messages=(WHAT,), chat=CHAT))
    assert engine.is_waiting
    assert engine.n_running == 1
    (end,) = engine.cancel("b")
    assert end.reason == "cancelled"
    assert engine.is_idle
    assert engine.cancel("b") == []


def test_who_has_no_chat_leaves_nothing(make):
    engine = make(states=b"x")
    _, _, events = ask(engine, "a", WHAT, chat=None)
    assert not any(isinstance(event, Prewarmed) for event in events)
    engine.persist(None)
    assert Persisted(None) in idle(engine)
    assert not path_of(CHAT).parent.exists()


def test_with_plain_attention_a_chat_waits_on_disk_while_another_is_computed(make):
    """Its cells would cost the other time; it comes back from disk whole."""
    engine = make(states=b"x")
    engine.scheduler.cache.rent = Rent(decode=0.02, prefill=0.02, token=1.0)
    text, _, _ = ask(engine, "a", LONG)
    idle(engine)
    ask(engine, "b", WHAT, chat="decade00")
    assert engine.scheduler.cache.stats.evictions == 1
    assert not any(slot.chat == CHAT for slot in engine.scheduler.cache.slots)
    _, end, _ = ask(engine, "c", LONG, assistant(text), user("And?"))
    assert computed(end) <= len("And?<|im_end|>") + len("\n<|im_start|>assistant\n")


def test_a_fault_while_a_state_is_written_ends_nothing(make, monkeypatch):
    def fails(*_):
        raise RuntimeError

    monkeypatch.setattr(KVStateStore, "_save", fails)
    engine = make(states=b"x")
    text, _, _ = ask(engine, "a", LONG)
    _, end, _ = ask(engine, "b", LONG, assistant(text), user("And?"))
    assert end.reason == "stop"
    assert not any(slot.saved for slot in engine.scheduler.cache.slots)
