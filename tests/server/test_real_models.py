"""Real models of three kinds behind one real server: a chat, embeddings, and what ranks documents."""

import json
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from typing import Literal

import httpx2
import numpy as np
import pytest
from prometheus_client.parser import text_string_to_metric_families
from pydantic import BaseModel

from tests import homes
from tests.cli.running import edgechat
from tests.kit import tiny
from tests.kit.rerankers import counting_reranker
from tests.later import Later
from tests.server.program import served
from tests.server.test_serving import WEATHER, chat

openai = Later("openai")

pytestmark = pytest.mark.slow
QUERY = "Which one has the letter z?"
DOCUMENTS = ["hello", "zzzz", "a z in it", "zz top, zz end"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    homes.place(tiny("bert"), home / "data" / "models" / "embedder.gguf")
    homes.place(counting_reranker(), home / "data" / "models" / "ranker.gguf")
    with served("guide", home=home) as server:
        yield server


@pytest.fixture
def client(server):
    with openai.OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=20) as client:
        yield client


def vectors(client, texts):
    found = client.embeddings.create(model="embedder", input=texts)
    assert [one.index for one in found.data] == list(range(len(texts)))
    return np.array([one.embedding for one in found.data])


def test_embeddings_beside_a_chat(server, client):
    texts = [f"text {n}" for n in range(20)]
    with ThreadPoolExecutor(4) as threads:
        together = list(threads.map(lambda _: vectors(client, texts), range(4)))
        answers = list(threads.map(lambda n: reply(client, n), range(4)))
    assert np.linalg.norm(together[0], axis=1) == pytest.approx(1, abs=1e-4)
    for one in together:
        assert one == pytest.approx(together[0], abs=2e-3)
    assert vectors(client, texts[3:4])[0] == pytest.approx(together[0][3], abs=2e-3)
    assert len(set(answers)) == 1
    assert answers[0]
    known = kinds(server)
    assert known.keys() == {"guide", "embedder", "ranker"}
    assert (known["guide"], known["embedder"]) == (("chat", True), ("embedding", True))
    assert len(server.workers()) == sum(loaded for _, loaded in known.values())


def kinds(server):
    """Return of each model its kind, and whether it is loaded."""
    return {one["id"]: (one["kind"], one["loaded"]) for one in server.ask("/v1/models")[1]["data"]}


def reply(client, n):
    asked = client.chat.completions.create(**chat("What can you do?", max_tokens=16) | {"model": "guide"})
    return asked.choices[0].message.content


def test_what_cannot_be_embedded_is_said(client):
    with pytest.raises(openai.BadRequestError, match="512"):
        vectors(client, ["x" * 600])
    with pytest.raises(openai.BadRequestError, match="cannot produce embeddings"):
        client.embeddings.create(model="guide", input="hi")
    with pytest.raises(openai.BadRequestError, match="cannot chat"):
        client.chat.completions.create(**chat("hi") | {"model": "embedder"})
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="hi")


@pytest.mark.parametrize("truncate", [None, False, True])
def test_ollamas_clients_decide_whether_a_text_that_is_too_long_is_cut(server, truncate):
    url, key = f"{server.url}/api/embed", {"Authorization": f"Bearer {server.key}"}
    body = {"model": "embedder", "input": ["x" * 600, "hi"], "truncate": truncate}
    answer = httpx2.post(url, json=body, headers=key, timeout=20)
    if not truncate:
        assert (answer.status_code, "512" in answer.json()["error"]) == (400, True)
        return
    told = answer.json()
    assert (answer.status_code, len(told["embeddings"])) == (200, 2)
    assert 512 < told["prompt_eval_count"] <= 512 + 4


def test_metrics_name_endpoints_and_models_that_there_are(server, client):
    def record_tokens():
        families = text_string_to_metric_families(server.ask("/metrics")[1])
        samples = (one for family in families for one in family.samples)
        counts = [(one.labels, one.value) for one in samples if one.name == "edgechat_requests_total"]
        return {(on["endpoint"], on["model"], on["status"]): value for on, value in counts}

    vectors(client, ["hi"])
    before = record_tokens()
    vectors(client, ["hi"])
    for path in ("/v1/models", "/v1/models/guide", "/health", "/made/up", "/v1/models/" + "x" * 100):
        server.ask(path)
    client.chat.completions.create(**chat("hi", max_tokens=1))
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(**chat("hi") | {"model": "x" * 50})
    after = record_tokens()
    more = {key: value - before.get(key, 0) for key, value in after.items() if value != before.get(key, 0)}
    assert more == {
        ("/v1/embeddings", "embedder", "200"): 1,
        ("/v1/models", "", "200"): 2,
        ("/v1/models", "", "404"): 1,
        ("/health", "", "200"): 1,
        ("other", "", "404"): 1,
        ("/metrics", "", "200"): 1,
        ("/v1/chat/completions", "guide", "200"): 1,
        ("/v1/chat/completions", "", "404"): 1,
    }


