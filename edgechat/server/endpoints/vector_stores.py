"""OpenAI's vector stores, read only: the documents that clients may use, and searches in them."""

from __future__ import annotations

import msgspec

from edgechat.server.documents.asked import AskedDocuments
from edgechat.server.documents.vector_stores import (
    StoreSearchBody,
    StoresQuery,
    VectorStorePage,
    found_page,
    vector_store,
)
from edgechat.server.endpoints.base import Endpoints
from edgechat.server.http.exchange import Exchange
from edgechat.server.protocol.decoding import decode_query


class VectorStoreEndpoints(Endpoints):
    """What clients ask of documents alone."""

    async def stores(self, exchange: Exchange) -> None:
        """GET /v1/vector_stores."""
        query = decode_query(exchange.scope["query_string"], StoresQuery)
        page = VectorStorePage.of(list(map(vector_store, await self._documents.usable())), query)
        await exchange.answer(200, msgspec.json.encode(page))

    async def one_store(self, exchange: Exchange) -> None:
        """GET /v1/vector_stores/{id}."""
        name = str(exchange.scope["path_params"]["id"])
        await self._documents.check([name], status=404)
        store = vector_store(await self._documents.facts(name))
        await exchange.answer(200, msgspec.json.encode(store))

    async def search(self, exchange: Exchange) -> None:
        """POST /v1/vector_stores/{id}/search."""
        name = str(exchange.scope["path_params"]["id"])
        body = await self._body(exchange, StoreSearchBody)
        await self._documents.check([name], status=404)

        async def search() -> None:
            await self._documents.prepare(AskedDocuments((name,)))
            found = await self._documents.search(name, body.text, body.max_num_results)
            await exchange.answer(200, msgspec.json.encode(found_page(body, found)))

        await exchange.run_until_disconnect(search())
