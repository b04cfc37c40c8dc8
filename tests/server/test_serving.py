"""`edgechat serve` as other programs meet it: OpenAI's client and curl, on a real worker."""

import json
import re
import signal
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from edgechat.base.errors import BackendMissing
from edgechat.cli.commands import serve
from edgechat.cli.commands.serve import first_screen
from edgechat.server.access import Key
from edgechat.server.serving import listen
from tests import scripted
from tests.cli.running import complaint, edgechat
from tests.homes import place
from tests.kit import tiny
from tests.later import Later
from tests.server.program import COMMAND, served, start
from tests.terminal import Terminal, needs_tmux

openai = Later("openai")

pytestmark = pytest.mark.slow

LONG = "A long answer that takes its time to be written out. " * 12
PLACE = {"type": "object", "properties": {"place": {"enum": ["Rome", "Oslo"]}}, "required": ["place"]}
FUNCTION = {"name": "weather", "parameters": PLACE | {"additionalProperties": False}}
WEATHER = {"type": "function", "function": FUNCTION}
CALL = '<tool_call>\n{"name": "weather", "arguments": {"place": "Rome"}}\n</tool_call>'


def chat(text, **more):
    return {"model": "default", "messages": [{"role": "user", "content": text}], "temperature": 0, **more}


@pytest.fixture(scope="module")
def script(tmp_path_factory):
    path = tmp_path_factory.mktemp("model") / "little.gguf"
    rules = [{"when": f"[{number}]", "reply": f"I am number {number}. " * 6} for number in range(30)]
    rules += [{"when": "longer", "reply": LONG * 2}]
    rules += [{"when": "long", "reply": LONG}, {"when": "weather", "reply": f"I look.\n{CALL}"}]
    rules += [{"when": "crash", "reply": "It goes well until", "crash_after": 9}]
    return scripted.write(path, reply="Hello there.", rules=rules, token_ms=2)


@pytest.fixture(scope="module")
def server(script, tmp_path_factory):
    with served(script, home=tmp_path_factory.mktemp("home")) as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=60) as client:
        yield client


# What there is to do first.


@needs_tmux
def test_a_terminal_is_shown_the_key_once(script, tmp_path):
    for first in (True, False):
        with Terminal(tmp_path / f"terminal-{first}", home=tmp_path / "home") as terminal:
            terminal.run([*COMMAND, str(script), "--port", "0"])
            terminal.until("is loaded")
            key = (tmp_path / "home" / "config" / "api-key").read_bytes().strip()
            assert (key in terminal.raw) is first
            terminal.press("C-c")
            terminal.until("left with 0")


def test_the_screen_says_what_to_type_and_where_the_key_is(script, tmp_path):
    for first in (True, False):
        with served(script, home=tmp_path) as server:
            assert server.key not in server.screen, "whoever reads the log would have it"
            assert ("was generated" in server.screen) is first
            assert str(tmp_path / "config" / "api-key") in server.screen
            assert f'OPENAI_BASE_URL="{server.url}/v1"' in server.screen
            assert pasted(server.screen)["choices"][0]["message"]["content"] == "Hello there."
            assert server.stop() == (0, server_says())


def pasted(screen):
    """Return what the commands of the first screen answer."""
    before, settings, question = re.split(r"For programs that use OpenAI's client:\n|To try it:\n", screen)
    assert before.startswith("Serving ")
    assert all(len(line) <= 60 for line in question.splitlines())
    done = subprocess.run(["sh", "-c", settings + question], capture_output=True, text=True, check=False)
    return json.loads(done.stdout)


def test_a_key_that_was_given_is_in_the_commands_too(script, tmp_path):
    with served(script, "--api-key", "it's-$mine", home=tmp_path, EDGECHAT_API_KEY="it's-$mine") as server:
        assert pasted(server.screen)["choices"]
        assert not (tmp_path / "config" / "api-key").exists()


def test_without_a_key_only_where_that_is_asked_for(script, tmp_path):
    with served(script, "--no-api-key", home=tmp_path) as server:
        assert pasted(server.screen)["choices"]
        assert server.ask("/v1/models", Authorization="")[0] == 200
        assert server.ask("/v1/models", Host="evil.example")[0] == 403
        assert not (tmp_path / "config" / "api-key").exists()


