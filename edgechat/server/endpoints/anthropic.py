"""Anthropic's endpoints: messages, and how many tokens they have."""

from __future__ import annotations

from edgechat.server.documents import asked_documents
from edgechat.server.endpoints.base import Endpoints
from edgechat.server.exchange import Exchange
from edgechat.server.protocol.anthropic import CountBody, MessagesBody, TokenCount
from edgechat.server.protocol.anthropic_answer import MessagesAnswers


class AnthropicEndpoints(Endpoints):
    """What Anthropic's clients ask."""

    async def messages(self, exchange: Exchange) -> None:
        """POST /v1/messages."""
        await self._generate(exchange, MessagesBody, lambda body: MessagesAnswers(body, self._think))

    async def count(self, exchange: Exchange) -> None:
        """POST /v1/messages/count_tokens."""
        asked = await self._made_of(
            exchange, CountBody, lambda body: (body.model, body.asked(), asked_documents(body.docs))
        )
        await exchange.run_until_disconnect(self._count(exchange, *asked, TokenCount))
