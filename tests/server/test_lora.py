"""The real server with LoRA adapters: each request gets its own, side by side, also after a restart."""

from concurrent.futures import ThreadPoolExecutor
from functools import partial

import pytest

from edgechat.base.errors import NotAnAdapter
from edgechat.engine.types import Message
from edgechat.native.params import AdapterUse
from edgechat.planner.companions import AdapterPlan
from edgechat.planner.plan import LoadPlan
from edgechat.server.protocol.fields import LoraBody, requested_adapters
from tests.kit import NOT_PRINTABLE, Spec, build
from tests.kit.adapters import adapter
from tests.server.dialects import CHAT, MESSAGES, OLLAMA, RESPONSES, named
from tests.server.program import served as running

SPEC = Spec(mute=NOT_PRINTABLE, name="kit")
ASKED = {
    "default": {},
    "off": {"lora": []},
    "a": {"lora": [{"name": "a"}]},
    "named": {"model": "default+a"},
    "b": {"lora": [{"id": 1}]},
    "half": {"lora": [{"id": 0, "scale": 0.5}]},
    "both": {"lora": [{"name": "b"}, {"name": "a"}]},
}


@pytest.fixture(scope="module")
def served(tmp_path_factory):
    """A server that was started with `--lora a --lora b:0`."""
    folder = tmp_path_factory.mktemp("lora")
    model = folder / "kit.gguf"
    model.symlink_to(build(SPEC))
    a, b = (adapter(folder, SPEC, name, seed=seed) for name, seed in (("a", 1), ("b", 2)))
    with running(model, "--lora", str(a), "--lora", f"{b}:0", home=folder / "home") as server:
        yield server


def told(served, dialect=CHAT, **fields):
    asked = dialect.said(temperature=0, max_tokens=16, messages=[Message("user", "Tell me")])
    status, answer = served.ask(dialect.path, asked | fields)
    assert status == 200, answer
    return dialect.read(answer).text


@pytest.mark.slow
def test_answers_are_never_mixed(served):
    alone = {name: told(served, **fields) for name, fields in ASKED.items()}
    assert alone["default"] == alone["a"] == alone["named"]
    assert len(set(alone.values())) == 5
    with ThreadPoolExecutor(8) as pool:
        wanted = [*ASKED] * 4
        together = pool.map(lambda name: told(served, **ASKED[name]), wanted)
        assert list(together) == [alone[name] for name in wanted]


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [RESPONSES, MESSAGES], ids=named)
def test_every_protocol_has_them(served, dialect):
    asked = partial(told, served, dialect)
    assert asked(lora=[]) == told(served, lora=[])
    assert asked(model="default+b") != asked(lora=[{"name": "b", "scale": 1}])  # it has scale 0
    assert asked() == told(served)


@pytest.mark.slow
@pytest.mark.parametrize("dialect", [CHAT, OLLAMA], ids=named)
def test_the_answer_says_with_what_it_was_computed(served, dialect):
    asked = dialect.said(max_tokens=1, messages=[Message("user", "Hi")]) | {"stream": False}
    assert served.ask(dialect.path, asked | {"model": "kit+a"})[1]["model"] == "kit+a"


@pytest.mark.slow
@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({"model": "kit+c"}, 400),
        ({"model": "kitt+a"}, 404),
        ({"model": "kit+"}, 404),
        ({"model": "+a"}, 404),
        ({"lora": [{"name": "../a.gguf"}]}, 400),
        ({"lora": [{"name": "/etc/passwd"}]}, 400),
        ({"lora": [{"id": 2}]}, 400),
        ({"lora": [{}]}, 400),
        ({"lora": [{"id": 0, "name": "a"}]}, 400),
        ({"lora": [{"id": 0, "scale": 1e9}]}, 400),
        ({"lora": [{"id": 0}] * 5}, 400),
        ({"lora": "a"}, 400),
    ],
)
def test_what_there_is_not_is_refused(served, fields, status):
    body = {"messages": [{"role": "user", "content": "Hi"}], "max_tokens": 2}
    code, answer = served.ask("/v1/chat/completions", body | fields)
    assert code == status, answer
    assert "Traceback" not in str(answer)


def test_requests_choose_by_number_name_and_model():
    planned = tuple(
        AdapterPlan(name=name, path=f"/x/{name}", scale=scale, rank=1, total_bytes=1)
        for name, scale in (("French", 0.5), ("b", 1.0))
    )
    plan = LoadPlan(model_path="m", model_name="m", context=1, adapters=planned)
    french, other = AdapterUse("/x/French", 0.5), AdapterUse("/x/b", 1.0)
    assert requested_adapters((), [], plan) == ()
    assert requested_adapters(("french",), None, plan) == (french,)
    assert requested_adapters(("french",), [LoraBody(id=1)], plan) == (other,)
    assert requested_adapters((), [LoraBody(name="FRENCH")], plan) == (AdapterUse("/x/French", 1.0),)
    with pytest.raises(NotAnAdapter, match="the limit is 4"):
        requested_adapters(("french",) * 5, None, plan)