@pytest.mark.parametrize("key", ["file", "variable", "given", "none"])
def test_the_commands_are_powershells_on_windows(key, monkeypatch):
    monkeypatch.setattr(sys, "platform", "win32")
    keys = {
        "file": (Key("the-key-itself", Path("it's")), "(Get-Content 'it''s')"),
        "variable": (Key("the-key-itself", variable="NAMED"), "$env:NAMED"),
        "given": (Key("the-key's"), "'the-key''s'"),
        "none": (None, '"none"'),
    }
    with listen("127.0.0.1", 0) as listener:
        screen = first_screen("guide", listener, keys[key][0], kind="embedding")
    assert f"$env:OPENAI_API_KEY = {keys[key][1]}\n" in screen
    assert 'Invoke-RestMethod "$env:OPENAI_BASE_URL/embeddings"' in screen
    assert ("Bearer $env:OPENAI_API_KEY" in screen) is (key != "none")
    assert "the-key-itself" not in screen


def test_who_opens_it_to_others_is_told_their_address_and_what_is_not_safe():
    with listen("0.0.0.0", 0) as listener:
        screen = first_screen("guide", listener, Key("k" * 16), kind="chat")
        port = listener.getsockname()[1]
    told = rf"Other machines can reach it at http://[^/ ]+:{port}/v1. Connections are not encrypted"
    assert re.search(told, screen)


def server_says():
    return "Stopping after the answers in progress; press Ctrl+C again to stop at once.\n"


@pytest.mark.parametrize(
    ("words", "told"),
    [
        (("--host", "0.0.0.0", "--no-api-key"), "requires a key"),
        (("--host", "0.0.0.0", "--api-key", "too-short"), "easy to guess"),
        (("--api-key", "with space"), "is not valid: keys have 8"),
        (("--api-key=",), "is not valid: keys have 8"),
        (("--allow-host", "http://nas.lan"), "is not a host name"),
        (("--allow-host", "*"), "is not a host name"),
        (("--api-key", "longenough", "--no-api-key"), "cannot be used together"),
        (("--cors", "*"), "not the origin"),
        (("--cors", "https://example.org/path"), "not the origin"),
        (("--host", "203.0.113.7"), "203.0.113.7"),
    ],
)
def test_what_would_let_strangers_in_is_refused(script, words, told):
    assert told in complaint(edgechat("serve", script, "--port", "0", *words))


def test_without_the_packages_it_says_how_to_get_them(monkeypatch):
    monkeypatch.setattr("edgechat.cli.commands.serve.PACKAGES", ("starlette", "uvicorn", "no_such_package"))
    with pytest.raises(BackendMissing, match="no_such_package") as caught:
        serve.serve.main([], standalone_mode=False)
    assert "edgechat[server]" in (caught.value.hint or "")


def test_what_can_never_be_loaded_ends_the_command_before_it_promises_anything(script, home):
    assert "no model with that name" in complaint(edgechat("serve", "nothing-of-the-kind", "--port", "0"))
    assert "nope" in complaint(edgechat("serve", script, "--port", "0", "--draft", "nope"))
    assert "mlx" in complaint(edgechat("serve", tiny("dense"), "--port", "0", "--backend", "mlx")).lower()
    assert not (home / "config" / "api-key").exists()


def test_options_of_what_is_answered_and_what_is_logged(server, script, tmp_path):
    """Strictness, names that were allowed, and a line for each request with nothing of what it says."""
    named = {"model": "default", "messages": [{"role": "user", "name": "Ann", "content": "hi"}]}
    assert server.ask("/v1/chat/completions", named)[0] == 200
    options = ("--strict", "--allow-host", "Host.docker.internal", "--verbose")
    with served(script, *options, home=tmp_path) as strict:
        status, said = strict.ask("/v1/chat/completions", named)
        assert (status, said["error"]["code"]) == (400, "not_heeded")
        assert strict.ask("/v1/models", Host="host.docker.internal")[0] == 200
        assert strict.ask("/v1/models", Host="other.docker.internal")[0] == 403
        strict.ask("/v1/chat/completions?secret", chat("hi secret"))
        strict.ask("/v1/chat/completions", chat("hi secret", stream=True))
        strict.ask("/v1/models", Authorization="Bearer secret")
        _, told = strict.stop()
    day = r"^20\d\d-\d\d-\d\d \d\d:\d\d:\d\d 127\.0\.0\.1"
    of = r"\d+\.\d\d s little \d+\+\d+ tokens$"
    assert len(re.findall(rf"{day} POST /v1/chat/completions 200 {of}", told, re.MULTILINE)) == 2
    assert re.search(rf"{day} GET /v1/models 401 \d+\.\d\d s$", told, re.MULTILINE)
    log = "".join(path.read_text() for path in (tmp_path / "log").glob("*"))
    assert "secret" not in told + log


