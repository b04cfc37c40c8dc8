"""Documents ranked for a query: the answer of Jina's and llama.cpp's servers."""

import json

import pytest

from tests.server.raw import ask


async def asked(url, path="/v1/rerank", **body):
    status, _, said = await ask(url, "POST", path, body=json.dumps(body).encode())
    return status, said


async def test_the_answer_is_what_clients_expect(url):
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
async def test_what_is_wrong_with_a_request_is_said(body, param, url):
    status, answer = await asked(url, **body)
    assert status == 400
    assert param in answer["error"]["message"] or param == answer["error"]["param"]
