"""How embedding and reranking models are loaded: unlike with chat models, a call must hold a whole text."""

from __future__ import annotations

import math
from typing import TypeVar

import msgspec

from edgechat.base.errors import ModelFileError
from edgechat.models.formats.header import GgufArray, ModelHeader, show
from edgechat.native.params import LoadParams

LONGEST_TEXT = 8192
"""Maximum context unless more is requested, in tokens: the compute buffers grow with it."""

_YES = "yes"
"""The label that must be the first one where there are several: llama.cpp's score is the first one's."""

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
    if reranks and not _has_head(header):
        # llama.cpp would return a number of the hidden state as the score.
        raise ModelFileError(
            f"{name} is a reranking model without the classification head that makes its scores.",
            hint="It was converted by an old program; look for another file of the same model.",
        )
    if reranks and len(labels := _labels(header)) > 1 and labels[0].lower() != _YES:
        raise ModelFileError(
            f"{name} sorts texts into classes ({show(', '.join(labels))}); it does not score documents.",
            hint="Choose a reranking model: `edgechat pull bge-reranker-v2-m3`.",
        )
    if not may_embed:
        raise ModelFileError(
            f"{name} is an embedding model and cannot chat.",
            hint="`edgechat serve` provides embeddings at /v1/embeddings. To chat, choose a chat model; "
            "`edgechat run guide` always works.",
        )


def _has_head(header: ModelHeader) -> bool:
    """Whether there is a layer that makes scores; cls.weight may be the one before, as wide as the model."""
    shapes = {tensor.name: tensor.shape for tensor in header.tensors}
    head = shapes.get("cls.weight")
    return "cls.output.weight" in shapes or (head is not None and math.prod(head[1:]) == 1)


def _labels(header: ModelHeader) -> tuple[str, ...]:
    found = header.shape_value("classifier.output_labels")
    return tuple(map(str, found.values or ())) if isinstance(found, GgufArray) else ()
