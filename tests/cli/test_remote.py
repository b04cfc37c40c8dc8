"""`edgechat remote`, and the models of remotes in `list` and `run`."""

import asyncio
import json

import httpx2
import pytest

from edgechat import settings
from edgechat.models.remote.measured import measured_speeds, note_speed
from edgechat.server.pool.pool import real_pool
from tests.cli.running import edgechat
from tests.engine.remote.raw import KEY, raw_server, said, text
from tests.server.fakes import KEY as KEY_OF_POOL
from tests.server.fakes import serving


@pytest.fixture
async def raw():
    async with raw_server() as server:
        server.models(
            {"id": "m", "owned_by": "vllm", "max_model_len": 4096},
            {"id": "b/\u202ebad\x1b[2J", "owned_by": "vllm"},
        )
        yield server


async def run(*words, **environment):
    """Run a command while the server of this process goes on."""
    return await asyncio.to_thread(edgechat, *words, **environment)


async def remote(*words, **environment):
    return await run("remote", *words, **environment)


@pytest.mark.slow
async def test_a_server_is_added_used_and_removed(raw):
    done = await remote("add", raw.url, "--name", "desk", "--key-env", "DESK_KEY", DESK_KEY=KEY)
    assert (done.returncode, done.stderr) == (0, "")
    assert "desk works: vLLM, 1 model.\n  desk/m: 4,096 tokens of context\n" in done.stdout
    assert "edgechat run desk/m" in done.stdout
    assert KEY not in settings.settings_file().read_text(encoding="utf-8")
    listed = await remote("list")
    assert listed.stdout == f"desk  {raw.url}  key in $DESK_KEY, which is not set\n"
    (entry,) = json.loads((await remote("list", "--json")).stdout)
    assert entry == {"name": "desk", "url": raw.url, "kind": None, "key_env": "DESK_KEY", "has_key": False}

    raw.chat(*(text(word) for word in ("It ", "\x1b[31mis ", "me.")), text("", "stop"))
    answered = await run("run", "desk/m", "Who are you?", DESK_KEY=KEY)
    assert answered.stdout == "It [31mis me.\n"
    assert raw.body["messages"] == [{"role": "user", "content": "Who are you?"}]
    told = json.loads((await run("run", "desk/m", "Hi", "--json", DESK_KEY=KEY)).stdout)
    assert (told["plan"]["remote"]["id"], told["plan"]["threads"]) == ("m", None)
    assert KEY not in json.dumps(told)

    note_speed("desk/m", 123.0, 45.6)
    removed = await remote("rm", "desk", "--yes")
    assert removed.returncode == 0
    assert settings.load().remotes == {}
    assert measured_speeds() == {}


@pytest.mark.slow
async def test_a_name_is_made_of_the_host(raw):
    for name, url in (("here", raw.url), ("here-2", f"{raw.url}/v1")):
        assert f"Added {name} to" in (await remote("add", url)).stdout
    again = await remote("add", raw.url)
    assert (again.returncode, "has already been added, as here." in again.stderr) == (1, True)
    assert "Added desk to" in (await remote("add", "desk.invalid:8000", "--kind", "vllm", "--offline")).stdout
    assert settings.load().remotes["desk"].url == "http://desk.invalid:8000"


@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["add", "ftp://desk"], "does not begin with http:// or https://"),
        (["add", "http://me:secret@desk"], "a key belongs in key or key_env"),
        (["add", "http://desk", "--name", "a/b"], "A name has up to 40 letters"),
        (["add", "http://desk", "--kind", "nonsense"], "nonsense"),
        (["test", "nobody"], "There is no remote 'nobody'"),
        (["rm", "nobody"], "There is no remote 'nobody'"),
    ],
)
async def test_what_cannot_be(words, why):
    done = await remote(*words)
    assert done.returncode != 0
    assert why in done.stderr
    assert "secret" not in done.stderr


@pytest.mark.slow
async def test_a_server_that_is_off_is_kept(raw):
    done = await remote("add", "http://127.0.0.1:1", "--name", "desk")
    assert done.returncode == 0
    assert "the connection failed" in done.stderr
    assert (await remote("test", "desk")).returncode == 1
    told = json.loads((await remote("test", "desk", "--json")).stdout)
    assert (told["models"], "the connection failed" in told["error"]) == ([], True)
    asked = await run("run", "desk/m", "Hi")
    assert asked.returncode == 1
    assert "guide fits, and is on this machine. edgechat run guide" in asked.stderr


@pytest.mark.slow
async def test_models_are_listed_beside_local_ones(raw):
    await remote("add", raw.url, "--name", "desk")
    await remote("add", "http://127.0.0.1:1", "--name", "off")
    note_speed("desk/m", 123.0, 45.6)
    listed = await run("list")
    assert "desk/m  vLLM    4096     123 ms       45.6 tok/s  just now" in listed.stdout
    assert "note: off cannot be reached" in listed.stderr
    objects = json.loads((await run("list", "--json")).stdout)
    local, hosted = objects[0], objects[-1]
    assert set(hosted) == set(local)
    assert (local["remote"], hosted["name"], hosted["remote"]["decode_tps"]) == (None, "desk/m", 45.6)


