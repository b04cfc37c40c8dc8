"""Texts to tokens and back, as llama.cpp's server does it: POST /tokenize and /detokenize."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from edgechat.engine.types import MOST_CHARACTERS, MOST_TOKENS, Translated
from edgechat.server.protocol.openai.generation import Model, TokenId


class TokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """A text to tokenize."""

    model: Model = None
    content: Annotated[str, Meta(max_length=MOST_CHARACTERS)]
    add_special: Annotated[
        bool | None, Meta(description="Add the token that the model expects at the beginning of a text.")
    ] = None
    parse_special: Annotated[
        bool | None,
        Meta(description="Interpret control tokens in the text, which can have up to 32,768 characters."),
    ] = None

    @property
    def what(self) -> str:
        """The engine's input."""
        return self.content

    @property
    def how(self) -> dict[str, bool]:
        """The options of `Engine.translate`."""
        return {"bos": bool(self.add_special), "special": bool(self.parse_special)}

    @staticmethod
    def response(translated: Translated) -> TokenList:
        """Return the answer."""
        return TokenList(translated.tokens)


class TokenList(msgspec.Struct, frozen=True):
    """The token ids of a text."""

    tokens: tuple[int, ...]


class DetokenizeBody(msgspec.Struct, frozen=True, kw_only=True):
    """Tokens to detokenize."""

    model: Model = None
    tokens: Annotated[list[TokenId], Meta(max_length=MOST_TOKENS)]

    @property
    def what(self) -> tuple[int, ...]:
        """The engine's input."""
        return tuple(self.tokens)

    @property
    def how(self) -> dict[str, bool]:
        """The options of `Engine.translate`."""
        return {}

    @staticmethod
    def response(translated: Translated) -> TokensText:
        """Return the answer."""
        return TokensText(translated.text.decode("utf-8", "replace"))


class TokensText(msgspec.Struct, frozen=True):
    """The text of tokens; invalid bytes are replaced by �."""

    content: str
