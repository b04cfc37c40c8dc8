"""Texts to go on with or to embed, or their tokens: one, or several."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta

from edgechat.server.http.refusal import Refusal

TokenId = Annotated[int, Meta(ge=0, le=2**31 - 1)]
TokenIds = Annotated[list[TokenId], Meta(min_length=1, max_length=2**20)]
Text = Annotated[str, Meta(min_length=1)]
Texts = Text | Annotated[list[Text | TokenIds | TokenId], Meta(min_length=1, max_length=2**20)]


def texts_of(sent: Texts, param: str) -> list[str | tuple[int, ...]]:
    """Return each text, or its tokens. Raises Refusal where what they are is not clear."""
    if isinstance(sent, str):
        return [sent]
    numbers = [one for one in sent if isinstance(one, int)]
    if numbers and len(numbers) < len(sent):
        raise Refusal(f"{param} mixes token ids and texts.", param=param)
    if numbers:
        return [tuple(numbers)]
    return [one if isinstance(one, str) else tuple(one) for one in sent if not isinstance(one, int)]