@pytest.mark.slow
async def test_a_server_that_never_answers_does_not_hold_the_list(raw):
    async def silent(_):
        await asyncio.sleep(60)

    await remote("add", raw.url, "--name", "desk")
    raw.answers["/v1/models"] = silent
    listed = await asyncio.wait_for(run("list"), 30)
    assert "guide" in listed.stdout
    assert "desk does not answer." in listed.stderr


@pytest.mark.slow
async def test_a_model_is_tried(raw):
    await remote("add", raw.url, "--name", "desk")
    tried = await remote("test", "desk/m")
    assert "desk/m answers: first token after" in tried.stdout
    assert raw.body["max_tokens"] == 64
    raw.answers["/v1/chat/completions"] = said({"error": {"message": "out of memory"}}, 500)
    told = json.loads((await remote("test", "desk/m", "--json")).stdout)
    assert told == {
        "name": "desk/m",
        "error": "desk failed: out of memory.",
        "ttft_ms": None,
        "decode_tps": None,
    }


@pytest.mark.slow
async def test_a_model_is_shown_planned_and_measured(raw):
    await remote("add", raw.url, "--name", "desk")
    shown = await run("show", "desk/m")
    assert f"Server     vLLM at {raw.url}\nContext    4096 tokens\n" in shown.stdout
    assert "not measured yet\n           edgechat bench desk/m" in shown.stdout
    raw.chat(*(text(word) for word in ("One, ", "two, ", "three.")), text("", "stop"))
    told = json.loads((await run("bench", "desk/m", "--rounds", "2", "--tokens", "8", "--json")).stdout)
    assert (told["model"], told["backend"], told["context"]) == ("desk/m", "vLLM", 4096)
    assert [one["ttft_ms"] > 0 for one in told["rounds"]] == [True, True]
    assert raw.body["max_tokens"] == 8
    questions = {one.body["messages"][0]["content"] for one in raw.asked if one.method == "POST"}
    assert len(questions) == 2, "a server has no beginning of one in its cache"
    note_speed("desk/m", 123.0, 45.6)
    planned = await run("plan", "desk/m")
    assert "123 ms to the first token, 45.6 tokens/s" in planned.stdout
    assert "Nothing is loaded on this machine" in planned.stdout
    assert json.loads((await run("show", "desk/m", "--json")).stdout)["remote"]["context"] == 4096


@pytest.mark.slow
@pytest.mark.parametrize(
    ("words", "why"),
    [
        (["show", "desk/nothing"], "desk has no model nothing"),
        (["plan", "desk/m", "--ram", "8GiB"], "so this machine's hardware does not matter"),
        (["plan", "desk/m", "--quality", "good"], "--quality has no effect"),
        (["bench", "desk/m", "--quality"], "does not return the logits that this needs"),
        (["bench", "desk/m", "--plot", "a.png"], "--plot has no effect"),
        (["serve", "desk/m", "--draft", "none"], "--draft has no effect"),
        (["launch", "--print", "--model", "desk/m"], "is not loaded by edgechat"),
    ],
)
async def test_what_a_model_of_a_server_cannot(raw, words, why):
    await remote("add", raw.url, "--name", "desk")
    done = await run(*words)
    assert done.returncode in (1, 2)
    assert why in done.stderr


async def test_a_model_is_served_under_this_api(raw):
    await remote("add", raw.url, "--name", "desk")
    raw.chat(text("From afar."), text("", "stop"))
    question = {"model": "default", "messages": [{"role": "user", "content": "Hi"}]}
    async with real_pool("desk/m") as pool, serving(pool) as url, httpx2.AsyncClient() as client:
        headers = {"Authorization": f"Bearer {KEY_OF_POOL}"}
        answer = await client.post(f"{url}/v1/chat/completions", json=question, headers=headers)
        listed = (await client.get(f"{url}/v1/models", headers=headers)).json()["data"]
        refused = await client.post(
            f"{url}/v1/embeddings", json={"model": "desk/m", "input": "Hi"}, headers=headers
        )
    assert answer.json()["choices"][0]["message"]["content"] == "From afar."
    assert (answer.json()["model"], listed[0]["id"], listed[0]["context"]) == ("desk/m", "desk/m", 4096)
    assert refused.status_code == 400


async def test_a_wrong_key_in_the_file_is_not_told(home):
    settings.settings_file().write_text('[remotes.desk]\nurl = "http://x"\nkey = ["sk-secret"]\n')
    done = await remote("list")
    assert done.returncode == 1
    assert "remotes.desk.key = … is not valid" in done.stderr
    assert "sk-secret" not in done.stderr + done.stdout


@pytest.mark.slow
async def test_options_without_effect_are_refused_and_settings_told(raw):
    await remote("add", raw.url, "--name", "desk")
    asked = await run("run", "desk/m", "Hi", "--draft", "none", "--no-vision")
    assert (asked.returncode, asked.stdout) == (2, "")
    assert "--draft and --no-vision have no effect on desk/m, which another server runs." in asked.stderr
    settings.change("threads", 2)
    asked = await run("run", "desk/m", "Hi", "--ctx", "2048", "--lora", "off")
    assert asked.stdout == "Hi\n"
    for told in ("threads in settings.toml has no effect", "--ctx applies only if"):
        assert asked.stderr.count(told) == 1
