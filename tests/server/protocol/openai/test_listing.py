"""The list of models, as OpenAI's client and Codex read it."""

import httpx2
from openai import AsyncOpenAI

from tests.server.fakes import KEY, FakeModels, serving


async def test_openais_client_lists_the_models():
    async with (
        serving(FakeModels()) as url,
        AsyncOpenAI(base_url=f"{url}/v1", api_key=KEY, max_retries=0) as client,
    ):
        assert [model.id async for model in client.models.list()] == ["scripted"]
        assert (await client.models.retrieve("scripted")).owned_by == "edgechat"


async def test_codex_can_read_the_list_and_others_are_not_told_of_an_empty_one():
    async with (
        serving(FakeModels()) as url,
        httpx2.AsyncClient(headers={"Authorization": f"Bearer {KEY}"}) as client,
    ):
        plain = (await client.get(f"{url}/v1/models")).json()
        codex = (await client.get(f"{url}/v1/models?client_version=0.169.0")).json()
    assert "models" not in plain
    assert codex == plain | {"models": []}
    assert [model["id"] for model in codex["data"]] == [codex["first_id"]] == [codex["last_id"]]
