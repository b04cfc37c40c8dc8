"""Chat templates: rendered as transformers does, and bounded whatever they try."""

from pathlib import Path

import msgspec
import psutil
import pytest

from edgechat.base.errors import SwitchUnknown, TemplateError
from edgechat.base.process import frames
from edgechat.engine.prompt.template import CHATML, TIME_LIMIT, ChatTemplate, template_process
from edgechat.engine.prompt.template_child import Render
from edgechat.engine.types import Message

pytestmark = pytest.mark.slow

HELLO = (Message("system", "Be brief."), Message("user", "Hello <b>&"))


def render(source, messages=HELLO, **options):
    template = ChatTemplate(source, bos="<s>", eos="</s>")
    try:
        return template.render(messages, **options)
    finally:
        template.close()


def test_chatml_where_the_model_brings_none():
    assert render(None) == (
        "<|im_start|>system\nBe brief.<|im_end|>\n<|im_start|>user\nHello <b>&<|im_end|>\n"
        "<|im_start|>assistant\n"
    )


def test_the_helpers_that_templates_expect():
    source = (
        "{{ bos_token }}{% for m in messages %}{% if loop.first %}{% continue %}{% endif %}"
        "{{ m | tojson }}{{ m['content'] | trim }}{% endfor %}{{ strftime_now('%d %b %Y') }}{{ eos_token }}"
    )
    expected = '<s>{"role": "user", "content": "Hello <b>&"}Hello <b>&09 Oct 2026</s>'
    assert render(source, date="2026-10-09") == expected


def test_thinking_is_switched_where_there_is_a_switch():
    source = "{{ enable_thinking is defined }} {{ enable_thinking }}"
    assert render(source) == "False "
    assert render(source, think=False) == "True False"
    with pytest.raises(SwitchUnknown, match="no switch"):
        render(CHATML, think=True)


def test_not_to_think_holds_for_a_model_that_never_does():
    assert render(CHATML, think=False) == render(CHATML)
    with pytest.raises(SwitchUnknown, match="no switch"):
        render(CHATML + "{# </think> #}", think=False)


def test_a_template_that_asks_for_it_is_told_how_long_to_think():
    source = "{{ reasoning_effort | default('medium') }}"
    assert [render(source), render(source, effort="high")] == ["medium", "high"]
    assert [ChatTemplate(one).has_effort for one in (source, CHATML)] == [True, False]


def test_thoughts_of_earlier_turns_are_there_for_who_wants_them():
    messages = (Message("user", "a"), Message("assistant", "b", thinking="t"), Message("user", "c"))
    assert render("{% for m in messages %}{{ m.reasoning_content }}|{% endfor %}", messages) == "|t||"


@pytest.mark.parametrize(
    ("source", "complaint"),
    [
        ("{{ raise_exception('roles must alternate') }}", "roles must alternate"),
        ("{% for %}", r"failed on .* line 1"),
        ("{{ messages.nothing.at_all }}", r"failed on .* line 1"),
        ("{{ ''.__class__.__mro__ }}", r"failed on .* line 1"),
        ("{{ messages.append(1) }}", r"failed on .* line 1"),
    ],
)
def test_a_template_that_fails_says_why(source, complaint):
    with pytest.raises(TemplateError, match=complaint):
        render(source)


@pytest.mark.parametrize(
    "source",
    [
        "{{ 'a' * 300000000 }}",
        "{{ 'a' | center(3000000000) }}",
        "{% set ns = namespace(x='aaaaaaaa') %}"
        "{% for i in range(60) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}",
        "{{ 10 ** (10 ** 10) }}",
        "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}",
        "{% macro f() %}{{ f() }}{% endmacro %}{{ f() }}",
        "{{ 'a' * 20000000 }}",
    ],
)
def test_work_is_bounded_in_time_and_memory(source, opened):
    template = opened(ChatTemplate(source))
    with pytest.raises(TemplateError):
        template.render(HELLO)


