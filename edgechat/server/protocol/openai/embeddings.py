"""Embeddings: POST /v1/embeddings."""

from __future__ import annotations

import base64
import struct
from typing import Annotated, Literal

import msgspec
from msgspec import Meta, Raw

from edgechat.engine.types import Embedded
from edgechat.server.pool.models import ServedModel
from edgechat.server.protocol.openai.generation import Model, Texts, texts_of
from edgechat.server.refusal import Refusal

_MOST_TEXTS = 2048
_VECTOR = {"anyOf": [{"type": "array", "items": {"type": "number"}}, {"type": "string"}]}


class EmbeddingBody(msgspec.Struct, frozen=True, kw_only=True):
    """An embeddings request."""

    model: Model = None
    input: Annotated[Texts, Meta(description="A text, or its token ids; or several of them, up to 2048.")]
    encoding_format: Annotated[
        Literal["float", "base64"] | None,
        Meta(description="base64: 32-bit floats, little-endian."),
    ] = None
    dimensions: Annotated[
        Annotated[int, Meta(ge=1, le=65536)] | Annotated[float, Meta(ge=1, le=65536, multiple_of=1)] | None,
        Meta(description="Only the model's own number of dimensions is accepted."),
    ] = None
    user: Annotated[
        Annotated[str, Meta(max_length=512)] | None,
        Meta(description="Ignored: nothing is stored."),
    ] = None

    def texts(self) -> list[str | tuple[int, ...]]:
        """Return the texts, or their tokens. Raises Refusal where what they are is not clear."""
        texts = texts_of(self.input, "input")
        if len(texts) > _MOST_TEXTS:
            raise Refusal(f"The request has more than {_MOST_TEXTS} texts.", param="input")
        return texts

    def check(self, served: ServedModel) -> None:
        """Raise Refusal for another number of dimensions than the model's."""
        dimensions = served.model.embedding
        if dimensions and self.dimensions not in (None, dimensions):
            raise Refusal(
                f"{served.name} produces embeddings with {dimensions} dimensions, not {self.dimensions:.0f}.",
                param="dimensions",
            )


class Embedding(msgspec.Struct, frozen=True, kw_only=True):
    """The embedding of one text."""

    object: Literal["embedding"] = "embedding"
    index: int
    embedding: Annotated[Raw, Meta(extra_json_schema=_VECTOR)]


class EmbeddingUsage(msgspec.Struct, frozen=True):
    """Tokens of all texts together."""

    prompt_tokens: int
    total_tokens: int


class EmbeddingList(msgspec.Struct, frozen=True, kw_only=True):
    """The embeddings, in the order of the texts."""

    object: Literal["list"] = "list"
    data: list[Embedding]
    model: str
    usage: EmbeddingUsage


def embedding_list(body: EmbeddingBody, model: str, embedded: Embedded) -> bytes:
    """Return the JSON of the answer. For many numbers it takes a second: call it in a thread."""
    data = [
        Embedding(index=index, embedding=vector_json(vector, body.encoding_format))
        for index, vector in enumerate(embedded.vectors)
    ]
    usage = EmbeddingUsage(embedded.tokens, embedded.tokens)
    return msgspec.json.encode(EmbeddingList(data=data, model=model, usage=usage))


def vector_json(vector: bytes, encoding: str | None = None) -> Raw:
    """Return the JSON of a vector: each by itself, so that other threads come in between."""
    if encoding == "base64":
        return Raw(msgspec.json.encode(base64.b64encode(vector).decode()))
    return Raw(msgspec.json.encode(struct.unpack(f"<{len(vector) // 4}f", vector)))
