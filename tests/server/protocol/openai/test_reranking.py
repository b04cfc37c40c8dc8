"""Documents ranked for a query: the answer of Jina's and llama.cpp's servers, and a real model behind one."""

import json

import pytest

from tests import homes
from tests.kit.rerankers import counting_reranker
from tests.server.fakes import FakeModels, serving
from tests.server.program import served
from tests.server.raw import ask

pytestmark = pytest.mark.slow

QUERY = "Which one has the letter z?"
DOCUMENTS = ["hello", "zzzz", "a z in it", "zz top, zz end"]


async def asked(url, path="/v1/rerank", **body):
    status, _, said = await ask(url, "POST", path, body=json.dumps(body).encode())
    return status, said


async def test_the_answer_is_what_clients_expect():
    async with serving(FakeModels()) as url:
        for path in ("/v1/rerank", "/rerank"):
            status, answer = await asked(url, path, query="x", documents=["a", "abc", "ab"])
            assert status == 200
            assert answer == {
                "object": "list",
                "model": "scripted",
                "results": [
                    {"index": 1, "relevance_score": 3.0},
                    {"index": 2, "relevance_score": 2.0},
                    {"index": 0, "relevance_score": 1.0},
                ],
                "usage": {"prompt_tokens": 7, "total_tokens": 7},
            }
        fields = {"top_n": 1, "return_documents": True}
        documents = ["a", {"text": "abc", "id": 7}]
        status, answer = await asked(url, query="x", documents=documents, **fields)
        assert (status, answer["results"]) == (
            200,
            [{"index": 1, "relevance_score": 3.0, "document": {"text": "abc"}}],
        )
        status, answer = await asked(url, query="x", documents=["a"], top_n=100)
        assert (status, len(answer["results"])) == (200, 1)


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"documents": ["a"]}, "query"),
        ({"query": "", "documents": ["a"]}, "query"),
        ({"query": "x"}, "documents"),
        ({"query": "x", "documents": []}, "documents"),
        ({"query": "x", "documents": "a"}, "documents"),
        ({"query": "x", "documents": [1]}, "documents[0]"),
        ({"query": "x", "documents": ["a"] * 2049}, "documents"),
        ({"query": "x", "documents": ["a"], "top_n": 0}, "top_n"),
    ],
)
async def test_what_is_wrong_with_a_request_is_said(body, param):
    async with serving(FakeModels()) as url:
        status, answer = await asked(url, **body)
    assert status == 400
    assert param in answer["error"]["message"] or param == answer["error"]["param"]


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    homes.place(counting_reranker(), home / "data" / "models" / "ranker.gguf")
    with served("guide", home=home) as server:
        yield server


def test_a_real_model_ranks_beside_a_chat(server):
    body = {"model": "ranker", "query": QUERY, "documents": DOCUMENTS}
    status, answer = server.ask("/v1/rerank", body)
    assert status == 200
    assert [one["index"] for one in answer["results"]] == [1, 3, 2, 0]
    assert answer["model"] == "ranker"
    texts = [QUERY + text for text in DOCUMENTS]
    assert answer["usage"]["prompt_tokens"] == sum(len(text) + 4 for text in texts)
    kinds = {one["id"]: (one["kind"], one["loaded"]) for one in server.ask("/v1/models")[1]["data"]}
    assert kinds["ranker"] == ("reranking", True)
    assert server.ask("/api/show", {"model": "ranker"})[1]["capabilities"] == []
    assert server.figure("prompt_tokens_total") >= answer["usage"]["prompt_tokens"]


@pytest.mark.parametrize(
    ("path", "body", "said"),
    [
        ("rerank", {"model": "guide", "query": "x", "documents": ["a"]}, "no reranking model"),
        ("rerank", {"model": "ranker", "query": "x", "documents": ["a" * 600]}, "limit is 512"),
        ("rerank", {"model": "ranker", "query": "x" * 600, "documents": ["a"]}, "limit is 512"),
        ("embeddings", {"model": "ranker", "input": "x"}, "produces no embeddings"),
        (
            "chat/completions",
            {"model": "ranker", "messages": [{"role": "user", "content": "x"}]},
            "cannot chat",
        ),
    ],
)
def test_what_cannot_be_done_is_refused(server, path, body, said):
    status, answer = server.ask(f"/v1/{path}", body)
    assert (status, said in answer["error"]["message"]) == (400, True)
