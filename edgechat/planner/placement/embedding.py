"""How models that make embeddings are loaded, which differs from chat in what a call must hold."""

from __future__ import annotations

from typing import TypeVar

import msgspec

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import POOLED_RANK, ModelHeader
from edgechat.native.params import LoadParams

LONGEST_TEXT = 8192
"""Tokens of a text: more is never taken by itself, as what is computed with grows with it."""


_Params = TypeVar("_Params", bound=LoadParams)


def for_embeddings(params: _Params, header: ModelHeader) -> _Params:
    """Return the parameters of a load that makes embeddings of texts of up to `context` tokens.

    Where all tokens of a text look at each other, or all count in the end, one call computes it whole.
    """
    size = min(params.n_batch, params.context) if header.reads_in_parts else params.context
    return msgspec.structs.replace(params, embeddings=True, n_batch=size, n_ubatch=size, n_outputs_max=0)


def shorter(params: _Params, header: ModelHeader, context: int) -> _Params:
    """Return the parameters of such a load for shorter texts."""
    return for_embeddings(msgspec.structs.replace(params, context=context), header)


def check(name: str, header: ModelHeader, *, may_embed: bool) -> None:
    """Raise ModelFileError for a model that cannot chat, nor make embeddings where these may be wanted."""
    if not header.makes_embeddings:
        return
    if header.pooling == POOLED_RANK:
        raise ModelFileError(
            f"{name} is a reranking model: it can neither chat nor produce embeddings.",
            hint="Choose a chat model; `edgechat run guide` always works.",
        )
    if not may_embed:
        raise ModelFileError(
            f"{name} is an embedding model and cannot chat.",
            hint="`edgechat serve` provides embeddings at /v1/embeddings. To chat, choose a chat model; "
            "`edgechat run guide` always works.",
        )