def test_a_model_is_found_by_every_name_that_a_request_may_use(server):
    for name in ("embedder", "EMBEDDER", "edgechat/embedder", "embedder.gguf"):
        status, told = server.ask(f"/v1/models/{name}")
        assert (status, told["id"], told["kind"], told["context"]) == (200, "embedder", "embedding", 512)
    assert server.ask("/v1/models/default")[1]["id"] == "guide"
    status, told = server.ask("/v1/models/nothing")
    assert (status, told["error"]["code"]) == (404, "model_not_found")


def test_metrics_have_nothing_that_their_format_does_not_know(server, client):
    vectors(client, ["hi"])
    assert "_created" not in server.ask("/metrics")[1]


def test_metrics_can_be_had_while_it_works(server, client):
    done = threading.Event()

    def work():
        while not done.is_set():
            vectors(client, ["x" * 400] * 50)

    with ThreadPoolExecutor(2) as threads:
        working = [threads.submit(work) for _ in range(2)]
        end, is_told = time.monotonic() + 30, False
        while not is_told and time.monotonic() < end:
            is_told = 'edgechat_running{model="embedder"} ' in server.ask("/metrics")[1]
        done.set()
        for one in working:
            one.result()
    assert is_told
    assert server.figure("prompt_tokens_total") > 400


def test_a_real_model_ranks_beside_a_chat(server):
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    status, answer = server.ask("/v1/rerank", body)
    assert status == 200
    assert [one["index"] for one in answer["results"]] == [1, 3, 2, 0]
    assert answer["model"] == "ranker"
    texts = [QUERY + text for text in DOCUMENTS]
    assert answer["usage"]["prompt_tokens"] == sum(len(text) + 4 for text in texts)
    assert kinds(server)["ranker"] == ("reranking", True)
    assert server.ask("/api/show", {"model": "ranker"})[1]["capabilities"] == []
    assert server.figure("prompt_tokens_total") >= answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("rerank", {"model": "guide", "query": "x", "documents": ["a"]}, "not a reranking model"),
        ("rerank", {"model": "ranker", "query": "x", "documents": ["a" * 600]}, "limit is 512"),
        ("rerank", {"model": "ranker", "query": "x" * 600, "documents": ["a"]}, "limit is 512"),
        ("embeddings", {"model": "ranker", "input": "x"}, "cannot produce embeddings"),
        ("chat/completions", chat("x") | {"model": "ranker"}, "cannot chat"),
    ],
)
def test_what_cannot_be_done_is_refused(server, path, body, said):
    status, answer = server.ask(f"/v1/{path}", body)
    assert (status, said in answer["error"]["message"]) == (400, True)


def test_a_real_model_says_what_edgechat_run_says(client):
    question = "What is a quant?"
    expected = edgechat("run", "guide", question, "--temperature", "0", "--no-store").stdout.strip()
    chunks = client.chat.completions.create(**chat(question), stream=True)
    text = "".join(chunk.choices[0].delta.content or "" for chunk in chunks if chunk.choices)
    assert text.strip() == expected
    told = client.chat.completions.create(**chat(question), logprobs=True, top_logprobs=2, max_tokens=5)
    chances = told.choices[0].logprobs.content
    assert "".join(one.token for one in chances) == told.choices[0].message.content
    assert all(one.top_logprobs[0].logprob == pytest.approx(one.logprob) for one in chances)


def test_a_real_model_is_held_to_a_schema_and_to_a_tool(client):
    class Answer(BaseModel):
        model_config = {"extra": "forbid"}
        kind: Literal["quant", "draft"]
        bits: Literal[4, 8, 16]

    asked = chat("What is a quant?", max_tokens=200)
    parsed = client.chat.completions.parse(**asked, response_format=Answer)
    assert isinstance(parsed.choices[0].message.parsed, Answer)
    forced = {"tools": [WEATHER], "tool_choice": "required", "parallel_tool_calls": False}
    [call] = client.chat.completions.create(**asked, **forced).choices[0].message.tool_calls
    assert (call.type, call.function.name) == ("function", "weather")
    assert json.loads(call.function.arguments).keys() == {"place"}
    schema = {"name": "x", "schema": {"type": "no such type"}}
    with pytest.raises(openai.BadRequestError):
        client.chat.completions.create(
            **asked, response_format={"type": "json_schema", "json_schema": schema}
        )