# OpenAI's client.


def test_models_and_answers(server, client):
    assert next(iter(client.models.list())).id == "little"
    done = client.chat.completions.create(**chat("hi"))
    assert (done.choices[0].message.content, done.choices[0].finish_reason) == ("Hello there.", "stop")
    stopped = client.chat.completions.create(**chat("hi", stop=" th"))
    assert stopped.choices[0].message.content == "Hello"
    short = client.chat.completions.create(**chat("hi", max_tokens=3, n=2))
    assert [one.message.content for one in short.choices] == ["Hel", "Hel"]
    assert {one.finish_reason for one in short.choices} == {"length"}
    counted = server.ask("/metrics")[1]
    assert 'edgechat_requests_total{endpoint="/v1/chat/completions"' in counted
    assert 'edgechat_requests_total{endpoint="/v1/models"' in counted
    text = client.completions.create(model="default", prompt="x", max_tokens=4)
    assert text.usage.completion_tokens <= 4


def test_thirty_streams_at_once_are_each_their_own(server, client):
    def stream(number):
        chunks = client.chat.completions.create(**chat(f"[{number}]"), stream=True)
        return "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)

    with ThreadPoolExecutor(30) as threads:
        found = list(threads.map(stream, range(30)))
    assert found == [f"I am number {number}. " * 6 for number in range(30)]
    assert server.figure("running") == 0


async def test_the_asynchronous_client(server):
    async with openai.AsyncOpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client:
        async with client.chat.completions.stream(**chat("hi")) as stream:
            final = await stream.get_final_completion()
        assert final.choices[0].message.content == "Hello there."


def test_tools_are_called(client):
    done = client.chat.completions.create(**chat("weather"), tools=[WEATHER])
    [choice] = done.choices
    assert choice.finish_reason == "tool_calls"
    [call] = choice.message.tool_calls or ()
    assert call.type == "function"
    assert (call.function.name, json.loads(call.function.arguments)) == ("weather", {"place": "Rome"})
    back = [*chat("weather")["messages"], choice.message]
    back += [{"role": "tool", "tool_call_id": call.id, "content": "sun"}]
    again = client.chat.completions.create(model="default", messages=back, tools=[WEATHER])
    assert again.choices[0].finish_reason in ("stop", "tool_calls")
    plain = client.chat.completions.create(**chat("weather"), tools=[WEATHER], tool_choice="none")
    assert plain.choices[0].message.content == f"I look.\n{CALL}"


def test_models_are_loaded_as_they_are_asked_for(tmp_path):
    home = tmp_path / "home"
    place(tiny("dense"), home / "data" / "models" / "other.gguf")
    with (
        served(tiny("qwen3-embedding"), home=home) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=30) as client,
    ):
        assert pasted(server.screen)["data"][0]["object"] == "embedding"
        made = client.embeddings.create(model="default", input=["one", "another one", "one"])
        first, other, again = (one.embedding for one in made.data)
        assert sum(number * number for number in first) == pytest.approx(1, abs=1e-3)
        assert first == pytest.approx(again, abs=1e-3)
        assert first != pytest.approx(other, abs=1e-3)
        for wrong, said in (
            ("/v1/chat/completions", chat("x")),
            ("/v1/embeddings", {"model": "other", "input": "x"}),
        ):
            status, told = server.ask(wrong, said)
            assert (status, told["error"]["code"]) == (400, "wrong_kind_of_model")
        done = client.chat.completions.create(**chat("x", max_tokens=3) | {"model": "other"})
        assert done.model == "other"
        known = {one["id"]: one for one in server.ask("/v1/models")[1]["data"]}
        assert (known["other"]["kind"], known["other"]["loaded"]) == ("chat", True)
        assert next(iter(known.values()))["kind"] == "embedding"


