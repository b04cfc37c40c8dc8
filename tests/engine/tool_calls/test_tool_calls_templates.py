"""Tools, calls and results in prompts: rendered as each family's template has them."""

import contextlib
import json

import pytest

from edgechat.base.errors import SchemaError, TemplateError
from edgechat.engine.prompt.template import CHATML, ChatTemplate
from edgechat.engine.prompt.window import turns_of
from edgechat.engine.types import Message, Tool, ToolCall
from tests.engine.families import SOURCES, TOOLS
from tests.engine.prompt.test_prompts import SOURCES as PLAIN
from tests.engine.prompt.test_prompts import template

WEATHER = ToolCall("call_a", "get_weather", '{"city": "Bonn", "days": 3}')
NOW = ToolCall("call_b", "now", "{}")
ASKED = (Message("system", "Be brief."), Message("user", "Weather?"))
CALLED = (
    *ASKED,
    Message("assistant", "Let me see.", "hm", (WEATHER, NOW)),
    Message("tool", "sunny", call_id="call_a"),
    Message("tool", "noon", call_id="call_b"),
)
DONE = (*CALLED, Message("assistant", "It is fine."), Message("user", "Thanks."))
# What a template writes of the calls and results above, in this order.
ROUNDS = {
    "generic": [
        '<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}}\n</tool_call>',
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<|im_start|>user\n<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
    ],
    "hermes": [
        "Let me see.\n<tool_call>\n"
        '{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}}\n</tool_call>\n',
        '<tool_call>\n{"name": "now", "arguments": {}}\n</tool_call>',
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
    ],
    "xml": [
        "Let me see.\n\n<tool_call>\n<function=get_weather>\n<parameter=city>\nBonn\n</parameter>\n"
        "<parameter=days>\n3\n</parameter>\n</function>\n</tool_call>",
        "<tool_call>\n<function=now>\n</function>\n</tool_call>",
        "<tool_response>\nsunny\n</tool_response>\n<tool_response>\nnoon\n</tool_response>",
    ],
    "llama": [
        '{"name": "get_weather", "parameters": {"city": "Bonn", "days": 3}}<|eot_id|>',
        'ipython<|end_header_id|>\n\n"sunny"',
        '{"name": "now", "parameters": {}}<|eot_id|>',
        'ipython<|end_header_id|>\n\n"noon"',
    ],
    "mistral": [
        '[TOOL_CALLS][{"name": "get_weather", "arguments": {"city": "Bonn", "days": 3}, "id": "8ea4dc5ef"}, ',
        '{"name": "now", "arguments": {}, "id": "f481c9e6d"}]',
        '"call_id": "8ea4dc5ef"}',
        '"call_id": "f481c9e6d"}',
    ],
    "args": [
        'Let me see.[TOOL_CALLS]get_weather[ARGS]{"city": "Bonn", "days": 3}[TOOL_CALLS]now[ARGS]{}',
        "sunny",
        "noon",
    ],
    "gemma": [
        "<|channel>thought\nhm\n\nLet me see.\n<channel|>",
        '<|tool_call>call:get_weather{city:<|"|>Bonn<|"|>,days:3}<tool_call|><|tool_call>call:now{}<tool_call|>',
        'response:get_weather{value:<|"|>sunny<|"|>}',
        'response:now{value:<|"|>noon<|"|>}',
    ],
    "harmony": [
        "analysis<|message|>hm\n\nLet me see.<|end|>",
        'to=functions.get_weather<|channel|>commentary json<|message|>{"city": "Bonn", "days": 3}<|call|>',
        '<|start|>functions.get_weather to=assistant<|channel|>commentary<|message|>"sunny"<|end|>',
        "to=functions.now<|channel|>commentary json<|message|>{}<|call|>",
        '<|start|>functions.now to=assistant<|channel|>commentary<|message|>"noon"<|end|>',
    ],
}


