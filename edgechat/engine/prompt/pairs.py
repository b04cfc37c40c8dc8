"""What a reranking model reads of a query and a document, in the order that llama-server has them in.

With a template of its own (Qwen3-Reranker) that is a prompt, in which only the template may set marks; else
both texts are joined by the separators of the vocabulary (BERT, XLM-RoBERTa).
"""

from __future__ import annotations

import re
from typing import Protocol

from edgechat.base.errors import LoadFailed
from edgechat.engine.backends.base import Vocabulary
from edgechat.engine.prompt.control_tokens import ControlTokens

_DOCUMENT = "{document}"
_ANOTHER = "Look for another file of the same model: this one was converted by an old or unusual program."
_PLACES = re.compile(r"\{(query|document)\}")


class PairVocabulary(Vocabulary, Protocol):
    """A vocabulary that joins two texts."""

    def around_pair(self) -> tuple[list[int], list[int], list[int]]:
        """Return the ids before, between and behind the texts."""


class PairPrompt:
    """Makes tokens of pairs."""

    def __init__(self, vocabulary: PairVocabulary, template: str | None) -> None:
        """template: of the model's file, with '{query}' and '{document}' in it."""
        self._vocabulary, self._template = vocabulary, template
        self._control = ControlTokens(vocabulary)

    def check(self) -> None:
        """Raise LoadFailed where a query would not be told from a document: scores would mean nothing."""
        if self._template is None and not self._vocabulary.around_pair()[1]:
            raise LoadFailed(
                "The model's file has neither a template for reranking nor a token between two texts.",
                hint=_ANOTHER,
            )
        if self._template is not None and {*_PLACES.findall(self._template)} != {"query", "document"}:
            raise LoadFailed(
                "The template for reranking in the model's file has no place for {query} or for {document}.",
                hint=_ANOTHER,
            )

    def tokens(self, query: str, document: str) -> list[int]:
        """Return the ids of a pair."""
        if self._template is None:
            before, between, behind = self._vocabulary.around_pair()
            return [*before, *self._plain(query), *between, *self._plain(document), *behind]
        texts = {"query": self._control.guard(query), "document": self._control.guard(document)}
        return self._control.tokens(_PLACES.sub(lambda place: texts[place[1]], self._template), bos=False)

    def beginning(self, query: str, document: str, longest: int) -> list[int]:
        """Return the ids of a pair, no more than `longest`: the end of the document is left out, if need be.

        The query takes up to a quarter. Of a template that is longer than the rest, the beginning counts.
        """
        asked = self._plain(query)
        if len(asked) > (most := longest // 4):
            query = b"".join(map(self._vocabulary.piece, asked[:most])).decode("utf-8", "ignore")
        tokens = self.tokens(query, document)
        n_behind = len(self._behind())
        if len(tokens) <= longest or n_behind >= longest:
            return tokens[:longest]
        return tokens[: longest - n_behind] + tokens[len(tokens) - n_behind :]

    def _behind(self) -> list[int]:
        if self._template is None:
            return self._vocabulary.around_pair()[2]
        return self._control.tokens(self._template.rpartition(_DOCUMENT)[2], bos=False)

    def _plain(self, text: str) -> list[int]:
        return self._vocabulary.tokenize(text, bos=False, special=False)
