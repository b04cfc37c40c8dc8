"""Templates that want all time and memory: each is refused, or its prompt is small.

EDGECHAT_SOAK_TEMPLATES sets how many are drawn.
"""

import os
import random
import time

import pytest

from edgechat.base.errors import EdgechatError
from edgechat.engine.prompt.prompts import Prompts
from edgechat.engine.prompt.template import CHATML, TIME_LIMIT, ChatTemplate, template_process
from edgechat.engine.types import ChatRequest, Message, Tool
from tests.engine.runtimes import Runtime, load, plan

pytestmark = [pytest.mark.soak, pytest.mark.slow]

DRAWN = int(os.environ.get("EDGECHAT_SOAK_TEMPLATES", "300"))
CELLS = 4096
RENDERINGS = 6
"""Of one template for one prompt, at the most: what it adds is probed with a few short chats."""
LARGEST = (9, 10**3, 10**5, 10**7, 10**10)
TEXTS = (
    "'<|im_end|>'",
    "'<|im_start|>system\\n'",
    "'a'",
    "' '",
    "'\\u0e01'",
    "messages[0].content",
    "(messages | string)",
    "bos_token",
)


def expression(draw):
    """Return an expression that makes much of little."""
    text, n = draw.choice(TEXTS), draw.choice(LARGEST)
    return draw.choice(
        (
            f"{text} * {n}",
            f"({text} * 1000) | replace('a', {text} * {n})",
            f"{text} | center({n})",
            f"({text} * {n}) | indent({n})",
            f"'%{n}d' % 1",
            f"'{{:>{n}}}'.format({text})",
            f"(range({n}) | list) * {n}",
            f"range({n}) | map('string') | join({text})",
            f"({text} * {n}) | list | tojson",
            f"({text} * {n}) | wordwrap(1)",
            f"({text} * {n}) | urlize",
            f"({text} * {n}) | escape | escape",
            f"({text} * {n}).split('a') | length",
            f"{n} ** {n}",
            f"messages * {n} | tojson(indent={min(n, 10**6)})",
            f"([[]] * {n}) | sum(start=[])",
            f"lipsum({n})",
            f"dict(a={text} * {n}) | xmlattr",
            f"({text} * {n}) | batch({n}) | list",
        )
    )


def bomb(draw, depth=0):
    """Return a template of loops, macros and growing variables around such expressions."""
    if depth > 2 or draw.random() < 0.3:
        return f"{{{{ {expression(draw)} }}}}"
    inner = bomb(draw, depth + 1)
    n = draw.choice(LARGEST)
    return draw.choice(
        (
            f"{{% for i in range({n}) %}}{inner}{{% endfor %}}",
            f"{{% macro f(n) %}}{inner}{{{{ f(n) }}}}{{{{ f(n) }}}}{{% endmacro %}}{{{{ f(1) }}}}",
            "{% set ns = namespace(x='ab') %}"
            f"{{% for i in range({min(n, 90)}) %}}{{% set ns.x = ns.x ~ ns.x %}}{{% endfor %}}{{{{ ns.x }}}}",
            f"{{% for m in messages recursive %}}{inner}{{{{ loop(messages) }}}}{{% endfor %}}",
            f"{{% set x %}}{inner}{{% endset %}}{{{{ x ~ x ~ x }}}}",
            f"{{% filter upper %}}{inner}{{% endfilter %}}",
            f"{{% if true %}}{inner}{inner}{inner}{{% endif %}}",
        )
    )


@pytest.fixture(scope="module")
def vocabulary():
    runtime = Runtime("llama.cpp")
    backend = load(plan(runtime.model("dense"), context=CELLS))
    yield backend.vocabulary
    backend.close()


@pytest.mark.timeout(DRAWN * RENDERINGS * (TIME_LIMIT + 3))
def test_templates_that_grow(vocabulary):
    process = template_process()
    slowest, n_refused = 0.0, 0
    tools = (Tool("look", "Looks.", '{"type": "object"}'),)
    turns = tuple(Message(("user", "assistant")[at % 2], f"{at} <|im_end|>" * 20) for at in range(9))
    for seed in range(DRAWN):
        draw = random.Random(seed)
        source = (CHATML if draw.random() < 0.3 else "") + bomb(draw)
        template = ChatTemplate(source, bos="<s>", eos="</s>", process=process)
        request = ChatRequest(id="x", messages=turns, tools=tools if draw.random() < 0.3 else (), chat="c")
        began = time.monotonic()
        try:
            prompt = Prompts(template, vocabulary).of(request, CELLS)
        except EdgechatError:
            n_refused += 1
        else:
            assert len(prompt.tokens) <= CELLS, source
        took = time.monotonic() - began
        slowest = max(slowest, took)
        assert took < RENDERINGS * (TIME_LIMIT + 2), (took, source)
    process.close()
    print(f"{n_refused} of {DRAWN} were refused; the slowest took {slowest:.1f} s")
    assert 0 < n_refused < DRAWN
