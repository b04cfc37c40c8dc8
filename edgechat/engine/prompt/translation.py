"""Texts to tokens and back, for clients that count or cut them."""

from __future__ import annotations

from typing import Protocol

from edgechat.base.errors import BadRequest
from edgechat.engine.types import ChatRequest, Translate, Translated

MOST_CHARACTERS = 2**20
"""Of a text: more than contexts hold, and tokenized within about a second."""
MOST_WITH_MARKS = 2**15
"""... with control tokens, many of which take quadratic time."""
MOST_TOKENS = 2**17


class PlainVocabulary(Protocol):
    """The part of a vocabulary that `translate` needs."""

    @property
    def size(self) -> int:
        """Number of tokens."""
        ...

    def tokenize(self, text: str, *, bos: bool, special: bool) -> list[int]:
        """Return the ids of a text."""
        ...

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """Return the bytes of a token."""
        ...


def translate(vocabulary: PlainVocabulary, command: Translate) -> Translated:
    """Return the tokens of a text, or the text of tokens. Raises BadRequest.

    A chat has a template, and is not for this function.
    """
    what = command.what
    assert not isinstance(what, ChatRequest)
    if isinstance(what, str):
        most = MOST_WITH_MARKS if command.special else MOST_CHARACTERS
        if len(what) > most:
            raise BadRequest(
                f"The text has {len(what)} characters; the limit is {most}.", hint="Send it in several parts."
            )
        tokens = vocabulary.tokenize(what, bos=command.bos, special=command.special)
        return Translated(command.request_id, tuple(tokens), b"")
    if len(what) > MOST_TOKENS:
        raise BadRequest(f"The limit is {MOST_TOKENS} tokens.", hint="Send them in several parts.")
    unknown = next((token for token in what if not 0 <= token < vocabulary.size), None)
    if unknown is not None:
        raise BadRequest(f"Unknown token {unknown}: the model's tokens are 0 to {vocabulary.size - 1}.")
    text = b"".join(vocabulary.piece(token, special=True) for token in what)
    return Translated(command.request_id, what, text)
