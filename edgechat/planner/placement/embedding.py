"""How embedding and reranking models are loaded: unlike with chat models, a call must hold a whole text."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import ModelHeader
from edgechat.native.params import LoadParams

LONGEST_TEXT = 8192
"""Maximum context unless more is requested, in tokens: the compute buffers grow with it."""

_HEAD = "cls."
"""Of the names of the head's tensors, the beginning."""

_Params = TypeVar("_Params", bound=LoadParams)


def for_embeddings(params: _Params, header: ModelHeader) -> _Params:
    """Return the parameters of a load for embeddings of texts of up to `context` tokens.

    Where all tokens of a text attend to each other, or all are pooled, one call computes the whole text.
    """
    size = min(params.n_batch, params.context) if header.reads_in_parts else params.context
    return msgspec.structs.replace(
        params,
        embeddings=True,
        reranks=header.kind == "reranking",
        n_batch=size,
        n_ubatch=size,
        n_outputs_max=0,
    )


def check(name: str, header: ModelHeader, *, may_embed: bool) -> None:
    """Raise ModelFileError for a model that cannot chat; may_embed: nor produce embeddings or scores."""
    if not header.makes_embeddings:
        return
    reranks = header.kind == "reranking"
    if not may_embed and reranks:
        raise ModelFileError(
            f"{name} is a reranking model and cannot chat.",
            hint="`edgechat serve` provides scores at /v1/rerank, and `reranking_model` in settings.toml has "
            "documents searched with it. To chat, choose a chat model; `edgechat run guide` always works.",
        )
    if reranks and not any(tensor.name.startswith(_HEAD) for tensor in header.tensors):
        # llama.cpp would return a number of the hidden state as the score.
        raise ModelFileError(
            f"{name} is a reranking model without the classification head that makes its scores.",
            hint="It was converted by an old program; look for another file of the same model.",
        )
    if not may_embed:
        raise ModelFileError(
            f"{name} is an embedding model and cannot chat.",
            hint="`edgechat serve` provides embeddings at /v1/embeddings. To chat, choose a chat model; "
            "`edgechat run guide` always works.",
        )