@pytest.mark.parametrize("name", SOURCES)
def test_a_round_of_calls_is_rendered_as_the_family_has_it(name):
    source = template(SOURCES[name])
    text = source.render(CALLED, tools=TOOLS)
    at = 0
    for part in ("get_weather", "now", "Weather?", *ROUNDS[name]):
        if name in ("mistral", "llama") and part == "Weather?":
            continue  # the tools stand beside the question
        assert part in text[at:], part
        at = text.index(part, at) + len(part)
    done = source.render(DONE, tools=TOOLS)
    assert done.index("It is fine.") > done.index("noon")
    assert done.rindex("Thanks.") > done.index("It is fine.")


@pytest.mark.parametrize("name", SOURCES)
def test_a_conversation_with_calls_is_rendered_where_no_tools_are_sent_any_more(name):
    text = template(SOURCES[name]).render(CALLED)
    assert all(part in text for part in ("Bonn", "sunny", "noon"))
    assert "Tells the weather" not in text


@pytest.mark.parametrize("name", SOURCES)
def test_without_calls_messages_are_what_they_were(name):
    chat = (Message("user", "a"), Message("assistant", "b", "t"), Message("user", "c"))
    hidden = SOURCES[name].replace("#}", "").replace("{#", "")
    made = template("{{ messages }}{{ tools }}{# " + hidden + " #}")
    assert made.calls.name == name
    assert made.render(chat) == (
        "[{'role': 'user', 'content': 'a'}, {'role': 'assistant', 'content': 'b', 'reasoning_content': 't'}, "
        "{'role': 'user', 'content': 'c'}]None"
    )


# Templates that know nothing of tools.


@pytest.mark.parametrize("name", PLAIN)
def test_any_template_is_told_of_tools(name):
    source = template(PLAIN[name])
    chat = CALLED if name != "refuses_system" else CALLED[1:]
    assert source.calls.told
    for messages in (chat, chat[1:] if chat[0].role == "system" else chat):
        text = source.render(messages, tools=TOOLS)
        assert text.index('{"city": "Bonn"') < text.index("sunny")
        assert text.count("Tells the weather.") == 1
    if name != "refuses_system":
        assert "Be brief." in source.render(chat, tools=TOOLS)
    with pytest.raises(TemplateError):
        template("{{ raise_exception('no') }}").render(chat, tools=TOOLS)


def test_results_and_the_next_question_are_one_message_where_roles_alternate():
    text = template(PLAIN["merges_system"]).render((*CALLED, Message("user", "Well?")), tools=TOOLS)
    assert text.endswith("noon\n</tool_response>\nWell?<end_of_turn>\n<start_of_turn>model\n")


def test_a_format_is_only_taken_from_a_template_that_knows_tools():
    assert template("tools tool_calls <tool_call>").calls.name == "hermes"
    assert template("<tool_call>").calls.name == "generic"
    assert template("tools tool_calls <tool_call><arg_key>").calls.name == "generic"
    assert template(CHATML).calls.name == "generic"


# What clients may send.


SHAPES = {
    "": {},
    " null\n": {},
    '""': {},
    "[1]": {"arguments": "[1]"},
    '"x"': {"arguments": '"x"'},
    "3": {"arguments": "3"},
    "Bonn": {"arguments": "Bonn"},
    '{"a": 1e999}': {"arguments": '{"a": 1e999}'},
    f'{{"a": {"9" * 30}}}': {"arguments": f'{{"a": {"9" * 30}}}'},
    "[" * 9999: {"arguments": "[" * 9999},
    "{": {"unfinished_arguments": "{"},
    '{"city": "Bo': {"unfinished_arguments": '{"city": "Bo'},
    '{"days": -': {"unfinished_arguments": '{"days": -'},
    '{"city": "a}\\': {"unfinished_arguments": '{"city": "a}\\'},
    '[{"a": 1}': {"unfinished_arguments": '[{"a": 1}'},
}
"""Arguments as they are written, and what the model reads."""


def called_with(arguments):
    call = ToolCall("call_a", "get_weather", arguments)
    return (*ASKED, Message("assistant", "", calls=(call, NOW)), Message("tool", "x", call_id="call_a"))