# What goes wrong.


def test_what_cannot_be_is_told_in_the_protocols_words(server, tmp_path):
    status, said = server.ask("/v1/chat/completions", chat("x" * 20_000))
    assert (status, said["error"]["code"]) == (400, "context_length_exceeded")
    assert "20" in said["error"]["message"]
    assert "4096" in said["error"]["message"]
    (tmp_path / "secret.gguf").write_bytes(b"GGUF")
    for name in ("/etc/passwd", str(tmp_path / "secret.gguf"), "../x.gguf", "nothing", "\0"):
        status, said = server.ask("/v1/chat/completions", chat("x") | {"model": name})
        assert (status, said["error"]["code"]) == (404, "model_not_found"), name
    assert server.ask("/v1/embeddings", {"model": "default", "input": "x"})[0] == 400
    assert server.ask("/v1/chat/completions", chat("x", think=True))[0] == 400


def test_a_crash_is_told_to_who_was_there_and_the_next_is_answered(server):
    with ThreadPoolExecutor(2) as threads:
        bystander = threads.submit(server.ask, "/v1/chat/completions", chat("long"))
        while server.figure("running") < 1:
            time.sleep(0.01)
        streamed = server.ask("/v1/chat/completions", chat("crash", stream=True))
        status, said = bystander.result()
    assert (status, said["error"]["code"]) == (503, "engine_crashed")
    assert streamed[0] in (200, 503)
    assert "engine_crashed" in str(streamed[1])
    assert server.ask("/health")[1]["status"] == "degraded"
    answer = server.ask("/v1/chat/completions", chat("hi"))[1]
    assert answer["choices"][0]["message"]["content"] == "Hello there."
    assert server.ask("/health")[1]["status"] == "ready"
    [worker] = server.workers()
    worker.kill()
    worker.wait()
    assert server.ask("/v1/chat/completions", chat("hi"))[0] == 200


def test_who_comes_when_the_queue_is_full_is_told_when_to_come_again(client):
    def ask(_):
        try:
            client.chat.completions.create(**chat("[1]", n=8))
        except openai.RateLimitError as error:
            return int(error.response.headers["retry-after"])
        return 0

    with ThreadPoolExecutor(7) as threads:  # each takes eight places: 8 run and 32 may wait
        waits = sorted(threads.map(ask, range(7)))
    assert waits[:5] == [0] * 5
    assert all(1 <= wait <= 120 for wait in waits[5:])


def test_who_leaves_frees_the_engine(server, client):
    def cancelled():
        told = server.ask("/metrics")[1]
        return sum(map(float, re.findall(r'finished_total\{[^}]*reason="cancelled"[^}]*\} (\S+)', told)))

    before = cancelled()
    stream = client.chat.completions.create(**chat("long"), stream=True)
    next(iter(stream))
    assert server.figure("running") == 1
    stream.close()
    while server.figure("running"):
        time.sleep(0.01)
    assert cancelled() > before  # else it had come to its own end


# Its end.


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
def test_a_clean_stop_lets_what_runs_come_to_its_end(script, tmp_path):
    with served(script, home=tmp_path) as server, ThreadPoolExecutor(1) as threads:
        workers = server.workers()
        running = threads.submit(server.ask, "/v1/chat/completions", chat("longer", stream=True))
        while server.figure("running") < 1:
            time.sleep(0.01)
        server.process.send_signal(signal.SIGTERM)
        while server.ask("/v1/completions", {"model": "default", "prompt": "x", "max_tokens": 1})[0] == 200:
            time.sleep(0.01)
        status, said = server.ask("/v1/chat/completions", chat("too late"))
        assert (status, said["error"]["code"]) == (503, "stopping")
        assert server.ask("/health", Authorization="") == (503, {"status": "draining"})
        _, complaint = server.process.communicate(timeout=20)
        assert (server.process.returncode, complaint) == (0, server_says())
        status, said = running.result()
        assert status == 200
        assert said.endswith("data: [DONE]\n\n")
        assert not any(one.is_running() for one in workers)


