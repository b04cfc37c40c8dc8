"""Requests with tools: through the engine over scripted replies, over a real model, and through a worker."""

import itertools
import json
import time

import msgspec
import pytest

from edgechat.base.errors import BadRequest, PromptTooLong, SchemaError
from edgechat.engine.engine import EngineCore
from edgechat.engine.prompt.template import ChatTemplate, template_process
from edgechat.engine.types import (
    CachePolicy,
    ChatRequest,
    Delta,
    Finished,
    Message,
    Prewarmed,
    Sampling,
    Tool,
    ToolCall,
    ToolCallArguments,
    ToolCallBegun,
)
from edgechat.engine.worker.supervisor import EngineSupervisor
from tests.engine.families import NOW, SOURCES, TOOLS, joined
from tests.engine.runtimes import SharedTemplate, load, plan
from tests.engine.tool_calls.test_tool_calls import WRITTEN
from tests.kit import tiny
from tests.scripted.backend import ScriptedBackend

pytestmark = pytest.mark.slow

# How each template asks for the answer to the question below.
ANSWERS = {
    "generic": "<|im_start|>assistant\n",
    "hermes": "<|im_start|>assistant\n",
    "xml": "<|im_start|>assistant\n<think>\n",
    "llama": "<|start_header_id|>assistant<|end_header_id|>\n\n",
    "mistral": "Weather?[/INST]",
    "args": "Weather?[/INST]",
    "gemma": "<|turn>model\n",
    "harmony": "Weather?<|end|><|start|>assistant",
}
CONTROL = {
    "mistral": ("[TOOL_CALLS]",),
    "args": ("[TOOL_CALLS]", "[ARGS]", "[CALL_ID]"),
    "gemma": ("<|channel>", "<channel|>", "<|tool_call>", "<tool_call|>", '<|"|>', "<|tool_response>"),
    "harmony": ("<|start|>", "<|end|>", "<|channel|>", "<|message|>", "<|constrain|>", "<|call|>"),
    "llama": ("<|python_tag|>", "<|eom_id|>"),
}
GREEDY = Sampling(temperature=0)


@pytest.fixture(scope="module")
def templates():
    process = template_process()
    made = {
        name: ChatTemplate(source, bos="<s>", eos="</s>", process=process) for name, source in SOURCES.items()
    }
    yield {name: SharedTemplate(template) for name, template in made.items()}
    process.close()


@pytest.fixture
def make(scripted, templates):
    def engine(name="hermes", *, cache_policy=None, context=8192, **script):
        options = {"reply": WRITTEN[name][0], "answer_after": ANSWERS[name]} | script
        backend = ScriptedBackend(scripted(context=context, **options))
        return EngineCore(backend, templates[name], cache_policy=cache_policy or CachePolicy(settle=False))

    return engine


def asking(*messages, **options):
    options = {"tools": TOOLS, "sampling": GREEDY, "overflow": "error"} | options
    return ChatRequest(id="x", messages=messages or (Message("user", "Weather?"),), **options)


def run(engine, request):
    events = engine.submit(request)
    until = time.monotonic() + 60
    while not engine.is_idle:
        assert time.monotonic() < until, "the engine does not come to an end"
        time.sleep(0.002 * engine.is_waiting)
        events += engine.step()
    return events


def told(events):
    """Return answer, thinking, calls and why the reply ended."""
    deltas = [event for event in events if isinstance(event, Delta)]
    calls = joined(events)
    (end,) = [event for event in events if isinstance(event, Finished)]
    answer = "".join(delta.text for delta in deltas if not delta.thinking)
    thinking = "".join(delta.text for delta in deltas if delta.thinking)
    return answer, thinking, [(call.name, json.loads(call.arguments)) for call in calls], end.reason


@pytest.mark.parametrize(("name", "control"), [*((name, ()) for name in SOURCES), *CONTROL.items()])
def test_calls_come_as_events_of_their_own(make, name, control):
    """Also where their marks are control tokens."""
    _, *expected = WRITTEN[name]
    assert told(run(make(name, control=control), asking())) == (*expected, "tools")


GROWING = ("generic", "hermes", "llama", "args", "harmony")
"""Of these a call is told before it is complete."""