@pytest.mark.parametrize("name", SOURCES)
@pytest.mark.parametrize("arguments", SHAPES)
def test_arguments_that_are_no_object_become_one(name, arguments):
    chat = called_with(arguments)
    sound = called_with(json.dumps(SHAPES[arguments], ensure_ascii=False))
    source = template(SOURCES[name])
    assert source.render(chat, tools=TOOLS) == source.render(sound, tools=TOOLS)


@pytest.mark.parametrize("name", SOURCES)
def test_a_call_that_was_cut_off_is_told_as_such(name):
    cut = Message("assistant", "", calls=(NOW, ToolCall("call_c", "get_weather", '{"city": "Bo')))
    answered = (*ASKED, cut, Message("tool", "noon", call_id="call_b"))
    source, more = template(SOURCES[name]), Message("user", "Go on.")
    text = source.render((*answered, more), tools=TOOLS)
    assert text.index("noon") < text.index("was cut off") < text.index("Go on.")
    assert "was cut off" in source.render(answered, tools=TOOLS)
    told = source.render((*answered, Message("tool", "no JSON", call_id="call_c"), more), tools=TOOLS)
    assert "no JSON" in told
    assert "was cut off" not in told


TEXT_ONLY = """{# tools tool_calls <tool_call> #}{% for message in messages %}{{ message.content }}
{% for call in message.tool_calls %}{{ call.function.name + '(' + call.function.arguments + ')' }}{% endfor %}
{% endfor %}"""


@pytest.mark.parametrize(
    ("sent", "read"), [('{"b":2}', '{"b":2}'), ("", "{}"), ("[1]", '{"arguments": "[1]"}')]
)
def test_a_template_that_takes_arguments_as_text_gets_them_so(sent, read):
    assert f"get_weather({read})" in template(TEXT_ONLY).render(called_with(sent), tools=TOOLS)


@pytest.mark.parametrize(
    ("source", "why", "about_turns"),
    [
        (
            "{# tools tool_calls <tool_call> #}\n\n{{ messages[0].content + 1 }}",
            "line 3: can only conc",
            False,
        ),
        ("\n{% if %}", "line 2: Expected", False),
        ("{{ raise_exception('Only user!') }}", "rejected these messages: Only user!", True),
    ],
)
def test_an_error_of_a_template_names_its_cause_and_its_line(opened, source, why, about_turns):
    with pytest.raises(TemplateError, match=why) as caught:
        opened(ChatTemplate(source)).render(CALLED, tools=TOOLS)
    assert ("system prompt" in caught.value.hint) == about_turns


def refused(why):
    return pytest.raises(TemplateError, match=f"(?:rejected|failed on) these messages.*: .*{why}")


@pytest.mark.parametrize(
    ("before", "refusals"),
    [
        (CALLED, {"gemma": "no attribute 'name'"}),
        (ASKED, {"gemma": "no attribute", "harmony": "No call before"}),
    ],
)
@pytest.mark.parametrize("name", SOURCES)
def test_results_of_unknown_calls_are_rendered_or_refused_in_words(name, before, refusals):
    with refused(refusals[name]) if name in refusals else contextlib.nullcontext():
        stray = Message("tool", "stray", call_id="call_z")
        assert "stray" in template(SOURCES[name]).render((*before, stray), tools=TOOLS)


def test_a_process_renders_tools_too(opened):
    made = opened(ChatTemplate(SOURCES["hermes"], bos="", eos=""))
    assert made.render(CALLED, tools=TOOLS) == template(SOURCES["hermes"]).render(CALLED, tools=TOOLS)
    with pytest.raises(SchemaError):
        made.render(CALLED, tools=(Tool("f", "", "no"),))


# Turns.


def test_calls_and_results_belong_to_the_turn_of_their_question():
    roles = [message.role for message in (*DONE, Message("assistant", "Bye."))]
    assert turns_of(roles) == (range(1, 6), range(6, 8))