def test_a_template_whose_watcher_is_dead_ends_by_itself(opened):
    process = opened(template_process())
    source = "{% for i in range(99999) %}{% for j in range(99999) %}{% endfor %}{% endfor %}"
    pipe = process.start()._process
    pipe.stdin.write(frames.pack(msgspec.msgpack.encode(Render(source, {}))))
    pipe.stdin.flush()
    pipe.wait(TIME_LIMIT + 20)


@pytest.fixture
def template():
    template = ChatTemplate(
        "{{ 'a' * (messages | length) * 100000000 if messages[0].content == 'big' else 'ok' }}"
    )
    yield template
    template.close()


def test_after_an_overrun_the_next_rendering_works(template):
    big = (Message("user", "big"),) * 9
    assert template.render(HELLO) == "ok"
    with pytest.raises(TemplateError):
        template.render(big)
    assert template.render(HELLO) == "ok"


def test_a_process_that_somebody_has_killed_is_no_fault_of_the_template(template):
    before = set(psutil.Process().children())
    assert template.render(HELLO) == "ok"
    (process,) = set(psutil.Process().children()) - before
    process.kill()
    process.wait()
    assert template.render(HELLO) == "ok"


def test_the_process_is_gone_after_close():
    before = set(psutil.Process().children())
    render(None)
    assert set(psutil.Process().children()) <= before


def test_the_options_of_tojson_are_heeded():
    source = "{{ {'b': 'é', 'a': 1} | tojson(ensure_ascii=true, sort_keys=true, separators=(',', ':')) }}"
    assert render(source) == '{"a":1,"b":"\\u00e9"}'


def test_marks_of_what_is_learnt_are_passed_over():
    source = "{% for m in messages %}{% generation %}{{ m.content }}{% endgeneration %}|{% endfor %}"
    assert render(source) == "Be brief.|Hello <b>&|"


FOLDER = Path(__file__).parents[1] / "templates"
LATER = [
    Message("system", "At first."),
    Message("user", "A question."),
    Message("system", "From now on."),
    Message("assistant", "An answer."),
    Message("user", "Another question."),
]


@pytest.mark.parametrize("path", sorted(FOLDER.glob("*.jinja")), ids=lambda path: path.stem)
@pytest.mark.parametrize("end", [3, 5])
def test_a_later_system_message_is_never_lost_and_never_moved(path, end):
    """Agents send such; many templates take one at the beginning only, and some leave others out."""
    messages = LATER[:end]
    if path.stem in ("refuses_system", "moves_system"):
        messages = messages[1:]
    template = ChatTemplate(path.read_text(), bos="<s>", eos="</s>")
    try:
        text = template.render(messages)
    finally:
        template.close()
    said = [message.content for message in messages]
    assert sorted(said, key=text.index) == said


@pytest.mark.parametrize("name", ["chatml", "refuses_system", "merges_system"])
def test_a_models_own_system_prompt_holds_where_there_is_no_other(opened, name):
    source = (FOLDER / f"{name}.jinja").read_text()
    own = opened(ChatTemplate(source, bos="<s>", eos="</s>", system="Be brief."))
    plain = opened(ChatTemplate(source, bos="<s>", eos="</s>"))
    asked = [Message("user", "A question."), Message("assistant", "b"), Message("user", "c")]
    text = own.render(asked)
    assert text.count("Be brief.") == 1
    assert text.index("Be brief.") < text.index("A question.")
    if name != "refuses_system":
        ruled = [Message("system", "Sing."), *asked]
        assert own.render(ruled) == plain.render(ruled)


def test_where_the_template_takes_them_later_system_messages_stay_what_they_are(opened):
    template = opened(ChatTemplate(None, bos="<s>", eos="</s>"))
    assert "<|im_start|>system\nFrom now on.<|im_end|>" in template.render(LATER)