@pytest.mark.parametrize("name", SOURCES)
def test_a_call_comes_piece_by_piece_where_it_can(make, name):
    events = run(make(name), asking())
    first = next(n for n, event in enumerate(events) if isinstance(event, ToolCallBegun))
    said = [event for event in events[:first] if isinstance(event, Delta)]
    assert "".join(event.text for event in said if not event.thinking) == WRITTEN[name][1]
    pieces = list(
        itertools.takewhile(lambda event: isinstance(event, ToolCallArguments), events[first + 1 :])
    )
    assert json.loads("".join(piece.text for piece in pieces)) == {"city": "Bonn", "days": 3}
    if name in GROWING:
        assert len(pieces) > 10
        assert pieces[0].tokens <= events[first].tokens + 1 < pieces[-1].tokens - 10


@pytest.mark.parametrize("name", ["hermes", "llama"])
def test_without_tools_a_reply_is_text_as_it_was(make, name):
    text, *_ = WRITTEN[name]
    answer, _, calls, reason = told(run(make(name), asking(tools=())))
    assert (answer, calls, reason) == (text.split("</think>\n\n")[-1], [], "stop")


def test_a_reply_that_calls_nothing_is_as_it_is_without_tools(make):
    reply = "It is <b>sunny</b>, {warm} and [dry]. \n\n<tool"
    with_tools, without = (
        told(run(make("hermes", reply=reply), asking(tools=tools))) for tools in (TOOLS, ())
    )
    assert with_tools == without == (reply, "", [], "stop")


