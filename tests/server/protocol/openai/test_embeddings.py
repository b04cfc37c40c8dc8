"""Embeddings and metrics over HTTP: a real model of each kind behind one real server."""

import threading
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import openai
import pytest
from openai import OpenAI
from prometheus_client.parser import text_string_to_metric_families

from tests import homes
from tests.kit import tiny
from tests.server.program import served

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    homes.place(tiny("bert"), home / "data" / "models" / "embedder.gguf")
    with served("guide", home=home) as server:
        yield server


@pytest.fixture
def client(server):
    with OpenAI(base_url=f"{server.url}/v1", api_key=server.key, max_retries=0, timeout=20) as client:
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
    assert len(server.workers()) == 2
    kinds = {one["id"]: (one["kind"], one["loaded"]) for one in server.ask("/v1/models")[1]["data"]}
    assert kinds == {"guide": ("chat", True), "embedder": ("embedding", True)}


def reply(client, n):
    asked = client.chat.completions.create(
        model="guide",
        messages=[{"role": "user", "content": "What can you do?"}],
        max_tokens=16,
        temperature=0,
    )
    return asked.choices[0].message.content


def test_what_cannot_be_embedded_is_said(client):
    with pytest.raises(openai.BadRequestError, match="512"):
        vectors(client, ["x" * 600])
    with pytest.raises(openai.BadRequestError, match="produces no embeddings"):
        client.embeddings.create(model="guide", input="hi")
    with pytest.raises(openai.BadRequestError, match="cannot chat"):
        client.chat.completions.create(model="embedder", messages=[{"role": "user", "content": "hi"}])
    with pytest.raises(openai.NotFoundError):
        client.embeddings.create(model="text-embedding-3-small", input="hi")


def test_metrics_name_endpoints_and_models_that_there_are(server, client):
    def record_tokens():
        families = text_string_to_metric_families(server.ask("/metrics")[1])
        samples = [
            one for family in families for one in family.samples if one.name == "edgechat_requests_total"
        ]
        return {
            (one.labels["endpoint"], one.labels["model"], one.labels["status"]): one.value for one in samples
        }

    vectors(client, ["hi"])
    before = record_tokens()
    vectors(client, ["hi"])
    for path in ("/v1/models", "/v1/models/guide", "/health", "/made/up", "/v1/models/" + "x" * 100):
        server.ask(path)
    client.chat.completions.create(
        model="default", messages=[{"role": "user", "content": "hi"}], max_tokens=1
    )
    with pytest.raises(openai.NotFoundError):
        client.chat.completions.create(model="x" * 50, messages=[{"role": "user", "content": "hi"}])
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
        texts = [server.ask("/metrics")[1] for _ in range(5)]
        done.set()
        for one in working:
            one.result()
    assert any('edgechat_running{model="embedder"} ' in text for text in texts)
    assert server.figure("prompt_tokens_total") > 400