@pytest.mark.skipif(sys.platform == "win32", reason="Windows has other signals")
@pytest.mark.parametrize("again", [True, False])
def test_what_takes_too_long_is_cut_with_a_word_and_a_second_signal_ends_at_once(script, tmp_path, again):
    grace = "600" if again else "0.2"
    with served(script, "--grace", grace, home=tmp_path) as server, ThreadPoolExecutor(1) as threads:
        workers = server.workers()
        running = threads.submit(server.ask, "/v1/chat/completions", chat("long", stream=True))
        while server.figure("running") < 1:
            time.sleep(0.01)
        if again:
            server.process.send_signal(signal.SIGINT)
            time.sleep(0.3)
        code, said = server.stop(signal.SIGINT)
        assert (code, said) == (0, server_says())
        if not again:
            assert '"code":"stopped"' in running.result()[1]
        else:
            running.exception()
        assert not any(one.is_running() for one in workers)


def test_the_model_is_loaded_while_the_server_already_answers(tmp_path):
    path = scripted.write(tmp_path / "slow.gguf", reply="Here.", load_ms=1500)
    server = start(path, home=tmp_path)
    try:
        status, said = server.ask("/health", Authorization="")
        assert (status, said) == (503, {"status": "loading"})
        assert server.ask("/v1/models")[0] == 200
        answer = server.ask("/v1/chat/completions", chat("hi"))[1]
        assert answer["choices"][0]["message"]["content"] == "Here."
        assert server.ask("/health")[1]["status"] == "ready"
    finally:
        assert server.stop()[0] == 0


def test_thinking_has_a_field_of_its_own(tmp_path):
    template = (
        "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}"
        "<|im_start|>assistant\n{% if enable_thinking is defined and not enable_thinking %}{% endif %}"
        "{# </think> #}"
    )
    path = scripted.write(tmp_path / "thinker.gguf", reply="<think>hm</think>one two", template=template)
    with (
        served(path, home=tmp_path) as server,
        openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0) as client,
    ):
        done = client.chat.completions.create(**chat("hi"), extra_body={"think": True})
        message, usage = done.choices[0].message, done.usage
        assert (message.content, message.reasoning_content) == ("one two", "hm")
        assert 2 <= (usage.completion_tokens_details.reasoning_tokens or 0) < usage.completion_tokens
        chunks = client.chat.completions.create(**chat("hi"), stream=True)
        deltas = [chunk.choices[0].delta for chunk in chunks]
        assert "".join(getattr(one, "reasoning_content", "") for one in deltas) == "hm"
        assert "".join(one.content or "" for one in deltas) == "one two"


ARGUMENTS = ["", "null", "[1]", '"x"', '{"place": "Ro']
BEGUN = {"role": "user", "content": "How is it?"}
SAID = {"role": "user", "content": "Go on."}
BEFORE = {
    "/v1/chat/completions": lambda text: {
        "messages": [BEGUN, {"role": "assistant", "tool_calls": [openai_call(text)]}, SAID]
    },
    "/v1/responses": lambda text: {
        "input": [
            BEGUN,
            {"type": "function_call", "call_id": "a", "name": "weather", "arguments": text},
            {"type": "function_call_output", "call_id": "a", "output": "no JSON"},
            SAID,
        ]
    },
    "/v1/messages": lambda text: {
        "max_tokens": 9,
        "messages": [
            BEGUN,
            {
                "role": "assistant",
                "content": [{"type": "tool_use", "id": "a", "name": "weather", "input": text}],
            },
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "a", "content": "no JSON"}]},
            SAID,
        ],
    },
}


def openai_call(text):
    return {"id": "a", "type": "function", "function": {"name": "weather", "arguments": text}}


def test_conversations_go_on_behind_calls_whose_arguments_are_no_object(tmp_path):
    """Qwen's newer templates iterate them, and would fail."""
    template = Path(__file__).parents[1].joinpath("engine/templates/calls/xml.jinja").read_text()
    path = scripted.write(tmp_path / "iterates.gguf", reply="Well.", template=template)
    with served(path, home=tmp_path) as server:
        for place, before in BEFORE.items():
            for text in ARGUMENTS:
                status, answer = server.ask(place, {"model": "default", **before(text)})
                assert status == 200, (place, text, answer)
        assert server.figure("crashes_total") == 0