CALL = '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>'
# As a call is written up to a place in its arguments, and what stands then.
CUT = dict.fromkeys(SOURCES, ('"city": "Bo', '{"city": "Bo')) | {
    "xml": ("<parameter=days>\n", '{"city": "Bonn"'),
    "gemma": ("city:", ""),
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_call_cut_short_by_max_tokens_stands_as_far_as_it_goes(make, name):
    text, answer, *_ = WRITTEN[name]
    end, arguments = CUT[name]
    cut = text.index(end) + len(end)
    request = asking(max_tokens=len(text[:cut].encode()))
    events = run(make(name), request)
    (call,) = joined(events)
    assert (call.name, call.arguments) == ("get_weather", arguments)
    assert events[-1].reason == "length"
    assert "".join(one.text for one in events if isinstance(one, Delta) and not one.thinking) == answer


@pytest.mark.parametrize("before", ["", "One moment.", CALL + "\n"])
@pytest.mark.parametrize("written", [12, 25])
def test_a_call_cut_short_before_it_has_a_name_is_no_text(make, before, written):
    """Nor is it beside a call that is complete."""
    events = run(make("hermes", reply=before + CALL), asking(max_tokens=len(before) + written))
    answer, _, calls, reason = told(events)
    assert (answer, reason) == (before.replace(CALL + "\n", ""), "length")
    assert [name for name, *_ in calls] == ["now"] * before.count(CALL)


def test_json_cut_short_is_text(make):
    reply = '{"name": "no'
    answer, _, calls, reason = told(run(make("hermes", reply=reply + 'body"}'), asking(max_tokens=12)))
    assert (answer, calls, reason) == (reply, [], "length")


@pytest.mark.parametrize("name", SOURCES)
def test_a_reply_ends_with_as_many_calls_as_are_wanted(make, name):
    answer, thinking, calls = WRITTEN[name][1:]
    events = run(make(name, control=CONTROL.get(name, ())), asking(most_calls=1))
    assert told(events) == (answer, thinking, calls[:1], "tools")
    last = [event for event in events if isinstance(event, ToolCallBegun | ToolCallArguments)][-1]
    assert last.tokens <= events[-1].usage.completion_tokens <= last.tokens + 1


def test_the_prefix_of_a_round_is_not_computed_again(make):
    engine = make("hermes")
    events = run(engine, asking())
    calls = tuple(joined(events))
    first = next(event for event in events if isinstance(event, Finished)).usage
    reply = Message("assistant", "Let me see.", "hm", calls)
    results = [Message("tool", "fine", call_id=call.id) for call in calls]
    usage = next(
        e
        for e in run(engine, asking(Message("user", "Weather?"), reply, *results))
        if isinstance(e, Finished)
    ).usage
    assert usage.cached_tokens == first.prompt_tokens + first.completion_tokens


def test_after_a_call_a_chat_settles_on_its_result(make):
    engine = make("hermes", cache_policy=CachePolicy(settle_on_battery=True))
    events = run(engine, asking(chat="c", overflow="window"))
    (settled,) = [event for event in events if isinstance(event, Prewarmed)]
    calls = tuple(joined(events))
    chat = [Message("user", "Weather?"), Message("assistant", "Let me see.", "\nhm\n", calls)]
    chat.append(Message("tool", "It is fine.", call_id=calls[0].id))
    again = run(engine, asking(*chat, chat="c", overflow="window"))
    usage = next(event for event in again if isinstance(event, Finished)).usage
    assert usage.cached_tokens == settled.tokens > 500


def test_chances_are_told_of_what_is_said_and_not_of_calls(make):
    engine = make("hermes", reply='Hi. <tool_call>{"name": "now"}</tool_call>\nBye.')
    deltas = [event for event in run(engine, asking(logprobs=1)) if isinstance(event, Delta)]
    assert "".join(delta.text for delta in deltas) == "Hi.\nBye."
    assert b"".join(chance.token for delta in deltas for chance in delta.chances) == b"Hi.\nBye."


def test_a_call_in_a_fence_is_seen_and_its_tokens_have_no_chances(make):
    reply = 'Hi.\n```json\n{\n  "name": "now",\n  "arguments": {}\n}\n```\nBye.'
    events = run(make("hermes", reply=reply), asking(logprobs=1))
    assert told(events) == ("Hi.\nBye.", "", [("now", {})], "tools")
    deltas = [event for event in events if isinstance(event, Delta)]
    assert b"".join(chance.token for delta in deltas for chance in delta.chances) == b"Hi.\nBye."


@pytest.mark.parametrize("strict", [True, False])
def test_a_call_of_the_models_own_choice_follows_its_schema_where_that_is_strict(make, strict):
    engine = make(
        "hermes", reply='I look.\n<tool_call>\n{"name": "now", "arguments": {"x": 1}}\n</tool_call>'
    )
    tools = (Tool("now", strict=strict),)
    answer, _, calls, reason = told(run(engine, asking(tools=tools)))
    assert (answer, reason) == ("I look.", "tools")
    assert calls[0] == ("now", {} if strict else {"x": 1})  # behind it the script is out of step


@pytest.mark.parametrize("reply", ["It rains {here}, <b>now</b>.", "<think>\nhm\n</think>\n\nRain."])
def test_a_strict_tool_that_is_not_called_changes_nothing(make, reply):
    strict, without = (
        told(run(make("hermes", reply=reply), asking(tools=tools)))
        for tools in ((Tool("now", strict=True),), ())
    )
    assert strict == without


# A conversation with calls that outgrows its context.


def test_calls_and_results_leave_with_their_turn(make):
    engine = make("hermes", reply="ok", context=2000)
    chat = [Message("system", "Be brief.")]
    for n in range(8):
        call = ToolCall(f"call_{n}", "now", '{"why": "' + "x" * 150 + '"}')
        chat += [Message("user", f"question {n}"), Message("assistant", "", calls=(call,))]
        chat += [Message("tool", "y" * 150, call_id=call.id), Message("assistant", f"answer {n}")]
    chat.append(Message("user", "and now?"))
    prompts = engine.prompts
    prompt = prompts.of(asking(*chat, overflow="window"), 2000)
    text = bytes(token for token in prompt.tokens if token < 256).decode()
    assert 0 < prompt.dropped < 8
    assert len(prompt.tokens) <= 2000
    left = {n for n in range(8) if f"question {n}" in text}
    assert left == {0, *range(prompt.dropped + 1, 8)} or left == set(range(prompt.dropped, 8))
    assert all((f"answer {n}" in text) == (n in left) for n in range(8))
    assert text.count("<tool_response>") == len(left) == text.count('"why"')
    with pytest.raises(PromptTooLong):
        prompts.of(asking(*chat), 2000)


def test_what_tools_take_of_the_context_is_counted(make):
    prompts = make("hermes").prompts
    chat = [Message("user", "Weather?")]
    sizes = [len(prompts.of(asking(*chat, tools=tools), 8192).tokens) for tools in ((), TOOLS)]
    assert prompts._sizes.tools(TOOLS) == sizes[1] - sizes[0] > 500


# Calls that have to be made.


@pytest.fixture(scope="module")
def real():
    """Return a function that opens a random model with a family's template: it would never call by itself."""
    made = []

    def engine(name):
        backend = load(plan(tiny("dense", chat_template=SOURCES[name]), context=4096))
        made.append(EngineCore(backend, ChatTemplate(SOURCES[name], bos="", eos="<|im_end|>")))
        return made[-1]

    yield engine
    for one in made:
        one.close()


# Without texts, which a random model would never end.
COUNT = Tool(
    "count",
    "Counts.",
    json.dumps(
        {
            "type": "object",
            "properties": {
                "n": {"type": "integer", "minimum": 0, "maximum": 99},
                "unit": {"type": "string", "enum": ["C", "F"]},
                "yes": {"type": "boolean"},
            },
            "required": ["n", "unit", "yes"],
        }
    ),
)


def forced(seed=0, unwanted="", **options):
    """Return a request for a call. It keeps a random model from thinking, and from endless white space."""
    bias = tuple((ord(sign), -50.0) for sign in f" \n\t\rhafs{unwanted}")
    sampling = Sampling(seed=seed, temperature=2.0, top_k=0, bias=bias)
    options = {"tools": (COUNT, NOW), "tool_choice": "required", "sampling": sampling} | options
    return asking(**options, max_tokens=600)


@pytest.mark.parametrize("name", SOURCES)
def test_a_call_is_made_where_one_is_required(real, name):
    engine = real(name)
    for seed in range(3):
        think = False if name == "xml" else None
        request = forced(seed, "c" if name == "gemma" else "", tool="count", think=think)
        answer, _, [(called, arguments)], reason = told(run(engine, request))
        assert (answer, called, reason) == ("", "count", "tools")
        assert {key: type(value) for key, value in arguments.items()} == {"n": int, "unit": str, "yes": bool}
        assert arguments["unit"] in ("C", "F")


def test_a_call_that_had_to_be_made_and_is_cut_short_is_no_answer(real):
    request = msgspec.structs.replace(forced(tool="count"), max_tokens=12)
    events = run(real("hermes"), request)
    assert not any(isinstance(event, Delta) for event in events)
    assert events[-1].reason == "length"


def test_any_of_the_tools_will_do_where_none_is_named(real):
    for unwanted, name in (("n", "count"), ("c", "now")):
        *_, calls, reason = told(run(real("llama"), forced(unwanted=unwanted)))
        assert ([called for called, _ in calls], reason) == ([name], "tools")


def test_an_answer_follows_its_schema_where_nothing_has_to_be_called(real):
    request = forced(tools=(NOW,), tool_choice="auto", schema='{"const": "nothing to call"}')
    answer, _, calls, reason = told(run(real("mistral"), request))
    assert (answer, calls, reason) in [('"nothing to call"', [], "stop"), ("", calls, "tools")]


@pytest.mark.parametrize(
    ("options", "error"),
    [
        ({"tools": (Tool("a b"),)}, SchemaError),
        ({"tools": (), "tool_choice": "required"}, SchemaError),
        ({"text": "Once"}, BadRequest),
    ],
)
def test_what_cannot_be_called_is_refused_before_anything_is_computed(make, options, error):
    engine = make("hermes")
    with pytest.raises(error):
        engine.submit(asking(**options))
    assert engine.is_idle


# Through a worker.


async def test_a_worker_tells_of_calls(scripted, running):
    text, *expected = WRITTEN["hermes"]
    engine = running(EngineSupervisor(scripted(reply=text, template=SOURCES["hermes"])))
    events = [event async for event in engine.stream(asking())]
    assert told(events) == (*expected, "tools")
    with pytest.raises(SchemaError, match="same name"):
        _ = [event async for event in engine.stream(asking(tools=(NOW, NOW)))]


async def test_a_worker_makes_a_call_that_is_required(running):
    engine = running(EngineSupervisor(plan(tiny("dense", chat_template=SOURCES["mistral"]))))
    request = forced(tool="count")
    *_, calls, reason = told([event async for event in engine.stream(request)])
    assert ([name for name, _ in calls], reason) == (["count"], "tools")


# An answer that has begun.


def test_an_answer_that_has_begun_goes_on(make):
    chat = (Message("user", "Count."), Message("assistant", "one,"))
    engine = make("xml", reply=" two <think>", answer_after="</think>\n\none,")
    assert told(run(engine, asking(*chat, tools=()))) == (" two <think>", "", [], "stop")


@pytest.mark.parametrize("options", [{"schema": "{}"}, {"tools": (NOW,), "tool_choice": "required"}])
def test_an_answer_that_has_begun_is_held_to_nothing(make, options):
    chat = (Message("user", "Count."), Message("assistant", "one,"))
    with pytest.raises(BadRequest, match="already begun"):
        make("hermes").submit(asking(*chat, **({"tools": ()} | options)))
