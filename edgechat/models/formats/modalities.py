"""What a model makes, and what it takes besides text."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal

ModelKind = Literal["chat", "embedding", "reranking"]
"""What a model makes: replies, vectors of texts, or scores of texts as answers to a query."""
Modality = Literal["vision", "audio"]
SENSES: dict[Modality, str] = {"vision": "sees", "audio": "hears"}
"""What a model does that takes it."""


def modalities(*, vision: bool, audio: bool) -> tuple[Modality, ...]:
    """Return those that are meant."""
    return (*(("vision",) if vision else ()), *(("audio",) if audio else ()))


def senses(names: Iterable[Modality]) -> str:
    """Return what a model does that takes these: 'sees and hears'."""
    return " and ".join(SENSES[name] for name in names)
